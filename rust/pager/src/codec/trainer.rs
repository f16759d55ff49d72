//! A dictionary from sampled pages, and whether it is worth its memory.

use parking_lot::Mutex;

use crate::address::{PAGE_SIZE, Page};
use crate::codec::algorithm::Algorithm;
use crate::codec::dictionary::{DictionaryError, EncodingDictionary};
use crate::codec::encoder::{Encoder, EncoderError};
use crate::codec::preset::Preset;
use crate::sys::zstd_dictionary::{self as library, DictionaryBytes, Training};

/// Smallest and largest dictionary: below, its entropy tables are most of it; above, it
/// gains next to nothing for twice the memory.
pub const DICTIONARY_BYTES_MIN: usize = 4 << 10;
/// See [`DICTIONARY_BYTES_MIN`].
pub const DICTIONARY_BYTES_MAX: usize = 2 << 20;
/// From this size on, parts of 512 bytes (0.4 % fewer bytes than with 1024, JSON heap, 256 KiB,
/// Cold); smaller dictionaries hold more different ones.
const LONG_SEGMENTS_FROM: usize = 128 << 10;

/// Guards the library's settings, which are statics; held for as long as a training takes.
static TRAINING: Mutex<()> = Mutex::new(());

/// Why there is no dictionary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrainError {
    /// Not a whole number of pages.
    #[error("samples are not whole pages: {0} bytes")]
    NotPages(usize),
    /// Outside of [`DICTIONARY_BYTES_MIN`] and [`DICTIONARY_BYTES_MAX`].
    #[error("no size for a dictionary: {0} bytes")]
    Size(usize),
    /// Fewer bytes of samples than of dictionary: there would be nothing to choose from.
    #[error("too few pages for a dictionary of {size} bytes: {pages}")]
    TooFew {
        /// Pages that there are.
        pages: usize,
        /// Size asked for.
        size: usize,
    },
    /// The library found nothing in these samples.
    #[error("the library made no dictionary of these samples: {0} pages")]
    Failed(usize),
}

/// Why a gain could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GainError {
    /// The dictionary is none.
    #[error(transparent)]
    Dictionary(#[from] DictionaryError),
    /// No encoder to compare with.
    #[error(transparent)]
    Encoder(#[from] EncoderError),
}

/// Trains a dictionary of at most `size` bytes on pages that stand end to end.
///
/// The parameters are fixed, because a search for better ones costs a hundred times what it
/// gains. 256 KiB from 6000 pages take 0.3 s of one core, 1 MiB from 16 000 pages 2 s (twice that
/// on a busy host). The caller leaves out what repeats one word. One training runs at a time.
///
/// # Errors
/// [`TrainError`]: what is wrong with the samples.
pub fn train(pages: &[u8], size: usize) -> Result<Vec<u8>, TrainError> {
    let (whole, rest) = pages.as_chunks::<PAGE_SIZE>();
    if !rest.is_empty() {
        return Err(TrainError::NotPages(pages.len()));
    }
    if !(DICTIONARY_BYTES_MIN..=DICTIONARY_BYTES_MAX).contains(&size) {
        return Err(TrainError::Size(size));
    }
    if pages.len() < size {
        return Err(TrainError::TooFew { pages: whole.len(), size });
    }
    let how = Training {
        segment: if size < LONG_SEGMENTS_FROM { 256 } else { 512 },
        counted: 8,
        counters_log: 20,
        acceleration: 1,
        level: Preset::Warm.level(),
    };
    let _alone = TRAINING.lock();
    library::train(pages, PAGE_SIZE, size, &how).ok_or(TrainError::Failed(whole.len()))
}

/// Encoded bytes without the dictionary ÷ with it, on pages that it was not trained on.
///
/// Below 1 it costs more than it saves; without pages it is 1.
///
/// # Errors
/// [`GainError`] when one of the two encoders cannot be made.
pub fn gain(
    dictionary: DictionaryBytes,
    held_out: &[Page],
    preset: Preset,
) -> Result<f64, GainError> {
    let dictionary = EncodingDictionary::new(dictionary, preset)?;
    let mut encoder = Encoder::new(Algorithm::Zstd { level: preset.level() })?;
    let mut out = [0; PAGE_SIZE];
    let (mut without, mut with) = (1, 1);
    for page in held_out {
        without += encoder.encode(page, &mut out).1;
        with += encoder.encode_dictionary(&dictionary, page, &mut out).unwrap_or(PAGE_SIZE);
    }
    Ok(without as f64 / with as f64)
}
