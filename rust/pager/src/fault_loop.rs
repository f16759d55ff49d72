//! The threads that answer the kernel.
//!
//! Each owns an event queue; every space belongs to one of them, so its messages are read in order
//! by one thread at a time.  They take no lock that policy holds and never call into Python.

use crate::serve::Answer;
use crate::shared::{Kit, Shared};
use crate::sys::foreign::raise_priority;
use rustix::event::{Timespec, epoll};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Spaces looked at per turn; more come with the next one.
const EVENTS_PER_TURN: usize = 64;
/// How soon a fault that could not be answered is tried again.
const RETRY: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };
/// How soon a thread notices that the engine closes.
const IDLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Start one thread per queue.
///
/// # Errors
/// No thread could be started.
pub fn start(shared: &Arc<Shared>, stop: &Arc<AtomicBool>) -> std::io::Result<Vec<JoinHandle<()>>> {
    (0..shared.queues.len())
        .map(|shard| {
            let (shared, stop) = (Arc::clone(shared), Arc::clone(stop));
            std::thread::Builder::new().name(format!("agentzip-fault{shard}")).spawn(move || {
                raise_priority(None);
                while !stop.load(Ordering::Acquire) {
                    // A panic is a bug, but one target's bug must not leave all others
                    // unserved: start over.  Locks are released by unwinding.
                    let run = AssertUnwindSafe(|| serve(&shared, shard, &stop));
                    let _ = catch_unwind(run);
                }
            })
        })
        .collect()
}

fn serve(shared: &Shared, shard: usize, stop: &AtomicBool) {
    let mut kit = Kit::default();
    let mut events = Vec::with_capacity(EVENTS_PER_TURN);
    let mut later: Vec<u64> = Vec::with_capacity(EVENTS_PER_TURN);
    let mut ready: Vec<u64> = Vec::with_capacity(EVENTS_PER_TURN * 2);
    while !stop.load(Ordering::Acquire) {
        let patience = if later.is_empty() { IDLE } else { RETRY };
        events.clear();
        let queue = &shared.queues[shard];
        let spare = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&queue.epoll, spare, Some(&patience)).is_err() {
            continue;
        }
        ready.clear();
        ready.append(&mut later);
        for event in &events {
            let event: &epoll::Event = event;
            let id = event.data.u64();
            if !queue.answer_bell(id, &mut ready) && !ready.contains(&id) {
                ready.push(id);
            }
        }
        for &id in &ready {
            let Some(space) = shared.space(id) else { continue };
            match space.attend(shared, &mut kit) {
                Answer::Done => {}
                Answer::Later => later.push(id),
                Answer::Gone => {
                    space.set_gone();
                    // The housekeeper takes it away; until then its queue entry would spin.
                    let _ = epoll::delete(&queue.epoll, &space.descriptor);
                }
            }
        }
    }
}
