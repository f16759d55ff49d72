//! The threads that answer the kernel.
//!
//! Each owns an event queue; every space belongs to one of them, so its messages are read in order
//! by one thread at a time.  They take no lock that policy holds and never call into Python.
//!
//! A space that cannot be served now (an event is open, the kernel has no memory, this process no
//! descriptor) is *postponed*: tried again by time alone, as nothing else may ever happen in its
//! program, and less and less often, as it may stay so.  Meanwhile its messages wake the thread
//! once, when they arrive, and not as long as they wait.  A panic postpones the space it happened
//! over; all others are served on.

use crate::follow::Follower;
use crate::points::FAULT_THREAD;
use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::space::Space;
use crate::stats::increment;
use crate::sys::foreign::raise_priority;
use crate::waker::{Handover, Sleepers};
use rustix::event::{Timespec, epoll};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Spaces looked at per turn; more come with the next one.
const EVENTS_PER_TURN: usize = 64;
/// How soon a fault that could not be answered is tried again; twice as long after each failure.
const RETRY: Duration = Duration::from_micros(500);
/// The longest pause between two tries: an answer that has become possible comes soon, and trying
/// in vain for ever takes below one per cent of a CPU.
const RETRY_MAX: Duration = Duration::from_millis(20);
/// The longest pause after panics.  Each prints its message: seventeen in the first minute, then
/// one a minute.
const PANIC_MAX: Duration = Duration::from_secs(60);

/// Start one thread per queue, and one that wakes for it.
///
/// # Errors
/// No thread could be started.
pub fn start(shared: &Arc<Shared>, stop: &Arc<AtomicBool>) -> std::io::Result<Vec<JoinHandle<()>>> {
    // With one processor, a program that is woken cannot go elsewhere.
    let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let mut threads = if several { start_wakers(shared, stop)? } else { Vec::new() };
    for shard in 0..shared.queues.len() {
        let (shared, stop) = (Arc::clone(shared), Arc::clone(stop));
        let name = format!("{FAULT_THREAD}{shard}");
        threads.push(std::thread::Builder::new().name(name).spawn(move || {
            raise_priority(None);
            let mut shift = Shift::new(shard);
            while !stop.load(Ordering::Acquire) {
                // A panic is a bug, but one target's bug must not leave all others unserved: go
                // on.  Locks are released by unwinding.
                let run = AssertUnwindSafe(|| shift.serve(&shared, &stop));
                if catch_unwind(run).is_err() {
                    increment(&shared.counters.fault_panics);
                    shift.after_panic(&shared);
                }
            }
        })?);
    }
    Ok(threads)
}

fn start_wakers(
    shared: &Arc<Shared>,
    stop: &Arc<AtomicBool>,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    (0..shared.queues.len())
        .map(|shard| {
            let (shared, stop) = (Arc::clone(shared), Arc::clone(stop));
            std::thread::Builder::new()
                .name(format!("agentzip-wake{shard}"))
                .spawn(move || shared.queues[shard].waker.run(&stop))
        })
        .collect()
}

/// A space that is to be tried again.
struct Postponed {
    id: u64,
    /// When.
    due: Instant,
    /// How long the last pause was.
    pause: Duration,
    /// It panicked: nothing else makes us look at it.
    muted: bool,
}

/// What a thread has to do; outlives its panics.
struct Shift {
    shard: usize,
    /// To be looked at in this turn, the first one last.
    ready: Vec<u64>,
    /// Being looked at.
    current: Option<u64>,
    postponed: Vec<Postponed>,
    follower: Follower,
    kit: Kit,
    handover: Handover,
}

/// For a thread that has touchers woken.
fn kit() -> Kit {
    Kit { sleepers: Some(Sleepers::default()), ..Kit::default() }
}

impl Shift {
    fn new(shard: usize) -> Self {
        Self {
            shard,
            ready: Vec::with_capacity(EVENTS_PER_TURN * 2),
            current: None,
            postponed: Vec::with_capacity(EVENTS_PER_TURN),
            follower: Follower::default(),
            kit: kit(),
            handover: Handover::default(),
        }
    }

    fn serve(&mut self, shared: &Shared, stop: &AtomicBool) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        while !stop.load(Ordering::Acquire) {
            // First what a panic left.
            while let Some(id) = self.ready.pop() {
                self.attend(shared, id);
            }
            self.gather(shared, &mut events);
        }
        // The waker may see the end before its last order.
        self.handover.settle(&shared.queues[self.shard].waker);
    }

    /// Wait for spaces that have something to say, or whose time has come.
    fn gather(&mut self, shared: &Shared, events: &mut Vec<epoll::Event>) {
        let queue = &shared.queues[self.shard];
        let due = self.postponed.iter().map(|postponed| postponed.due);
        let next = due.chain(self.handover.due()).min();
        let patience = next.map(|due| {
            let pause = due.saturating_duration_since(Instant::now()).min(PANIC_MAX);
            Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() }
        });
        events.clear();
        let spare = rustix::buffer::spare_capacity(events);
        // The bell rings when the engine closes, so without work there is nothing to wake for.
        if epoll::wait(&queue.epoll, spare, patience.as_ref()).is_err() {
            events.clear();
        }
        self.handover.settle(&queue.waker);
        for event in &*events {
            let id = event.data.u64();
            if !queue.answer_bell(id, &mut self.ready) {
                self.ready.push(id);
            }
        }
        if !self.postponed.is_empty() {
            let now = Instant::now();
            let due = self.postponed.iter().filter(|postponed| postponed.due <= now);
            self.ready.extend(due.map(|postponed| postponed.id));
        }
        self.ready.reverse();
    }

    fn attend(&mut self, shared: &Shared, id: u64) {
        let place = self.postponed.iter().position(|postponed| postponed.id == id);
        if let Some(place) = place
            && self.postponed[place].muted
            && self.postponed[place].due > Instant::now()
        {
            return;
        }
        let Some(space) = shared.space(id) else {
            self.postponed.retain(|postponed| postponed.id != id);
            return;
        };
        self.current = Some(id);
        let answer = space.attend(shared, &mut self.kit);
        self.current = None;
        if let Some(sleepers) = self.kit.sleepers.as_mut().filter(|some| !some.is_empty()) {
            // Before anybody is woken: that is to happen where the program runs.
            self.follower.serves(&space);
            self.handover.wake(&shared.queues[self.shard].waker, &space, sleepers);
        }
        match answer {
            Answer::Done => {
                if let Some(place) = place {
                    self.postponed.swap_remove(place);
                    self.watch(shared, &space, epoll::EventFlags::IN);
                }
            }
            Answer::Later => self.postpone(shared, &space, false),
            Answer::Gone => {
                self.postponed.retain(|postponed| postponed.id != id);
                space.set_gone();
                // The housekeeper takes it away; until then its queue entry would spin.
                let _ = epoll::delete(&shared.queues[self.shard].epoll, &space.descriptor);
            }
        }
    }

    /// Look at a space again after a while, longer each time that this was in vain.
    fn postpone(&mut self, shared: &Shared, space: &Space, panicked: bool) {
        let now = Instant::now();
        let id = space.id();
        let known = self.postponed.iter_mut().find(|postponed| postponed.id == id);
        let changed = known.as_ref().is_none_or(|known| known.muted != panicked);
        match known {
            // A message came before its time: that does not put the rest off.
            Some(known) if known.due > now && !panicked => {}
            Some(known) => {
                let longest = if panicked { PANIC_MAX } else { RETRY_MAX };
                known.pause = (known.pause * 2).min(longest);
                known.due = now + known.pause;
                known.muted = panicked;
            }
            None => {
                let due = now + RETRY;
                self.postponed.push(Postponed { id, due, pause: RETRY, muted: panicked });
            }
        }
        if changed {
            // Edge by edge: what waits to be read would wake us without end.
            let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let events = if panicked { epoll::EventFlags::empty() } else { edge };
            self.watch(shared, space, events);
        }
    }

    /// What was being looked at has to wait; what was to be looked at next is next.
    fn after_panic(&mut self, shared: &Shared) {
        // The page that was being put together may be half of one.  Who has his and was not woken
        // is still among the faults to be answered, and then is.
        self.kit = kit();
        if let Some(space) = self.current.take().and_then(|id| shared.space(id)) {
            self.postpone(shared, &space, true);
        }
    }

    fn watch(&self, shared: &Shared, space: &Space, events: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(space.id());
        // A failure means that it was forgotten meanwhile.
        let _ = epoll::modify(&shared.queues[self.shard].epoll, &space.descriptor, data, events);
    }
}
