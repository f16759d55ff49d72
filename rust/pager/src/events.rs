//! Keeping the table true when the program changes its address space.
//!
//! An event takes effect in the kernel first and is queued afterwards, by the thread that caused it;
//! it counts as *open* from its effect until we read it.  The kernel refuses every copy and move
//! while an event is open (`mmap_changing`), so nothing is ever installed on stale ground.  But
//! events of different threads that are open together may be queued in either order: thread A moves
//! a range away, thread B moves another one onto the freed addresses, and B's event comes first; or
//! A's "unmapped" for its old addresses comes after B's "moved" onto them.  So:
//!
//! - a move onto addresses that still have entries waits for the event that frees them; what comes
//!   meanwhile for its old addresses does not concern the entries that wait there;
//! - an unmap, or a move away, of addresses that something has just been moved *onto* concerns only
//!   what is not watched there now: the rest belongs to the newcomer;
//! - a child that was forked meanwhile is told of such moves by what its own mappings show, and is
//!   not served before the last open event was read.
//!
//! All this ends as soon as no event is open; [`Space::is_quiet`] asks the kernel.

use crate::address::{ByteAddress, PAGE_SIZE, PageNumber};
use crate::page_table::Entry;
use crate::points;
use crate::region;
use crate::serve::release_slot;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::stats::increment;
use crate::sys::pagemap::{Filter, WATCHED};
use crate::sys::userfaultfd::{Install, MESSAGE_WORDS, Message, decode_message};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = PAGE_SIZE as u64;
/// Set in a move's message once its entries are copied; the kernel leaves these bits clear.
const COPIED: u64 = 1 << 63;
/// Most moves remembered while events stay open; then the oldest is taken as settled.
const MOVES_MAX: usize = 256;

/// Whether all that was read could be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Yes: the table is true.
    Yes,
    /// An event is known to be open that explains another one: nothing may be answered yet.
    NotYet,
}

/// A move that was applied while other events may have been open.
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

impl Space {
    /// Read until nothing is pending; apply events, note faults.
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
        loop {
            // A move that waits keeps its place at the head of the journal.
            let used = journal
                .chunks_exact(MESSAGE_WORDS)
                .rposition(|message| message[0].load(Ordering::Acquire) != 0)
                .map_or(0, |last| last + 1);
            let count = match journal.get(used * MESSAGE_WORDS..) {
                Some(room) if !room.is_empty() => self.descriptor.read_into(room)?,
                _ => 0,
            };
            if count == 0 && used == 0 {
                break;
            }
            points::pass("event.read");
            let waiting = self.apply_journal(core, shared, kit, false);
            if count == 0 && waiting {
                if self.is_quiet(kit) == Some(false) && used < journal.len() / MESSAGE_WORDS {
                    return Ok(Settled::NotYet);
                }
                // No event is open that could free the addresses: they are free.
                self.apply_journal(core, shared, kit, true);
            }
            // The kernel hands out all it has, up to the room given: a short read was the last.
            let full = used + count == journal.len() / MESSAGE_WORDS;
            if core.pending.len() >= journal.len() || (count > 0 && !waiting && !full) {
                break;
            }
        }
        if core.moves.is_empty() && core.unborn.is_empty() {
            return Ok(Settled::Yes);
        }
        if self.is_quiet(kit) == Some(false) {
            return Ok(if core.unborn.is_empty() { Settled::Yes } else { Settled::NotYet });
        }
        core.moves.clear();
        for child in core.unborn.drain(..) {
            if shared.adopt(child).is_err() {
                increment(&shared.counters.pages_lost);
            }
        }
        Ok(Settled::Yes)
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

    /// Apply the events in the journal, then take its faults.  True if a move waits (never with
    /// `force`).
    ///
    /// Each message is cleared only after it took effect, and applying one twice does no harm: so
    /// this is also what a new engine does with the journal of a killed one.
    pub fn apply_journal(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        force: bool,
    ) -> bool {
        let journal = self.table.journal();
        let load = |message: &[AtomicU64]| {
            decode_message([0, 1, 2, 3].map(|index: usize| message[index].load(Ordering::Acquire)))
        };
        let mut waiting = true;
        let mut progress = true;
        while waiting && progress {
            (waiting, progress) = (false, false);
            let mut held: Vec<Range<u64>> = Vec::new();
            for message in journal.chunks_exact(MESSAGE_WORDS) {
                if message[0].load(Ordering::Acquire) == 0 {
                    continue;
                }
                match load(message) {
                    Message::Fault { .. } => continue,
                    Message::Fork { descriptor } => {
                        increment(&shared.counters.events_fork);
                        points::pass("fork.read");
                        self.on_fork(core, shared, kit, descriptor);
                    }
                    Message::Remap { from, to, length } => {
                        let moved = RecentMove {
                            from: ByteAddress(from).page(),
                            to: ByteAddress(to).page(),
                            count: length.div_ceil(PAGE),
                        };
                        if !self.on_remap(core, shared, &message[0], moved, &held, force) {
                            held.push(from..from + length);
                            held.sort_by_key(|range| range.start);
                            waiting = true;
                            continue;
                        }
                    }
                    Message::Remove { start, end } => {
                        increment(&shared.counters.events_remove);
                        for part in region::subtract(start..end, &held) {
                            self.clear(core, shared, part);
                        }
                        core.quarantine.add(start..end);
                    }
                    Message::Unmap { start, end } => {
                        increment(&shared.counters.events_unmap);
                        for part in region::subtract(start..end, &held) {
                            self.on_unmap(core, shared, part);
                        }
                    }
                    Message::Unknown(_) => {}
                }
                points::pass("event.applied");
                message[0].store(0, Ordering::Release);
                progress = true;
            }
        }
        for message in journal.chunks_exact(MESSAGE_WORDS) {
            if message[0].load(Ordering::Acquire) != 0
                && let Message::Fault { address, write, .. } = load(message)
            {
                core.pending.push((address, write));
                message[0].store(0, Ordering::Release);
            }
        }
        waiting
    }

    fn clear(&self, core: &mut Core, shared: &Shared, range: Range<u64>) {
        let area = &self.header.area;
        if range.start < area.end && area.start < range.end {
            core.area_lost = true;
        }
        let pages = ByteAddress(range.start).page()..ByteAddress(range.end).page_up();
        self.table.clear_range(pages, |_, entry| {
            if let Entry::Staged { slot } = entry {
                release_slot(core, shared, slot);
            }
            shared.store.release(&entry);
        });
    }

    fn on_unmap(&self, core: &mut Core, shared: &Shared, range: Range<u64>) {
        let newcomers = self.newcomers(core, &range);
        for part in region::subtract(range, &newcomers) {
            self.clear(core, shared, part);
        }
    }

    /// Parts of a range that something was just moved onto and that are watched now.
    fn newcomers(&self, core: &Core, range: &Range<u64>) -> Vec<Range<u64>> {
        let targets: Vec<Range<u64>> = core.moves.iter().map(RecentMove::target).collect();
        let filter = Filter { all_of: WATCHED, any_of: 0, none_of: 0 };
        let mut found = Vec::new();
        if let Some(pagemap) = &self.pagemap {
            for part in region::intersect(range, Some(&targets)) {
                // Unreadable: the address space is gone, and nothing matters any more.
                let _ = pagemap.scan(part, filter, &mut found);
            }
        }
        found.sort_by_key(|part| part.start);
        found
    }

    /// Move entries along with their pages; false if that has to wait.
    ///
    /// In two halves with a mark between, so that a killed engine's work can be finished: copying
    /// twice is harmless until the sources are forgotten, and forgetting twice is always harmless.
    fn on_remap(
        &self,
        core: &mut Core,
        shared: &Shared,
        head: &AtomicU64,
        moved: RecentMove,
        held: &[Range<u64>],
        force: bool,
    ) -> bool {
        if moved.from == moved.to {
            return true;
        }
        let copied = head.load(Ordering::Acquire) & COPIED != 0;
        if !force && !copied && self.is_occupied(moved.to, moved.count) {
            return false;
        }
        increment(&shared.counters.events_remap);
        let source = moved.from.start().0..moved.from.forward(moved.count).start().0;
        let mut others = self.newcomers(core, &source);
        others.extend_from_slice(held);
        others.sort_by_key(|range| range.start);
        let parts: Vec<RecentMove> = region::subtract(source.clone(), &others)
            .into_iter()
            .map(|part| RecentMove {
                from: ByteAddress(part.start).page(),
                to: moved.to.forward((part.start - source.start) / PAGE),
                count: (part.end - part.start) / PAGE,
            })
            .collect();
        if !copied {
            for part in &parts {
                self.copy_entries(core, shared, part);
            }
            head.fetch_or(COPIED, Ordering::AcqRel);
        }
        points::pass("event.remap_copied");
        for part in &parts {
            self.table.forget_range(part.from, part.count);
            self.table.for_each(part.to..part.to.forward(part.count), |page, entry| {
                if let Entry::Staged { slot } = entry
                    && let Some(place) = core.slots.get_mut(slot as usize)
                {
                    place.owner = Some(page);
                }
            });
        }
        for child in &core.unborn {
            if child.descriptor.watches(moved.to.start().0) == Some(true) {
                child.follow(shared, moved.from, moved.to, moved.count);
            }
        }
        if core.moves.len() >= MOVES_MAX {
            core.moves.remove(0);
        }
        core.moves.push(moved);
        true
    }

    /// Whether some page of a range is out, so that another event must free it first.
    fn is_occupied(&self, start: PageNumber, count: u64) -> bool {
        let mut occupied = false;
        self.table.for_each(start..start.forward(count), |_, entry| {
            occupied |= !matches!(entry, Entry::Kept(_) | Entry::Absent);
        });
        occupied
    }

    fn copy_entries(&self, core: &mut Core, shared: &Shared, part: &RecentMove) {
        let copied = self.table.copy_range(part.from, part.to, part.count, |_, entry| {
            if let Entry::Staged { slot } = entry {
                release_slot(core, shared, slot);
            }
            shared.store.release(&entry);
        });
        if copied.is_err() {
            // Only a full table can stop it; what was not copied is lost, loudly.
            increment(&shared.counters.pages_lost);
        }
    }

    /// In a child that is not served yet: its pages are where `to` is, not where `from` is.
    fn follow(&self, shared: &Shared, from: PageNumber, to: PageNumber, count: u64) {
        let mut core = self.core.lock();
        self.copy_entries(&mut core, shared, &RecentMove { from, to, count });
        self.table.forget_range(from, count);
    }

    /// A new child may have been forked before moves that were read earlier: look where its own
    /// mappings are.
    pub fn undo_moves_after_fork(&self, core: &Core, shared: &Shared, child: &Self) {
        for moved in core.moves.iter().rev() {
            let at = |page: PageNumber| child.descriptor.watches(page.start().0);
            if at(moved.to) == Some(false) && at(moved.from) == Some(true) {
                child.follow(shared, moved.to, moved.from, moved.count);
            }
        }
    }
}
