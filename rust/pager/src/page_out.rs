//! Resident pages out: watch, mark, move, encode, publish.
//!
//! One step of at most a few hundred pages:
//!
//! 1. Under the space's lock: read pending events; scan which pages are there *and watched*; mark
//!    them staged in the table; let the worker move them (`UFFDIO_MOVE`, atomic per page) to the
//!    staging area; scan what really moved and correct the marks.
//! 2. Without it: copy the staged pages out, encode them, put them into the pool; publish in small
//!    batches under the lock.  A page that is touched meanwhile is answered from staging.
//! 3. Empty the staging area.
//!
//! The program is never stopped for this.  What makes it safe without: between the scan and the
//! move nobody reads events, and any change of a watched mapping leaves an unread event behind,
//! with which the kernel refuses to move (EAGAIN); a mapping that is not watched is not scanned.

use crate::address::{PAGE_SIZE, PageNumber};
use crate::attach;
use crate::borrow::with_worker;
use crate::error::{Error, Result};
use crate::mover::{MOVABLE, Mover, Piece};
use crate::points;
use crate::region::{self, Region};
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::{Space, Table};
use crate::target::{self, Target};
use std::collections::HashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
/// Present ranges with at most this many missing pages between them are moved by one call; a call
/// costs about as much as moving a hundred pages.
const GAP_PAGES: u64 = 32;

/// How long a worker may take to finish its last call on a busy host.
pub const WORKER_PATIENCE: Duration = Duration::from_secs(5);

/// What a page out did.
#[derive(Clone, Debug, Default)]
pub struct PageOutReport {
    /// Pages taken out of the address space.
    pub pages_moved: u64,
    /// Of those, pages that reached the pool.
    pub pages_stored: u64,
    /// Of those stored, unchanged ones: nothing was encoded.
    pub pages_clean: u64,
    /// Of those stored, same-filled ones.
    pub pages_same_filled: u64,
    /// Of those stored, pages that another slot of the trust domain held already.
    pub pages_deduplicated: u64,
    /// Of those stored, incompressible ones.
    pub pages_raw: u64,
    /// Pages touched before they were stored.
    pub pages_returned: u64,
    /// Pages that the kernel refused to move.
    pub pages_pinned: u64,
    /// Regions with resident pages that may not leave.
    pub regions_skipped: u64,
    /// Encoded bytes of the pages stored.
    pub bytes_stored: u64,
    /// Steps.
    pub chunks: u64,
    /// All of it.
    pub elapsed: Duration,
    /// The one stop of a borrowed thread.
    pub stop: Duration,
    /// Per step: how long faults had to wait.
    pub hold: Vec<Duration>,
    /// The pool reached its cap; what was not stored went home.
    pub pool_full: bool,
    /// It ended early, because the target wakes.
    pub interrupted: bool,
}

/// What of a target to page out.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Addresses to consider; everything if `None`.
    pub ranges: Option<&'a [Range<u64>]>,
    /// Addresses that stay.
    pub keep: &'a [Range<u64>],
    /// No further step begins once so many pages have moved.
    pub pages_max: u64,
}

/// Page out what is wanted of what may leave; a wake of the target ends it with the step at work.
///
/// # Errors
/// `TargetBusy`, `TargetGone`; the pages of a failed step are home again.
pub fn page_out(shared: &Shared, space: &Space, wanted: Wanted<'_>) -> Result<PageOutReport> {
    let begin = Instant::now();
    let _operation = space.claim();
    let target = space.target()?;
    finish_former(shared, space)?;
    let known = space.core.lock().quarantine.len();
    if known > 0 {
        let looks = target::look_at_threads(target.pid);
        space.core.lock().quarantine.judge(known, &looks);
    }
    let regions = region::parse(&target::read_maps(target.pid, true)?);
    space.end_wake(&regions);
    let report = move_out(shared, space, &target, &regions, wanted);
    let mut core = space.core.lock();
    core.habit.sleep(Instant::now(), space.pages_out());
    core.ahead.sleep();
    drop(core);
    report.map(|report| PageOutReport { elapsed: begin.elapsed(), ..report })
}

fn move_out(
    shared: &Shared,
    space: &Space,
    target: &Target,
    regions: &[Region],
    wanted: Wanted<'_>,
) -> Result<PageOutReport> {
    let mut report = PageOutReport::default();
    let pieces = plan(shared, space, target, regions, wanted.ranges, wanted.keep, &mut report)?;
    if pieces.is_empty() {
        return Ok(report);
    }
    let memory = space.memory.as_ref().ok_or(Error::NotAttached(target.pid))?;
    let result = with_worker(target, memory, shared.settings.limits(), |worker| {
        space.table.set_worker(worker.thread());
        report.stop = worker.loan.stop;
        shared.stop.record(worker.loan.stop);
        if !is_mapped(&space.header.area, regions) {
            attach::make_area(worker, &space.header.area, &space.descriptor)?;
        }
        let mut mover = Mover::open(shared, space, worker, &mut report)?;
        mover.run(pieces, wanted.pages_max)
    });
    if result.is_ok() {
        space.table.set_worker(0);
    }
    if result.is_err() || space.core.lock().unsettled {
        let ended = await_worker(&space.table, Instant::now() + WORKER_PATIENCE);
        let mut core = space.core.lock();
        core.unsettled = true;
        if ended {
            space.settle(&mut core, shared, &mut Kit::default());
        }
    }
    // Faults that this thread read while it had the lock, and could not answer, are the fault
    // thread's again.
    shared.nudge(space.id());
    match result {
        // Whatever went wrong, it went wrong because there is nobody left.
        Err(_) if !space.descriptor.is_alive() => {
            space.set_gone();
            Err(Error::TargetGone(target.pid))
        }
        other => other.map(|()| report),
    }
}

/// What a former page out left unsettled comes first: its pages are in the staging area, which the
/// next one begins by emptying.
fn finish_former(shared: &Shared, space: &Space) -> Result<()> {
    let ended = await_worker(&space.table, Instant::now() + WORKER_PATIENCE);
    let mut core = space.core.lock();
    let staged = space.table.counts().staged > 0;
    if ended && !core.unsettled && !staged {
        return Ok(());
    }
    if ended && space.settle(&mut core, shared, &mut Kit::default()) == Answer::Done {
        return Ok(());
    }
    let why = "a page out that was cut short is not settled yet".to_owned();
    Err(Error::TargetBusy { pid: space.header.pid, why })
}

/// Whether our area is in the target: a program can unmap it, and so can the last call of a detach
/// that was cut short.
fn is_mapped(area: &Range<u64>, regions: &[Region]) -> bool {
    let covered: u64 = regions
        .iter()
        .map(|region| region.range.start.max(area.start)..region.range.end.min(area.end))
        .map(|part| part.end.saturating_sub(part.start))
        .sum();
    covered == area.end - area.start
}

/// The worker of a failed step, or of a dead engine, finishes its call and exits by itself; nothing
/// moves and nothing is unmapped after that.  False if it has not by `deadline`: then what is in
/// the staging area must be left alone.
pub fn await_worker(table: &Table, deadline: Instant) -> bool {
    let (pid, thread) = (table.header().pid, table.worker());
    if thread == 0 {
        return true;
    }
    let path = format!("/proc/{pid}/task/{thread}");
    while std::path::Path::new(&path).exists() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    table.set_worker(0);
    true
}

/// Watch all that can be watched, and list what is resident and may leave.
fn plan(
    shared: &Shared,
    space: &Space,
    target: &Target,
    regions: &[Region],
    ranges: Option<&[Range<u64>]>,
    keep: &[Range<u64>],
    report: &mut PageOutReport,
) -> Result<Vec<Piece>> {
    let mut kept = keep.to_vec();
    kept.extend(live_ranges(target, regions));
    kept.sort_by_key(|range| range.start);
    let pagemap = space.pagemap.as_ref().ok_or(Error::NotAttached(target.pid))?;
    let watched = watch(shared, space, regions)?;
    points::pass("page_out.registered");
    let mut pieces = Vec::new();
    for region in regions {
        let decision = region.decide(Some(&space.header.area));
        let ours = decision.kind == region::Kind::Helper;
        if !decision.movable || !watched.contains(&region.range.start) {
            report.regions_skipped += u64::from(region.resident > 0 && !ours);
            continue;
        }
        let mut present = Vec::new();
        for wanted in region::intersect(&region.range, ranges) {
            for part in region::subtract(wanted, &kept) {
                pagemap
                    .scan(part, MOVABLE, &mut present)
                    .map_err(|_| Error::TargetGone(target.pid))?;
            }
        }
        cut(&present, &kept, shared.settings.chunk_pages as u64, &mut pieces);
    }
    Ok(pieces)
}

/// Watch all that can be watched; returns the starts of the regions that are.
///
/// A mapping that is new at its address may be watched here before the event that freed the address
/// was read: it is noted as fresh, and does not count as watched while events are put in order.
fn watch(shared: &Shared, space: &Space, regions: &[Region]) -> Result<HashSet<u64>> {
    let mut kit = Kit::default();
    let area = &space.header.area;
    let ours = |region: &Region| region.range.start < area.end && area.start < region.range.end;
    let mut watched = HashSet::new();
    let mut core = space.core.lock();
    if space.drain(&mut core, shared, &mut kit) == Answer::Gone {
        return Err(Error::TargetGone(space.header.pid));
    }
    for region in regions.iter().filter(|region| region.is_watchable() && !ours(region)) {
        let range = &region.range;
        let known = space.watched(&core, range.clone());
        let fresh = region::subtract(range.clone(), &known);
        // Before it is watched: an engine that takes over must know it.
        fresh.iter().for_each(|part| space.table.note_fresh(part));
        // What is watched already may be watched by somebody else: the program itself, or a
        // descriptor of a former attach that is not closed everywhere yet (a keeper that is ending,
        // a thread that looks at the old space).  Only the kernel knows, and says EBUSY; for what
        // is ours it does nothing.  Pages moved from under another's watch would read as zeros as
        // soon as that is closed.
        let is_watched = space.descriptor.register(range.start, range.end - range.start).is_ok();
        if is_watched {
            watched.insert(range.start);
            core.fresh.extend(fresh);
        }
    }
    space.settle_fresh(&mut core);
    Ok(watched)
}

/// Join ranges with small gaps, and cut what is longer than a step.  A range to keep is never
/// bridged: the call that moves a bridge moves all that is on it.
fn cut(present: &[Range<u64>], kept: &[Range<u64>], step_pages: u64, pieces: &mut Vec<Piece>) {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in present {
        match joined.last_mut() {
            Some(last)
                if range.start - last.end <= GAP_PAGES * PAGE
                    && !kept.iter().any(|keep| keep.start < range.start && last.end < keep.end) =>
            {
                last.end = range.end;
            }
            _ => joined.push(range.clone()),
        }
    }
    for range in joined {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + step_pages * PAGE);
            pieces.push(Piece { range: start..end, tries: 0, populated: false });
            start = end;
        }
    }
}

/// Pages that other programs read (arguments, environment) and live ends of sleeping threads'
/// stacks: they would come straight back.
fn live_ranges(target: &Target, regions: &[Region]) -> Vec<Range<u64>> {
    let arguments = &target.arguments;
    let mut ranges = Vec::new();
    ranges.push(arguments.start & !(PAGE - 1)..arguments.end.next_multiple_of(PAGE));
    for candidate in target::candidates(target.pid) {
        let pointer = candidate.stack_pointer;
        let stack = regions.iter().find(|region| region.range.contains(&pointer));
        if let Some(stack) = stack {
            let page = pointer & !(PAGE - 1);
            ranges.push(page..(page + 4 * PAGE).min(stack.range.end));
            // A thread library keeps the thread's own data at the top of its stack.
            ranges.push(stack.range.end.saturating_sub(2 * PAGE)..stack.range.end);
        }
    }
    ranges.retain(|range| range.start < range.end);
    ranges
}

impl Space {
    /// A page out ends the wake before it: learn from it.
    fn end_wake(&self, regions: &[Region]) {
        let mut fold = self.core.lock().habit.close();
        let is_mapped = |page: PageNumber| {
            let address = page.start().0;
            let place = regions.partition_point(|region| region.range.end <= address);
            regions.get(place).is_some_and(|region| region.range.contains(&address))
        };
        fold.fold(|page| self.is_out(page), is_mapped);
        self.core.lock().habit.reopen(fold);
    }

    /// The process behind this space, checked to be the one it was.
    ///
    /// # Errors
    /// `TargetGone`, or why it may not be touched now (a debugger is on it).
    pub fn target(&self) -> Result<Target> {
        let pid = self.header.pid;
        let target = Target::describe(pid, &[]).map_err(|error| match error {
            Error::NoSuchProcess(_) => Error::TargetGone(pid),
            other => other,
        })?;
        if target.start_time == self.header.start_time {
            Ok(target)
        } else {
            Err(Error::TargetGone(pid))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_gaps_are_bridged_and_long_ranges_cut() {
        let mut pieces = Vec::new();
        let page = |number: u64| number * PAGE;
        let present = [page(0)..page(4), page(6)..page(8), page(100)..page(120)];
        cut(&present, &[], 16, &mut pieces);
        let ranges: Vec<_> = pieces.into_iter().map(|piece| piece.range).collect();
        assert_eq!(vec![page(0)..page(8), page(100)..page(116), page(116)..page(120)], ranges);
    }

    #[test]
    fn a_range_to_keep_is_never_bridged() {
        let mut pieces = Vec::new();
        cut(&[0..4 * PAGE, 5 * PAGE..8 * PAGE], &[4 * PAGE..5 * PAGE], 64, &mut pieces);
        assert_eq!(2, pieces.len());
    }
}
