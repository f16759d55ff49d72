//! What a table knows of one page, and the two words that say so.

use crate::address::PAGE_SIZE;
use crate::codec::CodecId;

pub(super) const STATE_BITS: u64 = 0b111;
pub(super) const CODEC_SHIFT: u32 = 3;
const CODEC_BITS: u64 = 0xf;
pub(super) const LEN_SHIFT: u32 = 7;
pub(super) const LEN_BITS: u64 = 0x1fff;
const PLACE_SHIFT: u32 = 20;
pub(super) const PLACE_BITS: u64 = (1 << 36) - 1;
pub(super) const PLACE_UNIT: u64 = 16;

pub(super) const ABSENT: u64 = 0;
pub(super) const STAGED: u64 = 1;
pub(super) const POOLED: u64 = 2;
pub(super) const KEPT: u64 = 3;
pub(super) const SAME: u64 = 4;
pub(super) const LOST: u64 = 5;
/// A payload in use is just being replaced; readers wait for the next store.
pub(super) const CHANGING: u64 = 7;
pub(super) const STATES: usize = 6;

/// Where the pool holds a page, and how to check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// How the bytes are encoded.
    pub codec: CodecId,
    /// Encoded length in bytes, at most 4096.
    pub len: u16,
    /// Byte position in the pool, a multiple of 16.
    pub offset: u64,
    /// Checksum of the decoded page.
    pub checksum: u64,
}

/// What we know of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Not ours: resident, or never populated.
    Absent,
    /// Moved to the staging area, not encoded yet.
    Staged {
        /// Number of the page in the staging area.
        slot: u64,
    },
    /// Missing in the target; the only copy is in the pool.
    Pooled(Stored),
    /// Resident in the target; the pool copy is kept in case the page stays clean.
    Kept(Stored),
    /// Missing in the target; all its 64-bit words are equal, so nothing is stored.
    Same {
        /// The repeated word.
        fill: u64,
    },
    /// The page cannot be produced any more; its toucher gets SIGBUS.
    Lost,
}

pub(super) const fn has_payload(state: u64) -> bool {
    matches!(state & STATE_BITS, POOLED | KEPT | SAME)
}

/// The stores that turn the two words `old` into a new entry, in order.
pub(super) fn stores(
    old: (u64, u64),
    state: u64,
    payload: Option<u64>,
) -> [Option<(usize, u64)>; 3] {
    let in_use = has_payload(old.0) && payload.is_some_and(|payload| payload != old.1);
    [in_use.then_some((0, CHANGING)), payload.map(|payload| (1, payload)), Some((0, state))]
}

/// State word and, where the state has one, payload word of an entry.
pub(super) fn encode(entry: Entry) -> Option<(u64, Option<u64>)> {
    match entry {
        Entry::Absent => Some((ABSENT, None)),
        Entry::Staged { slot } => {
            (slot <= PLACE_BITS).then_some((STAGED | slot << PLACE_SHIFT, None))
        }
        Entry::Pooled(stored) => encode_stored(POOLED, &stored),
        Entry::Kept(stored) => encode_stored(KEPT, &stored),
        Entry::Same { fill } => Some((SAME, Some(fill))),
        Entry::Lost => Some((LOST, None)),
    }
}

fn encode_stored(state: u64, stored: &Stored) -> Option<(u64, Option<u64>)> {
    let codec = u64::from(stored.codec.0);
    let place = stored.offset / PLACE_UNIT;
    let fits = codec <= CODEC_BITS
        && usize::from(stored.len) <= PAGE_SIZE
        && stored.offset.is_multiple_of(PLACE_UNIT)
        && place <= PLACE_BITS;
    let len = u64::from(stored.len);
    let word = state | codec << CODEC_SHIFT | len << LEN_SHIFT | place << PLACE_SHIFT;
    fits.then_some((word, Some(stored.checksum)))
}

pub(super) fn decode(state: u64, payload: u64) -> Entry {
    let place = (state >> PLACE_SHIFT) & PLACE_BITS;
    let stored = Stored {
        codec: CodecId(((state >> CODEC_SHIFT) & CODEC_BITS) as u8),
        len: ((state >> LEN_SHIFT) & LEN_BITS) as u16,
        offset: place * PLACE_UNIT,
        checksum: payload,
    };
    match state & STATE_BITS {
        ABSENT => Entry::Absent,
        STAGED => Entry::Staged { slot: place },
        POOLED => Entry::Pooled(stored),
        KEPT => Entry::Kept(stored),
        SAME => Entry::Same { fill: payload },
        _ => Entry::Lost,
    }
}
