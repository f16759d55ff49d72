//! One managed address space: its descriptor, its table, its lock.
//!
//! A space belongs to an attached target, or to a child that was forked from one.  Everything that
//! must outlive this process is in the table's memfd; everything else can be found again from it.
//!
//! ```text
//!                      mark          encode, publish
//!    Absent ───────────────> Staged ────────────────> Pooled or Same
//!      ^  ^                    │                        │
//!      │  └────────────────────┘ touched: answered      │ touched, or brought home
//!      │                         from staging           v
//!      └──────────────────────────────────────────── Kept (Absent for Same)
//!             written and moved again, or the pool needs room
//! ```

use crate::address::{PAGE_SIZE, PageNumber};
use crate::ahead::Ahead;
use crate::cuts::Cuts;
use crate::cuts::kept::{self, Kept};
use crate::debtors::Debtors;
use crate::error::{Error, Result};
use crate::habit::{Habit, Tally};
use crate::page_table::{Entry, HEADER_WORDS, OWN_HEADER_WORDS, PageTable, Stored};
use crate::quarantine::Quarantine;
use crate::sys::foreign::ForeignMemory;
use crate::sys::mapping::SharedMapping;
use crate::sys::pagemap::Pagemap;
use crate::sys::userfaultfd::{MESSAGE_WORDS, Userfaultfd};
use crate::target::Target;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Version of the table header, the entries and the pool.
pub const STATE_FORMAT: u64 = 5;
/// Name of every table's memfd; the number is the state format.
pub const MEMFD_NAME: &str = "agentzip:table:5";
/// Virtual size of a table; memory is taken page by page.  Enough for 230 GiB of target memory.
const TABLE_BYTES: usize = 1 << 30;
/// "AgentZip" as a number.
const MAGIC: u64 = 0x7069_5A74_6E65_6741;
/// Bytes before the staging area that hold arguments of the worker's calls.
pub const SCRATCH_BYTES: u64 = 4 * PAGE_SIZE as u64;
/// Messages that can be kept until no event is open.
pub const JOURNAL_MESSAGES: usize = 408;
/// Ranges that the landscape of a window can have.
const LANDSCAPE_RANGES: usize = 100;
/// In place of their number: there were more.
const LANDSCAPE_TOO_LONG: u64 = u64::MAX;
/// Fresh ranges that can be kept.
const FRESH_RANGES: usize = 76;
const _: () = assert!(word::CALLS + kept::WORDS <= HEADER_WORDS);
const _: () = assert!(word::DICTIONARY < OWN_HEADER_WORDS.start);
const _: () = assert!(OWN_HEADER_WORDS.end <= word::LANDSCAPE);

/// Positions of the header's words.
mod word {
    pub const MAGIC: usize = 0;
    pub const FORMAT: usize = 1;
    pub const PHASE: usize = 2;
    pub const PID: usize = 3;
    pub const START_TIME: usize = 4;
    pub const DESCRIPTOR_INODE: usize = 5;
    pub const ID: usize = 6;
    pub const PARENT: usize = 7;
    pub const AREA_START: usize = 8;
    pub const AREA_END: usize = 9;
    pub const WORKER: usize = 10;
    pub const DOMAIN: usize = 11;
    pub const IMAGE: usize = 12;
    pub const DICTIONARY: usize = 13;
    /// 0, or one more than the number of ranges.
    pub const LANDSCAPE: usize = 60;
    pub const FRESH: usize = 61;
    /// How many places of the journal may hold a message.
    pub const USED: usize = 62;
    /// What the words from `CALLS` on say.
    pub const CUT: usize = 63;
    pub const JOURNAL: usize = 64;
    pub const LANDSCAPE_RANGES: usize = JOURNAL + super::JOURNAL_MESSAGES * super::MESSAGE_WORDS;
    pub const FRESH_RANGES: usize = LANDSCAPE_RANGES + 2 * super::LANDSCAPE_RANGES;
    pub const CALLS: usize = FRESH_RANGES + 2 * super::FRESH_RANGES;
}

/// Where a space is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// The target may hold our area; no page has moved.
    Attaching = 1,
    /// Complete.
    Attached = 2,
    /// A child whose table is being filled: to be made again from the parent's.
    Copying = 3,
    /// A forked child; complete.
    Child = 4,
    /// Going home.
    Detaching = 5,
}

impl Phase {
    fn from_word(word: u64) -> Option<Self> {
        Some(match word {
            1 => Self::Attaching,
            2 => Self::Attached,
            3 => Self::Copying,
            4 => Self::Child,
            5 => Self::Detaching,
            _ => return None,
        })
    }

    /// The name that `status` shows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Copying | Self::Child => "child",
            Self::Detaching => "detaching",
        }
    }
}

/// The table of a space together with the header words that precede it.
#[derive(Debug)]
pub struct Table(PageTable<SharedMapping>);

impl std::ops::Deref for Table {
    type Target = PageTable<SharedMapping>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// What a header says; plain values.
#[derive(Clone, Debug)]
pub struct Header {
    /// Number of the space, unique in its engine and its successors.
    pub id: u64,
    /// Space it was forked from, 0 for none.
    pub parent: u64,
    /// Process, 0 for a child that was never attached itself.
    pub pid: i32,
    /// Start time of the process.
    pub start_time: u64,
    /// Our area in the target.
    pub area: Range<u64>,
    /// Hash of its trust domain: dedup, peers and trained dictionaries never cross it.
    pub domain: u64,
    /// Hash of what it was made from; sandboxes of one image resemble each other.
    pub image: u64,
}

impl Table {
    /// Make a table for a new space.
    ///
    /// # Errors
    /// The kernel's answer to making the memfd.
    pub fn create(header: &Header, phase: Phase) -> Result<Self> {
        let memory = SharedMapping::create(MEMFD_NAME, TABLE_BYTES)
            .map_err(Error::os("making a page table"))?;
        let words = memory.words();
        let put = |index: usize, value: u64| words[index].store(value, Ordering::Relaxed);
        put(word::FORMAT, STATE_FORMAT);
        put(word::PHASE, phase as u64);
        put(word::PID, header.pid as u64);
        put(word::START_TIME, header.start_time);
        put(word::ID, header.id);
        put(word::PARENT, header.parent);
        put(word::AREA_START, header.area.start);
        put(word::AREA_END, header.area.end);
        put(word::DOMAIN, header.domain);
        put(word::IMAGE, header.image);
        words[word::MAGIC].store(MAGIC, Ordering::Release);
        Self::open(memory)
    }

    /// Take a table that another engine left behind; `None` if it was never completed.
    ///
    /// # Errors
    /// `IncompatibleState`, or a damaged table.
    pub fn take_over(descriptor: OwnedFd) -> Result<Option<Self>> {
        if rustix::fs::fstat(&descriptor).map_or(0, |stat| stat.st_size) == 0 {
            return Ok(None);
        }
        let memory =
            SharedMapping::map(descriptor).map_err(Error::os("mapping a table of a keeper"))?;
        let words = memory.words();
        if words.len() <= HEADER_WORDS || words[word::MAGIC].load(Ordering::Acquire) != MAGIC {
            return Ok(None);
        }
        let found = words[word::FORMAT].load(Ordering::Relaxed);
        if found != STATE_FORMAT {
            return Err(Error::IncompatibleState { found, known: STATE_FORMAT });
        }
        Self::open(memory).map(Some)
    }

    fn open(memory: SharedMapping) -> Result<Self> {
        // Best effort: without it a swapping host can slow a fault, never falsify it.
        let _ = memory.lock_on_touch();
        PageTable::open(memory).map(Self).map_err(|error| Error::Internal(error.to_string()))
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words().words()[index]
    }

    /// The header's plain values.
    #[must_use]
    pub fn header(&self) -> Header {
        let get = |index: usize| self.word(index).load(Ordering::Acquire);
        Header {
            id: get(word::ID),
            parent: get(word::PARENT),
            pid: get(word::PID) as i32,
            start_time: get(word::START_TIME),
            area: get(word::AREA_START)..get(word::AREA_END),
            domain: get(word::DOMAIN),
            image: get(word::IMAGE),
        }
    }

    /// Where the space is in its life.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        Phase::from_word(self.word(word::PHASE).load(Ordering::Acquire))
    }

    /// Go on to another phase.
    pub fn set_phase(&self, phase: Phase) {
        self.word(word::PHASE).store(phase as u64, Ordering::Release);
    }

    /// Inode of the userfaultfd: names it whatever number it has in whichever process.
    #[must_use]
    pub fn descriptor_inode(&self) -> u64 {
        self.word(word::DESCRIPTOR_INODE).load(Ordering::Acquire)
    }

    /// How many places of the journal may hold a message: what lies behind is never looked at.
    #[must_use]
    pub fn journal_used(&self) -> usize {
        self.word(word::USED).load(Ordering::Acquire) as usize
    }

    /// Set that; before a message is put there.
    pub fn set_journal_used(&self, places: usize) {
        self.word(word::USED).store(places as u64, Ordering::Release);
    }

    /// Remember which userfaultfd belongs to this table.
    pub fn set_descriptor_inode(&self, inode: u64) {
        self.word(word::DESCRIPTOR_INODE).store(inode, Ordering::Release);
    }

    /// Remember the thread that moves pages for us in the target, 0 for none.
    pub fn set_worker(&self, thread: i32) {
        self.word(word::WORKER).store(thread as u64, Ordering::Release);
    }

    /// The thread that moved pages when the engine was killed: it finishes one call and exits.
    #[must_use]
    pub fn worker(&self) -> i32 {
        self.word(word::WORKER).load(Ordering::Acquire) as i32
    }

    /// Number of the dictionary that pages are encoded with when they leave, 0 for none.
    #[must_use]
    pub fn dictionary(&self) -> u16 {
        self.word(word::DICTIONARY).load(Ordering::Acquire) as u16
    }

    /// Choose that dictionary.
    pub fn set_dictionary(&self, number: u16) {
        self.word(word::DICTIONARY).store(u64::from(number), Ordering::Release);
    }

    /// Forget our area in the target.
    pub fn clear_area(&self) {
        self.word(word::AREA_END).store(0, Ordering::Release);
        self.word(word::AREA_START).store(0, Ordering::Release);
    }

    /// The words that messages are read into.
    #[must_use]
    pub fn journal(&self) -> &[AtomicU64] {
        &self.words().words()[word::JOURNAL..word::JOURNAL + JOURNAL_MESSAGES * MESSAGE_WORDS]
    }

    /// What is known of calls in progress.
    #[must_use]
    pub fn kept_calls(&self) -> Kept<'_> {
        let words = &self.words().words()[word::CALLS..word::CALLS + kept::WORDS];
        Kept { state: self.word(word::CUT), words }
    }

    /// Remember what is watched where the events of the journal meet: from here to
    /// [`Table::close_window`] they are being applied, and nothing is read.
    pub fn open_window(&self, landscape: &[Range<u64>]) {
        let fits = landscape.len() <= LANDSCAPE_RANGES;
        for (index, range) in landscape.iter().enumerate().take(LANDSCAPE_RANGES) {
            self.put_range(word::LANDSCAPE_RANGES, index, range);
        }
        let count = if fits { landscape.len() as u64 + 1 } else { LANDSCAPE_TOO_LONG };
        self.word(word::LANDSCAPE).store(count, Ordering::Release);
    }

    /// The landscape of a window that is being applied; `Some(None)` if it was too long to keep.
    #[must_use]
    pub fn window(&self) -> Option<Option<Vec<Range<u64>>>> {
        match self.word(word::LANDSCAPE).load(Ordering::Acquire) {
            0 => None,
            LANDSCAPE_TOO_LONG => Some(None),
            count => Some(Some(self.ranges(word::LANDSCAPE_RANGES, count as usize - 1))),
        }
    }

    /// Every event of the journal was applied and cleared.
    pub fn close_window(&self) {
        self.word(word::LANDSCAPE).store(0, Ordering::Release);
    }

    /// Ranges noted by [`Table::note_fresh`] since [`Table::forget_fresh`].
    #[must_use]
    pub fn fresh(&self) -> Vec<Range<u64>> {
        let count = self.word(word::FRESH).load(Ordering::Acquire) as usize;
        self.ranges(word::FRESH_RANGES, count.min(FRESH_RANGES))
    }

    /// Keep a fresh range for a next engine; more than there is room for are not kept.
    pub fn note_fresh(&self, range: &Range<u64>) {
        let count = self.word(word::FRESH).load(Ordering::Acquire) as usize;
        if count < FRESH_RANGES && !self.fresh().contains(range) {
            self.put_range(word::FRESH_RANGES, count, range);
            self.word(word::FRESH).store(count as u64 + 1, Ordering::Release);
        }
    }

    /// No event is open: nothing is fresh any more.
    pub fn forget_fresh(&self) {
        self.word(word::FRESH).store(0, Ordering::Release);
    }

    /// Give the memory of empty parts of the table back to the kernel; under the space's lock.
    pub fn give_back_empty(&self) {
        self.reclaim_empty(|start, length| self.words().punch(start, length));
    }

    fn put_range(&self, list: usize, index: usize, range: &Range<u64>) {
        self.word(list + 2 * index).store(range.start, Ordering::Release);
        self.word(list + 2 * index + 1).store(range.end, Ordering::Release);
    }

    fn ranges(&self, list: usize, count: usize) -> Vec<Range<u64>> {
        let get = |index: usize| self.word(index).load(Ordering::Acquire);
        (0..count).map(|index| get(list + 2 * index)..get(list + 2 * index + 1)).collect()
    }
}

/// Inode number of a descriptor; the kernel gives every userfaultfd one of its own.
#[must_use]
pub fn inode_of(descriptor: impl AsFd) -> u64 {
    rustix::fs::fstat(descriptor).map_or(0, |stat| stat.st_ino)
}

/// A page in the staging area.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Whose contents are (or will be) there.
    pub owner: Option<PageNumber>,
    /// Pool copy from before, if the page came back earlier and may be unchanged.
    pub kept: Option<Stored>,
}

/// What the space's lock guards.
#[derive(Debug, Default)]
pub struct Core {
    /// State of the staging area, by slot number.  Volatile: the table has the truth.
    pub slots: Vec<Slot>,
    /// How many places of the journal, from its start, may hold events that are not applied yet.
    pub held: usize,
    /// Who may owe an event that took effect before others that are queued.
    pub debtors: Debtors,
    /// Since when an event has been open that no thread waits with.
    pub unseen_since: Option<Instant>,
    /// It has moved a mapping, or may have: what its events mean depends on their order.
    pub moves: bool,
    /// What calls in progress have told so far.
    pub cuts: Cuts,
    /// The journal holds events of a read that did not wait for the rest, or that it had brought
    /// too early.
    pub blurred: bool,
    /// It holds events that were read without a look at the calls.
    pub unjudged: bool,
    /// Faults read but not answered yet: address and whether it was a write.
    pub pending: Vec<(u64, bool)>,
    /// A page out ended in the middle of a move: contents may be in either place.
    pub unsettled: bool,
    /// End of the last run of never-populated pages that was filled, and its length in pages.
    pub zero_run: (u64, u64),
    /// Parts that were not watched until a moment ago, while events may have been open.  Kept in
    /// the table as well.
    pub fresh: Vec<Range<u64>>,
    /// Forked children that are not served before the last open event was read.
    pub unborn: Vec<Arc<Space>>,
    /// Ranges that the program is about to empty.
    pub quarantine: Quarantine,
    /// What it needs when it wakes.  Not kept beyond a kill.
    pub habit: Habit,
    /// Where it walks through its memory.
    pub ahead: Ahead,
}

impl Core {
    /// All that took effect is queued: the next look begins anew.
    pub fn acquit(&mut self) {
        self.debtors.acquit();
        self.unseen_since = None;
    }
}

/// One managed address space.
#[derive(Debug)]
pub struct Space {
    /// Plain facts.
    pub header: Header,
    /// Command name, for people.
    pub command: String,
    /// The descriptor that its faults and events come through.
    pub descriptor: Userfaultfd,
    /// Its memory; `None` for a child we know no pid of.
    pub memory: Option<ForeignMemory>,
    /// Its page states; `None` for a child we know no pid of.
    pub pagemap: Option<Pagemap>,
    /// What is where.
    pub table: Table,
    /// One lock per address space around {reading events, changing states, copying pages in}: what
    /// was looked up before an event was read must not be copied in after it (rule R1).  Held for
    /// at most one step of a page out; never while waiting for a thread of the target to stop.
    pub core: Mutex<Core>,
    /// Serialises attach, page out, page in and detach of this target; faults do not take it.
    pub operation: Mutex<()>,
    /// The address space does not exist any more.
    pub gone: AtomicBool,
    /// Faults answered.
    pub faults: AtomicU64,
    /// Of those, faults on never-populated pages.
    pub faults_zero: AtomicU64,
    /// What became of its learned set.
    pub tally: Arc<Tally>,
    /// Its learned set is being brought home.
    pub prefetching: AtomicBool,
    /// How many wait for `operation` and will not wait for a prefetch.
    claims: AtomicUsize,
    /// Threads that wait for the operation lock to wake the target.
    wakers: AtomicUsize,
}

impl Space {
    /// Put a space together from its parts.
    #[must_use]
    pub fn new(
        table: Table,
        descriptor: Userfaultfd,
        target: Option<&Target>,
        memory: Option<ForeignMemory>,
        pagemap: Option<Pagemap>,
    ) -> Self {
        let header = table.header();
        let others = SCRATCH_BYTES + PAGE_SIZE as u64;
        let slots = (header.area.end - header.area.start).saturating_sub(others);
        let slots = (slots / PAGE_SIZE as u64) as usize;
        let core = Core { slots: vec![Slot::default(); slots], ..Core::default() };
        Self {
            command: target.map_or_else(String::new, |target| target.command.clone()),
            header,
            descriptor,
            memory,
            pagemap,
            table,
            tally: core.habit.tally(),
            core: Mutex::new(core),
            operation: Mutex::new(()),
            gone: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            faults_zero: AtomicU64::new(0),
            prefetching: AtomicBool::new(false),
            claims: AtomicUsize::new(0),
            wakers: AtomicUsize::new(0),
        }
    }

    /// Wait for something as one who wakes the target: a page out ends for it.
    pub fn waking<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.wakers.fetch_add(1, Ordering::AcqRel);
        let result = wait();
        self.wakers.fetch_sub(1, Ordering::AcqRel);
        result
    }

    /// Whether somebody wants to wake the target, and waits for the operation lock.
    #[must_use]
    pub fn wakes_now(&self) -> bool {
        self.wakers.load(Ordering::Acquire) > 0
    }

    /// Take the operation lock; a prefetch in progress ends for it.
    pub fn claim(&self) -> MutexGuard<'_, ()> {
        self.claims.fetch_add(1, Ordering::AcqRel);
        let operation = self.operation.lock();
        self.claims.fetch_sub(1, Ordering::AcqRel);
        operation
    }

    /// Whether somebody waits for the operation lock.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.claims.load(Ordering::Acquire) > 0
    }

    /// Number of the space.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.header.id
    }

    /// The staging area's addresses: the area without the scratch pages before it and the probe
    /// page after it, which is always there, so that a copy to it only tells whether an event is
    /// open.
    #[must_use]
    pub fn staging(&self) -> Range<u64> {
        let area = &self.header.area;
        if area.is_empty() { 0..0 } else { area.start + SCRATCH_BYTES..area.end - PAGE_SIZE as u64 }
    }

    /// Address of a slot.
    #[must_use]
    pub fn slot_address(&self, slot: u64) -> u64 {
        self.staging().start + slot * PAGE_SIZE as u64
    }

    /// Pages that are out: their contents are not in the target.
    #[must_use]
    pub fn pages_out(&self) -> u64 {
        let counts = self.table.counts();
        counts.pooled + counts.same + counts.staged + counts.lost
    }

    /// Whether a page is out, and not on its way.  Takes no lock.
    #[must_use]
    pub fn is_out(&self, page: PageNumber) -> bool {
        matches!(self.table.get(page), Entry::Pooled(_) | Entry::Same { .. })
    }

    /// Pages whose contents only we have.
    #[must_use]
    pub fn pages_away(&self) -> u64 {
        let counts = self.table.counts();
        counts.pooled + counts.same + counts.staged
    }

    /// Read a staged page, if it is there.
    #[must_use]
    pub fn read_slot(&self, slot: u64, page: &mut [u8]) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|memory| memory.read(self.slot_address(slot), page).is_ok())
    }

    /// Note that the address space is gone.
    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the address space is known to be gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

#[cfg(test)]
impl Space {
    /// A space without a process: what a table alone can tell.
    pub fn of_nobody(table: Table) -> Self {
        let nothing = std::fs::File::open("/dev/null").expect("a descriptor");
        Self::new(table, Userfaultfd::from(OwnedFd::from(nothing)), None, None, None)
    }
}
