//! How hard to search for matches, tier by tier.
//!
//! Measured on 600 held-out heap pages each of two pandas, two JSON and text, and one node process,
//! with dictionaries of their other pages and prefixes found among those by content; page bytes ÷
//! stored bytes, and µs a page on one core of a host under load (delta rows: the 82 to 95 % of the
//! pages that have a similar one):
//!
//! | | pandas | pandas, random floats | JSON | text | node | in | out |
//! |---|---|---|---|---|---|---|---|
//! | zstd 3 alone | 4.15 | 3.62 | 5.35 | 4.27 | 4.63 | 13–16 | 5–6 |
//! | Warm, 256 KiB | 4.58 | 3.95 | 6.08 | 4.75 | 5.06 | 16–24 | 5–7 |
//! | Cold, 1 MiB | 5.06 | 4.45 | 6.96 | 5.62 | 5.71 | 84–139 | 5–7 |
//! | Frozen, 1 MiB | 5.37 | 4.70 | 7.32 | 6.04 | 6.19 | 1600–2200 | 5–7 |
//! | Warm delta, 1 page | 5.52 | 4.93 | 6.43 | 5.01 | 7.51 | 15–19 | 4–7 |
//! | Cold delta, 4 pages | 7.19 | 6.31 | 7.92 | 6.85 | 10.76 | 59–90 | 4–7 |
//! | Frozen delta, 4 pages | 7.55 | 6.57 | 8.26 | 7.19 | 12.04 | 1300–1800 | 4–7 |

use crate::sys::zstd_dictionary::Parameters;

/// Effort of an encoder that has a dictionary or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// On the way out of the target: 16 µs a page on an idle host, a fifth more than zstd 3 alone.
    Warm,
    /// Recoding in the background: about 100 µs a page with a dictionary, 60 to 90 as a delta.
    Cold,
    /// For what nobody has asked for in a long time: 1.3 to 2.2 ms a page.
    Frozen,
    /// What the library does at that level.
    Level(i32),
}

/// The double-hash search, which is what 20 µs a page allow.
const WARM: Parameters = Parameters::of_level(3);
/// Rows of 32 candidates, with a table for 1 MiB: the library's own choice at this level has four
/// times the memory.
const COLD: Parameters =
    Parameters { hash_log: 19, min_match: 5, search_log: 5, ..Parameters::of_level(9) };
/// The best that the library can, with tables of 4.5 MiB instead of 32.
const FROZEN: Parameters = Parameters { hash_log: 17, chain_log: 20, ..Parameters::of_level(19) };
/// Hash chains over at most five pages. For one page of prefix the library would choose binary
/// trees at this level: four times as long for less than half a percent.
const COLD_DELTA: Parameters = Parameters {
    window_log: 15,
    hash_log: 14,
    chain_log: 15,
    search_log: 6,
    min_match: 4,
    strategy: 5,
    chains: true,
    ..Parameters::of_level(9)
};
/// The best that the library can; tables as large as the prefix needs.
const FROZEN_DELTA: Parameters = Parameters { window_log: 15, ..Parameters::of_level(19) };

impl Preset {
    /// The level of the library that it is nearest to, and that an encoding without a dictionary is
    /// compared at.
    pub const fn level(self) -> i32 {
        match self {
            Self::Warm => WARM.level,
            Self::Cold => COLD.level,
            Self::Frozen => FROZEN.level,
            Self::Level(level) => level,
        }
    }

    pub(super) const fn dictionary(self) -> Parameters {
        match self {
            Self::Warm => WARM,
            Self::Cold => COLD,
            Self::Frozen => FROZEN,
            Self::Level(level) => Parameters::of_level(level),
        }
    }

    pub(super) const fn delta(self) -> Parameters {
        match self {
            Self::Warm => WARM,
            Self::Cold => COLD_DELTA,
            Self::Frozen => FROZEN_DELTA,
            Self::Level(level) => Parameters::of_level(level),
        }
    }

    /// Whether the search is so cheap that the library would take the dictionary's entropy tables
    /// without comparing (see [`super::EncodingDictionary`]).
    pub(super) const fn takes_tables_unseen(self) -> bool {
        // Up to level 5 the library's strategy is below lazy, where it begins to compare.
        self.level() < 6
    }
}
