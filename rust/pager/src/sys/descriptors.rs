//! Passing descriptors over Unix sockets (SCM_RIGHTS), both ways, and into a target; and who is at
//! the other end.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Descriptors per message; the kernel's limit is 253.
pub const BATCH: usize = 128;
/// Room for one batch of descriptors in a control message.
const SPACE: usize = rustix::cmsg_space!(ScmRights(128));

/// Send `bytes` together with descriptors (at most [`BATCH`]).  Allocates nothing.
///
/// # Errors
/// The kernel's answer.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::<u8>::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receive a message and the descriptors that came with it.  0 bytes: the peer closed.
///
/// # Errors
/// The kernel's answer.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::<u8>::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let result =
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok((result.bytes, descriptors))
}

/// Whether the other end was connected by a process of this one's effective user.  Allocates
/// nothing.
#[must_use]
pub fn is_own_user(socket: BorrowedFd<'_>) -> bool {
    // rustix has no value for a peer without a pid here, which a process of the host has in a
    // container.
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `peer`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    result == 0 && peer.uid == rustix::process::geteuid().as_raw()
}
