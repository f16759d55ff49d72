//! Attach and detach: borrow a process and give it back as it was found.
//!
//! Inside the target two things of ours exist while it is attached: one mapping, the area (a few
//! pages for arguments and the staging area), not inherited by children; and, in the kernel, the
//! registration of its memory.  No descriptor: the userfaultfd is made by a worker that has a
//! descriptor table of its own, taken by us, and gone from the target when the worker exits.

use crate::address::PAGE_SIZE;
use crate::borrow::{Worker, with_worker};
use crate::error::{Error, Result};
use crate::page_in::bring_all_home;
use crate::page_out::{WORKER_PATIENCE, await_worker};
use crate::passage;
use crate::points;
use crate::region;
use crate::shared::Shared;
use crate::space::{Header, Phase, SCRATCH_BYTES, Space, Table, inode_of};
use crate::sys::arch::{ADDRESS_END, call};
use crate::sys::foreign::ForeignMemory;
use crate::sys::pagemap::Pagemap;
use crate::sys::userfaultfd::{self, FEATURES, USERFAULTFD_IOC_NEW, Userfaultfd};
use crate::target::{self, Target};
use rustix::process::{Resource, getrlimit};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_SIZE as u64;
const PROT_READ_WRITE: u64 = 3;
/// MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE.
const MAP_AREA: u64 = 0x02 | 0x20 | 0x4000 | 0x10_0000;
/// Descriptors that an attach takes, for good or for a moment.
const DESCRIPTORS_NEEDED: u64 = 16;
/// Descriptors that should stay free for forked children.
const DESCRIPTORS_SPARE: u64 = 64;
const MADV_DONTFORK: u64 = 10;
const MADV_NOHUGEPAGE: u64 = 15;
/// O_CLOEXEC | O_NONBLOCK.
const DESCRIPTOR_FLAGS: u64 = 0o2_000_000 | 0o4000;

/// What an attach cost.
#[derive(Clone, Debug, Default)]
pub struct AttachReport {
    /// What an operator should know; safe to go on.
    pub warnings: Vec<String>,
    /// The one stop of a borrowed thread.
    pub stop: Duration,
    /// All of it.
    pub elapsed: Duration,
}

/// What a detach did.
#[derive(Clone, Copy, Debug, Default)]
pub struct DetachReport {
    /// Pages brought home by it.
    pub pages_in: u64,
    /// Pages that could not be brought home.
    pub pages_out: u64,
    /// The target is as it was found.
    pub complete: bool,
    /// All of it.
    pub elapsed: Duration,
    /// The one stop of a borrowed thread.
    pub stop: Duration,
}

/// Whom a target may share with, as hashes of the names that people gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinship {
    /// Trust domain; never 0, which is nobody's.
    pub domain: u64,
    /// What it was made from.
    pub image: u64,
}

impl Kinship {
    /// Of these names; empty ones are names, too.
    #[must_use]
    pub fn of(domain: &str, image: &str) -> Self {
        let hash = |name: &str| xxhash_rust::xxh3::xxh3_64(name.as_bytes()).max(1);
        Self { domain: hash(domain), image: hash(image) }
    }
}

/// Attach a described process.
///
/// # Errors
/// The refusal, with its cause; nothing is left in the target.
pub fn attach(shared: &Shared, target: &Target, kinship: Kinship) -> Result<AttachReport> {
    let begin = Instant::now();
    let pid = target.pid;
    let few_descriptors = check_descriptors()?;
    let permission = |what: &str| {
        let what = format!("{what} of pid {pid}");
        move |cause: io::Error| match cause.kind() {
            ErrorKind::PermissionDenied => Error::NotPermitted { what, cause },
            _ => Error::TargetGone(pid),
        }
    };
    let memory = ForeignMemory::open(pid).map_err(permission("opening the memory"))?;
    let pagemap = Pagemap::open(pid).map_err(permission("opening the pagemap"))?;
    // Scratch pages, staging area, probe page.
    let length = SCRATCH_BYTES + shared.settings.chunk_pages as u64 * PAGE + PAGE;
    let regions = region::parse(&target::read_maps(pid, false)?);
    let start = region::find_gap(&regions, length, ADDRESS_END).ok_or_else(|| {
        Error::Unsupported { feature: "area", cause: "no room in the address space".to_owned() }
    })?;
    let header = Header {
        id: shared.new_id(),
        parent: 0,
        pid,
        start_time: target.start_time,
        area: start..start + length,
        domain: kinship.domain,
        image: kinship.image,
    };
    // The table comes first: should we die with our area in the target, the next engine knows.
    let table = Table::create(&header, Phase::Attaching)?;
    points::pass("attach.table_made");
    let made = with_worker(target, &memory, shared.settings.limits(), |worker| {
        table.set_worker(worker.thread());
        Ok((make_descriptor(worker, &header.area)?, worker.loan.stop))
    });
    if made.is_err() {
        await_worker(&table, Instant::now() + WORKER_PATIENCE);
        // Nothing of ours stays in a target that was not attached; if this fails too, it is gone.
        let _ = unmap_area(shared, target, &memory, &table);
    }
    let (descriptor, stop) = made?;
    shared.stop.record(stop);
    table.set_worker(0);
    table.set_descriptor_inode(inode_of(&descriptor));
    table.set_phase(Phase::Attached);
    points::pass("attach.published");
    let space = Space::new(table, descriptor, Some(target), Some(memory), Some(pagemap));
    shared.adopt(Arc::new(space))?;
    let mut warnings: Vec<String> = shared.store.warning().map(str::to_owned).into_iter().collect();
    warnings.extend(few_descriptors);
    Ok(AttachReport { warnings, stop, elapsed: begin.elapsed() })
}

/// Refuse before anything is touched when descriptors run out, and warn when they are few: a forked
/// child needs two at the moment of the fork, and waits without them.
fn check_descriptors() -> Result<Option<String>> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(None) };
    // A directory that cannot be listed is the limit itself.
    let used = std::fs::read_dir("/proc/self/fd").map_or(limit, |list| list.count() as u64);
    if used + DESCRIPTORS_NEEDED > limit {
        let what = format!(
            "attaching with {used} of {limit} descriptors in use: raise RLIMIT_NOFILE (ulimit -n)"
        );
        return Err(Error::NotPermitted { what, cause: rustix::io::Errno::MFILE.into() });
    }
    Ok((used + DESCRIPTORS_SPARE > limit).then(|| {
        format!("{used} of {limit} descriptors are in use: children of targets may have to wait")
    }))
}

fn make_descriptor(worker: &mut Worker<'_>, area: &Range<u64>) -> Result<Userfaultfd> {
    passage::empty_table(worker)?;
    map_area(worker, area)?;
    points::pass("attach.area_mapped");
    let device = userfaultfd::open_device().map_err(device_error)?;
    let device = passage::give(worker, area.start, device.as_fd())?;
    let number = worker
        .call(call::IOCTL, [device, USERFAULTFD_IOC_NEW, DESCRIPTOR_FLAGS, 0, 0, 0])?
        .map_err(Error::os("making a userfaultfd in the target"))?;
    let number = i32::try_from(number)
        .map_err(|_| Error::Internal("descriptor number out of range".to_owned()))?;
    let descriptor = Userfaultfd::from(passage::take(worker, number)?);
    descriptor.enable(FEATURES).map_err(|cause| Error::Unsupported {
        feature: "userfaultfd features",
        cause: cause.to_string(),
    })?;
    points::pass("attach.descriptor_taken");
    watch_area(area, &descriptor)?;
    Ok(descriptor)
}

/// Map our area anew in a target that has lost it.
///
/// # Errors
/// The worker is lost, or something else is mapped there now.
pub fn make_area(
    worker: &mut Worker<'_>,
    area: &Range<u64>,
    descriptor: &Userfaultfd,
) -> Result<()> {
    map_area(worker, area)?;
    watch_area(area, descriptor)
}

fn map_area(worker: &mut Worker<'_>, area: &Range<u64>) -> Result<()> {
    let length = area.end - area.start;
    let arguments = [area.start, length, PROT_READ_WRITE, MAP_AREA, u64::MAX, 0];
    worker.call(call::MMAP, arguments)?.map_err(Error::os("mapping an area in the target"))?;
    for advice in [MADV_DONTFORK, MADV_NOHUGEPAGE] {
        // Without transparent huge pages in the kernel the second advice is refused: harmless.
        let _ = worker.call(call::MADVISE, [area.start, length, advice, 0, 0, 0])?;
    }
    Ok(())
}

fn watch_area(area: &Range<u64>, descriptor: &Userfaultfd) -> Result<()> {
    let staging = area.start + SCRATCH_BYTES;
    descriptor.register(staging, area.end - staging).map_err(Error::os("watching the staging area"))
}

fn device_error(cause: io::Error) -> Error {
    match cause.kind() {
        ErrorKind::NotFound => Error::Unsupported {
            feature: "userfaultfd_device",
            cause: "/dev/userfaultfd does not exist (Linux 6.1, CONFIG_USERFAULTFD)".to_owned(),
        },
        _ => Error::NotPermitted { what: "opening /dev/userfaultfd".to_owned(), cause },
    }
}

/// Give a target back: everything home, our area out, the registration dropped.
///
/// # Errors
/// `TargetBusy` when no thread could be borrowed to take the area out: the target stays attached
/// with all its pages home, and the call can be repeated.
pub fn detach(shared: &Shared, space: &Space, memory_floor: u64) -> Result<DetachReport> {
    let begin = Instant::now();
    let _operation = space.claim();
    let mut report = DetachReport::default();
    space.table.set_phase(Phase::Detaching);
    match bring_all_home(shared, space, memory_floor) {
        Ok(home) => report.pages_in = home.pages_in,
        Err(Error::NotEnoughMemory { bytes_out, .. }) => {
            report.pages_out = bytes_out / PAGE;
            report.elapsed = begin.elapsed();
            return Ok(report);
        }
        Err(Error::TargetGone(_)) => {}
        Err(error) => return Err(error),
    }
    points::pass("detach.home");
    match take_area_out(shared, space) {
        Ok(stop) => report.stop = stop,
        Err(Error::TargetGone(_)) => {}
        Err(error) => return Err(error),
    }
    points::pass("detach.area_unmapped");
    unwatch(space);
    shared.forget(space);
    space.set_gone();
    points::pass("detach.closed");
    report.complete = true;
    report.elapsed = begin.elapsed();
    Ok(report)
}

/// Stop watching a target whose pages are all home.
///
/// Closing the descriptor does that as well, but whoever looks at the space just now keeps it open,
/// and then the program would wait for answers to its events from nobody.
pub fn unwatch(space: &Space) {
    let Ok(text) = target::read_maps(space.header.pid, false) else { return };
    let core = space.core.lock();
    if space.pages_away() > 0 {
        return;
    }
    for region in region::parse(&text).iter().filter(|region| region.is_watchable()) {
        for range in space.watched(&core, region.range.clone()) {
            // Another's, or gone by now: none of ours.
            let _ = space.descriptor.unregister(range.start, range.end - range.start);
        }
    }
}

/// Unmap our area; does nothing if it is not there.
///
/// # Errors
/// `TargetBusy`, `TargetGone`.
pub fn take_area_out(shared: &Shared, space: &Space) -> Result<Duration> {
    if space.header.pid == 0 || space.header.area.is_empty() {
        return Ok(Duration::ZERO);
    }
    let target = space.target()?;
    let area = &space.header.area;
    let watched = space.staging().start;
    // An unwatched mapping can be removed without an event that somebody must read.
    let _ = space.descriptor.unregister(watched, area.end - watched);
    let Some(memory) = space.memory.as_ref() else { return Ok(Duration::ZERO) };
    let stop = unmap_area(shared, &target, memory, &space.table)?;
    space.table.clear_area();
    Ok(stop)
}

/// Unmap what there is of an area in a target.
fn unmap_area(
    shared: &Shared,
    target: &Target,
    memory: &ForeignMemory,
    table: &Table,
) -> Result<Duration> {
    let area = &table.header().area;
    let regions = region::parse(&target::read_maps(target.pid, false)?);
    let parts: Vec<Range<u64>> = regions
        .iter()
        .map(|region| region.range.start.max(area.start)..region.range.end.min(area.end))
        .filter(|part| !part.is_empty())
        .collect();
    if parts.is_empty() {
        return Ok(Duration::ZERO);
    }
    let unmapped = with_worker(target, memory, shared.settings.limits(), |worker| {
        // Should we die: whoever goes on must not use the area before this worker has ended.
        table.set_worker(worker.thread());
        for part in &parts {
            let arguments = [part.start, part.end - part.start, 0, 0, 0, 0];
            worker
                .call(call::MUNMAP, arguments)?
                .map_err(Error::os("unmapping the area in the target"))?;
        }
        Ok(worker.loan.stop)
    });
    if unmapped.is_ok() {
        table.set_worker(0);
    }
    unmapped
}
