//! What all parts of one engine share.

use crate::address::{PAGE_SIZE, Page, PageNumber};
use crate::borrow::Limits;
use crate::caches::Caches;
use crate::codec::Algorithm;
use crate::disk_reads::DiskReads;
use crate::error::{Error, Result};
use crate::page_table::Entry;
use crate::prefetch::Prefetch;
use crate::space::Space;
use crate::stats::{Counters, Histogram};
use crate::store::{Reader, Store};
use crate::sys::userfaultfd::{Install, Userfaultfd};
use crate::waker::{Sleepers, Waker};
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How an engine runs; fixed for its life.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the keeper's socket and the lock.
    pub run_dir: String,
    /// Cap on the pool's memory in bytes.
    pub pool_bytes_max: u64,
    /// How pages are encoded.
    pub algorithm: Algorithm,
    /// Number of fault threads.
    pub fault_threads: usize,
    /// Longest time that a thread of a target is kept stopped.
    pub stop_limit: Duration,
    /// Pages moved per step of a page out.
    pub chunk_pages: usize,
    /// Whether equal pages of a trust domain share one slot.
    pub deduplicate: bool,
    /// File that pages may be written to; `None` for no disk tier.
    pub disk_path: Option<PathBuf>,
    /// Most bytes of that file.
    pub disk_bytes_max: u64,
}

impl Settings {
    /// Check every value.
    ///
    /// # Errors
    /// `InvalidSetting` that names the field.
    pub fn check(&self) -> Result<()> {
        let bad = |field, problem: String| Err(Error::InvalidSetting { field, problem });
        if self.pool_bytes_max < 1 << 20 {
            return bad("pool_bytes_max", format!("{} is below 1 MiB", self.pool_bytes_max));
        }
        if self.pool_bytes_max > 1 << 40 {
            return bad("pool_bytes_max", format!("{} is above 1 TiB", self.pool_bytes_max));
        }
        if self.disk_path.is_some() && self.disk_bytes_max < 1 << 20 {
            return bad("disk_bytes_max", format!("{} is below 1 MiB", self.disk_bytes_max));
        }
        if !(1..=16).contains(&self.fault_threads) {
            return bad("fault_threads", format!("{} is not in 1..16", self.fault_threads));
        }
        if !(16..=2048).contains(&self.chunk_pages) {
            return bad("chunk_pages", format!("{} is not in 16..2048", self.chunk_pages));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&self.stop_limit) {
            let problem = format!("{} us is not in 1000..1000000", self.stop_limit.as_micros());
            return bad("stop_limit_us", problem);
        }
        Ok(())
    }

    /// Limits of a loan.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { stop: self.stop_limit }
    }
}

/// A page in memory, aligned so that the kernel copies it in one piece.
#[repr(align(4096))]
#[derive(Clone, Debug)]
pub struct PageBuffer(pub Page);

/// What a thread needs to answer faults; made once per thread, so that answering allocates nothing.
pub struct Kit {
    /// Reads stored pages.
    pub reader: Reader,
    /// The page being put together.
    pub page: Box<PageBuffer>,
    /// Who has his page and sleeps on, for a thread that has them woken; the others wake at once.
    pub sleepers: Option<Sleepers>,
}

impl Default for Kit {
    fn default() -> Self {
        Self {
            reader: Reader::default(),
            page: Box::new(PageBuffer([0; PAGE_SIZE])),
            sleepers: None,
        }
    }
}

impl Kit {
    /// Put the page of this kit in place.
    pub fn copy(&mut self, descriptor: &Userfaultfd, address: u64) -> Install {
        let Some(sleepers) = self.sleepers.as_mut().filter(|sleepers| sleepers.has_room()) else {
            return descriptor.copy(address, &self.page.0);
        };
        let installed = descriptor.copy_quietly(address, &self.page.0);
        if matches!(installed, Install::Done | Install::Partial(_)) {
            sleepers.add(address, PAGE_SIZE as u64);
        }
        installed
    }

    /// Put zeros in place.
    pub fn zero(&mut self, descriptor: &Userfaultfd, address: u64, length: u64) -> Install {
        let Some(sleepers) = self.sleepers.as_mut().filter(|sleepers| sleepers.has_room()) else {
            return descriptor.zero(address, length);
        };
        let installed = descriptor.zero_quietly(address, length);
        if matches!(installed, Install::Done | Install::Partial(_)) {
            sleepers.add(address, length);
        }
        installed
    }
}

/// Wakes a thread that waits for descriptors.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Make one.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn create() -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        bell.map(Self).map_err(|cause| Error::Os { what: "making a bell", cause: cause.into() })
    }

    /// Wake its thread, also if that begins to wait only later.
    pub fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The event queue of a fault thread.
#[derive(Debug)]
pub struct Queue {
    /// Watches the descriptors of its spaces.
    pub epoll: OwnedFd,
    /// Wakes the thread without a message from the kernel.
    bell: Bell,
    /// Spaces to look at when the bell rings.  Held for a push or a swap only.
    nudged: Mutex<Vec<u64>>,
    /// Wakes for the thread.
    pub waker: Waker,
}

/// Reasons of losses that are kept.
const LOSSES_KEPT: usize = 16;
/// Number that no space has: the bell's.
const BELL: u64 = 0;

impl Queue {
    /// Make one.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn create() -> Result<Self> {
        let failed = |cause: rustix::io::Errno| Error::Os {
            what: "making an event queue",
            cause: cause.into(),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let bell = Bell::create()?;
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, &bell, data, epoll::EventFlags::IN).map_err(failed)?;
        let waker = Waker::create().map_err(Error::os("making an event queue"))?;
        Ok(Self { epoll, bell, nudged: Mutex::new(Vec::new()), waker })
    }

    /// Let the thread look at a space.
    fn nudge(&self, id: u64) {
        self.nudged.lock().push(id);
        self.bell.ring();
    }

    /// If `data` is the bell's: silence it and append the spaces to look at.
    pub fn answer_bell(&self, data: u64, ready: &mut Vec<u64>) -> bool {
        if data != BELL {
            return false;
        }
        self.bell.silence();
        ready.append(&mut self.nudged.lock());
        true
    }
}

/// What all parts of one engine share.
#[derive(Debug)]
pub struct Shared {
    /// How it runs.
    pub settings: Settings,
    /// The pool.
    pub store: Arc<Store>,
    /// What can be made again.
    pub caches: Caches,
    /// Pages on the disk that somebody waits for.
    pub disk_reads: DiskReads,
    /// Pages that will be touched soon.
    pub prefetch: Prefetch,
    /// Why pages were lost, the last ones.
    pub losses: Mutex<VecDeque<String>>,
    /// Compactions one at a time.
    pub compacting: Mutex<()>,
    /// Every managed space by number.  Taken after a space's lock, if both are needed.
    pub spaces: RwLock<HashMap<u64, Arc<Space>>>,
    /// Event queues of the fault threads; a space belongs to the one of its number.
    pub queues: Vec<Queue>,
    /// Descriptors of forked children whose messages a killed engine had read but not applied, by
    /// inode.
    pub inherited: Mutex<HashMap<u64, OwnedFd>>,
    /// The next space's number.
    pub next_id: AtomicU64,
    /// Event counts.
    pub counters: Counters,
    /// From reading a fault message to the end of the copy.
    pub service: Histogram,
    /// Making a page from its blob in the pool, for a fault: the part of `service` that the codec
    /// is.
    pub decode: Histogram,
    /// Making a blob of a page that leaves: the part of a page out that the codec is.
    pub encode: Histogram,
    /// How long borrowed threads were stopped.
    pub stop: Histogram,
    /// How long faults of a target had to wait for a move.
    pub hold: Histogram,
    /// From a wake, announced or seen, until the learned set is home.
    pub wake: Histogram,
}

impl Shared {
    /// Nothing managed yet.
    #[must_use]
    pub fn new(settings: Settings, store: Store, queues: Vec<Queue>) -> Self {
        Self {
            settings,
            store: Arc::new(store),
            caches: Caches::default(),
            disk_reads: DiskReads::default(),
            prefetch: Prefetch::default(),
            losses: Mutex::new(VecDeque::new()),
            compacting: Mutex::new(()),
            spaces: RwLock::new(HashMap::new()),
            queues,
            inherited: Mutex::new(HashMap::new()),
            next_id: AtomicU64::new(1),
            counters: Counters::default(),
            service: Histogram::new(),
            decode: Histogram::new(),
            encode: Histogram::new(),
            stop: Histogram::new(),
            hold: Histogram::new(),
            wake: Histogram::new(),
        }
    }

    /// Start to manage a space: from here on its faults are answered.
    ///
    /// # Errors
    /// The kernel's answer to watching its descriptor.
    pub fn adopt(&self, space: Arc<Space>) -> Result<()> {
        self.spaces.write().insert(space.id(), Arc::clone(&space));
        let queue = self.queue_of(space.id());
        let data = epoll::EventData::new_u64(space.id());
        epoll::add(queue, &space.descriptor, data, epoll::EventFlags::IN).map_err(|cause| {
            self.spaces.write().remove(&space.id());
            Error::Os { what: "watching a userfaultfd", cause: cause.into() }
        })
    }

    /// Stop managing a space and give back what it holds in the pool.
    ///
    /// Its descriptor closes with the last user of the value; the kernel then unregisters whatever
    /// is still registered.
    pub fn forget(&self, space: &Space) {
        let _ = epoll::delete(self.queue_of(space.id()), &space.descriptor);
        self.spaces.write().remove(&space.id());
        let mut core = space.core.lock();
        let everything =
            crate::address::PageNumber(0)..crate::address::PageNumber(crate::address::PAGES_END);
        let domain = space.header.domain;
        space.table.clear_range(everything, |_, entry| self.store.release(domain, &entry));
        // A staged page's copy from before is the slot's, not the table's.  A publisher that still
        // works on it finds that the page is not staged any more.
        for slot in 0..core.slots.len() as u64 {
            space.release_slot(&mut core, self, slot);
        }
        drop(core);
        self.caches.forget(space.id());
    }

    /// Keep the reason of a loss for people.
    pub fn note_loss(&self, space: &Space, page: PageNumber, why: &str) {
        let text = format!("pid {} page {page}: {why}", space.header.pid);
        let mut losses = self.losses.lock();
        if losses.len() == LOSSES_KEPT {
            losses.pop_front();
        }
        losses.push_back(text);
    }

    /// A space by number.
    pub fn space(&self, id: u64) -> Option<Arc<Space>> {
        self.spaces.read().get(&id).cloned()
    }

    /// An attached space by process id.
    pub fn space_of(&self, pid: i32) -> Option<Arc<Space>> {
        self.spaces.read().values().find(|space| space.header.pid == pid).cloned()
    }

    /// All spaces.
    pub fn all_spaces(&self) -> Vec<Arc<Space>> {
        self.spaces.read().values().cloned().collect()
    }

    /// The spaces whose number is wanted; the others are not even touched.
    pub fn spaces_where(&self, wanted: impl Fn(u64) -> bool) -> Vec<Arc<Space>> {
        let spaces = self.spaces.read();
        let chosen = spaces.iter().filter(|(id, _)| wanted(**id));
        chosen.map(|(_, space)| Arc::clone(space)).collect()
    }

    /// A number for a new space.
    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Make room in the pool: give up copies of pages that are at home anyway.
    ///
    /// Returns how many slots were given up.
    pub fn give_up_kept(&self) -> u64 {
        let mut given_up = 0;
        for space in self.all_spaces() {
            let _core = space.core.lock();
            if space.table.counts().kept == 0 {
                continue;
            }
            let mut kept = Vec::new();
            let all = crate::address::PageNumber(0)
                ..crate::address::PageNumber(crate::address::PAGES_END);
            space.table.for_each(all, |page, entry| {
                if matches!(entry, Entry::Kept(_)) {
                    kept.push((page, entry));
                }
            });
            for (page, entry) in kept {
                // Making an entry absent needs no room in the table and cannot fail.
                let _ = space.table.set(page, Entry::Absent);
                self.store.release(space.header.domain, &entry);
                given_up += 1;
            }
        }
        given_up
    }

    /// Let the threads that only wait for work see that there will be none.
    pub fn ring_all(&self) {
        for queue in &self.queues {
            queue.bell.ring();
            queue.waker.end();
        }
        self.prefetch.ring();
        self.disk_reads.ring();
    }

    /// Let the fault thread of a space look at it without a message from the kernel.
    pub fn nudge(&self, id: u64) {
        self.queues[id as usize % self.queues.len()].nudge(id);
    }

    fn queue_of(&self, id: u64) -> &OwnedFd {
        &self.queues[id as usize % self.queues.len()].epoll
    }
}

#[cfg(test)]
impl Shared {
    /// The parts of an engine without threads, with a small pool.
    pub fn for_tests() -> Self {
        let settings = Settings {
            run_dir: String::new(),
            pool_bytes_max: 1 << 20,
            algorithm: Algorithm::Lz4 { level: 1 },
            fault_threads: 1,
            stop_limit: Duration::from_millis(5),
            chunk_pages: 16,
            deduplicate: false,
            disk_path: None,
            disk_bytes_max: 0,
        };
        let store = Store::create(1 << 20, None).expect("a pool");
        Self::new(settings, store, vec![Queue::create().expect("a queue")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::Head;
    use crate::codec::CodecId;
    use crate::space::{Header, Phase, SCRATCH_BYTES, Slot, Table};
    use crate::store::Encoded;

    /// Its target ended between the marking of a page that had come back unchanged and the page's
    /// way into the pool: the table says "staged", and only the slot knows of the copy from before.
    #[test]
    fn a_space_that_is_forgotten_during_a_page_out_leaves_nothing_in_the_pool() {
        let shared = Shared::for_tests();
        let encoded = Encoded { codec: CodecId::RAW, head: Head::default(), frame: &[7; 100] };
        let stored = |checksum| shared.store.put(1, &encoded, checksum).expect("room in the pool");
        let area = 0..SCRATCH_BYTES + 3 * PAGE_SIZE as u64;
        let header = Header { id: 7, parent: 0, pid: 0, start_time: 0, area, domain: 1, image: 1 };
        let space = Space::of_nobody(Table::create(&header, Phase::Attached).expect("a table"));
        let (pooled, staged) = (PageNumber(512), PageNumber(513));
        space.table.set(pooled, Entry::Pooled(stored(1))).expect("room");
        space.table.set(staged, Entry::Staged { slot: 0 }).expect("room");
        space.core.lock().slots[0] = Slot { owner: Some(staged), kept: Some(stored(2)) };
        assert_eq!(2, shared.store.stats().slots);

        shared.forget(&space);

        assert_eq!(0, shared.store.stats().slots);
        assert_eq!(
            (Entry::Absent, Entry::Absent),
            (space.table.get(pooled), space.table.get(staged))
        );
    }
}
