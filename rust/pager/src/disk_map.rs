//! Which parts of the swap file are taken: blocks of 256 bytes, in two bitmaps.
//!
//! Like the pool's index this is derived, never stored: a new engine marks what the page tables
//! name.  Pages written together lie together, so that they are read back together.

use std::collections::HashMap;

/// Extents begin and end at multiples of this.
pub const BLOCK_BYTES: u64 = 256;
const WORD_BLOCKS: u64 = 64;

/// Why a request made no sense; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing is stored there.
    #[error("nothing is stored at offset {0:#x} of the swap file")]
    NoSuchExtent(u64),
    /// An adopted extent lies outside the file or overlaps another.
    #[error("{len} bytes at offset {offset:#x} of the swap file conflict with others")]
    Conflict {
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// Taken blocks of a file.
#[derive(Debug)]
pub struct DiskMap {
    taken: Vec<u64>,
    /// First blocks of extents.
    starts: Vec<u64>,
    blocks_max: u64,
    blocks_taken: u64,
    /// Where to look first.
    rover: u64,
    /// References beyond the first.
    more_refs: HashMap<u64, u32>,
}

impl DiskMap {
    /// An empty file of at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self {
            taken: Vec::new(),
            starts: Vec::new(),
            blocks_max: bytes_max / BLOCK_BYTES,
            blocks_taken: 0,
            rover: 0,
            more_refs: HashMap::new(),
        }
    }

    /// Room for `len` bytes, with one reference; `None` when the file is full.
    pub fn alloc(&mut self, len: u64) -> Option<u64> {
        let count = len.div_ceil(BLOCK_BYTES).max(1);
        let end = self.blocks_max;
        let first = self.find(self.rover, end, count).or_else(|| self.find(0, end, count))?;
        self.take(first, count);
        self.rover = first + count;
        Some(first * BLOCK_BYTES)
    }

    /// One more reference to the extent at `offset`.
    ///
    /// # Errors
    /// [`Error::NoSuchExtent`].
    pub fn add_ref(&mut self, offset: u64) -> Result<(), Error> {
        let first = self.start(offset)?;
        *self.more_refs.entry(first).or_default() += 1;
        Ok(())
    }

    /// One reference less to the extent of `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::NoSuchExtent`].
    pub fn release(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        let first = self.start(offset)?;
        if let Some(more) = self.more_refs.get_mut(&first) {
            *more -= 1;
            if *more == 0 {
                self.more_refs.remove(&first);
            }
            return Ok(());
        }
        let count = len.div_ceil(BLOCK_BYTES).max(1);
        clear(&mut self.starts, first);
        for block in first..first + count {
            if is_set(&self.taken, block) {
                clear(&mut self.taken, block);
                self.blocks_taken -= 1;
            }
        }
        self.rover = self.rover.min(first);
        Ok(())
    }

    /// At takeover: a page table names `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::Conflict`].
    pub fn adopt(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        let (first, count) = (offset / BLOCK_BYTES, len.div_ceil(BLOCK_BYTES).max(1));
        if self.start(offset).is_ok() {
            return self.add_ref(offset);
        }
        let conflict = Error::Conflict { offset, len };
        let outside = !offset.is_multiple_of(BLOCK_BYTES) || first + count > self.blocks_max;
        if outside || (first..first + count).any(|block| is_set(&self.taken, block)) {
            return Err(conflict);
        }
        self.take(first, count);
        Ok(())
    }

    /// Bytes taken.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks_taken * BLOCK_BYTES
    }

    /// Memory of the map itself.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        ((self.taken.capacity() + self.starts.capacity()) * 8 + self.more_refs.capacity() * 16)
            as u64
    }

    fn start(&self, offset: u64) -> Result<u64, Error> {
        let first = offset / BLOCK_BYTES;
        let known = offset.is_multiple_of(BLOCK_BYTES) && is_set(&self.starts, first);
        if known { Ok(first) } else { Err(Error::NoSuchExtent(offset)) }
    }

    fn take(&mut self, first: u64, count: u64) {
        let words = ((first + count).div_ceil(WORD_BLOCKS)) as usize;
        if self.taken.len() < words {
            self.taken.resize(words, 0);
            self.starts.resize(words, 0);
        }
        set(&mut self.starts, first);
        for block in first..first + count {
            set(&mut self.taken, block);
        }
        self.blocks_taken += count;
    }

    /// The first run of `count` free blocks in `from..end`.
    fn find(&self, from: u64, end: u64, count: u64) -> Option<u64> {
        let mut block = from;
        let mut run = 0;
        while block < end {
            let word = (block / WORD_BLOCKS) as usize;
            // Behind the last word everything is free; a full word is stepped over at once.
            if run == 0 && self.taken.get(word) == Some(&u64::MAX) {
                block = (word as u64 + 1) * WORD_BLOCKS;
                continue;
            }
            run = if is_set(&self.taken, block) { 0 } else { run + 1 };
            block += 1;
            if run == count {
                return Some(block - count);
            }
        }
        None
    }
}

fn is_set(bits: &[u64], block: u64) -> bool {
    bits.get((block / WORD_BLOCKS) as usize)
        .is_some_and(|word| word >> (block % WORD_BLOCKS) & 1 == 1)
}

fn set(bits: &mut [u64], block: u64) {
    bits[(block / WORD_BLOCKS) as usize] |= 1 << (block % WORD_BLOCKS);
}

fn clear(bits: &mut [u64], block: u64) {
    if let Some(word) = bits.get_mut((block / WORD_BLOCKS) as usize) {
        *word &= !(1 << (block % WORD_BLOCKS));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Alloc(u64),
        Share(prop::sample::Index),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1u64..4200).prop_map(Step::Alloc),
            1 => any::<prop::sample::Index>().prop_map(Step::Share),
            2 => any::<prop::sample::Index>().prop_map(Step::Release),
        ]
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(256))]

        #[test]
        fn extents_never_overlap_and_all_comes_back(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut map = DiskMap::new(64 * 1024);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Alloc(len) => {
                        if let Some(offset) = map.alloc(len) {
                            prop_assert!(offset + len <= 64 * 1024);
                            let apart = held.iter().all(|(at, size)| {
                                offset + len <= *at || at + size <= offset
                            });
                            prop_assert!(apart);
                            held.push((offset, len));
                        }
                    }
                    Step::Share(index) if !held.is_empty() => {
                        let extent = held[index.index(held.len())];
                        prop_assert_eq!(map.add_ref(extent.0), Ok(()));
                        held.push(extent);
                    }
                    Step::Release(index) if !held.is_empty() => {
                        let (offset, len) = held.swap_remove(index.index(held.len()));
                        prop_assert_eq!(map.release(offset, len), Ok(()));
                    }
                    _ => {}
                }
                // What a new engine derives from the tables is the same.
                let mut again = DiskMap::new(64 * 1024);
                for (offset, len) in &held {
                    prop_assert_eq!(again.adopt(*offset, *len), Ok(()));
                }
                prop_assert_eq!(again.bytes(), map.bytes());
            }
            for (offset, len) in held.drain(..) {
                prop_assert_eq!(map.release(offset, len), Ok(()));
            }
            prop_assert_eq!(map.bytes(), 0);
            prop_assert!(map.release(0, 1).is_err());
        }
    }

    #[test]
    fn a_full_file_says_so_and_goes_on_after_a_release() {
        let mut map = DiskMap::new(1024);
        let first = map.alloc(600).expect("room");
        assert_eq!(None, map.alloc(512));
        map.release(first, 600).expect("known");
        assert_eq!(Some(0), map.alloc(1024));
    }

    #[test]
    fn what_contradicts_is_not_adopted() {
        let mut map = DiskMap::new(1 << 20);
        map.adopt(512, 700).expect("free");
        assert!(map.adopt(768, 10).is_err());
        assert!(map.adopt(100, 10).is_err());
        assert!(map.adopt(1 << 20, 10).is_err());
        assert_eq!(Ok(()), map.adopt(512, 700));
    }
}
