//! Learned pages home before they are touched: when a sandbox wakes, and ahead of one who walks.
//!
//! Demand faults go first: pages are decoded without the space's lock and put in place in holds of
//! a few pages, between which the fault thread, which has the higher priority, gets the lock.  All
//! workers share one trip, batch by batch in the order of first need; a batch is sorted by address,
//! so that neighbours go in one call.
//!
//! A wake has a *head*, the pages that are needed first, which is home when the wake returns, and a
//! *rest*, which follows while the program runs and stays ahead of it.  The rest takes half of the
//! workers, so that it does not take the processors that the program needs, and lets every head
//! and window pass.
//!
//! Only a head is waited for.  All else is decoded by an ordinary thread, which the scheduler puts
//! beside the programs that run; before them, it would hold up the program that it works for, on
//! the processor where that was answered.  To put pages in place, under the lock that faults need,
//! everybody hurries.
//!
//! A trip has the operation lock and ends as soon as somebody else wants it (a page out, a detach).
//! A window has no such lock, so nothing here ever deals with a staged page, or with one that
//! cannot be decoded: they are left to the fault, which alone can tell what became of them.
//! Nothing is remembered beyond a kill -9: what is out stays out, and comes when it is touched.

use crate::address::{PAGE_SIZE, PageNumber};
use crate::ahead::ALONG_PAGES;
use crate::error::{Error, Result};
use crate::habit::{Call, Choice};
use crate::page_in::{PageInReport, Ready, available_memory, decode, install_batch};
use crate::page_table::Entry;
use crate::points;
use crate::shared::{Kit, Shared};
use crate::space::{Core, Space};
use crate::sys::foreign;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pages decoded and put in place at a time, in one hold of the lock: some 100 us.
const BATCH_PAGES: usize = 64;
/// Most workers; the kernel's own locks of one address space make more useless.
const WORKERS_MAX: usize = 8;
/// Jobs that wait; of windows more are not taken, as their pages are touched by then.
const JOBS_MAX: usize = 64;
/// Memory that a wake leaves to the host, and how often to look, in batches.
const MEMORY_FLOOR: u64 = 64 << 20;
const MEMORY_CHECK: usize = 64;
/// How long to try one batch while the program keeps changing its address space.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long a wake that was seen waits for others at work on the same space: a page out ends with
/// its step, background work is brief.
const OPERATION_PATIENCE: Duration = Duration::from_millis(100);
/// How soon a caller notices that his trip was stopped.
const LOOK: Duration = Duration::from_millis(10);

/// What a wake did.
#[derive(Clone, Copy, Debug, Default)]
pub struct WakeReport {
    /// Learned pages brought home.
    pub pages_in: u64,
    /// Learned pages that follow.
    pub pages_following: u64,
    /// Learned pages that were home already.
    pub pages_present: u64,
    /// Learned pages left to fault, to see whether they are needed.
    pub pages_spared: u64,
    /// Learned pages that cannot be produced: who touches them gets SIGBUS.
    pub pages_lost: u64,
    /// All of it.
    pub elapsed: Duration,
}

/// Something to bring home that a program waits for.
#[derive(Debug)]
enum Urgent {
    /// A part of a head.
    Help(Arc<Trip>),
    /// Neighbours of a touched page.
    Window(u64, Range<PageNumber>),
    /// Of the pages from one on those whose bit is set: they come along with a touched one.
    Along(u64, PageNumber, u8),
}

/// What follows a head, or the whole set of a space that was seen to wake.
#[derive(Clone, Copy, Debug)]
struct Rest {
    space: u64,
    pages_max: usize,
    /// Nobody announced this wake.
    seen: bool,
    /// Which of the space's page outs it follows, by [`crate::habit::Habit::sleeps`].
    sleeps: u64,
}

#[derive(Debug)]
enum Job {
    Urgent(Urgent),
    Rest(Rest),
}

/// What waits to be brought home.
#[derive(Debug)]
pub struct Prefetch {
    /// Held for a push or a pop only: fault threads take it.
    queues: Mutex<Queues>,
    bell: Condvar,
    workers: usize,
}

#[derive(Debug)]
struct Queues {
    urgent: VecDeque<Urgent>,
    rests: VecDeque<Rest>,
    /// Workers at work on a rest.
    resting: usize,
}

impl Default for Prefetch {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let queues = Queues {
            urgent: VecDeque::with_capacity(JOBS_MAX + WORKERS_MAX),
            rests: VecDeque::with_capacity(JOBS_MAX),
            resting: 0,
        };
        Self {
            queues: Mutex::new(queues),
            bell: Condvar::new(),
            workers: processors.min(WORKERS_MAX),
        }
    }
}

impl Prefetch {
    fn ask(&self, job: Urgent) {
        let mut queues = self.queues.lock();
        if queues.urgent.len() < JOBS_MAX || matches!(job, Urgent::Help(_)) {
            queues.urgent.push_back(job);
            self.bell.notify_one();
        }
    }

    fn pop_urgent(&self) -> Option<Urgent> {
        self.queues.lock().urgent.pop_front()
    }

    fn follow(&self, rest: Rest) {
        self.queues.lock().rests.push_back(rest);
        // All: the one that hears of it may not be allowed to take it.
        self.bell.notify_all();
    }

    /// Wait for the next one; `None` at the end of the engine.
    fn next(&self, stop: &AtomicBool) -> Option<Job> {
        let mut queues = self.queues.lock();
        while !stop.load(Ordering::Acquire) {
            if let Some(urgent) = queues.urgent.pop_front() {
                return Some(Job::Urgent(urgent));
            }
            if self.may_rest(&queues)
                && let Some(rest) = queues.rests.pop_front()
            {
                queues.resting += 1;
                return Some(Job::Rest(rest));
            }
            self.bell.wait(&mut queues);
        }
        None
    }

    fn may_rest(&self, queues: &Queues) -> bool {
        queues.resting < self.workers.div_ceil(2)
    }

    /// Let the workers see that the engine closes.
    pub fn ring(&self) {
        // Under the lock: a worker that has just looked waits by now, and hears it.
        let _queues = self.queues.lock();
        self.bell.notify_all();
    }
}

/// Counts a worker on a rest, also when it panics.
struct Resting<'a>(&'a Prefetch);

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.queues.lock().resting -= 1;
        self.0.bell.notify_one();
    }
}

/// What a worker works with; made once, so that bringing pages allocates little.
struct Hands {
    /// The sandbox waits for what is done.
    hurry: bool,
    kit: Kit,
    pages: Vec<u8>,
    ready: Vec<Ready>,
}

impl Default for Hands {
    fn default() -> Self {
        Self {
            hurry: false,
            kit: Kit::default(),
            pages: vec![0; BATCH_PAGES * PAGE_SIZE],
            ready: Vec::with_capacity(BATCH_PAGES),
        }
    }
}

/// A set on its way home.
#[derive(Debug)]
struct Trip {
    space: Arc<Space>,
    /// In the order of first need, each batch by address.
    pages: Vec<PageNumber>,
    /// Of those, taken by some worker.
    next: AtomicUsize,
    /// Somebody wants the space, memory is short, or the program is gone or too busy.
    stopped: AtomicBool,
    /// Workers at work and what they did.  Held for an addition only.
    progress: Mutex<Progress>,
    /// Rings when a worker ends.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    workers: usize,
    report: PageInReport,
}

/// Says that a set is on its way, also when that ends by a panic.
struct OnItsWay<'a>(&'a Space);

impl<'a> OnItsWay<'a> {
    fn of(space: &'a Space) -> Self {
        space.prefetching.store(true, Ordering::Release);
        Self(space)
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.0.prefetching.store(false, Ordering::Release);
    }
}

/// Counts a worker of a trip, also when it panics.
struct AtWork<'a>(&'a Trip);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().workers -= 1;
        self.0.done.notify_all();
    }
}

impl Trip {
    fn new(space: &Arc<Space>, mut pages: Vec<PageNumber>) -> Self {
        pages.chunks_mut(BATCH_PAGES).for_each(<[PageNumber]>::sort_unstable);
        Self {
            space: Arc::clone(space),
            pages,
            next: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            progress: Mutex::default(),
            done: Condvar::new(),
        }
    }

    fn is_over(&self) -> bool {
        if self.space.is_wanted() || self.space.is_gone() {
            self.stopped.store(true, Ordering::Release);
        }
        self.stopped.load(Ordering::Acquire)
            || self.next.load(Ordering::Acquire) >= self.pages.len()
    }

    /// Bring batches until none is left; who brings a rest lets what is urgent pass.
    fn work(&self, shared: &Shared, hands: &mut Hands, is_rest: bool) {
        self.progress.lock().workers += 1;
        let _at_work = AtWork(self);
        let mut report = PageInReport::default();
        while !self.is_over() {
            while is_rest && let Some(urgent) = shared.prefetch.pop_urgent() {
                run_urgent(shared, urgent, hands);
            }
            let from = self.next.fetch_add(BATCH_PAGES, Ordering::AcqRel);
            let to = (from + BATCH_PAGES).min(self.pages.len());
            let Some(batch) = self.pages.get(from..to) else { break };
            let look = (from / BATCH_PAGES).is_multiple_of(MEMORY_CHECK);
            if look && available_memory() < MEMORY_FLOOR
                || bring(shared, &self.space, hands, batch, &mut report).is_err()
            {
                self.stopped.store(true, Ordering::Release);
            }
        }
        let total = &mut self.progress.lock().report;
        total.pages_in += report.pages_in;
        total.pages_present += report.pages_present;
        total.pages_lost += report.pages_lost;
    }

    /// Wait for its end.
    fn wait(&self) -> PageInReport {
        let mut progress = self.progress.lock();
        while progress.workers > 0 || !self.is_over() {
            self.done.wait_for(&mut progress, LOOK);
        }
        progress.report
    }
}

/// Start the workers.
///
/// # Errors
/// No thread could be started.
pub fn start(shared: &Arc<Shared>, stop: &Arc<AtomicBool>) -> std::io::Result<Vec<JoinHandle<()>>> {
    (0..shared.prefetch.workers)
        .map(|number| {
            let (shared, stop) = (Arc::clone(shared), Arc::clone(stop));
            let name = format!("agentzip-home{number}");
            std::thread::Builder::new().name(name).spawn(move || {
                foreign::prefer(0);
                let mut hands = Hands::default();
                while !stop.load(Ordering::Acquire) {
                    let Some(job) = shared.prefetch.next(&stop) else { continue };
                    // Whatever goes wrong with one page, it comes when it is touched.
                    let run = AssertUnwindSafe(|| run(&shared, job, &mut hands));
                    if catch_unwind(run).is_err() {
                        hands.hurry = false;
                        foreign::lower_priority();
                    }
                }
            })
        })
        .collect()
}

fn run(shared: &Shared, job: Job, hands: &mut Hands) {
    match job {
        Job::Urgent(urgent) => run_urgent(shared, urgent, hands),
        Job::Rest(rest) => {
            let _resting = Resting(&shared.prefetch);
            bring_rest(shared, rest, hands);
        }
    }
}

fn run_urgent(shared: &Shared, urgent: Urgent, hands: &mut Hands) {
    match urgent {
        Urgent::Help(trip) => {
            let before = std::mem::replace(&mut hands.hurry, true);
            foreign::in_a_hurry(|| trip.work(shared, hands, false));
            hands.hurry = before;
        }
        Urgent::Window(id, pages) => {
            let Some(space) = shared.space(id) else { return };
            bring_window(shared, &space, hands, (pages.start.0..pages.end.0).map(PageNumber));
        }
        Urgent::Along(id, first, wanted) => {
            let Some(space) = shared.space(id) else { return };
            let is_wanted = |place: &u64| wanted >> place & 1 != 0;
            let pages = (0..ALONG_PAGES).filter(is_wanted).map(|place| first.forward(place));
            bring_window(shared, &space, hands, pages);
        }
    }
}

/// The sandbox behind a space wakes: bring home what it has learned to need, `pages_max` of it.
/// Returns when the `first` ones of them are home; the others follow while the sandbox runs.
///
/// # Errors
/// `TargetGone`.
pub fn wake(
    shared: &Shared,
    space: &Arc<Space>,
    pages_max: usize,
    first: usize,
) -> Result<WakeReport> {
    let began = Instant::now();
    let (report, sleeps) = {
        let _operation = space.waking(|| space.claim());
        let sleeps = space.core.lock().habit.sleeps();
        (bring_head(shared, space, (pages_max, first), began), sleeps)
    };
    if space.is_gone() && !space.descriptor.is_alive() {
        return Err(Error::TargetGone(space.header.pid));
    }
    if report.pages_following > 0 {
        // `choose` counts what is out: what came home meanwhile is not brought twice.
        let pages_max = pages_max.saturating_sub(first);
        shared.prefetch.follow(Rest { space: space.id(), pages_max, seen: false, sleeps });
    }
    Ok(report)
}

/// For one who has the operation lock.
fn bring_head(
    shared: &Shared,
    space: &Arc<Space>,
    (pages_max, first): (usize, usize),
    began: Instant,
) -> WakeReport {
    let mut choice = choose(space, pages_max, began);
    let following = choice.pages.len().saturating_sub(first);
    choice.pages.truncate(first);
    let chosen = choice.pages.len();
    let trip = Arc::new(Trip::new(space, choice.pages));
    let on_its_way = OnItsWay::of(space);
    for _ in 0..shared.prefetch.workers.min(chosen.div_ceil(BATCH_PAGES)) {
        shared.prefetch.ask(Urgent::Help(Arc::clone(&trip)));
    }
    let report = trip.wait();
    drop(on_its_way);
    account(shared, space, &report);
    let elapsed = began.elapsed();
    let stopped = trip.stopped.load(Ordering::Acquire);
    if chosen > 0 && !stopped {
        shared.wake.record(elapsed);
    }
    WakeReport {
        pages_in: report.pages_in,
        pages_following: if stopped { 0 } else { following as u64 },
        pages_present: choice.present + report.pages_present,
        pages_spared: choice.spared,
        pages_lost: report.pages_lost,
        elapsed,
    }
}

fn bring_rest(shared: &Shared, rest: Rest, hands: &mut Hands) {
    let Some(space) = shared.space(rest.space) else { return };
    let began = Instant::now();
    let lock = || space.operation.try_lock_for(OPERATION_PATIENCE);
    let Some(_operation) = space.waking(lock) else {
        space.core.lock().habit.not_replayed();
        return;
    };
    // A worker may come to it only when the sandbox has been paged out again.
    if space.core.lock().habit.sleeps() != rest.sleeps {
        return;
    }
    let trip = Trip::new(&space, choose(&space, rest.pages_max, began).pages);
    let on_its_way = OnItsWay::of(&space);
    trip.work(shared, hands, true);
    drop(on_its_way);
    account(shared, &space, &trip.progress.lock().report);
    if rest.seen && !trip.stopped.load(Ordering::Acquire) {
        shared.wake.record(began.elapsed());
    }
}

fn choose(space: &Space, pages_max: usize, now: Instant) -> Choice {
    let snapshot = space.core.lock().habit.wake(now);
    let choice = snapshot.choose(pages_max, |page| space.is_out(page));
    space.core.lock().habit.chose(&choice);
    points::pass("prefetch.chosen");
    choice
}

fn account(shared: &Shared, space: &Space, report: &PageInReport) {
    // Faults that were read under the lock, and could not be answered, are the fault thread's.
    shared.nudge(space.id());
    space.tally.prefetched.fetch_add(report.pages_in, Ordering::Relaxed);
}

fn bring_window(
    shared: &Shared,
    space: &Space,
    hands: &mut Hands,
    pages: impl Iterator<Item = PageNumber>,
) {
    let pages: Vec<PageNumber> = pages.filter(|page| space.is_out(*page)).collect();
    let mut report = PageInReport::default();
    for batch in pages.chunks(BATCH_PAGES) {
        if bring(shared, space, hands, batch, &mut report).is_err() {
            break;
        }
    }
    if !space.core.lock().pending.is_empty() {
        shared.nudge(space.id());
    }
    space.tally.windowed.fetch_add(report.pages_in, Ordering::Relaxed);
}

/// Decode what is out of one batch and put it in place.
fn bring(
    shared: &Shared,
    space: &Space,
    hands: &mut Hands,
    batch: &[PageNumber],
    report: &mut PageInReport,
) -> Result<()> {
    let Hands { hurry, kit, pages, ready } = hands;
    ready.clear();
    for page in batch {
        let entry = space.table.get(*page);
        let (Entry::Pooled(_) | Entry::Same { .. }) = entry else { continue };
        let out = &mut pages.as_chunks_mut::<PAGE_SIZE>().0[ready.len()];
        if decode(shared, space, kit, &entry, out) {
            ready.push(Ready { page: *page, entry, good: true });
        } else if space.table.get(*page) == entry {
            report.pages_lost += 1;
        }
    }
    points::pass("prefetch.decoded");
    let mut install = || install_batch(shared, space, kit, ready, pages, report, PATIENCE);
    if *hurry { install() } else { foreign::in_a_hurry(install) }?;
    points::pass("prefetch.installed");
    Ok(())
}

impl Space {
    /// A page that was out was touched and has been put in place: learn from it, and bring what
    /// will be touched next.  Only notes and asks; the work is done by others.
    pub fn note_refault(&self, core: &mut Core, shared: &Shared, page: PageNumber) {
        let now = Instant::now();
        match core.habit.refault(page, now) {
            Call::Unheard => return,
            Call::Replay => {
                let pages_max = usize::MAX;
                let sleeps = core.habit.sleeps();
                let rest = Rest { space: self.id(), pages_max, seen: true, sleeps };
                return shared.prefetch.follow(rest);
            }
            Call::Nothing => {}
        }
        self.bring_along(core, shared, page, now);
        if self.prefetching.load(Ordering::Acquire) {
            return;
        }
        let step = core.ahead.refault(page);
        if let Some(passed) = step.passed {
            for page in (passed.start.0..passed.end.0).map(PageNumber) {
                // Of what was never out there is nothing to learn.
                if matches!(self.table.get(page), Entry::Kept(_)) {
                    core.habit.passed_over(page, now);
                }
            }
        }
        if let Some(pages) = step.bring {
            shared.prefetch.ask(Urgent::Window(self.id(), pages));
        }
    }

    /// In a wake the neighbours of a touched page come with it.
    fn bring_along(&self, core: &mut Core, shared: &Shared, page: PageNumber, now: Instant) {
        if !core.habit.is_awake() {
            return;
        }
        let block = core.ahead.along(page);
        let mut wanted = 0u8;
        for (place, page) in (block.start.0..block.end.0).map(PageNumber).enumerate() {
            if self.is_out(page) && core.habit.brings_along(page, now) {
                wanted |= 1 << place;
            }
        }
        if wanted != 0 {
            shared.prefetch.ask(Urgent::Along(self.id(), block.start, wanted));
        }
    }
}
