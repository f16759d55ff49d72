//! Faults on pages that are on the disk: answered by threads of their own.
//!
//! A fault thread never waits for a disk.  It leaves a note here and goes on with other faults; the
//! toucher sleeps until a reader has the page.  Nothing is lost with us: after a kill the sleeper
//! is woken, and faults again.

use crate::address::{PAGE_SIZE, PageNumber};
use crate::codec::CodecId;
use crate::disk_tier::DiskKit;
use crate::page_table::{Entry, Stored};
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::Space;
use crate::stats::increment;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Disks answer several requests at once.
const READERS: usize = 2;
/// How soon a reader notices that the engine closes.
const IDLE: Duration = Duration::from_millis(200);
/// A read that failed is tried again this often: a path that comes back, a passing shortage.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(5);
/// While the program changes its address space, or memory is short.
const RETRY: Duration = Duration::from_micros(200);

/// Pages that somebody waits for.
#[derive(Debug, Default)]
pub struct DiskReads {
    wanted: Mutex<VecDeque<(u64, PageNumber)>>,
    bell: Condvar,
}

impl DiskReads {
    /// Let a reader bring a page of a space.
    pub fn ask(&self, space: u64, page: PageNumber) {
        self.wanted.lock().push_back((space, page));
        self.bell.notify_one();
    }

    fn next(&self) -> Option<(u64, PageNumber)> {
        let mut wanted = self.wanted.lock();
        if wanted.is_empty() {
            self.bell.wait_for(&mut wanted, IDLE);
        }
        wanted.pop_front()
    }
}

/// Start the readers.
///
/// # Errors
/// No thread could be started.
pub fn start(shared: &Arc<Shared>, stop: &Arc<AtomicBool>) -> std::io::Result<Vec<JoinHandle<()>>> {
    (0..READERS)
        .map(|number| {
            let (shared, stop) = (Arc::clone(shared), Arc::clone(stop));
            let name = format!("agentzip-disk{number}");
            std::thread::Builder::new().name(name).spawn(move || {
                let Ok(mut disk_kit) = DiskKit::new() else { return };
                let mut kit = Kit::default();
                while !stop.load(Ordering::Acquire) {
                    let Some((id, page)) = shared.disk_reads.next() else { continue };
                    if let Some(space) = shared.space(id) {
                        bring(&shared, &space, page, &mut kit, &mut disk_kit);
                    }
                }
            })
        })
        .collect()
}

/// Bring one page, unless it has come home by another way.
fn bring(shared: &Shared, space: &Space, page: PageNumber, kit: &mut Kit, disk_kit: &mut DiskKit) {
    let Some(tier) = shared.store.disk() else { return };
    let Some(stored) = hold(shared, space, page) else {
        // Somebody else answered, and may have done so before the toucher slept.
        space.descriptor.wake(page.start().0, PAGE_SIZE as u64);
        return;
    };
    let began = Instant::now();
    let mut read = tier.read(&stored, disk_kit, &mut kit.page.0);
    for _ in 1..TRIES {
        if read.is_ok() {
            break;
        }
        std::thread::sleep(PAUSE);
        read = tier.read(&stored, disk_kit, &mut kit.page.0);
    }
    let bytes = kit.page.0;
    loop {
        let mut core = space.core.lock();
        // What the program did meanwhile comes first.
        match space.drain(&mut core, shared, kit) {
            Answer::Gone => {
                space.set_gone();
                break;
            }
            Answer::Later => {
                drop(core);
                std::thread::sleep(RETRY);
                continue;
            }
            Answer::Done => {}
        }
        let entry = space.table.get(page);
        if entry != Entry::Pooled(stored) {
            space.descriptor.wake(page.start().0, PAGE_SIZE as u64);
            break;
        }
        let answer = match &read {
            Ok(()) => {
                let installed = space.descriptor.copy(page.start().0, &bytes);
                space.finish(&mut core, shared, (page, &entry), Entry::Kept(stored), installed)
            }
            Err(error) => {
                shared.note_loss(space, page, &format!("the disk tier: {error}"));
                space.answer_lost(shared, page, &entry)
            }
        };
        if answer != Answer::Later {
            increment(&shared.counters.faults);
            increment(&shared.counters.faults_disk);
            space.faults.fetch_add(1, Ordering::Relaxed);
            shared.service.record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            break;
        }
        drop(core);
        std::thread::sleep(RETRY);
    }
    shared.store.let_go(&stored);
}

/// The record of a page, with a reference, if that is still where it is.
fn hold(shared: &Shared, space: &Space, page: PageNumber) -> Option<Stored> {
    let _core = space.core.lock();
    match space.table.get(page) {
        Entry::Pooled(stored) if stored.codec == CodecId::DISK => {
            shared.store.share(&stored).is_ok().then_some(stored)
        }
        _ => None,
    }
}
