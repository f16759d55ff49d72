//! A call that a loan interrupts is made again, or ended when its time is over.
//!
//! Some calls return EINTR when their thread is stopped.  The program must not see that, so the
//! call is made again.  It starts over with its full timeout, and nothing tells since when it had
//! waited; a program whose memory leaves more often than its timer is due would wait for ever.  So
//! the time at which a call was first made again travels with it, in the upper half of the register
//! with its number, of which the kernel reads the lower half only (x86-64 since Linux 5.14).  Who
//! interrupts it next finds it there, be it another engine.  Once the call's timeout has passed
//! since then, it returns what it returns when its time is over: never early, and at most two
//! timeouts late, however often its thread is borrowed.

use crate::sys::arch::{self, Call, Registers, Timeout};
use crate::sys::foreign::{self, ForeignMemory};
use std::time::Duration;

/// Times are kept in milliseconds, modulo this (25 days), and are never 0.
const MARKS: u32 = (1 << 31) - 1;

/// How long a call waits at most.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    call: Call,
    timeout: Duration,
}

impl Limit {
    /// What the call of a sleeping thread says, if it says so.  Reads the thread's memory, which
    /// may have to wait: not while the thread is stopped.
    pub fn of(call: Call, memory: &ForeignMemory) -> Option<Self> {
        let timeout = match arch::timeout(call) {
            Timeout::Unknown => None,
            Timeout::Of(timeout) => Some(timeout),
            Timeout::At(address) => {
                let mut words = [0u8; 16];
                memory.read(address, &mut words).ok()?;
                let (seconds, nanos) = words.split_at(8);
                let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
                let nanos = number(nanos).filter(|nanos| *nanos < 1_000_000_000)?;
                Some(Duration::new(number(seconds)?, nanos as u32))
            }
        };
        timeout.map(|timeout| Self { call, timeout })
    }
}

/// If the stop made a thread's call return EINTR, make the call again, or end it.
pub fn undo(home: &mut Registers, limit: Option<Limit>) {
    undo_at(home, limit, (foreign::uptime().as_millis() % u128::from(MARKS)) as u32 + 1);
}

fn undo_at(home: &mut Registers, limit: Option<Limit>, now: u32) {
    let Some(call) = home.interrupted_call() else { return };
    let first = home.mark().unwrap_or(now);
    // Both times are cut to milliseconds: one more is certain to have passed.
    let waited = ((now + MARKS - first) % MARKS).saturating_sub(1);
    let waited = Duration::from_millis(waited.into());
    if limit.is_some_and(|limit| limit.call == call && limit.timeout <= waited) {
        home.end_call();
    } else {
        home.call_again(first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOLL_WAIT: u64 = 232;
    const ARGUMENTS: [u64; 6] = [3, 0x1000, 64, 1000, 0, 0];
    const LIMIT: Limit =
        Limit { call: (EPOLL_WAIT, ARGUMENTS), timeout: Duration::from_millis(1000) };

    /// Interrupt the call, which began with a certain first register; what that is afterwards.
    fn interrupted(first: u64, limit: Option<Limit>, now: u32) -> u64 {
        let mut home = Registers::interrupted(first, ARGUMENTS);
        undo_at(&mut home, limit, now);
        home.call_made()
    }

    #[test]
    fn a_call_ends_when_its_timeout_has_passed_since_it_was_first_made_again() {
        let first = interrupted(EPOLL_WAIT, Some(LIMIT), 500);
        assert_eq!(500 << 32 | EPOLL_WAIT, first);
        assert_eq!(first, interrupted(first, Some(LIMIT), 1400));
        assert_eq!(first, interrupted(first, Some(LIMIT), 1500));
        assert_eq!(0, interrupted(first, Some(LIMIT), 1501));
    }

    #[test]
    fn the_clock_may_begin_anew_meanwhile() {
        let first = interrupted(EPOLL_WAIT, Some(LIMIT), MARKS - 200);
        assert_eq!(first, interrupted(first, Some(LIMIT), 700));
        assert_eq!(0, interrupted(first, Some(LIMIT), 900));
    }

    #[test]
    fn a_call_whose_timeout_is_not_known_is_made_again_each_time() {
        let first = interrupted(EPOLL_WAIT, None, 1);
        let other = Limit { call: (EPOLL_WAIT, [4, 0x1000, 64, 10, 0, 0]), ..LIMIT };
        assert_eq!(first, interrupted(first, None, 1_000_000));
        assert_eq!(first, interrupted(first, Some(other), 1_000_000));
    }
}
