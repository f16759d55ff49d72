//! How one page becomes fewer bytes and comes back: the one interface to all encodings.
//!
//! An [`Encoder`] belongs to one worker, a [`Decoder`] to one fault thread: both own their
//! scratch memory, so that decoding a sound page allocates nothing. (Encoding may: LZ4 above
//! level 0 takes its tables from the heap inside the library.) Decoding gets its input from a
//! pool that a bug or a bad memory module may have damaged; whatever the bytes are, it ends in a
//! page or an error. Whether it is the *right* page is for [`checksum`] to say.

use lz4::block::{CompressionMode, compress_to_buffer, decompress_to_buffer};
use xxhash_rust::xxh3::xxh3_64;
use zstd::zstd_safe::{CCtx, CParameter, DCtx, get_error_name, max_c_level, min_c_level};

use crate::address::{PAGE_SIZE, Page};

#[cfg(test)]
mod tests;

/// An encoding that does not save this many bytes is not worth decoding: the page is kept raw.
const MIN_SAVING: usize = 64;
/// First bytes of every zstd frame. Being always the same, they are not stored.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LZ4_LEVEL_MAX: i32 = 12;

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
}

/// An encoding with its level, as people choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// No compression.
    Raw,
    /// LZ4: the fastest way back.
    Lz4 {
        /// 0 is the fast mode, 1..=12 the levels of the slow mode.
        level: i32,
    },
    /// zstd: fewer bytes.
    Zstd {
        /// Any level of the library; negative ones are faster.
        level: i32,
    },
}

impl Algorithm {
    /// The algorithm of that name (`raw`, `lz4`, `zstd`), if it has that level.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn parse(name: &str, level: i32) -> Result<Self, String> {
        let (algorithm, levels) = match name {
            "raw" => (Self::Raw, 0..=0),
            "lz4" => (Self::Lz4 { level }, 0..=LZ4_LEVEL_MAX),
            "zstd" => (Self::Zstd { level }, min_c_level()..=max_c_level()),
            _ => return Err(format!("unknown algorithm {name:?}: use raw, lz4 or zstd")),
        };
        if !levels.contains(&level) {
            let (low, high) = levels.into_inner();
            return Err(format!("{name} has no level {level}: use {low} to {high}"));
        }
        Ok(algorithm)
    }

    /// What [`Self::parse`] takes as name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Lz4 { .. } => "lz4",
            Self::Zstd { .. } => "zstd",
        }
    }

    /// The level; 0 for raw.
    pub const fn level(self) -> i32 {
        match self {
            Self::Raw => 0,
            Self::Lz4 { level } | Self::Zstd { level } => level,
        }
    }
}

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

/// Why stored bytes are not a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No encoding has this number.
    #[error("unknown codec: {0}")]
    UnknownCodec(u8),
    /// Longer than a page: not written by us.
    #[error("stored page too long: {0} bytes")]
    TooLong(usize),
    /// The library found the bytes malformed.
    #[error("malformed bytes for codec: {0}")]
    Malformed(u8),
    /// Well-formed, but not 4096 bytes.
    #[error("decoded length is not a page: {0}")]
    WrongLength(usize),
}

/// Encodes pages with one algorithm. One per worker.
pub struct Encoder {
    algorithm: Algorithm,
    zstd: Option<CCtx<'static>>,
    /// Where zstd writes, because its magic number is left out of the result.
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
        Ok(Self { algorithm, zstd, frame: Box::new([0; PAGE_SIZE]) })
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
        let room = PAGE_SIZE - MIN_SAVING;
        let encoded = match self.algorithm {
            Algorithm::Raw => None,
            Algorithm::Lz4 { level } => {
                let mode = match level {
                    0 => CompressionMode::DEFAULT,
                    level => CompressionMode::HIGHCOMPRESSION(level),
                };
                let len = compress_to_buffer(page, Some(mode), false, &mut out[..room]);
                len.ok().map(|len| (CodecId::LZ4, len))
            }
            Algorithm::Zstd { .. } => self.zstd_frame(page, room).map(|payload| {
                out[..payload.len()].copy_from_slice(payload);
                (CodecId::ZSTD, payload.len())
            }),
        };
        encoded.unwrap_or_else(|| {
            *out = *page;
            (CodecId::RAW, PAGE_SIZE)
        })
    }

    /// The zstd frame of `page` without its magic number, if it fits into `room`.
    fn zstd_frame(&mut self, page: &Page, room: usize) -> Option<&[u8]> {
        let frame = &mut self.frame[..room + ZSTD_MAGIC.len()];
        let len = self.zstd.as_mut()?.compress2(frame, page).ok()?;
        self.frame[..len].strip_prefix(&ZSTD_MAGIC)
    }
}

/// Decodes pages of every encoding. One per thread.
pub struct Decoder {
    zstd: DCtx<'static>,
    /// The magic number, and behind it the frame to decode.
    frame: Box<[u8; ZSTD_MAGIC.len() + PAGE_SIZE]>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder.
    pub fn new() -> Self {
        let mut frame = Box::new([0; ZSTD_MAGIC.len() + PAGE_SIZE]);
        frame[..ZSTD_MAGIC.len()].copy_from_slice(&ZSTD_MAGIC);
        Self { zstd: DCtx::create(), frame }
    }

    /// Turns stored bytes back into a page.
    ///
    /// # Errors
    /// [`DecodeError`] when `data` does not give exactly one page; `out` may then hold anything.
    pub fn decode(
        &mut self,
        codec: CodecId,
        data: &[u8],
        out: &mut Page,
    ) -> Result<(), DecodeError> {
        if data.len() > PAGE_SIZE {
            return Err(DecodeError::TooLong(data.len()));
        }
        let malformed = DecodeError::Malformed(codec.0);
        let len = match codec {
            CodecId::RAW => {
                let len = data.len();
                out[..len].copy_from_slice(data);
                len
            }
            CodecId::LZ4 => {
                decompress_to_buffer(data, Some(PAGE_SIZE as i32), out).map_err(|_| malformed)?
            }
            CodecId::ZSTD => {
                let frame = &mut self.frame[..ZSTD_MAGIC.len() + data.len()];
                frame[ZSTD_MAGIC.len()..].copy_from_slice(data);
                self.zstd.decompress(out, frame).map_err(|_| malformed)?
            }
            CodecId(unknown) => return Err(DecodeError::UnknownCodec(unknown)),
        };
        if len == PAGE_SIZE { Ok(()) } else { Err(DecodeError::WrongLength(len)) }
    }
}

/// The repeated 64-bit word (native byte order) of a page that consists of nothing else.
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = words[0];
    // The last word first: most pages that begin with a run do not end with it.
    let same = words[words.len() - 1] == first && words.iter().all(|word| *word == first);
    same.then(|| u64::from_ne_bytes(first))
}

/// Makes the page that [`same_filled`] recognises by `fill`.
pub fn fill_page(fill: u64, out: &mut Page) {
    let (words, _) = out.as_chunks_mut::<8>();
    words.fill(fill.to_ne_bytes());
}

/// Checksum of a decoded page, kept with every stored one.
pub fn checksum(page: &Page) -> u64 {
    xxh3_64(page)
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
