//! Page numbers and byte addresses as two types.
//!
//! Both are plain 64-bit numbers, and mixing them up is the classic pager bug (an address passed
//! where a page number is meant is off by a factor of 4096 and often still "valid"). The kernel
//! speaks bytes, the table speaks pages; the conversion happens here and nowhere else.

use std::fmt;
use std::ops::Range;

/// Size of a page in bytes. Huge pages are split before we see them.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// Base-2 logarithm of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bits of a user-space address on x86-64 with four-level page tables.
pub const ADDRESS_BITS: u32 = 47;
/// First page number beyond the user-space address range.
pub const PAGES_END: u64 = 1 << (ADDRESS_BITS - PAGE_SHIFT);

/// The bytes of one page.
pub type Page = [u8; PAGE_SIZE];

/// Number of a page in a target's address space: its address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u64);

/// Address of a byte in a target's address space. Never dereferenced in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteAddress(pub u64);

impl PageNumber {
    /// Address of the first byte of the page. Wraps for numbers that are no page of any target.
    pub const fn start(self) -> ByteAddress {
        ByteAddress(self.0 << PAGE_SHIFT)
    }

    /// The page `count` pages further on, or the highest number if that does not exist.
    pub const fn forward(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// True for a page that user space can have.
    pub const fn is_valid(self) -> bool {
        self.0 < PAGES_END
    }
}

impl ByteAddress {
    /// The page that holds this byte.
    pub const fn page(self) -> PageNumber {
        PageNumber(self.0 >> PAGE_SHIFT)
    }

    /// First page that starts at or after this byte.
    pub const fn page_up(self) -> PageNumber {
        let whole = self.0 >> PAGE_SHIFT;
        PageNumber(if self.is_aligned() { whole } else { whole + 1 })
    }

    /// True at a page border.
    pub const fn is_aligned(self) -> bool {
        self.0 & (PAGE_SIZE as u64 - 1) == 0
    }
}

impl fmt::Display for PageNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "page {:#x}", self.0)
    }
}

impl fmt::Display for ByteAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:#x}", self.0)
    }
}

/// Every page touched by the bytes `start..end`; empty when `end <= start`.
pub const fn pages_of(start: ByteAddress, end: ByteAddress) -> Range<PageNumber> {
    if end.0 <= start.0 {
        return start.page()..start.page();
    }
    start.page()..end.page_up()
}

/// Number of pages in a range; 0 when it is empty or turned round.
pub const fn page_count(range: &Range<PageNumber>) -> u64 {
    range.end.0.saturating_sub(range.start.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_outwards_to_pages() {
        let range = pages_of(ByteAddress(0x1fff), ByteAddress(0x3001));
        assert_eq!(range, PageNumber(1)..PageNumber(4));
        assert_eq!(page_count(&range), 3);
    }

    #[test]
    fn empty_and_reversed_bytes_hold_no_page() {
        assert_eq!(page_count(&pages_of(ByteAddress(0x2000), ByteAddress(0x2000))), 0);
        assert_eq!(page_count(&pages_of(ByteAddress(0x2001), ByteAddress(0x1000))), 0);
    }

    #[test]
    fn the_top_of_memory_does_not_overflow() {
        assert_eq!(ByteAddress(u64::MAX).page_up(), PageNumber(1 << 52));
        assert_eq!(PageNumber(u64::MAX).forward(1), PageNumber(u64::MAX));
        assert!(!PageNumber(PAGES_END).is_valid());
        assert!(PageNumber(PAGES_END - 1).is_valid());
    }
}
