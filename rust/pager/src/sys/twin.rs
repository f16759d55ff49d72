//! The keeper's body: a twin of this process that shares its descriptor table and nothing else.
//!
//! `clone(CLONE_FILES)` gives two processes one table of descriptors.  Whatever the engine opens,
//! the twin holds at the same instant; above all the descriptor of a forked child, which the kernel
//! creates *during* our read of the fork message.  Handing it over afterwards would leave a window
//! in which our death loses it, and with it the child's memory.  When the engine dies, the table
//! lives on in the twin, which then serves it to the next engine over a Unix socket.
//!
//! # Safety
//!
//! The twin is a forked image of a threaded process: locks may be held by threads that do not exist
//! in it, so it must not allocate or call into the C library beyond memory copies and plain system
//! calls.  It uses its own stack and the starting thread's local storage only, and gives the rest
//! of its copy of our memory back to the host.

use super::descriptors;
use super::userfaultfd::Userfaultfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw, stat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The next engine asks for all descriptors.
pub const TAKE: u8 = b'T';
/// The next engine has its own keeper: this one may end.
pub const DONE: u8 = b'D';
/// Answer of a keeper whose engine is alive.
pub const BUSY: u8 = b'B';
/// Answer that precedes descriptors: more messages follow.
pub const MORE: u8 = b'M';
/// Answer that ends the hand-over.
pub const END: u8 = b'E';

/// Longest path of a Unix socket, with its final zero.
const PATH_BYTES: usize = 108;

/// What the twin needs to know; plain values on the stack, as the heap does not survive in it.
struct Post {
    engine: RawFd,
    listener: RawFd,
    /// The swap file: nothing of its name tells that it is ours.  -1 for none.
    swap_file: RawFd,
    path: [u8; PATH_BYTES],
    inode: u64,
    /// An address in the starting thread's local storage.
    local_storage: u64,
}

/// A running keeper, as its engine sees it.
#[derive(Debug)]
pub struct Twin {
    pid: i32,
    /// The twin polls this number in the shared table: it stays open as long as the twin is ours.
    _engine: OwnedFd,
    /// Descriptor that tells its death; who waits for that must not hold a lock over the twin.
    pub pidfd: Arc<OwnedFd>,
}

impl Twin {
    /// Start one.  `listener` is bound to `path`, whose inode number is `inode`; the twin ends
    /// itself when orphaned while the path leads to somebody else.  `swap_file` stays open as long
    /// as the engine lives.
    ///
    /// # Errors
    /// The kernel's answer to clone or pidfd_open.
    pub fn start(
        listener: BorrowedFd<'_>,
        swap_file: Option<BorrowedFd<'_>>,
        path: &CStr,
        inode: u64,
    ) -> io::Result<Self> {
        let own = rustix::process::getpid();
        let engine = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty())?;
        let mut bytes = [0u8; PATH_BYTES];
        let name = path.to_bytes_with_nul();
        let room = bytes.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidFilename)?;
        room.copy_from_slice(name);
        let post = Post {
            engine: engine.as_raw_fd(),
            listener: listener.as_raw_fd(),
            swap_file: swap_file.map_or(-1, |file| file.as_raw_fd()),
            path: bytes,
            inode,
            // SAFETY: only the address is used.
            local_storage: unsafe { libc::__errno_location() } as u64,
        };
        // SAFETY: like fork(), but sharing descriptors; the child only runs `keep`, which keeps to
        // the rules at the head of this file and never returns.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid == 0 {
            keep(&post);
        }
        let pid = pid as i32;
        let named = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
        let pidfd = rustix::process::pidfd_open(named, rustix::process::PidfdFlags::empty())?;
        Ok(Self { pid, _engine: engine, pidfd: Arc::new(pidfd) })
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let mut look = [PollFd::new(&*self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut look, Some(&now)), Ok(count) if count > 0)
    }

    /// End it and clear it away.
    pub fn stop(&self) {
        let _ = rustix::process::pidfd_send_signal(&*self.pidfd, rustix::process::Signal::KILL);
        self.reap();
    }

    /// Clear away a keeper that ended.
    pub fn reap(&self) {
        // SAFETY: waits for our own child; it was made without an exit signal, hence __WALL.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) };
    }
}

/// What /proc calls a userfaultfd.
const USERFAULTFD: &[u8] = b"anon_inode:[userfaultfd]";

/// Whether a descriptor belongs to the pager's state, judged by what /proc says it is.
fn is_state(number: RawFd, link: &[u8], post: &Post) -> bool {
    let named = link == USERFAULTFD || link.starts_with(b"/memfd:agentzip:");
    named || number == post.swap_file
}

fn keep(post: &Post) -> ! {
    block_signals();
    let _ = rustix::thread::set_name(c"agentzip-keeper");
    let _ = rustix::process::setsid();
    release_memory(post.local_storage);
    // SAFETY: both numbers were open in the shared table when we were made, and the engine closes
    // neither while it lives.
    let (engine, listener) =
        unsafe { (BorrowedFd::borrow_raw(post.engine), BorrowedFd::borrow_raw(post.listener)) };
    let mut orphaned = false;
    loop {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut looks =
            [PollFd::new(&listener, PollFlags::IN), PollFd::new(&engine, PollFlags::IN)];
        let watched = if orphaned { &mut looks[..1] } else { &mut looks[..] };
        let _ = poll(watched, Some(&second));
        let lost = looks[0].revents().contains(PollFlags::NVAL);
        let visitor = !lost && !looks[0].revents().is_empty();
        if !orphaned && !looks[1].revents().is_empty() {
            orphaned = true;
            close_all_but_state(post);
        }
        // The mode of the socket and its folder lets nobody else in; should they be loosened, what
        // we hold is the memory of others all the same.
        if visitor
            && let Ok(connection) = rustix::net::accept(listener)
            && descriptors::is_own_user(connection.as_fd())
        {
            serve(connection.as_fd(), orphaned, post);
        }
        if lost {
            // The engine closed our socket.  Without anything to keep we are of no use; with it we
            // must stay, or its owners would read zeros.
            let mut kept = 0;
            let _ = for_each_descriptor(|number, link| {
                kept += usize::from(is_state(number, link, post));
                Ok(())
            });
            if kept == 0 {
                end();
            }
            let _ = poll(&mut [], Some(&second));
        }
        let path = CStr::from_bytes_until_nul(&post.path).unwrap_or(c"");
        if orphaned && stat(path).map_or(true, |found| found.st_ino != post.inode) {
            // Another keeper answers at our address: it holds all that we hold.
            end();
        }
        if orphaned && nobody_lives() {
            end();
        }
    }
}

/// Whether no address space is left that could miss a page: pool, tables and dictionaries are of
/// use to such a one alone.  Who visits meanwhile finds the socket closed and begins anew.
fn nobody_lives() -> bool {
    // The first that lives ends the search; so does whatever keeps us from looking.
    for_each_descriptor(|number, link| {
        if link != USERFAULTFD {
            return Ok(());
        }
        // SAFETY: the number was just listed, and only this thread uses the table now; what stands
        // in the value stays open, as the value is not dropped.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let descriptor = ManuallyDrop::new(Userfaultfd::from(descriptor));
        if descriptor.is_alive() { Err(Errno::BUSY) } else { Ok(()) }
    })
    .is_ok()
}

fn serve(connection: BorrowedFd<'_>, orphaned: bool, post: &Post) {
    loop {
        // A silent visitor must not keep us from noticing the engine's death.
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut look = [PollFd::new(&connection, PollFlags::IN)];
        if !matches!(poll(&mut look, Some(&patience)), Ok(count) if count > 0) {
            return;
        }
        let mut buffer = [MaybeUninit::<u8>::uninit(); 1];
        let Ok((read, _)) = rustix::io::read(connection, &mut buffer) else { return };
        let Some(&request) = read.first() else { return };
        match request {
            TAKE if !orphaned => {
                let _ = descriptors::send(connection, &[BUSY], &[]);
            }
            TAKE => {
                if send_state(connection, post).is_err() {
                    return;
                }
            }
            DONE if orphaned => end(),
            _ => return,
        }
    }
}

/// Send every descriptor of the pager's state, with its number in our table.
fn send_state(connection: BorrowedFd<'_>, post: &Post) -> Result<(), Errno> {
    let failed = |_| Errno::IO;
    for_each_descriptor(|number, link| {
        let ours = number == post.listener || number == connection.as_raw_fd();
        if ours || !is_state(number, link, post) {
            return Ok(());
        }
        let mut message = [MORE, 0, 0, 0, 0];
        message[1..].copy_from_slice(&number.to_le_bytes());
        // SAFETY: the number was just listed, and only this thread uses the table now.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        descriptors::send(connection, &message, &[descriptor]).map_err(failed)
    })?;
    descriptors::send(connection, &[END], &[]).map_err(failed)
}

fn close_all_but_state(post: &Post) {
    // Listing and closing in one pass could skip entries; repeat until a pass closes nothing.
    for _ in 0..16 {
        let mut closed = 0;
        let _ = for_each_descriptor(|number, link| {
            if number != post.listener && !is_state(number, link, post) {
                // SAFETY: nobody else uses this table any more; the value is dropped at once.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
                closed += 1;
            }
            Ok(())
        });
        if closed == 0 {
            return;
        }
    }
}

fn for_each_descriptor(
    mut visit: impl FnMut(RawFd, &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let directory = openat(
        CWD,
        c"/proc/self/fd",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut room = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut room);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let Some(number) = parse_number(entry.file_name().to_bytes()) else { continue };
        if number == directory.as_raw_fd() {
            continue;
        }
        let mut link = [MaybeUninit::<u8>::uninit(); 256];
        let Ok((link, _)) = readlinkat_raw(&directory, entry.file_name(), &mut link) else {
            continue;
        };
        visit(number, link)?;
    }
    Ok(())
}

fn parse_number(text: &[u8]) -> Option<RawFd> {
    let mut value: RawFd = 0;
    for byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(RawFd::from(byte - b'0'))?;
    }
    (!text.is_empty()).then_some(value)
}

fn block_signals() {
    let mask = u64::MAX;
    // SAFETY: the kernel reads eight bytes of mask; the twin handles no signals.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            std::ptr::null_mut::<u64>(),
            8,
        );
    }
}

/// Give our copy of the engine's private memory back: all anonymous writable mappings but the one
/// that hold this stack and the thread's local storage (a failing call stores its errno there).
/// Nothing the twin runs reads the others.
fn release_memory(local_storage: u64) {
    let marker = 0u8;
    let stack = (&raw const marker) as u64;
    let Ok(maps) = openat(CWD, c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let mut ranges = [(0u64, 0u64); 2048];
    let mut count = 0;
    let mut line = [0u8; 512];
    let mut length = 0;
    let mut room = [MaybeUninit::<u8>::uninit(); 2048];
    while let Ok((chunk, _)) = rustix::io::read(&maps, &mut room) {
        if chunk.is_empty() {
            break;
        }
        for &byte in chunk.iter() {
            if byte != b'\n' {
                if length < line.len() {
                    line[length] = byte;
                    length += 1;
                }
                continue;
            }
            if let Some((start, end)) = private_anonymous(&line[..length])
                && !(start..end).contains(&stack)
                && !(start..end).contains(&local_storage)
                && count < ranges.len()
            {
                ranges[count] = (start, end);
                count += 1;
            }
            length = 0;
        }
    }
    for &(start, end) in &ranges[..count] {
        // SAFETY: private memory of the twin that nothing in it reads (see the head of the file).
        unsafe {
            libc::syscall(libc::SYS_madvise, start, end - start, libc::MADV_DONTNEED);
        }
    }
}

/// Range of a maps line if it is private, writable and anonymous (`[heap]` included).
fn private_anonymous(line: &[u8]) -> Option<(u64, u64)> {
    let dash = line.iter().position(|&byte| byte == b'-')?;
    let space = line.iter().position(|&byte| byte == b' ')?;
    let start = parse_hexadecimal(line.get(..dash)?)?;
    let end = parse_hexadecimal(line.get(dash + 1..space)?)?;
    let rest = line.get(space + 1..)?;
    let writable = rest.get(1) == Some(&b'w') && rest.get(3) == Some(&b'p');
    // " offset device inode": anonymous memory has inode 0, right before the name or the end.
    let mut fields = rest.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let inode = fields.nth(3)?;
    let name = fields.next().unwrap_or(b"");
    let plain = name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon");
    (writable && inode == b"0" && plain).then_some((start, end))
}

fn parse_hexadecimal(text: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for byte in text {
        let digit = (*byte as char).to_digit(16)?;
        value = value.checked_mul(16)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

fn end() -> ! {
    loop {
        // SAFETY: ends this process; no destructor of the engine's image may run in it.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}
