//! Crash points: named places where this process can be made to die, as kill -9 would kill it, to
//! panic, to be slow, or to see the kernel refuse.
//!
//! They exist for the crash tests and for `agentzip selftest`, which an operator runs on his own
//! host, so they are always compiled in; an idle point costs one relaxed load.

use crate::error::{Error, Result};
use crate::sys::foreign::kill_self;
use crate::sys::userfaultfd::Install;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

/// Every point, in the order of the protocol that it belongs to.
pub const NAMES: &[&str] = &[
    "borrow.seized",
    "borrow.armed",
    "borrow.cloned",
    "borrow.homeward",
    "borrow.released",
    "attach.table_made",
    "attach.area_mapped",
    "attach.descriptor_taken",
    "attach.published",
    "page_out.opened",
    "page_out.registered",
    "page_out.marked",
    "page_out.moved",
    "page_out.settled",
    "page_out.stubborn",
    "page_out.encoded",
    "page_out.published",
    "page_out.dropped",
    "fault.read",
    "fault.decoded",
    "fault.installed",
    "fault.to_wake",
    "event.read",
    "event.ordered",
    "event.turn_noted",
    "event.begun",
    "event.remap_moved",
    "event.applied",
    "event.cleared",
    "fork.read",
    "fork.table_made",
    "fork.published",
    "page_in.decoded",
    "page_in.installed",
    "prefetch.chosen",
    "prefetch.decoded",
    "prefetch.installed",
    "detach.home",
    "detach.area_unmapped",
    "detach.closed",
    "recode.encoded",
    "recode.published",
    "compact.moved",
    "spill.written",
    "spill.published",
    "takeover.received",
    "takeover.settled",
    "takeover.keeper_started",
];

/// The point before which the kernel is asked to install a page, and so can be made to refuse.
const REFUSABLE: &str = "fault.decoded";

/// What names of fault threads begin with.
pub const FAULT_THREAD: &str = "agentzip-fault";

const NONE: usize = usize::MAX;
static ARMED: AtomicUsize = AtomicUsize::new(NONE);
static PASSES_LEFT: AtomicI64 = AtomicI64::new(0);
static ACTION: AtomicUsize = AtomicUsize::new(0);

/// What an armed point does; the position is the value of `ACTION`.
const ACTIONS: [&str; 5] = ["kill", "panic", "pause", "again", "no-memory"];
/// Those from here on are the kernel's.
const FIRST_REFUSAL: usize = 3;
/// Long enough for somebody else to do something meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// Arm one point: `NAME`, `NAME:N` or `NAME:N:ACTION`.
///
/// - `kill` (the default): die at the Nth pass;
/// - `panic`: panic at each of the first N passes of a fault thread;
/// - `pause`: stay for a second at the Nth pass;
/// - `again`, `no-memory`: at each of the first N passes, as if the kernel had answered EAGAIN or
///   ENOMEM; only where a page is about to be installed.
///
/// # Errors
/// The name or the action is unknown, or N is not a positive number.
pub fn arm(text: &str) -> Result<()> {
    let mut parts = text.splitn(3, ':');
    let name = parts.next().unwrap_or_default();
    let (count, action) = (parts.next().unwrap_or("1"), parts.next().unwrap_or(ACTIONS[0]));
    let problem = |problem: String| Error::InvalidSetting { field: "crash_at", problem };
    let index = NAMES
        .iter()
        .position(|known| *known == name)
        .ok_or_else(|| problem(format!("no such crash point: {name}")))?;
    let count: i64 = count
        .parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| problem(format!("not a positive number of passes: {count}")))?;
    let action = ACTIONS
        .iter()
        .position(|known| *known == action)
        .filter(|action| *action < FIRST_REFUSAL || name == REFUSABLE)
        .ok_or_else(|| problem(format!("no such action at {name}: {action}")))?;
    PASSES_LEFT.store(count, Ordering::Relaxed);
    ACTION.store(action, Ordering::Relaxed);
    ARMED.store(index, Ordering::Release);
    Ok(())
}

/// Pass a point.
pub fn pass(name: &str) {
    let _ = pass_or_refuse(name);
}

/// Pass a point at which the kernel may be made to refuse; its answer then.
pub fn pass_or_refuse(name: &str) -> Option<Install> {
    #[cfg(test)]
    in_tests::pass();
    let armed = ARMED.load(Ordering::Relaxed);
    if armed == NONE || NAMES[armed] != name { None } else { act(name) }
}

#[cold]
fn act(name: &str) -> Option<Install> {
    let action = ACTIONS[ACTION.load(Ordering::Acquire)];
    if action == "panic" && !on_fault_thread() {
        return None;
    }
    let left = PASSES_LEFT.fetch_sub(1, Ordering::AcqRel);
    match action {
        "kill" if left == 1 => kill_self(),
        "pause" if left == 1 => {
            std::thread::sleep(PAUSE);
            None
        }
        "panic" if left > 0 => panic!("crash point {name}"),
        "again" if left > 0 => Some(Install::Changing),
        "no-memory" if left > 0 => Some(Install::NoMemory),
        _ => None,
    }
}

/// Callers pass some points as well, on behalf of the fault thread; their panics are their own.
fn on_fault_thread() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with(FAULT_THREAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for wrong in [
            "no.such",
            "fault.read:0",
            "fault.read:-1",
            "fault.read:1:explode",
            "fault.read:1:again",
            "page_out.moved:1:no-memory",
        ] {
            assert!(arm(wrong).is_err(), "{wrong}");
        }
        assert_eq!(None, pass_or_refuse("fault.read"));
    }
}

/// In tests a kill is an unwinding to the test, which then goes on with what outlives it.
#[cfg(test)]
pub mod in_tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local!(static PASSES_LEFT: Cell<usize> = const { Cell::new(0) });

    pub(super) fn pass() {
        let left = PASSES_LEFT.get();
        PASSES_LEFT.set(left.saturating_sub(1));
        if left == 1 {
            resume_unwind(Box::new("killed"));
        }
    }

    /// Run `life` up to the Nth point that this thread passes; whether it got to its end before.
    pub fn killed_at(pass: usize, life: impl FnOnce()) -> bool {
        PASSES_LEFT.set(pass);
        let survived = catch_unwind(AssertUnwindSafe(life)).is_ok();
        assert!(survived || PASSES_LEFT.get() == 0, "it failed by itself");
        PASSES_LEFT.set(0);
        survived
    }
}
