//! What stored pages need beside themselves to be decoded: dictionaries and address layouts.
//!
//! Each lies in a sealed memfd of its own, which the keeper shares like every descriptor: a page
//! encoded with a dictionary is worth nothing without it, so it must outlive a kill.  Nobody can
//! change it once it is sealed; that is what lets a decoder use it in place.
//!
//! A reference lives as long as a slot of the pool names it, somebody holds it, or it is still
//! offered for new pages.

use crate::codec::DecodingDictionary;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::sys::sealed::SealedBytes;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Name of a reference's memfd; the number is the state format.
pub const MEMFD_NAME: &str = "agentzip:reference:3";
/// "AgentZip" as a number, as in a page table.
const MAGIC: u64 = 0x7069_5A74_6E65_6741;
const HEADER_BYTES: usize = 128;
const NAME_BYTES: usize = 80;
const KIND_DICTIONARY: u16 = 1;
const KIND_LAYOUT: u16 = 2;

/// What a reference is.
pub enum Content {
    /// For frames of codecs DICT and COLD.
    Dictionary(DecodingDictionary),
    /// For normalised pages.
    Layout(Layout),
}

/// One dictionary or layout.
pub struct Reference {
    /// Its number in blobs; never 0.
    pub id: u16,
    /// What people call it.
    pub name: String,
    /// Trust domain whose pages made it; 0 for none.
    pub domain: u64,
    /// The thing itself.
    pub content: Content,
    bytes: Arc<SealedBytes>,
    /// Slots of the pool that name it.
    uses: AtomicU64,
    /// Not offered for new pages any more.
    dropped: AtomicBool,
}

impl std::fmt::Debug for Reference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the bytes: they are pieces of somebody's memory.
        formatter.debug_struct("Reference").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Reference {
    /// Its bytes without the header.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.as_ref().as_ref()[HEADER_BYTES..]
    }

    /// The sealed memory that holds [`Self::bytes`].
    #[must_use]
    pub fn memory(&self) -> ContentBytes {
        ContentBytes(Arc::clone(&self.bytes))
    }

    /// Slots of the pool that name it.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Acquire)
    }

    /// Whether it is not offered any more.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Offer it no more.
    pub fn retire(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    /// Whether it is a dictionary.
    #[must_use]
    pub fn is_dictionary(&self) -> bool {
        matches!(self.content, Content::Dictionary(_))
    }

    /// Memory it takes: the memfd and what was made from it.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let made = match &self.content {
            Content::Dictionary(dictionary) => dictionary.memory_bytes(),
            Content::Layout(layout) => layout.memory_bytes(),
        };
        (self.bytes.as_ref().as_ref().len().next_multiple_of(4096) + made) as u64
    }
}

/// Content of a reference as bytes that somebody may own.
#[derive(Clone, Debug)]
pub struct ContentBytes(Arc<SealedBytes>);

impl AsRef<[u8]> for ContentBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0.as_ref().as_ref()[HEADER_BYTES..]
    }
}

/// All references of an engine.
#[derive(Debug, Default)]
pub struct References {
    /// Fault threads read this list: what takes long happens before it is locked for a change.
    all: RwLock<BTreeMap<u16, Arc<Reference>>>,
    /// One is made at a time; the number given out last.  Numbers are used again as late as can be.
    last_id: Mutex<u16>,
}

impl References {
    /// A reference by number.
    #[must_use]
    pub fn get(&self, id: u16) -> Option<Arc<Reference>> {
        self.all.read().get(&id).cloned()
    }

    /// Lends a reference without counting: for the fault path.
    pub fn with<T>(&self, id: u16, use_it: impl FnOnce(&Reference) -> T) -> Option<T> {
        self.all.read().get(&id).map(|reference| use_it(reference))
    }

    /// All of them, by number.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Reference>> {
        self.all.read().values().cloned().collect()
    }

    /// Keeps a dictionary.  Bytes that are here already, of the same domain, are not kept twice.
    ///
    /// # Errors
    /// The bytes are no dictionary, all numbers are taken, or no memfd can be made.
    pub fn add_dictionary(&self, bytes: &[u8], name: &str, domain: u64) -> Result<Arc<Reference>> {
        self.add(KIND_DICTIONARY, bytes, name, domain)
    }

    /// Keeps a layout until the last page that was normalised with it is gone.
    ///
    /// # Errors
    /// As [`Self::add_dictionary`].
    pub fn add_layout(&self, layout: &Layout, domain: u64) -> Result<Arc<Reference>> {
        let reference = self.add(KIND_LAYOUT, &layout.to_bytes(), "layout", domain)?;
        reference.retire();
        Ok(reference)
    }

    fn add(&self, kind: u16, bytes: &[u8], name: &str, domain: u64) -> Result<Arc<Reference>> {
        let mut last_id = self.last_id.lock();
        let same = |known: &&Arc<Reference>| {
            known.is_dictionary() == (kind == KIND_DICTIONARY)
                && known.domain == domain
                && !known.is_dropped()
                && known.bytes() == bytes
        };
        if let Some(known) = self.list().iter().find(same) {
            return Ok(Arc::clone(known));
        }
        let id = self
            .free_id(*last_id)
            .ok_or_else(|| Error::Internal("65535 dictionaries are in use".to_owned()))?;
        *last_id = id;
        let whole = [&header(kind, id, domain, name, bytes), bytes].concat();
        let sealed = SealedBytes::create(MEMFD_NAME, &whole)
            .map_err(Error::os("making a dictionary's memory"))?;
        let reference = Arc::new(open(sealed)?.ok_or_else(|| {
            Error::Internal("a dictionary just written cannot be read".to_owned())
        })?);
        self.all.write().insert(id, Arc::clone(&reference));
        Ok(reference)
    }

    /// The first number after `last` that nothing has.
    fn free_id(&self, last: u16) -> Option<u16> {
        let all = self.all.read();
        let after = (last..u16::MAX).map(|id| id + 1);
        after.chain(1..=last).find(|id| !all.contains_key(id))
    }

    /// Takes a reference that another engine left behind.  One that was never completed is dropped.
    ///
    /// # Errors
    /// It is complete but damaged: pages would be lost, so nothing is served.
    pub fn take_over(&self, descriptor: OwnedFd) -> Result<()> {
        let Ok(sealed) = SealedBytes::map(descriptor) else { return Ok(()) };
        if let Some(reference) = open(sealed)? {
            let mut last_id = self.last_id.lock();
            *last_id = (*last_id).max(reference.id);
            self.all.write().insert(reference.id, Arc::new(reference));
        }
        Ok(())
    }

    /// A slot names a reference.
    pub fn retain(&self, id: u16) {
        self.with(id, |reference| reference.uses.fetch_add(1, Ordering::AcqRel));
    }

    /// A slot that named a reference was freed.
    pub fn release(&self, id: u16) {
        self.with(id, |reference| reference.uses.fetch_sub(1, Ordering::AcqRel));
    }

    /// Gives back what nobody needs any more.
    pub fn collect(&self) {
        // The list itself holds one count each.
        let idle = |known: &Arc<Reference>| {
            known.is_dropped() && known.uses() == 0 && Arc::strong_count(known) == 1
        };
        if self.all.read().values().any(idle) {
            self.all.write().retain(|_, known| !idle(known));
        }
    }

    /// Memory of all.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.all.read().values().map(|reference| reference.memory_bytes()).sum()
    }
}

fn header(kind: u16, id: u16, domain: u64, name: &str, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..10].copy_from_slice(&kind.to_le_bytes());
    header[10..12].copy_from_slice(&id.to_le_bytes());
    header[16..24].copy_from_slice(&domain.to_le_bytes());
    header[24..32].copy_from_slice(&xxh3_64(bytes).to_le_bytes());
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    header[32..32 + end].copy_from_slice(&name.as_bytes()[..end]);
    header
}

/// Reads the header and makes the thing; `None` if it was never written completely.
fn open(sealed: SealedBytes) -> Result<Option<Reference>> {
    let bytes = sealed.as_ref();
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let word = |at: usize| head[at..at + 8].first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
    if word(0) != MAGIC {
        return Ok(None);
    }
    let damaged = |what: String| Error::Internal(format!("a dictionary is damaged: {what}"));
    if xxh3_64(&bytes[HEADER_BYTES..]) != word(24) {
        return Err(damaged("its checksum does not match".to_owned()));
    }
    let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let name = head[32..32 + NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    let (kind, id, domain) = (number(8), number(10), word(16));
    let bytes = Arc::new(sealed);
    let owner = ContentBytes(Arc::clone(&bytes));
    let content = match kind {
        KIND_DICTIONARY => {
            let made = DecodingDictionary::new(Arc::new(owner));
            Content::Dictionary(made.map_err(|error| damaged(error.to_string()))?)
        }
        KIND_LAYOUT => {
            let made = Layout::from_bytes(owner.as_ref());
            Content::Layout(made.map_err(|error| damaged(error.to_string()))?)
        }
        other => return Err(damaged(format!("unknown kind {other}"))),
    };
    let (uses, dropped) = (AtomicU64::new(0), AtomicBool::new(kind == KIND_LAYOUT));
    Ok(Some(Reference { id, name, domain, content, bytes, uses, dropped }))
}
