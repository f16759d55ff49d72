//! Keeping the table true when the program changes its address space.
//!
//! An event takes effect in the kernel first and is queued afterwards, by the thread that caused
//! it; it counts as *open* from its effect until we read it.  The kernel refuses every copy and
//! move while an event is open (`mmap_changing`), so nothing is ever installed on stale ground.
//! But events of different threads that are open together may be queued in either order: thread A
//! moves a range away, thread B moves another one onto the freed addresses, and B's event comes
//! first; or A's "unmapped" for its old addresses comes after B's "moved" onto them.  So:
//!
//! - messages are gathered in the journal until no event is open ([`Space::is_quiet`] asks the
//!   kernel); nothing could be installed before that anyway.  Meanwhile nothing more is read than
//!   must be, so that the threads of the program cannot go on and tangle it further;
//! - what is watched where they meet is noted in the table, and then they are applied in the order
//!   in which they must have taken effect (`order.rs`), each marked begun before and done after.
//!   Marked ones stay in the journal to the end of this *window*, because the rest is judged by
//!   them; a new engine goes on with the window of a killed one as if nothing had happened;
//! - a child that was forked meanwhile is told of such moves by what its own mappings show, and is
//!   not served before all this;
//! - a mapping that a page out began to watch meanwhile is *fresh*: it does not count as watched in
//!   all this, so moves are the only way for a watched mapping to appear.

use crate::address::{ByteAddress, PAGE_SIZE, PageNumber};
use crate::order::{self, Event};
use crate::page_table::Entry;
use crate::points;
use crate::region;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Debtors, Space};
use crate::stats::increment;
use crate::sys::pagemap::{Filter, WATCHED};
use crate::sys::userfaultfd::{FORK_INODE_WORD, Install, MESSAGE_WORDS, Message, decode_message};
use crate::target;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

const PAGE: u64 = PAGE_SIZE as u64;

/// How often to ask at once whether an event is still open: whose event was read needs some
/// microseconds to go on.
const SPINS: usize = 20;
/// How long to leave a thread that owes an event the CPU before asking again, and how often in one
/// turn: the other targets of this fault thread wait meanwhile.
const NAP: Duration = Duration::from_micros(50);
const NAPS: usize = 40;
/// Who has run for so long has left the call that it was in, or waits to be read.
const OUT_OF_A_CALL: Duration = Duration::from_micros(200);
/// For how long one that gets no CPU at all is waited for: others wait for their faults meanwhile,
/// and a new engine for its start.
const DEBT_LIMIT: Duration = Duration::from_millis(50);
/// In this time nobody is woken, returns to his program, makes another call and queues its event.
const BRIEF: Duration = Duration::from_micros(10);
/// How often to read on while events stay open, before leaving the rest for the next turn.
const ROUNDS: usize = 64;

/// Whether all that was read could be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Yes: the table is true.
    Yes,
    /// An event is open: nothing may be answered yet.
    NotYet,
}

/// How waiting for events ended that are open and not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// No event is open.
    Quiet,
    /// All that are open are queued: they may be read.
    Queued,
    /// Some thread may still owe one: nothing must be read before it has come on.
    NotYet,
}

/// What the head of a message in the journal says beside its kind; the kernel leaves these bits 0.
mod head {
    /// The read that brought it, counted from the first of the window; 0: not noted yet.
    pub const READ_SHIFT: u32 = 16;
    pub const READ_BITS: u64 = 0xffff;
    /// It may have taken effect in part.
    pub const BEGUN: u64 = 1 << 8;
    /// It took effect.
    pub const DONE: u64 = 1 << 9;
    /// It says nothing new.
    pub const ECHO: u64 = 1 << 10;
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
        Event { message: self.message, read: self.read() }
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

fn load(message: &[AtomicU64]) -> Option<Message> {
    let first = message[0].load(Ordering::Acquire);
    let word = |index: usize| message[index].load(Ordering::Acquire);
    (first != 0).then(|| decode_message([first, word(1), word(2), word(3)]))
}

impl Space {
    /// Read all that is pending; apply events once no event is open, note faults.
    ///
    /// # Errors
    /// The descriptor is broken: the address space is gone.
    pub fn read_messages(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
    ) -> std::io::Result<Settled> {
        self.finish_window(core, shared, kit);
        let journal = self.table.journal();
        let capacity = journal.len() / MESSAGE_WORDS;
        let mut naps = NAPS;
        for _ in 0..ROUNDS {
            // Of an earlier turn; an event that is read sets its thread free to tangle things.
            if core.debtors.since.is_some()
                && self.wait_until_queued(core, kit, &mut naps) == Wait::NotYet
            {
                return Ok(Settled::NotYet);
            }
            let used = core.held;
            let mut count = 0;
            let began = Instant::now();
            if used < capacity && core.pending.len() < capacity {
                count = self.descriptor.read_into(&journal[used * MESSAGE_WORDS..])?;
            }
            let slow = began.elapsed() > BRIEF;
            let held = self.take_faults(core, used + count);
            core.held = held;
            if held > 0 {
                // Nothing was read: a killed engine has, and it is not known how.
                self.number_reads(slow || count == 0);
            }
            if held == 0 {
                // The kernel hands out all it has, up to the room given: a short read was the last.
                if count < capacity - used {
                    self.settle_fresh(core, kit);
                    return Ok(Settled::Yes);
                }
                continue;
            }
            points::pass("event.read");
            if held < capacity {
                match self.wait_until_queued(core, kit, &mut naps) {
                    Wait::Quiet => {}
                    Wait::Queued => continue,
                    Wait::NotYet => return Ok(Settled::NotYet),
                }
            }
            let landscape = self.survey(core);
            // What was seen is what the events read so far have led to only if none came after it.
            if held < capacity && landscape.is_some() && self.is_quiet(kit) == Some(false) {
                continue;
            }
            let landscape = landscape.unwrap_or_default();
            self.table.open_window(&landscape);
            points::pass("event.ordered");
            self.apply_window(core, shared, kit, &landscape);
        }
        Ok(Settled::NotYet)
    }

    /// Wait for open events to be queued, *without* reading them: the threads that wait for us stay
    /// where they are, so that no more than one event per thread can be open together.
    ///
    /// Who owes an event runs, or waits for a CPU; who has queued it sleeps, and who ran for long
    /// enough since has left the call.  Who does neither may have been preempted in it.
    fn wait_until_queued(&self, core: &mut Core, kit: &mut Kit, naps: &mut usize) -> Wait {
        for _ in 0..SPINS {
            if self.is_quiet(kit) != Some(false) {
                core.debtors.since = None;
                return Wait::Quiet;
            }
            std::hint::spin_loop();
        }
        let pid = self.header.pid;
        if core.debtors.since.is_none() {
            let threads = target::running_threads(pid);
            core.debtors = Debtors { since: Some(Instant::now()), threads };
        }
        loop {
            let Debtors { since, threads } = &mut core.debtors;
            threads.retain(|(thread, before)| {
                let now = target::running_time(pid, *thread);
                now.is_some_and(|now| now.saturating_sub(*before) < OUT_OF_A_CALL)
            });
            let patient = since.is_some_and(|since| since.elapsed() < DEBT_LIMIT);
            if threads.is_empty() || !patient {
                *since = None;
                let quiet = self.is_quiet(kit) != Some(false);
                return if quiet { Wait::Quiet } else { Wait::Queued };
            }
            if *naps == 0 {
                return Wait::NotYet;
            }
            *naps -= 1;
            std::thread::sleep(NAP);
            if self.is_quiet(kit) != Some(false) {
                *since = None;
                return Wait::Quiet;
            }
        }
    }

    /// Note the faults among the first messages and clear them away; returns how many places of the
    /// journal the events still take.
    fn take_faults(&self, core: &mut Core, places: usize) -> usize {
        let mut used = 0;
        let journal = self.table.journal().chunks_exact(MESSAGE_WORDS);
        for (index, message) in journal.enumerate().take(places) {
            match load(message) {
                Some(Message::Fault { address, write, .. }) => {
                    core.pending.push((address, write));
                    message[0].store(0, Ordering::Release);
                }
                Some(_) => used = index + 1,
                None => {}
            }
        }
        used
    }

    /// In the journal of a killed engine: name the descriptors of forked children by what outlives
    /// the engine, their inodes, instead of their numbers in its table.
    pub fn name_children(&self, inode_of_number: impl Fn(RawFd) -> Option<u64>) -> Vec<u64> {
        let mut named = Vec::new();
        for message in self.table.journal().chunks_exact(MESSAGE_WORDS) {
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

    /// Whether no event is open; `None` if that cannot be asked (no area of ours is there).
    pub fn is_quiet(&self, kit: &mut Kit) -> Option<bool> {
        let probe = self.header.area.end.checked_sub(PAGE).filter(|_| !self.header.area.is_empty());
        match self.descriptor.copy(probe?, &kit.page.0) {
            Install::Done | Install::Partial(_) | Install::AlreadyPresent => Some(true),
            Install::Changing => Some(false),
            Install::NotMapped | Install::Gone | Install::NoMemory | Install::Failed(_) => None,
        }
    }

    /// The events in the journal.
    fn noted(&self) -> impl Iterator<Item = Noted<'_>> {
        self.table.journal().chunks_exact(MESSAGE_WORDS).filter_map(|words| {
            let message =
                load(words).filter(|message| !matches!(message, Message::Fault { .. }))?;
            Some(Noted { head: &words[0], word: words[0].load(Ordering::Acquire), message })
        })
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

    /// Go on with a window that a killed engine was applying.
    fn finish_window(&self, core: &mut Core, shared: &Shared, kit: &mut Kit) {
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
        core.held = 0;
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
    pub fn settle_fresh(&self, core: &mut Core, kit: &mut Kit) {
        if !core.fresh.is_empty() && self.is_quiet(kit) == Some(true) {
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
