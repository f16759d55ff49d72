//! Borrow a thread of a target for some 100 microseconds to make a worker thread inside it.
//!
//! Some calls work only from inside an address space: `UFFDIO_MOVE`, mmap, making a userfaultfd.
//! We do not hold the program's threads for them.  One thread is stopped once, executes one `clone`
//! from the springboard (`sys/arch_x86_64.rs`), and is put back exactly where it was.  The new
//! thread, the *worker*, makes all further calls while the program runs on; it has its own
//! descriptor table, so nothing it opens is in reach of the program, and it exits at the end.
//!
//! Nothing here depends on our surviving.  All of it runs on a thread of its own: when that thread
//! ends, however it ends, the kernel lets go of the tracees; the borrowed thread finds its own way
//! home and the worker ends itself.  The worker is always stepped from call to call with its
//! arguments in registers and the number verified at entry: a hostile program cannot use it to slip
//! past its seccomp filter.

use crate::code_room::CodeRoom;
use crate::error::{Error, Result};
use crate::interrupted::{self, Limit};
use crate::points;
use crate::sys::arch::{self, Registers, call};
use crate::sys::foreign::{self, ForeignMemory};
use crate::sys::ptrace::{Stop, Tracee};
use crate::target::{self, Candidate, Target};
use crate::writer::Writer;
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM: a thread, but with a
/// descriptor table of its own.
const CLONE_FLAGS: u64 = 0x100 | 0x200 | 0x800 | 0x1_0000 | 0x4_0000;
/// How often to try again when no thread could be stopped in time: on a loaded host a running
/// thread must first get a CPU to notice.
const ATTEMPTS: usize = 4;
/// How long a thread that is to make the worker may lack a CPU: longer than any busy host lets one
/// wait, so it was frozen meanwhile.  No attempt begins after this time, either.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many threads to try before giving up.
const TRIES: usize = 8;
/// How long to wait for a thread that was told to stop and is not wanted any more: it stops as soon
/// as it has a CPU, unless it is in an uninterruptible wait, which no call that sees EINTR is.
const LATE_LIMIT: Duration = Duration::from_secs(1);
/// Longest a worker's call may take.  Only calls that wait for an unread event come near it.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// What a loan cost the target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loan {
    /// How long the borrowed thread was stopped.
    pub stop: Duration,
    /// Its thread-local storage and stack pointer: pages it needs at once.
    pub thread_pointer: u64,
    /// See above.
    pub stack_pointer: u64,
}

/// A thread of ours inside the target.
pub struct Worker<'a> {
    pid: i32,
    tracee: Tracee,
    base: Registers,
    call_address: u64,
    memory: &'a ForeignMemory,
    /// What the loan cost.
    pub loan: Loan,
}

/// Limits of a loan.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time that a thread of the program may be kept.
    pub stop: Duration,
}

/// Run `work` with a worker inside the target; the worker is gone when this returns.
///
/// # Errors
/// `TargetBusy`: no thread could be borrowed in time; `TargetGone`; or the error of `work`.
pub fn with_worker<T: Send>(
    target: &Target,
    memory: &ForeignMemory,
    limits: Limits,
    work: impl FnOnce(&mut Worker<'_>) -> Result<T> + Send,
) -> Result<T> {
    // Taken by the attempt that gets a worker; one that does not leaves it.
    let work = Mutex::new(Some(work));
    let writer = &Writer::new(memory);
    let attempt = &|| -> Result<Option<T>> {
        // The program waits for this thread during a loan.
        foreign::prefer(0);
        let room = CodeRoom::find(target, memory)?;
        let mut worker = make_worker(target, memory, writer, &room, limits)?;
        let work = work.lock().take();
        let result = work.map(|work| work(&mut worker)).transpose();
        if worker.finish() {
            room.restore(memory);
        }
        result
    };
    std::thread::scope(|scope| {
        let _closing = writer.closing();
        let thread = std::thread::Builder::new().name("agentzip-write".to_owned());
        let failed = Error::os("starting a thread");
        thread.spawn_scoped(scope, || writer.run()).map_err(failed)?;
        let began = Instant::now();
        let mut last = Error::Internal("no attempt was made".to_owned());
        for _ in 0..ATTEMPTS {
            // A thread of its own each time: only its end lets go of a tracee that would not stop.
            match on_own_thread(attempt) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => return Err(last),
                Err(error @ Error::TargetBusy { .. })
                    if work.lock().is_some() && began.elapsed() < PATIENCE =>
                {
                    last = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    })
}

fn on_own_thread<T: Send>(attempt: &(impl Fn() -> Result<T> + Sync)) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("agentzip-borrow".to_owned());
        let running =
            thread.spawn_scoped(scope, attempt).map_err(Error::os("starting a thread"))?;
        let panicked = |_| Err(Error::Internal("a borrower panicked".to_owned()));
        running.join().unwrap_or_else(panicked)
    })
}

enum Attempt {
    Made(Box<(Tracee, Registers, Loan)>),
    /// A signal came first: the thread was let go to handle it.
    Interrupted,
}

fn make_worker<'a>(
    target: &Target,
    memory: &'a ForeignMemory,
    writer: &Writer<'_>,
    room: &CodeRoom,
    limits: Limits,
) -> Result<Worker<'a>> {
    let pid = target.pid;
    let mut why = "it has no thread that can be stopped".to_owned();
    for _ in 0..3 {
        for candidate in target::candidates(pid).into_iter().take(TRIES) {
            if !target.is_same() {
                return Err(Error::TargetGone(pid));
            }
            let limit = candidate.interruptible.and_then(|call| Limit::of(call, memory));
            let borrowed = borrow(target, (candidate, limit), writer, room, limits);
            foreign::lower_priority();
            match borrowed {
                Ok(Attempt::Made(made)) => {
                    let (tracee, base, loan) = *made;
                    // It is between two stops of ours most of the time, and faults wait for what
                    // it does: a few microseconds at a time.
                    foreign::raise_priority(Some(tracee.id()));
                    let call_address = room.address() + base.springboard().worker;
                    return Ok(Worker { pid, tracee, base, call_address, memory, loan });
                }
                Ok(Attempt::Interrupted) => why = "signals keep arriving".to_owned(),
                Err(Error::TargetBusy { why: late, .. }) => {
                    // The tracee that was late stays ours until this thread ends: stop here.
                    return Err(Error::TargetBusy { pid, why: late });
                }
                // This thread ended meanwhile; another may do.
                Err(Error::TargetGone(_)) if target.is_same() => {}
                Err(error) => return Err(error),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if target.is_same() { Err(Error::TargetBusy { pid, why }) } else { Err(Error::TargetGone(pid)) }
}

/// Stop one thread, let it make the worker, put it back.
fn borrow(
    target: &Target,
    (candidate, limit): (Candidate, Option<Limit>),
    writer: &Writer<'_>,
    room: &CodeRoom,
    limits: Limits,
) -> Result<Attempt> {
    let pid = target.pid;
    let gone = |_: io::Error| Error::TargetGone(pid);
    let thread = Tracee::seize(candidate.thread, candidate.filtered)
        .map_err(|cause| seize_error(pid, cause))?;
    points::pass("borrow.seized");
    let begin = Instant::now();
    stop_thread(&thread, pid, begin, limits, limit)?;
    // It waits for us now: we must not lose our CPU.
    foreign::raise_priority(None);
    let home = home_of(&thread, limit).map_err(|cause| match cause.kind() {
        ErrorKind::InvalidData => {
            Error::WrongArchitecture { pid, found: "32-bit registers".to_owned() }
        }
        _ => Error::TargetGone(pid),
    })?;
    if let Err(error) = write_springboard(writer, room, &home, pid, begin, limits) {
        // Thaw first: what follows may take its time.
        let _ = thread.set_registers(&home).and_then(|()| thread.release(0));
        return Err(error);
    }
    let armed = home.calling(room.address(), call::CLONE, [CLONE_FLAGS, 0, 0, 0, 0, 0]);
    thread.set_registers(&armed).map_err(gone)?;
    points::pass("borrow.armed");
    // From here on it only waits for a CPU, and must be waited for; or its control group has just
    // been frozen.
    thread.step_call().map_err(gone)?;
    match wait_for_call(&thread, &home, pid)? {
        Stop::Call => {}
        stop @ (Stop::Signal(_) | Stop::Trap | Stop::Clone) => {
            // A signal was pending: the call was not made yet.  Its handler must find the
            // program's registers, not ours.
            let signal = if let Stop::Signal(signal) = stop { signal } else { 0 };
            thread.set_registers(&home).map_err(gone)?;
            thread.release(signal).map_err(gone)?;
            return Ok(Attempt::Interrupted);
        }
        Stop::Ended | Stop::Late => return Err(Error::TargetGone(pid)),
    }
    let (worker, result) = step_clone(&thread).map_err(gone)?;
    points::pass("borrow.cloned");
    let settled = worker.as_ref().map_or(Ok(()), settle_worker);
    send_home(&thread, &home).map_err(gone)?;
    points::pass("borrow.released");
    let loan = Loan {
        stop: begin.elapsed(),
        thread_pointer: home.thread_pointer(),
        stack_pointer: home.stack_pointer(),
    };
    match worker {
        Some(worker) => {
            settled.map_err(gone)?;
            Ok(Attempt::Made(Box::new((worker, home, loan))))
        }
        // The kernel would make the call again by itself after a signal; we try again.
        None if arch::is_restart(result) => Ok(Attempt::Interrupted),
        None => Err(Error::NotPermitted {
            what: "making a thread in the target (its process limit?)".to_owned(),
            cause: io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0)),
        }),
    }
}

/// Wait until an armed thread makes its call, or send it home if it cannot for long.
///
/// Giving up is not enough: it would make the call when it is thawed.  The unified hierarchy's
/// freezer lets a frozen tracee stop (kernel commit 76f969e8948d); the older one's does not, there
/// the thaw is waited for.
fn wait_for_call(thread: &Tracee, home: &Registers, pid: i32) -> Result<Stop> {
    let gone = |_: io::Error| Error::TargetGone(pid);
    let stop = thread.wait_gently(Instant::now() + PATIENCE);
    if stop != Stop::Late {
        return Ok(stop);
    }
    thread.interrupt().map_err(gone)?;
    let stop = thread.wait_patiently();
    if stop != Stop::Trap {
        return Ok(stop);
    }
    thread.set_registers(home).and_then(|()| thread.release(0)).map_err(gone)?;
    let why = "it was frozen while one of its threads was borrowed".to_owned();
    Err(Error::TargetBusy { pid, why })
}

/// Registers of a stopped thread, with which it goes on as if nothing had been.
fn home_of(thread: &Tracee, limit: Option<Limit>) -> io::Result<Registers> {
    let mut home = thread.registers()?;
    interrupted::undo(&mut home, limit);
    Ok(home)
}

/// Let a thread that is about to take a signal take it.
fn pass_on(thread: &Tracee, limit: Option<Limit>, signal: i32) -> io::Result<()> {
    if let Ok(home) = home_of(thread, limit) {
        thread.set_registers(&home)?;
    }
    thread.resume(signal)
}

/// Stop a thread, or give up: until it stops it runs on undisturbed.
fn stop_thread(
    thread: &Tracee,
    pid: i32,
    begin: Instant,
    limits: Limits,
    limit: Option<Limit>,
) -> Result<()> {
    let gone = |_: io::Error| Error::TargetGone(pid);
    thread.interrupt().map_err(gone)?;
    loop {
        match thread.wait(begin + limits.stop) {
            Stop::Trap => return Ok(()),
            Stop::Signal(signal) => pass_on(thread, limit, signal).map_err(gone)?,
            Stop::Call | Stop::Clone => thread.resume(0).map_err(gone)?,
            Stop::Ended => return Err(Error::TargetGone(pid)),
            Stop::Late => {
                let_go(thread, limit);
                let why = format!("stopping a thread took over {} ms", limits.stop.as_millis());
                return Err(Error::TargetBusy { pid, why });
            }
        }
    }
}

/// Let go of a thread that did not stop in time.  It was told to: its call may be about to return
/// EINTR, which only we can undo, so it is waited for.  It runs on meanwhile.
fn let_go(thread: &Tracee, limit: Option<Limit>) {
    let deadline = Instant::now() + LATE_LIMIT;
    loop {
        let resumed = match thread.wait(deadline) {
            Stop::Trap => {
                let home = home_of(thread, limit);
                let _ = home.and_then(|home| thread.set_registers(&home));
                let _ = thread.release(0);
                return;
            }
            Stop::Signal(signal) => pass_on(thread, limit, signal),
            Stop::Call | Stop::Clone => thread.resume(0),
            Stop::Ended | Stop::Late => return,
        };
        if resumed.is_err() {
            return;
        }
    }
}

/// Write the way home of a thread that is stopped, within the limit of its stop.
fn write_springboard(
    writer: &Writer<'_>,
    room: &CodeRoom,
    home: &Registers,
    pid: i32,
    begin: Instant,
    limits: Limits,
) -> Result<()> {
    match writer.write(room.address(), home.springboard().code, begin + limits.stop) {
        Some(Ok(())) => Ok(()),
        Some(Err(cause)) if cause.kind() == ErrorKind::WriteZero => Err(Error::TargetGone(pid)),
        Some(Err(cause)) => {
            Err(Error::NotPermitted { what: format!("writing to /proc/{pid}/mem"), cause })
        }
        None => {
            let limit = limits.stop.as_millis();
            let why = format!("its address space was locked for over {limit} ms");
            Err(Error::TargetBusy { pid, why })
        }
    }
}

/// From the entry of the clone to its exit: the new thread, if there is one, and the call's result.
fn step_clone(thread: &Tracee) -> io::Result<(Option<Tracee>, i64)> {
    let mut worker = None;
    loop {
        thread.step_call()?;
        match thread.wait_patiently() {
            Stop::Clone => worker = Some(Tracee::inherited(thread.new_thread()?)),
            Stop::Call => return Ok((worker, thread.registers()?.result())),
            Stop::Trap | Stop::Signal(_) => {}
            Stop::Ended | Stop::Late => return Err(ErrorKind::NotFound.into()),
        }
    }
}

/// Wait for the new thread's first stop and make it deaf: a signal meant for the program must not
/// run its handler on a stack that is in use.
fn settle_worker(worker: &Tracee) -> io::Result<()> {
    loop {
        match worker.wait_patiently() {
            Stop::Trap => return worker.block_signals(),
            Stop::Ended | Stop::Late => return Err(ErrorKind::NotFound.into()),
            Stop::Call | Stop::Clone | Stop::Signal(_) => worker.resume(0)?,
        }
    }
}

/// Put the borrowed thread back.  In a stop on the signal path, and only there, does the kernel
/// apply its own logic for restarting the call that we interrupted; so ask for one more stop.
fn send_home(thread: &Tracee, home: &Registers) -> io::Result<()> {
    thread.interrupt()?;
    thread.resume(0)?;
    points::pass("borrow.homeward");
    loop {
        let signal = match thread.wait_patiently() {
            Stop::Trap => 0,
            Stop::Signal(signal) => signal,
            Stop::Call | Stop::Clone => {
                thread.resume(0)?;
                continue;
            }
            Stop::Ended | Stop::Late => return Err(ErrorKind::NotFound.into()),
        };
        thread.set_registers(home)?;
        return thread.release(signal);
    }
}

fn seize_error(pid: i32, cause: io::Error) -> Error {
    match rustix::io::Errno::from_io_error(&cause) {
        Some(rustix::io::Errno::SRCH) => Error::TargetGone(pid),
        _ => Error::NotPermitted { what: format!("tracing pid {pid}"), cause },
    }
}

impl Worker<'_> {
    /// Thread id inside the target.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.tracee.id()
    }

    /// The target's process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The target's memory.
    #[must_use]
    pub fn memory(&self) -> &ForeignMemory {
        self.memory
    }

    /// Make one system call inside the target.
    ///
    /// The inner result is the call's own: the value or the kernel's error.
    ///
    /// # Errors
    /// `TargetGone`, or `TargetBusy` when the call does not return in time.
    pub fn call(&mut self, number: u64, arguments: [u64; 6]) -> Result<io::Result<u64>> {
        let gone = |_: io::Error| Error::TargetGone(self.pid);
        let deadline = Instant::now() + CALL_LIMIT;
        let armed = self.base.calling(self.call_address, number, arguments);
        self.tracee.set_registers(&armed).map_err(gone)?;
        self.step(deadline)?;
        if self.tracee.registers().map_err(gone)?.call_number() != number {
            return Err(Error::Internal("the target tampered with the worker".to_owned()));
        }
        self.step(deadline)?;
        let result = self.tracee.registers().map_err(gone)?.result();
        Ok(if (-4095..0).contains(&result) {
            Err(io::Error::from_raw_os_error((-result) as i32))
        } else {
            Ok(result as u64)
        })
    }

    fn step(&self, deadline: Instant) -> Result<()> {
        let pid = self.pid;
        let gone = |_: io::Error| Error::TargetGone(pid);
        loop {
            self.tracee.step_call().map_err(gone)?;
            match self.tracee.wait(deadline) {
                Stop::Call => return Ok(()),
                // Job control stops the whole program; the worker goes on.
                Stop::Trap | Stop::Clone | Stop::Signal(_) => {}
                Stop::Ended => return Err(Error::TargetGone(pid)),
                Stop::Late => {
                    let why = "a call inside it did not return".to_owned();
                    return Err(Error::TargetBusy { pid, why });
                }
            }
        }
    }

    /// End the worker and wait until it is gone, so that its code can be taken away.
    fn finish(&mut self) -> bool {
        let armed = self.base.calling(self.call_address, call::EXIT, [0; 6]);
        let deadline = Instant::now() + CALL_LIMIT;
        let mut resumed = self.tracee.set_registers(&armed).and_then(|()| self.tracee.resume(0));
        loop {
            match self.tracee.wait(deadline) {
                Stop::Ended => return true,
                Stop::Late => return false,
                _ if resumed.is_err() => return false,
                _ => resumed = self.tracee.resume(0),
            }
        }
    }
}
