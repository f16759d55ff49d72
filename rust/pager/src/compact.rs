//! Pool memory that is half empty given back to the host.
//!
//! The pool chooses sparse spans to be emptied; here every table entry, and every delta's leader,
//! that lies in one moves to another slot.  The bytes are copied first, then the entry changes by
//! one store (its checksum stays), then the old slot is let go of: a kill at any instant leaves
//! each page with a good slot, and the copies that nobody names yet are not counted at takeover.

use crate::address::{PAGE_SIZE, PAGES_END, Page, PageNumber};
use crate::blob::{Head, LEADERS_MAX, Leader};
use crate::codec::CodecId;
use crate::page_table::{Entry, Stored};
use crate::points;
use crate::shared::Shared;
use crate::space::Space;
use crate::store::{Encoded, Store};
use crate::sys::foreign;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Entries looked at under a space's lock at a time: some 100 us.
const BATCH_ENTRIES: usize = 256;

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompactReport {
    /// Stored pages that have another place now.
    pub pages_moved: u64,
    /// Memory of the pool before.
    pub bytes_before: u64,
    /// And after.
    pub bytes_after: u64,
    /// Processor time of the calling thread.
    pub cpu: Duration,
    /// Every space was passed.
    pub done: bool,
}

/// One compaction in progress.
struct Compaction<'a> {
    store: &'a Store,
    /// Slots with several references that have moved: what they were, and where to.  Both are held
    /// meanwhile: a former slot that somebody used again would be taken for what it was.
    moved: HashMap<u64, (Stored, Stored)>,
    blob: Box<Page>,
    report: CompactReport,
    /// The cap leaves no room for copies.
    full: bool,
}

/// Empty sparse spans of the pool, for at most `budget`.
pub fn compact(shared: &Shared, budget: Option<Duration>) -> CompactReport {
    let _one = shared.compacting.lock();
    let began = Instant::now();
    let cpu = foreign::thread_time();
    // They hold slots that no table names, so those would not move.
    shared.caches.release(shared);
    let store = &*shared.store;
    let mut compaction = Compaction {
        store,
        moved: HashMap::new(),
        blob: Box::new([0; PAGE_SIZE]),
        report: CompactReport { bytes_before: store.resident_bytes(), ..Default::default() },
        full: false,
    };
    foreign::background(true);
    let mut done = true;
    if store.begin_compaction() > 0 {
        let late = || budget.is_some_and(|budget| began.elapsed() >= budget);
        for space in shared.all_spaces() {
            done &= compaction.pass(&space, &late);
        }
    }
    let Compaction { moved, mut report, full, .. } = compaction;
    for (old, new) in moved.values() {
        store.let_go(old);
        store.let_go(new);
    }
    store.end_compaction();
    foreign::background(false);
    report.done = done && !full;
    report.bytes_after = store.resident_bytes();
    report.cpu = foreign::thread_time().saturating_sub(cpu);
    report
}

impl Compaction<'_> {
    /// Move what one space names; false if it was not finished.
    fn pass(&mut self, space: &Space, late: &dyn Fn() -> bool) -> bool {
        let mut next = Some(PageNumber(0));
        while let Some(start) = next {
            if self.full || late() {
                return false;
            }
            match foreign::in_foreground(|| self.batch(space, start)) {
                Some(after) => next = after,
                None => return false,
            }
            points::pass("compact.moved");
        }
        true
    }

    /// One batch from `start`; returns where to go on, or `None` if somebody works on the space.
    fn batch(&mut self, space: &Space, start: PageNumber) -> Option<Option<PageNumber>> {
        // A page out in progress holds slots that its table does not name just now.
        let _operation = space.operation.try_lock()?;
        let _core = space.core.lock();
        let mut entries = Vec::with_capacity(BATCH_ENTRIES);
        let rest = start..PageNumber(PAGES_END);
        let next = space.table.collect_range(rest, BATCH_ENTRIES, &mut entries);
        for (page, entry) in entries {
            self.move_entry(space, page, entry);
        }
        Some(next)
    }

    fn move_entry(&mut self, space: &Space, page: PageNumber, entry: Entry) {
        let (stored, to_entry): (Stored, fn(Stored) -> Entry) = match entry {
            Entry::Pooled(stored) => (stored, Entry::Pooled),
            Entry::Kept(stored) => (stored, Entry::Kept),
            _ => return,
        };
        let Some(new) = self.moved(space.header.domain, &stored) else { return };
        if space.table.set(page, to_entry(new)).is_ok() {
            self.store.release_stored(space.header.domain, &stored);
            self.report.pages_moved += 1;
        } else {
            self.store.release_stored(space.header.domain, &new);
        }
    }

    /// Another slot with the same page, with a reference; `None` if it can stay where it is.
    fn moved(&mut self, domain: u64, stored: &Stored) -> Option<Stored> {
        if stored.codec == CodecId::DISK {
            return None;
        }
        if let Some((_, new)) = self.moved.get(&stored.offset) {
            let new = Stored { checksum: stored.checksum, ..*new };
            return self.store.share(&new).is_ok().then_some(new);
        }
        let moves = self.store.is_victim(stored.offset);
        if !moves && stored.codec != CodecId::DELTA {
            return None;
        }
        if !self.store.read_blob(stored, &mut self.blob) {
            return None;
        }
        let blob = &self.blob[..usize::from(stored.len)];
        let (head, start) = Head::read(stored.codec, blob)?;
        let frame = blob[start..].to_vec();
        let (head, held) = self.follow_leaders(domain, head);
        let new = if moves || !held.is_empty() {
            let encoded = Encoded { codec: stored.codec, head, frame: &frame };
            let new = self.store.put(domain, &encoded, stored.checksum);
            self.full |= new.is_none();
            new
        } else {
            None
        };
        for leader in held {
            self.store.let_go(&leader.stored());
        }
        let new = new?;
        // Others that name the old slot must find the new one; held until the end.
        if self.store.refs(stored) > 1
            && self.store.share(stored).is_ok()
            && self.store.share(&new).is_ok()
        {
            self.moved.insert(stored.offset, (*stored, new));
        }
        Some(new)
    }

    /// The head with its leaders' new places, and those that moved, each with a reference.
    fn follow_leaders(&mut self, domain: u64, head: Head) -> (Head, Vec<Leader>) {
        let mut leaders = Vec::with_capacity(LEADERS_MAX);
        let mut held = Vec::new();
        for leader in head.leaders() {
            let leader = match self.moved(domain, &leader.stored()) {
                Some(new) => {
                    let new = Leader { offset: new.offset, len: new.len };
                    held.push(new);
                    new
                }
                None => leader,
            };
            leaders.push(leader);
        }
        if held.is_empty() { (head, held) } else { (Head::delta(head.layout, &leaders), held) }
    }
}
