//! A page to fewer bytes.

use lz4::block::{CompressionMode, compress_to_buffer};
use zstd::zstd_safe::{CCtx, CParameter, get_error_name};

use crate::address::{PAGE_SIZE, Page};
use crate::codec::algorithm::Algorithm;
use crate::codec::content::looks_incompressible;
use crate::codec::dictionary::EncodingDictionary;
use crate::codec::preset::Preset;
use crate::codec::{CodecId, ZSTD_MAGIC, block, is_prefix};
use crate::sys::zstd_dictionary::{Compressor, Parameters};

/// An encoding that does not save this many bytes is not worth decoding: the page is kept raw.
pub(super) const MIN_SAVING: usize = 64;
/// The longest encoding that is worth it.
const ROOM: usize = PAGE_SIZE - MIN_SAVING;

/// Why an encoder could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncoderError {
    /// The library has no memory for its context.
    #[error("no memory for a zstd context")]
    NoMemory,
    /// The library refused a parameter.
    #[error("zstd refused a parameter: {0}")]
    Parameter(&'static str),
}

/// Encodes pages with one algorithm, and with any dictionary or prefix. One per worker.
///
/// The contexts for dictionaries (0.1 MiB) and prefixes (0.3 to 1 MiB) are made when first needed.
pub struct Encoder {
    algorithm: Algorithm,
    zstd: Option<CCtx<'static>>,
    with_dictionary: Option<Compressor>,
    with_prefix: Option<(Preset, Compressor)>,
    /// Where zstd writes, because the beginning of a frame is left out of the result.
    frame: Box<Page>,
}

impl Encoder {
    /// An encoder for `algorithm`.
    ///
    /// # Errors
    /// [`EncoderError`] when the library cannot provide one.
    pub fn new(algorithm: Algorithm) -> Result<Self, EncoderError> {
        let zstd = match algorithm {
            Algorithm::Zstd { level } => Some(zstd_context(level)?),
            Algorithm::Raw | Algorithm::Lz4 { .. } => None,
        };
        Ok(Self {
            algorithm,
            zstd,
            with_dictionary: None,
            with_prefix: None,
            frame: Box::new([0; PAGE_SIZE]),
        })
    }

    /// The algorithm it was made for.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Encodes `page` into the first bytes of `out`, and says how and how many.
    ///
    /// A page that does not shrink by at least 64 bytes is copied as it is. The rest of `out` may
    /// hold anything afterwards.
    pub fn encode(&mut self, page: &Page, out: &mut Page) -> (CodecId, usize) {
        let encoded = match self.algorithm {
            Algorithm::Raw => None,
            Algorithm::Lz4 { level } => {
                let mode = match level {
                    0 => CompressionMode::DEFAULT,
                    level => CompressionMode::HIGHCOMPRESSION(level),
                };
                let len = compress_to_buffer(page, Some(mode), false, &mut out[..ROOM]);
                len.ok().map(|len| (CodecId::LZ4, len))
            }
            Algorithm::Zstd { .. } if looks_incompressible(page) => None,
            Algorithm::Zstd { .. } => self.zstd_frame(page).map(|payload| {
                out[..payload.len()].copy_from_slice(payload);
                (CodecId::ZSTD, payload.len())
            }),
        };
        encoded.unwrap_or_else(|| {
            *out = *page;
            (CodecId::RAW, PAGE_SIZE)
        })
    }

    /// Encodes `page` with a dictionary into the first bytes of `out`, and says how many.
    ///
    /// None when that does not save 64 bytes or does not fit; `out` may then hold anything.
    pub fn encode_dictionary(
        &mut self,
        dictionary: &EncodingDictionary,
        page: &Page,
        out: &mut [u8],
    ) -> Option<usize> {
        if looks_incompressible(page) {
            return None;
        }
        if self.with_dictionary.is_none() {
            // Any parameters: those of the dictionary's tables count.
            self.with_dictionary = Compressor::new(&Parameters::of_level(0));
        }
        let context = self.with_dictionary.as_mut()?;
        let frame = &mut self.frame[..block::HEADER + ROOM];
        let len = context.with_dictionary(&dictionary.tables, page, frame)?;
        keep_block(&frame[..len], out)
    }

    /// Encodes `page` as its difference from `prefix`, which is one to four pages, the most
    /// similar one last, into the first bytes of `out`, and says how many. (`page` should not lie
    /// inside `prefix`: the library then leaves that part out of its search.)
    ///
    /// None when that does not save 64 bytes or does not fit, or when no decoder would take this
    /// prefix; `out` may then hold anything.
    pub fn encode_delta(
        &mut self,
        prefix: &[u8],
        preset: Preset,
        page: &Page,
        out: &mut [u8],
    ) -> Option<usize> {
        if !is_prefix(prefix) {
            return None;
        }
        if self.with_prefix.as_ref().is_none_or(|(made_for, _)| *made_for != preset) {
            self.with_prefix = Some((preset, Compressor::new(&preset.delta())?));
        }
        let (_, context) = self.with_prefix.as_mut()?;
        let frame = &mut self.frame[..block::HEADER + ROOM];
        let len = context.with_prefix(prefix, page, frame)?;
        keep_block(&frame[..len], out)
    }

    /// The zstd frame of `page` without its magic number, if it is worth it.
    fn zstd_frame(&mut self, page: &Page) -> Option<&[u8]> {
        let frame = &mut self.frame[..ROOM + ZSTD_MAGIC.len()];
        let len = self.zstd.as_mut()?.compress2(frame, page).ok()?;
        self.frame[..len].strip_prefix(&ZSTD_MAGIC)
    }
}

/// Copies the block of a frame, if it has one only and `out` has room.
fn keep_block(frame: &[u8], out: &mut [u8]) -> Option<usize> {
    let contents = block::contents(frame)?;
    out.get_mut(..contents.len())?.copy_from_slice(contents);
    Some(contents.len())
}

fn zstd_context(level: i32) -> Result<CCtx<'static>, EncoderError> {
    let mut context = CCtx::try_create().ok_or(EncoderError::NoMemory)?;
    let parameters = [
        CParameter::CompressionLevel(level),
        // We know the length, check sums ourselves and use no dictionary.
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
    ];
    for parameter in parameters {
        let set = context.set_parameter(parameter);
        set.map_err(|code| EncoderError::Parameter(get_error_name(code)))?;
    }
    Ok(context)
}
