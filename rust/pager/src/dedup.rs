//! Finds the slot that already holds a page's contents.
//!
//! A cache, not a record: it is filled from the page tables on demand, kept true by every store and
//! release while it exists, and dropped when nothing has been paged out for a while.
//!
//! An entry names a slot that at least one page table refers to; it goes with the *first* table
//! that lets go of the slot, so it never names a slot that was freed and used again.

use crate::page_table::Stored;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Stored pages by checksum and trust domain.
#[derive(Debug, Default)]
pub struct Dedup {
    slots: HashMap<u64, Place, BuildHasherDefault<AsIs>>,
}

/// What an entry keeps of [`Stored`]; the rest is in its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset_units: u32,
    offset_high: u8,
    codec: u8,
    len: u16,
}

const PLACE_UNIT: u64 = 16;

impl Place {
    fn of(stored: &Stored) -> Self {
        let units = stored.offset / PLACE_UNIT;
        Self {
            offset_units: units as u32,
            offset_high: (units >> 32) as u8,
            codec: stored.codec.0,
            len: stored.len,
        }
    }

    fn stored(self, checksum: u64) -> Stored {
        let units = u64::from(self.offset_high) << 32 | u64::from(self.offset_units);
        Stored {
            codec: crate::codec::CodecId(self.codec),
            len: self.len,
            offset: units * PLACE_UNIT,
            checksum,
        }
    }
}

impl Dedup {
    /// A slot of `domain` that may hold the page of this checksum.  The caller compares the bytes.
    #[must_use]
    pub fn find(&self, domain: u64, checksum: u64) -> Option<Stored> {
        self.slots.get(&key(domain, checksum)).map(|place| place.stored(checksum))
    }

    /// Notes that a slot of `domain` holds a page; the newest of several equal ones is known.
    pub fn insert(&mut self, domain: u64, stored: &Stored) {
        self.slots.insert(key(domain, stored.checksum), Place::of(stored));
    }

    /// Forgets a slot, if it is the one known for its contents.
    pub fn remove(&mut self, domain: u64, stored: &Stored) {
        let key = key(domain, stored.checksum);
        if self.slots.get(&key) == Some(&Place::of(stored)) {
            self.slots.remove(&key);
        }
    }

    /// Memory it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        // One control byte a place; a table is at most seven eighths full.
        let places = (self.slots.capacity() * 8 / 7) as u64;
        places * (size_of::<(u64, Place)>() as u64 + 1)
    }
}

/// Domains are hashes themselves; rotated, so that equal words do not cancel out.
fn key(domain: u64, checksum: u64) -> u64 {
    checksum ^ domain.rotate_left(17)
}

/// Keys are checksums already: hashing them again would gain nothing.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CodecId;

    fn stored(offset: u64, checksum: u64) -> Stored {
        Stored { codec: CodecId::ZSTD, len: 700, offset, checksum }
    }

    #[test]
    fn what_was_noted_is_found_in_its_domain_only() {
        let mut dedup = Dedup::default();
        let high = stored((1 << 39) + 48, 77);
        dedup.insert(1, &high);
        assert_eq!(Some(high), dedup.find(1, 77));
        assert_eq!(None, dedup.find(2, 77));
        assert_eq!(None, dedup.find(1, 78));
    }

    #[test]
    fn only_the_slot_that_is_known_is_forgotten() {
        let mut dedup = Dedup::default();
        dedup.insert(1, &stored(32, 5));
        dedup.insert(1, &stored(64, 5));
        dedup.remove(1, &stored(32, 5));
        assert_eq!(Some(stored(64, 5)), dedup.find(1, 5));
        dedup.remove(1, &stored(64, 5));
        assert_eq!(None, dedup.find(1, 5));
        assert!(dedup.memory_bytes() < 1 << 12);
    }
}
