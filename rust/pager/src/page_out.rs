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
//! move nobody reads events, and any change of a watched mapping leaves an unread event behind, with
//! which the kernel refuses to move (EAGAIN); a mapping that is not watched is not scanned.

use crate::address::{ByteAddress, PAGE_SIZE, Page, PageNumber};
use crate::borrow::{Worker, with_worker};
use crate::codec::{Encoder, checksum, same_filled};
use crate::error::{Error, Result};
use crate::page_table::{Entry, Stored};
use crate::passage;
use crate::points;
use crate::region::{self, Region};
use crate::serve::{Answer, release_slot};
use crate::shared::{Kit, Shared};
use crate::space::{Core, SCRATCH_BYTES, Slot, Space};
use crate::sys::arch::call;
use crate::sys::pagemap::{Filter, GUARD, PRESENT, SWAPPED, WATCHED};
use crate::sys::userfaultfd::{MOVE_ALLOW_SRC_HOLES, UFFDIO_MOVE};
use crate::target::{self, Target};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
/// Present ranges with at most this many missing pages between them are moved by one call; a call
/// costs about as much as moving a hundred pages.
const GAP_PAGES: u64 = 32;
/// Most move calls per step: bounds how long faults wait.
const MOVES_PER_STEP: usize = 24;
/// Pages read, encoded and published at a time.
const BATCH_PAGES: usize = 32;
/// How often a range is tried again after the program changed its address space.
const RETRIES: u8 = 8;
/// Pages that refuse to move before the rest of their range is left alone.
const STUBBORN_PAGES: usize = 64;
const MADV_DONTNEED: u64 = 4;
const MADV_POPULATE_WRITE: u64 = 23;
/// Where the argument of a move lies in the scratch area.
const MOVE_ARGUMENT: u64 = 1024;

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
}

/// A range to move, and how often it was tried.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<u64>,
    tries: u8,
    /// Its pages were made exclusive; what still refuses is pinned.
    populated: bool,
}

/// Page out what `ranges` names (everything if `None`) of what may leave, but for `keep`.
///
/// # Errors
/// `TargetBusy`, `TargetGone`; the pages of a failed step are home again.
pub fn page_out(
    shared: &Shared,
    space: &Space,
    ranges: Option<&[Range<u64>]>,
    keep: &[Range<u64>],
) -> Result<PageOutReport> {
    let begin = Instant::now();
    let _operation = space.operation.lock();
    let target = space.target()?;
    if space.core.lock().area_lost {
        let why = "the program unmapped AgentZip's area in it".to_owned();
        return Err(Error::TargetBusy { pid: target.pid, why });
    }
    let mut report = PageOutReport::default();
    let pieces = plan(shared, space, &target, ranges, keep, &mut report)?;
    if pieces.is_empty() {
        report.elapsed = begin.elapsed();
        return Ok(report);
    }
    let memory = space.memory.as_ref().ok_or(Error::NotAttached(target.pid))?;
    let mut worker_thread = 0;
    let result = with_worker(&target, memory, shared.settings.limits(), |worker| {
        worker_thread = worker.thread();
        report.stop = worker.loan.stop;
        shared.stop.record(u64::try_from(worker.loan.stop.as_nanos()).unwrap_or(u64::MAX));
        let mut session = Session::open(shared, space, worker, &mut report)?;
        session.run(pieces)
    });
    if space.core.lock().unsettled {
        wait_for_end(target.pid, worker_thread);
        let mut core = space.core.lock();
        space.settle(&mut core, shared, &mut Kit::default());
    }
    if matches!(result, Err(Error::TargetGone(_))) && !space.descriptor.is_alive() {
        space.set_gone();
    }
    report.elapsed = begin.elapsed();
    result.map(|()| report)
}

/// The worker of a failed step finishes its call and exits by itself; nothing moves after that.
fn wait_for_end(pid: i32, thread: i32) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while std::path::Path::new(&format!("/proc/{pid}/task/{thread}")).exists()
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Watch all that can be watched, and list what is resident and may leave.
fn plan(
    shared: &Shared,
    space: &Space,
    target: &Target,
    ranges: Option<&[Range<u64>]>,
    keep: &[Range<u64>],
    report: &mut PageOutReport,
) -> Result<Vec<Piece>> {
    let regions = region::parse(&target::read_maps(target.pid, true)?);
    let mut kept = keep.to_vec();
    kept.extend(live_ranges(target, &regions));
    kept.sort_by_key(|range| range.start);
    let pagemap = space.pagemap.as_ref().ok_or(Error::NotAttached(target.pid))?;
    let mut pieces = Vec::new();
    for region in &regions {
        let decision = region.decide(Some(&space.header.area));
        let ours = decision.kind == region::Kind::Helper;
        let watched = !ours && region.is_watchable() && {
            let length = region.range.end - region.range.start;
            space.descriptor.register(region.range.start, length).is_ok()
        };
        if !decision.movable || !watched {
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
    points::pass("page_out.registered");
    Ok(pieces)
}

const MOVABLE: Filter = Filter { all_of: WATCHED, any_of: PRESENT | SWAPPED, none_of: GUARD };
const IN_PLACE: Filter = Filter { all_of: 0, any_of: PRESENT | SWAPPED, none_of: 0 };

/// Join ranges with small gaps, and cut what is longer than a step.  A range to keep is never
/// bridged: the call that moves a bridge moves all that is on it.
fn cut(present: &[Range<u64>], kept: &[Range<u64>], step_pages: u64, pieces: &mut Vec<Piece>) {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in present {
        match joined.last_mut() {
            Some(last)
                if range.start - last.end <= GAP_PAGES * PAGE
                    && !kept.iter().any(|keep| {
                        keep.start < range.start && last.end < keep.end
                    }) =>
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
    let mut ranges = vec![arguments.start & !(PAGE - 1)..arguments.end.next_multiple_of(PAGE)];
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

/// One page out in progress: a worker in the target that holds our descriptor.
struct Session<'a, 'w> {
    shared: &'a Shared,
    space: &'a Space,
    worker: &'a mut Worker<'w>,
    report: &'a mut PageOutReport,
    number: u64,
    keep: Vec<Range<u64>>,
    encoder: Encoder,
    kit: Kit,
    encoded: Box<Page>,
    pages: Vec<u8>,
    gave_up_kept: bool,
}

/// What a step left to do.
#[derive(Default)]
struct Leftover {
    /// To be tried again as they are.
    again: Vec<Piece>,
    /// To be made exclusive first: resident parts.
    stubborn: Vec<Range<u64>>,
}

impl<'a, 'w> Session<'a, 'w> {
    fn open(
        shared: &'a Shared,
        space: &'a Space,
        worker: &'a mut Worker<'w>,
        report: &'a mut PageOutReport,
    ) -> Result<Self> {
        passage::empty_table(worker)?;
        let scratch = space.header.area.start;
        let number = passage::give(worker, scratch, space.descriptor.as_fd())?;
        let page_of = |address: u64| {
            let page = address & !(PAGE - 1);
            page..page + 2 * PAGE
        };
        let mut keep =
            vec![page_of(worker.loan.thread_pointer), page_of(worker.loan.stack_pointer)];
        keep.sort_by_key(|range| range.start);
        let encoder = Encoder::new(shared.settings.algorithm)
            .map_err(|error| Error::Internal(error.to_string()))?;
        let mut session = Self {
            shared,
            space,
            worker,
            report,
            number,
            keep,
            encoder,
            kit: Kit::default(),
            encoded: Box::new([0; PAGE_SIZE]),
            pages: vec![0; BATCH_PAGES * PAGE_SIZE],
            gave_up_kept: false,
        };
        session.empty_staging()?;
        points::pass("page_out.opened");
        Ok(session)
    }

    fn run(&mut self, mut pieces: Vec<Piece>) -> Result<()> {
        pieces.reverse();
        while !pieces.is_empty() && !self.report.pool_full {
            let step = self.take_step(&mut pieces);
            let populated = step.first().is_some_and(|piece| piece.populated);
            let (slots, leftover) = self.move_step(&step)?;
            self.store_slots(&slots)?;
            if self.report.pool_full {
                let mut core = self.space.core.lock();
                self.space.settle(&mut core, self.shared, &mut self.kit);
            }
            self.empty_staging()?;
            pieces.extend(leftover.again);
            if !populated {
                for range in leftover.stubborn {
                    let length = range.end - range.start;
                    // Shared with a child since a fork: let the kernel give the program a copy of
                    // its own, as a write would.  A failure shows at the next move.
                    let _ = self
                        .worker
                        .call(call::MADVISE, [range.start, length, MADV_POPULATE_WRITE, 0, 0, 0])?;
                    pieces.push(Piece { range, tries: 0, populated: true });
                }
            }
        }
        Ok(())
    }

    /// Take as many pieces of one kind as fit into a step.
    fn take_step(&self, pieces: &mut Vec<Piece>) -> Vec<Piece> {
        let mut step: Vec<Piece> = Vec::new();
        let mut room = self.shared.settings.chunk_pages as u64 * PAGE;
        while let Some(piece) = pieces.last() {
            let length = piece.range.end - piece.range.start;
            let fits = step.first().is_none_or(|first| first.populated == piece.populated)
                && length <= room
                && step.len() < MOVES_PER_STEP;
            if !fits {
                break;
            }
            room -= length;
            step.extend(pieces.pop());
        }
        step
    }

    /// Mark, move, and see what moved.  Returns the filled slots in order.
    fn move_step(&mut self, step: &[Piece]) -> Result<(Vec<u64>, Leftover)> {
        let began = Instant::now();
        let space = self.space;
        let gone = || Error::TargetGone(space.header.pid);
        let mut core = space.core.lock();
        if space.drain(&mut core, self.shared, &mut self.kit) == Answer::Gone {
            return Err(gone());
        }
        let pagemap = space.pagemap.as_ref().ok_or_else(gone)?;
        let mut leftover = Leftover::default();
        let mut moves: Vec<(Range<u64>, u64, Vec<Range<u64>>, &Piece)> = Vec::new();
        let mut next_slot = 0;
        for piece in step {
            let mut runs = Vec::new();
            for part in region::subtract(piece.range.clone(), &self.keep) {
                pagemap.scan(part, MOVABLE, &mut runs).map_err(|_| gone())?;
            }
            let (Some(first), Some(last)) = (runs.first(), runs.last()) else { continue };
            // Never move over a page to keep: one call per side of it.
            let whole = first.start..last.end;
            for part in region::subtract(whole, &self.keep) {
                let inside = region::intersect(&part, Some(&runs));
                moves.push((part.clone(), next_slot, inside, piece));
                next_slot += (part.end - part.start) / PAGE;
            }
        }
        // From here to the end of the correction below a page is in one of two places.
        core.unsettled = true;
        for (part, slot, runs, _) in &moves {
            for run in runs {
                self.mark(&mut core, run, slot + (run.start - part.start) / PAGE)?;
            }
        }
        points::pass("page_out.marked");
        for (part, slot, runs, piece) in &moves {
            self.move_part(part, *slot, runs, piece, &mut leftover)?;
        }
        points::pass("page_out.moved");
        let filled = self.correct_marks(&mut core, next_slot, &moves)?;
        core.unsettled = false;
        drop(core);
        points::pass("page_out.settled");
        self.report.chunks += 1;
        self.report.pages_moved += filled.len() as u64;
        let held = began.elapsed();
        self.shared.hold.record(u64::try_from(held.as_nanos()).unwrap_or(u64::MAX));
        self.report.hold.push(held);
        Ok((filled, leftover))
    }

    fn mark(&self, core: &mut Core, run: &Range<u64>, first_slot: u64) -> Result<()> {
        let mut slot = first_slot;
        let (start, end) = (ByteAddress(run.start).page(), ByteAddress(run.end).page());
        for page in (start.0..end.0).map(PageNumber) {
            let kept = match self.space.table.get(page) {
                Entry::Absent => None,
                Entry::Kept(stored) => Some(stored),
                // The page is there although the table says that it is out: it came back without
                // our noticing (the engine was killed right after the copy).  What is there is
                // newer.
                stale => {
                    self.space.come_home(core, self.shared, page, &stale);
                    None
                }
            };
            self.space
                .table
                .set(page, Entry::Staged { slot })
                .map_err(|error| Error::Internal(error.to_string()))?;
            core.slots[slot as usize] = Slot { owner: Some(page), kept };
            slot += 1;
        }
        Ok(())
    }

    /// Let the worker move one part; falls back from the whole to its runs where the kernel does
    /// not like something in a gap.
    fn move_part(
        &mut self,
        part: &Range<u64>,
        slot: u64,
        runs: &[Range<u64>],
        piece: &Piece,
        leftover: &mut Leftover,
    ) -> Result<()> {
        let (moved, errno) = self.move_call(part.clone(), slot)?;
        if errno == 0 {
            return Ok(());
        }
        let rest_start = part.start + moved;
        let rest: Vec<Range<u64>> = region::intersect(&(rest_start..part.end), Some(runs));
        match errno {
            libc::EAGAIN if piece.tries < RETRIES => {
                let tries = piece.tries + 1;
                let again = |range| Piece { range, tries, populated: piece.populated };
                leftover.again.extend(rest.into_iter().map(again));
            }
            libc::EBUSY if !piece.populated => leftover.stubborn.extend(rest),
            libc::EAGAIN => {}
            _ => {
                // One run after the other, stepping over single pages that refuse.
                let mut refused = 0;
                for run in rest {
                    let mut start = run.start;
                    while start < run.end && refused < STUBBORN_PAGES {
                        let at = slot + (start - part.start) / PAGE;
                        let (moved, errno) = self.move_call(start..run.end, at)?;
                        start += moved;
                        if errno == 0 {
                            break;
                        }
                        refused += 1;
                        start += PAGE;
                    }
                }
                self.report.pages_pinned += refused as u64;
            }
        }
        Ok(())
    }

    /// One `UFFDIO_MOVE` inside the target: bytes moved and the error, if any.
    fn move_call(&mut self, source: Range<u64>, slot: u64) -> Result<(u64, i32)> {
        let argument = self.space.header.area.start + MOVE_ARGUMENT;
        let length = source.end - source.start;
        let words =
            [self.space.slot_address(slot), source.start, length, MOVE_ALLOW_SRC_HOLES, 0];
        let mut bytes = [0u8; 40];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let lost = Error::os("writing to the target's scratch area");
        self.worker.memory().write(argument, &bytes).map_err(lost)?;
        match self.worker.call(call::IOCTL, [self.number, UFFDIO_MOVE, argument, 0, 0, 0])? {
            Ok(_) => Ok((length, 0)),
            Err(error) => {
                let lost = Error::os("reading the target's scratch area");
                self.worker.memory().read(argument, &mut bytes).map_err(lost)?;
                let moved = i64::from_le_bytes(bytes[32..].try_into().unwrap_or([0; 8]));
                let errno = error.raw_os_error().unwrap_or(0);
                Ok((u64::try_from(moved).unwrap_or(0).min(length), errno))
            }
        }
    }

    /// Compare the marks with what is in staging; returns the filled slots.
    fn correct_marks(
        &self,
        core: &mut Core,
        slots: u64,
        moves: &[(Range<u64>, u64, Vec<Range<u64>>, &Piece)],
    ) -> Result<Vec<u64>> {
        let space = self.space;
        let pid = space.header.pid;
        let pagemap = space.pagemap.as_ref().ok_or(Error::TargetGone(pid))?;
        let area = space.slot_address(0)..space.slot_address(slots);
        let mut found = Vec::new();
        pagemap.scan(area.clone(), IN_PLACE, &mut found).map_err(|_| Error::TargetGone(pid))?;
        let mut filled = Vec::new();
        for range in found {
            filled.extend((range.start - area.start) / PAGE..(range.end - area.start) / PAGE);
        }
        let mut next = filled.iter().peekable();
        for slot in 0..slots {
            let is_filled = next.next_if_eq(&&slot).is_some();
            let place = core.slots[slot as usize];
            match (place.owner, is_filled) {
                (Some(page), false) => {
                    let back = place.kept.map_or(Entry::Absent, Entry::Kept);
                    let _ = space.table.set(page, back);
                    core.slots[slot as usize] = Slot::default();
                }
                (None, true) => {
                    // Became resident between the scan and the move: ours all the same.
                    let owner = moves.iter().find_map(|(part, first, _, _)| {
                        let address = part.start + slot.checked_sub(*first)? * PAGE;
                        part.contains(&address).then(|| ByteAddress(address).page())
                    });
                    let page = owner.ok_or_else(|| {
                        Error::Internal("a page moved that nobody asked for".to_owned())
                    })?;
                    let old = space.table.get(page);
                    space.come_home(core, self.shared, page, &old);
                    space
                        .table
                        .set(page, Entry::Staged { slot })
                        .map_err(|error| Error::Internal(error.to_string()))?;
                    core.slots[slot as usize] = Slot { owner: Some(page), kept: None };
                }
                _ => {}
            }
        }
        Ok(filled)
    }

    /// Encode the staged pages and publish them.
    fn store_slots(&mut self, slots: &[u64]) -> Result<()> {
        for batch in slots.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(BATCH_PAGES)) {
            self.store_batch(batch)?;
            if self.report.pool_full {
                return Ok(());
            }
        }
        Ok(())
    }

    fn store_batch(&mut self, batch: &[u64]) -> Result<()> {
        let places: Vec<Slot> = {
            let core = self.space.core.lock();
            batch.iter().map(|slot| core.slots[*slot as usize]).collect()
        };
        let mut pages = std::mem::take(&mut self.pages);
        let address = self.space.slot_address(batch[0]);
        let bytes = &mut pages[..batch.len() * PAGE_SIZE];
        let read = self.worker.memory().read(address, bytes);
        let mut entries = Vec::with_capacity(batch.len());
        if read.is_ok() {
            for (place, page) in places.iter().zip(bytes.as_chunks::<PAGE_SIZE>().0) {
                let entry = place.owner.and_then(|_| self.encode(page, place.kept));
                entries.push(entry);
                if self.report.pool_full {
                    break;
                }
            }
        }
        self.pages = pages;
        read.map_err(|_| Error::TargetGone(self.space.header.pid))?;
        points::pass("page_out.encoded");
        self.publish(batch, &entries);
        points::pass("page_out.published");
        Ok(())
    }

    /// Encode one page into the pool; `None` if the pool is full.
    fn encode(&mut self, page: &Page, kept: Option<Stored>) -> Option<Entry> {
        if let Some(fill) = same_filled(page) {
            return Some(Entry::Same { fill });
        }
        let checksum = checksum(page);
        if let Some(stored) = kept
            && stored.checksum == checksum
        {
            return Some(Entry::Kept(stored));
        }
        let (codec, length) = self.encoder.encode(page, &mut self.encoded);
        let mut offset = self.shared.store.put(&self.encoded[..length]);
        if offset.is_none() && !self.gave_up_kept {
            self.gave_up_kept = true;
            self.shared.give_up_kept();
            offset = self.shared.store.put(&self.encoded[..length]);
        }
        let Some(offset) = offset else {
            self.report.pool_full = true;
            return None;
        };
        Some(Entry::Pooled(Stored { codec, len: length as u16, offset, checksum }))
    }

    /// Make encoded pages the table's, unless they were touched or dropped meanwhile.  An entry
    /// `Kept` here means: the old copy is still right.
    fn publish(&mut self, batch: &[u64], entries: &[Option<Entry>]) {
        let mut core = self.space.core.lock();
        for (slot, entry) in batch.iter().zip(entries) {
            let Some(entry) = *entry else { continue };
            let place = core.slots[*slot as usize];
            let still_staged = place.owner.filter(|page| {
                self.space.table.get(*page) == (Entry::Staged { slot: *slot })
            });
            let Some(page) = still_staged else {
                self.report.pages_returned += 1;
                if let Entry::Pooled(_) = entry {
                    self.shared.store.release(&entry);
                }
                continue;
            };
            let published = match entry {
                Entry::Kept(stored) => {
                    self.report.pages_clean += 1;
                    // The reference moves from the slot back to the table.
                    core.slots[*slot as usize].kept = None;
                    Entry::Pooled(stored)
                }
                other => other,
            };
            // The entry's place in the table exists: it was marked there.
            let _ = self.space.table.set(page, published);
            release_slot(&mut core, self.shared, *slot);
            self.report.pages_stored += 1;
            match published {
                Entry::Pooled(stored) => {
                    self.report.bytes_stored += u64::from(stored.len);
                    self.report.pages_raw += u64::from(stored.codec.0 == 0);
                }
                _ => self.report.pages_same_filled += 1,
            }
        }
    }

    /// Drop what is in the staging area.  Not watched meanwhile, so that no event is sent.
    fn empty_staging(&mut self) -> Result<()> {
        let staging = self.space.staging();
        let length = staging.end - staging.start;
        let failed = Error::os("emptying the staging area");
        self.space.descriptor.unregister(staging.start, length).map_err(failed)?;
        let dropped =
            self.worker.call(call::MADVISE, [staging.start, length, MADV_DONTNEED, 0, 0, 0])?;
        let failed = Error::os("watching the staging area");
        self.space.descriptor.register(staging.start, length).map_err(failed)?;
        dropped.map_err(Error::os("emptying the staging area"))?;
        points::pass("page_out.dropped");
        Ok(())
    }
}

impl Space {
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

// The scratch area holds a passage's message and a move's argument side by side.
const _: () = assert!(MOVE_ARGUMENT + 40 <= SCRATCH_BYTES);

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
        assert_eq!(
            vec![page(0)..page(8), page(100)..page(116), page(116)..page(120)],
            ranges
        );
    }

    #[test]
    fn a_range_to_keep_is_never_bridged() {
        let mut pieces = Vec::new();
        cut(&[0..4 * PAGE, 5 * PAGE..8 * PAGE], &[4 * PAGE..5 * PAGE], 64, &mut pieces);
        assert_eq!(2, pieces.len());
    }
}
