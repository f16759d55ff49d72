//! Units that were handed out once and that nothing links to.

use crate::address::PAGE_SIZE;

use super::UNIT_BYTES;

/// Bits of a word below: the units of a page of memory.
const PAGE_UNITS: u64 = u32::BITS as u64;
const _: () = assert!(PAGE_UNITS * UNIT_BYTES == PAGE_SIZE as u64);

/// Free units, as a bit each: a 1024th of the memory that they take.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FreeUnits {
    /// A word for each page of units.
    pages: Vec<u32>,
    count: u64,
    /// No page before this one has a free unit.
    lowest: usize,
}

impl FreeUnits {
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Adds a unit that is not free yet.
    pub fn insert(&mut self, unit: u64) {
        let (page, bit) = place(unit);
        if self.pages.len() <= page {
            self.pages.resize(page + 1, 0);
        }
        self.pages[page] |= bit;
        self.count += 1;
        self.lowest = self.lowest.min(page);
    }

    /// Takes the lowest: so the higher ones can become whole pages.
    pub fn take(&mut self) -> Option<u64> {
        let ahead = self.pages.get(self.lowest..)?.iter().position(|units| *units != 0)?;
        self.lowest += ahead;
        let units = &mut self.pages[self.lowest];
        let first = units.trailing_zeros();
        *units &= *units - 1;
        self.count -= 1;
        Some(self.lowest as u64 * PAGE_UNITS + u64::from(first) + 1)
    }

    /// Numbers of the pages that hold one of these units and nothing in use, in order.
    pub fn whole_pages(&self, units: &[u64]) -> Vec<u64> {
        let mut pages: Vec<usize> = units.iter().map(|unit| place(*unit).0).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.retain(|page| self.pages[*page] == u32::MAX);
        pages.into_iter().map(|page| page as u64).collect()
    }
}

/// Position and bit of a unit. Units count from 1.
const fn place(unit: u64) -> (usize, u32) {
    let index = unit - 1;
    ((index / PAGE_UNITS) as usize, 1 << (index % PAGE_UNITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_comes_first_and_a_page_is_whole_when_all_of_it_is_free() {
        let mut free = FreeUnits::default();
        assert_eq!(None, free.take());
        (2..=64).for_each(|unit| free.insert(unit));
        assert_eq!(vec![1], free.whole_pages(&[40, 3, 39]));
        free.insert(1);
        assert_eq!(vec![0, 1], free.whole_pages(&[40, 1]));
        assert_eq!(vec![0], free.whole_pages(&[32]));
        let taken: Vec<u64> = std::iter::from_fn(|| free.take()).collect();
        assert_eq!((1..=64).collect::<Vec<u64>>(), taken);
        assert_eq!(0, free.count());
        free.insert(9);
        assert_eq!(Some(9), free.take());
    }
}
