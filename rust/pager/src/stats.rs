//! What the fault threads count and time, cheap enough to be always on.
//!
//! Everything is a relaxed atomic of fixed size: recording takes no lock, allocates nothing and
//! never fails, because it happens while a target waits for its page. Readers see numbers that
//! may be a few records apart from each other, which is all a report needs.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Each power of two is cut into this many buckets: a value is off by at most 1/64.
const BUCKETS_PER_OCTAVE: usize = 1 << SUB_BITS;
const SUB_BITS: u32 = 5;
/// Below this every value has a bucket of its own.
const EXACT_BELOW: u64 = 2 << SUB_BITS;
/// The first power of two beyond the range, 137 s; what is longer counts in the last bucket.
const RANGE_BITS: u32 = 37;
const BUCKETS: usize =
    EXACT_BELOW as usize + (RANGE_BITS - SUB_BITS - 1) as usize * BUCKETS_PER_OCTAVE;

/// Distribution of durations from 0 ns to 137 s, within 1.6 %, in 8 KiB.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// What a [`Histogram`] held at one moment; all zero when it was empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Number of durations.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// The longest one, exact.
    pub max_ns: u64,
    /// Arithmetic mean, exact.
    pub mean_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram. The only place that allocates.
    pub fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }

    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        self.record_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    fn record_ns(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Count, percentiles (nearest rank), maximum and mean of what was recorded.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let max_ns = self.max_ns.load(Ordering::Relaxed);
        let counts: Vec<u64> =
            self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return HistogramSnapshot::default();
        }
        let percentile = |percent: u64| {
            let rank = (u128::from(count) * u128::from(percent)).div_ceil(100) as u64;
            let mut seen = 0;
            let bucket = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            bucket.map_or(max_ns, |bucket| middle_of(bucket).min(max_ns))
        };
        HistogramSnapshot {
            count,
            p50_ns: percentile(50),
            p99_ns: percentile(99),
            max_ns,
            mean_ns: self.sum_ns.load(Ordering::Relaxed) / count,
        }
    }

    /// Forgets everything. Durations recorded meanwhile may be kept or lost.
    pub fn reset(&self) {
        for number in self.buckets.iter().chain([&self.sum_ns, &self.max_ns]) {
            number.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(out)
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < EXACT_BELOW {
        return ns as usize;
    }
    let octave = ns.ilog2();
    // The highest bit says the octave, the next ones the place within.
    let within = (ns >> (octave - SUB_BITS)) as usize - BUCKETS_PER_OCTAVE;
    let before = EXACT_BELOW as usize + (octave - SUB_BITS - 1) as usize * BUCKETS_PER_OCTAVE;
    (before + within).min(BUCKETS - 1)
}

/// The duration that stands for all of a bucket. The last one has no upper end: its caller
/// limits it to the maximum.
fn middle_of(bucket: usize) -> u64 {
    if bucket < EXACT_BELOW as usize {
        return bucket as u64;
    }
    if bucket >= BUCKETS - 1 {
        return u64::MAX;
    }
    let above = bucket - EXACT_BELOW as usize;
    let shift = (above / BUCKETS_PER_OCTAVE) as u32 + 1;
    let start = ((above % BUCKETS_PER_OCTAVE + BUCKETS_PER_OCTAVE) as u64) << shift;
    start + (1 << shift) / 2
}

/// Defines the counters together with what must treat all of them alike.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened to one target, or to all of them, since start or the last reset.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// The [`Counters`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CountersSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Reads all counters.
            pub fn snapshot(&self) -> CountersSnapshot {
                CountersSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Sets all counters to zero.
            pub fn reset(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Page faults answered from pool or staging.
    faults,
    /// Page faults on memory that was never populated, answered with zero pages.
    faults_zero,
    /// Page faults whose page had come back in the meantime; the target was only woken.
    faults_already_present,
    /// Page faults answered from the disk tier.
    faults_disk,
    /// Answers the kernel asked to repeat because an event was pending.
    faults_retried,
    /// Panics of fault threads: a bug, survived; what was not answered is tried again.
    fault_panics,
    /// Pages that could not be produced; their toucher got SIGBUS.
    pages_lost,
    /// Forks of a target.
    events_fork,
    /// Moves of memory by mremap.
    events_remap,
    /// Memory given back by madvise.
    events_remove,
    /// Memory unmapped.
    events_unmap,
}

/// Adds one to a counter, without ordering anything else.
pub fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_duration_is_close_to_its_bucket(octave in 0u32..36, low in any::<u64>()) {
            let ns = (1 << octave) | (low & ((1 << octave) - 1));
            let middle = middle_of(bucket_of(ns));
            prop_assert!(middle.abs_diff(ns) * 64 <= ns, "{} counts as {}", ns, middle);
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_list(
            mut all in prop::collection::vec(100u64..100_000_000_000, 1..300),
        ) {
            let histogram = Histogram::new();
            all.iter().for_each(|ns| histogram.record_ns(*ns));
            all.sort_unstable();
            let exact = |percent: usize| all[(all.len() * percent).div_ceil(100) - 1];
            let seen = histogram.snapshot();
            prop_assert_eq!(seen.count, all.len() as u64);
            prop_assert_eq!(seen.max_ns, exact(100));
            prop_assert_eq!(seen.mean_ns, all.iter().sum::<u64>() / all.len() as u64);
            for (seen, exact) in [(seen.p50_ns, exact(50)), (seen.p99_ns, exact(99))] {
                prop_assert!(seen.abs_diff(exact) * 33 <= exact, "{} for {}", seen, exact);
            }
        }
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << RANGE_BITS) - 1), BUCKETS - 1);
        let middles: Vec<u64> = (0..BUCKETS).map(middle_of).collect();
        assert!(middles.is_sorted_by(|low, high| low < high));
        for (bucket, middle) in middles.iter().enumerate() {
            assert_eq!(bucket_of(*middle), bucket);
        }
    }

    #[test]
    fn an_empty_histogram_is_all_zero_also_after_reset() {
        let histogram = Histogram::new();
        assert_eq!(histogram.snapshot(), HistogramSnapshot::default());
        histogram.record_ns(5);
        histogram.record_ns(u64::MAX / 2);
        assert_eq!(histogram.snapshot().p99_ns, u64::MAX / 2);
        histogram.reset();
        assert_eq!(histogram.snapshot(), HistogramSnapshot::default());
    }

    #[test]
    fn counters_count_and_reset() {
        let counters = Counters::default();
        increment(&counters.faults);
        increment(&counters.events_fork);
        increment(&counters.events_fork);
        let seen = counters.snapshot();
        assert_eq!((seen.faults, seen.events_fork, seen.pages_lost), (1, 2, 0));
        counters.reset();
        assert_eq!(counters.snapshot(), CountersSnapshot::default());
    }
}
