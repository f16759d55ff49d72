//! Stored bytes back to a page.

use lz4::block::decompress_to_buffer;
use zstd::zstd_safe::DCtx;

use crate::address::{PAGE_SIZE, Page};
use crate::codec::dictionary::DecodingDictionary;
use crate::codec::{CodecId, ZSTD_MAGIC, block, is_prefix};
use crate::sys::zstd_dictionary::Decompressor;

/// Why stored bytes are not a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No encoding has this number, or it needs a dictionary or other pages.
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
    /// Not one to four pages, or pages that no encoder takes: not what this delta was made from.
    #[error("no prefix for a delta: {0} bytes")]
    WrongPrefix(usize),
}

/// Decodes pages of every encoding. One per thread.
pub struct Decoder {
    zstd: DCtx<'static>,
    /// The magic number, and behind it the frame to decode.
    frame: Box<[u8; ZSTD_MAGIC.len() + PAGE_SIZE]>,
    /// For frames without magic number.
    bare: Decompressor,
    /// The header of a block, and behind it the block to decode.
    block: Box<[u8; block::HEADER + PAGE_SIZE]>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder.
    ///
    /// # Panics
    /// When there is no memory for its contexts (0.2 MiB).
    pub fn new() -> Self {
        let mut frame = Box::new([0; ZSTD_MAGIC.len() + PAGE_SIZE]);
        frame[..ZSTD_MAGIC.len()].copy_from_slice(&ZSTD_MAGIC);
        Self {
            zstd: DCtx::create(),
            frame,
            bare: Decompressor::new().expect("memory for a zstd context"),
            block: Box::new([0; block::HEADER + PAGE_SIZE]),
        }
    }

    /// Turns stored bytes back into a page, for the codecs that need nothing else.
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
        whole_page(len)
    }

    /// Turns what [`Encoder::encode_dictionary`](super::Encoder::encode_dictionary) made back
    /// into a page. With another dictionary, the result is an error or some page.
    ///
    /// # Errors
    /// [`DecodeError`] when `data` does not give exactly one page; `out` may then hold anything.
    pub fn decode_dictionary(
        &mut self,
        dictionary: &DecodingDictionary,
        data: &[u8],
        out: &mut Page,
    ) -> Result<(), DecodeError> {
        let len = frame_around(&mut self.block, data)?;
        let decoded = self.bare.with_dictionary(&dictionary.tables, &self.block[..len], out);
        whole_page(decoded.ok_or(DecodeError::Malformed(CodecId::DICT.0))?)
    }

    /// Turns what [`Encoder::encode_delta`](super::Encoder::encode_delta) made back into a page.
    /// With another prefix, the result is an error or some page.
    ///
    /// # Errors
    /// [`DecodeError`] when `data` does not give exactly one page; `out` may then hold anything.
    pub fn decode_delta(
        &mut self,
        prefix: &[u8],
        data: &[u8],
        out: &mut Page,
    ) -> Result<(), DecodeError> {
        if !is_prefix(prefix) {
            return Err(DecodeError::WrongPrefix(prefix.len()));
        }
        let len = frame_around(&mut self.block, data)?;
        let decoded = self.bare.with_prefix(prefix, &self.block[..len], out);
        whole_page(decoded.ok_or(DecodeError::Malformed(CodecId::DELTA.0))?)
    }
}

/// Puts a frame together whose only block is `data`; its length.
fn frame_around(
    frame: &mut [u8; block::HEADER + PAGE_SIZE],
    data: &[u8],
) -> Result<usize, DecodeError> {
    let end = block::HEADER + data.len();
    let (header, contents) = frame.split_at_mut(block::HEADER);
    let room = contents.get_mut(..data.len()).ok_or(DecodeError::TooLong(data.len()))?;
    header.copy_from_slice(&block::header(data.len()));
    room.copy_from_slice(data);
    Ok(end)
}

const fn whole_page(len: usize) -> Result<(), DecodeError> {
    if len == PAGE_SIZE { Ok(()) } else { Err(DecodeError::WrongLength(len)) }
}
