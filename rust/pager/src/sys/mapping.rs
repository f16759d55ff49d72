//! Memory of our own that outlives us: sealed memfds, mapped shared.
//!
//! A mapping hands out atomics or copies bytes; never a plain reference, because another process
//! (the engine before us, or after us) may have it mapped as well.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A memfd and its mapping, from its first byte to its length.
#[derive(Debug)]
pub struct SharedMapping {
    descriptor: OwnedFd,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is only reached through atomics or through byte copies whose exclusion the
// caller provides; the pointer stays valid until drop.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Make a zeroed memfd of this name and length; its memory is taken page by page on touch.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn create(name: &str, length: usize) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&descriptor, length as u64)?;
        // Nobody may shrink it under a mapping: a touch past the end would be SIGBUS.
        fcntl_add_seals(&descriptor, SealFlags::SHRINK)?;
        Self::map(descriptor)
    }

    /// Map a memfd that somebody else made.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn map(descriptor: OwnedFd) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let length = rustix::fs::fstat(&descriptor)?.st_size as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &descriptor,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { descriptor, base, length })
    }

    /// Keep touched pages in memory (never swapped): the fault path must not wait for a disk.
    ///
    /// # Errors
    /// ENOMEM or EPERM: the memory-lock limit is too low; safe to go on.
    pub fn lock_on_touch(&self) -> io::Result<()> {
        // SAFETY: mlock2 on our own mapping changes no contents.
        let result =
            unsafe { libc::mlock2(self.base.as_ptr().cast(), self.length, libc::MLOCK_ONFAULT) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the mapping has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The whole mapping as atomics.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, lives as long as `self`, cannot shrink (sealed), and
        // any bit pattern is a valid atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.length / 8) }
    }

    /// Copy bytes in.  The caller makes sure that nobody reads this slot yet.
    ///
    /// Returns false, copying nothing, when the range is not inside the mapping.
    #[must_use]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let offset = offset as usize;
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.length) {
            return false;
        }
        // SAFETY: the range is inside the mapping (checked) and the source cannot overlap memory
        // that is only reachable through this type.
        unsafe {
            self.base.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        true
    }

    /// Copy bytes out.  A slot that is overwritten meanwhile gives mixed bytes: the caller
    /// verifies a checksum and looks the entry up again.
    ///
    /// Returns false, copying nothing, when the range is not inside the mapping.
    #[must_use]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let offset = offset as usize;
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.length) {
            return false;
        }
        // SAFETY: the range is inside the mapping (checked); the destination is ours alone.
        unsafe {
            bytes
                .as_mut_ptr()
                .copy_from_nonoverlapping(self.base.as_ptr().add(offset), bytes.len());
        }
        true
    }

    /// Overwrite a range with zeros: what was there must not be read by the next owner's mistake.
    pub fn wipe(&self, offset: u64, length: usize) {
        let offset = offset as usize;
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            // SAFETY: the range is inside the mapping (checked).
            unsafe { self.base.as_ptr().add(offset).write_bytes(0, length) };
        }
    }

    /// Give the memory of a range back to the host; it reads as zeros afterwards.
    pub fn punch(&self, start: u64, length: u64) {
        use rustix::fs::{FallocateFlags, fallocate};
        // A failure only costs memory; the next owner of the range overwrites it anyway.
        let _ = fallocate(
            &self.descriptor,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            start,
            length,
        );
    }

    /// Memory that the memfd takes now.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        rustix::fs::fstat(&self.descriptor).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// Descriptor number in our table.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for SharedMapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRef<[AtomicU64]> for SharedMapping {
    fn as_ref(&self) -> &[AtomicU64] {
        self.words()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no borrow of it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
