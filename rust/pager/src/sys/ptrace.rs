//! ptrace, as little of it as possible: stop one thread, look, set, step over calls, let go.
//!
//! The kernel ties a tracee to the *thread* that seized it, and lets go of it when that thread
//! ends.  So every use runs on a thread of its own (see `borrow.rs`): an early return, a panic or a
//! kill -9 all end in the same clean release.  See ptrace(2).

use super::arch::Registers;
use std::cell::RefCell;
use std::io;
use std::time::{Duration, Instant};

const EVENT_CLONE: i32 = 3;
const EVENT_STOP: i32 = 128;
const OPTION_SYSGOOD: usize = 1;
const OPTION_TRACE_CLONE: usize = 1 << EVENT_CLONE;
/// Lets the tracee make calls that its seccomp filter would refuse; needs CAP_SYS_ADMIN.
const OPTION_SUSPEND_SECCOMP: usize = 1 << 21;

/// How long to spin before sleeping between looks; a stop usually takes 40 to 200 us.
const SPIN: Duration = Duration::from_micros(300);
const NAP: Duration = Duration::from_micros(30);

thread_local! {
    /// Stops of tracees of this thread that were seen while another one was waited for.
    static SEEN: RefCell<Vec<(i32, Stop)>> = const { RefCell::new(Vec::new()) };
}

/// Why a tracee stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At the entry to or the exit from a system call.
    Call,
    /// Just made a new thread.
    Clone,
    /// Because we asked (or by job control).
    Trap,
    /// About to get this signal.
    Signal(i32),
    /// It ended.
    Ended,
    /// Not within the time.
    Late,
}

/// A thread of another process that this thread traces.
#[derive(Debug)]
pub struct Tracee(i32);

impl Tracee {
    /// Start tracing, without stopping.
    ///
    /// # Errors
    /// EPERM: traced already or not permitted; ESRCH: gone.
    pub fn seize(thread: i32, suspend_seccomp: bool) -> io::Result<Self> {
        let mut options = OPTION_SYSGOOD | OPTION_TRACE_CLONE;
        if suspend_seccomp {
            options |= OPTION_SUSPEND_SECCOMP;
        }
        request(libc::PTRACE_SEIZE, thread, 0, options)?;
        Ok(Self(thread))
    }

    /// A new thread of a tracee, traced from birth.
    #[must_use]
    pub fn inherited(thread: i32) -> Self {
        Self(thread)
    }

    /// Its thread id.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.0
    }

    /// Ask it to stop.
    ///
    /// # Errors
    /// ESRCH: gone.
    pub fn interrupt(&self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.0, 0, 0)
    }

    /// Let it run on.
    ///
    /// # Errors
    /// ESRCH: gone.
    pub fn resume(&self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_CONT, self.0, 0, signal as usize)
    }

    /// Let it run to the next entry to or exit from a system call.
    ///
    /// # Errors
    /// ESRCH: gone.
    pub fn step_call(&self) -> io::Result<()> {
        request(libc::PTRACE_SYSCALL, self.0, 0, 0)
    }

    /// Let go of it for good, delivering `signal` (0: none).
    ///
    /// # Errors
    /// ESRCH: gone.
    pub fn release(&self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_DETACH, self.0, 0, signal as usize)
    }

    /// Its registers.
    ///
    /// # Errors
    /// `InvalidData`: a 32-bit thread; ESRCH: gone or not stopped.
    pub fn registers(&self) -> io::Result<Registers> {
        // SAFETY: all-zero is a valid value of this structure of integers.
        let mut raw: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // The iovec form tells how much the kernel filled in: a 32-bit thread gives fewer bytes.
        let mut vector = libc::iovec {
            iov_base: (&raw mut raw).cast(),
            iov_len: size_of::<libc::user_regs_struct>(),
        };
        const NT_PRSTATUS: usize = 1;
        request(libc::PTRACE_GETREGSET, self.0, NT_PRSTATUS, (&raw mut vector) as usize)?;
        if vector.iov_len != size_of::<libc::user_regs_struct>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Registers(raw))
    }

    /// Set its registers.
    ///
    /// # Errors
    /// ESRCH: gone or not stopped.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        request(libc::PTRACE_SETREGS, self.0, 0, (&raw const registers.0) as usize)
    }

    /// Block every signal.
    ///
    /// # Errors
    /// ESRCH: gone or not stopped.
    pub fn block_signals(&self) -> io::Result<()> {
        const SETSIGMASK: libc::c_uint = 0x420B;
        let mask = u64::MAX;
        request(SETSIGMASK, self.0, 8, (&raw const mask) as usize)
    }

    /// Thread id of the thread it just made, at a [`Stop::Clone`].
    ///
    /// # Errors
    /// ESRCH: gone or not stopped.
    pub fn new_thread(&self) -> io::Result<i32> {
        let mut message: libc::c_ulong = 0;
        request(libc::PTRACE_GETEVENTMSG, self.0, 0, (&raw mut message) as usize)?;
        Ok(message as i32)
    }

    /// Wait for its next stop, however long it takes: for a tracee that only lacks a CPU.  Gives
    /// that CPU up, unlike [`Tracee::wait`], so the caller may have a real-time priority.
    ///
    /// It looks at every tracee of this thread: the end of a first thread is not told before the
    /// others of its process were waited for, of which one may be a tracee of ours.
    pub fn wait_patiently(&self) -> Stop {
        loop {
            if let Some(stop) = self.take_seen() {
                return stop;
            }
            let mut status = 0;
            let options = libc::__WALL | libc::__WNOTHREAD;
            // SAFETY: waits for the tracees of this thread, which has no children; status is ours.
            let result = unsafe { libc::waitpid(-1, &raw mut status, options) };
            if result > 0 {
                SEEN.with_borrow_mut(|seen| seen.push((result, decode(status))));
            } else if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return Stop::Ended;
            }
        }
    }

    /// The same for a tracee that may be frozen before it gets a CPU: until a deadline, looking
    /// often.
    pub fn wait_gently(&self, deadline: Instant) -> Stop {
        loop {
            match self.look() {
                Stop::Late if Instant::now() < deadline => std::thread::sleep(NAP),
                stop => return stop,
            }
        }
    }

    /// Wait for its next stop.
    ///
    /// Never blocks in the kernel: a tracee in an uninterruptible wait must not take us with it.
    pub fn wait(&self, deadline: Instant) -> Stop {
        let begin = Instant::now();
        loop {
            let stop = self.look();
            if stop != Stop::Late {
                return stop;
            }
            let now = Instant::now();
            if now >= deadline {
                return Stop::Late;
            }
            if now - begin < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
    }

    /// The next stop of it that was seen while another tracee was waited for.
    fn take_seen(&self) -> Option<Stop> {
        SEEN.with_borrow_mut(|seen| {
            let place = seen.iter().position(|(thread, _)| *thread == self.0)?;
            Some(seen.remove(place).1)
        })
    }

    /// Whether it has stopped, and why; `Late` if it has not.
    fn look(&self) -> Stop {
        if let Some(stop) = self.take_seen() {
            return stop;
        }
        let mut status = 0;
        // SAFETY: waits for one thread id that this thread traces; status is ours.
        let result =
            unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match result {
            0 => Stop::Late,
            thread if thread == self.0 => decode(status),
            _ => Stop::Ended,
        }
    }
}

fn decode(status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended;
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        EVENT_STOP => Stop::Trap,
        EVENT_CLONE => Stop::Clone,
        _ if signal == (libc::SIGTRAP | 0x80) => Stop::Call,
        _ => Stop::Signal(signal),
    }
}

fn request(kind: libc::c_uint, thread: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: every request above passes either plain numbers or a pointer to a live value of the
    // size that the request reads or writes.
    let result = unsafe { libc::ptrace(kind, thread, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
