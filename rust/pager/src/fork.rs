//! A target forked: its child needs the same pages.
//!
//! The child starts with a copy of the parent's page tables, holes included, and with a descriptor
//! of its own.  We give it a table of its own that refers to the same pool slots.  Its pages come
//! back to it on touch; they leave again only if it is attached itself.

use crate::address::{PAGES_END, PageNumber};
use crate::blob::Head;
use crate::codec::{CodecId, checksum};
use crate::page_table::Entry;
use crate::points;
use crate::region;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Header, Phase, Space, Table, inode_of};
use crate::stats::increment;
use crate::store::Encoded;
use crate::sys::userfaultfd::{Install, Userfaultfd};
use crate::target;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

impl Space {
    /// Take charge of a forked child.  The parent goes on as soon as the message was read; the
    /// child waits at its first missing page until it is served, after the last open event.
    pub fn on_fork(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        number: RawFd,
        inode: u64,
    ) {
        let descriptor = if inode == 0 {
            match Userfaultfd::from_fork_message(number) {
                Ok(descriptor) => descriptor,
                Err(_) => {
                    increment(&shared.counters.pages_lost);
                    return;
                }
            }
        } else {
            // Not among the inherited ones any more: its table was complete, nothing is left to do.
            match shared.inherited.lock().remove(&inode) {
                Some(descriptor) => Userfaultfd::from(descriptor),
                None => return,
            }
        };
        // A failure here leaves the child without its pages.  It must not run on: with its
        // descriptor closed it would read zeros.  So the descriptor is leaked on purpose, and the
        // child waits at its first touch, visibly.
        if let Err((_, descriptor)) = self.make_child(core, shared, kit, descriptor) {
            increment(&shared.counters.pages_lost);
            if let Some(descriptor) = descriptor {
                descriptor.leak();
            }
        }
    }

    fn make_child(
        &self,
        core: &mut Core,
        shared: &Shared,
        kit: &mut Kit,
        descriptor: Userfaultfd,
    ) -> std::result::Result<(), (crate::error::Error, Option<Userfaultfd>)> {
        let header = Header {
            id: shared.new_id(),
            parent: self.id(),
            pid: 0,
            start_time: 0,
            area: 0..0,
            domain: self.header.domain,
            image: self.header.image,
        };
        let table = match Table::create(&header, Phase::Copying) {
            Ok(table) => table,
            Err(error) => return Err((error, Some(descriptor))),
        };
        table.set_descriptor_inode(inode_of(&descriptor));
        let wiped = self.wiped_on_fork();
        let mut staged = Vec::new();
        self.table.for_each(PageNumber(0)..PageNumber(PAGES_END), |page, entry| {
            let address = page.start().0;
            if wiped.iter().any(|range| range.contains(&address)) {
                return;
            }
            let inherited = match entry {
                Entry::Pooled(stored) if shared.store.share(&stored).is_err() => Entry::Lost,
                Entry::Pooled(_) | Entry::Same { .. } | Entry::Lost => entry,
                Entry::Staged { slot } => {
                    staged.push((page, slot));
                    return;
                }
                // At home in the parent, so the child shares the page itself.
                Entry::Kept(_) | Entry::Absent => return,
            };
            if table.set(page, inherited).is_err() {
                increment(&shared.counters.pages_lost);
            }
        });
        points::pass("fork.table_made");
        for (page, slot) in staged {
            self.give_staged(core, shared, kit, &table, &descriptor, (page, slot));
        }
        table.set_phase(Phase::Child);
        points::pass("fork.published");
        let mut child = Self::new(table, descriptor, None, None, None);
        child.command.clone_from(&self.command);
        self.undo_moves_after_fork(core, shared, &child);
        core.unborn.push(Arc::new(child));
        Ok(())
    }

    /// The staging area is not inherited: give the child its copy of a staged page now.
    fn give_staged(
        &self,
        core: &Core,
        shared: &Shared,
        kit: &mut Kit,
        table: &Table,
        descriptor: &Userfaultfd,
        (page, slot): (PageNumber, u64),
    ) {
        if !self.read_slot(slot, &mut kit.page.0) {
            // Not there (a move that never happened): then the child has the page itself.
            debug_assert!(core.unsettled || !core.slots.is_empty());
            return;
        }
        for _ in 0..100 {
            match descriptor.copy(page.start().0, &kit.page.0) {
                Install::Changing | Install::NoMemory => {}
                // In place, or gone from the child by its own doing.
                _ => return,
            }
            // The child changes its address space already, and its events are not read before its
            // table is complete: keep the page for it, as it is.
            let raw = Encoded { codec: CodecId::RAW, head: Head::default(), frame: &kit.page.0 };
            let domain = self.header.domain;
            if let Some(stored) = shared.store.put(domain, &raw, checksum(&kit.page.0)) {
                if table.set(page, Entry::Pooled(stored)).is_ok() {
                    return;
                }
                shared.store.release_stored(domain, &stored);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        increment(&shared.counters.pages_lost);
        let _ = table.set(page, Entry::Lost);
    }

    /// Ranges that the program asked to be wiped in children *after* their pages left.
    fn wiped_on_fork(&self) -> Vec<Range<u64>> {
        if self.header.pid == 0 || self.pages_out() == 0 {
            return Vec::new();
        }
        let Ok(text) = target::read_maps(self.header.pid, true) else { return Vec::new() };
        region::parse(&text)
            .into_iter()
            .filter(|region| region.flags.contains(b"wf"))
            .map(|region| region.range)
            .collect()
    }
}
