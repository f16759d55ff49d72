//! A fault thread goes to the processor on which its program runs.
//!
//! An answer from there takes 8 us.  From another processor that sleeps it takes 75 to 90 us on a
//! virtual machine: the fault wakes it by an interrupt, and the answer wakes the program's.  A
//! real-time thread starts where it ran last (sched(7), `select_task_rq_rt` of Linux 6), so it is
//! enough to move it there once: the mask is put back at once, so nothing can keep it there.  That
//! the program stays as well is the work of [`crate::waker`].

use crate::space::Space;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// How many faults of one space in a row are worth a look at where its program runs (some 10 us).
const FAULTS: u32 = 16;
/// A program that did not fault for so long may run anywhere by now.
const QUIET: Duration = Duration::from_millis(2);
/// Programs that fault in turn are not looked for more often than this.
const LOOKS_APART: Duration = Duration::from_micros(200);
/// Position of the processor behind the name in /proc/PID/stat (field 39 of proc_pid_stat(5)).
const PROCESSOR: usize = 36;

/// Whom a fault thread served last.
#[derive(Debug, Default)]
pub struct Follower {
    space: u64,
    served: Option<Instant>,
    /// Faults since the last look, and when that was.
    faults: u32,
    looked: Option<Instant>,
}

impl Follower {
    /// Take in that a space is served; follows its main thread, which is nearly always the one that
    /// faults.
    pub fn serves(&mut self, space: &Space) {
        let now = Instant::now();
        let is_past = |then: Option<Instant>, pause| then.is_none_or(|then| now - then > pause);
        let is_new = self.space != space.id() || is_past(self.served, QUIET);
        (self.space, self.served) = (space.id(), Some(now));
        self.faults += 1;
        if self.faults >= FAULTS || is_new && is_past(self.looked, LOOKS_APART) {
            self.faults = 0;
            self.looked = Some(now);
            if let Some(processor) = processor_of(space.header.pid) {
                go_to(processor);
            }
        }
    }
}

/// Where the main thread of a process ran last.
fn processor_of(pid: i32) -> Option<usize> {
    let file = openat(CWD, format!("/proc/{pid}/stat"), OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 512];
    let length = rustix::io::read(&file, &mut text).ok()?;
    let text = &text[..length];
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let field = text[name_end..].split(|byte| *byte == b' ').nth(1 + PROCESSOR)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Move the calling thread to a processor, if it may run there.
fn go_to(processor: usize) {
    if processor == sched_getcpu() {
        return;
    }
    let Ok(allowed) = sched_getaffinity(None) else { return };
    if processor >= CpuSet::MAX_CPU || !allowed.is_set(processor) {
        return;
    }
    let mut only = CpuSet::new();
    only.set(processor);
    if sched_setaffinity(None, &only).is_ok() {
        let _ = sched_setaffinity(None, &allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_where_it_may_and_keeps_its_choice() {
        let allowed = sched_getaffinity(None).unwrap();
        for processor in (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)) {
            go_to(processor);
            assert_eq!(allowed, sched_getaffinity(None).unwrap());
        }
        go_to(CpuSet::MAX_CPU);
        assert_eq!(allowed, sched_getaffinity(None).unwrap());
    }

    #[test]
    fn the_processor_of_a_process_is_one_that_it_may_use() {
        let own = i32::try_from(std::process::id()).unwrap();
        let allowed = sched_getaffinity(None).unwrap();
        assert!(processor_of(own).is_some_and(|processor| allowed.is_set(processor)));
        assert_eq!(None, processor_of(i32::MAX));
    }
}
