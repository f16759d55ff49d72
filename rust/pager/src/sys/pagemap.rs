//! `PAGEMAP_SCAN` on /proc/PID/pagemap: which pages of a range are in which state.
//!
//! See `Documentation/admin-guide/mm/pagemap.rst`.  The open file names one address space for good:
//! after exec it answers for nobody.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

const PAGEMAP_SCAN: u64 = (3 << 30) | (96 << 16) | ((b'f' as u64) << 8) | 16;

/// The page lies in a mapping that a userfaultfd watches in async write-protect mode.
pub const WATCHED: u64 = 1 << 0;
/// The page is in memory.
pub const PRESENT: u64 = 1 << 3;
/// The page is in swap.
pub const SWAPPED: u64 = 1 << 4;
/// The page is a guard (MADV_GUARD_INSTALL).
pub const GUARD: u64 = 1 << 8;

/// Ranges found per call; more make the call loop.
const BATCH: usize = 256;

/// Which pages to report.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    /// Bits that must all be set ...
    pub all_of: u64,
    /// ... bits of which one must be set (0: no such demand) ...
    pub any_of: u64,
    /// ... and bits that must be clear.
    pub none_of: u64,
}

/// A scanner of one address space.
#[derive(Debug)]
pub struct Pagemap(File);

impl Pagemap {
    /// Open the pagemap of a process.
    ///
    /// # Errors
    /// The kernel's answer to the open.
    pub fn open(pid: i32) -> io::Result<Self> {
        Ok(Self(File::open(format!("/proc/{pid}/pagemap"))?))
    }

    /// Append the ranges of `range` whose pages match, in order, never twice.
    ///
    /// # Errors
    /// ESRCH: the address space is gone; ENOTTY: the kernel has no such request.
    pub fn scan(
        &self,
        range: Range<u64>,
        filter: Filter,
        found: &mut Vec<Range<u64>>,
    ) -> io::Result<()> {
        let mut regions = [[0u64; 3]; BATCH];
        let mut start = range.start;
        while start < range.end {
            let mut argument: [u64; 12] = [
                96,
                0,
                start,
                range.end,
                0,
                regions.as_mut_ptr() as u64,
                BATCH as u64,
                0,
                filter.none_of,
                filter.all_of | filter.none_of,
                filter.any_of,
                filter.all_of,
            ];
            // SAFETY: the structure has 96 bytes as its first word says; the vector it points to
            // holds BATCH entries of 24 bytes and outlives the call.
            let count = unsafe {
                libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN as libc::Ioctl, argument.as_mut_ptr())
            };
            if count < 0 {
                return Err(io::Error::last_os_error());
            }
            let count = count as usize;
            for region in &regions[..count] {
                match found.last_mut() {
                    Some(last) if last.end == region[0] => last.end = region[1],
                    _ => found.push(region[0]..region[1]),
                }
            }
            if count < BATCH {
                return Ok(());
            }
            // The reported end of the walk can be stale when the vector filled up (measured):
            // never go back before the last range that was handed out.
            start = argument[4].max(regions[count - 1][1]);
        }
        Ok(())
    }
}
