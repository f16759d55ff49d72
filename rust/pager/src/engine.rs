//! All parts of one host's pager together: what the binding drives.

use crate::ahead::Sizes;
use crate::attach::{AttachReport, DetachReport, Kinship, attach, detach};
use crate::census::{CensusRow, census, payload_bytes_out};
use crate::compact::{CompactReport, compact};
use crate::disk_reads;
use crate::disk_tier::DiskTier;
use crate::error::{Error, Result};
use crate::fault_loop;
use crate::features;
use crate::habit::{self, Learned, RefaultRange};
use crate::housekeeping::{self, KeeperPost};
use crate::keeper::{self, Keeper};
use crate::page_in::{PageInReport, page_in};
use crate::page_out::{PageOutReport, Wanted, page_out};
use crate::points;
use crate::prefetch::{self, WakeReport};
use crate::recode::{self, RecodeReport, dictionary_for, recode};
use crate::references::Reference;
use crate::region;
use crate::shared::{Bell, Queue, Settings, Shared};
use crate::space::Space;
use crate::spill::{SpillReport, spill};
use crate::store::Store;
use crate::takeover::{Estate, take_over};
use crate::target::{self, Target};
use crate::template;
use crate::train::{self, Training, train};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs::{DirBuilder, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a killed engine's lock may outlive it: until its keeper notices.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Memory that page ins leave to the host.
const MEMORY_FLOOR: u64 = 64 << 20;

/// What a target has learned.
#[derive(Clone, Debug)]
pub struct LearnedSet {
    /// Pages.
    pub pages: u64,
    /// Of them, those that the next wake is expected to need ...
    pub pages_expected: u64,
    /// ... and of these, those that are out now.
    pub pages_out: u64,
    /// Wakes that it was learned from, and those that only used it.
    pub wakes: u64,
}

/// The pager of one host.
pub struct Engine {
    shared: Arc<Shared>,
    post: Arc<KeeperPost>,
    adopted: Vec<i32>,
    stop: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The housekeeper's.
    bell: Arc<Bell>,
    /// Held as long as the engine lives; the keeper lets go of it when the engine dies.
    _lock: File,
    /// Attaches one at a time: two of the same process must not both succeed.
    attaching: Mutex<()>,
}

impl Engine {
    /// Start; take over from the keeper of a killed engine, if there is one.
    ///
    /// # Errors
    /// `AlreadyRunning`, `IncompatibleState`, `InvalidSetting`, or what the system refused.
    pub fn start(settings: Settings) -> Result<Self> {
        settings.check()?;
        raise_descriptor_limit();
        check_features()?;
        let run_dir = PathBuf::from(&settings.run_dir);
        let lock = lock_run_dir(&run_dir)?;
        let (predecessor, estate) = match keeper::inherit(&run_dir)? {
            Some((predecessor, inheritance)) => {
                (Some(predecessor), Some(Estate::sort(inheritance)?))
            }
            None => (None, None),
        };
        let (store, estate) = open_store(&settings, estate)?;
        let queues =
            (0..settings.fault_threads).map(|_| Queue::create()).collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared::new(settings, store, queues));
        let adopted = match estate {
            Some(estate) => take_over(&shared, estate)?,
            None => Vec::new(),
        };
        let post = Arc::new(KeeperPost::start(&shared, run_dir)?);
        points::pass("takeover.keeper_started");
        if let Some(predecessor) = predecessor {
            predecessor.dismiss();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads =
            fault_loop::start(&shared, &stop).map_err(Error::os("starting the fault threads"))?;
        let workers = prefetch::start(&shared, &stop);
        threads.extend(workers.map_err(Error::os("starting the prefetch workers"))?);
        if shared.store.disk().is_some() {
            let readers = disk_reads::start(&shared, &stop);
            threads.extend(readers.map_err(Error::os("starting the disk readers"))?);
        }
        let engine = Self {
            shared,
            post,
            adopted,
            stop,
            threads: Mutex::new(threads),
            bell: Arc::new(Bell::create()?),
            _lock: lock,
            attaching: Mutex::new(()),
        };
        let Self { shared, post, stop, bell, .. } = &engine;
        engine.threads.lock().push(housekeeping::start(shared, post, stop, bell)?);
        Ok(engine)
    }

    /// What all parts share: spaces, counters, the pool.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Pids of targets taken over at start.
    #[must_use]
    pub fn adopted(&self) -> &[i32] {
        &self.adopted
    }

    /// Process id of the keeper, 0 while there is none, and how often it was replaced.
    #[must_use]
    pub fn keeper(&self) -> (i32, u64) {
        let pid = self.post.keeper.lock().as_ref().map_or(0, Keeper::pid);
        (pid, self.post.restarts.load(Ordering::Relaxed))
    }

    /// Attach a process.
    ///
    /// # Errors
    /// The refusal, with its cause.
    pub fn attach(
        &self,
        pid: i32,
        start_time: Option<u64>,
        kinship: Kinship,
    ) -> Result<AttachReport> {
        let _one_at_a_time = self.attaching.lock();
        let own = [i32::try_from(std::process::id()).unwrap_or(0), self.keeper().0];
        let target = Target::describe(pid, &own)?;
        if let Some(expected) = start_time
            && expected != target.start_time
        {
            return Err(Error::PidReused { pid, expected, actual: target.start_time });
        }
        if let Some(space) = self.shared.space_of(pid) {
            if space.header.start_time == target.start_time && space.descriptor.is_alive() {
                return Err(Error::AlreadyAttached(pid));
            }
            // It exec'ed or its pid was reused: what we had is of no use to anybody.
            self.shared.forget(&space);
        }
        attach(&self.shared, &target, kinship)
    }

    fn space(&self, pid: i32) -> Result<Arc<Space>> {
        self.shared.space_of(pid).ok_or(Error::NotAttached(pid))
    }

    /// Page out.
    ///
    /// # Errors
    /// `NotAttached`, `TargetBusy`, `TargetGone`.
    pub fn page_out(&self, pid: i32, wanted: Wanted<'_>) -> Result<PageOutReport> {
        page_out(&self.shared, &*self.space(pid)?, wanted)
    }

    /// Page in.
    ///
    /// # Errors
    /// `NotAttached`, `TargetGone`, `NotEnoughMemory`.
    pub fn page_in(&self, pid: i32, ranges: Option<&[Range<u64>]>) -> Result<PageInReport> {
        page_in(&self.shared, &*self.space(pid)?, ranges, MEMORY_FLOOR)
    }

    /// Page in one space by number; a child with nothing left out is forgotten.
    ///
    /// # Errors
    /// As [`Engine::page_in`].
    pub fn page_in_space(&self, id: u64) -> Result<PageInReport> {
        let space = self.shared.space(id).ok_or(Error::NotAttached(0))?;
        let report = match page_in(&self.shared, &space, None, MEMORY_FLOOR) {
            Err(Error::TargetGone(_)) if space.header.pid == 0 => PageInReport::default(),
            other => other?,
        };
        let home = {
            let _core = space.core.lock();
            space.pages_away() == 0
        };
        if space.header.pid == 0 && home {
            self.shared.forget(&space);
        }
        Ok(report)
    }

    /// The sandbox of a target wakes: bring home what it has learned to need, at most `pages_max`;
    /// what comes after the `first` needed pages follows while it runs.
    ///
    /// # Errors
    /// `NotAttached`, `TargetGone`.
    pub fn wake(
        &self,
        pid: i32,
        pages_max: Option<usize>,
        first: Option<usize>,
    ) -> Result<WakeReport> {
        let (pages_max, first) = (pages_max.unwrap_or(usize::MAX), first.unwrap_or(usize::MAX));
        prefetch::wake(&self.shared, &self.space(pid)?, pages_max, first)
    }

    /// Choose what refaults of a target set off: a replay of its wake, and windows.
    ///
    /// # Errors
    /// `NotAttached`; `InvalidSetting` that names the field.
    pub fn set_prefetch(&self, pid: i32, replay: bool, window: Sizes) -> Result<()> {
        window.check()?;
        let space = self.space(pid)?;
        let mut core = space.core.lock();
        core.habit.replay = replay;
        core.ahead.set_sizes(window);
        Ok(())
    }

    /// What a target has learned, as ranges of addresses, the surest first.
    ///
    /// # Errors
    /// `NotAttached`.
    pub fn learned(&self, pid: i32) -> Result<LearnedSet> {
        let space = self.space(pid)?;
        let pages = space.core.lock().habit.pages().to_vec();
        let wakes = space.tally.wakes.load(Ordering::Relaxed);
        let expected = || pages.iter().filter(|learned| learned.is_expected());
        Ok(LearnedSet {
            pages: pages.len() as u64,
            pages_expected: expected().count() as u64,
            pages_out: expected().filter(|learned| space.is_out(learned.page)).count() as u64,
            wakes,
        })
    }

    /// Of the pages at home that the next wake is expected to need, the surest `pages_max`, as
    /// ranges of addresses.
    ///
    /// # Errors
    /// `NotAttached`.
    pub fn hottest(&self, pid: i32, pages_max: u64) -> Result<Vec<Range<u64>>> {
        let space = self.space(pid)?;
        let pages = space.core.lock().habit.pages().to_vec();
        let is_here = |learned: &&Learned| learned.is_expected() && !space.is_out(learned.page);
        Ok(habit::hottest(pages.iter().filter(is_here), pages_max))
    }

    /// What a target has learned, independent of its addresses.
    ///
    /// # Errors
    /// `NotAttached`, `TargetGone`.
    pub fn export_learned(&self, pid: i32) -> Result<Vec<u8>> {
        let space = self.space(pid)?;
        let regions = region::parse(&target::read_maps(pid, false)?);
        let pages = space.core.lock().habit.pages().to_vec();
        Ok(template::export(&regions, &space.header.area, &pages))
    }

    /// Let a target begin with what another one has learned; returns how many pages it can use.
    ///
    /// # Errors
    /// `NotAttached`, `TargetGone`; `InvalidSetting`: the data is no learned set.
    pub fn import_learned(&self, pid: i32, data: &[u8]) -> Result<u64> {
        let space = self.space(pid)?;
        let regions = region::parse(&target::read_maps(pid, false)?);
        let pages = template::import(data, &regions, &space.header.area)?;
        let count = pages.len() as u64;
        space.core.lock().habit.adopt(pages);
        Ok(count)
    }

    /// Pages of a target that came back because they were touched, since the last call.
    ///
    /// # Errors
    /// `NotAttached`.
    pub fn refaults(&self, pid: i32) -> Result<Vec<RefaultRange>> {
        Ok(self.space(pid)?.core.lock().habit.take_refaults())
    }

    /// Detach.
    ///
    /// # Errors
    /// `NotAttached`, `TargetBusy`.
    pub fn detach(&self, pid: i32, memory_floor: u64) -> Result<DetachReport> {
        detach(&self.shared, &*self.space(pid)?, memory_floor)
    }

    /// Train a dictionary from a target's pages and keep it.
    ///
    /// # Errors
    /// `NotAttached`; `InvalidSetting` when there are too few pages.
    pub fn train(&self, pid: i32, name: &str, request: train::Request) -> Result<Training> {
        train(&self.shared, &*self.space(pid)?, name, request)
    }

    /// Keep a dictionary that anybody may use.
    ///
    /// # Errors
    /// The bytes are no dictionary.
    pub fn add_dictionary(&self, bytes: &[u8], name: &str) -> Result<Arc<Reference>> {
        self.shared.store.references.add_dictionary(bytes, name, 0)
    }

    /// What a dictionary gains on a sample of a target's pages.
    ///
    /// # Errors
    /// `NotAttached`; `InvalidSetting` for an unknown dictionary or one of another domain.
    pub fn measure_dictionary(&self, pid: i32, number: u16) -> Result<f64> {
        let space = self.space(pid)?;
        let dictionary = dictionary_for(&self.shared, &space, number)?;
        train::measure(&self.shared, &space, &dictionary)
    }

    /// Choose what the next page outs of a target encode with.
    ///
    /// # Errors
    /// `NotAttached`; `InvalidSetting` for an unknown dictionary or one of another domain.
    pub fn use_dictionary(&self, pid: i32, number: Option<u16>) -> Result<()> {
        let space = self.space(pid)?;
        if let Some(number) = number {
            dictionary_for(&self.shared, &space, number)?;
        }
        space.table.set_dictionary(number.unwrap_or(0));
        Ok(())
    }

    /// Offer a dictionary no more; it lives until its last page is gone.
    ///
    /// # Errors
    /// `InvalidSetting`: there is none of that number.
    pub fn drop_dictionary(&self, number: u16) -> Result<()> {
        let references = &self.shared.store.references;
        let reference = references.get(number).filter(|found| found.is_dictionary());
        let reference = reference.ok_or_else(|| Error::InvalidSetting {
            field: "dictionary",
            problem: format!("there is no dictionary {number}"),
        })?;
        reference.retire();
        for space in self.shared.all_spaces() {
            if space.table.dictionary() == number {
                space.table.set_dictionary(0);
            }
        }
        drop(reference);
        references.collect();
        Ok(())
    }

    /// Make the stored pages of a target smaller, in the background.
    ///
    /// # Errors
    /// `NotAttached` for the target or its peer; as [`recode::recode`].
    pub fn recode(
        &self,
        pid: i32,
        peer: Option<i32>,
        request: recode::Request,
    ) -> Result<RecodeReport> {
        let space = self.space(pid)?;
        let peer = peer.map(|peer| self.space(peer)).transpose()?;
        recode(&self.shared, &space, peer.as_deref(), request)
    }

    /// Give half-empty pool memory back to the host.
    pub fn compact(&self, budget: Option<Duration>) -> CompactReport {
        compact(&self.shared, budget)
    }

    /// Stored pages of a target to the disk tier.
    ///
    /// # Errors
    /// `NotAttached`; `InvalidSetting`: there is no swap file.
    pub fn spill(&self, pid: i32, pages_max: u64) -> Result<SpillReport> {
        spill(&self.shared, &*self.space(pid)?, pages_max)
    }

    /// What of a target is out, by class and codec.
    ///
    /// # Errors
    /// `NotAttached`.
    pub fn census(&self, pid: i32) -> Result<Vec<CensusRow>> {
        Ok(census(&self.shared, &*self.space(pid)?))
    }

    /// Bytes of the pool that pages that are out need; the rest is copies of pages that are home.
    #[must_use]
    pub fn payload_bytes_out(&self) -> u64 {
        payload_bytes_out(&self.shared)
    }

    /// Drop what can be made again.
    pub fn release_caches(&self) {
        self.shared.caches.release(&self.shared);
    }

    /// End: stop the threads and the keeper.
    ///
    /// # Errors
    /// `TargetsRemain`.
    pub fn close(&self) -> Result<()> {
        housekeeping::sweep(&self.shared, |_| true);
        let remaining = self.shared.spaces.read().len();
        if remaining > 0 {
            return Err(Error::TargetsRemain(remaining));
        }
        self.halt();
        Ok(())
    }

    fn halt(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        self.shared.ring_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        if let Some(keeper) = self.post.keeper.lock().take() {
            keeper.stop();
        }
        if let Some(disk) = self.shared.store.disk() {
            disk.unlock();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // With targets left it serves them to the end of this process; then the keeper holds them
        // for the next engine.  Closing their descriptors here would close the keeper's too, as the
        // table is one: the targets would read zeros.  The threads keep what they use.
        if self.shared.spaces.read().is_empty() {
            self.halt();
        }
    }
}

/// Four descriptors per target: use what the administrator allows.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A refusal leaves the lower limit, which an attach then runs into with a clear error.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Refuse at once, by name, what would fail later in the middle of an attach.
fn check_features() -> Result<()> {
    for (feature, cause) in features::probe() {
        if cause.is_empty() || feature == "suspend_seccomp" {
            continue;
        }
        let permission = cause.contains("denied") || cause.contains("CAP_");
        return Err(if permission {
            let cause = std::io::Error::other(cause);
            Error::NotPermitted { what: feature.to_owned(), cause }
        } else {
            Error::Unsupported { feature, cause }
        });
    }
    Ok(())
}

fn lock_run_dir(run_dir: &Path) -> Result<File> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(run_dir)
        .map_err(Error::os("making the run directory"))?;
    let path = run_dir.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::os("opening the lock"))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(_) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return Err(Error::AlreadyRunning(run_dir.display().to_string())),
        }
    }
}

fn open_store(settings: &Settings, estate: Option<Estate>) -> Result<(Store, Option<Estate>)> {
    if let Some(mut estate) = estate
        && let Some(pool) = estate.pool.take()
    {
        // A file that holds pages stays in use, whatever the settings of this engine say.
        let tier = estate.disk.take().map_or_else(|| open_disk(settings), |tier| Ok(Some(tier)))?;
        let store = Store::take_over(pool, std::mem::take(&mut estate.references), tier)?;
        return Ok((store, Some(estate)));
    }
    Ok((Store::create(settings.pool_bytes_max, open_disk(settings)?)?, None))
}

fn open_disk(settings: &Settings) -> Result<Option<DiskTier>> {
    let path = settings.disk_path.as_deref();
    path.map(|path| DiskTier::create(path, settings.disk_bytes_max)).transpose()
}
