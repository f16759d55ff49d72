//! Stored pages that others may be encoded as a difference to.
//!
//! Only pages that are encoded independently lead, so reading a delta never goes deeper than one
//! level.  While a page is listed here its slot is held: the list never names a slot that was freed
//! and used again, perhaps by another tenant.  The list is rebuilt from the page tables whenever it
//! is needed; nothing of it is persistent.

use crate::address::{PAGE_SIZE, PAGES_END, Page, PageNumber};
use crate::blob::Leader;
use crate::codec::CodecId;
use crate::page_table::{Entry, Stored};
use crate::similar::{Index, Sketch};
use crate::space::Space;
use crate::store::{Reader, Store};
use std::sync::Arc;

/// How many entries to look at under a space's lock at a time.
const BATCH_ENTRIES: usize = 1024;

/// Leaders of one space, found by content.
pub struct Leaders {
    store: Arc<Store>,
    index: Index,
    slots: Vec<Leader>,
}

impl Leaders {
    /// No leaders yet.
    #[must_use]
    pub fn new(store: &Arc<Store>) -> Self {
        Self { store: Arc::clone(store), index: Index::new(), slots: Vec::new() }
    }

    /// The leaders among the stored pages of a space.
    #[must_use]
    pub fn of(space: &Space, store: &Arc<Store>, reader: &mut Reader) -> Self {
        let mut leaders = Self::new(store);
        let mut next = Some(PageNumber(0));
        let mut page: Box<Page> = Box::new([0; PAGE_SIZE]);
        while let Some(start) = next {
            let mut entries = Vec::new();
            let held: Vec<Stored> = {
                let _core = space.core.lock();
                let everything = start..PageNumber(PAGES_END);
                next = space.table.collect_range(everything, BATCH_ENTRIES, &mut entries);
                entries.iter().filter_map(|(_, entry)| hold(store, entry)).collect()
            };
            for stored in held {
                let leader = Leader { offset: stored.offset, len: stored.len };
                if store.read_leader(leader, reader, &mut page) {
                    leaders.add(&stored, &Sketch::of(&page));
                }
                store.let_go(&stored);
            }
        }
        leaders
    }

    /// List a page; the caller holds a reference to its slot.
    pub fn add(&mut self, stored: &Stored, sketch: &Sketch) {
        if stored.codec != CodecId::COLD || self.store.share(stored).is_err() {
            return;
        }
        self.index.insert(self.slots.len() as u32, sketch);
        self.slots.push(Leader { offset: stored.offset, len: stored.len });
    }

    /// What finds them.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// A leader by its number in the index.
    #[must_use]
    pub fn slot(&self, number: u32) -> Option<Leader> {
        self.slots.get(number as usize).copied()
    }

    /// Memory of the list and of what finds its pages.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes() as u64 + (self.slots.capacity() * size_of::<Leader>()) as u64
    }
}

/// The slot of an entry that may lead, with a reference.
fn hold(store: &Store, entry: &Entry) -> Option<Stored> {
    match entry {
        Entry::Pooled(stored) | Entry::Kept(stored) if stored.codec == CodecId::COLD => {
            store.share(stored).is_ok().then_some(*stored)
        }
        _ => None,
    }
}

impl Drop for Leaders {
    fn drop(&mut self) {
        for leader in &self.slots {
            self.store.let_go(&leader.stored());
        }
    }
}
