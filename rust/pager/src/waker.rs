//! Touchers woken on the processor where they slept.
//!
//! Who wakes a sleeper keeps that processor busy, so the scheduler sends the sleeper to another one
//! that is idle.  From there his next fault has to wake the fault thread by an interrupt, and the
//! answer him: on a virtual machine, whose processors halt when they are idle, that is 90 us
//! instead of 8 for each fault, and several times the processor time.  A processor that runs
//! nothing but threads of the idle class counts as idle, though (`sched_idle_cpu`, Linux 5.4): a
//! sleeper who is woken by such a thread stays.
//!
//! So a fault thread puts pages in place without waking anybody, has a thread of the idle class on
//! its own processor do that, and sleeps.  If anything else wants the processor, the waker does not
//! run; then the fault thread wakes the sleepers itself after [`PATIENCE`], and tries again later
//! and less and less often.  A wake may come twice, which only makes the kernel look twice.
//!
//! The two never wait for each other: an idle thread that holds a lock can be kept from its
//! processor for as long as others want it.

use crate::points;
use crate::space::Space;
use crate::sys::foreign::{run_as_others, run_when_idle};
use crate::sys::userfaultfd::Userfaultfd;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, Pid, gettid, sched_getcpu, sched_setaffinity};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a waker may take until its work is done by others.  Not shorter than the kernel's tick:
/// to be called before that, a processor has to set its timer anew, 20 us for each fault.
const PATIENCE: Duration = Duration::from_millis(4);
/// A waker that begins only after so long has others beside it; on an idle processor it takes 2 us.
const SOON: Duration = Duration::from_micros(50);
/// Wakes that a fault thread does by itself after a waker was late: twice as many each time.
const PAUSE: std::ops::RangeInclusive<u32> = 32..=4096;
/// Ranges handed over at a time; more threads of one program hardly fault at once.
const ROOM: usize = 8;

/// Ranges whose pages are in place while who touched them sleeps on.
#[derive(Clone, Debug, Default)]
pub struct Sleepers {
    /// Start and length, in bytes.
    ranges: [(u64, u64); ROOM],
    count: usize,
}

impl Sleepers {
    /// Whether another range can be added.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.count < ROOM
    }

    /// Whether nobody is to be woken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Remember a range; there must be room.
    pub fn add(&mut self, start: u64, length: u64) {
        self.ranges[self.count] = (start, length);
        self.count += 1;
    }

    /// Wake them all.
    pub fn wake(&mut self, descriptor: &Userfaultfd) {
        for (start, length) in &self.ranges[..self.count] {
            descriptor.wake(*start, *length);
        }
        self.count = 0;
    }
}

/// What is to be woken, and by which number that is told.
#[derive(Clone, Debug)]
struct Order {
    space: Arc<Space>,
    sleepers: Sleepers,
    number: u64,
    given: Instant,
}

/// What a fault thread and its waker share.
#[derive(Debug)]
pub struct Waker {
    bell: OwnedFd,
    /// Only ever tried, by both: see above.
    order: Mutex<Option<Order>>,
    /// Number of the last order that was begun soon.
    soon: AtomicU64,
    /// Number of the last order that was carried out.  Between the two the thread may stay for
    /// long: the first sleeper that wakes has its processor.
    done: AtomicU64,
    /// Thread id; 0 while there is none.
    thread: AtomicI32,
}

impl Waker {
    /// One without a thread.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn create() -> io::Result<Self> {
        Ok(Self {
            bell: eventfd(0, EventfdFlags::CLOEXEC)?,
            order: Mutex::new(None),
            soon: AtomicU64::new(0),
            done: AtomicU64::new(0),
            thread: AtomicI32::new(0),
        })
    }

    /// Be the thread, until `stop`; returns at once where the idle class is refused.
    pub fn run(&self, stop: &AtomicBool) {
        if run_when_idle().is_err() {
            return;
        }
        self.thread.store(gettid().as_raw_nonzero().get(), Ordering::Release);
        while !stop.load(Ordering::Acquire) {
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
            let order = loop {
                match self.order.try_lock() {
                    Some(mut order) => break order.take(),
                    None => std::thread::yield_now(),
                }
            };
            if let Some(mut order) = order {
                points::pass("fault.to_wake");
                if order.given.elapsed() < SOON {
                    self.soon.store(order.number, Ordering::Release);
                }
                order.sleepers.wake(&order.space.descriptor);
                self.done.store(order.number, Ordering::Release);
            }
        }
        self.thread.store(0, Ordering::Release);
    }

    /// Let the thread see that it is to stop, however busy its processor is.
    pub fn end(&self) {
        if let Some(thread) = self.pid() {
            // It may have ended meanwhile, and then needs no processor.
            let _ = run_as_others(thread.as_raw_nonzero().get());
        }
        self.ring();
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.thread.load(Ordering::Acquire))
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Give an order; false if the thread is in the middle of taking the last one.
    fn give(&self, order: &Order) -> bool {
        let Some(mut place) = self.order.try_lock() else { return false };
        *place = Some(order.clone());
        drop(place);
        self.ring();
        true
    }

    fn take_back(&self) {
        if let Some(mut place) = self.order.try_lock() {
            *place = None;
        }
    }
}

/// A fault thread's side: what it handed over, and whether that pays.
#[derive(Debug, Default)]
pub struct Handover {
    given: Option<Order>,
    numbers: u64,
    /// Where the waker was put last.
    processor: Option<usize>,
    /// Wakes to do without it from now on, and how many that were the last time.
    alone: u32,
    pause: u32,
}

impl Handover {
    /// Have the sleepers of a space woken, on this processor if that can be.
    pub fn wake(&mut self, waker: &Waker, space: &Arc<Space>, sleepers: &mut Sleepers) {
        self.settle(waker);
        if self.alone > 0 {
            self.alone -= 1;
        } else if self.is_beside_us(waker) {
            self.numbers += 1;
            let order = Order {
                space: Arc::clone(space),
                sleepers: sleepers.clone(),
                number: self.numbers,
                given: Instant::now(),
            };
            if waker.give(&order) {
                sleepers.count = 0;
                self.given = Some(order);
                return;
            }
        }
        sleepers.wake(&space.descriptor);
    }

    /// When to look again whether the waker has done its work.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.given.as_ref().map(|order| order.given + PATIENCE)
    }

    /// Look whether the waker has done its work, and do it if not: its processor is ours again.
    pub fn settle(&mut self, waker: &Waker) {
        let Some(mut order) = self.given.take() else { return };
        if waker.done.load(Ordering::Acquire) < order.number {
            waker.take_back();
            order.sleepers.wake(&order.space.descriptor);
        }
        if waker.soon.load(Ordering::Acquire) >= order.number {
            self.pause /= 2;
        } else if order.given.elapsed() >= SOON {
            self.pause = (self.pause * 2).clamp(*PAUSE.start(), *PAUSE.end());
            self.alone = self.pause;
        }
    }

    fn is_beside_us(&mut self, waker: &Waker) -> bool {
        let Some(thread) = waker.pid() else { return false };
        let here = sched_getcpu();
        if self.processor == Some(here) {
            return true;
        }
        if here >= CpuSet::MAX_CPU {
            return false;
        }
        let mut only = CpuSet::new();
        only.set(here);
        let moved = sched_setaffinity(Some(thread), &only).is_ok();
        self.processor = moved.then_some(here);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Header, Phase, SCRATCH_BYTES, Table};

    fn space() -> Arc<Space> {
        let area = 0..SCRATCH_BYTES + 4096;
        let header = Header { id: 7, parent: 0, pid: 0, start_time: 0, area, domain: 1, image: 1 };
        Arc::new(Space::of_nobody(Table::create(&header, Phase::Attached).expect("a table")))
    }

    fn one() -> Sleepers {
        let mut sleepers = Sleepers::default();
        sleepers.add(0x10_0000, 4096);
        sleepers
    }

    /// A waker whose thread is the caller's, which is not idle and takes no order.
    fn stuck() -> Waker {
        let waker = Waker::create().expect("a bell");
        waker.thread.store(gettid().as_raw_nonzero().get(), Ordering::Release);
        waker
    }

    #[test]
    fn without_a_thread_the_caller_wakes_by_itself() {
        let (waker, mut handover, mut sleepers) =
            (Waker::create().expect("a bell"), Handover::default(), one());
        handover.wake(&waker, &space(), &mut sleepers);
        assert!(sleepers.is_empty() && handover.due().is_none());
    }

    #[test]
    fn an_order_is_carried_out_and_releases_its_space() {
        let (waker, stop, space) =
            (Waker::create().expect("a bell"), AtomicBool::new(false), space());
        let (mut handover, mut sleepers) = (Handover::default(), one());
        std::thread::scope(|scope| {
            scope.spawn(|| waker.run(&stop));
            while waker.pid().is_none() {
                std::thread::yield_now();
            }
            handover.wake(&waker, &space, &mut sleepers);
            let order = handover.given.as_ref().expect("an order").number;
            while waker.done.load(Ordering::Acquire) < order {
                std::thread::sleep(Duration::from_millis(1));
            }
            handover.settle(&waker);
            stop.store(true, Ordering::Release);
            waker.end();
        });
        assert!(handover.due().is_none() && waker.pid().is_none());
        assert_eq!(1, Arc::strong_count(&space));
    }

    #[test]
    fn a_late_waker_is_left_alone_for_longer_each_time() {
        let (waker, space, mut handover) = (stuck(), space(), Handover::default());
        let mut alone = vec![];
        for _ in 0..3 {
            while handover.given.is_none() {
                handover.wake(&waker, &space, &mut one());
            }
            std::thread::sleep(SOON);
            handover.settle(&waker);
            assert!(waker.order.lock().is_none(), "it would be carried out long after");
            alone.push(handover.alone);
        }
        assert_eq!(vec![32, 64, 128], alone);
    }

    #[test]
    fn a_waker_that_had_no_time_yet_is_not_blamed() {
        let (waker, space, mut handover) = (stuck(), space(), Handover::default());
        handover.wake(&waker, &space, &mut one());
        // The next message came at once.
        let given = handover.given.as_mut().expect("an order");
        given.given = Instant::now() + Duration::from_secs(1);
        handover.settle(&waker);
        assert_eq!((0, 0), (handover.alone, handover.pause));
    }
}
