//! From a word to what must be added to it, without search.
//!
//! Areas and canonical ranges share one number space of 48 bits. A tree over it has an entry for
//! every granule of the root; an entry is either the answer for the whole granule or a node with
//! smaller ones, down to single pages. So a border costs at most three nodes and the inside of
//! an area, however large, nothing.

use super::{ADDRESS_BITS, Area};

/// Granules of the root, of its nodes, of theirs, and single pages.
const SHIFTS: [u32; 4] = [34, 26, 18, 12];
/// Entries of a node of each level.
const ENTRIES: [usize; 4] =
    [1 << (ADDRESS_BITS + 1 - SHIFTS[0]), 1 << 8, 1 << 8, 1 << (SHIFTS[2] - SHIFTS[3])];
/// Nodes begin at multiples of this many entries, which is the size of the smallest.
const UNIT: usize = ENTRIES[3];
/// Marks an entry that is a node (its number in units) and no answer.
const NODE: u16 = 0x8000;
/// Bounds memory and build time. A Python process with 120 libraries needs an eighth; a layout
/// that needs more is made with fewer areas.
const ENTRIES_MAX: usize = 1 << 19;

/// The tree. Entry 0 of the answers is "stays as it is".
#[derive(Clone, Debug)]
pub struct Table {
    entries: Vec<u16>,
    answers: Vec<u64>,
}

impl Table {
    /// The table of areas that are sound and disjoint; `None` if it would be too large.
    pub fn new(areas: &[Area]) -> Option<Self> {
        let mut table = Self { entries: vec![0; ENTRIES[0]], answers: vec![0] };
        for area in areas {
            let shift = area.canonical.wrapping_sub(area.start);
            let sides = [(area.addresses(), shift), (area.canonical(), shift.wrapping_neg())];
            for (range, shift) in sides {
                let answer = u16::try_from(table.answers.len()).ok().filter(|it| it & NODE == 0)?;
                table.answers.push(shift);
                table.fill(0, 0, range.start, range.end, answer)?;
            }
        }
        table.entries.shrink_to_fit();
        Some(table)
    }

    /// What to add to a word below 2^48.
    #[inline]
    pub fn shift(&self, word: u64) -> u64 {
        let mut entry = self.entries[(word >> SHIFTS[0]) as usize];
        for level in 1..SHIFTS.len() {
            if entry & NODE == 0 {
                break;
            }
            let within = (word >> SHIFTS[level]) as usize & (ENTRIES[level] - 1);
            entry = self.entries[usize::from(entry & !NODE) * UNIT + within];
        }
        self.answers[usize::from(entry)]
    }

    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u16>() + self.answers.capacity() * size_of::<u64>()
    }

    /// Enter `answer` for `start..end`, which lies inside the node that begins at entry `node`.
    fn fill(&mut self, level: usize, node: usize, start: u64, end: u64, answer: u16) -> Option<()> {
        let granule = 1u64 << SHIFTS[level];
        let mut at = start;
        while at < end {
            let next = ((at | (granule - 1)) + 1).min(end);
            let index = node + ((at >> SHIFTS[level]) as usize & (ENTRIES[level] - 1));
            if next - at == granule {
                self.entries[index] = answer;
            } else {
                let child = self.child(level + 1, index)?;
                self.fill(level + 1, child, at, next, answer)?;
            }
            at = next;
        }
        Some(())
    }

    /// First entry of the node under entry `index`, made if there is none.
    fn child(&mut self, level: usize, index: usize) -> Option<usize> {
        let entry = self.entries[index];
        if entry & NODE != 0 {
            return Some(usize::from(entry & !NODE) * UNIT);
        }
        let first = self.entries.len();
        if first + ENTRIES[level] > ENTRIES_MAX {
            return None;
        }
        self.entries.resize(first + ENTRIES[level], entry);
        self.entries[index] = NODE | u16::try_from(first / UNIT).ok()?;
        Some(first)
    }
}
