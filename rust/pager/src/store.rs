//! The pool as the engine uses it: the memfd's bytes and the index of its slots behind one lock.

use crate::address::Page;
use crate::codec::{Decoder, checksum};
use crate::error::{Error, Result};
use crate::page_table::{Entry, Stored};
use crate::pool::{PoolIndex, PoolStats, SPAN_BYTES};
use crate::sys::mapping::SharedMapping;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the pool's memfd; the number is the state format.
pub const MEMFD_NAME: &str = "agentzip:pool:1";

/// Bounded store of encoded pages, shared by all spaces.
#[derive(Debug)]
pub struct Store {
    bytes: SharedMapping,
    /// Guards slots and reference counts, not the bytes.  Taken after a space's lock, never before;
    /// nothing slower than a punched hole happens under it.
    index: Mutex<PoolIndex>,
    /// References are about to be counted from the tables; until then they are not kept.
    adopting: AtomicBool,
    warning: Option<String>,
}

impl Store {
    /// Make an empty pool of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The kernel's answer to making the memfd.
    pub fn create(bytes_max: u64) -> Result<Self> {
        let length = bytes_max.next_multiple_of(SPAN_BYTES) as usize;
        let bytes =
            SharedMapping::create(MEMFD_NAME, length).map_err(Error::os("making the pool"))?;
        Ok(Self::new(bytes, PoolIndex::new(bytes_max), false))
    }

    /// Map a pool that another engine left behind.  Its slots are adopted from the tables, then
    /// [`Store::finish_adoption`] makes it usable.
    ///
    /// # Errors
    /// The kernel's answer to mapping the memfd.
    pub fn take_over(descriptor: OwnedFd) -> Result<Self> {
        let bytes =
            SharedMapping::map(descriptor).map_err(Error::os("mapping the pool of a keeper"))?;
        // Slots may lie anywhere below the former cap; ours comes into force after the adoption.
        let index = PoolIndex::new(bytes.len() as u64);
        Ok(Self::new(bytes, index, true))
    }

    fn new(bytes: SharedMapping, index: PoolIndex, adopting: bool) -> Self {
        let warning = bytes.lock_on_touch().err().map(|cause| {
            format!("the pool cannot be locked in memory and may be swapped: {cause}")
        });
        Self { bytes, index: Mutex::new(index), adopting: AtomicBool::new(adopting), warning }
    }

    /// What an operator should know: safe to go on, but slower if the host swaps.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Store encoded bytes; `None` when the pool is at its cap.
    pub fn put(&self, bytes: &[u8]) -> Option<u64> {
        let offset = self.index.lock().alloc(bytes.len())?;
        self.bytes.write(offset, bytes).then_some(offset)
    }

    /// Decode a stored page and check it; `room` is for its encoded bytes.  False: it cannot be
    /// produced.
    #[must_use]
    pub fn get(
        &self,
        stored: &Stored,
        decoder: &mut Decoder,
        room: &mut Page,
        page: &mut Page,
    ) -> bool {
        let Some(encoded) = room.get_mut(..usize::from(stored.len)) else { return false };
        self.bytes.read(stored.offset, encoded)
            && decoder.decode(stored.codec, encoded, page).is_ok()
            && checksum(page) == stored.checksum
    }

    /// One more table refers to a slot.
    ///
    /// # Errors
    /// A bug: the slot is not in use.
    pub fn share(&self, stored: &Stored) -> Result<()> {
        if self.adopting.load(Ordering::Acquire) {
            return Ok(());
        }
        self.index.lock().add_ref(stored.offset).map_err(|e| Error::Internal(e.to_string()))
    }

    /// One table less refers to the slot of this entry, if it has one.
    pub fn release(&self, entry: &Entry) {
        let (Entry::Pooled(stored) | Entry::Kept(stored)) = entry else { return };
        self.release_slot(stored.offset);
    }

    /// One reference less to a slot.
    pub fn release_slot(&self, offset: u64) {
        if self.adopting.load(Ordering::Acquire) {
            return;
        }
        let mut index = self.index.lock();
        // An unknown slot would be a bug of the reference counts: the page it belonged to is
        // already out of the table, so nothing can be served from it; leave the slot alone.
        if let Ok(released) = index.release(offset)
            && let Some(span) = released.span_freed
        {
            self.bytes.punch(span.start, span.end - span.start);
        }
    }

    /// At takeover: a table entry refers to this slot.
    ///
    /// # Errors
    /// The entry contradicts another one.
    pub fn adopt(&self, stored: &Stored) -> Result<()> {
        self.index
            .lock()
            .adopt(stored.offset, usize::from(stored.len))
            .map_err(|e| Error::Internal(e.to_string()))
    }

    /// At takeover: every entry was adopted; `bytes_max` is the cap from now on, but never more
    /// than the memfd was made for.
    pub fn finish_adoption(&self, bytes_max: u64) {
        let mut index = self.index.lock();
        for hole in index.finish_adoption() {
            let end = hole.end.min(self.bytes.len() as u64);
            if hole.start < end {
                self.bytes.punch(hole.start, end - hole.start);
            }
        }
        index.set_bytes_max(bytes_max.min(self.bytes.len() as u64));
        self.adopting.store(false, Ordering::Release);
    }

    /// Figures of the slots.
    pub fn stats(&self) -> PoolStats {
        self.index.lock().stats()
    }

    /// Memory that the pool really takes.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes.resident_bytes()
    }
}
