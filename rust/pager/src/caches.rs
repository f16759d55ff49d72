//! What makes encoding denser or faster and can be made again at any time.
//!
//! Leaders found by content, passes that were interrupted, dictionaries prepared for encoding, the
//! contents of slots.  All of it can be dropped at any moment; it counts as the pager's own memory.

use crate::address::{PAGES_END, PageNumber};
use crate::codec::{CodecId, EncodingDictionary, Preset};
use crate::error::{Error, Result};
use crate::leaders::Leaders;
use crate::page_table::{Entry, Stored};
use crate::recode::Pass;
use crate::references::Reference;
use crate::shared::Shared;
use crate::space::Space;
use crate::store::Reader;
use crate::sys::foreign;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Entries noted under a space's lock at a time: some 100 us.
const BATCH_ENTRIES: usize = 2048;

/// A dictionary prepared for encoding.
pub type Prepared = Arc<EncodingDictionary>;

/// A prepared dictionary and which one it was made from.
type Known = (Weak<Reference>, Prepared);

/// The caches of an engine.
#[derive(Default)]
pub struct Caches {
    /// Leaders by space.
    pub leaders: Mutex<HashMap<u64, Arc<Leaders>>>,
    /// Interrupted passes by space.
    pub passes: Mutex<HashMap<u64, Pass>>,
    /// Dictionaries prepared for encoding, by number, and which ones: numbers are given again.
    compiled: Mutex<HashMap<(u16, Preset), Known>>,
    /// One thread at a time notes what is stored.
    noting: Mutex<()>,
}

impl std::fmt::Debug for Caches {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Caches").field("bytes", &self.memory_bytes()).finish()
    }
}

impl Caches {
    /// A dictionary prepared for encoding at a preset's level.
    ///
    /// # Errors
    /// The library has no memory for it.
    pub fn compile(&self, reference: &Arc<Reference>, preset: Preset) -> Result<Prepared> {
        let key = (reference.id, preset);
        if let Some((of, known)) = self.compiled.lock().get(&key)
            && std::ptr::eq(of.as_ptr(), Arc::as_ptr(reference))
        {
            return Ok(Arc::clone(known));
        }
        let made = EncodingDictionary::new(Arc::new(reference.memory()), preset)
            .map_err(|error| Error::Internal(error.to_string()))?;
        let made = Arc::new(made);
        self.compiled.lock().insert(key, (Arc::downgrade(reference), Arc::clone(&made)));
        Ok(made)
    }

    /// The leaders of a space that may lead another's pages.
    pub fn leaders_of(&self, shared: &Shared, space: &Space, reader: &mut Reader) -> Arc<Leaders> {
        if let Some(known) = self.leaders.lock().get(&space.id()) {
            return Arc::clone(known);
        }
        let made = Arc::new(Leaders::of(space, &shared.store, reader));
        self.leaders.lock().insert(space.id(), Arc::clone(&made));
        made
    }

    /// Begin to know what every slot holds, unless it is known already.
    pub fn remember_contents(&self, shared: &Shared) {
        let _one = self.noting.lock();
        if !shared.settings.deduplicate || shared.store.knows_contents() {
            return;
        }
        shared.store.start_dedup();
        for space in shared.all_spaces() {
            let mut next = Some(PageNumber(0));
            while let Some(start) = next {
                let mut entries = Vec::with_capacity(BATCH_ENTRIES);
                let _core = space.core.lock();
                let rest = start..PageNumber(PAGES_END);
                next = space.table.collect_range(rest, BATCH_ENTRIES, &mut entries);
                let slots = entries.iter().filter_map(|(_, entry)| stored_of(entry));
                shared.store.note_contents(space.header.domain, slots);
            }
        }
    }

    /// A space is gone: what was found in it holds slots that nobody else needs.
    pub fn forget(&self, id: u64) {
        self.leaders.lock().remove(&id);
        self.passes.lock().remove(&id);
    }

    /// Drop everything.
    pub fn release(&self, shared: &Shared) {
        self.leaders.lock().clear();
        self.passes.lock().clear();
        self.compiled.lock().clear();
        shared.store.stop_dedup();
        shared.store.references.collect();
        // Background work leaves the allocator with memory of many threads.
        foreign::trim_heap();
    }

    /// Memory that they take.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let leaders: u64 = self.leaders.lock().values().map(|known| known.memory_bytes()).sum();
        let passes: u64 = self.passes.lock().values().map(Pass::memory_bytes).sum();
        let compiled = self.compiled.lock();
        let compiled: usize = compiled.values().map(|(_, known)| known.memory_bytes()).sum();
        leaders + passes + compiled as u64
    }
}

fn stored_of(entry: &Entry) -> Option<Stored> {
    match entry {
        Entry::Pooled(stored) | Entry::Kept(stored) => {
            Some(*stored).filter(|stored| stored.codec != CodecId::DISK)
        }
        _ => None,
    }
}
