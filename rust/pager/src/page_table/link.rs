//! The words that hold a table together: where a node lies, and which part of the address space
//! is below it.
//!
//! A *key* is the number of a leaf: a page number without its last bits. A link says both from
//! which key on and how many keys its node covers, so it can skip the levels at which there is no
//! choice, and whoever looks for a key sees from the link alone whether it can be there.

use std::ops::Range;

/// Keys that a table has: those of all pages of the address space.
pub(super) const KEYS: Range<u64> = 0..1 << 32;
/// Bits of a key that a node tells apart.
pub(super) const SLOT_BITS: u32 = 4;
/// Links of a node.
pub(super) const SLOTS: usize = 1 << SLOT_BITS;
/// Levels above the leaves, if there were a choice at each.
pub(super) const LEVELS: u32 = 32 / SLOT_BITS;

const UNIT_BITS: u32 = 28;
const LEVEL_SHIFT: u32 = UNIT_BITS;
const KEY_SHIFT: u32 = 32;

/// A link; the word 0 is none, because units count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(u64);

impl Link {
    /// The highest unit that a link can lead to.
    pub const UNITS_MAX: u64 = (1 << UNIT_BITS) - 1;

    /// The link to a node of this level that covers `key`; a leaf is level 0.
    pub fn to(unit: u64, level: u32, key: u64) -> Self {
        let bits = level * SLOT_BITS;
        Self(unit | u64::from(level) << LEVEL_SHIFT | (key >> bits << bits) << KEY_SHIFT)
    }

    /// The link that a word is. What no writer wrote may be anything else.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub const fn word(self) -> u64 {
        self.0
    }

    pub const fn unit(self) -> u64 {
        self.0 & Self::UNITS_MAX
    }

    pub const fn level(self) -> u32 {
        (self.0 >> LEVEL_SHIFT) as u32 & 0xf
    }

    pub const fn covers(self, key: u64) -> bool {
        ((self.0 >> KEY_SHIFT) ^ key) >> (self.level() * SLOT_BITS) == 0
    }

    pub const fn keys(self) -> Range<u64> {
        let first = self.0 >> KEY_SHIFT;
        first..first + (1 << (self.level() * SLOT_BITS))
    }

    /// Which link of its node leads on to `key`; for nodes above the leaves.
    pub const fn slot(self, key: u64) -> usize {
        (key >> ((self.level() - 1) * SLOT_BITS)) as usize & (SLOTS - 1)
    }

    /// The keys that this link of its node may cover.
    pub const fn keys_of_slot(self, slot: usize) -> Range<u64> {
        let bits = (self.level() - 1) * SLOT_BITS;
        let first = (self.0 >> KEY_SHIFT) + ((slot as u64) << bits);
        first..first + (1 << bits)
    }

    /// The lowest level of a node that covers two different keys.
    pub const fn level_of_both(key: u64, other: u64) -> u32 {
        (u64::BITS - (key ^ other).leading_zeros()).div_ceil(SLOT_BITS)
    }
}
