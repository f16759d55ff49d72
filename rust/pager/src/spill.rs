//! Stored pages from the pool to the disk tier.
//!
//! A page is written, the file is flushed to the disk, the record is read back from there,
//! decrypted and compared; only then does the entry change, by one store.  Whatever the disk says,
//! nothing is lost: the page stays in the pool.

use crate::address::{PAGE_SIZE, PAGES_END, Page, PageNumber};
use crate::codec::CodecId;
use crate::disk_tier::{DiskKit, DiskTier};
use crate::error::{Error, Result};
use crate::page_table::{Entry, Stored};
use crate::points;
use crate::shared::Shared;
use crate::space::Space;
use crate::store::Reader;
use crate::sys::foreign;
use std::time::Duration;

/// Pages written between two flushes.
const BATCH_PAGES: usize = 256;

/// What a spill did.
#[derive(Clone, Debug, Default)]
pub struct SpillReport {
    /// Pages that are on the disk now, and not in the pool.
    pub pages_spilled: u64,
    /// Pool bytes that they gave up (a shared slot stays until its last page goes).
    pub bytes_spilled: u64,
    /// Processor time of the calling thread.
    pub cpu: Duration,
    /// Why it ended early; empty if it did not.
    pub stopped: String,
}

/// Write up to `pages_max` stored pages of a space to the swap file.
///
/// # Errors
/// `InvalidSetting`: there is no swap file.
pub fn spill(shared: &Shared, space: &Space, pages_max: u64) -> Result<SpillReport> {
    let Some(tier) = shared.store.disk() else {
        let problem = "no swap file is configured".to_owned();
        return Err(Error::InvalidSetting { field: "disk_path", problem });
    };
    let cpu = foreign::thread_time();
    let mut report = SpillReport::default();
    let mut kits = (DiskKit::new()?, Reader::default());
    let mut next = Some(PageNumber(0));
    while let Some(start) = next {
        let room = pages_max.saturating_sub(report.pages_spilled).min(BATCH_PAGES as u64);
        if room == 0 || !report.stopped.is_empty() {
            break;
        }
        let (batch, after) = take(shared, space, start, room as usize);
        next = after;
        let outcome = write_batch(shared, space, tier, &batch, &mut kits, &mut report);
        for (_, stored) in &batch {
            shared.store.let_go(stored);
        }
        if let Err(error) = outcome {
            report.stopped = error.to_string();
        }
    }
    report.cpu = foreign::thread_time().saturating_sub(cpu);
    Ok(report)
}

/// The next pages of the pool, each with a reference, and where to go on.
fn take(
    shared: &Shared,
    space: &Space,
    start: PageNumber,
    room: usize,
) -> (Vec<(PageNumber, Stored)>, Option<PageNumber>) {
    let mut entries = Vec::with_capacity(room);
    let _core = space.core.lock();
    let next = space.table.collect_range(start..PageNumber(PAGES_END), room, &mut entries);
    let batch = entries
        .into_iter()
        .filter_map(|(page, entry)| match entry {
            Entry::Pooled(stored) if stored.codec != CodecId::DISK => Some((page, stored)),
            _ => None,
        })
        .filter(|(_, stored)| shared.store.share(stored).is_ok())
        .collect();
    (batch, next)
}

fn write_batch(
    shared: &Shared,
    space: &Space,
    tier: &DiskTier,
    batch: &[(PageNumber, Stored)],
    (kit, reader): &mut (DiskKit, Reader),
    report: &mut SpillReport,
) -> std::io::Result<()> {
    let mut page: Box<Page> = Box::new([0; PAGE_SIZE]);
    let mut written = Vec::with_capacity(batch.len());
    let mut outcome = Ok(());
    for (number, old) in batch {
        // What cannot be read is found lost when it is touched; here nobody waits for it.
        if !shared.store.get(old, reader, &mut page) {
            continue;
        }
        match tier.write(&page, old.checksum, kit) {
            Ok(Some(new)) => written.push((*number, *old, new)),
            Ok(None) => {
                outcome = Err(std::io::Error::other("the swap file is full"));
                break;
            }
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    points::pass("spill.written");
    let flushed = tier.flush();
    let sound = |new: &Stored, kit: &mut DiskKit, page: &mut Page| {
        flushed.is_ok() && tier.read(new, kit, page).is_ok()
    };
    for (number, old, new) in &written {
        if sound(new, kit, &mut page) && publish(shared, space, *number, old, new) {
            report.pages_spilled += 1;
            report.bytes_spilled += u64::from(old.len);
        } else {
            tier.release(new);
        }
    }
    points::pass("spill.published");
    outcome.and(flushed)
}

/// Make the entry name the record, if it still names the slot.
fn publish(shared: &Shared, space: &Space, page: PageNumber, old: &Stored, new: &Stored) -> bool {
    // Whoever works on the space goes before us.
    let Some(_operation) = space.operation.try_lock() else { return false };
    let _core = space.core.lock();
    let current = space.table.get(page) == Entry::Pooled(*old);
    let set = current && space.table.set(page, Entry::Pooled(*new)).is_ok();
    if set {
        shared.store.release_stored(space.header.domain, old);
    }
    set
}
