//! What stands before the frame of a stored page that cannot be decoded alone.
//!
//! Such a page needs a dictionary, an address layout, or other stored pages (its *leaders*).  Their
//! names lie in the blob itself, so that the page tables stay 16 bytes a page and everything that a
//! blob needs can be found from it after a kill.
//!
//! ```text
//! DICT   dictionary u16 | frame
//! COLD   dictionary u16 | layout u16 | frame            decodes to the normalised page
//! DELTA  layout u16 | count u8 | count x leader (7 B) | frame
//! ```
//!
//! A leader is a stored page of codec COLD: place, length and codec as in a page table entry.
//! Numbers are little-endian; dictionary or layout 0 means none.

use crate::address::PAGE_SIZE;
use crate::codec::CodecId;
use crate::page_table::Stored;

/// Most leaders of one delta.
pub const LEADERS_MAX: usize = 4;
const LEADER_BYTES: usize = 7;
const PLACE_UNIT: u64 = 16;
const LEN_BITS: u32 = 13;
/// Most bytes before a frame.
pub const HEAD_BYTES_MAX: usize = 3 + LEADERS_MAX * LEADER_BYTES;

/// A stored page that a delta refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    /// Byte position in the pool, a multiple of 16.
    pub offset: u64,
    /// Encoded length in bytes.
    pub len: u16,
}

impl Leader {
    /// The slot as the pool knows it; a leader has no checksum of its own, because that of the page
    /// made from it covers it.
    #[must_use]
    pub fn stored(self) -> Stored {
        Stored { codec: CodecId::COLD, len: self.len, offset: self.offset, checksum: 0 }
    }
}

/// What a blob needs to be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Number of a dictionary, 0 for none.
    pub dictionary: u16,
    /// Number of a layout, 0 for none.
    pub layout: u16,
    leaders: [Option<Leader>; LEADERS_MAX],
}

impl Head {
    /// Of a page encoded with a dictionary.
    #[must_use]
    pub fn dictionary(dictionary: u16) -> Self {
        Self { dictionary, ..Self::default() }
    }

    /// Of a normalised page encoded with a dictionary.
    #[must_use]
    pub fn cold(dictionary: u16, layout: u16) -> Self {
        Self { dictionary, layout, ..Self::default() }
    }

    /// Of a normalised page encoded as a difference to at most [`LEADERS_MAX`] others, the most
    /// similar last; more are left out.
    #[must_use]
    pub fn delta(layout: u16, leaders: &[Leader]) -> Self {
        let mut head = Self { layout, ..Self::default() };
        for (place, leader) in head.leaders.iter_mut().zip(leaders) {
            *place = Some(*leader);
        }
        head
    }

    /// The pages that a delta refers to, in the order of its prefix.
    pub fn leaders(&self) -> impl Iterator<Item = Leader> + '_ {
        self.leaders.iter().copied().flatten()
    }

    /// Numbers of dictionaries and layouts, without the zeros.
    pub fn references(&self) -> impl Iterator<Item = u16> {
        [self.dictionary, self.layout].into_iter().filter(|number| *number != 0)
    }

    /// Writes the head for `codec` to the start of `out`; returns its length.
    pub fn write(&self, codec: CodecId, out: &mut [u8; HEAD_BYTES_MAX]) -> usize {
        match codec {
            CodecId::DICT => {
                out[..2].copy_from_slice(&self.dictionary.to_le_bytes());
                2
            }
            CodecId::COLD => {
                out[..2].copy_from_slice(&self.dictionary.to_le_bytes());
                out[2..4].copy_from_slice(&self.layout.to_le_bytes());
                4
            }
            CodecId::DELTA => {
                out[..2].copy_from_slice(&self.layout.to_le_bytes());
                let mut at = 3;
                for leader in self.leaders() {
                    let word = (leader.offset / PLACE_UNIT) << LEN_BITS | u64::from(leader.len);
                    out[at..at + LEADER_BYTES].copy_from_slice(&word.to_le_bytes()[..LEADER_BYTES]);
                    at += LEADER_BYTES;
                }
                out[2] = ((at - 3) / LEADER_BYTES) as u8;
                at
            }
            _ => 0,
        }
    }

    /// Reads the head of a blob of `codec`; returns it and where the frame begins.  `None` if the
    /// bytes cannot be one.
    #[must_use]
    pub fn read(codec: CodecId, blob: &[u8]) -> Option<(Self, usize)> {
        let number = |at: usize| Some(u16::from_le_bytes([*blob.get(at)?, *blob.get(at + 1)?]));
        match codec {
            CodecId::DICT => Some((Self::dictionary(number(0)?), 2)),
            CodecId::COLD => Some((Self::cold(number(0)?, number(2)?), 4)),
            CodecId::DELTA => {
                let mut head = Self { layout: number(0)?, ..Self::default() };
                let count = usize::from(*blob.get(2)?);
                if !(1..=LEADERS_MAX).contains(&count) {
                    return None;
                }
                let end = 3 + count * LEADER_BYTES;
                let packed = blob.get(3..end)?.chunks_exact(LEADER_BYTES);
                for (place, packed) in head.leaders.iter_mut().zip(packed) {
                    let mut word = [0; 8];
                    word[..LEADER_BYTES].copy_from_slice(packed);
                    let word = u64::from_le_bytes(word);
                    let len = (word & ((1 << LEN_BITS) - 1)) as u16;
                    let offset = (word >> LEN_BITS) * PLACE_UNIT;
                    *place = (usize::from(len) <= PAGE_SIZE).then_some(Leader { offset, len });
                    (*place)?;
                }
                Some((head, end))
            }
            _ => Some((Self::default(), 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn leader() -> impl Strategy<Value = Leader> {
        (0u64..1 << 36, 1u16..=PAGE_SIZE as u16)
            .prop_map(|(place, len)| Leader { offset: place * PLACE_UNIT, len })
    }

    proptest! {
        #[test]
        fn a_head_comes_back(
            dictionary in any::<u16>(),
            layout in any::<u16>(),
            leaders in prop::collection::vec(leader(), 1..=LEADERS_MAX),
        ) {
            for (codec, head) in [
                (CodecId::DICT, Head::dictionary(dictionary)),
                (CodecId::COLD, Head::cold(dictionary, layout)),
                (CodecId::DELTA, Head::delta(layout, &leaders)),
                (CodecId::ZSTD, Head::default()),
            ] {
                let mut bytes = [0xa5; HEAD_BYTES_MAX];
                let len = head.write(codec, &mut bytes);
                prop_assert_eq!(Head::read(codec, &bytes), Some((head, len)));
                // Cut short it is not a head, and never a wrong one.
                for cut in 0..len {
                    prop_assert_eq!(Head::read(codec, &bytes[..cut]), None);
                }
            }
        }

    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(2_000))]

        #[test]
        fn arbitrary_bytes_never_panic(
            codec in 0u8..16,
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some((head, len)) = Head::read(CodecId(codec), &bytes) {
                prop_assert!(len <= bytes.len());
                prop_assert!(head.leaders().count() <= LEADERS_MAX);
            }
        }
    }
}
