//! Whether all that had taken effect when a thread's event was queued is queued as well, told by
//! the threads alone.
//!
//! Between the effect of a call and its event in the queue a thread runs, or waits for a CPU; once
//! its event is queued it sleeps until we read it.  So when another thread is found to wait,
//! whoever is awake in the look *after* that one may *owe* an event from before it: until it has
//! slept, or has run for so long that it left the call it was in.  Who was asleep then owes
//! nothing, and what anybody does later comes after what the other one did.
//!
//! A look is not one moment: who is looked at before the one that waits may have slept then, and
//! taken effect in between.  And the processor time that the kernel tells of a running thread is
//! that of its last tick: only what it has run from one new value to another is known to come after
//! the look.
//!
//! Pure: no lock, no clock, no I/O.

use std::time::Duration;

/// Who has run for so long has left the call that it was in, or waits to be read.  Interrupts count
/// as its own time, and the work behind them, which ends after 2 ms (`MAX_SOFTIRQ_TIME`).
const OUT_OF_A_CALL: Duration = Duration::from_millis(3);

/// A thread that may owe an event.
#[derive(Debug)]
struct Debtor {
    thread: i32,
    /// Its processor time when it was seen first.
    seen: Duration,
    /// The first other one that was told.
    since: Option<Duration>,
    /// It has slept or run enough.
    owes: bool,
}

/// Who may owe an event from before the last one that is known to be queued.
#[derive(Debug, Default)]
pub struct Debtors {
    /// Threads whose events are queued.
    waiting: Vec<i32>,
    /// `None`: there was no look since the last one of them was found.
    awake: Option<Vec<Debtor>>,
}

impl Debtors {
    /// What was queued is read: the next look begins anew.
    pub fn acquit(&mut self) {
        *self = Self::default();
    }

    /// Whether nobody owes an event any more, by a look at the threads: those that are awake, with
    /// their processor times, and those that wait to be read.
    pub fn have_queued(&mut self, awake: &[(i32, Duration)], waiting: &[i32]) -> bool {
        if waiting.iter().any(|thread| !self.waiting.contains(thread)) {
            self.waiting = waiting.to_vec();
            self.awake = None;
            return false;
        }
        let new =
            |&(thread, seen): &(i32, Duration)| Debtor { thread, seen, since: None, owes: true };
        let is_first = self.awake.is_none();
        let debtors = self.awake.get_or_insert_default();
        let known: Vec<i32> = debtors.iter().map(|debtor| debtor.thread).collect();
        // While nobody is known to wait, there is nothing that they could come after.
        if is_first || waiting.is_empty() {
            debtors.extend(awake.iter().filter(|other| !known.contains(&other.0)).map(new));
        }
        for debtor in &mut *debtors {
            let time = awake.iter().find(|other| other.0 == debtor.thread).map(|other| other.1);
            if debtor.since.is_none() {
                debtor.since = time.filter(|time| *time != debtor.seen);
            }
            let ran = time.zip(debtor.since).map(|(time, since)| time.saturating_sub(since));
            debtor.owes &= time.is_some() && ran.is_none_or(|ran| ran < OUT_OF_A_CALL);
        }
        debtors.iter().all(|debtor| !debtor.owes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn nobody_awake_owes_nothing_from_the_second_look_on() {
        let mut debtors = Debtors::default();
        assert!(!debtors.have_queued(&[], &[9]));
        assert!(debtors.have_queued(&[], &[9]));
        // Who wakes up later does what comes later.
        assert!(debtors.have_queued(&[(1, micros(70))], &[9]));
    }

    #[test]
    fn who_slept_may_have_come_between_in_the_first_look_only() {
        let mut debtors = Debtors::default();
        assert!(!debtors.have_queued(&[], &[9]));
        assert!(!debtors.have_queued(&[(1, micros(5000))], &[9]));
        assert!(debtors.have_queued(&[], &[9]));
    }

    #[test]
    fn who_is_awake_owes_until_it_sleeps_or_has_run() {
        let mut debtors = Debtors::default();
        let awake = |one, two| [(1, micros(one)), (2, micros(two))];
        assert!(!debtors.have_queued(&awake(5000, 0), &[9]));
        assert!(!debtors.have_queued(&awake(8000, 0), &[9]));
        // One tick: it may have run long before the look.
        assert!(!debtors.have_queued(&awake(12_000, 0), &[9]));
        assert!(!debtors.have_queued(&awake(14_999, 0), &[9]));
        assert!(!debtors.have_queued(&awake(15_000, 0), &[9]));
        assert!(debtors.have_queued(&[(1, micros(15_000))], &[9]));
        // Asleep or not: it has left its call.
        assert!(debtors.have_queued(&awake(15_001, 1), &[9]));
        debtors.acquit();
        assert!(!debtors.have_queued(&[(1, micros(30_000))], &[9]));
    }

    #[test]
    fn who_is_found_waiting_may_have_come_after_all_who_are_awake() {
        let mut debtors = Debtors::default();
        for time in [0, 1, 4001] {
            assert!(!debtors.have_queued(&[(1, micros(time))], &[8]) || time == 4001);
        }
        // Thread 1 may be in its next call since.
        assert!(!debtors.have_queued(&[(1, micros(4002))], &[8, 9]));
        assert!(!debtors.have_queued(&[(1, micros(4002))], &[8, 9]));
        assert!(!debtors.have_queued(&[(1, micros(8002))], &[8, 9]));
        assert!(debtors.have_queued(&[(1, micros(12_002))], &[8, 9]));
        // Killed.
        assert!(debtors.have_queued(&[(1, micros(12_002))], &[9]));
    }

    #[test]
    fn before_anybody_waits_all_that_are_awake_owe() {
        let mut debtors = Debtors::default();
        assert!(!debtors.have_queued(&[(1, micros(0))], &[]));
        assert!(!debtors.have_queued(&[(2, micros(0))], &[]));
        assert!(debtors.have_queued(&[(1, micros(0))], &[]));
    }
}
