//! A dictionary, made ready for one direction.
//!
//! Both kinds point into bytes that they hold and do not copy. The [`DecodingDictionary`] must live
//! for as long as a page needs it; an [`EncodingDictionary`] has large tables, and can be dropped
//! and made again at any time.

use crate::codec::preset::Preset;
use crate::sys::zstd_dictionary::{
    CompressionTables, DecompressionTables, DictionaryBytes, entropy_length, has_dictionary_magic,
};

/// Distances that a frame without dictionary begins with, as a dictionary stores them.
const FIRST_DISTANCES: [u8; 12] = [1, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0];

/// Why bytes are no dictionary for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DictionaryError {
    /// The library refused the bytes (it says no more), or has no memory for its tables.
    #[error("not a dictionary, or no memory for its tables: {0} bytes")]
    Refused(usize),
    /// It begins like a dictionary, but what follows is damaged.
    #[error("damaged dictionary: {0} bytes")]
    Damaged(usize),
}

/// A dictionary to encode with, at one effort.
pub struct EncodingDictionary {
    pub(super) tables: CompressionTables,
    preset: Preset,
}

impl EncodingDictionary {
    /// Makes the tables: 1 ms for Warm and 256 KiB, 6 ms for Cold and 1 MiB; 0.3 s for Frozen.
    ///
    /// A trained dictionary begins with entropy tables. The library's fast searches use these for
    /// every page without a look at the page's own statistics, and lose up to 10 % by it. For a
    /// fast preset they are therefore left out here; what that gives can be decoded with the whole
    /// dictionary, because the contents, and with them all distances, are the same.
    ///
    /// # Errors
    /// [`DictionaryError`]: pages cannot be encoded with these bytes.
    pub fn new(bytes: DictionaryBytes, preset: Preset) -> Result<Self, DictionaryError> {
        let length = (*bytes).as_ref().len();
        let skipped = match preset.takes_tables_unseen() {
            true => entropy_to_skip((*bytes).as_ref())?,
            false => 0,
        };
        let tables = CompressionTables::new(bytes, skipped, &preset.dictionary());
        let tables = tables.ok_or(DictionaryError::Refused(length))?;
        Ok(Self { tables, preset })
    }

    /// The effort it was made for.
    pub const fn preset(&self) -> Preset {
        self.preset
    }

    /// Memory of its tables; the bytes that it holds are not in it.
    pub fn memory_bytes(&self) -> usize {
        self.tables.memory_bytes()
    }
}

/// A dictionary to decode with.
pub struct DecodingDictionary {
    pub(super) tables: DecompressionTables,
}

impl DecodingDictionary {
    /// Makes the tables: about 20 µs, whatever the size.
    ///
    /// # Errors
    /// [`DictionaryError`]: no page can be decoded with these bytes.
    pub fn new(bytes: DictionaryBytes) -> Result<Self, DictionaryError> {
        let length = (*bytes).as_ref().len();
        let tables = DecompressionTables::new(bytes).ok_or(DictionaryError::Refused(length))?;
        Ok(Self { tables })
    }

    /// Memory of its tables; the bytes that it holds are not in it.
    pub fn memory_bytes(&self) -> usize {
        self.tables.memory_bytes()
    }
}

/// Bytes in front of the contents that an encoder can do without.
fn entropy_to_skip(bytes: &[u8]) -> Result<usize, DictionaryError> {
    if !has_dictionary_magic(bytes) {
        return Ok(0);
    }
    let length = entropy_length(bytes).ok_or(DictionaryError::Damaged(bytes.len()))?;
    // The decoder will begin with the dictionary's distances, the encoder with the usual ones.
    Ok(if bytes[..length].ends_with(&FIRST_DISTANCES) { length } else { 0 })
}
