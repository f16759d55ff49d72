//! What is stored of a zstd frame when a dictionary or a prefix stands behind it: its one block.
//!
//! A frame without magic number, length, dictionary number and checksum still begins with five
//! bytes: a descriptor (all flags off), the window, and the block's header, which says "last one,
//! compressed" and how long it is. All of that is known, and is half a percent of a stored page.

use crate::address::PAGE_SIZE;

/// Bytes in front of the block.
pub(super) const HEADER: usize = 5;
/// No length, no checksum, no dictionary number, no single segment.
const DESCRIPTOR: u8 = 0;
/// A window of one page (exponent in the upper five bits, from 1 KiB): the block may be that
/// long. Offsets into a dictionary are not bounded by it.
const WINDOW: u8 = (PAGE_SIZE.ilog2() as u8 - 10) << 3;
/// The last block (bit 0), compressed (2 in bits 1 and 2).
const LAST_COMPRESSED: u32 = 0b101;

/// The header of a block of that length.
pub(super) const fn header(length: usize) -> [u8; HEADER] {
    let [low, middle, high, _] = ((length as u32) << 3 | LAST_COMPRESSED).to_le_bytes();
    [DESCRIPTOR, WINDOW, low, middle, high]
}

/// The block of a frame that has one only, and that compressed.
pub(super) fn contents(frame: &[u8]) -> Option<&[u8]> {
    let (front, block) = frame.split_first_chunk::<HEADER>()?;
    let [descriptor, _, length @ ..] = header(block.len());
    (front[0] == descriptor && front[2..] == length).then_some(block)
}
