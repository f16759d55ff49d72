//! Writes the springboard for a borrower that must not wait.
//!
//! A write to another address space waits for its lock, uninterruptibly: behind a call of the
//! program that changes a large mapping that can be a tenth of a second.  The borrower holds a
//! thread of the program at that moment, and only the borrower can let go of it.  So another thread
//! writes, and the borrower gives up when the time is over.  A write that comes too late is undone
//! at once: no thread was ever sent there.

use crate::sys::arch::SPRINGBOARD_BYTES;
use crate::sys::foreign::{self, ForeignMemory};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::time::Instant;

enum State {
    Idle,
    Asked(u64, Vec<u8>),
    Writing,
    Abandoned,
    Written(io::Result<()>),
    Closed,
}

/// What borrower and writer share.
pub struct Writer<'a> {
    memory: &'a ForeignMemory,
    /// Held for a look or a change only.
    state: Mutex<State>,
    changed: Condvar,
}

impl<'a> Writer<'a> {
    /// One for this address space; a thread must [`Writer::run`] it.
    #[must_use]
    pub fn new(memory: &'a ForeignMemory) -> Self {
        Self { memory, state: Mutex::new(State::Idle), changed: Condvar::new() }
    }

    /// Write what is asked for until [`Closing`] is dropped.
    pub fn run(&self) {
        // It sleeps but for one copy, for which a thread of the program waits.
        foreign::raise_priority(None);
        loop {
            let (address, code) = {
                let mut state = self.state.lock();
                loop {
                    match std::mem::replace(&mut *state, State::Writing) {
                        State::Asked(address, code) => break (address, code),
                        State::Closed => return,
                        other => *state = other,
                    }
                    self.changed.wait(&mut state);
                }
            };
            let result = self.memory.write(address, &code);
            let mut state = self.state.lock();
            if matches!(*state, State::Writing) {
                *state = State::Written(result);
            } else {
                // Not under the lock: the borrower may look.  A failure means that the address
                // space is gone.
                let undo = || self.memory.write(address, &[0; SPRINGBOARD_BYTES]);
                let _ = MutexGuard::unlocked(&mut state, undo);
                if matches!(*state, State::Abandoned) {
                    *state = State::Idle;
                }
            }
            self.changed.notify_all();
        }
    }

    /// Write a springboard; `None` if it is not there by `deadline`, and then it never will be.
    pub fn write(&self, address: u64, code: Vec<u8>, deadline: Instant) -> Option<io::Result<()>> {
        let mut state = self.state.lock();
        while !matches!(*state, State::Idle) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
        *state = State::Asked(address, code);
        self.changed.notify_all();
        loop {
            let late = self.changed.wait_until(&mut state, deadline).timed_out();
            match std::mem::replace(&mut *state, State::Idle) {
                State::Written(result) => return Some(result),
                // Not begun yet, so it is taken back.
                State::Asked(..) if late => return None,
                State::Writing if late => {
                    *state = State::Abandoned;
                    return None;
                }
                other => *state = other,
            }
        }
    }

    /// Let the thread end when this value goes.
    pub fn closing(&self) -> Closing<'_> {
        Closing(self)
    }
}

/// Ends a writer's thread when dropped.
pub struct Closing<'a>(&'a Writer<'a>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        *self.0.state.lock() = State::Closed;
        self.0.changed.notify_all();
    }
}
