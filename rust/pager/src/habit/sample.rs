//! Which pages of a set are spared from prefetch, and what those tell of the others.

use super::{Learned, WEIGHT_MAX};
use crate::address::PageNumber;

/// Of so many pages that only one wake has needed one is spared, as a power of two: 4.
const PART_UNPROVEN: u8 = 2;
/// The same for proven pages, 4 to 64, so that of each cohort about so many are spared.
const PART: std::ops::RangeInclusive<u8> = 2..=6;
const IN_COHORT: u32 = 16;
/// Most pages that are spared in a wake, about: each costs its toucher up to 75 us, together 20 ms.
const PAGES_MAX: usize = 256;
/// Fewer spared pages say nothing about their cohort.
const ENOUGH: u32 = 4;

/// Held back from this wake's prefetch.
pub const SPARED: u8 = 1 << 0;
/// Chosen for this wake's prefetch.
pub const CHOSEN: u8 = 1 << 1;
/// Held back, and touched.
pub const TOUCHED: u8 = 1 << 2;
/// Above these: of how many one was held back, as a power of two.
pub const PART_SHIFT: u32 = 3;

/// How large a part of each kind of pages is spared, all as powers of two.
pub struct Parts {
    /// Proven pages of each cohort.
    proven: [u32; 256],
    least: u8,
}

impl Parts {
    /// For one wake.
    pub fn of(pages: &[Learned]) -> Self {
        let mut proven = [0; 256];
        for known in pages.iter().filter(|known| known.weight == WEIGHT_MAX) {
            proven[usize::from(known.cohort)] += 1;
        }
        Self { proven, least: (pages.len() / PAGES_MAX).max(1).ilog2() as u8 }
    }

    /// Of how many pages like this one is spared.
    pub fn for_page(&self, known: &Learned) -> u8 {
        let part = match known.weight {
            WEIGHT_MAX => part_of_proven(self.proven[usize::from(known.cohort)]),
            _ => PART_UNPROVEN,
        };
        part.max(self.least)
    }
}

/// Of how many proven pages of a cohort one is spared, as a power of two.
fn part_of_proven(proven: u32) -> u8 {
    let part = (proven / IN_COHORT).max(1).ilog2() as u8;
    part.clamp(*PART.start(), *PART.end())
}

/// What a spared page tells of: the others of its share, which were brought.
pub fn stands_for(part: u8) -> u64 {
    (1 << part) - 1
}

/// Cohorts of which most spared pages stayed away.
pub fn idle_cohorts(pages: &[Learned]) -> [bool; 256] {
    let mut counts = [(0u32, 0u32); 256];
    for known in pages.iter().filter(|known| known.marks & SPARED != 0) {
        let (spared, touched) = &mut counts[usize::from(known.cohort)];
        *spared += 1;
        *touched += u32::from(known.marks & TOUCHED != 0);
    }
    counts.map(|(spared, touched)| spared >= ENOUGH && 2 * touched < spared)
}

/// Whether a page is spared in this wake: one of 2 to the `part`, and in each wake as if by a new
/// draw, so that as large a part of any kind of pages is spared (splitmix64's finalizer).
pub fn is_turn(page: PageNumber, wake: u64, part: u8) -> bool {
    let mut mixed = page.0.wrapping_add(wake.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31).is_multiple_of(1 << part)
}
