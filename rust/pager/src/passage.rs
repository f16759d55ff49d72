//! Hand a descriptor of ours to a worker inside a target, and take one back.
//!
//! A worker has a descriptor table of its own, emptied first; whatever passes here is out of the
//! program's reach and closes when the worker exits.

use crate::borrow::Worker;
use crate::error::{Error, Result};
use crate::sys::arch::call;
use crate::sys::{descriptors, foreign};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const AF_UNIX: u64 = 1;
const SOCK_SEQPACKET_CLOEXEC: u64 = 5 | 0o2_000_000;
const MSG_CMSG_CLOEXEC: u64 = 0x4000_0000;

/// Layout of the scratch area during a passage, in bytes from its start.
mod at {
    pub const PAIR: u64 = 0;
    pub const HEADER: u64 = 64;
    pub const VECTOR: u64 = 128;
    pub const CONTROL: u64 = 192;
    pub const DATA: u64 = 320;
    pub const END: u64 = 384;
}
const CONTROL_BYTES: u64 = 64;
/// Position of the descriptor in a control message: after its 16-byte head.
const CONTROL_HEAD: usize = 16;

/// Close every descriptor that the worker got a copy of when it was made.
///
/// # Errors
/// The worker is lost, or the kernel refused.
pub fn empty_table(worker: &mut Worker<'_>) -> Result<()> {
    let closed = worker.call(call::CLOSE_RANGE, [0, u64::from(u32::MAX), 0, 0, 0, 0])?;
    closed.map(|_| ()).map_err(Error::os("closing descriptors of a worker"))
}

/// Give a descriptor to the worker; returns its number there.
///
/// # Errors
/// The worker is lost, or the kernel refused one of the steps.
pub fn give(worker: &mut Worker<'_>, scratch: u64, descriptor: BorrowedFd<'_>) -> Result<u64> {
    let arguments = [AF_UNIX, SOCK_SEQPACKET_CLOEXEC, 0, scratch + at::PAIR, 0, 0];
    worker.call(call::SOCKETPAIR, arguments)?.map_err(|cause| match cause.kind() {
        // EFAULT: our area went away a moment ago.
        _ if Errno::from_io_error(&cause) == Some(Errno::FAULT) => Error::TargetBusy {
            pid: worker.pid(),
            why: "AgentZip's area in it is gone; the next page out maps it again".to_owned(),
        },
        _ => Error::os("making a socket pair in the target")(cause),
    })?;
    let mut pair = [0u8; 8];
    read(worker, scratch + at::PAIR, &mut pair)?;
    let number = |bytes: &[u8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let (theirs, ours) = (number(&pair[..4]), number(&pair[4..]));
    let socket = take(worker, ours)?;
    descriptors::send(socket.as_fd(), b"d", &[descriptor])
        .map_err(Error::os("sending a descriptor to the target"))?;

    let mut message = [0u8; at::END as usize];
    let mut put = |position: u64, value: u64| {
        let position = position as usize;
        message[position..position + 8].copy_from_slice(&value.to_le_bytes());
    };
    put(at::HEADER + 16, scratch + at::VECTOR);
    put(at::HEADER + 24, 1);
    put(at::HEADER + 32, scratch + at::CONTROL);
    put(at::HEADER + 40, CONTROL_BYTES);
    put(at::VECTOR, scratch + at::DATA);
    put(at::VECTOR + 8, 1);
    worker
        .memory()
        .write(scratch, &message)
        .map_err(Error::memory(worker.pid(), "writing to the target's scratch area"))?;
    let arguments = [theirs as u64, scratch + at::HEADER, MSG_CMSG_CLOEXEC, 0, 0, 0];
    worker
        .call(call::RECVMSG, arguments)?
        .map_err(Error::os("receiving a descriptor in the target"))?;
    let mut control = [0u8; CONTROL_HEAD + 4];
    read(worker, scratch + at::CONTROL, &mut control)?;
    let given = number(&control[CONTROL_HEAD..]);
    u64::try_from(given).map_err(|_| Error::Internal("a descriptor got lost".to_owned()))
}

/// Take a copy of a descriptor of the worker's.
///
/// # Errors
/// The kernel refused; before Linux 6.9 it cannot name a thread.
pub fn take(worker: &Worker<'_>, number: i32) -> Result<OwnedFd> {
    let thread =
        foreign::open_thread(worker.thread()).map_err(|cause| match cause.raw_os_error() {
            Some(22) => Error::Unsupported {
                feature: "pidfd_thread",
                cause: "PIDFD_THREAD needs Linux 6.9".to_owned(),
            },
            _ => Error::Os { what: "opening the worker", cause },
        })?;
    foreign::take_descriptor(thread.as_fd(), number).map_err(|cause| {
        let what = "taking a descriptor from the target (pidfd_getfd)".to_owned();
        if cause.kind() == io::ErrorKind::PermissionDenied {
            Error::NotPermitted { what, cause }
        } else {
            Error::Os { what: "taking a descriptor from the target", cause }
        }
    })
}

fn read(worker: &Worker<'_>, address: u64, bytes: &mut [u8]) -> Result<()> {
    worker.memory().read(address, bytes).map_err(Error::os("reading the target's scratch area"))
}
