//! How hard to search for matches, tier by tier.
//!
//! The figures are of one core (Xeon 6430 class) and of the held-out heap pages of five processes
//! (two pandas, two JSON and text, one node), each with a dictionary trained on its own other
//! pages.
use crate::sys::zstd_dictionary::Parameters;

/// Effort of an encoder that has a dictionary or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// On the way out of the target: a page in 20 µs.
    Warm,
    /// Recoding in the background: a page in 110 µs with a dictionary, 150 µs as a delta.
    Cold,
    /// For what nobody has asked for in a long time: 1.5 ms a page.
    Frozen,
    /// What the library does at that level.
    Level(i32),
}

/// The double-hash search, which is what a page in 20 µs allows.
const WARM: Parameters =
    Parameters { hash_log: 16, chain_log: 16, min_match: 5, ..Parameters::of_level(3) };
/// Rows of 32 candidates, with a table for 1 MiB: the library's own choice at this level has four
/// times the memory.
const COLD: Parameters =
    Parameters { hash_log: 19, min_match: 5, search_log: 5, ..Parameters::of_level(9) };
/// The best that the library can, with tables of 4.5 MiB instead of 32.
const FROZEN: Parameters = Parameters { hash_log: 17, chain_log: 20, ..Parameters::of_level(19) };
/// Hash chains over at most five pages. At this level the library would choose binary trees for
/// one page of prefix: five times as long for two in a hundred fewer bytes.
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
            Self::Warm => Parameters::of_level(3),
            Self::Cold => COLD_DELTA,
            Self::Frozen => FROZEN_DELTA,
            Self::Level(level) => Parameters::of_level(level),
        }
    }

    /// Whether the search is so cheap that the library would take the dictionary's entropy tables
    /// without comparing (see [`super::EncodingDictionary`]).
    pub(super) const fn takes_tables_unseen(self) -> bool {
        // From level 5 on the strategy is at least greedy at every size of dictionary, from 6 lazy.
        self.level() < 6
    }
}
