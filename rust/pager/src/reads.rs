//! Reading what the kernel has queued of a space: nothing before all that took effect is queued,
//! and no more than was queued then (`events.rs` says why, `cuts.rs` what it is good for).

use crate::cuts::{Call, Held, Told};
use crate::events::load;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::sys::userfaultfd::{MESSAGE_WORDS, Message};
use crate::target;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to ask at once whether an event is still open: whose event was read needs some
/// microseconds to go on.
const SPIN: Duration = Duration::from_micros(20);
/// How long to leave a thread that owes an event the CPU before looking again.
const NAP: Duration = Duration::from_micros(50);
/// How long to wait in one turn: the other targets of this fault thread wait meanwhile.
const TURN: Duration = Duration::from_millis(2);
/// In this time nobody is woken, returns to his program, makes another call and queues its event.
const BRIEF: Duration = Duration::from_micros(10);
/// After this time an event that no thread waits with is read as it is.
const UNSEEN: Duration = Duration::from_millis(100);
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
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wait {
    /// No event is open.
    Quiet,
    /// So many are queued, which is all that are open, by threads that are held in these calls.
    Queued(usize, Vec<Held>),
    /// They may be read, but it is not known whether all are queued.
    Unknown,
    /// They may be read one by one: nothing was moved yet, so the order means nothing.
    Unmoved,
    /// Some thread may still owe one: nothing must be read before it has come on.
    NotYet,
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
        let began = Instant::now();
        let mut was_empty = false;
        for _ in 0..ROUNDS {
            let (mut calls, mut most) = (None, capacity);
            // A full journal is applied as it is.
            if core.held < capacity {
                match self.wait_until_queued(core, was_empty, began + TURN) {
                    Wait::NotYet => return Ok(Settled::NotYet),
                    Wait::Quiet if core.held > 0 && !self.settle_window(core, shared, kit) => {
                        continue;
                    }
                    // An event that came a moment ago would be read without those before it.
                    Wait::Quiet if core.moves && self.header.pid != 0 => {
                        if self.read_faults(core)? {
                            self.settle_fresh(core);
                            return Ok(Settled::Yes);
                        }
                    }
                    Wait::Quiet | Wait::Unknown => {}
                    Wait::Queued(count, found) => {
                        self.begin_cut(core, &found, count);
                        (calls, most) = (Some(found), count);
                    }
                    // The thread of a first move stays until its echo is read, with all the rest.
                    Wait::Unmoved => most = 1,
                }
            }
            let began = Instant::now();
            let count = self.read_events(core, most)?;
            let slow = began.elapsed() > BRIEF;
            was_empty = count == 0;
            if core.held == 0 {
                self.settle_fresh(core);
                return Ok(Settled::Yes);
            }
            match calls.filter(|_| core.moves) {
                Some(calls) if count > 0 => self.take_cut(core, shared, kit, &calls),
                // Who had queued it was killed meanwhile.
                Some(_) => self.table.kept_calls().store(core.cuts.calls(), None),
                None => {
                    // Nothing was read: a killed engine has, and it is not known how.
                    self.note_unjudged(core, slow || count == 0);
                }
            }
            if core.held == capacity {
                self.settle_window(core, shared, kit);
            }
        }
        Ok(Settled::NotYet)
    }

    /// Read up to `most` events and the faults that are queued before them; returns how many events
    /// came.
    pub(crate) fn read_events(&self, core: &mut Core, most: usize) -> std::io::Result<usize> {
        let mut events = 0;
        while events < most {
            let wanted = most - events;
            let (count, faults) = self.read_some(core, wanted)?;
            events += count - faults;
            // The kernel hands out all it has, up to the room given: a short read was the last.
            if count < wanted {
                break;
            }
        }
        Ok(events)
    }

    /// Read the faults that are queued; false if they could not be counted, or if an event came
    /// instead of one that somebody else had answered meanwhile.
    fn read_faults(&self, core: &mut Core) -> std::io::Result<bool> {
        let Some(pending) = self.descriptor.pending_faults() else { return Ok(false) };
        let (count, faults) = self.read_some(core, pending)?;
        Ok(count == faults)
    }

    /// Read up to `wanted` messages, if there is room for them; returns how many came, and how many
    /// of those were faults.
    fn read_some(&self, core: &mut Core, wanted: usize) -> std::io::Result<(usize, usize)> {
        let journal = self.table.journal();
        let capacity = journal.len() / MESSAGE_WORDS;
        let (used, waiting) = (core.held, core.pending.len());
        let room = wanted.min(capacity - used);
        if room == 0 || waiting >= capacity {
            return Ok((0, 0));
        }
        self.table.set_journal_used(used + room);
        let places = used * MESSAGE_WORDS..(used + room) * MESSAGE_WORDS;
        let count = self.descriptor.read_into(&journal[places])?;
        core.held = self.take_faults(core, used + count);
        self.table.set_journal_used(core.held);
        Ok((count, core.pending.len() - waiting))
    }

    /// Wait for open events to be queued, *before* any is read: the threads that wait for us stay
    /// where they are, so that no more than one event per thread can be open together, and what a
    /// thread does after a read comes after all that took effect before it.
    ///
    /// That needs a look at each thread, which a program is spared until its first move.  Of a
    /// child that we know no pid of it cannot be had: a nap lets those come on that we displaced.
    fn wait_until_queued(&self, core: &mut Core, was_empty: bool, deadline: Instant) -> Wait {
        let spins = core.held > 0 && (core.moves || was_empty);
        if !self.goes_on(spins) {
            self.rest(core);
            return Wait::Quiet;
        }
        if !core.moves {
            if was_empty {
                std::thread::sleep(NAP);
            }
            return Wait::Unmoved;
        }
        let pid = self.header.pid;
        if pid == 0 {
            std::thread::sleep(NAP);
            return Wait::Unknown;
        }
        // The threads are looked at one after the other.  Who was found waiting stays until we
        // read.  If the next look finds the same ones, nobody else was when it began: the events of
        // others come behind theirs, and are not of this cut.
        let mut waiting = None;
        loop {
            let now = Instant::now();
            let seen = target::activity(pid);
            let queued = core.debtors.have_queued(&seen.awake, &seen.waiting)
                && !core.cuts.owing(&seen.waiting).any(|held| target::may_be_in(pid, held));
            let are_same = waiting.as_ref() == Some(&seen.waiting);
            if are_same && !seen.waiting.is_empty() {
                let calls = target::held_calls(pid, &seen.waiting);
                let count = seen.waiting.len();
                let changes_nothing = || {
                    let emptied = target::emptied(pid, &seen.waiting);
                    self.changes_nothing(core, count, (&calls, &emptied))
                };
                if queued || changes_nothing() {
                    core.acquit();
                    return Wait::Queued(count, calls);
                }
            } else if are_same && queued {
                // A process that shares the memory, as between vfork and exec, is not looked at.
                if now - *core.unseen_since.get_or_insert(now) >= UNSEEN {
                    core.acquit();
                    return Wait::Unknown;
                }
            }
            // However long a look takes (many threads, no processor): two belong together.
            if now >= deadline && waiting.is_some() {
                return Wait::NotYet;
            }
            // A second look comes at once; after that somebody is waited for.
            if are_same || seen.waiting.is_empty() {
                std::thread::sleep(NAP);
                if !self.descriptor.is_changing() {
                    self.rest(core);
                    return Wait::Quiet;
                }
            }
            waiting = Some(seen.waiting);
        }
    }

    /// Whether what so many threads wait with changes nothing in the table, whatever took effect
    /// before it and is still to be queued: echoes, and what gives up or empties places that the
    /// table knows nothing of.  (Who has moved something there is still in that call, and nobody
    /// knows of the place but him.)
    pub(crate) fn changes_nothing(
        &self,
        core: &Core,
        waiting: usize,
        (calls, emptied): (&[Held], &[Range<u64>]),
    ) -> bool {
        let is_old = |(held, told): (Held, Told)| match held.call {
            Call::Unmap { start, end } => self.is_blank(start..end),
            Call::Move { .. } => matches!(told, Told::Moved | Told::Tail),
        };
        let told = core.cuts.calls().iter();
        core.held == 0
            && core.unborn.is_empty()
            // A cut is judged by those that wait, and what others still have to say would be lost.
            && told.into_iter().all(|(told, _)| calls.contains(told))
            && calls.len() + emptied.len() == waiting
            && core.cuts.with_told(calls).into_iter().all(is_old)
            && emptied.iter().all(|range| self.is_blank(range.clone()))
    }

    /// No event is open: no call in progress has anything to tell.
    fn rest(&self, core: &mut Core) {
        core.acquit();
        if !core.cuts.calls().is_empty() {
            core.cuts.forget();
            self.table.kept_calls().store(&[], None);
        }
    }

    /// Whether an event stays open; whose events were just read are given the time to go on.
    fn goes_on(&self, just_read: bool) -> bool {
        let began = Instant::now();
        while self.descriptor.is_changing() {
            if !just_read || began.elapsed() >= SPIN {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Note the faults among the first messages and clear them away; returns how many places of the
    /// journal the events still take.
    pub(crate) fn take_faults(&self, core: &mut Core, places: usize) -> usize {
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
}
