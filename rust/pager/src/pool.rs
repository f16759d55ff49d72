//! Which parts of the pool are taken, and how often each stored page is referenced.
//!
//! Only the bookkeeping: the bytes lie in a memfd that somebody else writes. Nothing here is
//! persistent either. The tables of the targets are the truth; a new daemon reads them and
//! [`adopts`](PoolIndex::adopt) every entry, so that a kill can leak nothing.
//!
//! The pool is cut into spans, each holding slots of one size. An emptied span goes back to the
//! kernel at once and may come back with another slot size, which is what keeps the pool from
//! ossifying when the mix of lengths changes. Within a size the lowest span with a free slot
//! that has memory already comes first, so that the higher ones drain; [`compaction`] empties
//! what stays sparse.
//!
//! The cap is on memory, not on offsets: a span costs the pages that its slots have reached, and
//! the file is longer than the cap ([`file_bytes`]) because few spans use their whole stride.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::address::PAGE_SIZE;
use span::{Counted, Geometry, NO_VICTIM, Seat, Span, class_of};

/// Emptying sparse spans, and what it would gain.
pub mod compaction;
mod span;
#[cfg(test)]
mod tests;

pub use compaction::{Compaction, Waste};
pub use span::{CLASSES, SPAN_STRIDE};

/// Every slot starts at a multiple of this.
pub const SLOT_UNIT: u64 = 16;
/// Every offset is below this: a table entry has 36 bits for it, in units of 16 bytes.
pub const OFFSETS_END: u64 = 1 << 40;

const PAGE: u64 = PAGE_SIZE as u64;

/// How long the file of a pool with this cap has to be.
///
/// A full span uses at least half of its stride, one span of each size may have just begun, and
/// a compaction that was cut short leaves trimmed ones: four times the cap is ample for those.
/// Past the end of the file a pool counts as full. Length alone costs no memory.
#[must_use]
pub const fn file_bytes(bytes_max: u64) -> u64 {
    let begun = CLASSES as u64 * SPAN_STRIDE;
    let length = bytes_max.saturating_mul(4).saturating_add(begun);
    if length >= OFFSETS_END { OFFSETS_END } else { length.next_multiple_of(SPAN_STRIDE) }
}

/// Memory that slots take, by their size (16, 32, … bytes), with nothing free between them.
#[must_use]
pub fn packed_bytes(slots: &[u64; CLASSES]) -> u64 {
    let pages = |(class, count): (usize, &u64)| {
        u8::try_from(class).map_or(0, |class| Geometry::of(class).pages_packed(*count))
    };
    slots.iter().enumerate().map(pages).sum::<u64>() * PAGE
}

/// Why a request made no sense. Nothing was changed; in every case somebody else's bookkeeping
/// is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing is stored there.
    #[error("no pool slot starts at offset {offset:#x}")]
    NoSuchSlot {
        /// Byte offset asked for.
        offset: u64,
    },
    /// Something of another length is stored there.
    #[error("the pool slot at offset {offset:#x} does not hold {len} bytes")]
    WrongLength {
        /// Byte offset of the slot.
        offset: u64,
        /// Length that the caller believed in.
        len: usize,
    },
    /// The number of references does not fit its counter.
    #[error("too many references to the pool slot at offset {offset:#x}")]
    TooManyRefs {
        /// Byte offset of the slot.
        offset: u64,
    },
    /// An adopted entry lies outside the pool or has an impossible length.
    #[error("stored page outside the pool: {len} bytes at offset {offset:#x} of {file_bytes}")]
    OutOfBounds {
        /// Byte offset of the entry.
        offset: u64,
        /// Encoded length of the entry.
        len: usize,
        /// Length of the pool's file.
        file_bytes: u64,
    },
    /// An adopted entry overlaps what another entry said.
    #[error("stored page of {len} bytes at offset {offset:#x} conflicts with its neighbours")]
    Conflict {
        /// Byte offset of the entry.
        offset: u64,
        /// Encoded length of the entry.
        len: usize,
    },
}

/// What a release gave back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The last reference is gone and the slot may be used again.
    pub slot_freed: bool,
    /// This whole range of the pool became empty: its memory can go back to the kernel, before
    /// the next call of [`PoolIndex::alloc`].
    pub span_freed: Option<Range<u64>>,
}

/// Figures of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Memory taken at most: in each span the pages up to the highest slot used since it was
    /// opened or last trimmed.
    pub bytes_spans: u64,
    /// Slots in use, each at its full size. The rest of `bytes_spans` is free or does not divide.
    pub bytes_slots: u64,
    /// What was asked to be stored, byte by byte.
    pub bytes_payload: u64,
    /// Number of slots in use.
    pub slots: u64,
    /// The cap for `bytes_spans`.
    pub bytes_max: u64,
}

/// All spans of one slot size.
#[derive(Debug, Default)]
struct Class {
    /// Spans with a slot to hand out, cheapest and lowest first.
    rooms: BTreeSet<(Seat, u32)>,
    /// Spans to be emptied, with the first slot that has to go; partly emptied ones first.
    victims: BTreeSet<(Reverse<u16>, u32)>,
    slots: u64,
    pages: u64,
}

/// Allocator and reference counts of one pool.
///
/// Every call is logarithmic in the number of spans, but for those that say otherwise.
#[derive(Debug)]
pub struct PoolIndex {
    bytes_max: u64,
    file_bytes: u64,
    /// By position in the pool; `None` holds no memory.
    spans: Vec<Option<Span>>,
    /// Positions of the `None`s.
    unused: BTreeSet<u32>,
    classes: Vec<Class>,
    /// Reference counts that do not fit into a byte, by offset.
    many: BTreeMap<u64, u32>,
    /// Pages reached, in all spans.
    pages: u64,
    bytes_slots: u64,
    bytes_payload: u64,
    slots: u64,
    /// Bytes of all reference counts kept in spans.
    ref_bytes: u64,
    adopting: bool,
}

impl PoolIndex {
    /// An empty pool that takes at most `bytes_max` bytes, rounded down to whole pages, of a file
    /// of [`file_bytes`] length.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            file_bytes: file_bytes(bytes_max),
            spans: Vec::new(),
            unused: BTreeSet::new(),
            classes: (0..CLASSES).map(|_| Class::default()).collect(),
            many: BTreeMap::new(),
            pages: 0,
            bytes_slots: 0,
            bytes_payload: 0,
            slots: 0,
            ref_bytes: 0,
            adopting: false,
        }
    }

    /// A pool in a file that a former daemon left behind. To be filled by [`Self::adopt`]; usable
    /// after [`Self::finish_adoption`], capped by [`Self::set_bytes_max`].
    pub fn for_file(file_bytes: u64) -> Self {
        let file_bytes = file_bytes.min(OFFSETS_END);
        Self { file_bytes, adopting: true, ..Self::new(file_bytes) }
    }

    /// Finds room for `len` bytes and returns its offset, with one reference.
    ///
    /// Never inside a victim of a compaction; a victim that is needed stops being one.
    ///
    /// `None` when that would pass the cap, when `len` is not between 1 and 4096, or while the
    /// adoption of a former pool is not finished.
    pub fn alloc(&mut self, len: usize) -> Option<u64> {
        let class = class_of(len)?;
        if self.adopting {
            return None;
        }
        let number = self.find_room(class)?;
        let slot = self.span(number)?.lowest_free;
        self.occupy(number, usize::from(slot), len);
        let slot_bytes = u64::from(Geometry::of(class).slot_bytes);
        Some(u64::from(number) * SPAN_STRIDE + u64::from(slot) * slot_bytes)
    }

    /// Adds a reference to the slot at `offset`.
    ///
    /// # Errors
    /// [`Error::NoSuchSlot`], [`Error::TooManyRefs`].
    pub fn add_ref(&mut self, offset: u64) -> Result<(), Error> {
        let refs = self.refs(offset);
        if refs == 0 {
            return Err(Error::NoSuchSlot { offset });
        }
        self.set_refs(offset, refs.checked_add(1).ok_or(Error::TooManyRefs { offset })?);
        Ok(())
    }

    /// Drops a reference to the slot at `offset`, which holds `len` bytes.
    ///
    /// # Errors
    /// [`Error::NoSuchSlot`]: something was released twice, or never stored.
    /// [`Error::WrongLength`]: the slot has another size.
    pub fn release(&mut self, offset: u64, len: usize) -> Result<Released, Error> {
        let refs = self.refs(offset);
        let (number, slot) = self.locate(offset).ok_or(Error::NoSuchSlot { offset })?;
        if refs == 0 {
            return Err(Error::NoSuchSlot { offset });
        }
        if self.span(number).map(|span| span.class) != class_of(len) {
            return Err(Error::WrongLength { offset, len });
        }
        if refs > 1 {
            self.set_refs(offset, refs - 1);
            return Ok(Released { slot_freed: false, span_freed: None });
        }
        Ok(Released { slot_freed: true, span_freed: self.vacate(number, slot, len) })
    }

    /// Number of references to the slot at `offset`; 0 if nothing is stored there.
    pub fn refs(&self, offset: u64) -> u32 {
        let Some((number, slot)) = self.locate(offset) else { return 0 };
        let here = self.span(number).map_or(Some(0), |span| span.refs(slot));
        here.or_else(|| self.many.get(&offset).copied()).unwrap_or(0)
    }

    /// Registers one table entry of a former daemon: `len` bytes at `offset`.
    ///
    /// To be called once per entry, on a fresh index with at least the old file's length, before
    /// [`Self::finish_adoption`].
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Conflict`] or [`Error::TooManyRefs`] when the entry
    /// cannot be right; the page it belongs to is lost, the others are not affected.
    pub fn adopt(&mut self, offset: u64, len: usize) -> Result<(), Error> {
        let out_of_bounds = Error::OutOfBounds { offset, len, file_bytes: self.file_bytes };
        let class = class_of(len).ok_or(out_of_bounds)?;
        if offset / SPAN_STRIDE >= self.positions() {
            return Err(out_of_bounds);
        }
        let (number, within) = split(offset);
        let geometry = Geometry::of(class);
        let slot = within / geometry.slot_bytes;
        let fits = within.is_multiple_of(geometry.slot_bytes) && slot < geometry.slots;
        if !fits || self.span(number).is_some_and(|span| span.class != class) {
            return Err(Error::Conflict { offset, len });
        }
        self.adopting = true;
        match self.refs(offset) {
            0 => {
                self.open_at(number, class);
                self.occupy(number, slot as usize, len);
            }
            refs => {
                let refs = refs.checked_add(1).ok_or(Error::TooManyRefs { offset })?;
                self.set_refs(offset, refs);
            }
        }
        Ok(())
    }

    /// Ends the adoption; from here on [`Self::alloc`] works. Looks at every slot.
    ///
    /// Returns the parts of the file that hold nothing, down to single pages: the former daemon
    /// may have written there what it did not live to publish, so their memory should go back to
    /// the kernel, before the next call of [`Self::alloc`].
    pub fn finish_adoption(&mut self) -> Vec<Range<u64>> {
        self.adopting = false;
        let mut holes = Vec::new();
        for (position, span) in (0..).zip(&self.spans) {
            let live = span.as_ref().map_or(0, Span::live_pages);
            push_pages(&mut holes, position, !live);
        }
        let end = self.spans.len() as u64 * SPAN_STRIDE;
        push_range(&mut holes, end..self.positions() * SPAN_STRIDE);
        holes
    }

    /// Changes the cap. Memory above a lower cap stays until it is released.
    ///
    /// The file keeps its length, so a higher cap may not be reached in full.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Figures of the pool.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            bytes_spans: self.pages * PAGE,
            bytes_slots: self.bytes_slots,
            bytes_payload: self.bytes_payload,
            slots: self.slots,
            bytes_max: self.bytes_max,
        }
    }

    /// Memory of the index itself. That of the ordered sets is estimated: their nodes are at
    /// least half full. Looks at every slot size.
    pub fn index_bytes(&self) -> u64 {
        const NODES: usize = 2;
        let class_bytes = |class: &Class| {
            class.rooms.len() * size_of::<(Seat, u32)>()
                + class.victims.len() * size_of::<(Reverse<u16>, u32)>()
        };
        let sets = self.classes.iter().map(class_bytes).sum::<usize>()
            + self.unused.len() * size_of::<u32>()
            + self.many.len() * size_of::<(u64, u32)>();
        let fixed = size_of::<Self>()
            + self.classes.capacity() * size_of::<Class>()
            + self.spans.capacity() * size_of::<Option<Span>>();
        (fixed + NODES * sets) as u64 + self.ref_bytes
    }

    fn positions(&self) -> u64 {
        self.file_bytes / SPAN_STRIDE
    }

    fn span(&self, number: u32) -> Option<&Span> {
        self.spans.get(number as usize)?.as_ref()
    }

    fn span_mut(&mut self, number: u32) -> Option<&mut Span> {
        self.spans.get_mut(number as usize)?.as_mut()
    }

    /// Span and number of the slot that starts at `offset`, free or not.
    fn locate(&self, offset: u64) -> Option<(u32, usize)> {
        if offset >= OFFSETS_END {
            return None;
        }
        let (number, within) = split(offset);
        Some((number, self.span(number)?.slot_at(within)?))
    }

    /// A span with a slot of this class to hand out.
    fn find_room(&mut self, class: u8) -> Option<u32> {
        loop {
            let rooms = &self.classes[usize::from(class)].rooms;
            if let Some((seat, number)) = rooms.first().copied()
                && (seat == Seat::Hole || self.has_pages_for(number))
            {
                return Some(number);
            }
            // One span more than planned is needed, so one victim less is to be emptied.
            let victims = &mut self.classes[usize::from(class)].victims;
            match victims.pop_first() {
                Some((_, number)) => self.pardon(number),
                None => return self.open_span(class),
            }
        }
    }

    /// Whether the cap allows to use the lowest free slot of a span.
    fn has_pages_for(&self, number: u32) -> bool {
        self.span(number).is_some_and(|span| {
            let pages = span.geometry().pages_of(u32::from(span.lowest_free) + 1);
            let more = pages.saturating_sub(span.pages());
            more == 0 || self.pages + u64::from(more) <= self.bytes_max / PAGE
        })
    }

    /// Starts a span at the lowest position that holds none.
    fn open_span(&mut self, class: u8) -> Option<u32> {
        let number = self.unused.first().copied().unwrap_or(self.spans.len() as u32);
        // Whatever its size, the first slot of a span reaches one page.
        if self.pages >= self.bytes_max / PAGE || u64::from(number) >= self.positions() {
            return None;
        }
        self.open_at(number, class);
        Some(number)
    }

    /// Starts a span at a position if there is none. The caller takes a slot of it.
    fn open_at(&mut self, number: u32, class: u8) {
        let end = self.spans.len() as u32;
        if number >= end {
            self.unused.extend(end..number);
            self.spans.resize_with(number as usize + 1, || None);
        }
        self.unused.remove(&number);
        if let Some(place @ None) = self.spans.get_mut(number as usize) {
            let span = place.insert(Span::new(class));
            self.ref_bytes += span.slots() as u64;
        }
    }

    /// Gives a free slot its first reference.
    fn occupy(&mut self, number: u32, slot: usize, len: usize) {
        let Some(span) = self.spans.get_mut(number as usize).and_then(Option::as_mut) else {
            return;
        };
        let pages = u64::from(span.take(slot));
        let class = &mut self.classes[usize::from(span.class)];
        class.slots += 1;
        class.pages += pages;
        self.pages += pages;
        self.slots += 1;
        self.bytes_slots += u64::from(span.geometry().slot_bytes);
        self.bytes_payload += len as u64;
        self.reseat(number);
    }

    /// Takes the last reference of a slot away. Returns the memory of the span if it is empty.
    fn vacate(&mut self, number: u32, slot: usize, len: usize) -> Option<Range<u64>> {
        let span = self.spans.get_mut(number as usize)?.as_mut()?;
        span.give_back(slot);
        let empty = span.used == 0;
        self.classes[usize::from(span.class)].slots -= 1;
        self.slots -= 1;
        self.bytes_slots -= u64::from(span.geometry().slot_bytes);
        // The class was checked, the exact length cannot be.
        self.bytes_payload = self.bytes_payload.saturating_sub(len as u64);
        if !empty {
            self.reseat(number);
            return None;
        }
        let span = self.spans.get_mut(number as usize)?.take()?;
        let class = &mut self.classes[usize::from(span.class)];
        class.rooms.remove(&(span.seat, number));
        class.victims.remove(&(Reverse(span.victim_from), number));
        let pages = u64::from(span.pages());
        class.pages -= pages;
        self.pages -= pages;
        self.ref_bytes -= span.slots() as u64;
        self.unused.insert(number);
        let start = u64::from(number) * SPAN_STRIDE;
        Some(start..start + pages * PAGE)
    }

    /// Notes a span where it belongs after a change.
    fn reseat(&mut self, number: u32) {
        let Some(span) = self.spans.get_mut(number as usize).and_then(Option::as_mut) else {
            return;
        };
        let (old, new) = (span.seat, span.due_seat());
        if old == new {
            return;
        }
        span.seat = new;
        let rooms = &mut self.classes[usize::from(span.class)].rooms;
        if old != Seat::Nowhere {
            rooms.remove(&(old, number));
        }
        if new != Seat::Nowhere {
            rooms.insert((new, number));
        }
    }

    /// Stores the references of a used slot, at least one.
    fn set_refs(&mut self, offset: u64, refs: u32) {
        let Some((number, slot)) = self.locate(offset) else { return };
        let Some(span) = self.span_mut(number) else { return };
        let was_outside = span.refs(slot).is_none();
        match span.set_refs(slot, refs) {
            Counted::Outside => {
                self.many.insert(offset, refs);
            }
            Counted::Here if was_outside => {
                self.many.remove(&offset);
            }
            Counted::Here => {}
        }
    }

    /// A span that was noted as a victim is none any more.
    fn pardon(&mut self, number: u32) {
        if let Some(span) = self.span_mut(number) {
            span.victim_from = NO_VICTIM;
        }
        self.reseat(number);
    }
}

/// Span number and byte within the span.
fn split(offset: u64) -> (u32, u32) {
    ((offset / SPAN_STRIDE) as u32, (offset % SPAN_STRIDE) as u32)
}

/// Adds the pages of the span at a position whose bits are set.
fn push_pages(ranges: &mut Vec<Range<u64>>, position: u64, bits: u32) {
    let start = position * SPAN_STRIDE;
    for page in (0..SPAN_STRIDE / PAGE).filter(|page| bits >> page & 1 == 1) {
        push_range(ranges, start + page * PAGE..start + (page + 1) * PAGE);
    }
}

/// Adds a range above all others, joined to the last one where they touch.
fn push_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
