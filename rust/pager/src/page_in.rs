//! Bring pages home before anybody touches them: prefetch and detach.
//!
//! Decoding happens without the space's lock and is checked again under it: an entry that changed
//! meanwhile is left for the next look.  Copies go in runs, a third faster than single pages.

use crate::address::{ByteAddress, PAGE_SIZE, PAGES_END, Page, PageNumber};
use crate::codec::fill_page;
use crate::error::{Error, Result};
use crate::page_table::Entry;
use crate::points;
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::sys::pagemap::{Filter, GUARD};
use crate::sys::userfaultfd::Install;
use std::ops::Range;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages decoded and copied at a time: long enough for fast copies, short enough that a fault in
/// between waits some 100 us at most.
const BATCH_PAGES: usize = 64;
/// Pages so far apart are looked at apart.
const GAP_PAGES: u64 = 128;
/// How often to look at available memory, in batches.
const MEMORY_CHECK: usize = 64;
/// How long to try one batch while the program keeps changing its address space or memory is short.
const PATIENCE: Duration = Duration::from_secs(10);
/// Passes over a target that keeps moving mappings before a detach gives up.
const PASSES: usize = 100;
/// How long to leave it alone between two tries.
const PAUSE: Duration = Duration::from_micros(50);

/// What a page in did.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageInReport {
    /// Pages brought home.
    pub pages_in: u64,
    /// Pages that were home already.
    pub pages_present: u64,
    /// Pages that cannot be produced any more.
    pub pages_lost: u64,
    /// Pages still out.
    pub pages_out: u64,
    /// All of it.
    pub elapsed: Duration,
}

/// A decoded page waiting to be copied in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) page: PageNumber,
    /// What was decoded; if that changed since, somebody else's answer stands.
    pub(crate) entry: Entry,
    /// Whether the buffer holds its contents; if not, they cannot be produced.
    pub(crate) good: bool,
}

/// Bring home the pages of `ranges` (all if `None`); stop when less than `memory_floor` bytes of
/// memory would be left on the host.
///
/// # Errors
/// `NotEnoughMemory` (the rest stays out and served), `TargetGone`.
pub fn page_in(
    shared: &Shared,
    space: &Space,
    ranges: Option<&[Range<u64>]>,
    memory_floor: u64,
) -> Result<PageInReport> {
    let _operation = space.claim();
    bring_home(shared, space, ranges, memory_floor)
}

/// Bring home everything, for good: a program that moves a mapping meanwhile can carry pages past a
/// single pass.  Only when the table says that nothing is away may the target be let go of.
///
/// # Errors
/// As [`page_in`]; `TargetBusy` when the program moves faster than we look.
pub fn bring_all_home(shared: &Shared, space: &Space, memory_floor: u64) -> Result<PageInReport> {
    let mut total = bring_home(shared, space, None, memory_floor)?;
    for _ in 0..PASSES {
        let core = space.core.lock();
        if space.pages_away() == 0 {
            return Ok(total);
        }
        drop(core);
        let pass = bring_home(shared, space, None, memory_floor)?;
        total.pages_in += pass.pages_in;
        total.pages_present += pass.pages_present;
        total.pages_lost += pass.pages_lost;
        total.pages_out = pass.pages_out;
        total.elapsed += pass.elapsed;
    }
    let why = "it moves its mappings faster than their pages can be brought home".to_owned();
    Err(Error::TargetBusy { pid: space.header.pid, why })
}

/// [`page_in`] for a caller that holds the operation lock.
///
/// # Errors
/// As [`page_in`].
pub fn bring_home(
    shared: &Shared,
    space: &Space,
    ranges: Option<&[Range<u64>]>,
    memory_floor: u64,
) -> Result<PageInReport> {
    let began = Instant::now();
    let mut kit = Kit::default();
    let mut report = PageInReport::default();
    let mut buffer = vec![0u8; BATCH_PAGES * PAGE_SIZE];
    let everything = 0..PAGES_END * PAGE;
    let mut batches = 0;
    for range in ranges.unwrap_or(std::slice::from_ref(&everything)) {
        let mut next = ByteAddress(range.start).page();
        let end = ByteAddress(range.end).page_up();
        while next < end {
            if batches % MEMORY_CHECK == 0 && available_memory() < memory_floor {
                let bytes_out = space.pages_out() * PAGE;
                return Err(Error::NotEnoughMemory { pid: space.header.pid, bytes_out });
            }
            batches += 1;
            let Some(ready) = look(shared, space, &mut kit, &mut next, end, &mut buffer) else {
                break;
            };
            points::pass("page_in.decoded");
            install_batch(shared, space, &mut kit, &ready, &buffer, &mut report, PATIENCE)?;
            points::pass("page_in.installed");
        }
    }
    // Faults that this thread read under the lock, and could not answer, are the fault thread's.
    shared.nudge(space.id());
    report.pages_out = space.pages_out();
    report.elapsed = began.elapsed();
    Ok(report)
}

/// Find the next batch of pages that are out and decode it; `None` when the range is done.
fn look(
    shared: &Shared,
    space: &Space,
    kit: &mut Kit,
    next: &mut PageNumber,
    end: PageNumber,
    buffer: &mut [u8],
) -> Option<Vec<Ready>> {
    let mut entries = Vec::with_capacity(BATCH_PAGES);
    while entries.is_empty() {
        if *next >= end {
            return None;
        }
        let core = space.core.lock();
        let go_on = space.table.collect_range(*next..end, BATCH_PAGES, &mut entries);
        drop(core);
        *next = go_on.unwrap_or(end);
        entries.retain(|(_, entry)| !matches!(entry, Entry::Kept(_) | Entry::Lost));
    }
    let (pages, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let decoded = entries.into_iter().zip(pages).map(|((page, entry), out)| {
        let good = decode(shared, space, kit, &entry, out);
        Ready { page, entry, good }
    });
    Some(decoded.collect())
}

/// Put the contents of an entry into `out`; false if they cannot be produced.
pub(crate) fn decode(
    shared: &Shared,
    space: &Space,
    kit: &mut Kit,
    entry: &Entry,
    out: &mut Page,
) -> bool {
    match *entry {
        Entry::Same { fill } => {
            fill_page(fill, out);
            true
        }
        Entry::Pooled(stored) => shared.store.get(&stored, &mut kit.reader, out),
        Entry::Staged { slot } => space.read_slot(slot, out),
        Entry::Absent | Entry::Kept(_) | Entry::Lost => false,
    }
}

/// Copy a decoded batch (in order of addresses) in, in runs, leaving out what changed since.
///
/// # Errors
/// `TargetGone`; the kernel's refusal, after trying for as long as `patience`.
pub(crate) fn install_batch(
    shared: &Shared,
    space: &Space,
    kit: &mut Kit,
    ready: &[Ready],
    buffer: &[u8],
    report: &mut PageInReport,
    patience: Duration,
) -> Result<()> {
    let gone = || {
        space.set_gone();
        Error::TargetGone(space.header.pid)
    };
    let mut core = space.core.lock();
    let mut index = 0;
    let began = Instant::now();
    let mut guards_are_known = false;
    while index < ready.len() {
        let rest = Rest { ready: &ready[index..], bytes: &buffer[index * PAGE_SIZE..] };
        guards_are_known =
            guards_are_known || drop_guarded(space, shared, &mut core, &ready[index..]);
        let installed = if guards_are_known {
            install_run(shared, space, &mut core, &rest, report)
        } else {
            Err(Install::Changing)
        };
        match installed {
            Ok(count) => index += count,
            Err(Install::Gone) => return Err(gone()),
            Err(refusal) => {
                guards_are_known = false;
                if began.elapsed() > patience {
                    return Err(give_up(space, refusal));
                }
                if space.drain(&mut core, shared, kit) == Answer::Gone {
                    return Err(gone());
                }
                // Who makes the change, or frees the memory, may need our lock to go on.
                parking_lot::MutexGuard::unlocked(&mut core, || std::thread::sleep(PAUSE));
            }
        }
    }
    Ok(())
}

/// What is left of a batch: pages and, in the same order, their contents.
struct Rest<'a> {
    ready: &'a [Ready],
    bytes: &'a [u8],
}

/// Deal with the first page of the rest and, if they can go in one call, the pages after it.
/// Returns how many are dealt with, or why none could be.
fn install_run(
    shared: &Shared,
    space: &Space,
    core: &mut Core,
    rest: &Rest<'_>,
    report: &mut PageInReport,
) -> std::result::Result<usize, Install> {
    let first = rest.ready[0];
    let address = first.page.start().0;
    if space.table.get(first.page) != first.entry {
        // Touched, dropped or moved since: somebody else's answer stands.
        return Ok(1);
    }
    if !first.good {
        // The entry did not change, so the bytes are what they are: lost (or, for a staged page,
        // not there: it is settled by its own page out).
        if !matches!(first.entry, Entry::Staged { .. }) {
            space.answer_lost(shared, first.page, &first.entry);
            report.pages_lost += 1;
        }
        return Ok(1);
    }
    let length = run_length(space, rest.ready);
    let run = &rest.ready[..length];
    let bytes = &rest.bytes[..length * PAGE_SIZE];
    let installed = if first.entry == (Entry::Same { fill: 0 }) {
        space.descriptor.zero(address, length as u64 * PAGE)
    } else {
        space.descriptor.copy(address, bytes)
    };
    match installed {
        Install::Done => {
            settle_run(space, shared, core, run, report);
            Ok(length)
        }
        Install::Partial(bytes) => {
            let count = (bytes / PAGE) as usize;
            settle_run(space, shared, core, &run[..count], report);
            Ok(count)
        }
        Install::AlreadyPresent => {
            space.come_home(core, shared, first.page, &first.entry);
            space.descriptor.wake(address, PAGE);
            report.pages_present += 1;
            Ok(1)
        }
        // The run crosses the border of a mapping: page by page.
        Install::NotMapped if length > 1 => {
            let single = Rest { ready: &rest.ready[..1], bytes };
            install_run(shared, space, core, &single, report)
        }
        Install::NotMapped => {
            // Unmapped: its event came before, or the entry would not match; nothing to keep.
            space.come_home(core, shared, first.page, &first.entry);
            Ok(1)
        }
        refusal => Err(refusal),
    }
}

fn give_up(space: &Space, refusal: Install) -> Error {
    let pid = space.header.pid;
    match refusal {
        Install::NoMemory => Error::NotEnoughMemory { pid, bytes_out: space.pages_out() * PAGE },
        other => {
            Error::TargetBusy { pid, why: format!("its pages could not be placed: {other:?}") }
        }
    }
}

/// Length of the run of neighbours that can be put in place by one call.
fn run_length(space: &Space, ready: &[Ready]) -> usize {
    let zero = Entry::Same { fill: 0 };
    let first = ready[0];
    let mut length = 1;
    while length < ready.len() {
        let next = ready[length];
        let neighbour = next.page.0 == first.page.0 + length as u64;
        let alike = (next.entry == zero) == (first.entry == zero);
        if !neighbour || !alike || !next.good || space.table.get(next.page) != next.entry {
            break;
        }
        length += 1;
    }
    length
}

/// Pages of a run are in place: keep what may be dropped again without encoding.
fn settle_run(
    space: &Space,
    shared: &Shared,
    core: &mut Core,
    run: &[Ready],
    report: &mut PageInReport,
) {
    for ready in run {
        match ready.entry {
            Entry::Pooled(stored) => {
                let _ = space.table.set(ready.page, Entry::Kept(stored));
            }
            other => space.come_home(core, shared, ready.page, &other),
        }
        report.pages_in += 1;
    }
}

/// A guard page (MADV_GUARD_INSTALL) has no contents, and a copy would destroy the guard.  False if
/// an event is open: then an entry may be of what has just left, and a guard of what has come.
fn drop_guarded(space: &Space, shared: &Shared, core: &mut Core, ready: &[Ready]) -> bool {
    let Some(pagemap) = space.pagemap.as_ref() else { return true };
    let filter = Filter { all_of: GUARD, any_of: 0, none_of: 0 };
    let mut guarded = Vec::new();
    // What lies between scattered pages would take long to walk through.
    for part in ready.chunk_by(|one, next| next.page.0 - one.page.0 <= GAP_PAGES) {
        let range = part[0].page.start().0..part[part.len() - 1].page.forward(1).start().0;
        // Kernels before 6.15 cannot tell; they are also too old for most programs to use guards.
        if pagemap.scan(range, filter, &mut guarded).is_err() {
            return true;
        }
    }
    if !guarded.is_empty() && space.descriptor.is_changing() {
        return false;
    }
    for range in guarded {
        let pages = ByteAddress(range.start).page()..ByteAddress(range.end).page();
        let mut entries = Vec::new();
        space.table.for_each(pages, |page, entry| entries.push((page, entry)));
        for (page, entry) in entries {
            space.come_home(core, shared, page, &entry);
        }
    }
    true
}

/// Memory that can be taken without swapping, in bytes; the maximum if unknown.
#[must_use]
pub fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(u64::MAX, |kibibytes| kibibytes * 1024)
}
