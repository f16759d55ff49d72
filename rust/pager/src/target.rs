//! One foreign process: who it is, whether we may have it, which of its threads to borrow.

use crate::address::PAGE_SIZE;
use crate::cuts::{self, Held};
use crate::error::{Error, Result};
use crate::quarantine::Look;
use crate::sys::arch::{self, Call, call};
use std::fs;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::time::Duration;

/// Identity and description of a process.
#[derive(Clone, Debug)]
pub struct Target {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks after boot; with the pid, an identity.
    pub start_time: u64,
    /// Command name.
    pub command: String,
    /// Number of threads.
    pub threads: u32,
    /// Seccomp mode (0: none).
    pub seccomp: u32,
    /// Address ranges of its arguments and environment, which other programs read.
    pub arguments: std::ops::Range<u64>,
}

/// A thread as a candidate for borrowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// 0: best.
    pub rank: u8,
    /// Thread id.
    pub thread: i32,
    /// Stack pointer where it sleeps, 0 if it runs.
    pub stack_pointer: u64,
    /// It has a seccomp filter: each thread may have its own.
    pub filtered: bool,
    /// The call it sleeps in, if that would see EINTR.
    pub interruptible: Option<Call>,
}

/// Process flag of kernel threads (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

struct Stat {
    command: String,
    state: char,
    flags: u64,
    start_time: u64,
    arguments: std::ops::Range<u64>,
}

fn read_stat(path: &str) -> Option<Stat> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The command may itself hold spaces and parentheses: the last one ends it.
    let (head, tail) = text.rsplit_once(')')?;
    let (_, command) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index - 3).and_then(|text| text.parse::<u64>().ok());
    let (first, last) = (number(48).unwrap_or(0), number(51).unwrap_or(0));
    Some(Stat {
        command: command.to_owned(),
        state: fields.first()?.chars().next()?,
        flags: number(9)?,
        start_time: number(22)?,
        arguments: first..last.max(first),
    })
}

/// Start time of a process, if it exists and is no zombie.
#[must_use]
pub fn start_time(pid: i32) -> Option<u64> {
    read_stat(&format!("/proc/{pid}/stat"))
        .filter(|stat| !matches!(stat.state, 'Z' | 'X'))
        .map(|stat| stat.start_time)
}

/// Text of a status file.  The name in it is the program's own choice: any bytes.
fn read_status(path: String) -> std::io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// One number of /proc/PID/status.
fn status_number(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(key))?;
    line[key.len()..].trim_start_matches(':').split_ascii_whitespace().next()?.parse().ok()
}

impl Target {
    /// Check that a process may be attached, touching nothing.
    ///
    /// # Errors
    /// The refusal, with its cause.
    pub fn describe(pid: i32, own: &[i32]) -> Result<Self> {
        let status =
            read_status(format!("/proc/{pid}/status")).map_err(|_| Error::NoSuchProcess(pid))?;
        let stat = read_stat(&format!("/proc/{pid}/stat")).ok_or(Error::NoSuchProcess(pid))?;
        if status_number(&status, "Tgid") != u64::try_from(pid).ok()
            || matches!(stat.state, 'Z' | 'X')
        {
            return Err(Error::NoSuchProcess(pid));
        }
        if own.contains(&pid) {
            return Err(Error::OwnProcess(pid));
        }
        if stat.flags & PF_KTHREAD != 0 {
            return Err(Error::KernelThread(pid));
        }
        let tracer = status_number(&status, "TracerPid").unwrap_or(0);
        if tracer != 0 {
            let tracer = i32::try_from(tracer).unwrap_or(0);
            return Err(Error::AlreadyTraced { pid, tracer });
        }
        check_architecture(pid)?;
        Ok(Self {
            pid,
            start_time: stat.start_time,
            command: stat.command,
            threads: status_number(&status, "Threads").unwrap_or(1) as u32,
            seccomp: status_number(&status, "Seccomp").unwrap_or(0) as u32,
            arguments: stat.arguments,
        })
    }

    /// Whether the pid still names the process that was described.
    #[must_use]
    pub fn is_same(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

fn check_architecture(pid: i32) -> Result<()> {
    let mut head = [0u8; 20];
    let what = || format!("reading /proc/{pid}/exe");
    let opened = fs::File::open(format!("/proc/{pid}/exe")).and_then(|mut file| {
        file.read_exact(&mut head)?;
        Ok(())
    });
    match opened {
        Ok(()) => {}
        Err(cause) if cause.kind() == ErrorKind::PermissionDenied => {
            return Err(Error::NotPermitted { what: what(), cause });
        }
        // A deleted or unreadable image says nothing; the register width tells later.
        Err(_) => return Ok(()),
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    if head.starts_with(b"\x7fELF") && (head[4] != 2 || machine != arch::ELF_MACHINE) {
        let width = if head[4] == 1 { "32-bit" } else { "64-bit" };
        let found = format!("{width} ELF, machine {machine}");
        return Err(Error::WrongArchitecture { pid, found });
    }
    Ok(())
}

/// Threads of a process in the order in which to try to borrow them.
///
/// Best is a thread asleep in a call that restarts exactly; then one that runs; last one in a call
/// that would see EINTR, for which the borrower makes up (`interrupted.rs`).  One
/// that may have done a part of its call is left alone: nobody could make up for that.
#[must_use]
pub fn candidates(pid: i32) -> Vec<Candidate> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found: Vec<Candidate> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|thread| candidate(pid, thread))
        .collect();
    found.sort_by_key(|candidate| (candidate.rank, candidate.thread));
    found
}

fn hexadecimal(text: &&str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

fn candidate(pid: i32, thread: i32) -> Option<Candidate> {
    let stat = read_stat(&format!("/proc/{pid}/task/{thread}/stat"))?;
    let call = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok();
    let fields: Vec<&str> = call.as_deref().unwrap_or("").split_ascii_whitespace().collect();
    let number = fields.first().and_then(|text| text.parse::<u64>().ok());
    let argument = |place: usize| fields.get(place + 1).and_then(hexadecimal).unwrap_or(0);
    let arguments = std::array::from_fn(argument);
    let stack_pointer = if fields.len() >= 3 {
        fields.get(fields.len() - 2).and_then(hexadecimal).unwrap_or(0)
    } else {
        0
    };
    let rank = match (stat.state, number) {
        ('Z' | 'X' | 'D' | 't', _) => return None,
        ('S', Some(number)) if arch::is_done_by_parts(number, arguments) => return None,
        ('S', Some(number)) if arch::is_interruptible(number) => 2,
        ('S', _) => 0,
        ('T', _) => 3,
        _ => 1,
    };
    let status = read_status(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let filtered = status_number(&status, "Seccomp").unwrap_or(0) != 0;
    let call = number.filter(|number| arch::is_interruptible(*number));
    let interruptible = call.map(|number| (number, arguments));
    Some(Candidate { rank, thread, stack_pointer, filtered, interruptible })
}

/// What threads do as far as events are concerned, by one look at each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Threads that run or wait for a CPU, each with its processor time so far.
    pub awake: Vec<(i32, Duration)>,
    /// Threads that have queued an event and wait until it is read.
    pub waiting: Vec<i32>,
}

/// Look at each thread of a process, one after the other.
#[must_use]
pub fn activity(pid: i32) -> Activity {
    let mut found = Activity::default();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return found };
    for thread in entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()) {
        let state = || state_of(pid, thread);
        let function = || fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan")).ok();
        // Its answer does not matter: the kernel gives none before the thread has left its CPU.
        let leaves_cpu = || drop(fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")));
        match doing(state, function, leaves_cpu) {
            Doing::Runs => {
                let time = Duration::from_nanos(runtime(pid, thread).unwrap_or(0));
                found.awake.push((thread, time));
            }
            Doing::Waits => found.waiting.push(thread),
            Doing::Other => {}
        }
    }
    found
}

/// After how many looks a thread is believed to have no name.  Each but the first follows a moment
/// in which it slept: of 17,000 threads without a name 12 had none at the second look either.
const NAMELESS_LOOKS: u32 = 8;

/// What a thread does, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It runs or waits for a CPU.
    Runs,
    /// It has queued an event and sleeps until that is read.
    Waits,
    Other,
}

/// Who cannot be interrupted sleeps in `userfaultfd_event_wait_completion`, or in what a compiler
/// has made it a part of; a fault waits in `handle_userfault`, who changes mappings for their lock.
///
/// Without a name (`0`) it is on its way to sleep or awake again, or the scheduler has not taken it
/// from its queue yet: it is looked at again when it has left its CPU.  Who still has no name after
/// `NAMELESS_LOOKS` is of a kernel that names nothing, and is taken to wait for us.
fn doing(
    state: impl Fn() -> Option<char>,
    function: impl Fn() -> Option<String>,
    leaves_cpu: impl Fn(),
) -> Doing {
    for _ in 0..NAMELESS_LOOKS {
        match state() {
            Some('R') => return Doing::Runs,
            Some('D') => {}
            _ => return Doing::Other,
        }
        match function() {
            Some(name) if name == "0" => leaves_cpu(),
            Some(name) if name.contains("userfaultfd") => return Doing::Waits,
            _ => return Doing::Other,
        }
    }
    Doing::Waits
}

/// Whether a thread may still be in a call that it was seen in: it runs, or sleeps there.
#[must_use]
pub fn may_be_in(pid: i32, held: &Held) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{}/syscall", held.thread));
    text.is_ok_and(|text| text.starts_with("running") || parse_call(&text) == Some(held.call))
}

fn state_of(pid: i32, thread: i32) -> Option<char> {
    Some(read_stat(&format!("/proc/{pid}/task/{thread}/stat"))?.state)
}

/// Calls that change mappings, of threads that sleep in one.
#[must_use]
pub fn held_calls(pid: i32, threads: &[i32]) -> Vec<Held> {
    let held = |&thread: &i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok()?;
        Some(Held { thread, call: parse_call(&text)? })
    };
    threads.iter().filter_map(held).collect()
}

/// Ranges that threads are about to empty, of those that sleep in `madvise`.
#[must_use]
pub fn emptied(pid: i32, threads: &[i32]) -> Vec<Range<u64>> {
    let range = |&thread: &i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok()?;
        let mut fields = text.split_ascii_whitespace();
        let is_it = fields.next()?.parse() == Ok(call::MADVISE);
        let mut argument = || fields.next().as_ref().and_then(hexadecimal);
        let (start, length) = (argument()?, argument()?);
        is_it.then(|| start..start.saturating_add(length).min(arch::ADDRESS_END))
    };
    threads.iter().filter_map(range).collect()
}

/// A line of /proc/PID/syscall: number and six arguments; of `mremap(from, length, new_length,
/// flags, to)`, `munmap(from, length)` or `mmap(from, length, protection, flags, ...)`.
fn parse_call(text: &str) -> Option<cuts::Call> {
    const FIXED: u64 = 2;
    const DONTUNMAP: u64 = 4;
    const MAP_FIXED: u64 = 0x10;
    let mut fields = text.split_ascii_whitespace();
    let number: u64 = fields.next()?.parse().ok()?;
    let arguments: Vec<u64> = fields.take(5).filter_map(|text| hexadecimal(&text)).collect();
    let &[from, length, new_length, flags, to] = arguments.as_slice() else { return None };
    let to = (number == call::MREMAP && flags & FIXED != 0).then_some(to);
    let page_up = |length: u64| length.next_multiple_of(PAGE_SIZE as u64);
    // With anything larger it has failed, or fails soon.
    if from.max(length).max(to.unwrap_or(0)) >= arch::ADDRESS_END {
        return None;
    }
    match number {
        call::MUNMAP => Some(cuts::Call::Unmap { start: from, end: from + page_up(length) }),
        call::MMAP if flags & MAP_FIXED != 0 => {
            Some(cuts::Call::Unmap { start: from, end: from + page_up(length) })
        }
        call::MREMAP if new_length < arch::ADDRESS_END => Some(cuts::Call::Move {
            from,
            length: page_up(length),
            new_length: page_up(new_length),
            to,
            keeps: flags & DONTUNMAP != 0,
        }),
        _ => None,
    }
}

/// Nanoseconds for which a thread has run; `None` if the kernel does not say.
fn runtime(pid: i32, thread: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Look at every thread: could it be in the middle of emptying memory?
#[must_use]
pub fn look_at_threads(pid: i32) -> Vec<Look> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .map(|thread: i32| {
            let read = |file: &str| {
                fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}")).unwrap_or_default()
            };
            // "running", or the number of the call it sleeps in (-1: none), arguments, stack
            // pointer and code address.
            let call = read("syscall");
            let fields: Vec<&str> = call.split_ascii_whitespace().collect();
            let number = fields.first().and_then(|text| text.parse::<i64>().ok());
            let elsewhere = number.is_some_and(|number| !arch::empties_memory(number));
            let address = fields.last().filter(|_| number.is_some()).and_then(hexadecimal);
            Look { thread, elsewhere, address, runtime: runtime(pid, thread).unwrap_or(0) }
        })
        .collect()
}

/// Text of /proc/PID/smaps (with flags and sizes) or, cheaper, /proc/PID/maps.
///
/// # Errors
/// The process is gone or may not be read.
pub fn read_maps(pid: i32, with_flags: bool) -> Result<String> {
    let file = if with_flags { "smaps" } else { "maps" };
    fs::read(format!("/proc/{pid}/{file}"))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .map_err(|cause| match cause.kind() {
            ErrorKind::PermissionDenied => {
                Error::NotPermitted { what: format!("reading /proc/{pid}/{file}"), cause }
            }
            _ => Error::TargetGone(pid),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_not_asked_for_is_none() {
        // The register of the fifth argument holds anything then.
        let line = "25 0x7f0000001000 0x1800 0x3000 0x1 0xffffffffffffffff 0x0 0x7ffd0 0x7f00";
        let expected = cuts::Call::Move {
            from: 0x7f00_0000_1000,
            length: 0x2000,
            new_length: 0x3000,
            to: None,
            keeps: false,
        };
        assert_eq!(Some(expected), parse_call(line));
        let fixed = line.replace(" 0x1 0xffffffffffffffff", " 0x7 0x5000");
        let Some(cuts::Call::Move { to, keeps, .. }) = parse_call(&fixed) else { panic!("a move") };
        assert_eq!((Some(0x5000), true), (to, keeps));
    }

    #[test]
    fn who_falls_asleep_or_wakes_during_a_look_is_seen() {
        let look = |states: &str, names: &[&str]| {
            let (state, name) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
            let states: Vec<char> = states.chars().collect();
            doing(
                || states.get(state.replace(state.get() + 1)).copied(),
                || names.get(name.replace(name.get() + 1)).map(ToString::to_string),
                || {},
            )
        };
        let queued = "userfaultfd_event_wait_completion";
        assert_eq!(Doing::Runs, look("R", &[]));
        assert_eq!(Doing::Waits, look("D", &[queued]));
        assert_eq!(Doing::Waits, look("DD", &["0", queued]));
        assert_eq!(Doing::Waits, look("DDDD", &["0", "0", "0", queued]));
        assert_eq!(Doing::Other, look("DDD", &["0", "0", "rwsem_down_write_slowpath"]));
        assert_eq!(Doing::Runs, look("DDR", &["0", "0"]));
        // A kernel without names.
        assert_eq!(Doing::Waits, look(&"D".repeat(20), &["0"; 20]));
        assert_eq!(Doing::Runs, look("DR", &["0"]));
        assert_eq!(Doing::Other, look("DD", &["0", "rwsem_down_write_slowpath"]));
        assert_eq!(Doing::Other, look("D", &["handle_userfault"]));
        assert_eq!(Doing::Other, look("S", &[]));
        assert_eq!(Doing::Other, look("D", &[]));
    }

    #[test]
    fn only_a_fixed_mapping_unmaps() {
        let line = |flags: &str| format!("9 0x10000 0x100 0x3 {flags} 0xffffffff 0x0 0x7ffd0 0x7f");
        let unmapped = cuts::Call::Unmap { start: 0x10000, end: 0x11000 };
        assert_eq!(Some(unmapped), parse_call(&line("0x32")));
        assert_eq!(None, parse_call(&line("0x22")));
    }

    #[test]
    fn what_is_no_call_that_changes_mappings_is_none() {
        for line in ["running", "", "-1 0x7ffd0 0x7f00", "202 0x1 0x80 0x2 0x0 0x0 0x0 0x1 0x2"] {
            assert_eq!(None, parse_call(line), "{line}");
        }
        // Lengths that no address space has.
        assert_eq!(None, parse_call("11 0x1000 0xffffffffffffffff 0x0 0x0 0x0 0x0 0x1 0x2"));
    }
}
