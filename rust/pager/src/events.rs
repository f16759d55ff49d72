//! Keeping the table true when the program changes its address space.
//!
//! An event takes effect in the kernel first and is queued afterwards, by the thread that caused
//! it; it counts as *open* from its effect until we read it.  The kernel refuses every copy and
//! move while an event is open (`mmap_changing`), so nothing is ever installed on stale ground.
//! But events of different threads that are open together may be queued in either order: thread A
//! moves a range away, thread B moves another one onto the freed addresses, and B's event comes
//! first; or A's "unmapped" for its old addresses comes after B's "moved" onto them.  So:
//!
//! - nothing is read before all that took effect is queued (`debtors.rs`), and no more than was
//!   queued then (`reads.rs`), so that every read is a *cut* through the program's history; while
//!   the threads wait for us in their calls, we look which ones these are, and by them we know what
//!   each message means (`cuts.rs`);
//! - the events of a cut are put into their turn, who leaves a place before who comes to it, and
//!   then applied, each marked begun before and done after; a new engine goes on with a cut as if
//!   nothing had happened, wherever the old one died.  Nothing could be installed before that
//!   anyway;
//! - a program that has not moved a mapping yet is spared the looks: without moves the order means
//!   nothing.  Its events, and those of children that we know no pid of, are gathered until no
//!   event is open ([`Userfaultfd::is_changing`] asks the kernel), and put in the order in which
//!   they must have taken effect, by what is watched where they meet (`order.rs`).  All these stay
//!   in the journal to the end of their *window*;
//! - a child that was forked meanwhile is told of such moves by what its own mappings show, and is
//!   not served before all this;
//! - a mapping that a page out began to watch meanwhile is *fresh*: it does not count as watched in
//!   all this, so moves are the only way for a watched mapping to appear.

use crate::address::{ByteAddress, PAGE_SIZE, PageNumber};
use crate::cuts::kept::Begun;
use crate::cuts::{Cut, Held};
use crate::order::{self, Event};
use crate::page_table::Entry;
use crate::points;
use crate::region;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::stats::increment;
use crate::sys::pagemap::{Filter, WATCHED};
use crate::sys::userfaultfd::{FORK_INODE_WORD, MESSAGE_WORDS, Message, UNMAPPED, decode_message};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(test)]
mod cut_tests;
#[cfg(test)]
mod tests;

const PAGE: u64 = PAGE_SIZE as u64;

/// What the head of a message in the journal says beside its kind; the kernel leaves these bits 0.
mod head {
    /// What the kernel says.
    pub const KIND: u64 = 0xff;
    /// The read that brought it, counted from the first of the window; 0: not noted yet.
    pub const READ_SHIFT: u32 = 16;
    pub const READ_BITS: u64 = 0xffff;
    /// It may have taken effect in part.
    pub const BEGUN: u64 = 1 << 8;
    /// It took effect.
    pub const DONE: u64 = 1 << 9;
    /// It says nothing new.
    pub const ECHO: u64 = 1 << 10;
    /// The place that something comes to has no other tenant any more; it is ours.
    pub const CLEARS: u64 = 1 << 11;
    /// It is ours, not the kernel's.
    pub const OURS: u64 = 1 << 12;
    /// As which one of the window it is applied, from 1; 0: not known yet.
    pub const TURN_SHIFT: u32 = 32;
    /// Both of these.
    pub const NOTED: u64 = u64::MAX << TURN_SHIFT | ECHO;
}

/// A move that was applied together with other events.
#[derive(Clone, Copy, Debug)]
struct Moved {
    from: PageNumber,
    to: PageNumber,
    count: u64,
}

/// An event in the journal.
struct Noted<'a> {
    head: &'a AtomicU64,
    word: u64,
    message: Message,
}

impl Noted<'_> {
    const fn is(&self, state: u64) -> bool {
        self.word & state != 0
    }

    const fn read(&self) -> u64 {
        (self.word >> head::READ_SHIFT) & head::READ_BITS
    }

    const fn turn(&self) -> u64 {
        self.word >> head::TURN_SHIFT
    }

    const fn plain(&self) -> Event {
        Event { message: self.message, read: self.read(), clears: self.is(head::CLEARS) }
    }

    /// The move that it was, if it was one and took effect.
    fn moved(&self) -> Option<Moved> {
        match self.message {
            Message::Remap { from, to, length } if self.is(head::DONE) => Some(Moved {
                from: ByteAddress(from).page(),
                to: ByteAddress(to).page(),
                count: length.div_ceil(PAGE),
            }),
            _ => None,
        }
    }
}

/// The message at a place of the journal.
pub(crate) fn load(message: &[AtomicU64]) -> Option<Message> {
    let first = message[0].load(Ordering::Acquire);
    let word = |index: usize| message[index].load(Ordering::Acquire);
    (first != 0).then(|| decode_message([first, word(1), word(2), word(3)]))
}

impl Space {
    /// Take what a read has brought for all that took effect before it, and apply it, if nothing of
    /// it is left to be told.
    pub(crate) fn take_cut(&self, core: &mut Core, shared: &Shared, kit: &mut Kit, calls: &[Held]) {
        let known: Vec<Event> =
            self.noted().map(|event| event.plain()).filter(|event| event.read > 0).collect();
        let last = known.iter().map(|event| event.read).max().unwrap_or(0);
        // Where something came by what the last read had brought too early, and whether its former
        // tenant has left: if not, he did before, and is told of now.
        let left = |range: &Range<u64>| {
            let is_it = |event: &Event| {
                event.read < last
                    && order::overlaps(Some(range), order::source(&event.message).as_ref())
            };
            known.iter().any(is_it)
        };
        let early = |event: &&Event| core.blurred && event.read == last;
        let arrivals =
            known.iter().filter(early).filter_map(|event| order::arrival(&event.message));
        let mut came: Vec<_> = arrivals.map(|range| (left(&range), range)).collect();
        let read = if core.blurred { last.max(1) } else { last + 1 };
        let new: Vec<Noted<'_>> = self.noted().filter(|event| event.read() == 0).collect();
        let messages: Vec<Message> = new.iter().map(|event| event.message).collect();
        let cut = core.cuts.judge(&messages, calls);
        let mut reads = Vec::with_capacity(new.len());
        for (number, (event, judgement)) in new.iter().zip(&cut.judgements).enumerate() {
            let source = order::source(&event.message);
            let place = came.iter_mut().find(|(_, place)| {
                !judgement.echo && order::overlaps(Some(place), source.as_ref())
            });
            let makes_room = place.is_some_and(|(left, _)| !std::mem::replace(left, true));
            let steps = u64::from(core.blurred && !makes_room);
            let echo = if judgement.echo { head::ECHO } else { 0 };
            // The call cleared the place first, and has told of that; nobody has unmapped it since.
            let cleared = |known: &&Event| {
                cut.taken.iter().any(|(index, place)| {
                    *index == number
                        && known.message == Message::Unmap { start: place.start, end: place.end }
                })
            };
            let told = known.iter().filter(|_| judgement.earlier).filter(cleared);
            let read = told.map(|known| known.read).max().unwrap_or(read + steps);
            event.head.store(event.word | echo | read << head::READ_SHIFT, Ordering::Release);
            reads.push(read);
        }
        self.add_clearings(core, &cut, &reads, known.is_empty());
        points::pass("event.read");
        core.blurred = false;
        self.table.kept_calls().store(core.cuts.calls(), None);
        let has_room = (core.held + 2 * calls.len()) * MESSAGE_WORDS < self.table.journal().len();
        if !has_room || core.cuts.are_whole() {
            self.apply_cut(core, shared, kit);
        }
    }

    /// Add to the journal what calls have given up and taken beyond what their messages say.
    fn add_clearings(&self, core: &mut Core, cut: &Cut, reads: &[u64], is_first: bool) {
        let given_up = cut.given_up.iter().map(|given| (given, head::OURS));
        let taken = cut.taken.iter().map(|taken| (taken, head::OURS | head::CLEARS));
        // What nobody has pages at is clear, if no event may bring some first.
        let needed = |&((_, range), _): &(&(usize, Range<u64>), u64)| {
            !is_first || !cut.given_up.is_empty() || self.is_occupied(range.clone())
        };
        for ((index, range), flag) in given_up.chain(taken).filter(needed) {
            let places = self.table.journal().chunks_exact(MESSAGE_WORDS);
            let Some(words) = places.into_iter().nth(core.held) else { return };
            self.table.set_journal_used(core.held + 1);
            words[1].store(range.start, Ordering::Relaxed);
            words[2].store(range.end, Ordering::Relaxed);
            let word = UNMAPPED | flag | reads[*index] << head::READ_SHIFT;
            words[0].store(word, Ordering::Release);
            core.held += 1;
        }
    }

    /// Apply all events of the journal, read by read.
    fn apply_cut(&self, core: &mut Core, shared: &Shared, kit: &mut Kit) {
        let events: Vec<Noted<'_>> = self.noted().collect();
        let window: Vec<Event> = events.iter().map(Noted::plain).collect();
        // Who comes to a place that was left need not wait for the echo of that.
        let (echoes, news): (Vec<_>, Vec<_>) =
            (0..window.len()).partition(|index| events[*index].is(head::ECHO));
        let turns = order::by_reads(&window, &news).into_iter().chain(echoes);
        for (number, index) in (1..).zip(turns) {
            let event = &events[index];
            let word = event.word & !(u64::MAX << head::TURN_SHIFT);
            event.head.store(number << head::TURN_SHIFT | word, Ordering::Release);
            points::pass("event.turn_noted");
        }
        self.table.open_window(&[]);
        points::pass("event.ordered");
        self.apply_window(core, shared, kit, &[]);
    }

    /// Apply all events of the journal; false if one that is not among them has come meanwhile.
    pub(crate) fn settle_window(&self, core: &mut Core, shared: &Shared, kit: &mut Kit) -> bool {
        if core.moves && !core.unjudged {
            self.apply_cut(core, shared, kit);
            return true;
        }
        let is_full = core.held * MESSAGE_WORDS == self.table.journal().len();
        let landscape = self.survey(core);
        // What was seen is what the events read so far have led to only if none came after it.
        if !is_full && landscape.is_some() && self.descriptor.is_changing() {
            return false;
        }
        let landscape = landscape.unwrap_or_default();
        self.table.open_window(&landscape);
        points::pass("event.ordered");
        self.apply_window(core, shared, kit, &landscape);
        true
    }

    /// In the journal of a killed engine: name the descriptors of forked children by what outlives
    /// the engine, their inodes, instead of their numbers in its table.
    pub fn name_children(&self, inode_of_number: impl Fn(RawFd) -> Option<u64>) -> Vec<u64> {
        let mut named = Vec::new();
        let places = self.table.journal().chunks_exact(MESSAGE_WORDS);
        for message in places.take(self.table.journal_used()) {
            if let Some(Message::Fork { descriptor, inode }) = load(message) {
                let inode = if inode == 0 {
                    inode_of_number(descriptor).unwrap_or(u64::MAX)
                } else {
                    inode
                };
                message[FORK_INODE_WORD].store(inode, Ordering::Release);
                named.push(inode);
            }
        }
        named
    }

    /// The events in the journal.
    fn noted(&self) -> impl Iterator<Item = Noted<'_>> {
        let places = self.table.journal().chunks_exact(MESSAGE_WORDS);
        places.take(self.table.journal_used()).filter_map(|words| {
            let message =
                load(words).filter(|message| !matches!(message, Message::Fault { .. }))?;
            Some(Noted { head: &words[0], word: words[0].load(Ordering::Acquire), message })
        })
    }

    /// Take what was read without knowing whether all was queued.
    pub(crate) fn note_unjudged(&self, core: &mut Core, apart: bool) {
        self.table.kept_calls().forget();
        self.number_reads(apart);
        let is_move = |event: Noted<'_>| matches!(event.message, Message::Remap { .. });
        core.moves |= self.noted().any(is_move);
        (core.blurred, core.unjudged) = (true, true);
        points::pass("event.read");
    }

    /// Begin to read a cut of so many events: what is known of it outlives this engine.
    pub(crate) fn begin_cut(&self, core: &Core, calls: &[Held], events: usize) {
        let kept = self.table.kept_calls();
        if core.unjudged {
            kept.forget();
        } else {
            let begun = Begun { first: core.held, events };
            kept.store(&core.cuts.with_told(calls), Some(begun));
        }
    }

    /// Go on with the cut that a killed engine was reading, or with what it had judged; false if
    /// nothing is known of how its journal was read.
    ///
    /// # Errors
    /// What `read` says, which reads so many events more.
    pub fn resume_cut(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        read: impl FnOnce(&mut Core, usize) -> std::io::Result<usize>,
    ) -> std::io::Result<bool> {
        let Some((calls, begun)) = self.table.kept_calls().load() else { return Ok(false) };
        if begun.is_none() && self.noted().any(|event| event.read() == 0) {
            return Ok(false);
        }
        core.held = self.take_faults(core, self.table.journal_used());
        core.moves = true;
        core.cuts.restore(&calls);
        let Some(Begun { first, events }) = begun else {
            if core.cuts.are_whole() {
                self.apply_cut(core, shared, kit);
            }
            return Ok(true);
        };
        let known = self.as_they_were_read(first);
        let more = events.saturating_sub(known);
        if known + if more > 0 { read(core, more)? } else { 0 } > 0 {
            let calls: Vec<Held> = calls.into_iter().map(|call| call.0).collect();
            self.take_cut(core, shared, kit, &calls);
        }
        Ok(true)
    }

    /// Undo what was noted with the events from a place of the journal on; returns how many they
    /// are.
    fn as_they_were_read(&self, first: usize) -> usize {
        let mut count = 0;
        let journal = self.table.journal().chunks_exact(MESSAGE_WORDS);
        for words in journal.take(self.table.journal_used()).skip(first) {
            let word = words[0].load(Ordering::Acquire);
            let is_kernels = word != 0 && word & head::OURS == 0;
            words[0].store(if is_kernels { word & head::KIND } else { 0 }, Ordering::Release);
            count += usize::from(is_kernels);
        }
        count
    }

    /// Note with each event which read has brought it; those without a number came last, `apart` if
    /// who was woken by one of them may have queued another one.
    fn number_reads(&self, apart: bool) {
        let mut last = self.noted().map(|event| event.read()).max().unwrap_or(0);
        let new = self.noted().filter(|event| event.read() == 0);
        for (index, event) in new.enumerate() {
            last += u64::from(apart || index == 0);
            event.head.store(event.word | last << head::READ_SHIFT, Ordering::Release);
        }
    }

    /// What is watched now where events of the journal meet; `None` if none do.
    fn survey(&self, core: &Core) -> Option<Vec<Range<u64>>> {
        let window: Vec<Event> = self.noted().map(|event| event.plain()).collect();
        let meetings = Some(order::meetings(&window)).filter(|meetings| !meetings.is_empty());
        meetings.map(|all| all.into_iter().flat_map(|range| self.watched(core, range)).collect())
    }

    /// Drop what a killed engine had added to events that it did not come to apply.
    pub fn drop_clearings(&self) {
        if self.table.window().is_none() {
            let added = self.noted().filter(|event| event.is(head::CLEARS));
            added.for_each(|event| event.head.store(0, Ordering::Release));
        }
    }

    /// Go on with a window that a killed engine was applying.
    pub(crate) fn finish_window(&self, core: &mut Core, shared: &Shared, kit: &mut Kit) {
        if let Some(kept) = self.table.window() {
            let landscape = kept.or_else(|| self.survey(core)).unwrap_or_default();
            self.apply_window(core, shared, kit, &landscape);
        }
    }

    /// Apply the events in the journal, which no other event is open with.
    ///
    /// All have their turn before the first is applied; applying one twice does no harm, if nothing
    /// else was applied in between.  So a new engine goes on exactly where a killed one stopped.
    fn apply_window(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        landscape: &[Range<u64>],
    ) {
        if self.noted().any(|event| event.turn() == 0) {
            self.note_turns(landscape);
        }
        let mut events: Vec<Noted<'_>> = self.noted().collect();
        events.sort_by_key(Noted::turn);
        for event in events.iter().filter(|event| !event.is(head::DONE)) {
            event.head.store(event.word | head::BEGUN, Ordering::Release);
            points::pass("event.begun");
            self.apply(core, shared, kit, event.message, event.is(head::ECHO));
            points::pass("event.applied");
            event.head.store(event.word | head::BEGUN | head::DONE, Ordering::Release);
        }
        self.end_window(core, shared);
    }

    /// Note with each event its turn.
    fn note_turns(&self, landscape: &[Range<u64>]) {
        let events: Vec<Noted<'_>> = self.noted().collect();
        let window: Vec<Event> = events.iter().map(Noted::plain).collect();
        let turns = order::put_in_order(&window, |range| self.is_occupied(range), landscape);
        for (number, turn) in (1..).zip(turns) {
            let event = &events[turn.index];
            let echo = if turn.echo { head::ECHO } else { 0 };
            let noted = number << head::TURN_SHIFT | echo | event.word & !head::NOTED;
            event.head.store(noted, Ordering::Release);
            points::pass("event.turn_noted");
        }
    }

    fn end_window(&self, core: &mut Core, shared: &Shared) {
        self.table.forget_fresh();
        core.fresh.clear();
        for event in self.noted() {
            event.head.store(0, Ordering::Release);
        }
        points::pass("event.cleared");
        self.table.close_window();
        self.table.set_journal_used(0);
        core.held = 0;
        (core.blurred, core.unjudged) = (false, false);
        for child in core.unborn.drain(..) {
            if shared.adopt(child).is_err() {
                increment(&shared.counters.pages_lost);
            }
        }
    }

    fn apply(&self, core: &mut Core, shared: &Shared, kit: &mut Kit, message: Message, echo: bool) {
        match message {
            Message::Fork { descriptor, inode } => {
                increment(&shared.counters.events_fork);
                points::pass("fork.read");
                self.on_fork(core, shared, kit, descriptor, inode);
                // Made by an engine that was killed before it told the child of the moves.
                let made = |child: &&Arc<Self>| child.table.descriptor_inode() == inode;
                if let Some(child) = core.unborn.iter().find(made) {
                    self.undo_moves_after_fork(core, shared, child);
                }
            }
            Message::Remap { from, to, length } => {
                increment(&shared.counters.events_remap);
                let moved = Moved {
                    from: ByteAddress(from).page(),
                    to: ByteAddress(to).page(),
                    count: length.div_ceil(PAGE),
                };
                self.on_remap(core, shared, &moved);
            }
            Message::Remove { start, end } => {
                increment(&shared.counters.events_remove);
                self.clear(core, shared, start..end);
                core.quarantine.add(start..end);
            }
            Message::Unmap { start, end } => {
                increment(&shared.counters.events_unmap);
                if !echo {
                    self.clear(core, shared, start..end);
                    self.clear_in_children(core, shared, start..end);
                }
            }
            Message::Fault { .. } | Message::Unknown(_) => {}
        }
    }

    fn clear(&self, core: &mut Core, shared: &Shared, range: Range<u64>) {
        let pages = ByteAddress(range.start).page()..ByteAddress(range.end).page_up();
        self.table.clear_range(pages, |_, entry| {
            if let Entry::Staged { slot } = entry {
                self.release_slot(core, shared, slot);
            }
            shared.store.release(self.header.domain, &entry);
        });
    }

    /// Who was forked after the range had gone has no mapping there.
    fn clear_in_children(&self, core: &Core, shared: &Shared, range: Range<u64>) {
        for child in &core.unborn {
            let mut gone = Vec::new();
            let pages = ByteAddress(range.start).page()..ByteAddress(range.end).page_up();
            child.table.for_each(pages, |page, _| {
                if child.descriptor.watches(page.start().0) == Some(false) {
                    gone.push(page);
                }
            });
            let core = &mut *child.core.lock();
            for page in gone {
                child.clear(core, shared, page.start().0..page.forward(1).start().0);
            }
        }
    }

    /// Parts of a range that are watched now, and were before the open events; nothing if that
    /// cannot be seen.
    #[must_use]
    pub fn watched(&self, core: &Core, range: Range<u64>) -> Vec<Range<u64>> {
        let filter = Filter { all_of: WATCHED, any_of: 0, none_of: 0 };
        let mut found = Vec::new();
        if let Some(pagemap) = &self.pagemap {
            // Unreadable: the address space is gone, and nothing matters any more.
            let _ = pagemap.scan(range, filter, &mut found);
        }
        found.into_iter().flat_map(|part| region::subtract(part, &core.fresh)).collect()
    }

    /// What was fresh is like any other mapping once no event is open.
    pub fn settle_fresh(&self, core: &mut Core) {
        if !core.fresh.is_empty() && !self.descriptor.is_changing() {
            core.fresh.clear();
            self.table.forget_fresh();
        }
        core.fresh.sort_by_key(|part| part.start);
        core.fresh.iter().for_each(|part| self.table.note_fresh(part));
    }

    /// Move entries along with their pages, in children that were forked after it as well.
    fn on_remap(&self, core: &mut Core, shared: &Shared, moved: &Moved) {
        if moved.from == moved.to {
            return;
        }
        self.move_entries(core, shared, moved);
        points::pass("event.remap_moved");
        for child in &core.unborn {
            if child.descriptor.watches(moved.to.start().0) == Some(true) {
                child.move_entries(&mut child.core.lock(), shared, moved);
            }
        }
    }

    /// Whether the table knows of no page of a range.
    pub(crate) fn is_blank(&self, range: Range<u64>) -> bool {
        let mut blank = true;
        let pages = ByteAddress(range.start).page()..ByteAddress(range.end).page_up();
        self.table.for_each(pages, |_, _| blank = false);
        blank
    }

    /// Whether some page of a range is out.
    fn is_occupied(&self, range: Range<u64>) -> bool {
        let mut occupied = false;
        let pages = ByteAddress(range.start).page()..ByteAddress(range.end).page_up();
        self.table.for_each(pages, |_, entry| {
            occupied |= !matches!(entry, Entry::Kept(_) | Entry::Absent);
        });
        occupied
    }

    fn move_entries(&self, core: &mut Core, shared: &Shared, part: &Moved) {
        core.habit.moved(part.from, part.to, part.count);
        let moved = self.table.move_range(part.from, part.to, part.count, |_, entry| {
            if let Entry::Staged { slot } = entry {
                self.release_slot(core, shared, slot);
            }
            shared.store.release(self.header.domain, &entry);
        });
        if moved.is_err() {
            // Only a full table can stop it; what was not moved is lost, loudly.
            increment(&shared.counters.pages_lost);
        }
        self.table.for_each(part.to..part.to.forward(part.count), |page, entry| {
            if let Entry::Staged { slot } = entry
                && let Some(place) = core.slots.get_mut(slot as usize)
            {
                place.owner = Some(page);
            }
        });
    }

    /// A new child may have been forked before moves that were read earlier: look where its own
    /// mappings are.
    pub fn undo_moves_after_fork(&self, _core: &Core, shared: &Shared, child: &Self) {
        let mut done: Vec<Noted<'_>> = self.noted().filter(|event| event.is(head::DONE)).collect();
        done.sort_by_key(Noted::turn);
        for moved in done.iter().rev().filter_map(Noted::moved) {
            let at = |page: PageNumber| child.descriptor.watches(page.start().0);
            if at(moved.to) == Some(false) && at(moved.from) == Some(true) {
                let back = Moved { from: moved.to, to: moved.from, count: moved.count };
                child.move_entries(&mut child.core.lock(), shared, &back);
            }
        }
    }
}
