//! The userfaultfd descriptor: register, copy, zero, move arguments, wake, read.
//!
//! See userfaultfd(2), ioctl_userfaultfd(2) and `Documentation/admin-guide/mm/userfaultfd.rst`.
//! Kernel results stay signed until they are judged; what happens in normal life is an
//! [`Install`] value.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

const UFFD_API: u64 = 0xAA;
/// Word of a fork message that the kernel leaves zero, where a new engine notes the inode.
pub const FORK_INODE_WORD: usize = 3;
/// Words of one `struct uffd_msg` (32 bytes).
pub const MESSAGE_WORDS: usize = 4;

const fn iowr(nr: u64, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | (0xAA << 8) | nr
}
const fn ior(nr: u64, size: usize) -> u64 {
    (2 << 30) | ((size as u64) << 16) | (0xAA << 8) | nr
}

const UFFDIO_API: u64 = iowr(0x3F, 24);
const UFFDIO_REGISTER: u64 = iowr(0x00, 32);
const UFFDIO_UNREGISTER: u64 = ior(0x01, 16);
const UFFDIO_WAKE: u64 = ior(0x02, 16);
/// `UFFDIO_COPY_MODE_DONTWAKE`, which is `UFFDIO_ZEROPAGE_MODE_DONTWAKE` as well.
const DONT_WAKE: u64 = 1;
const UFFDIO_COPY: u64 = iowr(0x03, 40);
const UFFDIO_ZEROPAGE: u64 = iowr(0x04, 32);
const UFFDIO_WRITEPROTECT: u64 = iowr(0x06, 24);
const UFFDIO_POISON: u64 = iowr(0x08, 32);
/// Request number of the move ioctl, to be issued inside the target.
pub const UFFDIO_MOVE: u64 = iowr(0x05, 40);
/// Request number on /dev/userfaultfd that makes a new descriptor.
pub const USERFAULTFD_IOC_NEW: u64 = 0xAA << 8;
/// `UFFDIO_MOVE` mode: holes in the source are skipped.
pub const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;

const FEATURE_EVENT_FORK: u64 = 1 << 1;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const FEATURE_MOVE: u64 = 1 << 16;

/// Every feature the pager relies on.
pub const FEATURES: u64 = FEATURE_EVENT_FORK
    | FEATURE_EVENT_REMAP
    | FEATURE_EVENT_REMOVE
    | FEATURE_EVENT_UNMAP
    | FEATURE_THREAD_ID
    | FEATURE_EXACT_ADDRESS
    | FEATURE_WP_UNPOPULATED
    | FEATURE_POISON
    | FEATURE_WP_ASYNC
    | FEATURE_MOVE;

/// The features that old kernels lack, by name, for a precise refusal.
pub const NAMED_FEATURES: [(&str, u64); 3] = [
    ("uffd_move", FEATURE_MOVE),
    ("uffd_wp_async", FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED),
    ("uffd_poison", FEATURE_POISON),
];

/// How an attempt to put pages into the target ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Install {
    /// All bytes are in place; sleeping touchers were woken.
    Done,
    /// Only this many bytes are in place; the reason shows when the rest is tried.
    Partial(u64),
    /// The first page is home already; its toucher was not woken.
    AlreadyPresent,
    /// An unread event is pending (EAGAIN): read events, look up again, retry.
    Changing,
    /// No registered mapping covers the whole range, and no unread event says where it went.
    NotMapped,
    /// The address space is gone.
    Gone,
    /// The target's memory limit or the host leaves no room.
    NoMemory,
    /// Something else.
    Failed(i32),
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread touched a missing page.
    Fault {
        /// Exact address touched.
        address: u64,
        /// The access was a write.
        write: bool,
        /// Thread id as the toucher sees itself.
        thread: u32,
    },
    /// The process forked; the child's descriptor is open in our table under this number.
    Fork {
        /// Descriptor number.
        descriptor: RawFd,
        /// Its inode, if an engine that took over has noted it; else 0.
        inode: u64,
    },
    /// mremap moved a range.
    Remap {
        /// Old start.
        from: u64,
        /// New start.
        to: u64,
        /// Bytes.
        length: u64,
    },
    /// madvise dropped a range's contents; it stays mapped.
    Remove {
        /// Start.
        start: u64,
        /// End.
        end: u64,
    },
    /// A range was unmapped.
    Unmap {
        /// Start.
        start: u64,
        /// End.
        end: u64,
    },
    /// Not a message we know; the first word.
    Unknown(u64),
}

/// First word of the message that a range was unmapped.
pub const UNMAPPED: u64 = 0x16;

/// Decode one message of four words.
#[must_use]
pub fn decode_message(words: [u64; MESSAGE_WORDS]) -> Message {
    match words[0] & 0xFF {
        0x12 => Message::Fault {
            address: words[2],
            write: words[1] & 1 != 0,
            thread: (words[3] & 0xFFFF_FFFF) as u32,
        },
        0x13 => Message::Fork {
            descriptor: (words[1] & 0x7FFF_FFFF) as RawFd,
            inode: words[FORK_INODE_WORD],
        },
        0x14 => Message::Remap { from: words[1], to: words[2], length: words[3] },
        0x15 => Message::Remove { start: words[1], end: words[2] },
        UNMAPPED => Message::Unmap { start: words[1], end: words[2] },
        _ => Message::Unknown(words[0]),
    }
}

/// Room for what /proc/PID/fdinfo says of a userfaultfd: seven short lines.
const INFO_BYTES: usize = 512;

/// An open userfaultfd.
#[derive(Debug)]
pub struct Userfaultfd {
    descriptor: OwnedFd,
    /// What the kernel tells of it; opened when it is first asked for.
    info: OnceLock<File>,
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<OwnedFd> for Userfaultfd {
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor, info: OnceLock::new() }
    }
}

impl Userfaultfd {
    /// Make one for this process through /dev/userfaultfd (to probe the kernel).
    ///
    /// # Errors
    /// The kernel's answer to the open or the ioctl.
    pub fn for_self() -> io::Result<Self> {
        let device = open_device()?;
        // SAFETY: the request takes flags by value; the device descriptor is open.
        let raw = unsafe {
            libc::ioctl(
                device.as_raw_fd(),
                USERFAULTFD_IOC_NEW as libc::Ioctl,
                libc::O_CLOEXEC | libc::O_NONBLOCK,
            )
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor to us; nobody else owns it.
        Ok(Self::from(unsafe { OwnedFd::from_raw_fd(raw) }))
    }

    /// Take ownership of a descriptor number that a fork message announced.
    ///
    /// # Errors
    /// The number is not open, or is not a userfaultfd.
    pub fn from_fork_message(number: RawFd) -> io::Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"))?;
        if link.as_os_str() != "anon_inode:[userfaultfd]" {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: the kernel installed this number for us when it wrote the message, and the
        // journal hands each message out once.
        let owned = unsafe { OwnedFd::from_raw_fd(number) };
        // SAFETY: plain flag changes on a descriptor that we own.
        unsafe {
            libc::fcntl(number, libc::F_SETFL, libc::O_NONBLOCK);
        }
        // SAFETY: as above.
        unsafe {
            libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        Ok(Self::from(owned))
    }

    /// Keep it open until this process ends, out of anybody's reach: faults on it then wait for
    /// ever instead of reading zeros.
    pub fn leak(self) {
        let _ = self.descriptor.into_raw_fd();
    }

    /// Announce the API and ask for features; once per descriptor.
    ///
    /// # Errors
    /// EINVAL where the kernel lacks one of them.
    pub fn enable(&self, features: u64) -> io::Result<()> {
        let mut argument = [UFFD_API, features, 0];
        self.ioctl(UFFDIO_API, &mut argument)
    }

    /// Watch a range for missing pages (and for async write tracking, which also makes
    /// `PAGEMAP_SCAN` tell registered mappings from others).
    ///
    /// # Errors
    /// EINVAL: a mapping of the range cannot be watched; EBUSY: somebody else watches it.
    pub fn register(&self, start: u64, length: u64) -> io::Result<()> {
        const MISSING_AND_WP: u64 = 0b11;
        let mut argument = [start, length, MISSING_AND_WP, 0];
        self.ioctl(UFFDIO_REGISTER, &mut argument)
    }

    /// Stop watching a range; wakes who sleeps there.
    ///
    /// # Errors
    /// EINVAL: a mapping of the range cannot be watched at all.
    pub fn unregister(&self, start: u64, length: u64) -> io::Result<()> {
        let mut argument = [start, length];
        self.ioctl(UFFDIO_UNREGISTER, &mut argument)
    }

    /// Wake every toucher that sleeps in a range; it touches again.
    pub fn wake(&self, start: u64, length: u64) {
        let mut argument = [start, length];
        // A failure means that the address space is gone, and its sleepers with it.
        let _ = self.ioctl(UFFDIO_WAKE, &mut argument);
    }

    /// Copy whole pages into missing pages at `address`, and wake who sleeps there.
    pub fn copy(&self, address: u64, source: &[u8]) -> Install {
        self.install_copy(address, source, 0)
    }

    /// [`Self::copy`] that wakes nobody: [`Self::wake`] has to follow.
    pub fn copy_quietly(&self, address: u64, source: &[u8]) -> Install {
        self.install_copy(address, source, DONT_WAKE)
    }

    fn install_copy(&self, address: u64, source: &[u8], mode: u64) -> Install {
        let mut argument = [address, source.as_ptr() as u64, source.len() as u64, mode, 0];
        let result = self.ioctl(UFFDIO_COPY, &mut argument);
        self.judge(result, argument[4] as i64)
    }

    /// Put zero pages into missing pages, and wake who sleeps there.
    pub fn zero(&self, address: u64, length: u64) -> Install {
        self.install_zeros(address, length, 0)
    }

    /// [`Self::zero`] that wakes nobody: [`Self::wake`] has to follow.
    pub fn zero_quietly(&self, address: u64, length: u64) -> Install {
        self.install_zeros(address, length, DONT_WAKE)
    }

    fn install_zeros(&self, address: u64, length: u64, mode: u64) -> Install {
        let mut argument = [address, length, mode, 0];
        let result = self.ioctl(UFFDIO_ZEROPAGE, &mut argument);
        self.judge(result, argument[3] as i64)
    }

    /// Mark missing pages as lost: the toucher gets SIGBUS.
    pub fn poison(&self, address: u64, length: u64) -> Install {
        let mut argument = [address, length, 0, 0];
        let result = self.ioctl(UFFDIO_POISON, &mut argument);
        self.judge(result, argument[3] as i64)
    }

    /// Whether an event is open: from the effect of the call that causes it until it was read and
    /// its thread went on.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        // The kernel looks at this first, then at the range: none is no valid one.
        let result = self.ioctl(UFFDIO_COPY, &mut [0; 5]);
        result.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Whether the page at `address` lies in a mapping that is watched; `None` if the address space
    /// is changing right now.
    #[must_use]
    pub fn watches(&self, address: u64) -> Option<bool> {
        // Allowing writes to a page that nobody protects changes nothing.
        let mut argument = [address, 4096, 0];
        match self.ioctl(UFFDIO_WRITEPROTECT, &mut argument) {
            Ok(()) => Some(true),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => None,
            Err(_) => Some(false),
        }
    }

    /// Whether the address space still exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // The first page above mmap_min_addr is hardly ever mapped, and never by us: a copy there
        // installs nothing, but says ESRCH when the address space is gone.
        static PAGE: [u8; 4096] = [0; 4096];
        self.copy(0x1_0000, &PAGE) != Install::Gone
    }

    /// Read pending messages straight into shared memory.
    ///
    /// The kernel acknowledges a message by this read; writing it into memory that outlives us
    /// means that no crash can lose it.  Returns the number of messages, 0 when none is pending.
    ///
    /// # Errors
    /// The descriptor is broken.
    pub fn read_into(&self, words: &[AtomicU64]) -> io::Result<usize> {
        // SAFETY: the slice is memory that may change at any time (atomics), the length is its own.
        let count = unsafe {
            libc::read(
                self.descriptor.as_raw_fd(),
                words.as_ptr() as *mut libc::c_void,
                size_of_val(words),
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                _ => Err(error),
            };
        }
        Ok(count as usize / (MESSAGE_WORDS * 8))
    }

    /// How many faults are queued, which a read brings before any event; `None` if that cannot be
    /// seen just now.
    #[must_use]
    pub fn pending_faults(&self) -> Option<usize> {
        let info = match self.info.get() {
            Some(info) => info,
            None => {
                let file = format!("/proc/self/fdinfo/{}", self.descriptor.as_raw_fd());
                let opened = File::open(file).ok()?;
                self.info.get_or_init(|| opened)
            }
        };
        let mut text = [0; INFO_BYTES];
        let length = info.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        text.lines().find_map(|line| line.strip_prefix("pending:")?.trim().parse().ok())
    }

    /// A range that was found unmapped may have moved just now: the kernel asks for open events
    /// before it waits for the lock of the mapping, and again only if it finds one.
    fn judge(&self, result: io::Result<()>, installed: i64) -> Install {
        let Err(error) = result else { return Install::Done };
        let errno = error.raw_os_error().unwrap_or(0);
        if installed > 0 {
            return Install::Partial(installed as u64);
        }
        match errno {
            libc::EEXIST => Install::AlreadyPresent,
            libc::EAGAIN => Install::Changing,
            libc::ENOENT if self.is_changing() => Install::Changing,
            libc::ENOENT => Install::NotMapped,
            libc::ESRCH => Install::Gone,
            libc::ENOMEM => Install::NoMemory,
            other => Install::Failed(other),
        }
    }

    fn ioctl<const N: usize>(&self, request: u64, argument: &mut [u64; N]) -> io::Result<()> {
        // SAFETY: each request above reads and writes exactly the N words of its structure.
        let result = unsafe {
            libc::ioctl(self.descriptor.as_raw_fd(), request as libc::Ioctl, argument.as_mut_ptr())
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Open /dev/userfaultfd, whose descriptors may serve faults of the kernel itself.
///
/// # Errors
/// ENOENT: no such device; EACCES: not permitted.
pub fn open_device() -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/userfaultfd")?;
    Ok(file.into())
}
