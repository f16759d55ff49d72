//! Bring home what is in the staging area, whatever state a page out left it in.
//!
//! Used where a page out could not be finished: the pool is full, the worker was lost, the engine
//! was killed.  A staged page is either in staging (then it is copied home) or was never moved
//! (then it is at home).  The worker is gone in all these cases, so nothing moves meanwhile.

use crate::address::{PAGE_SIZE, PAGES_END, PageNumber};
use crate::page_table::Entry;
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::sys::userfaultfd::Install;
use std::time::Duration;

/// Tries for one page while the program keeps changing its address space.
const TRIES: usize = 1000;

impl Space {
    /// Bring every staged page home; afterwards none is staged.
    ///
    /// `Later` means that some page could not be placed (memory is short): it stays staged and is
    /// answered from staging when touched.
    pub fn settle(&self, core: &mut Core, shared: &Shared, kit: &mut Kit) -> Answer {
        // What was read before must take effect first: a page may have been dropped or moved since.
        match self.drain(core, shared, kit) {
            Answer::Done => {}
            other => return other,
        }
        let mut staged = Vec::new();
        self.table.for_each(PageNumber(0)..PageNumber(PAGES_END), |page, entry| {
            if let Entry::Staged { slot } = entry {
                staged.push((page, slot));
            }
        });
        let mut answer = Answer::Done;
        for (page, slot) in staged {
            match self.settle_page(core, shared, kit, page, slot) {
                Answer::Done => {}
                Answer::Later => answer = Answer::Later,
                Answer::Gone => return Answer::Gone,
            }
        }
        if answer == Answer::Done {
            core.unsettled = false;
        }
        answer
    }

    fn settle_page(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        page: PageNumber,
        slot: u64,
    ) -> Answer {
        let address = page.start().0;
        for _ in 0..TRIES {
            let entry = self.table.get(page);
            if entry != (Entry::Staged { slot }) {
                // An event or a fault dealt with it.
                return Answer::Done;
            }
            if self.memory.is_none() && self.header.pid != 0 {
                // Not to be read now; that says nothing about where the page is.
                return Answer::Later;
            }
            if !self.read_slot(slot, &mut kit.page.0) {
                self.come_home(core, shared, page, &entry);
                self.descriptor.wake(address, PAGE_SIZE as u64);
                return Answer::Done;
            }
            match self.descriptor.copy(address, &kit.page.0) {
                Install::Done | Install::Partial(_) | Install::NotMapped => {
                    self.come_home(core, shared, page, &entry);
                    return Answer::Done;
                }
                Install::AlreadyPresent => {
                    self.come_home(core, shared, page, &entry);
                    self.descriptor.wake(address, PAGE_SIZE as u64);
                    return Answer::Done;
                }
                Install::Gone => {
                    self.set_gone();
                    return Answer::Gone;
                }
                Install::Changing => {
                    if self.drain(core, shared, kit) == Answer::Gone {
                        return Answer::Gone;
                    }
                    // Who makes the change may be waiting for a processor.
                    std::thread::sleep(Duration::from_micros(50));
                }
                Install::NoMemory | Install::Failed(_) => {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        Answer::Later
    }
}
