//! The pool as the engine uses it: the memfd's bytes, the books on its slots, and what their
//! contents need to be decoded.
//!
//! A slot is referred to by page tables, and by deltas whose leader it holds.  The last one to let
//! go frees it; a freed slot is wiped, so that nothing of one tenant is left for another.

use crate::address::{PAGE_SIZE, Page};
use crate::blob::{HEAD_BYTES_MAX, Head, Leader};
use crate::codec::{CodecId, Decoder, checksum};
use crate::dedup::Dedup;
use crate::disk_tier::{DiskKit, DiskTier};
use crate::error::{Error, Result};
use crate::page_table::{Entry, Stored};
use crate::pool::{self, PoolIndex, PoolStats};
use crate::references::{Content, References};
use crate::shared::PageBuffer;
use crate::sys::mapping::SharedMapping;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the pool's memfd; the number is the state format.
pub const MEMFD_NAME: &str = "agentzip:pool:3";

/// Checksum of a page that is only known as somebody's leader.
pub const UNKNOWN: u64 = 0;

/// Bounded store of encoded pages, shared by all spaces.
#[derive(Debug)]
pub struct Store {
    bytes: SharedMapping,
    /// Guards slots and reference counts, not the bytes.  Taken after a space's lock, never before;
    /// nothing slower than a punched hole happens under it.
    books: Mutex<Books>,
    /// Dictionaries and layouts that slots name.
    pub references: References,
    /// The disk tier, if there is one.
    disk: Option<DiskTier>,
    /// References are about to be counted from the tables; until then they are not kept.
    adopting: AtomicBool,
    warning: Option<String>,
}

#[derive(Debug)]
struct Books {
    index: PoolIndex,
    /// `None` until somebody pages out.
    dedup: Option<Dedup>,
}

/// A page made small, not stored yet.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    /// How.
    pub codec: CodecId,
    /// What it needs to be decoded.
    pub head: Head,
    /// The bytes behind the head.
    pub frame: &'a [u8],
}

impl Encoded<'_> {
    /// Bytes that it takes in the pool, head included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.write(self.codec, &mut [0; HEAD_BYTES_MAX]) + self.frame.len()
    }

    /// Whether there are no bytes, which no encoder makes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What one thread needs to read stored pages; made once, so that reading allocates nothing.
pub struct Reader {
    decoder: Decoder,
    blob: Box<PageBuffer>,
    leader_blob: Box<PageBuffer>,
    prefix: Box<[u8; PAGE_SIZE * crate::blob::LEADERS_MAX]>,
    leaders: LeaderCache,
    /// Made for the first page that is on the disk.
    disk: Option<Box<DiskKit>>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    /// Read every leader anew from here on.
    pub fn forget_leaders(&mut self) {
        self.leaders.forget();
    }
}

impl Default for Reader {
    fn default() -> Self {
        let buffer = || Box::new(PageBuffer([0; PAGE_SIZE]));
        Self {
            decoder: Decoder::new(),
            blob: buffer(),
            leader_blob: buffer(),
            prefix: Box::new([0; PAGE_SIZE * crate::blob::LEADERS_MAX]),
            leaders: LeaderCache::default(),
            disk: None,
        }
    }
}

/// The leaders that a thread decoded last, direct-mapped by their place.
///
/// A slot may have been freed and used again since; a page made with such a leader fails its
/// checksum and is read again without the cache.
#[derive(Debug, Default)]
struct LeaderCache {
    /// Offset of the slot plus its length; 0 for none.  Empty until the first leader.
    keys: Vec<u64>,
    pages: Vec<Page>,
}

impl LeaderCache {
    const PAGES: usize = 256;

    fn key(leader: Leader) -> u64 {
        // Lengths are below the unit of offsets shifted left: no two slots share a key.
        leader.offset << 9 | u64::from(leader.len)
    }

    fn place(leader: Leader) -> usize {
        ((leader.offset >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % Self::PAGES
    }

    fn find(&self, leader: Leader) -> Option<&Page> {
        let place = Self::place(leader);
        (*self.keys.get(place)? == Self::key(leader)).then(|| &self.pages[place])
    }

    fn keep(&mut self, leader: Leader, page: &Page) {
        if self.keys.is_empty() {
            self.keys = vec![0; Self::PAGES];
            self.pages = vec![[0; PAGE_SIZE]; Self::PAGES];
        }
        let place = Self::place(leader);
        self.keys[place] = Self::key(leader);
        self.pages[place] = *page;
    }

    fn forget(&mut self) {
        self.keys.fill(0);
    }
}

impl Store {
    /// Make an empty pool of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The kernel's answer to making the memfd.
    pub fn create(bytes_max: u64, disk: Option<DiskTier>) -> Result<Self> {
        let length = pool::file_bytes(bytes_max) as usize;
        let bytes =
            SharedMapping::create(MEMFD_NAME, length).map_err(Error::os("making the pool"))?;
        Ok(Self::new(bytes, PoolIndex::new(bytes_max), References::default(), disk, false))
    }

    /// Map a pool that another engine left behind.  Its slots are adopted from the tables, then
    /// [`Store::finish_adoption`] makes it usable.
    ///
    /// # Errors
    /// The kernel's answer to mapping the memfd.
    pub fn take_over(
        descriptor: OwnedFd,
        references: References,
        disk: Option<DiskTier>,
    ) -> Result<Self> {
        let bytes =
            SharedMapping::map(descriptor).map_err(Error::os("mapping the pool of a keeper"))?;
        // Slots may lie anywhere below the former cap; ours comes into force after the adoption.
        let index = PoolIndex::for_file(bytes.len() as u64);
        Ok(Self::new(bytes, index, references, disk, true))
    }

    fn new(
        bytes: SharedMapping,
        index: PoolIndex,
        references: References,
        disk: Option<DiskTier>,
        adopt: bool,
    ) -> Self {
        let warning = bytes.lock_on_touch().err().map(|cause| {
            format!("the pool cannot be locked in memory and may be swapped: {cause}")
        });
        let books = Mutex::new(Books { index, dedup: None });
        Self { bytes, books, references, disk, adopting: AtomicBool::new(adopt), warning }
    }

    /// What an operator should know: safe to go on, but slower if the host swaps.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The disk tier.
    #[must_use]
    pub fn disk(&self) -> Option<&DiskTier> {
        self.disk.as_ref()
    }

    /// Store an encoded page of `domain`; `None` when the pool is at its cap.  The result comes
    /// with one reference.  The caller holds references to the leaders.
    pub fn put(&self, domain: u64, encoded: &Encoded<'_>, checksum: u64) -> Option<Stored> {
        let mut head = [0; HEAD_BYTES_MAX];
        let head_len = encoded.head.write(encoded.codec, &mut head);
        let len = head_len + encoded.frame.len();
        let mut books = self.books.lock();
        let offset = books.index.alloc(len)?;
        let stored = Stored { codec: encoded.codec, len: len as u16, offset, checksum };
        for leader in encoded.head.leaders() {
            // Cannot fail: the caller's reference keeps the slot in use.
            let _ = books.index.add_ref(leader.offset);
        }
        encoded.head.references().for_each(|id| self.references.retain(id));
        let written = self.bytes.write(offset, &head[..head_len])
            && self.bytes.write(offset + head_len as u64, encoded.frame);
        if !written {
            self.free(&mut books, &stored);
            return None;
        }
        if let Some(dedup) = books.dedup.as_mut().filter(|_| checksum != UNKNOWN) {
            dedup.insert(domain, &stored);
        }
        Some(stored)
    }

    /// The slot of `domain` that holds exactly this page, if it is one to `accept`, with a
    /// reference for the caller.
    pub fn find_same(
        &self,
        (domain, checksum): (u64, u64),
        page: &Page,
        reader: &mut Reader,
        room: &mut Page,
        accept: impl FnOnce(&Stored) -> bool,
    ) -> Option<Stored> {
        let stored = {
            let mut books = self.books.lock();
            let stored = books.dedup.as_ref()?.find(domain, checksum).filter(accept)?;
            self.add_ref(&mut books, &stored).ok()?;
            stored
        };
        if self.get(&stored, reader, room) && room == page {
            return Some(stored);
        }
        self.let_go(&stored);
        None
    }

    /// Decode a stored page and check it.  False: it cannot be produced.
    #[must_use]
    pub fn get(&self, stored: &Stored, reader: &mut Reader, page: &mut Page) -> bool {
        let sound = |page: &Page| checksum(page) == stored.checksum;
        if self.read(stored, reader, page) && sound(page) {
            return true;
        }
        // A cached leader may be of a slot that was used again since.
        if stored.codec != CodecId::DELTA {
            return false;
        }
        reader.forget_leaders();
        self.read(stored, reader, page) && sound(page)
    }

    fn read(&self, stored: &Stored, reader: &mut Reader, page: &mut Page) -> bool {
        if stored.codec == CodecId::DISK {
            return self.read_from_disk(stored, reader, page);
        }
        let len = usize::from(stored.len).min(PAGE_SIZE);
        if !self.bytes.read(stored.offset, &mut reader.blob.0[..len]) {
            return false;
        }
        let Some((head, start)) = Head::read(stored.codec, &reader.blob.0[..len]) else {
            return false;
        };
        if stored.codec == CodecId::DELTA {
            let mut count = 0;
            for leader in head.leaders() {
                if !self.read_leader(leader, reader, page) {
                    return false;
                }
                reader.prefix[count * PAGE_SIZE..(count + 1) * PAGE_SIZE].copy_from_slice(page);
                count += 1;
            }
            let (prefix, frame) = (&reader.prefix[..count * PAGE_SIZE], &reader.blob.0[start..len]);
            return reader.decoder.decode_delta(prefix, frame, page).is_ok()
                && self.denormalise(head.layout, page);
        }
        let frame = &reader.blob.0[start..len];
        self.decode(stored.codec, &head, frame, &mut reader.decoder, page)
            && self.denormalise(head.layout, page)
    }

    /// For those who may wait: page in, detach, background work.
    fn read_from_disk(&self, stored: &Stored, reader: &mut Reader, page: &mut Page) -> bool {
        if reader.disk.is_none() {
            reader.disk = DiskKit::new().ok().map(Box::new);
        }
        match (&self.disk, &mut reader.disk) {
            (Some(tier), Some(kit)) => tier.read(stored, kit, page).is_ok(),
            _ => false,
        }
    }

    /// The normalised page of a leader.
    pub fn read_leader(&self, leader: Leader, reader: &mut Reader, page: &mut Page) -> bool {
        if let Some(known) = reader.leaders.find(leader) {
            *page = *known;
            return true;
        }
        let len = usize::from(leader.len).min(PAGE_SIZE);
        if !self.bytes.read(leader.offset, &mut reader.leader_blob.0[..len]) {
            return false;
        }
        let Some((head, start)) = Head::read(CodecId::COLD, &reader.leader_blob.0[..len]) else {
            return false;
        };
        let frame = &reader.leader_blob.0[start..len];
        let read = self.decode(CodecId::COLD, &head, frame, &mut reader.decoder, page);
        if read {
            reader.leaders.keep(leader, page);
        }
        read
    }

    fn decode(
        &self,
        codec: CodecId,
        head: &Head,
        frame: &[u8],
        decoder: &mut Decoder,
        page: &mut Page,
    ) -> bool {
        match codec {
            CodecId::COLD if head.dictionary == 0 => {
                decoder.decode(CodecId::ZSTD, frame, page).is_ok()
            }
            CodecId::DICT | CodecId::COLD => {
                let decoded = self.references.with(head.dictionary, |reference| {
                    matches!(&reference.content, Content::Dictionary(dictionary)
                        if decoder.decode_dictionary(dictionary, frame, page).is_ok())
                });
                decoded.unwrap_or(false)
            }
            other => decoder.decode(other, frame, page).is_ok(),
        }
    }

    /// Swaps the words of a normalised page back; the swap is its own inverse.
    fn denormalise(&self, layout: u16, page: &mut Page) -> bool {
        if layout == 0 {
            return true;
        }
        let applied = self.references.with(layout, |reference| match &reference.content {
            Content::Layout(layout) => {
                layout.apply(page);
                true
            }
            Content::Dictionary(_) => false,
        });
        applied.unwrap_or(false)
    }

    /// The bytes of a slot as they are, for moving them; false if they are not inside the pool.
    #[must_use]
    pub fn read_blob(&self, stored: &Stored, blob: &mut Page) -> bool {
        let len = usize::from(stored.len).min(PAGE_SIZE);
        self.bytes.read(stored.offset, &mut blob[..len])
    }

    /// One more table refers to a slot.
    ///
    /// # Errors
    /// A bug: the slot is not in use.
    pub fn share(&self, stored: &Stored) -> Result<()> {
        if self.adopting.load(Ordering::Acquire) {
            return Ok(());
        }
        if stored.codec == CodecId::DISK {
            return self.some_disk()?.share(stored);
        }
        self.add_ref(&mut self.books.lock(), stored)
    }

    fn some_disk(&self) -> Result<&DiskTier> {
        self.disk.as_ref().ok_or_else(|| Error::Internal("there is no swap file".to_owned()))
    }

    fn add_ref(&self, books: &mut Books, stored: &Stored) -> Result<()> {
        books.index.add_ref(stored.offset).map_err(|error| Error::Internal(error.to_string()))
    }

    /// References to a slot.
    #[must_use]
    pub fn refs(&self, stored: &Stored) -> u32 {
        self.books.lock().index.refs(stored.offset)
    }

    /// A table of `domain` does not refer to the slot of this entry any more, if it has one.
    pub fn release(&self, domain: u64, entry: &Entry) {
        if let Entry::Pooled(stored) | Entry::Kept(stored) = entry {
            self.release_stored(domain, stored);
        }
    }

    /// A table of `domain` does not refer to a slot any more.
    pub fn release_stored(&self, domain: u64, stored: &Stored) {
        if self.adopting.load(Ordering::Acquire) {
            return;
        }
        if stored.codec == CodecId::DISK {
            return self.let_go(stored);
        }
        let mut books = self.books.lock();
        if let Some(dedup) = &mut books.dedup {
            dedup.remove(domain, stored);
        }
        self.free(&mut books, stored);
    }

    /// Give up a reference that no table holds.
    pub fn let_go(&self, stored: &Stored) {
        match &self.disk {
            Some(tier) if stored.codec == CodecId::DISK => tier.release(stored),
            _ if stored.codec == CodecId::DISK => {}
            _ => self.free(&mut self.books.lock(), stored),
        }
    }

    /// One reference less; with the last one the slot is freed, and what it names is let go of.
    fn free(&self, books: &mut Books, stored: &Stored) {
        let mut head = [0; HEAD_BYTES_MAX];
        let head_len = usize::from(stored.len).min(HEAD_BYTES_MAX);
        let head = self
            .bytes
            .read(stored.offset, &mut head[..head_len])
            .then(|| Head::read(stored.codec, &head[..head_len]))
            .flatten();
        // An unknown slot would be a bug of the reference counts: the page it belonged to is
        // already out of the table, so nothing can be served from it; leave the slot alone.
        let Ok(released) = books.index.release(stored.offset, usize::from(stored.len)) else {
            return;
        };
        if !released.slot_freed {
            return;
        }
        match released.span_freed {
            Some(span) => self.bytes.punch(span.start, span.end - span.start),
            None => self.bytes.wipe(stored.offset, usize::from(stored.len)),
        }
        let Some((head, _)) = head else { return };
        head.references().for_each(|id| self.references.release(id));
        for leader in head.leaders() {
            // Leaders have no leaders: this goes one level deep.
            self.free(books, &leader.stored());
        }
    }

    /// Whether the contents of slots are being remembered.
    #[must_use]
    pub fn knows_contents(&self) -> bool {
        self.books.lock().dedup.is_some()
    }

    /// Begin to remember the contents of slots; what is stored already is noted by
    /// [`Self::note_contents`].
    pub fn start_dedup(&self) {
        self.books.lock().dedup.get_or_insert_with(Dedup::default);
    }

    /// Note slots of `domain` that a table refers to; the caller holds the lock of its space.
    pub fn note_contents(&self, domain: u64, slots: impl Iterator<Item = Stored>) {
        let mut books = self.books.lock();
        if let Some(dedup) = &mut books.dedup {
            slots.for_each(|stored| dedup.insert(domain, &stored));
        }
    }

    /// Forget the contents of slots; costs density until they are noted again, nothing else.
    pub fn stop_dedup(&self) {
        self.books.lock().dedup = None;
    }

    /// At takeover: a table entry refers to this slot.
    ///
    /// # Errors
    /// The entry contradicts another one.
    pub fn adopt(&self, stored: &Stored) -> Result<()> {
        if stored.codec == CodecId::DISK {
            return self.some_disk()?.adopt(stored);
        }
        let mut books = self.books.lock();
        self.adopt_slot(&mut books, stored)
    }

    fn adopt_slot(&self, books: &mut Books, stored: &Stored) -> Result<()> {
        books
            .index
            .adopt(stored.offset, usize::from(stored.len))
            .map_err(|error| Error::Internal(error.to_string()))?;
        if books.index.refs(stored.offset) > 1 {
            return Ok(());
        }
        let mut bytes = [0; HEAD_BYTES_MAX];
        let len = usize::from(stored.len).min(HEAD_BYTES_MAX);
        let read = self.bytes.read(stored.offset, &mut bytes[..len]);
        // What cannot be read cannot be decoded either: its page is found lost when it is touched.
        let head = read.then(|| Head::read(stored.codec, &bytes[..len])).flatten();
        let Some((head, _)) = head else { return Ok(()) };
        head.references().for_each(|id| self.references.retain(id));
        for leader in head.leaders() {
            self.adopt_slot(books, &leader.stored())?;
        }
        Ok(())
    }

    /// At takeover: every entry was adopted; `bytes_max` is the cap from now on, but never more
    /// than the memfd was made for.
    pub fn finish_adoption(&self, bytes_max: u64) {
        let mut books = self.books.lock();
        let holes = books.index.finish_adoption();
        self.punch_all(holes);
        // A cap above what the memfd was made for is bounded by the memfd.
        books.index.set_bytes_max(bytes_max);
        self.adopting.store(false, Ordering::Release);
    }

    fn punch_all(&self, holes: impl IntoIterator<Item = std::ops::Range<u64>>) {
        for hole in holes {
            let end = hole.end.min(self.bytes.len() as u64);
            if hole.start < end {
                self.bytes.punch(hole.start, end - hole.start);
            }
        }
    }

    /// Choose the spans to be emptied; returns how many slots are in them.
    pub fn begin_compaction(&self) -> u64 {
        self.books.lock().index.plan_compaction().slots
    }

    /// Whether a slot is in a span that is being emptied.
    #[must_use]
    pub fn is_victim(&self, offset: u64) -> bool {
        self.books.lock().index.is_victim(offset)
    }

    /// End the compaction: memory that holds nothing any more goes back to the host.
    pub fn end_compaction(&self) {
        // Under the lock: nobody may store anything in a hole before it is punched.
        let mut books = self.books.lock();
        let holes = books.index.end_compaction();
        self.punch_all(holes);
    }

    /// Figures of the slots.
    pub fn stats(&self) -> PoolStats {
        self.books.lock().index.stats()
    }

    /// Memory of the books and of what finds equal pages.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let books = self.books.lock();
        let dedup = books.dedup.as_ref().map_or(0, Dedup::memory_bytes);
        books.index.index_bytes() + dedup
    }

    /// Memory that the pool really takes.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes.resident_bytes()
    }
}
