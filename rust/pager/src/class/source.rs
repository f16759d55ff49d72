//! Where sampled pages come from.
//!
//! Only pages that are in memory or in the pool are read: to read any other through /proc/PID/mem
//! would fill it, or fail.

use super::{Class, classify};
use crate::address::{ByteAddress, Page};
use crate::page_table::{Entry, Stored};
use crate::region::Region;
use crate::sample;
use crate::shared::Shared;
use crate::space::Space;
use crate::store::Reader;
use crate::sys::foreign::ForeignMemory;
use crate::sys::pagemap::Pagemap;
use std::ops::Range;

/// Pages of one process.
pub trait Source {
    /// The parts of `range`, in order, whose pages can be read.
    fn readable(&mut self, range: &Range<u64>) -> Vec<Range<u64>>;

    /// Read the page at `address`.  False: it cannot be read now.
    fn read(&mut self, address: u64, page: &mut Page) -> bool;
}

/// What the regions of a process hold that may not be attached.
#[must_use]
pub fn of_process(pid: i32, regions: &[Region]) -> Vec<Class> {
    let (memory, pagemap) = (ForeignMemory::open_to_read(pid).ok(), Pagemap::open(pid).ok());
    classify(regions, &mut Resident { memory, pagemap })
}

/// What the regions of an attached process hold.
#[must_use]
pub fn of_space(shared: &Shared, space: &Space, regions: &[Region]) -> Vec<Class> {
    classify(regions, &mut Attached { shared, space, reader: Reader::default() })
}

fn present(pagemap: Option<&Pagemap>, range: &Range<u64>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    if let Some(pagemap) = pagemap {
        // A region that has gone meanwhile, or a kernel that cannot tell, gives no pages.
        let _ = sample::resident(pagemap, range.clone(), &mut found);
    }
    found
}

/// Nobody's pages but the process's own.
pub struct Resident {
    memory: Option<ForeignMemory>,
    pagemap: Option<Pagemap>,
}

impl Resident {
    /// Of a process whose memory can be read.
    #[must_use]
    pub const fn new(memory: ForeignMemory, pagemap: Pagemap) -> Self {
        Self { memory: Some(memory), pagemap: Some(pagemap) }
    }
}

impl Source for Resident {
    fn readable(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        present(self.pagemap.as_ref(), range)
    }

    fn read(&mut self, address: u64, page: &mut Page) -> bool {
        let resident = !present(self.pagemap.as_ref(), &page_range(address)).is_empty();
        resident && self.memory.as_ref().is_some_and(|memory| memory.read(address, page).is_ok())
    }
}

/// Pages of a process, some of which are out.
struct Attached<'a> {
    shared: &'a Shared,
    space: &'a Space,
    reader: Reader,
}

impl Attached<'_> {
    fn stored(&self, address: u64) -> Option<Stored> {
        let _core = self.space.core.lock();
        match self.space.table.get(ByteAddress(address).page()) {
            Entry::Pooled(stored) => Some(stored),
            _ => None,
        }
    }
}

impl Source for Attached<'_> {
    fn readable(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut found = present(self.space.pagemap.as_ref(), range);
        let pages = ByteAddress(range.start).page()..ByteAddress(range.end).page_up();
        let mut pooled: Vec<Range<u64>> = Vec::new();
        {
            let _core = self.space.core.lock();
            self.space.table.for_each(pages, |page, entry| {
                if !matches!(entry, Entry::Pooled(_)) {
                    return;
                }
                let page = page_range(page.start().0);
                match pooled.last_mut() {
                    Some(last) if last.end == page.start => last.end = page.end,
                    _ => pooled.push(page),
                }
            });
        }
        found.append(&mut pooled);
        found.sort_by_key(|range| range.start);
        found
    }

    fn read(&mut self, address: u64, page: &mut Page) -> bool {
        if let Some(stored) = self.stored(address) {
            // A slot that was freed meanwhile fails its checksum.
            return self.shared.store.get(&stored, &mut self.reader, page);
        }
        let resident = !present(self.space.pagemap.as_ref(), &page_range(address)).is_empty();
        let memory = self.space.memory.as_ref().filter(|_| resident);
        memory.is_some_and(|memory| memory.read(address, page).is_ok())
    }
}

fn page_range(address: u64) -> Range<u64> {
    address..address + crate::address::PAGE_SIZE as u64
}
