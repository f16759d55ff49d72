//! Ranges that the program is about to empty.
//!
//! For `madvise(MADV_DONTNEED)` the kernel sends its event, waits until we have read it, and only
//! *then* drops the pages.  Between the two the pages are still there; were we to move one out now,
//! the program's call would miss it and its old contents would come back where zeros are due.  So a
//! range stays where it is from the event on until every thread has certainly left that call: seen
//! asleep elsewhere, gone, or busy for longer than such a call can take.

use std::collections::HashMap;
use std::ops::Range;

/// CPU time after which a thread has left the call, in nanoseconds.  Dropping a page costs some
/// 50 ns, so this is 80 GB in one call.
const CALL_NANOS: u64 = 1_000_000_000;
/// Ranges kept apart before they are taken together: bounds memory and search.
const RANGES_MAX: usize = 256;

/// What can be seen of a thread from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Thread id.
    pub thread: i32,
    /// Asleep, and not in a call that empties memory.
    pub elsewhere: bool,
    /// Where its code is, while it sleeps.
    pub address: Option<u64>,
    /// CPU time used so far, in nanoseconds.
    pub runtime: u64,
}

/// Ranges that must not be moved yet.
#[derive(Debug, Default)]
pub struct Quarantine {
    ranges: Vec<Range<u64>>,
    /// The first so many ranges wait for these threads (with their CPU time at the first look).
    waiting: Option<(usize, HashMap<i32, u64>)>,
}

impl Quarantine {
    /// An event announced that this range will be emptied.
    pub fn add(&mut self, range: Range<u64>) {
        if self.ranges.len() >= RANGES_MAX {
            let start = self.ranges.iter().map(|range| range.start).min().unwrap_or(0);
            let end = self.ranges.iter().map(|range| range.end).max().unwrap_or(u64::MAX);
            self.ranges.clear();
            self.ranges.push(start..end);
            self.waiting = None;
        }
        self.ranges.push(range);
    }

    /// The ranges, sorted.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = self.ranges.clone();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Whether nothing is held back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many ranges there are now; a look that begins after this can speak for them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Judge by a look at all threads that began when there were `known` ranges.
    pub fn judge(&mut self, known: usize, threads: &[Look]) {
        let (count, mut waiting) = self.waiting.take().unwrap_or_else(|| {
            let all = threads.iter().map(|look| (look.thread, look.runtime)).collect();
            (known, all)
        });
        let looks: HashMap<i32, &Look> = threads.iter().map(|look| (look.thread, look)).collect();
        waiting.retain(|thread, since| {
            looks.get(thread).is_some_and(|look| {
                !look.elsewhere && look.runtime < since.saturating_add(CALL_NANOS)
            })
        });
        if waiting.is_empty() {
            self.ranges.drain(..count.min(self.ranges.len()));
        } else {
            self.waiting = Some((count, waiting));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(thread: i32, elsewhere: bool, runtime: u64) -> Look {
        Look { thread, elsewhere, address: None, runtime }
    }

    #[test]
    fn a_sleeping_program_frees_its_ranges_at_once() {
        let mut quarantine = Quarantine::default();
        quarantine.add(0..4096);
        quarantine.judge(1, &[look(1, true, 5), look(2, true, 5)]);
        assert!(quarantine.is_empty());
    }

    #[test]
    fn a_running_thread_holds_them_until_it_slept_or_ran_long() {
        let mut quarantine = Quarantine::default();
        quarantine.add(0..4096);
        quarantine.judge(1, &[look(1, true, 5), look(2, false, 5)]);
        assert!(!quarantine.is_empty());
        quarantine.add(8192..12288);
        quarantine.judge(2, &[look(1, false, 6), look(2, false, 6 + CALL_NANOS)]);
        assert_eq!(vec![8192..12288], quarantine.ranges());
    }

    #[test]
    fn a_range_added_during_the_look_stays() {
        let mut quarantine = Quarantine::default();
        quarantine.add(0..4096);
        let known = quarantine.len();
        quarantine.add(4096..8192);
        quarantine.judge(known, &[look(1, true, 1)]);
        assert_eq!(1, quarantine.len());
    }

    #[test]
    fn too_many_ranges_are_taken_together() {
        let mut quarantine = Quarantine::default();
        for index in 0..1000 {
            quarantine.add(index * 8192..index * 8192 + 4096);
        }
        assert!(quarantine.len() <= RANGES_MAX);
        let ranges = quarantine.ranges();
        assert_eq!((0, 999 * 8192 + 4096), (ranges[0].start, ranges[ranges.len() - 1].end));
    }
}
