//! Answering the kernel for one space: read messages, keep the table true, bring touched pages.
//!
//! *All* events that can be read are applied (`events.rs`) before *any* fault is answered.  An
//! event is acknowledged by our read, so the program may already rely on it: contents looked up
//! before must not be copied in afterwards.  Events still unread make the kernel refuse our copy
//! (EAGAIN), and then we read them first.
//!
//! Nothing here allocates, waits for policy, or takes a lock that an encoder holds for long.

use crate::address::{ByteAddress, PAGE_SIZE, PageNumber};
use crate::codec::CodecId;
use crate::page_table::Entry;
use crate::points;
use crate::reads::Settled;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::stats::increment;
use crate::sys::userfaultfd::Install;
use std::sync::atomic::Ordering;
use std::time::Instant;

const PAGE: u64 = PAGE_SIZE as u64;
/// Never-populated pages are filled ahead up to this many when they are touched in a row.
const ZERO_RUN_PAGES: u64 = 16;
/// How often to go through {answer, find an unread event, read it} before leaving the rest for the
/// next turn.  Each round makes progress unless the program keeps changing its address space.
const ROUNDS: usize = 8;

/// How answering one fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The toucher goes on.
    Done,
    /// Not possible now; to be tried again.
    Later,
    /// The address space is gone.
    Gone,
}

impl Space {
    /// Answer everything that is pending; to be called when the descriptor is readable, or again
    /// when the last call returned `Later`.
    pub fn attend(&self, shared: &Shared, kit: &mut Kit) -> Answer {
        let mut core = self.core.lock();
        self.drain(&mut core, shared, kit)
    }

    /// [`Space::attend`] for a caller that holds the lock.
    pub fn drain(&self, core: &mut Core, shared: &Shared, kit: &mut Kit) -> Answer {
        for _ in 0..ROUNDS {
            if let Some(sleepers) = kit.sleepers.as_mut() {
                // Those of the last round: what follows may have to wait for their next step.
                sleepers.wake(&self.descriptor);
            }
            let began = Instant::now();
            match self.read_messages(core, shared, kit) {
                Ok(Settled::Yes) => {}
                Ok(Settled::NotYet) => return Answer::Later,
                // Out of descriptors for a forked child, for one: the message stays in the kernel.
                // Whatever it is, only a dead address space may be let go of.
                Err(_) if self.descriptor.is_alive() => return Answer::Later,
                Err(_) => return Answer::Gone,
            }
            if core.pending.is_empty() {
                return Answer::Done;
            }
            let answer = self.answer_pending(core, shared, kit, began);
            if answer != Answer::Later {
                return answer;
            }
        }
        Answer::Later
    }

    fn answer_pending(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        began: Instant,
    ) -> Answer {
        points::pass("fault.read");
        let mut later = 0;
        for index in 0..core.pending.len() {
            let (address, write) = core.pending[index];
            let answer = self.answer(core, shared, kit, address & !(PAGE - 1), write);
            // A page that is on the disk is another thread's from here on.
            let Some(answer) = answer else { continue };
            match answer {
                Answer::Done => {
                    increment(&shared.counters.faults);
                    self.faults.fetch_add(1, Ordering::Relaxed);
                    shared.service.record(began.elapsed());
                }
                Answer::Later => {
                    increment(&shared.counters.faults_retried);
                    core.pending[later] = (address, write);
                    later += 1;
                }
                Answer::Gone => {
                    core.pending.clear();
                    self.set_gone();
                    return Answer::Gone;
                }
            }
        }
        core.pending.truncate(later);
        if later == 0 { Answer::Done } else { Answer::Later }
    }

    /// Answer one fault; `None` if it was handed on to a disk reader.
    fn answer(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        address: u64,
        write: bool,
    ) -> Option<Answer> {
        let page = ByteAddress(address).page();
        let entry = self.table.get(page);
        let (installed, next) = match entry {
            Entry::Absent | Entry::Kept(_) => {
                return Some(self.answer_unpopulated(core, shared, kit, page));
            }
            Entry::Same { fill: 0 } if !write => {
                (kit.zero(&self.descriptor, address, PAGE), Entry::Absent)
            }
            Entry::Same { fill } => {
                crate::codec::fill_page(fill, &mut kit.page.0);
                (kit.copy(&self.descriptor, address), Entry::Absent)
            }
            Entry::Pooled(stored) if stored.codec == CodecId::DISK => {
                shared.disk_reads.ask(self.id(), page);
                return None;
            }
            Entry::Pooled(stored) => {
                let Kit { reader, page: out, .. } = kit;
                let began = Instant::now();
                let decoded = shared.store.get(&stored, reader, &mut out.0);
                shared.decode.record(began.elapsed());
                if !decoded {
                    return Some(self.answer_lost(shared, page, &entry));
                }
                let refused = points::pass_or_refuse("fault.decoded");
                let copy = || kit.copy(&self.descriptor, address);
                (refused.unwrap_or_else(copy), Entry::Kept(stored))
            }
            Entry::Staged { slot } => {
                if !self.read_slot(slot, &mut kit.page.0) {
                    if core.unsettled {
                        return Some(Answer::Later);
                    }
                    return Some(self.answer_lost(shared, page, &entry));
                }
                (kit.copy(&self.descriptor, address), Entry::Absent)
            }
            Entry::Lost => return Some(self.answer_lost(shared, page, &entry)),
        };
        points::pass("fault.installed");
        let answer = self.finish(core, shared, (page, &entry), next, installed);
        if matches!(installed, Install::Done | Install::Partial(_)) {
            self.note_refault(core, shared, page);
        }
        Some(answer)
    }

    /// Draw the consequences of having put a page in place, or of why it could not be.
    pub fn finish(
        &self,
        core: &mut Core,
        shared: &Shared,
        (page, entry): (PageNumber, &Entry),
        next: Entry,
        installed: Install,
    ) -> Answer {
        let address = page.start().0;
        match installed {
            Install::Done | Install::Partial(_) => {
                let _ = self.table.set(page, next);
                if let Entry::Staged { slot } = entry {
                    self.release_slot(core, shared, *slot);
                }
                Answer::Done
            }
            Install::AlreadyPresent => {
                // Filled by somebody else meanwhile: what is there is newer.  The toucher may have
                // gone to sleep after that, so it is woken explicitly.
                increment(&shared.counters.faults_already_present);
                self.come_home(core, shared, page, entry);
                self.descriptor.wake(address, PAGE);
                Answer::Done
            }
            Install::NotMapped => {
                // Unmapped since: let the toucher find out.
                self.descriptor.wake(address, PAGE);
                Answer::Done
            }
            Install::Gone => Answer::Gone,
            Install::Changing | Install::NoMemory | Install::Failed(_) => Answer::Later,
        }
    }

    /// Forget an entry whose page is at home with newer contents.
    pub fn come_home(&self, core: &mut Core, shared: &Shared, page: PageNumber, entry: &Entry) {
        let _ = self.table.set(page, Entry::Absent);
        if let Entry::Staged { slot } = entry {
            self.release_slot(core, shared, *slot);
        }
        shared.store.release(self.header.domain, entry);
    }

    /// A page nobody ever wrote: zeros, and some more ahead when such pages are touched in a row.
    fn answer_unpopulated(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        page: PageNumber,
    ) -> Answer {
        let address = page.start().0;
        let (expected, length) = core.zero_run;
        let mut run = if address == expected { (length * 2).min(ZERO_RUN_PAGES) } else { 1 };
        for ahead in 1..run {
            if !matches!(self.table.get(page.forward(ahead)), Entry::Absent) {
                run = ahead;
                break;
            }
        }
        let mut installed = kit.zero(&self.descriptor, address, run * PAGE);
        if installed == Install::NotMapped && run > 1 {
            // The run crosses the end of a mapping.
            run = 1;
            installed = kit.zero(&self.descriptor, address, PAGE);
        }
        match installed {
            Install::Done | Install::Partial(_) => {
                core.zero_run = (address + run * PAGE, run);
                increment(&shared.counters.faults_zero);
                self.faults_zero.fetch_add(1, Ordering::Relaxed);
                Answer::Done
            }
            Install::AlreadyPresent | Install::NotMapped => {
                if installed == Install::AlreadyPresent {
                    increment(&shared.counters.faults_already_present);
                }
                self.descriptor.wake(address, PAGE);
                Answer::Done
            }
            Install::Gone => Answer::Gone,
            Install::Changing | Install::NoMemory | Install::Failed(_) => Answer::Later,
        }
    }

    /// The page cannot be produced: the toucher gets SIGBUS.  Never zeros, never wrong bytes.
    pub fn answer_lost(&self, shared: &Shared, page: PageNumber, entry: &Entry) -> Answer {
        match self.descriptor.poison(page.start().0, PAGE) {
            Install::Gone => return Answer::Gone,
            Install::Changing | Install::NoMemory => return Answer::Later,
            _ => self.descriptor.wake(page.start().0, PAGE),
        }
        if *entry != Entry::Lost {
            increment(&shared.counters.pages_lost);
            let _ = self.table.set(page, Entry::Lost);
            shared.store.release(self.header.domain, entry);
        }
        Answer::Done
    }

    /// Forget a slot of the staging area and the pool copy remembered with it.
    pub fn release_slot(&self, core: &mut Core, shared: &Shared, slot: u64) {
        if let Some(place) = core.slots.get_mut(slot as usize) {
            place.owner = None;
            if let Some(stored) = place.kept.take() {
                shared.store.release_stored(self.header.domain, &stored);
            }
        }
    }
}
