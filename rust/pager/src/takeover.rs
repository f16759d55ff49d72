//! Go on where a killed engine stopped.
//!
//! The keeper gives the descriptors back; the tables in shared memory are the truth.  In order:
//! match each table with its userfaultfd by inode; work off the journals (events that were read but
//! not yet applied); count the pool's references from the tables; bring half-moved pages home; wake
//! every sleeper, because a fault that the dead engine had read does not come again.  Only then
//! does a new keeper take the old one's place.

use crate::address::{PAGE_SIZE, PAGES_END, PageNumber};
use crate::attach::{take_area_out, unwatch};
use crate::disk_tier::{self, DiskTier};
use crate::error::{Error, Result};
use crate::keeper::Inheritance;
use crate::page_in::bring_all_home;
use crate::page_out::{WORKER_PATIENCE, await_worker};
use crate::page_table::Entry;
use crate::points;
use crate::reads::Settled;
use crate::references::{self, References};
use crate::region;
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::{Core, JOURNAL_MESSAGES, MEMFD_NAME, Phase, Space, Table, inode_of};
use crate::store;
use crate::sys::foreign::ForeignMemory;
use crate::sys::pagemap::Pagemap;
use crate::sys::userfaultfd::Userfaultfd;
use crate::target::{self, Target};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long to wait, over all spaces, for events that are still open before leaving them to the
/// fault threads.
const EVENT_PATIENCE: Duration = Duration::from_secs(1);
/// How often to look whether a dead engine's worker has ended, which nothing else tells.
const WORKER_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// What was handed over, sorted.
#[derive(Debug)]
pub struct Estate {
    /// The pool's memfd.
    pub pool: Option<OwnedFd>,
    /// Dictionaries and layouts.
    pub references: References,
    /// The disk tier.
    pub disk: Option<DiskTier>,
    tables: Vec<Table>,
    userfaultfds: HashMap<u64, (RawFd, OwnedFd)>,
}

impl Estate {
    /// Sort an inheritance by what /proc says each descriptor is.
    ///
    /// # Errors
    /// `IncompatibleState`: made by a version with another format; nothing was changed.
    pub fn sort(inheritance: Inheritance) -> Result<Self> {
        let mut estate = Self {
            pool: None,
            references: References::default(),
            disk: None,
            tables: Vec::new(),
            userfaultfds: HashMap::new(),
        };
        let (mut key, mut files) = (None, Vec::new());
        for (number, descriptor) in inheritance {
            use std::os::fd::AsRawFd;
            let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
            let link = std::fs::read_link(link).unwrap_or_default();
            let link = link.to_string_lossy();
            let name = link.trim_start_matches("/memfd:").trim_end_matches(" (deleted)");
            if link.starts_with("anon_inode:") {
                estate.userfaultfds.insert(inode_of(&descriptor), (number, descriptor));
            } else if name == store::MEMFD_NAME {
                // Without a length it was never used: the engine was killed while making it.
                let length = rustix::fs::fstat(&descriptor).map_or(0, |stat| stat.st_size);
                estate.pool = Some(descriptor).filter(|_| length > 0);
            } else if name == disk_tier::MEMFD_NAME {
                key = Some(descriptor);
            } else if name == references::MEMFD_NAME {
                estate.references.take_over(descriptor)?;
            } else if name == MEMFD_NAME {
                estate.tables.extend(Table::take_over(descriptor)?);
            } else if name.starts_with("agentzip:") {
                let found = name.rsplit(':').next().and_then(|text| text.parse().ok());
                let found = found.unwrap_or(0);
                return Err(Error::IncompatibleState { found, known: crate::space::STATE_FORMAT });
            } else if link.starts_with('/') {
                files.push(descriptor);
            }
        }
        if let Some(key) = key {
            estate.disk = DiskTier::take_over(key, files)?;
        }
        Ok(estate)
    }

    /// Whether nothing was left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

/// Make every inherited space served again; returns the pids of attached targets.
///
/// # Errors
/// A damaged state: nothing is served, and the old keeper still holds everything.
pub fn take_over(shared: &Shared, mut estate: Estate) -> Result<Vec<i32>> {
    let mut spaces = Vec::new();
    let mut unfinished = Vec::new();
    let tables = std::mem::take(&mut estate.tables);
    let highest = tables.iter().map(|table| table.header().id).max().unwrap_or(0);
    shared.next_id.store(highest + 1, std::sync::atomic::Ordering::Relaxed);
    // Before any is taken: a child whose table is complete has its message still, while its
    // parent's events are being applied.
    let numbers: HashMap<RawFd, u64> =
        estate.userfaultfds.iter().map(|(inode, (number, _))| (*number, *inode)).collect();
    for table in tables {
        match table.phase() {
            // Made again from the parent's journal.
            Some(Phase::Copying) | None => continue,
            Some(Phase::Attaching) => {
                unfinished.push(table);
                continue;
            }
            Some(Phase::Attached | Phase::Child | Phase::Detaching) => {}
        }
        let Some((_, descriptor)) = estate.userfaultfds.remove(&table.descriptor_inode()) else {
            // Detached completely but for the table itself.
            continue;
        };
        spaces.push(Arc::new(reopen(table, descriptor.into())));
    }
    let mut children = HashMap::new();
    for space in &spaces {
        let named = space.name_children(|number| numbers.get(&number).copied());
        children.extend(named.into_iter().map(|inode| (inode, Arc::clone(space))));
    }
    // What nobody claims never had a page out: an attach that was not completed.  It closes here.
    estate.userfaultfds.retain(|inode, _| children.contains_key(inode));
    let inherited = estate.userfaultfds.drain().map(|(inode, (_, owned))| (inode, owned));
    *shared.inherited.lock() = inherited.collect();
    for space in spaces {
        match children.get(&space.table.descriptor_inode()) {
            // Served when the last event of its parent's window is applied.
            Some(parent) => parent.core.lock().unborn.push(space),
            None => shared.adopt(space)?,
        }
    }
    points::pass("takeover.received");
    let mut kit = Kit::default();
    let deadline = Instant::now() + EVENT_PATIENCE;
    for space in shared.all_spaces() {
        apply_events(shared, &space, &mut kit, deadline);
    }
    adopt_slots(shared)?;
    for space in shared.all_spaces() {
        settle(shared, &space, &mut kit);
        finish_detach(shared, &space);
    }
    points::pass("takeover.settled");
    for table in unfinished {
        abandon(shared, table);
    }
    let mut pids: Vec<i32> = shared
        .all_spaces()
        .iter()
        .filter(|space| space.header.pid != 0 && !space.is_gone())
        .map(|space| space.header.pid)
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

fn reopen(table: Table, descriptor: Userfaultfd) -> Space {
    let header = table.header();
    let same = header.pid != 0 && target::start_time(header.pid) == Some(header.start_time);
    let memory = same.then(|| ForeignMemory::open(header.pid).ok()).flatten();
    let pagemap = same.then(|| Pagemap::open(header.pid).ok()).flatten();
    let described = same.then(|| Target::describe(header.pid, &[]).ok()).flatten();
    Space::new(table, descriptor, described.as_ref(), memory, pagemap)
}

fn adopt_slots(shared: &Shared) -> Result<()> {
    for space in shared.all_spaces() {
        let mut outcome = Ok(());
        space.table.for_each(PageNumber(0)..PageNumber(PAGES_END), |_, entry| {
            if let Entry::Pooled(stored) | Entry::Kept(stored) = entry
                && outcome.is_ok()
            {
                outcome = shared.store.adopt(&stored);
            }
        });
        outcome?;
    }
    shared.store.finish_adoption(shared.settings.pool_bytes_max);
    drop_unused_dictionaries(shared);
    Ok(())
}

/// Which dictionaries were offered died with the engine: those that no page and no space uses go.
fn drop_unused_dictionaries(shared: &Shared) {
    let chosen: HashSet<u16> =
        shared.all_spaces().iter().map(|space| space.table.dictionary()).collect();
    for reference in shared.store.references.list() {
        if reference.uses() == 0 && !chosen.contains(&reference.id) {
            reference.retire();
        }
    }
    shared.store.references.collect();
}

/// Apply what the dead engine had read, and what is pending; threads that owe an event get some
/// time.
fn apply_events(shared: &Shared, space: &Space, kit: &mut Kit, deadline: Instant) {
    let core = &mut *space.core.lock();
    // Until all is settled a staged page may still be where it came from.
    core.unsettled = true;
    core.fresh = space.table.fresh();
    core.fresh.sort_by_key(|part| part.start);
    // What the dead engine knew of calls in progress died with it.
    core.quarantine.add(0..PAGES_END * PAGE_SIZE as u64);
    space.finish_window(core, shared, kit);
    let read_on = |core: &mut Core, events| space.read_events(core, events);
    if !space.resume_cut(core, shared, kit, read_on).unwrap_or(false) {
        core.held = JOURNAL_MESSAGES;
        space.drop_clearings();
        (core.moves, core.unjudged) = (true, true);
    }
    loop {
        match space.read_messages(core, shared, kit) {
            Ok(Settled::NotYet) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_micros(500));
            }
            Ok(_) => return,
            Err(_) => {
                if !space.descriptor.is_alive() {
                    space.set_gone();
                }
                return;
            }
        }
    }
}

/// [`await_worker`], of one that may itself wait for a page: the faults that the dead engine had
/// read are asked for once more, and answered.
fn await_worker_in_faults(shared: &Shared, space: &Space, kit: &mut Kit) -> bool {
    let deadline = Instant::now() + WORKER_PATIENCE;
    if await_worker(&space.table, Instant::now()) {
        return true;
    }
    wake_all(space);
    loop {
        let answer = space.drain(&mut space.core.lock(), shared, kit);
        if await_worker(&space.table, Instant::now()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        // It may be at its next page by now, and have hundreds before it: no page waits for a look.
        // What could not be answered does, or nothing would be done but try.
        let flags = if answer == Answer::Done { PollFlags::IN } else { PollFlags::empty() };
        let _ = poll(&mut [PollFd::new(&space.descriptor, flags)], Some(&WORKER_LOOK));
    }
}

/// Whoever waits for a page touches it again.
fn wake_all(space: &Space) {
    space.descriptor.wake(0x1_0000, crate::sys::arch::ADDRESS_END - 0x1_0000);
}

fn settle(shared: &Shared, space: &Space, kit: &mut Kit) {
    if !space.descriptor.is_alive() {
        space.set_gone();
        return;
    }
    let ended = await_worker_in_faults(shared, space, kit);
    let mut core = space.core.lock();
    core.unsettled = true;
    if !ended {
        return;
    }
    // On `Later` it stays unsettled, and the housekeeper tries again.
    if space.settle(&mut core, shared, kit) == Answer::Gone {
        return;
    }
    drop(core);
    wake_all(space);
}

/// A detach that was cut short: finish it if our area is out already, else stay attached.
fn finish_detach(shared: &Shared, space: &Space) {
    if space.is_gone() || space.table.phase() != Some(Phase::Detaching) {
        return;
    }
    let area = &space.header.area;
    let regions = target::read_maps(space.header.pid, false).map(|text| region::parse(&text));
    let inside = regions.is_ok_and(|regions| {
        regions.iter().any(|region| region.range.start < area.end && area.start < region.range.end)
    });
    if !inside && bring_all_home(shared, space, 0).is_ok() {
        unwatch(space);
        shared.forget(space);
        space.set_gone();
    } else {
        space.table.set_phase(Phase::Attached);
    }
}

/// An attach that was not completed: take our area out of the target, if it got that far.
fn abandon(shared: &Shared, table: Table) {
    let Ok(descriptor) = Userfaultfd::for_self() else { return };
    // Its last call may be the one that maps the area.
    await_worker(&table, Instant::now() + WORKER_PATIENCE);
    let space = reopen(table, descriptor);
    // The target may be gone; then there is nothing to take out.
    let _ = take_area_out(shared, &space);
}
