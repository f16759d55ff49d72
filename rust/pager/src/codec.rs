//! How one page becomes fewer bytes and comes back: the one interface to all encodings.
//!
//! An [`Encoder`] belongs to one worker, a [`Decoder`] to one fault thread: both own their
//! scratch memory, so that decoding a sound page allocates nothing. (Encoding may: LZ4 above
//! level 0 takes its tables from the heap inside the library.) Decoding gets its input from a
//! pool that a bug or a bad memory module may have damaged; whatever the bytes are, it ends in a
//! page or an error. Whether it is the *right* page is for [`checksum`] to say.
//!
//! Three encodings need more than the bytes: a dictionary ([`EncodingDictionary`],
//! [`DecodingDictionary`]) or other pages (a delta). Which ones, the caller writes in front of the
//! bytes; this module knows nothing of where dictionaries and pages are kept.

use crate::address::PAGE_SIZE;
use crate::sys::zstd_dictionary::has_dictionary_magic;

mod algorithm;
mod block;
mod content;
mod decoder;
mod dictionary;
mod encoder;
mod preset;
mod trainer;

#[cfg(test)]
mod dictionary_tests;
#[cfg(test)]
mod tests;

pub use crate::sys::zstd_dictionary::DictionaryBytes;
pub use algorithm::Algorithm;
pub use content::{checksum, fill_page, looks_incompressible, same_filled};
pub use decoder::{DecodeError, Decoder};
pub use dictionary::{DecodingDictionary, DictionaryError, EncodingDictionary};
pub use encoder::{Encoder, EncoderError};
pub use preset::Preset;
pub use trainer::{DICTIONARY_BYTES_MAX, DICTIONARY_BYTES_MIN, GainError, TrainError, gain, train};

/// First bytes of every zstd frame. Being always the same, they are not stored.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Most pages that a delta refers to: each is one more decode on the way back.
pub const DELTA_PAGES_MAX: usize = 4;

/// Encoding of a stored page; four bits in the page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u8);

impl CodecId {
    /// The page as it is.
    pub const RAW: Self = Self(0);
    /// A bare LZ4 block.
    pub const LZ4: Self = Self(1);
    /// A zstd frame without its magic number, content size and checksum.
    pub const ZSTD: Self = Self(2);
    /// A bare zstd block that needs a dictionary, made on the way out.
    pub const DICT: Self = Self(3);
    /// A bare zstd block that needs a dictionary, made in the background.
    pub const COLD: Self = Self(4);
    /// A bare zstd block that needs other pages.
    pub const DELTA: Self = Self(5);
    /// Not in the pool: in the swap file.
    pub const DISK: Self = Self(15);
}

/// Whether a delta can be made from these bytes: one to [`DELTA_PAGES_MAX`] pages.
///
/// The one page in four billion that begins like a dictionary with entropy tables cannot be the
/// first: the decoder would read it as one.
fn is_prefix(prefix: &[u8]) -> bool {
    let whole = prefix.len().is_multiple_of(PAGE_SIZE);
    let few = (1..=DELTA_PAGES_MAX).contains(&(prefix.len() / PAGE_SIZE));
    whole && few && !has_dictionary_magic(prefix)
}
