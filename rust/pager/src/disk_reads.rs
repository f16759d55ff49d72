//! Faults on pages that are on the disk: answered by threads of their own.
//!
//! A fault thread never waits for a disk.  It leaves a note here and goes on with other faults; the
//! toucher sleeps until a reader has the page.  Nothing is lost with us: after a kill the sleeper
//! is woken, and faults again.

use crate::address::{PAGE_SIZE, Page, PageNumber};
use crate::codec::CodecId;
use crate::disk_tier::{DiskKit, DiskTier};
use crate::page_table::{Entry, Stored};
use crate::points;
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::Space;
use crate::stats::increment;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Disks answer several requests at once.
const READERS: usize = 2;
/// A read that failed is tried again this often: a path that comes back, a passing shortage.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(5);
/// While the program changes its address space, or memory is short: how soon to try again; twice
/// as long each time, up to the next.
const RETRY: Duration = Duration::from_micros(500);
const RETRY_MAX: Duration = Duration::from_millis(8);
/// The same after a panic.
const PANIC_MAX: Duration = Duration::from_secs(60);

/// A page that somebody waits for.
#[derive(Debug)]
struct Wanted {
    space: u64,
    page: PageNumber,
    asked: Instant,
    /// When to look at it; meanwhile readers serve others.
    due: Instant,
    pause: Duration,
    /// Read already, but not to be put in place then: trying again costs one call.
    read: Option<(Stored, Box<Page>)>,
}

impl Wanted {
    fn later(self, longest: Duration) -> Self {
        let due = Instant::now() + self.pause;
        Self { due, pause: (self.pause * 2).min(longest), ..self }
    }
}

/// Pages that somebody waits for.
#[derive(Debug, Default)]
pub struct DiskReads {
    wanted: Mutex<VecDeque<Wanted>>,
    bell: Condvar,
}

impl DiskReads {
    /// Let a reader bring a page of a space.
    pub fn ask(&self, space: u64, page: PageNumber) {
        let now = Instant::now();
        self.put(Wanted { space, page, asked: now, due: now, pause: RETRY, read: None });
    }

    fn put(&self, new: Wanted) {
        let mut wanted = self.wanted.lock();
        if !wanted.iter().any(|known| (known.space, known.page) == (new.space, new.page)) {
            wanted.push_back(new);
            self.bell.notify_one();
        }
    }

    /// Wait for the next one; `None` at the end of the engine.
    fn next(&self, stop: &AtomicBool) -> Option<Wanted> {
        let mut wanted = self.wanted.lock();
        while !stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if let Some(place) = wanted.iter().position(|known| known.due <= now) {
                return wanted.remove(place);
            }
            match wanted.iter().map(|known| known.due).min() {
                Some(due) => drop(self.bell.wait_until(&mut wanted, due)),
                None => self.bell.wait(&mut wanted),
            }
        }
        None
    }

    /// Let the readers see that the engine closes.
    pub fn ring(&self) {
        // Under the lock: a reader that has just looked waits by now, and hears it.
        let _wanted = self.wanted.lock();
        self.bell.notify_all();
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
            let name = format!("{}-disk{number}", points::FAULT_THREAD);
            std::thread::Builder::new().name(name).spawn(move || {
                let Ok(mut disk_kit) = DiskKit::new() else { return };
                let mut kit = Kit::default();
                while !stop.load(Ordering::Acquire) {
                    let Some(mut wanted) = shared.disk_reads.next(&stop) else { continue };
                    let Some(space) = shared.space(wanted.space) else { continue };
                    // One page's bug must not leave all others unread.
                    let run = || bring(&shared, &space, &mut wanted, &mut kit, &mut disk_kit);
                    match catch_unwind(AssertUnwindSafe(run)) {
                        Ok(Answer::Later) => {
                            increment(&shared.counters.faults_retried);
                            shared.disk_reads.put(wanted.later(RETRY_MAX));
                        }
                        Ok(Answer::Gone) => space.set_gone(),
                        Ok(Answer::Done) => {}
                        Err(_) => {
                            increment(&shared.counters.fault_panics);
                            shared.disk_reads.put(wanted.later(PANIC_MAX));
                        }
                    }
                }
            })
        })
        .collect()
}

/// A reference to a record, given back also by a panic.
struct Held<'a> {
    shared: &'a Shared,
    stored: Stored,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.store.let_go(&self.stored);
    }
}

/// Bring one page, unless it has come home by another way.
fn bring(
    shared: &Shared,
    space: &Space,
    wanted: &mut Wanted,
    kit: &mut Kit,
    disk_kit: &mut DiskKit,
) -> Answer {
    let page = wanted.page;
    let Some(tier) = shared.store.disk() else { return Answer::Done };
    let Some(held) = hold(shared, space, page) else {
        // Somebody else answered, and may have done so before the toucher slept.
        space.descriptor.wake(page.start().0, PAGE_SIZE as u64);
        return Answer::Done;
    };
    let stored = held.stored;
    let read = match wanted.read.take() {
        Some((record, bytes)) if record == stored => Ok(*bytes),
        _ => read(tier, &stored, disk_kit, &mut kit.page.0).map(|()| kit.page.0),
    };
    let mut core = space.core.lock();
    // What the program did meanwhile comes first.
    match space.drain(&mut core, shared, kit) {
        Answer::Done => {}
        other => {
            wanted.read = read.ok().map(|bytes| (stored, Box::new(bytes)));
            return other;
        }
    }
    let entry = space.table.get(page);
    if entry != Entry::Pooled(stored) {
        space.descriptor.wake(page.start().0, PAGE_SIZE as u64);
        return Answer::Done;
    }
    let answer = match &read {
        Ok(bytes) => {
            let refused = points::pass_or_refuse("fault.decoded");
            let copy = || space.descriptor.copy(page.start().0, bytes);
            let installed = refused.unwrap_or_else(copy);
            points::pass("fault.installed");
            space.finish(&mut core, shared, (page, &entry), Entry::Kept(stored), installed)
        }
        Err(error) => {
            shared.note_loss(space, page, &format!("the disk tier: {error}"));
            space.answer_lost(shared, page, &entry)
        }
    };
    if answer == Answer::Done {
        space.note_refault(&mut core, shared, page);
        increment(&shared.counters.faults);
        increment(&shared.counters.faults_disk);
        space.faults.fetch_add(1, Ordering::Relaxed);
        shared.service.record(wanted.asked.elapsed());
    } else if answer == Answer::Later {
        wanted.read = read.ok().map(|bytes| (stored, Box::new(bytes)));
    }
    answer
}

fn read(
    tier: &DiskTier,
    stored: &Stored,
    kit: &mut DiskKit,
    page: &mut Page,
) -> std::io::Result<()> {
    let mut read = tier.read(stored, kit, page);
    for _ in 1..TRIES {
        if read.is_ok() {
            break;
        }
        std::thread::sleep(PAUSE);
        read = tier.read(stored, kit, page);
    }
    read
}

/// The record of a page, with a reference, if that is still where it is.
fn hold<'a>(shared: &'a Shared, space: &Space, page: PageNumber) -> Option<Held<'a>> {
    let _core = space.core.lock();
    match space.table.get(page) {
        Entry::Pooled(stored) if stored.codec == CodecId::DISK => {
            shared.store.share(&stored).is_ok().then_some(Held { shared, stored })
        }
        _ => None,
    }
}
