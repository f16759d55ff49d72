//! The state of every managed page of one target, in shared memory that outlives this process.
//!
//! A kill -9 of the daemon must not lose where a page is: the table lies in a memfd that the
//! keeper also holds, and a new daemon maps it and goes on. Hence the two rules of this file:
//!
//! - **No pointers, only positions**, so that the memory means the same in every process.
//! - **Every prefix of our stores is a valid table.** A leaf is linked only once it is known to be
//!   zero, a node once it holds its links; that, and taking either out again, is the store of one
//!   link. Of an entry's two words the payload is written first and the state last, with
//!   release order. Where a payload in use has to be replaced by another one, the entry passes
//!   through [`CHANGING`], which a later `open` reads as lost: a page may be lost by a bug, but
//!   it is never answered with the bytes of another.
//!
//! Shape: a tree of leaves (8 pages, 16 bytes each) below nodes of 16 links, both 128 bytes. A node
//! stands only where the keys below it part: a link says what it covers, so levels without a
//! choice are left out, and a table of one leaf is one leaf. Some programs scatter their memory:
//! V8 asks for each chunk of 256 KiB at a random address. A full chunk costs 1.2 KiB here, 1 KiB
//! of it entries, and a lone page 256 bytes at most. Memory in a row costs 0.42 % of itself. The
//! price is a deeper tree: a look-up takes 25 ns instead of the 8 of a tree with all its levels.
//!
//! One writer at a time: the caller holds its lock around everything but [`PageTable::get`] and
//! [`PageTable::counts`], which any thread may call at any moment and which take no lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::address::{PAGE_SHIFT, PAGE_SIZE, PAGES_END, PageNumber};
use entry::{
    ABSENT, CHANGING, KEPT, LEN_BITS, LEN_SHIFT, LOST, POOLED, SAME, STAGED, STATE_BITS, STATES,
    decode, encode, has_payload, stores,
};
pub use entry::{Entry, Stored};
use free::FreeUnits;
use link::{KEYS, LEVELS, Link, SLOT_BITS, SLOTS};

mod entry;
mod free;
mod link;

#[cfg(test)]
mod tests;

/// Words before the units. The caller's own header may use all but [`OWN_HEADER_WORDS`].
pub const HEADER_WORDS: usize = 3072;
/// Header words that belong to the table. In the first page: most callers need no more of it.
pub const OWN_HEADER_WORDS: Range<usize> = 56..58;
/// How many units were ever handed out.
const BUMP_WORD: usize = OWN_HEADER_WORDS.start;
/// The link to the whole tree.
const ROOT_WORD: usize = OWN_HEADER_WORDS.start + 1;

/// Nodes and leaves are handed out in units of this many words.
const UNIT_WORDS: usize = SLOTS;
const LEAF_BITS: u32 = 3;
const LEAF_PAGES: u64 = 1 << LEAF_BITS;
const WORD_BYTES: u64 = 8;
const UNIT_BYTES: u64 = UNIT_WORDS as u64 * WORD_BYTES;
const _: () = assert!(2 * LEAF_PAGES as usize == UNIT_WORDS);
const _: () = assert!(PAGES_END >> LEAF_BITS == KEYS.end);

/// Looks at a changing entry this often before going to sleep: the writer needs two stores, but
/// it may have been preempted by the very thread that waits for it.
const SPINS_BEFORE_SLEEP: u32 = 64;
const CHANGING_SLEEP: Duration = Duration::from_micros(20);
/// Fewest entries that must have gone before a look for empty leaves.
const GONE_MIN: u64 = 1024;
/// And one for so many bytes of the table, a 64th of its entries: the look passes through all.
const GONE_BYTES: u64 = 1024;
/// Most units reclaimed at a time: bounds how long the lock is held.
const UNITS_AT_A_TIME: usize = 16384;

/// Memory of a table for entries in these ranges of addresses, which are in order.
#[must_use]
pub fn bytes_for(ranges: &[Range<u64>]) -> u64 {
    let ranges = || ranges.iter().filter(|range| range.start < range.end);
    let leaf_bits = PAGE_SHIFT + LEAF_BITS;
    let (mut units, mut counted) = (0, 0);
    for range in ranges() {
        let (first, end) = (range.start >> leaf_bits, ((range.end - 1) >> leaf_bits) + 1);
        units += end - counted.max(first);
        counted = end;
    }
    for level in 1..=LEVELS {
        // What is below a node of this level: a node is there for each two of them in a row.
        let bits = leaf_bits + (level - 1) * SLOT_BITS;
        let (mut counted, mut last) = (0, None::<u64>);
        for range in ranges() {
            let (own, end) = (range.start >> bits, (range.end - 1) >> bits);
            let before = last.filter(|last| last >> SLOT_BITS == own >> SLOT_BITS);
            let first = before.unwrap_or(own);
            if first < end {
                let (from, to) = ((first + 1) >> SLOT_BITS, ((end - 1) >> SLOT_BITS) + 1);
                units += to.saturating_sub(counted.max(from));
                counted = counted.max(to);
            }
            last = Some(end);
        }
    }
    HEADER_WORDS as u64 * WORD_BYTES + units * UNIT_BYTES
}

/// Why a table could not be changed. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No unit is left in the memory of the table.
    #[error("page table is full: {units} units of {UNIT_BYTES} bytes")]
    Full {
        /// Units the memory has.
        units: u64,
    },
    /// The page number is above the user-space address range.
    #[error("no such page in a 47-bit address space: {0}")]
    NoSuchPage(PageNumber),
    /// A field does not fit into its bits; a bug of the caller.
    #[error("entry cannot be represented: {0:?}")]
    Unrepresentable(Entry),
    /// Source and destination of a move share pages; the kernel never reports such a move.
    #[error("ranges of a move overlap: {0} and {1}")]
    Overlap(PageNumber, PageNumber),
}

/// Why memory was not accepted as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not even the header fits.
    #[error("page table memory too small: {words} words, {HEADER_WORDS} needed")]
    TooSmall {
        /// Words given.
        words: usize,
    },
    /// A link leads outside the units handed out, twice to the same one, or to where its keys
    /// do not belong.
    #[error("page table is damaged: bad link at word {word}: {link}")]
    Damaged {
        /// Position of the link.
        word: usize,
        /// Its value.
        link: u64,
    },
}

/// Number of entries by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries in [`Entry::Staged`].
    pub staged: u64,
    /// Entries in [`Entry::Pooled`].
    pub pooled: u64,
    /// Entries in [`Entry::Kept`].
    pub kept: u64,
    /// Entries in [`Entry::Same`].
    pub same: u64,
    /// Entries in [`Entry::Lost`].
    pub lost: u64,
    /// Encoded bytes of the pooled and kept entries, shared ones counted for each owner.
    pub encoded_bytes: u64,
}

/// The table of one target over memory `W`, which stays valid as long as the table lives.
#[derive(Debug)]
pub struct PageTable<W> {
    words: W,
    units: u64,
    states: [AtomicU64; STATES],
    encoded_bytes: AtomicU64,
    /// Entries gone since the last complete look for empty leaves.
    gone: AtomicU64,
    /// Goes up when units were unlinked and before any of them is used again, so that a reader
    /// that still holds one notices.
    unlinks: AtomicU64,
    /// Units below the bump position that nothing links to. Volatile: `rebuild` finds them again.
    free: Mutex<FreeUnits>,
}

impl<W: AsRef<[AtomicU64]>> PageTable<W> {
    /// Takes `words` as a table: fresh zeroed memory, or one that a former process left behind.
    ///
    /// Entries a dead writer left half replaced become [`Entry::Lost`]; units it had taken but
    /// not linked are found again.
    ///
    /// # Errors
    /// [`OpenError`] when the memory is too small or its links cannot have been written by us.
    pub fn open(words: W) -> Result<Self, OpenError> {
        let len = words.as_ref().len();
        if len < HEADER_WORDS {
            return Err(OpenError::TooSmall { words: len });
        }
        let table = Self {
            units: (((len - HEADER_WORDS) / UNIT_WORDS) as u64).min(Link::UNITS_MAX),
            words,
            states: Default::default(),
            encoded_bytes: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            unlinks: AtomicU64::new(0),
            free: Mutex::default(),
        };
        table.rebuild()?;
        table.count_all();
        Ok(table)
    }

    /// The memory of the table, for the caller's own header.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// What is known of `page`. Lock-free; safe beside a writer.
    pub fn get(&self, page: PageNumber) -> Entry {
        let mut tries = 0;
        loop {
            let unlinks = self.unlinks.load(Ordering::Acquire);
            let entry = match self.find_leaf(page) {
                Some(leaf) => self.read(entry_word(leaf, page)),
                None => Some(Entry::Absent),
            };
            if let Some(entry) = entry
                && self.unlinks.load(Ordering::Acquire) == unlinks
            {
                return entry;
            }
            tries += 1;
            if tries < SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(CHANGING_SLEEP);
            }
        }
    }

    /// Replaces what is known of `page`.
    ///
    /// After a kill in the middle the old or the new entry is found, with one exception: if both
    /// carry a payload and the payloads differ ([`Entry::Pooled`], [`Entry::Kept`] with another
    /// checksum, [`Entry::Same`]), the page may be found lost. Page out through `Staged` and this
    /// does not arise.
    ///
    /// # Errors
    /// [`Error`] when there is no room for a new node, or when page or entry is impossible.
    pub fn set(&self, page: PageNumber, entry: Entry) -> Result<(), Error> {
        let (state, payload) = encode(entry).ok_or(Error::Unrepresentable(entry))?;
        let leaf = match self.find_leaf(page) {
            Some(leaf) => leaf,
            None if !page.is_valid() => return Err(Error::NoSuchPage(page)),
            None if entry == Entry::Absent => return Ok(()),
            None => self.add_leaf(page)?,
        };
        self.write(entry_word(leaf, page), state, payload);
        Ok(())
    }

    /// Calls `visit` for every non-absent entry of `range`, in order.
    pub fn for_each(&self, range: Range<PageNumber>, mut visit: impl FnMut(PageNumber, Entry)) {
        self.each_word(range, |page, word| {
            if let Some(entry) = self.read(word)
                && entry != Entry::Absent
            {
                visit(page, entry);
            }
            true
        });
    }

    /// Appends up to `max` non-absent entries of `range` to `out`.
    ///
    /// Returns the page to go on with, or `None` when the range is done: lets a caller give up
    /// its lock between batches.
    pub fn collect_range(
        &self,
        range: Range<PageNumber>,
        max: usize,
        out: &mut Vec<(PageNumber, Entry)>,
    ) -> Option<PageNumber> {
        let mut room = max;
        let mut next = None;
        self.each_word(range, |page, word| {
            match self.read(word) {
                None | Some(Entry::Absent) => {}
                Some(_) if room == 0 => next = Some(page),
                Some(entry) => {
                    out.push((page, entry));
                    room -= 1;
                }
            }
            next.is_none()
        });
        next
    }

    /// Makes every entry of `range` absent and then reports what it was.
    ///
    /// The report comes after the store, so that a pool slot released by it is referenced by no
    /// table at any moment.
    pub fn clear_range(
        &self,
        range: Range<PageNumber>,
        mut on_drop: impl FnMut(PageNumber, Entry),
    ) {
        self.each_word(range, |page, word| {
            if let Some(old) = self.read(word)
                && old != Entry::Absent
            {
                self.write(word, ABSENT, None);
                on_drop(page, old);
            }
            true
        });
    }

    /// Moves each non-absent entry of the `count` pages at `from` to the same place at `to`.
    ///
    /// `on_drop` gets the entries of `to` that had to give way. A kill leaves one page at most in
    /// both places; moving again finishes the move, and the copy at the destination is then what
    /// gives way, with the reference that a count from the tables has given it.
    ///
    /// # Errors
    /// [`Error::Full`] part of the way, [`Error::Overlap`] and [`Error::NoSuchPage`] before any
    /// change.
    pub fn move_range(
        &self,
        from: PageNumber,
        to: PageNumber,
        count: u64,
        mut on_drop: impl FnMut(PageNumber, Entry),
    ) -> Result<(), Error> {
        for start in [from, to] {
            if start.0.checked_add(count).is_none_or(|end| end > PAGES_END) {
                return Err(Error::NoSuchPage(start.forward(count)));
            }
        }
        if from.0.abs_diff(to.0) < count {
            return Err(Error::Overlap(from, to));
        }
        let mut entries = Vec::new();
        self.for_each(from..from.forward(count), |page, entry| entries.push((page, entry)));
        for (page, entry) in entries {
            let target = to.forward(page.0 - from.0);
            let old = self.get(target);
            if old != Entry::Absent {
                // Never from one payload to another: see `set`.
                self.set(target, Entry::Absent)?;
                on_drop(target, old);
            }
            self.set(target, entry)?;
            self.set(page, Entry::Absent)?;
        }
        Ok(())
    }

    /// Number of entries by state. Lock-free; kept up to date by every change.
    pub fn counts(&self) -> Counts {
        let of = |state: u64| self.states[state as usize].load(Ordering::Relaxed);
        Counts {
            staged: of(STAGED),
            pooled: of(POOLED),
            kept: of(KEPT),
            same: of(SAME),
            lost: of(LOST),
            encoded_bytes: self.encoded_bytes.load(Ordering::Relaxed),
        }
    }

    /// Finds the units that were taken but are linked from nowhere, and makes them usable again.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] when a link leads astray; the free units are then left alone.
    pub fn rebuild(&self) -> Result<(), OpenError> {
        let taken = self.bump().load(Ordering::Acquire);
        if taken > self.units {
            return Err(OpenError::Damaged { word: BUMP_WORD, link: taken });
        }
        let mut linked = vec![false; taken as usize];
        self.claim(ROOT_WORD, &KEYS, &mut linked)?;
        let mut free = FreeUnits::default();
        let units = (1..).zip(&linked);
        units.filter(|(_, linked)| !**linked).for_each(|(unit, _)| free.insert(unit));
        *self.free.lock() = free;
        Ok(())
    }

    /// Marks the units below a link, which may cover no other than these keys.
    fn claim(
        &self,
        place: usize,
        within: &Range<u64>,
        linked: &mut [bool],
    ) -> Result<(), OpenError> {
        let word = self.words.as_ref()[place].load(Ordering::Acquire);
        if word == 0 {
            return Ok(());
        }
        let link = Link::from_word(word);
        let Range { start, end } = link.keys();
        let is_sound = within.start <= start && end <= within.end && start % (end - start) == 0;
        let index = (link.unit() as usize).wrapping_sub(1);
        match linked.get_mut(index) {
            Some(linked) if is_sound && !*linked => *linked = true,
            _ => return Err(OpenError::Damaged { word: place, link: word }),
        }
        if link.level() > 0 {
            for slot in 0..SLOTS {
                self.claim(slot_word(link, slot), &link.keys_of_slot(slot), linked)?;
            }
        }
        Ok(())
    }

    /// Whether so many entries went away that a look for empty leaves pays. Cheap.
    pub fn may_have_empty_leaves(&self) -> bool {
        self.gone.load(Ordering::Relaxed) >= (self.bytes_used() / GONE_BYTES).max(GONE_MIN)
    }

    /// Unlinks leaves without an entry, and the nodes that then are not needed, for later use;
    /// a bounded number at a time, which it returns.
    ///
    /// `give_back` gets position and length in bytes of the pages that hold nothing any more. A
    /// reader that still holds such a leaf finds absent entries, as which zeros count too, and
    /// then looks again.
    pub fn reclaim_empty(&self, mut give_back: impl FnMut(u64, u64)) -> usize {
        let mut unlinked = Vec::new();
        self.prune(ROOT_WORD, &mut unlinked);
        if unlinked.len() < UNITS_AT_A_TIME {
            self.gone.store(0, Ordering::Relaxed);
        }
        self.unlinks.fetch_add(1, Ordering::AcqRel);
        let pages = {
            let mut free = self.free.lock();
            unlinked.iter().for_each(|unit| free.insert(*unit));
            free.whole_pages(&unlinked)
        };
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            let bytes = |pages: u64| pages * PAGE_SIZE as u64;
            let start = HEADER_WORDS as u64 * WORD_BYTES + bytes(run[0]);
            give_back(start, bytes(run.len() as u64));
        }
        unlinked.len()
    }

    /// Unlinks what is below a link and holds no entry. A node with one link left gives way to
    /// what that leads to.
    fn prune(&self, place: usize, unlinked: &mut Vec<u64>) {
        let Some(link) = self.link(place).filter(|_| unlinked.len() < UNITS_AT_A_TIME) else {
            return;
        };
        let words = self.words.as_ref();
        let left = if link.level() == 0 {
            let first = unit_word(link.unit());
            let states = words[first..first + UNIT_WORDS].iter().step_by(2);
            let mut states = states.map(|state| state.load(Ordering::Acquire));
            states.any(|state| state != ABSENT).then_some(link)
        } else {
            (0..SLOTS).for_each(|slot| self.prune(slot_word(link, slot), unlinked));
            let mut links = (0..SLOTS).filter_map(|slot| self.link(slot_word(link, slot)));
            match (links.next(), links.next()) {
                (_, Some(_)) => Some(link),
                (only, None) => only,
            }
        };
        if left != Some(link) {
            words[place].store(left.map_or(0, Link::word), Ordering::Release);
            unlinked.push(link.unit());
        }
    }

    /// Memory taken by the header and the units in use.
    pub fn bytes_used(&self) -> u64 {
        // In this order: beside a writer there are never more free ones than were handed out.
        let free = self.free.lock().count();
        let units = self.bump().load(Ordering::Relaxed) - free;
        HEADER_WORDS as u64 * WORD_BYTES + units * UNIT_BYTES
    }

    fn bump(&self) -> &AtomicU64 {
        &self.words.as_ref()[BUMP_WORD]
    }

    /// The link at this word, if there is one.
    fn link(&self, place: usize) -> Option<Link> {
        let link = Link::from_word(self.words.as_ref()[place].load(Ordering::Acquire));
        // Never false for a link. A reader may hold a node that has become a leaf meanwhile.
        (1..=self.units).contains(&link.unit()).then_some(link)
    }

    fn find_leaf(&self, page: PageNumber) -> Option<u64> {
        let key = page.0 >> LEAF_BITS;
        let (mut place, mut above) = (ROOT_WORD, LEVELS + 1);
        loop {
            // As above: what does not lead down is no link, and nobody follows it for ever.
            let link = self.link(place)?;
            if !link.covers(key) || link.level() >= above {
                return None;
            }
            if link.level() == 0 {
                return Some(link.unit());
            }
            (place, above) = (slot_word(link, link.slot(key)), link.level());
        }
    }

    /// Calls `visit` with each leaf of these keys below a link and the leaf's key, in order, until
    /// it says false.
    fn each_leaf(
        &self,
        place: usize,
        keys: &Range<u64>,
        visit: &mut impl FnMut(u64, u64) -> bool,
    ) -> bool {
        let Some(link) = self.link(place) else { return true };
        let Range { start, end } = link.keys();
        let (first, end) = (keys.start.max(start), keys.end.min(end));
        if first >= end {
            return true;
        }
        if link.level() == 0 {
            return visit(first, link.unit());
        }
        let mut slots = link.slot(first)..=link.slot(end - 1);
        slots.all(|slot| self.each_leaf(slot_word(link, slot), keys, visit))
    }

    /// Calls `visit` with the position of each entry of `range` that has a leaf, until it says
    /// false.
    fn each_word(
        &self,
        range: Range<PageNumber>,
        mut visit: impl FnMut(PageNumber, usize) -> bool,
    ) {
        let (start, end) = (range.start.0, range.end.0.min(PAGES_END));
        let keys = start >> LEAF_BITS..end.div_ceil(LEAF_PAGES);
        self.each_leaf(ROOT_WORD, &keys, &mut |key, leaf| {
            let first = key << LEAF_BITS;
            let mut pages = (first.max(start)..end.min(first + LEAF_PAGES)).map(PageNumber);
            pages.all(|page| visit(page, entry_word(leaf, page)))
        });
    }

    /// Links a zeroed leaf for `page`, which has none, and a node where its way parts from others.
    fn add_leaf(&self, page: PageNumber) -> Result<u64, Error> {
        let key = page.0 >> LEAF_BITS;
        let mut place = ROOT_WORD;
        let mut met = self.link(place);
        while let Some(link) = met.filter(|link| link.level() > 0 && link.covers(key)) {
            place = slot_word(link, link.slot(key));
            met = self.link(place);
        }
        let words = self.words.as_ref();
        let leaf = self.take_unit()?;
        let mut new = Link::to(leaf, 0, key);
        if let Some(other) = met {
            let node = self.take_unit().inspect_err(|_| self.free.lock().insert(leaf))?;
            let other_key = other.keys().start;
            let parting = Link::to(node, Link::level_of_both(key, other_key), key);
            for (key, link) in [(other_key, other), (key, new)] {
                let slot = slot_word(parting, parting.slot(key));
                words[slot].store(link.word(), Ordering::Release);
            }
            new = parting;
        }
        words[place].store(new.word(), Ordering::Release);
        Ok(leaf)
    }

    /// Hands out a zeroed unit that nothing links to yet; rather a used one, which is paid for.
    fn take_unit(&self) -> Result<u64, Error> {
        let used = self.free.lock().take();
        if let Some(unit) = used {
            let start = unit_word(unit);
            // An unlinked leaf still has its payload words. Release, for readers that hold it.
            for word in &self.words.as_ref()[start..start + UNIT_WORDS] {
                word.store(0, Ordering::Release);
            }
            return Ok(unit);
        }
        let unit = self.bump().load(Ordering::Acquire) + 1;
        if unit > self.units {
            return Err(Error::Full { units: self.units });
        }
        self.bump().store(unit, Ordering::Release);
        Ok(unit)
    }

    /// Reads the entry at `word`; `None` while its payload is being replaced.
    ///
    /// The payload belongs to the state only if the state did not change around it.
    fn read(&self, word: usize) -> Option<Entry> {
        let words = self.words.as_ref();
        let mut state = words[word].load(Ordering::Acquire);
        loop {
            if !has_payload(state) {
                return (state & STATE_BITS != CHANGING).then(|| decode(state, 0));
            }
            let payload = words[word + 1].load(Ordering::Acquire);
            let again = words[word].load(Ordering::Acquire);
            if again == state {
                return Some(decode(state, payload));
            }
            state = again;
        }
    }

    /// Stores an entry so that any prefix of the stores is valid, and keeps the counts.
    fn write(&self, word: usize, state: u64, payload: Option<u64>) {
        let words = self.words.as_ref();
        let old = words[word].load(Ordering::Acquire);
        self.recount(old, |count, by| {
            count.fetch_sub(by, Ordering::Relaxed);
        });
        self.recount(state, |count, by| {
            count.fetch_add(by, Ordering::Relaxed);
        });
        if state == ABSENT && old != ABSENT {
            self.gone.fetch_add(1, Ordering::Relaxed);
        }
        let old = (old, words[word + 1].load(Ordering::Relaxed));
        for (place, value) in stores(old, state, payload).into_iter().flatten() {
            // Release, so that a reader who sees the payload also sees that the state changed.
            words[word + place].store(value, Ordering::Release);
        }
    }

    fn recount(&self, state: u64, change: impl Fn(&AtomicU64, u64)) {
        let kind = state & STATE_BITS;
        if kind != ABSENT
            && let Some(count) = self.states.get(kind as usize)
        {
            change(count, 1);
        }
        if kind == POOLED || kind == KEPT {
            change(&self.encoded_bytes, (state >> LEN_SHIFT) & LEN_BITS);
        }
    }

    /// Counts from zero, and settles what a dead writer left unfinished.
    fn count_all(&self) {
        let words = self.words.as_ref();
        self.each_word(PageNumber(0)..PageNumber(PAGES_END), |_, word| {
            let state = words[word].load(Ordering::Acquire);
            if state != ABSENT && encode(decode(state, 0)).is_none_or(|(known, _)| known != state) {
                words[word].store(LOST, Ordering::Release);
            }
            self.recount(words[word].load(Ordering::Acquire), |count, by| {
                count.fetch_add(by, Ordering::Relaxed);
            });
            true
        });
    }
}

/// Position of the first word of a unit. Units count from 1, so that 0 means "no node".
const fn unit_word(unit: u64) -> usize {
    HEADER_WORDS + (unit as usize - 1) * UNIT_WORDS
}

/// Position of a link in the node that another link leads to.
const fn slot_word(link: Link, slot: usize) -> usize {
    unit_word(link.unit()) + slot
}

/// Position of the state word of `page` in its leaf.
const fn entry_word(leaf: u64, page: PageNumber) -> usize {
    unit_word(leaf) + 2 * (page.0 & (LEAF_PAGES - 1)) as usize
}
