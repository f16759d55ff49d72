//! Which parts of the pool are taken, and how often each stored page is referenced.
//!
//! Only the bookkeeping: the bytes lie in a memfd that somebody else writes. Nothing here is
//! persistent either. The tables of the targets are the truth; a new daemon reads them and
//! [`adopts`](PoolIndex::adopt) every entry, so that a kill can leak nothing.
//!
//! The pool is cut into spans of 32 KiB, each holding slots of one size. An emptied span goes
//! back to the kernel at once and may come back with another slot size, which is what keeps the
//! pool from ossifying when the mix of lengths changes. Allocation prefers the lowest partially
//! used span, so that the higher ones drain.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::address::PAGE_SIZE;

#[cfg(test)]
mod tests;

/// Size of a span in bytes.
pub const SPAN_BYTES: u64 = 32 * 1024;
/// Every slot starts at a multiple of this.
pub const SLOT_UNIT: u64 = 16;

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
    /// The number of references does not fit its counter.
    #[error("too many references to the pool slot at offset {offset:#x}")]
    TooManyRefs {
        /// Byte offset of the slot.
        offset: u64,
    },
    /// An adopted entry lies outside the pool or has an impossible length.
    #[error("stored page outside the pool: {len} bytes at offset {offset:#x}, cap {bytes_max}")]
    OutOfBounds {
        /// Byte offset of the entry.
        offset: u64,
        /// Encoded length of the entry.
        len: usize,
        /// Size of the pool.
        bytes_max: u64,
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
    /// Memory taken: all spans with at least one slot in use.
    pub bytes_spans: u64,
    /// Slots in use, each at its full size. The rest of `bytes_spans` is free or does not divide.
    pub bytes_slots: u64,
    /// Number of slots in use.
    pub slots: u64,
    /// The cap for `bytes_spans`.
    pub bytes_max: u64,
}

/// One span in use.
#[derive(Debug)]
struct Span {
    slot_bytes: u32,
    used: u32,
    /// References per slot; 0 means free.
    refs: Box<[u32]>,
    /// No slot below this one is free. Saves looking from the start every time.
    maybe_free: u32,
}

impl Span {
    fn new(slot_bytes: u64) -> Self {
        let slots = (SPAN_BYTES / slot_bytes) as usize;
        Self { slot_bytes: slot_bytes as u32, used: 0, refs: vec![0; slots].into(), maybe_free: 0 }
    }

    fn is_full(&self) -> bool {
        self.used as usize == self.refs.len()
    }

    /// Takes the lowest free slot.
    fn take(&mut self) -> Option<u32> {
        let from = self.maybe_free as usize;
        let slot = from + self.refs.get(from..)?.iter().position(|refs| *refs == 0)?;
        self.refs[slot] = 1;
        self.used += 1;
        self.maybe_free = slot as u32 + 1;
        Some(slot as u32)
    }
}

/// Allocator and reference counts of one pool.
#[derive(Debug)]
pub struct PoolIndex {
    bytes_max: u64,
    /// By position in the pool; `None` holds no memory.
    spans: Vec<Option<Span>>,
    /// Positions of the `None`s.
    unused: BTreeSet<u32>,
    /// By slots per span: spans with both used and free slots.
    partial: Vec<BTreeSet<u32>>,
    spans_used: u64,
    bytes_slots: u64,
    slots: u64,
    adopting: bool,
}

impl PoolIndex {
    /// An empty pool that takes at most `bytes_max` bytes, rounded down to whole spans.
    pub fn new(bytes_max: u64) -> Self {
        let classes = slots_per_span(SLOT_UNIT) as usize + 1;
        Self {
            bytes_max,
            spans: Vec::new(),
            unused: BTreeSet::new(),
            partial: vec![BTreeSet::new(); classes],
            spans_used: 0,
            bytes_slots: 0,
            slots: 0,
            adopting: false,
        }
    }

    /// Finds room for `len` bytes and returns its offset, with one reference.
    ///
    /// `None` when that would pass the cap, when `len` is not between 1 and 4096, or while the
    /// adoption of a former pool is not finished.
    pub fn alloc(&mut self, len: usize) -> Option<u64> {
        let slot_bytes = slot_bytes(len)?;
        if self.adopting {
            return None;
        }
        let class = slots_per_span(slot_bytes) as usize;
        let number = match self.partial[class].first() {
            Some(number) => *number,
            None => self.open_span(slot_bytes)?,
        };
        let span = self.spans.get_mut(number as usize)?.as_mut()?;
        let slot = span.take()?;
        if span.is_full() {
            self.partial[class].remove(&number);
        }
        self.slots += 1;
        self.bytes_slots += slot_bytes;
        Some(u64::from(number) * SPAN_BYTES + u64::from(slot) * slot_bytes)
    }

    /// Adds a reference to the slot at `offset`.
    ///
    /// # Errors
    /// [`Error::NoSuchSlot`], [`Error::TooManyRefs`].
    pub fn add_ref(&mut self, offset: u64) -> Result<(), Error> {
        let (_, span, slot) = self.locate(offset).ok_or(Error::NoSuchSlot { offset })?;
        let refs = &mut span.refs[slot];
        *refs = refs.checked_add(1).ok_or(Error::TooManyRefs { offset })?;
        Ok(())
    }

    /// Drops a reference to the slot at `offset`.
    ///
    /// # Errors
    /// [`Error::NoSuchSlot`]: something was released twice, or never stored.
    pub fn release(&mut self, offset: u64) -> Result<Released, Error> {
        let (number, span, slot) = self.locate(offset).ok_or(Error::NoSuchSlot { offset })?;
        span.refs[slot] -= 1;
        if span.refs[slot] > 0 {
            return Ok(Released { slot_freed: false, span_freed: None });
        }
        span.used -= 1;
        span.maybe_free = span.maybe_free.min(slot as u32);
        let (class, empty) = (span.refs.len(), span.used == 0);
        let slot_bytes = u64::from(span.slot_bytes);
        self.slots -= 1;
        self.bytes_slots -= slot_bytes;
        if !empty {
            self.partial[class].insert(number);
            return Ok(Released { slot_freed: true, span_freed: None });
        }
        self.partial[class].remove(&number);
        self.spans[number as usize] = None;
        self.unused.insert(number);
        self.spans_used -= 1;
        let start = u64::from(number) * SPAN_BYTES;
        Ok(Released { slot_freed: true, span_freed: Some(start..start + SPAN_BYTES) })
    }

    /// Number of references to the slot at `offset`; 0 if nothing is stored there.
    pub fn refs(&self, offset: u64) -> u32 {
        let number = (offset / SPAN_BYTES) as usize;
        let span = self.spans.get(number).and_then(Option::as_ref);
        span.and_then(|span| span.refs.get(slot_index(span, offset)?)).copied().unwrap_or(0)
    }

    /// Registers one table entry of a former daemon: `len` bytes at `offset`.
    ///
    /// To be called once per entry, on a fresh index with at least the old size, before
    /// [`Self::finish_adoption`].
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Conflict`] or [`Error::TooManyRefs`] when the entry
    /// cannot be right; the page it belongs to is lost, the others are not affected.
    pub fn adopt(&mut self, offset: u64, len: usize) -> Result<(), Error> {
        let bytes_max = self.bytes_max;
        let out_of_bounds = Error::OutOfBounds { offset, len, bytes_max };
        let conflict = Error::Conflict { offset, len };
        let slot_bytes = slot_bytes(len).ok_or(out_of_bounds)?;
        let number = offset / SPAN_BYTES;
        if number >= self.spans_max() {
            return Err(out_of_bounds);
        }
        let slot = (offset % SPAN_BYTES) / slot_bytes;
        if offset % SPAN_BYTES != slot * slot_bytes || slot >= slots_per_span(slot_bytes) {
            return Err(conflict);
        }
        let known = self.spans.get(number as usize).and_then(Option::as_ref);
        if known.is_some_and(|span| u64::from(span.slot_bytes) != slot_bytes) {
            return Err(conflict);
        }
        self.adopting = true;
        let span = self.span_at(number as u32, slot_bytes);
        let refs = &mut span.refs[slot as usize];
        *refs = refs.checked_add(1).ok_or(Error::TooManyRefs { offset })?;
        if *refs > 1 {
            return Ok(());
        }
        span.used += 1;
        let (class, full) = (span.refs.len(), span.is_full());
        self.slots += 1;
        self.bytes_slots += slot_bytes;
        if full {
            self.partial[class].remove(&(number as u32));
        } else {
            self.partial[class].insert(number as u32);
        }
        Ok(())
    }

    /// Ends the adoption; from here on [`Self::alloc`] works.
    ///
    /// Returns the parts of the pool that hold nothing: the former daemon may have written pages
    /// there that it did not live to publish, so their memory should go back to the kernel.
    pub fn finish_adoption(&mut self) -> Vec<Range<u64>> {
        self.adopting = false;
        let mut holes: Vec<Range<u64>> = Vec::new();
        let beyond = self.spans.len() as u64..self.spans_max();
        for number in self.unused.iter().map(|number| u64::from(*number)).chain(beyond) {
            let start = number * SPAN_BYTES;
            match holes.last_mut() {
                Some(hole) if hole.end == start => hole.end = start + SPAN_BYTES,
                _ => holes.push(start..start + SPAN_BYTES),
            }
        }
        holes
    }

    /// Changes the cap. Spans above a lower cap stay until they are empty.
    ///
    /// Offsets stay below the highest cap ever set, which is how large the memfd has to be.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Figures of the pool.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            bytes_spans: self.spans_used * SPAN_BYTES,
            bytes_slots: self.bytes_slots,
            slots: self.slots,
            bytes_max: self.bytes_max,
        }
    }

    fn spans_max(&self) -> u64 {
        (self.bytes_max / SPAN_BYTES).min(u64::from(u32::MAX))
    }

    /// Starts a span at the lowest position that holds none.
    fn open_span(&mut self, slot_bytes: u64) -> Option<u32> {
        if self.spans_used >= self.spans_max() {
            return None;
        }
        let number = self.unused.first().copied().unwrap_or(self.spans.len() as u32);
        self.span_at(number, slot_bytes);
        self.partial[slots_per_span(slot_bytes) as usize].insert(number);
        Some(number)
    }

    /// The span at a position, which is started there if there is none.
    fn span_at(&mut self, number: u32, slot_bytes: u64) -> &mut Span {
        let end = self.spans.len() as u32;
        if number >= end {
            self.unused.extend(end..number);
            self.spans.resize_with(number as usize + 1, || None);
        }
        self.unused.remove(&number);
        let spans_used = &mut self.spans_used;
        self.spans[number as usize].get_or_insert_with(|| {
            *spans_used += 1;
            Span::new(slot_bytes)
        })
    }

    /// Span number, span and slot number of a slot in use.
    fn locate(&mut self, offset: u64) -> Option<(u32, &mut Span, usize)> {
        let number = offset / SPAN_BYTES;
        let span = self.spans.get_mut(number as usize)?.as_mut()?;
        let slot = slot_index(span, offset)?;
        (span.refs[slot] > 0).then_some((number as u32, span, slot))
    }
}

/// The slot of `span` that starts exactly at `offset`.
fn slot_index(span: &Span, offset: u64) -> Option<usize> {
    let (within, slot_bytes) = (offset % SPAN_BYTES, u64::from(span.slot_bytes));
    let slot = (within / slot_bytes) as usize;
    (within.is_multiple_of(slot_bytes) && slot < span.refs.len()).then_some(slot)
}

/// Size of the slot for `len` bytes.
///
/// `len` goes up to the next multiple of 16, and from there to the largest size of which equally
/// many fit into a span. That costs no memory and leaves 82 sizes instead of 256, hence fewer
/// partially used spans.
fn slot_bytes(len: usize) -> Option<u64> {
    if len == 0 || len > PAGE_SIZE {
        return None;
    }
    let slots = slots_per_span((len as u64).next_multiple_of(SLOT_UNIT));
    Some(SPAN_BYTES / slots / SLOT_UNIT * SLOT_UNIT)
}

const fn slots_per_span(slot_bytes: u64) -> u64 {
    SPAN_BYTES / slot_bytes
}
