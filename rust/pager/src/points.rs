//! Crash points: named places where this process can be made to die, as kill -9 would kill it.
//!
//! They exist for the crash tests and for `agentzip selftest --suite crash`, which an operator runs
//! on his own host, so they are always compiled in; an idle point costs one relaxed load.

use crate::error::{Error, Result};
use crate::sys::foreign::kill_self;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Every point, in the order of the protocol that it belongs to.
pub const NAMES: &[&str] = &[
    "borrow.seized",
    "borrow.armed",
    "borrow.cloned",
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
    "page_out.encoded",
    "page_out.published",
    "page_out.dropped",
    "fault.read",
    "fault.decoded",
    "fault.installed",
    "event.read",
    "event.remap_moved",
    "event.applied",
    "fork.read",
    "fork.table_made",
    "fork.published",
    "page_in.decoded",
    "page_in.installed",
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

const NONE: usize = usize::MAX;
static ARMED: AtomicUsize = AtomicUsize::new(NONE);
static PASSES_LEFT: AtomicI64 = AtomicI64::new(0);

/// Arm one point: die at its Nth pass.  `NAME` or `NAME:N`.
///
/// # Errors
/// The name is unknown or N is not a positive number.
pub fn arm(text: &str) -> Result<()> {
    let (name, count) = text.split_once(':').unwrap_or((text, "1"));
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
    PASSES_LEFT.store(count, Ordering::Relaxed);
    ARMED.store(index, Ordering::Release);
    Ok(())
}

/// Pass a point.
pub fn pass(name: &str) {
    let armed = ARMED.load(Ordering::Relaxed);
    if armed == NONE || NAMES[armed] != name {
        return;
    }
    if PASSES_LEFT.fetch_sub(1, Ordering::AcqRel) == 1 {
        kill_self();
    }
}
