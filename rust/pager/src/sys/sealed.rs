//! Bytes in a memfd that nobody can change any more: they outlive us, and are a plain slice.
//!
//! All seals are set before it is mapped, so that the promise behind `&[u8]` (nobody writes) is
//! kept by the kernel and not by every process that holds the descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A sealed memfd and its read-only mapping.
#[derive(Debug)]
pub struct SealedBytes {
    descriptor: OwnedFd,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: read-only memory that nobody can change, valid until drop.
unsafe impl Send for SealedBytes {}
// SAFETY: as above.
unsafe impl Sync for SealedBytes {}

/// Neither longer, nor shorter, nor written, and no seal can be taken off or added.
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

impl SealedBytes {
    /// A new memfd of that name with these bytes.
    ///
    /// # Errors
    /// The kernel's answer; `InvalidInput` for no bytes, which cannot be mapped.
    pub fn create(name: &str, bytes: &[u8]) -> io::Result<Self> {
        let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut written = 0;
        while written < bytes.len() {
            match rustix::io::pwrite(&descriptor, &bytes[written..], written as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fcntl_add_seals(&descriptor, SEALS)?;
        Self::map(descriptor)
    }

    /// The bytes of a memfd that [`Self::create`] made, here or in a process before us.
    ///
    /// # Errors
    /// The kernel's answer; `InvalidInput` when it is not sealed like that, or empty.
    pub fn map(descriptor: OwnedFd) -> io::Result<Self> {
        if !fcntl_get_seals(&descriptor)?.contains(SEALS) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let length = rustix::fs::fstat(&descriptor)?.st_size as usize;
        if length == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
            mmap(std::ptr::null_mut(), length, protection, flags, &descriptor, 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        // Best effort: without it a swapping host can slow a fault, never falsify it.
        // SAFETY: mlock2 on our own mapping changes no contents.
        let _ = unsafe { libc::mlock2(base.as_ptr().cast(), length, libc::MLOCK_ONFAULT) };
        Ok(Self { descriptor, base, length })
    }
}

impl AsRef<[u8]> for SealedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as `self`; the seals keep the
        // file from shrinking under it and everybody from writing to it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl AsFd for SealedBytes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for SealedBytes {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no borrow of it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_bytes_are_the_same_in_a_second_mapping_and_cannot_be_written() {
        let first = SealedBytes::create("agentzip-test", b"some bytes").expect("a memfd");
        let again = first.as_fd().try_clone_to_owned().expect("a descriptor");
        assert!(rustix::io::pwrite(&again, b"x", 0).is_err());
        let second = SealedBytes::map(again).expect("sealed");
        drop(first);
        assert_eq!(b"some bytes", second.as_ref());
    }

    #[test]
    fn bytes_that_somebody_can_still_write_are_refused() {
        let open = memfd_create("agentzip-test", MemfdFlags::ALLOW_SEALING).expect("a memfd");
        rustix::io::pwrite(&open, b"some bytes", 0).expect("room");
        assert!(SealedBytes::map(open).is_err());
        assert!(SealedBytes::create("agentzip-test", b"").is_err());
    }
}
