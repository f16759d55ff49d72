//! Pages made independent of where the kernel happened to map things.
//!
//! Two sandboxes of one image hold the same objects at different addresses, so their pages differ
//! in every pointer. A [`Layout`] knows the address space of one process as *areas* that move
//! together, and gives each a *canonical* range that is the same in every process of the image.
//! [`Layout::apply`] exchanges the two: a word that points into an area becomes the canonical
//! one, a canonical word becomes the pointer, every other word stays. Areas are user addresses
//! and canonical ranges lie above them, all disjoint, so the exchange is its own inverse and
//! needs no escapes. Any layout that [`Layout::from_bytes`] accepts has that property; what the
//! areas are decides only how much is saved.
//!
//! Which areas: one for each mapped file, found again by its name; heap and stack; all other
//! mappings as one, by the distance from the top of the mapped area; and what the program placed
//! itself, packed. Measured on pairs of processes with other data, this gave the smallest deltas:
//! to place other mappings by rank or by the next file, or to count bss to its file, cost 1–4 %.
//! It does not know what a page holds: data that looks like a pointer is exchanged as well.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::address::{ADDRESS_BITS, PAGE_SIZE, Page};
use crate::region::Region;

mod place;
#[cfg(test)]
mod tests;

/// First address that no process can have: the canonical ranges lie in
/// `CANONICAL_START..CANONICAL_END`.
const CANONICAL_START: u64 = 1 << ADDRESS_BITS;
const CANONICAL_END: u64 = 2 << ADDRESS_BITS;
/// Bounds the bytes of a layout (96 KiB). A browser's process has some hundred areas; beyond the
/// bound those that are worth least go without.
const AREAS_MAX: usize = 4096;
/// "AZLY" and the version of the format.
const MAGIC: u64 = 0x0001_594c_5a41;
const AREA_BYTES: usize = 24;
/// Magic number and number of areas before the areas, checksum behind them.
const FRAME_BYTES: usize = 24;

/// Addresses that keep their distance in every process, and where that is in no process at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    length: u64,
    canonical: u64,
}

impl Area {
    const fn addresses(&self) -> Range<u64> {
        self.start..self.start + self.length
    }

    const fn canonical(&self) -> Range<u64> {
        self.canonical..self.canonical + self.length
    }

    /// What all else relies on, for one area: whole pages, on its own side of the border.
    fn is_sound(&self) -> bool {
        let page = PAGE_SIZE as u64;
        let aligned = [self.start, self.length, self.canonical].iter().all(|at| at % page == 0);
        let end = self.start.checked_add(self.length);
        let canonical_end = self.canonical.checked_add(self.length);
        aligned
            && self.length > 0
            && end.is_some_and(|end| end <= CANONICAL_START)
            && self.canonical >= CANONICAL_START
            && canonical_end.is_some_and(|end| end <= CANONICAL_END)
    }
}

/// Bytes that are no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Another format, or cut.
    #[error("not the bytes of a layout")]
    Format,
    /// Changed since they were written.
    #[error("checksum of a layout does not match")]
    Checksum,
    /// Areas that would make different words equal.
    #[error("areas of a layout overlap or are out of bounds")]
    Areas,
}

/// Where one process has its mappings, and where they are in every process. Never changes: a
/// page must be read with the layout it was written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Sorted by address, disjoint on both sides.
    areas: Vec<Area>,
    /// The same, sorted by canonical range.
    canonical: Vec<Area>,
}

impl Layout {
    /// The layout of a process with these regions.
    ///
    /// Areas reach into free memory where heap, stack and mappings grow, so that it serves for a
    /// while; pointers into what is mapped elsewhere later stay as they are.
    #[must_use]
    pub fn of(regions: &[Region]) -> Self {
        let mut areas = place::areas(regions);
        areas.truncate(AREAS_MAX);
        loop {
            match Self::new(areas.clone()) {
                Ok(layout) => return layout,
                // They overlap, which none should: without those that are worth least.
                Err(_) => areas.truncate(areas.len() / 2),
            }
        }
    }

    fn new(mut areas: Vec<Area>) -> Result<Self, LayoutError> {
        areas.sort_by_key(|area| area.start);
        let mut canonical = areas.clone();
        canonical.sort_by_key(|area| area.canonical);
        let sound = areas.len() <= AREAS_MAX
            && areas.iter().all(Area::is_sound)
            && areas.is_sorted_by(|area, next| area.addresses().end <= next.start)
            && canonical.is_sorted_by(|area, next| area.canonical().end <= next.canonical);
        if sound { Ok(Self { areas, canonical }) } else { Err(LayoutError::Areas) }
    }

    /// The layout as bytes, for memory that outlives this process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = [MAGIC, self.areas.len() as u64];
        let words = head
            .into_iter()
            .chain(self.areas.iter().flat_map(|area| [area.start, area.length, area.canonical]));
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// The layout that [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// On any other bytes, so that no damage can make two words equal.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LayoutError> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [magic, count, areas @ .., checksum] = words else { return Err(LayoutError::Format) };
        if !rest.is_empty()
            || u64::from_le_bytes(*magic) != MAGIC
            || usize::try_from(u64::from_le_bytes(*count)) != Ok(areas.len() / 3)
            || areas.len() * 8 % AREA_BYTES != 0
        {
            return Err(LayoutError::Format);
        }
        if xxh3_64(&bytes[..bytes.len() - 8]) != u64::from_le_bytes(*checksum) {
            return Err(LayoutError::Checksum);
        }
        let (areas, _) = areas.as_chunks::<3>();
        let area = |words: &[[u8; 8]; 3]| {
            let [start, length, canonical] = words.map(u64::from_le_bytes);
            Area { start, length, canonical }
        };
        Self::new(areas.iter().map(area).collect())
    }

    /// Exchange pointers and canonical words of a page. Twice is not at all.
    ///
    /// A search for each word that may be a pointer: at most 3 us for 170 areas and a page of which
    /// a third are. A tree without search takes half of that, and ten times the memory, because
    /// libraries have many borders and V8's blocks lie alone.
    pub fn apply(&self, page: &mut Page) {
        // Below the first area lie zeros and small numbers, which most words are.
        let lowest = self.areas.first().map_or(CANONICAL_END, |area| area.start);
        let (words, _) = page.as_chunks_mut::<8>();
        for bytes in words {
            let word = u64::from_le_bytes(*bytes);
            if (lowest..CANONICAL_END).contains(&word) {
                *bytes = self.exchanged(word).to_le_bytes();
            }
        }
    }

    #[inline]
    fn exchanged(&self, word: u64) -> u64 {
        if word < CANONICAL_START {
            let next = self.areas.partition_point(|it| it.start <= word);
            match self.areas[..next].last() {
                Some(area) if word - area.start < area.length => {
                    area.canonical + (word - area.start)
                }
                _ => word,
            }
        } else {
            let next = self.canonical.partition_point(|it| it.canonical <= word);
            match self.canonical[..next].last() {
                Some(area) if word - area.canonical < area.length => {
                    area.start + (word - area.canonical)
                }
                _ => word,
            }
        }
    }

    /// True if [`Self::apply`] changes no page.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.areas.is_empty()
    }

    /// Bytes this layout takes in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        (self.areas.capacity() + self.canonical.capacity()) * size_of::<Area>()
    }

    /// Bytes that [`Self::to_bytes`] makes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        FRAME_BYTES + self.areas.len() * AREA_BYTES
    }
}
