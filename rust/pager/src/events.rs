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
//! - then they are applied in queue order, but who moves onto addresses that still have entries
//!   comes after who leaves them ([`order::choose`]);
//! - an unmap, or a move away, of addresses that something was just moved *onto* concerns only what
//!   is not watched there now: the rest belongs to the newcomer;
//! - a child that was forked meanwhile is told of such moves by what its own mappings show, and is
//!   not served before all this;
//! - a mapping that a page out began to watch meanwhile does not count as watched in all this, so
//!   moves are the only way for a watched mapping to appear.

use crate::address::{ByteAddress, PAGE_SIZE, PageNumber};
use crate::order;
use crate::page_table::Entry;
use crate::points;
use crate::region;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::stats::increment;
use crate::sys::pagemap::{Filter, WATCHED};
use crate::sys::userfaultfd::{FORK_INODE_WORD, Install, MESSAGE_WORDS, Message, decode_message};
use crate::target;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGE: u64 = PAGE_SIZE as u64;

/// How often to ask at once whether an event is still open: whose event was read needs some
/// microseconds to go on.
const SPINS: usize = 20;
/// How long to leave a thread that owes an event the CPU before asking again, and how often in one
/// turn: the other targets of this fault thread wait meanwhile.
const NAP: Duration = Duration::from_micros(50);
const NAPS: usize = 40;
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

/// A move that was applied together with other events.
#[derive(Clone, Copy, Debug)]
pub struct RecentMove {
    from: PageNumber,
    to: PageNumber,
    count: u64,
}

impl RecentMove {
    fn target(&self) -> Range<u64> {
        self.to.start().0..self.to.forward(self.count).start().0
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
        let journal = self.table.journal();
        let capacity = journal.len() / MESSAGE_WORDS;
        let mut naps = NAPS;
        for _ in 0..ROUNDS {
            let used = core.held;
            let mut count = 0;
            if used < capacity && core.pending.len() < capacity {
                count = self.descriptor.read_into(&journal[used * MESSAGE_WORDS..])?;
            }
            let held = self.take_faults(core, used + count);
            core.held = held;
            if held == 0 {
                // The kernel hands out all it has, up to the room given: a short read was the last.
                if count < capacity - used {
                    self.settle_fresh(core, kit);
                    return Ok(Settled::Yes);
                }
                continue;
            }
            points::pass("event.read");
            if held < capacity && !self.wait_until_quiet(kit, &mut naps) {
                if naps == 0 {
                    return Ok(Settled::NotYet);
                }
                continue;
            }
            self.apply_journal(core, shared, kit);
            core.held = 0;
            core.moves.clear();
            core.fresh.clear();
            for child in core.unborn.drain(..) {
                if shared.adopt(child).is_err() {
                    increment(&shared.counters.pages_lost);
                }
            }
        }
        Ok(Settled::NotYet)
    }

    /// Wait for open events to be queued, *without* reading them: the threads that wait for us stay
    /// where they are, so that no more than one event per thread can be open together.  True when
    /// none is open any more; false when they may be read.
    fn wait_until_quiet(&self, kit: &mut Kit, naps: &mut usize) -> bool {
        for _ in 0..SPINS {
            if self.is_quiet(kit) != Some(false) {
                return true;
            }
            std::hint::spin_loop();
        }
        // Who owes an event runs, or waits for a CPU; who has queued it sleeps.
        while *naps > 0 && target::has_running_thread(self.header.pid) {
            *naps -= 1;
            std::thread::sleep(NAP);
            if self.is_quiet(kit) != Some(false) {
                return true;
            }
        }
        self.is_quiet(kit) != Some(false)
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

    /// Apply the events in the journal.
    ///
    /// Each message is cleared only after it took effect, and applying one twice does no harm: a
    /// new engine goes on with the journal of a killed one.
    fn apply_journal(&self, core: &mut Core, shared: &Shared, kit: &mut Kit) {
        let messages: Vec<&[AtomicU64]> =
            self.table.journal().chunks_exact(MESSAGE_WORDS).take(core.held).collect();
        loop {
            let (indices, batch): (Vec<usize>, Vec<Message>) = messages
                .iter()
                .enumerate()
                .filter_map(|(index, message)| load(message).map(|message| (index, message)))
                .filter(|(_, message)| !matches!(message, Message::Fault { .. }))
                .unzip();
            if batch.is_empty() {
                return;
            }
            let chosen = order::choose(
                &batch,
                |range| self.is_occupied(range),
                |range| !self.watched(core, range).is_empty(),
            );
            let head = &messages[indices[chosen]][0];
            self.apply(core, shared, kit, batch[chosen]);
            points::pass("event.applied");
            head.store(0, Ordering::Release);
        }
    }

    fn apply(&self, core: &mut Core, shared: &Shared, kit: &mut Kit, message: Message) {
        match message {
            Message::Fork { descriptor, inode } => {
                increment(&shared.counters.events_fork);
                points::pass("fork.read");
                self.on_fork(core, shared, kit, descriptor, inode);
            }
            Message::Remap { from, to, length } => {
                increment(&shared.counters.events_remap);
                let moved = RecentMove {
                    from: ByteAddress(from).page(),
                    to: ByteAddress(to).page(),
                    count: length.div_ceil(PAGE),
                };
                self.on_remap(core, shared, moved);
            }
            Message::Remove { start, end } => {
                increment(&shared.counters.events_remove);
                self.clear(core, shared, start..end);
                core.quarantine.add(start..end);
            }
            Message::Unmap { start, end } => {
                increment(&shared.counters.events_unmap);
                let newcomers = self.newcomers(core, &(start..end));
                for part in region::subtract(start..end, &newcomers) {
                    self.clear(core, shared, part);
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

    /// Parts of a range that something was just moved onto and that are watched now.
    fn newcomers(&self, core: &Core, range: &Range<u64>) -> Vec<Range<u64>> {
        let targets: Vec<Range<u64>> = core.moves.iter().map(RecentMove::target).collect();
        let mut found: Vec<Range<u64>> = region::intersect(range, Some(&targets))
            .into_iter()
            .flat_map(|part| self.watched(core, part))
            .collect();
        found.sort_by_key(|part| part.start);
        found
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
        }
        core.fresh.sort_by_key(|part| part.start);
    }

    /// Move entries along with their pages, but for those that a newcomer has brought.
    fn on_remap(&self, core: &mut Core, shared: &Shared, moved: RecentMove) {
        if moved.from == moved.to {
            return;
        }
        let source = moved.from.start().0..moved.from.forward(moved.count).start().0;
        let newcomers = self.newcomers(core, &source);
        for part in region::subtract(source.clone(), &newcomers) {
            let part = RecentMove {
                from: ByteAddress(part.start).page(),
                to: moved.to.forward((part.start - source.start) / PAGE),
                count: (part.end - part.start) / PAGE,
            };
            self.move_entries(core, shared, &part);
        }
        points::pass("event.remap_moved");
        for child in &core.unborn {
            if child.descriptor.watches(moved.to.start().0) == Some(true) {
                child.move_entries(&mut child.core.lock(), shared, &moved);
            }
        }
        core.moves.push(moved);
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

    fn move_entries(&self, core: &mut Core, shared: &Shared, part: &RecentMove) {
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
    pub fn undo_moves_after_fork(&self, core: &Core, shared: &Shared, child: &Self) {
        for moved in core.moves.iter().rev() {
            let at = |page: PageNumber| child.descriptor.watches(page.start().0);
            if at(moved.to) == Some(false) && at(moved.from) == Some(true) {
                let back = RecentMove { from: moved.to, to: moved.from, count: moved.count };
                child.move_entries(&mut child.core.lock(), shared, &back);
            }
        }
    }
}
