//! What a region holds: told from its mapping, its neighbours, and a few of its pages.
//!
//! For reports and for decisions that do not need certainty; whether a page may leave is decided in
//! [`crate::region`] alone.  A mapping tells files, stacks, allocators with a shape of their own
//! (PartitionAlloc, the cages of V8, the arenas of glibc).  What else is anonymous memory is told
//! by sampled pages: see [`sign`].

mod by_mapping;
mod sign;
mod source;
#[cfg(test)]
mod tests;

use crate::address::{PAGE_SIZE, Page};
use crate::region::Region;
use by_mapping::{Guess, guesses};
use sign::Sign;
use std::ops::Range;

pub use source::{Resident, Source, of_process, of_space};

/// Class of memory, for decisions and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Small objects of an interpreter with pools of its own (CPython's pymalloc).
    InterpreterHeap,
    /// Memory of malloc: the brk heap, arenas of threads, single large blocks.
    AllocatorArena,
    /// Objects of V8, and of the collector that Chromium shares with it.
    V8Heap,
    /// Memory of Chromium's PartitionAlloc.
    PartitionAlloc,
    /// Numbers, one after the other, and what asked for huge pages.
    Array,
    /// Instructions and the constants beside them, of files or generated.
    Code,
    /// Tables of programs and libraries that were relocated, and their variables.
    RelroAndData,
    /// Stacks of threads.
    Stack,
    /// Pages of other files.
    FileCache,
    /// Pictures in shared memory.
    PixelBuffer,
    /// Anything that is not recognised.
    Other,
}

impl Class {
    /// The name that people see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InterpreterHeap => "interpreter heap",
            Self::AllocatorArena => "allocator arena",
            Self::V8Heap => "v8 heap",
            Self::PartitionAlloc => "partition alloc",
            Self::Array => "array",
            Self::Code => "code",
            Self::RelroAndData => "relro and data",
            Self::Stack => "stack",
            Self::FileCache => "file cache",
            Self::PixelBuffer => "pixel buffer",
            Self::Other => "other",
        }
    }
}

/// Pages looked at in a region of up to [`REGION_STEP`] bytes, besides its first and last ...
const SAMPLES_MIN: u64 = 4;
/// ... one more for every so many bytes ...
const REGION_STEP: u64 = 16 << 20;
/// ... but never more than this: neighbouring mappings merge, a large one holds several things.
const SAMPLES_MAX: u64 = 12;
/// Pages looked at in a whole process; what comes after is told by its mapping.
const READS_MAX: usize = 8192;
/// CPython puts its pools at multiples of this: other pages of a pool tell nothing.
const POOL_BYTES: u64 = 16 << 10;

/// Smaller arrays have no mapping of their own: what looks like one is a table of something else.
const ARRAY_MIN: u64 = 128 << 10;

/// What each of `regions` (all of one process, in order) holds.
#[must_use]
pub fn classify(regions: &[Region], source: &mut impl Source) -> Vec<Class> {
    let mut reads = 0;
    let mut page: Box<Page> = Box::new([0; PAGE_SIZE]);
    let look = |(region, guess): (&Region, Guess)| {
        if guess.certain || reads >= READS_MAX {
            return guess.class;
        }
        if guess.shared_memory {
            let mut seen = Votes::default();
            seen.look(&spread(region, source), source, &mut page);
            reads += seen.reads;
            return if seen.mostly(seen.pixels) { Class::PixelBuffer } else { guess.class };
        }
        let (class, count) = by_content(region, guess.class, source, &mut page);
        reads += count;
        class
    };
    regions.iter().zip(guesses(regions)).map(look).collect()
}

/// What the sampled pages of a region say.
#[derive(Default)]
struct Votes {
    reads: usize,
    pages: usize,
    pools: usize,
    tagged: usize,
    numbers: usize,
    pixels: usize,
}

impl Votes {
    fn look(&mut self, addresses: &[u64], source: &mut impl Source, page: &mut Page) {
        for &address in addresses {
            self.reads += 1;
            if !source.read(address, page) {
                continue;
            }
            let Some(sign) = sign::of_page(address, page) else { continue };
            self.pages += 1;
            match sign {
                Sign::Pool => self.pools += 1,
                Sign::Tagged => self.tagged += 1,
                Sign::Numbers => self.numbers += 1,
                Sign::Pixels => self.pixels += 1,
                Sign::Nothing => {}
            }
        }
    }

    fn mostly(&self, votes: usize) -> bool {
        votes > 0 && votes * 2 >= self.pages
    }

    fn class(&self, length: u64, guess: Class) -> Option<Class> {
        // Variables of a library are tables of numbers here and there; an array that merged with
        // them has nothing else.
        let beside_data = guess == Class::RelroAndData;
        let only = self.numbers == self.pages && self.pages as u64 >= SAMPLES_MIN;
        let array =
            length >= ARRAY_MIN && if beside_data { only } else { self.mostly(self.numbers) };
        // A pool is told with certainty, and an object page of V8 nearly so; a heap of either may
        // have much else in it.  Numbers are also found in other memory now and then.
        let candidates = [
            (self.pools, Class::InterpreterHeap, self.pools * 4 >= self.pages),
            (self.tagged, Class::V8Heap, self.tagged * 4 >= self.pages),
            (self.numbers, Class::Array, array),
        ];
        let possible = candidates.into_iter().filter(|(votes, _, enough)| *votes > 0 && *enough);
        possible.max_by_key(|(votes, _, _)| *votes).map(|(_, class, _)| class)
    }
}

/// Class of anonymous memory, and how many pages were looked at.
fn by_content(
    region: &Region,
    guess: Class,
    source: &mut impl Source,
    page: &mut Page,
) -> (Class, usize) {
    let range = &region.range;
    let mut reads = 1;
    let mut guess = guess;
    if source.read(range.start, page) {
        if let Some(class) = sign::of_first_page(range, page) {
            return (class, reads);
        }
        if guess == Class::Other && sign::is_mapped_chunk(range, page) {
            guess = Class::AllocatorArena;
        }
    }
    let last = range.end - PAGE_SIZE as u64;
    if guess == Class::Other {
        reads += 1;
        if source.read(last, page) && sign::has_thread(last, page) {
            return (Class::Stack, reads);
        }
    }
    let mut votes = Votes::default();
    votes.look(&spread(region, source), source, page);
    (votes.class(range.end - range.start, guess).unwrap_or(guess), reads + votes.reads)
}

/// Addresses of pages spread evenly over what can be read of a region.
fn spread(region: &Region, source: &mut impl Source) -> Vec<u64> {
    let readable = source.readable(&region.range);
    let bytes: u64 = readable.iter().map(|range| range.end - range.start).sum();
    let length = region.range.end - region.range.start;
    let wanted = (SAMPLES_MIN + length / REGION_STEP).min(SAMPLES_MAX);
    let mut addresses: Vec<u64> = (0..wanted.min(bytes / PAGE_SIZE as u64))
        .filter_map(|number| telling_page(&readable, bytes * (2 * number + 1) / (2 * wanted)))
        .collect();
    addresses.dedup();
    addresses
}

/// The page at byte `offset` of these ranges, or one near it that tells more.
fn telling_page(ranges: &[Range<u64>], mut offset: u64) -> Option<u64> {
    for range in ranges {
        let length = range.end - range.start;
        if offset >= length {
            offset -= length;
            continue;
        }
        let address = (range.start + offset) / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        let pool = address / POOL_BYTES * POOL_BYTES;
        return [pool, pool + POOL_BYTES]
            .into_iter()
            .find(|address| ranges.iter().any(|range| range.contains(address)))
            .or(Some(address));
    }
    None
}
