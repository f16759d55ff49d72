//! What one page tells about the region that it is in.
//!
//! Two kinds of signs: headers that allocators put at addresses of a certain alignment, checked in
//! every field that can be checked, and the general look of the words of a page.  All of it is
//! guarded against nonsense: the bytes are another program's.

use crate::address::{PAGE_SIZE, Page};
use std::ops::Range;

use super::Class;

/// Words of 64 bits in a page.
const WORDS: usize = PAGE_SIZE / 8;
/// Where user space ends.
const USER_END: u64 = 1 << 47;
/// Numbers below this are taken for counts and sizes, not for addresses.
const ADDRESS_MIN: u64 = 1 << 32;
/// Alignment of the chunks of V8.
const V8_CHUNK: u64 = 256 << 10;
/// Alignment of the heaps that glibc makes for threads.
const GLIBC_HEAP: u64 = 64 << 20;
/// From this size on malloc asks the kernel for each block.
const MAPPED_CHUNK_MIN: u64 = 128 << 10;

/// What a page looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Begins a pool of pymalloc.
    Pool,
    /// Full of the tagged addresses that only V8 uses.
    Tagged,
    /// Numbers of one kind.
    Numbers,
    /// Pixels of four bytes.
    Pixels,
    /// Nothing in particular.
    Nothing,
}

/// What a page looks like; `None` for one that says nothing about its neighbours either.
pub fn of_page(address: u64, page: &Page) -> Option<Sign> {
    let words = words(page);
    if words.iter().all(|word| *word == 0) {
        return None;
    }
    Some(if is_pool(address, page) {
        Sign::Pool
    } else if is_v8_chunk(address, &words) || is_tagged(&words) {
        Sign::Tagged
    } else if is_pixels(page) {
        Sign::Pixels
    } else if is_numbers(&words) {
        Sign::Numbers
    } else {
        Sign::Nothing
    })
}

/// Class of a region by the header that its first page begins with.
pub fn of_first_page(range: &Range<u64>, page: &Page) -> Option<Class> {
    let words = words(page);
    if is_v8_chunk(range.start, &words) {
        Some(Class::V8Heap)
    } else if is_glibc_heap(range.start, &words) {
        Some(Class::AllocatorArena)
    } else {
        None
    }
}

/// Whether a region begins with a block of malloc that has a mapping of its own.
pub fn is_mapped_chunk(range: &Range<u64>, page: &Page) -> bool {
    let [previous, size] = [word(page, 0), word(page, 8)];
    let length = size & !7;
    // The lowest bits say: mapped, of the main arena.
    previous == 0
        && size & 7 == 2
        && (MAPPED_CHUNK_MIN..=range.end - range.start).contains(&length)
        && length.is_multiple_of(PAGE_SIZE as u64)
}

/// Whether the last page of a region holds a thread's control block, which refers to itself twice.
///
/// The C library puts it at the top of the thread's stack.
pub fn has_thread(address: u64, page: &Page) -> bool {
    let words = words(page);
    words.iter().enumerate().any(|(index, word)| {
        *word == address + 8 * index as u64 && words.get(index + 2) == Some(word)
    })
}

fn word(page: &Page, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn half(page: &Page, at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&page[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn words(page: &Page) -> [u64; WORDS] {
    std::array::from_fn(|index| word(page, index * 8))
}

/// `struct pool_header` of CPython's obmalloc.c: the place behind which no further block fits is
/// the pool's size less one block, and blocks are handed out one after the other.
fn is_pool(address: u64, page: &Page) -> bool {
    const HEADER: u32 = 48;
    const BLOCKS_LARGEST: u32 = 512;
    let (used, first_free) = (half(page, 0), word(page, 8));
    let (next, previous) = (word(page, 16), word(page, 24));
    let (next_offset, last_offset) = (half(page, 40), half(page, 44));
    let block = half(page, 36).saturating_add(1).saturating_mul(16);
    // 16 KiB since 3.10, a page before.
    [4 << 10, 16 << 10].into_iter().any(|pool: u32| {
        block <= BLOCKS_LARGEST
            && address.is_multiple_of(u64::from(pool))
            && last_offset == pool - block
            && (HEADER..=pool).contains(&next_offset)
            && (next_offset - HEADER).is_multiple_of(block)
            && used <= (pool - HEADER) / block
            && next < USER_END
            && previous < USER_END
            && (first_free == 0 || first_free.wrapping_sub(address) < u64::from(pool))
    })
}

/// `MemoryChunk` of V8: its size, and a few words later the borders of its objects.
fn is_v8_chunk(address: u64, words: &[u64; WORDS]) -> bool {
    const HEADER_MAX: u64 = 64 << 10;
    const CHUNK_MAX: u64 = 1 << 40;
    let size = words[0];
    address.is_multiple_of(V8_CHUNK)
        && (HEADER_MAX..CHUNK_MAX).contains(&size)
        && size.is_multiple_of(PAGE_SIZE as u64)
        && words[2..9].windows(2).any(|borders| {
            let (start, end) = (borders[0], borders[1]);
            (address + 1..address + HEADER_MAX).contains(&start)
                && (start + 1..=address + size).contains(&end)
        })
}

/// `heap_info` of glibc: its arena (in the first heap of the arena, just behind such a header),
/// the heap before it, and two sizes.
fn is_glibc_heap(address: u64, words: &[u64; WORDS]) -> bool {
    let [arena, previous, size, writable] = [words[0], words[1], words[2], words[3]];
    address.is_multiple_of(GLIBC_HEAP)
        && (0x10..0x100).contains(&(arena % GLIBC_HEAP))
        && (ADDRESS_MIN..USER_END).contains(&arena)
        && previous.is_multiple_of(GLIBC_HEAP)
        && size != 0
        && size.is_multiple_of(PAGE_SIZE as u64)
        && (size..=GLIBC_HEAP).contains(&writable)
}

/// V8 marks addresses of objects (at multiples of 8) by their lowest bit; others' are even.
fn is_tagged(words: &[u64; WORDS]) -> bool {
    let tagged = |word: &&u64| (ADDRESS_MIN..USER_END).contains(*word) && **word & 7 == 1;
    let plain = |word: &&u64| (ADDRESS_MIN..USER_END).contains(*word) && **word & 7 == 0;
    let (tagged, plain) = (words.iter().filter(tagged).count(), words.iter().filter(plain).count());
    tagged * 8 >= WORDS && tagged > 4 * plain
}

/// Numbers one after the other: doubles, or integers that are small for their width.
///
/// Words of heaps fail all three: addresses are large integers and, as doubles, next to zero; text
/// is neither.
fn is_numbers(words: &[u64; WORDS]) -> bool {
    const ENOUGH: usize = WORDS * 31 / 32;
    let count = |is: &dyn Fn(u64) -> bool| words.iter().filter(|word| is(**word)).count();
    let filled = count(&|word| word != 0);
    // Exponents of about 1e-19 to 1e19, any sign.
    let double = |word: u64| word == 0 || (0x3c0..0x440).contains(&((word >> 52) & 0x7ff));
    let small = |half: u32| half.wrapping_add(1 << 24) < 2 << 24;
    let integer = |word: u64| small(word as u32) && small((word >> 32) as u32);
    let single = |half: u32| half == 0 || (0x60..0xa0).contains(&((half >> 23) & 0xff));
    let singles = |word: u64| single(word as u32) && single((word >> 32) as u32);
    let text = count(&|word| word.to_le_bytes().iter().all(|byte| matches!(byte, 9..=126)));
    // Small integers are also what mostly empty memory consists of.
    filled * 4 >= WORDS
        && text * 2 < filled
        && (count(&double) >= ENOUGH
            || (filled * 8 >= WORDS * 3 && count(&integer) >= ENOUGH)
            || (filled * 8 >= WORDS * 7 && count(&singles) >= ENOUGH))
}

/// Pixels: nearly all opaque, or repeated from one to the next as in areas of one colour.
fn is_pixels(page: &Page) -> bool {
    const PIXELS: usize = PAGE_SIZE / 4;
    let pixels: [u32; PIXELS] = std::array::from_fn(|index| half(page, index * 4));
    let opaque = pixels.iter().filter(|pixel| *pixel >> 24 == 0xff).count();
    let repeated = pixels.windows(2).filter(|pair| pair[0] == pair[1] && pair[0] != 0).count();
    opaque * 16 >= PIXELS * 15 || (repeated * 4 >= PIXELS * 3 && opaque * 2 >= PIXELS)
}
