//! Which pages to look at when not all can be.
//!
//! Evenly spread, but never in step with the program: allocators put headers at every fourth or
//! 64th page, and a sample with a fixed stride would see all of them or none.

use crate::address::PAGE_SIZE;
use crate::sys::pagemap::{Filter, GUARD, PRESENT, Pagemap};
use std::io;
use std::ops::Range;

const PAGE: u64 = PAGE_SIZE as u64;

/// At most `wanted` of the numbers below `count`, ascending: one of each of so many equal parts,
/// the same ones each time.
pub fn evenly(count: u64, wanted: u64) -> impl Iterator<Item = u64> {
    let wanted = wanted.min(count);
    let border =
        move |part: u64| (u128::from(part) * u128::from(count) / u128::from(wanted.max(1))) as u64;
    (0..wanted).map(move |part| {
        let (start, end) = (border(part), border(part + 1));
        // The fractional parts of multiples of the golden ratio fill 0..1 evenly.
        let place = part.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        start + ((u128::from(place) * u128::from(end - start)) >> 64) as u64
    })
}

/// Append the parts of `range` that are in memory and can be read without a fault.
///
/// # Errors
/// ESRCH: the address space is gone; ENOTTY: the kernel cannot tell.
pub fn resident(
    pagemap: &Pagemap,
    range: Range<u64>,
    found: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    pagemap.scan(range, Filter { all_of: PRESENT, any_of: 0, none_of: GUARD }, found)
}

/// Pages by their number among those of several ranges: a large process has millions, which need
/// not be listed one by one.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    ranges: Vec<Range<u64>>,
    /// Pages up to the end of each range.
    ends: Vec<u64>,
}

impl Pages {
    /// Add the pages of a range of addresses.
    pub fn add(&mut self, range: Range<u64>) {
        let pages = range.end.saturating_sub(range.start) / PAGE;
        if pages > 0 {
            self.ends.push(self.count() + pages);
            self.ranges.push(range);
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Addresses of at most `wanted` of them, evenly spread.
    pub fn sample(&self, wanted: u64) -> impl Iterator<Item = u64> {
        evenly(self.count(), wanted).filter_map(|number| self.address(number))
    }

    fn address(&self, number: u64) -> Option<u64> {
        let range = self.ends.partition_point(|end| *end <= number);
        let before = if range == 0 { 0 } else { self.ends[range - 1] };
        Some(self.ranges.get(range)?.start + (number - before) * PAGE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sample_is_ascending_and_has_one_of_each_part(
            count in 0u64..1 << 40,
            wanted in 1u64..3000,
        ) {
            let numbers: Vec<u64> = evenly(count, wanted).collect();

            prop_assert_eq!(numbers.len() as u64, wanted.min(count));
            prop_assert!(numbers.is_sorted_by(|a, b| a < b));
            prop_assert!(numbers.iter().all(|number| *number < count));
            // No gap is longer than two parts.
            let gap = 2 * count.div_ceil(wanted.min(count).max(1));
            prop_assert!(numbers.windows(2).all(|pair| pair[1] - pair[0] <= gap));
        }
    }

    #[test]
    fn a_small_set_is_taken_whole() {
        assert_eq!(vec![0, 1, 2], evenly(3, 2000).collect::<Vec<_>>());
        assert_eq!(0, evenly(0, 2000).count());
        assert_eq!(0, evenly(7, 0).count());
    }

    #[test]
    fn a_sample_is_not_in_step_with_the_program() {
        for period in [2, 4, 16, 64] {
            let hits = evenly(64_000, 1000).filter(|number| number % period == 0).count();
            let expected = 1000 / period as usize;
            assert!(hits.abs_diff(expected) * 2 <= expected, "every {period}th: {hits}");
        }
    }

    #[test]
    fn pages_are_numbered_through_all_ranges() {
        let mut pages = Pages::default();
        for range in [0x1000..0x3000, 0x9000..0x9000, 0x10000..0x13000] {
            pages.add(range);
        }

        let all: Vec<u64> = pages.sample(100).collect();

        assert_eq!(5, pages.count());
        assert_eq!(vec![0x1000, 0x2000, 0x10000, 0x11000, 0x12000], all);
    }
}
