//! One page out in progress: the steps that move pages, with a worker inside the target.
//!
//! See [`crate::page_out`] for the protocol and why it is safe while the program runs.

use crate::address::{ByteAddress, PAGE_SIZE, Page, PageNumber};
use crate::borrow::Worker;
use crate::caches::Prepared;
use crate::codec::{Algorithm, Encoder, Preset};
use crate::error::{Error, Result};
use crate::page_in::bring_home;
use crate::page_out::PageOutReport;
use crate::page_table::Entry;
use crate::passage;
use crate::points;
use crate::references::Reference;
use crate::region;
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::{Core, SCRATCH_BYTES, Slot, Space};
use crate::sys::arch::call;
use crate::sys::foreign;
use crate::sys::pagemap::{Filter, GUARD, PRESENT, SWAPPED, WATCHED};
use crate::sys::userfaultfd::{MOVE_ALLOW_SRC_HOLES, UFFDIO_MOVE};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
/// Most move calls per step: bounds how long faults wait.
const MOVES_PER_STEP: usize = 24;
/// Pages read, encoded and published at a time.
pub const BATCH_PAGES: usize = 32;
/// How long to leave the program alone when a step cannot begin.
const LATER: Duration = Duration::from_millis(1);
/// How often a range is tried again after the program changed its address space.
const RETRIES: u8 = 8;
/// Pages that refuse to move before the rest of their range is left alone.
const STUBBORN_PAGES: u64 = 64;
const MADV_DONTNEED: u64 = 4;
const MADV_POPULATE_WRITE: u64 = 23;
/// Where the argument of a move lies in the scratch area: beside a passage's message.
const MOVE_ARGUMENT: u64 = 1024;
const _: () = assert!(MOVE_ARGUMENT + 40 <= SCRATCH_BYTES);

/// Pages that may move: watched, there, and no guard.
pub const MOVABLE: Filter = Filter { all_of: WATCHED, any_of: PRESENT | SWAPPED, none_of: GUARD };
const IN_PLACE: Filter = Filter { all_of: 0, any_of: PRESENT | SWAPPED, none_of: 0 };

/// A range to move, and how often it was tried.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Addresses; resident pages with small gaps.
    pub range: Range<u64>,
    /// Tries so far.
    pub tries: u8,
    /// Its pages were made exclusive; what still refuses is pinned.
    pub populated: bool,
}

/// One page out in progress: a worker in the target that holds our descriptor.
pub struct Mover<'a, 'w> {
    pub(crate) shared: &'a Shared,
    pub(crate) space: &'a Space,
    pub(crate) worker: &'a mut Worker<'w>,
    pub(crate) report: &'a mut PageOutReport,
    number: u64,
    keep: Vec<Range<u64>>,
    pub(crate) encoder: Encoder,
    /// For pages that come back with the next wake, where it is faster than `encoder`.
    pub(crate) quick: Option<Encoder>,
    pub(crate) kit: Kit,
    pub(crate) encoded: Box<Page>,
    pub(crate) pages: Vec<u8>,
    pub(crate) gave_up_kept: bool,
    /// What warm pages are encoded with; `None` encodes each page alone.
    pub(crate) dictionary: Option<(Arc<Reference>, Prepared)>,
}

/// One move call: a part of a piece, the slot of its first page, and which of it is resident.
struct Move<'a> {
    part: Range<u64>,
    slot: u64,
    runs: Vec<Range<u64>>,
    piece: &'a Piece,
}

impl Move<'_> {
    fn slot_of(&self, address: u64) -> u64 {
        self.slot + (address - self.part.start) / PAGE
    }
}

/// What a step left to do.
#[derive(Default)]
struct Leftover {
    /// To be tried again as they are.
    again: Vec<Piece>,
    /// To be made exclusive first: resident parts.
    stubborn: Vec<Range<u64>>,
    /// Resident, but out by the table.
    contradictions: Vec<Range<u64>>,
}

impl Leftover {
    /// Pieces to be tried again, unless they were tried often enough.
    fn again(pieces: impl Iterator<Item = Piece>) -> Self {
        let again = pieces
            .filter(|piece| piece.tries < RETRIES)
            .map(|piece| Piece { tries: piece.tries + 1, ..piece })
            .collect();
        Self { again, ..Self::default() }
    }
}

impl<'a, 'w> Mover<'a, 'w> {
    /// Begin: hand our descriptor to the worker.
    ///
    /// # Errors
    /// The worker is lost, or the kernel refused.
    pub fn open(
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
        let encoder =
            |algorithm| Encoder::new(algorithm).map_err(|error| Error::Internal(error.to_string()));
        let algorithm = shared.settings.algorithm;
        let is_slow = matches!(algorithm, Algorithm::Zstd { .. });
        let quick = is_slow.then(|| encoder(Algorithm::Lz4 { level: 0 })).transpose()?;
        let mut mover = Self {
            shared,
            space,
            worker,
            report,
            number,
            keep,
            encoder: encoder(algorithm)?,
            quick,
            kit: Kit::default(),
            encoded: Box::new([0; PAGE_SIZE]),
            pages: vec![0; BATCH_PAGES * PAGE_SIZE],
            gave_up_kept: false,
            dictionary: warm_dictionary(shared, space)?,
        };
        shared.caches.remember_contents(shared);
        mover.empty_staging()?;
        points::pass("page_out.opened");
        Ok(mover)
    }

    /// Move all pieces out; ends early when the pool is full, when the target wakes, or when
    /// `pages_max` pages have moved.
    ///
    /// # Errors
    /// The worker is lost.  If the space is `unsettled` then, a step was cut short.
    pub fn run(&mut self, mut pieces: Vec<Piece>, pages_max: u64) -> Result<()> {
        pieces.reverse();
        while !pieces.is_empty() && !self.report.pool_full {
            self.report.interrupted = self.space.wakes_now();
            if self.report.interrupted || self.report.pages_moved >= pages_max {
                break;
            }
            let step = self.take_step(&mut pieces);
            let populated = step.first().is_some_and(|piece| piece.populated);
            let (slots, leftover) = self.move_step(&step)?;
            // Nobody waits for the encoder; everybody may go before it.
            foreign::defer();
            let stored = self.store_slots(&slots);
            foreign::prefer(0);
            stored?;
            if self.report.pool_full {
                let mut core = self.space.core.lock();
                self.space.settle(&mut core, self.shared, &mut self.kit);
            }
            self.empty_staging()?;
            if !leftover.contradictions.is_empty() {
                // Bringing them home settles it: the kernel refuses while an event is pending, and
                // says that the page is there otherwise.
                bring_home(self.shared, self.space, Some(&leftover.contradictions), 0)?;
            }
            pieces.extend(leftover.again);
            if !populated {
                for range in leftover.stubborn {
                    points::pass("page_out.stubborn");
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
        match space.drain(&mut core, self.shared, &mut self.kit) {
            Answer::Done => {}
            Answer::Gone => return Err(gone()),
            Answer::Later => {
                // The table is not known to be true: an event is on its way, or memory is short.
                drop(core);
                std::thread::sleep(LATER);
                return Ok((Vec::new(), Leftover::again(step.iter().cloned())));
            }
        }
        let mut leftover = Leftover::default();
        let (moves, slots) = self.plan_step(&core, step, &mut leftover)?;
        // From here to the end of the correction below a page is in one of two places.
        core.unsettled = true;
        for part in &moves {
            for run in &part.runs {
                self.mark(&mut core, run, part.slot_of(run.start))?;
            }
        }
        points::pass("page_out.marked");
        for part in &moves {
            self.move_part(part, &mut leftover)?;
        }
        points::pass("page_out.moved");
        let filled = self.correct_marks(&mut core, slots, &moves)?;
        core.unsettled = false;
        drop(core);
        points::pass("page_out.settled");
        self.report.chunks += 1;
        self.report.pages_moved += filled.len() as u64;
        let held = began.elapsed();
        self.shared.hold.record(held);
        self.report.hold.push(held);
        Ok((filled, leftover))
    }

    /// Which parts of the pieces to move, and how many slots of the staging area they take.
    fn plan_step<'p>(
        &self,
        core: &Core,
        step: &'p [Piece],
        leftover: &mut Leftover,
    ) -> Result<(Vec<Move<'p>>, u64)> {
        let gone = || Error::TargetGone(self.space.header.pid);
        let pagemap = self.space.pagemap.as_ref().ok_or_else(gone)?;
        let mut holes = self.keep.clone();
        holes.extend(core.quarantine.ranges());
        holes.sort_by_key(|range| range.start);
        let mut moves: Vec<Move<'p>> = Vec::new();
        let mut next_slot = 0;
        for piece in step {
            let mut runs = Vec::new();
            for part in region::subtract(piece.range.clone(), &holes) {
                pagemap.scan(part, MOVABLE, &mut runs).map_err(|_| gone())?;
            }
            let (Some(first), Some(last)) = (runs.first(), runs.last()) else { continue };
            // Never move over a page to leave alone: one call per side of it.
            let whole = first.start..last.end;
            let contradictions = self.contradictions(&whole, &runs);
            leftover.contradictions.extend(contradictions.iter().cloned());
            let mut around = holes.clone();
            around.extend(contradictions);
            around.sort_by_key(|range| range.start);
            for part in region::subtract(whole, &around) {
                let inside = region::intersect(&part, Some(&runs));
                if !inside.is_empty() {
                    let length = (part.end - part.start) / PAGE;
                    moves.push(Move { part, slot: next_slot, runs: inside, piece });
                    next_slot += length;
                }
            }
        }
        // A page that were moved twice would be lost: whatever the plan says, parts never overlap.
        moves.sort_by_key(|part| part.part.start);
        let mut end = 0;
        moves.retain(|part| {
            let apart = part.part.start >= end;
            end = end.max(part.part.end);
            apart
        });
        Ok((moves, next_slot))
    }

    /// Pages that are there although the table says that they are out.  Either an event that would
    /// explain it is on its way (then the entry belongs to another place, and must not be touched),
    /// or a killed engine had just copied the page in.
    fn contradictions(&self, whole: &Range<u64>, runs: &[Range<u64>]) -> Vec<Range<u64>> {
        let pages = ByteAddress(whole.start).page()..ByteAddress(whole.end).page();
        let mut found = Vec::new();
        self.space.table.for_each(pages, |page, entry| {
            let address = page.start().0;
            let resident = runs.iter().any(|run| run.contains(&address));
            if resident && !matches!(entry, Entry::Kept(_)) {
                found.push(address..address + PAGE);
            }
        });
        found
    }

    fn mark(&self, core: &mut Core, run: &Range<u64>, first_slot: u64) -> Result<()> {
        let (start, end) = (ByteAddress(run.start).page(), ByteAddress(run.end).page());
        for (slot, page) in (first_slot..).zip((start.0..end.0).map(PageNumber)) {
            let kept = match self.space.table.get(page) {
                Entry::Kept(stored) => Some(stored),
                _ => None,
            };
            self.space
                .table
                .set(page, Entry::Staged { slot })
                .map_err(|error| Error::Internal(error.to_string()))?;
            core.slots[slot as usize] = Slot { owner: Some(page), kept };
        }
        Ok(())
    }

    /// Let the worker move one part; falls back from the whole to its runs where the kernel does
    /// not like something in a gap.
    fn move_part(&mut self, part: &Move<'_>, leftover: &mut Leftover) -> Result<()> {
        let (moved, refusal) = self.move_call(part.part.clone(), part.slot)?;
        let Some(refusal) = refusal else { return Ok(()) };
        let (rest, piece) = (part.part.start + moved..part.part.end, part.piece);
        let rest: Vec<Range<u64>> = region::intersect(&rest, Some(&part.runs));
        match refusal {
            Errno::AGAIN => {
                let again = |range| Piece { range, ..piece.clone() };
                leftover.again.extend(Leftover::again(rest.into_iter().map(again)).again);
            }
            Errno::BUSY if !piece.populated => leftover.stubborn.extend(rest),
            _ => {
                // One run after the other, stepping over single pages that refuse.
                let mut refused = 0;
                for run in rest {
                    let mut start = run.start;
                    while start < run.end && refused < STUBBORN_PAGES {
                        let (moved, refusal) =
                            self.move_call(start..run.end, part.slot_of(start))?;
                        start += moved;
                        if refusal.is_none() {
                            break;
                        }
                        refused += 1;
                        start += PAGE;
                    }
                }
                self.report.pages_pinned += refused;
            }
        }
        Ok(())
    }

    /// One `UFFDIO_MOVE` inside the target: bytes moved and the error, if any.
    fn move_call(&mut self, source: Range<u64>, slot: u64) -> Result<(u64, Option<Errno>)> {
        let argument = self.space.header.area.start + MOVE_ARGUMENT;
        let length = source.end - source.start;
        let words = [self.space.slot_address(slot), source.start, length, MOVE_ALLOW_SRC_HOLES, 0];
        let mut bytes = [0u8; 40];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let pid = self.space.header.pid;
        let lost = Error::memory(pid, "writing to the target's scratch area");
        self.worker.memory().write(argument, &bytes).map_err(lost)?;
        match self.worker.call(call::IOCTL, [self.number, UFFDIO_MOVE, argument, 0, 0, 0])? {
            Ok(_) => Ok((length, None)),
            Err(error) => {
                let lost = Error::memory(pid, "reading the target's scratch area");
                self.worker.memory().read(argument, &mut bytes).map_err(lost)?;
                let moved = i64::from_le_bytes(bytes[32..].try_into().unwrap_or([0; 8]));
                let refusal = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Ok((u64::try_from(moved).unwrap_or(0).min(length), Some(refusal)))
            }
        }
    }

    /// Compare the marks with what is in staging; returns the filled slots.
    fn correct_marks(&self, core: &mut Core, slots: u64, moves: &[Move<'_>]) -> Result<Vec<u64>> {
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
                    let owner = moves.iter().find_map(|part| {
                        let address = part.part.start + slot.checked_sub(part.slot)? * PAGE;
                        part.part.contains(&address).then(|| ByteAddress(address).page())
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

/// The dictionary chosen for a space, prepared.  One that has gone meanwhile is as none; this one
/// is held, so that it does not go before the first page names it.
fn warm_dictionary(shared: &Shared, space: &Space) -> Result<Option<(Arc<Reference>, Prepared)>> {
    let number = space.table.dictionary();
    let Some(reference) = shared.store.references.get(number) else { return Ok(None) };
    let compiled = shared.caches.compile(&reference, Preset::Warm)?;
    Ok(Some((reference, compiled)))
}
