//! The state of every managed page of one target, in shared memory that outlives this process.
//!
//! A kill -9 of the daemon must not lose where a page is: the table lies in a memfd that the
//! keeper also holds, and a new daemon maps it and goes on. Hence the two rules of this file:
//!
//! - **No pointers, only positions**, so that the memory means the same in every process.
//! - **Every prefix of our stores is a valid table.** A node is linked only once it is known to
//!   be zero. Of an entry's two words the payload is written first and the state last, with
//!   release order. Where a payload in use has to be replaced by another one, the entry passes
//!   through [`CHANGING`], which a later `open` reads as lost: a page may be lost by a bug, but
//!   it is never answered with the bytes of another.
//!
//! Shape: a tree of four levels over the 47-bit address space (root 13, two mids of 8, leaf 6
//! bits). A leaf covers 256 KiB in 1 KiB of table, 0.4 % of the memory it describes. Nodes are
//! small and lie together, because some programs scatter their memory: V8 asks for each chunk of
//! 256 KiB at a random address, and a chunk alone costs 5 KiB here.
//!
//! One writer at a time: the caller holds its lock around everything but [`PageTable::get`] and
//! [`PageTable::counts`], which any thread may call at any moment and which take no lock.

use std::collections::BTreeSet;
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

mod entry;

#[cfg(test)]
mod tests;

/// Words before the root. The caller's own header may use those below [`OWN_HEADER_WORD`].
pub const HEADER_WORDS: usize = 1024;
/// First header word that belongs to the table: how many units were ever handed out.
pub const OWN_HEADER_WORD: usize = 1016;

const ROOT_WORDS: usize = 1 << 13;
/// Where the units begin. A table must have at least this many words; each KiB more is a unit.
pub const NODES_START: usize = HEADER_WORDS + ROOT_WORDS;
/// Nodes are handed out in units of this many words.
pub const UNIT_WORDS: usize = 128;
const MID_UNITS: u64 = 2;
const MID_SLOTS: u64 = 1 << MID_BITS;
const LEAF_PAGES: u64 = 1 << LEAF_BITS;
const MID_BITS: u32 = 8;
const LEAF_BITS: u32 = 6;
const WORD_BYTES: u64 = 8;
const UNIT_BYTES: u64 = UNIT_WORDS as u64 * WORD_BYTES;

/// Looks at a changing entry this often before going to sleep: the writer needs two stores, but
/// it may have been preempted by the very thread that waits for it.
const SPINS_BEFORE_SLEEP: u32 = 64;
const CHANGING_SLEEP: Duration = Duration::from_micros(20);
/// Fewest entries that must have gone before a look for empty leaves.
const GONE_MIN: u64 = 1024;
/// Most leaves reclaimed at a time: bounds how long the lock is held.
const LEAVES_AT_A_TIME: usize = 2048;

/// Memory of a table for entries in these ranges of addresses, which are in order.
#[must_use]
pub fn bytes_for(ranges: &[Range<u64>]) -> u64 {
    // Parts of the address space, each of so many bits, in which there is an entry.
    let parts = |bits: u32| {
        let (mut count, mut seen) = (0, None);
        for range in ranges.iter().filter(|range| range.start < range.end) {
            let (first, last) = (range.start >> bits, (range.end - 1) >> bits);
            count += last + 1 - first - u64::from(seen == Some(first));
            seen = Some(last);
        }
        count
    };
    let leaf_bits = PAGE_SHIFT + LEAF_BITS;
    let (lower, upper) = (parts(leaf_bits + MID_BITS), parts(leaf_bits + 2 * MID_BITS));
    let units = parts(leaf_bits) + (lower + upper) * MID_UNITS;
    // Of the root only those pages are there that hold a link.
    let root_bits = leaf_bits + 2 * MID_BITS + (PAGE_SIZE as u64 / WORD_BYTES).ilog2();
    let pages = parts(root_bits) * PAGE_SIZE as u64;
    HEADER_WORDS as u64 * WORD_BYTES + pages + units * UNIT_BYTES
}

/// Why a table could not be changed. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No unit is left in the memory of the table.
    #[error("page table is full: {units} units of 1 KiB")]
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
    /// Not even the root fits.
    #[error("page table memory too small: {words} words, {NODES_START} needed")]
    TooSmall {
        /// Words given.
        words: usize,
    },
    /// A link leads outside the units handed out, or twice to the same unit.
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
    /// Goes up when leaves were unlinked and before any of them is used again, so that a reader
    /// that still holds one notices.
    unlinks: AtomicU64,
    /// Units below the bump position that nothing links to. Volatile: `rebuild` finds them again.
    free: Mutex<BTreeSet<u64>>,
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
        if len < NODES_START {
            return Err(OpenError::TooSmall { words: len });
        }
        let table = Self {
            units: ((len - NODES_START) / UNIT_WORDS) as u64,
            words,
            states: Default::default(),
            encoded_bytes: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            unlinks: AtomicU64::new(0),
            free: Mutex::new(BTreeSet::new()),
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
    /// [`OpenError::Damaged`] when a link leads astray; the free list is then left alone.
    pub fn rebuild(&self) -> Result<(), OpenError> {
        let taken = self.bump().load(Ordering::Acquire);
        if taken > self.units {
            return Err(OpenError::Damaged { word: OWN_HEADER_WORD, link: taken });
        }
        let mut unlinked: BTreeSet<u64> = (1..=taken).collect();
        let mut claim = |word: usize, size: u64| {
            let link = self.words.as_ref()[word].load(Ordering::Acquire);
            let last = link.checked_add(size - 1);
            if link != 0 && !last.is_some_and(|last| (link..=last).all(|u| unlinked.remove(&u))) {
                return Err(OpenError::Damaged { word, link });
            }
            Ok(link)
        };
        for root_word in HEADER_WORDS..NODES_START {
            for upper_word in words_of(claim(root_word, MID_UNITS)?) {
                for lower_word in words_of(claim(upper_word, MID_UNITS)?) {
                    claim(lower_word, 1)?;
                }
            }
        }
        *self.free.lock() = unlinked;
        Ok(())
    }

    /// Whether so many entries went away that a look for empty leaves pays. Cheap.
    pub fn may_have_empty_leaves(&self) -> bool {
        self.gone.load(Ordering::Relaxed) >= (self.bytes_used() / UNIT_BYTES).max(GONE_MIN)
    }

    /// Unlinks leaves without an entry (some hundred at most) for later use; returns how many.
    ///
    /// `give_back` gets position and length in bytes of each run of them. A reader that still holds
    /// such a leaf finds absent entries, as which zeros count too, and then looks again. Mid nodes
    /// stay: there are few, and their addresses come back.
    pub fn reclaim_empty(&self, mut give_back: impl FnMut(u64, u64)) -> usize {
        let mut unlinked = BTreeSet::new();
        let mut page = PageNumber(0);
        while let Some((start, leaf)) = self.next_leaf(page, PageNumber(PAGES_END))
            && unlinked.len() < LEAVES_AT_A_TIME
        {
            let first = unit_word(leaf);
            let words = &self.words.as_ref()[first..first + UNIT_WORDS];
            if words.iter().step_by(2).all(|word| word.load(Ordering::Acquire) == ABSENT)
                && let Some(link) = self.leaf_link(start)
            {
                link.store(0, Ordering::Release);
                unlinked.insert(leaf);
            }
            page = PageNumber((start.0 | (LEAF_PAGES - 1)) + 1);
        }
        if unlinked.len() < LEAVES_AT_A_TIME {
            self.gone.store(0, Ordering::Relaxed);
        }
        self.unlinks.fetch_add(1, Ordering::AcqRel);
        let mut units = unlinked.iter().peekable();
        while let Some(&first) = units.next() {
            let mut length = 1;
            while units.next_if_eq(&&(first + length)).is_some() {
                length += 1;
            }
            give_back(unit_word(first) as u64 * WORD_BYTES, length * UNIT_BYTES);
        }
        let count = unlinked.len();
        self.free.lock().append(&mut unlinked);
        count
    }

    /// Memory taken by header, root and the units in use.
    pub fn bytes_used(&self) -> u64 {
        let units = self.bump().load(Ordering::Relaxed) - self.free.lock().len() as u64;
        NODES_START as u64 * WORD_BYTES + units * UNIT_BYTES
    }

    fn bump(&self) -> &AtomicU64 {
        &self.words.as_ref()[OWN_HEADER_WORD]
    }

    /// The word of the root that links to the upper mid node of `page`.
    fn upper_link(&self, page: PageNumber) -> Option<&AtomicU64> {
        let slot = page.0 >> (2 * MID_BITS + LEAF_BITS);
        page.is_valid().then(|| &self.words.as_ref()[HEADER_WORDS + slot as usize])
    }

    /// The word of an upper mid node that links to the lower one of `page`, if there is an upper.
    fn lower_link(&self, page: PageNumber) -> Option<&AtomicU64> {
        self.link_in(self.upper_link(page)?, page.0 >> (MID_BITS + LEAF_BITS))
    }

    /// The word of a lower mid node that links to the leaf of `page`, if there is a lower one.
    fn leaf_link(&self, page: PageNumber) -> Option<&AtomicU64> {
        self.link_in(self.lower_link(page)?, page.0 >> LEAF_BITS)
    }

    /// The word in the mid node that `link` leads to, if it leads to one.
    fn link_in(&self, link: &AtomicU64, index: u64) -> Option<&AtomicU64> {
        let node = link.load(Ordering::Acquire);
        let slot = (index & (MID_SLOTS - 1)) as usize;
        (node != 0).then(|| &self.words.as_ref()[unit_word(node) + slot])
    }

    fn find_leaf(&self, page: PageNumber) -> Option<u64> {
        let leaf = self.leaf_link(page)?.load(Ordering::Acquire);
        (leaf != 0).then_some(leaf)
    }

    /// The first leaf that covers a page of `page..end`, with the first such page.
    fn next_leaf(&self, page: PageNumber, end: PageNumber) -> Option<(PageNumber, u64)> {
        let end = end.0.min(PAGES_END);
        let mut page = page.0;
        while page < end {
            let start = PageNumber(page);
            let step = match (self.lower_link(start), self.leaf_link(start)) {
                (None, _) => 2 * MID_BITS + LEAF_BITS,
                (Some(_), None) => MID_BITS + LEAF_BITS,
                (Some(_), Some(link)) => match link.load(Ordering::Acquire) {
                    0 => LEAF_BITS,
                    leaf => return Some((start, leaf)),
                },
            };
            page = ((page >> step) + 1) << step;
        }
        None
    }

    /// Calls `visit` with the position of each entry of `range` that has a leaf, until it says
    /// false.
    fn each_word(
        &self,
        range: Range<PageNumber>,
        mut visit: impl FnMut(PageNumber, usize) -> bool,
    ) {
        let mut page = range.start;
        while let Some((start, leaf)) = self.next_leaf(page, range.end) {
            let stop = range.end.0.min(start.0 + left_in_leaf(start));
            for page in (start.0..stop).map(PageNumber) {
                if !visit(page, entry_word(leaf, page)) {
                    return;
                }
            }
            page = PageNumber(stop);
        }
    }

    /// Links a zeroed leaf for `page`, and mid nodes before it where there are none.
    fn add_leaf(&self, page: PageNumber) -> Result<u64, Error> {
        let no_such_page = Error::NoSuchPage(page);
        if self.lower_link(page).is_none() {
            let upper = self.take_units(MID_UNITS)?;
            self.upper_link(page).ok_or(no_such_page)?.store(upper, Ordering::Release);
        }
        if self.leaf_link(page).is_none() {
            let lower = self.take_units(MID_UNITS)?;
            self.lower_link(page).ok_or(no_such_page)?.store(lower, Ordering::Release);
        }
        let leaf = self.take_units(1)?;
        self.leaf_link(page).ok_or(no_such_page)?.store(leaf, Ordering::Release);
        Ok(leaf)
    }

    /// Hands out `count` adjacent zeroed units that nothing links to yet.
    ///
    /// Leaves prefer used units, which are already paid for; mid nodes prefer fresh ones, because
    /// adjacent used ones are rare.
    fn take_units(&self, count: u64) -> Result<u64, Error> {
        let mut free = self.free.lock();
        let fresh = self.bump().load(Ordering::Acquire);
        let fresh_fits = self.units - fresh >= count;
        let used = if count > 1 && fresh_fits { None } else { first_run(&free, count) };
        if let Some(first) = used {
            for unit in first..first + count {
                free.remove(&unit);
            }
            let start = unit_word(first);
            // An unlinked leaf still has its payload words. Release, for readers that hold it.
            for word in &self.words.as_ref()[start..start + count as usize * UNIT_WORDS] {
                word.store(0, Ordering::Release);
            }
            return Ok(first);
        }
        if !fresh_fits {
            return Err(Error::Full { units: self.units });
        }
        self.bump().store(fresh + count, Ordering::Release);
        Ok(fresh + 1)
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
    NODES_START + (unit as usize - 1) * UNIT_WORDS
}

/// Positions of the links of a mid node; none for link 0.
fn words_of(node: u64) -> Range<usize> {
    if node == 0 { 0..0 } else { unit_word(node)..unit_word(node) + MID_SLOTS as usize }
}

/// Position of the state word of `page` in its leaf.
const fn entry_word(leaf: u64, page: PageNumber) -> usize {
    unit_word(leaf) + 2 * (page.0 & (LEAF_PAGES - 1)) as usize
}

/// Pages from `page` to the end of its leaf.
const fn left_in_leaf(page: PageNumber) -> u64 {
    LEAF_PAGES - (page.0 & (LEAF_PAGES - 1))
}

/// The lowest `count` adjacent members of `free`.
fn first_run(free: &BTreeSet<u64>, count: u64) -> Option<u64> {
    let mut start = *free.first()?;
    let mut next = start;
    for &unit in free {
        if unit != next {
            start = unit;
        }
        next = unit + 1;
        if next - start == count {
            return Some(start);
        }
    }
    None
}
