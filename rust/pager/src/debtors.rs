//! Whether all that has changed an address space so far is queued, told by its threads alone.
//!
//! Between the effect of a call and its event in the queue a thread runs, or waits for a CPU; once
//! its event is queued it sleeps until we read it.  So whoever is awake may *owe* an event, until
//! it has slept or has run for so long that it left the call it was in.  Whoever falls asleep may
//! have queued an event that came after somebody else's effect: then all who are awake may owe one
//! from before that, whatever they did earlier, and are watched anew.
//!
//! Pure: no lock, no clock, no I/O.

use std::time::{Duration, Instant};

/// Who has run for so long has left the call that it was in, or waits to be read.
const OUT_OF_A_CALL: Duration = Duration::from_micros(200);
/// For how long one that gets no CPU at all is waited for.  Nothing can be installed meanwhile in
/// any case, as an event is open; this only bounds what a host without a free CPU can do to faults
/// of the same program.
const LIMIT: Duration = Duration::from_secs(1);

/// Threads that were awake, each with its processor time when it was seen first, or when somebody
/// fell asleep last.
#[derive(Debug, Default)]
pub struct Debtors {
    since: Option<Instant>,
    threads: Vec<(i32, Duration)>,
}

impl Debtors {
    /// Nobody owes one: the next look begins anew.
    pub fn acquit(&mut self) {
        self.since = None;
        self.threads.clear();
    }

    /// Whether nobody owes an event any more, by a look at the threads that are awake, with their
    /// processor times.
    pub fn have_queued(&mut self, awake: &[(i32, Duration)], now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let time_of = |thread: i32| awake.iter().find(|other| other.0 == thread);
        if self.threads.iter().all(|known| time_of(known.0).is_some()) {
            for other in awake {
                if self.threads.iter().all(|known| known.0 != other.0) {
                    self.threads.push(*other);
                }
            }
        } else {
            self.threads = awake.to_vec();
        }
        let left_its_call = |(thread, before): &(i32, Duration)| {
            time_of(*thread).is_none_or(|other| other.1.saturating_sub(*before) >= OUT_OF_A_CALL)
        };
        self.threads.iter().all(left_its_call) || now - since >= LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn nobody_awake_owes_nothing() {
        assert!(Debtors::default().have_queued(&[], Instant::now()));
    }

    #[test]
    fn who_is_awake_owes_until_it_sleeps_or_has_run() {
        let (mut debtors, now) = (Debtors::default(), Instant::now());
        assert!(!debtors.have_queued(&[(1, micros(5000)), (2, micros(0))], now));
        assert!(!debtors.have_queued(&[(1, micros(5000)), (2, micros(300))], now));
        assert!(debtors.have_queued(&[(1, micros(5200)), (2, micros(300))], now));
        debtors.acquit();
        assert!(!debtors.have_queued(&[(1, micros(9000))], now));
        assert!(debtors.have_queued(&[], now));
    }

    #[test]
    fn who_falls_asleep_may_have_come_after_all_who_are_awake() {
        let (mut debtors, now) = (Debtors::default(), Instant::now());
        assert!(!debtors.have_queued(&[(1, micros(0)), (2, micros(0)), (3, micros(0))], now));
        assert!(!debtors.have_queued(&[(1, micros(300)), (2, micros(0)), (3, micros(0))], now));
        // Thread 1 has run enough, and may be in its next call since: 2 has queued meanwhile.
        assert!(!debtors.have_queued(&[(1, micros(400)), (3, micros(300))], now));
        assert!(!debtors.have_queued(&[(1, micros(400)), (3, micros(600))], now));
        assert!(debtors.have_queued(&[(1, micros(600)), (3, micros(600))], now));
    }

    #[test]
    fn who_wakes_up_later_owes_as_well() {
        let (mut debtors, now) = (Debtors::default(), Instant::now());
        assert!(!debtors.have_queued(&[(1, micros(0))], now));
        assert!(!debtors.have_queued(&[(1, micros(300)), (2, micros(70))], now));
        assert!(debtors.have_queued(&[(1, micros(300)), (2, micros(270))], now));
    }

    #[test]
    fn one_that_gets_no_cpu_is_not_waited_for_for_ever() {
        let (mut debtors, now) = (Debtors::default(), Instant::now());
        assert!(!debtors.have_queued(&[(1, micros(0))], now));
        assert!(!debtors.have_queued(&[(1, micros(0))], now + LIMIT / 2));
        assert!(debtors.have_queued(&[(1, micros(0))], now + LIMIT));
    }
}
