//! Another process seen from outside: its memory, its descriptors, its identity.
//!
//! Memory of another process is never a Rust reference; it is copied through /proc/PID/mem.  That
//! file is bound to one address space when it is opened, so after exec it reads nothing, and a page
//! that is out gives EIO instead of making us wait for ourselves.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Memory of one address space.
#[derive(Debug)]
pub struct ForeignMemory(File);

impl ForeignMemory {
    /// Open the memory of a process.
    ///
    /// # Errors
    /// EACCES or EPERM: no right to trace it; ESRCH: gone.
    pub fn open(pid: i32) -> io::Result<Self> {
        let file =
            std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Self(file))
    }

    /// Open the memory of a process that is only to be looked at.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_read(pid: i32) -> io::Result<Self> {
        Ok(Self(File::open(format!("/proc/{pid}/mem"))?))
    }

    /// Fill `bytes` from `address`.
    ///
    /// # Errors
    /// EIO: a page is missing; `UnexpectedEof`: the address space is gone.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// Write all of `bytes` at `address`, also where the process itself may not write.
    ///
    /// # Errors
    /// EIO: a page is missing or the kernel forbids it.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }
}

/// Open a pidfd for one thread (PIDFD_THREAD, Linux 6.9).
///
/// # Errors
/// EINVAL: the kernel is older; ESRCH: gone.
pub fn open_thread(thread: i32) -> io::Result<OwnedFd> {
    const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;
    // SAFETY: takes numbers only.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, thread, PIDFD_THREAD) };
    owned(raw)
}

/// Duplicate descriptor `number` of the process or thread that `pidfd` names into our table.
///
/// # Errors
/// EPERM: no right to trace it; EBADF: it has no such descriptor.
pub fn take_descriptor(pidfd: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
    owned(raw)
}

fn owned(raw: libc::c_long) -> io::Result<OwnedFd> {
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// Kill this process at once, as kill -9 from outside would (for the crash tests).
pub fn kill_self() -> ! {
    loop {
        // SAFETY: a signal to ourselves; it does not return to this thread.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Put a thread before ordinary ones (`None`: the calling thread): a fault waits for it.
///
/// Real-time first in, first out where that is allowed, else the best nice value; a child that the
/// thread may make does not inherit it.  Without any right it stays as it was.
pub fn raise_priority(thread: Option<i32>) {
    run_real_time(thread.unwrap_or(0), 2);
}

/// Run a part that is waited for before ordinary threads, but behind those that a fault waits for.
///
/// A nice value would not do: it counts only among the threads of one login session.
pub fn in_a_hurry<T>(part: impl FnOnce() -> T) -> T {
    run_real_time(0, 1);
    let result = part();
    lower_priority();
    result
}

fn run_real_time(thread: i32, priority: i32) {
    let parameters = libc::sched_param { sched_priority: priority };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the structure lives through the call.
    let result = unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
    if result != 0 {
        prefer(thread);
    }
}

/// Make the calling thread an ordinary one again.
pub fn lower_priority() {
    // From a higher priority down this needs no right.
    let _ = run_as_others(0);
}

/// Give a thread (0: the calling one) the best nice value, if that is allowed.
pub fn prefer(thread: i32) {
    // SAFETY: numbers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, -20) };
}

/// Give the calling thread a low priority.
pub fn defer() {
    // SAFETY: numbers only; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// Give the calling thread the lowest priority (`true`), or an ordinary one.
///
/// Not the idle class: a thread of that class which holds a lock can be kept from the processor for
/// as long as others want it.
pub fn background(on: bool) {
    // SAFETY: numbers only; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, if on { 19 } else { 0 }) };
}

/// Run a part of background work that others wait for, as an ordinary thread.
pub fn in_foreground<T>(part: impl FnOnce() -> T) -> T {
    background(false);
    let result = part();
    background(true);
    result
}

/// Let the calling thread run only while nobody else wants its processor (`SCHED_IDLE`).
///
/// It may be kept waiting for ever, so others must never need what it holds.
///
/// # Errors
/// The kernel's refusal.
pub fn run_when_idle() -> io::Result<()> {
    set_policy(0, libc::SCHED_IDLE)
}

/// Let a thread of this process run as any other.
///
/// # Errors
/// The kernel's refusal: ESRCH if the thread has ended.
pub fn run_as_others(thread: i32) -> io::Result<()> {
    set_policy(thread, libc::SCHED_OTHER)
}

fn set_policy(thread: i32, policy: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: a number and a structure that lives through the call.
    let result = unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Processor time of the calling thread.
#[must_use]
pub fn thread_time() -> std::time::Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Time since the host began: the same for every process, and what timeouts are counted in.
#[must_use]
pub fn uptime() -> std::time::Duration {
    time_of(libc::CLOCK_MONOTONIC)
}

fn time_of(clock: libc::clockid_t) -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Give free memory of the C allocator back to the host.
pub fn trim_heap() {
    // SAFETY: no pointer is passed; memory in use is not touched.
    unsafe { libc::malloc_trim(0) };
}
