//! zstd with a dictionary or a prefix: the part of the library that works on borrowed memory.
//!
//! The tables made here point into the dictionary's bytes instead of copying them (a host keeps
//! dozens of dictionaries of up to 1 MiB), and the contexts write frames without the magic number.
//! What the parameters mean and when a result is worth keeping is decided above.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use zstd_safe::zstd_sys as zstd;

/// Memory with the bytes of a dictionary, kept for as long as anything points into it.
pub type DictionaryBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// First bytes of a dictionary that begins with entropy tables.
const DICTIONARY_MAGIC: [u8; 4] = zstd::ZSTD_MAGIC_DICTIONARY.to_le_bytes();
/// `ZSTD_f_zstd1_magicless`: frames without the four bytes that are always the same.
const MAGICLESS: c_int = 1;
/// Names of the experimental parameters that we use (the library's header defines them as macros).
const FORMAT: zstd::ZSTD_cParameter = zstd::ZSTD_cParameter::ZSTD_c_experimentalParam2;
const SPLIT_BLOCKS: zstd::ZSTD_cParameter = zstd::ZSTD_cParameter::ZSTD_c_experimentalParam13;
const ROWS: zstd::ZSTD_cParameter = zstd::ZSTD_cParameter::ZSTD_c_experimentalParam14;
const DECODER_FORMAT: zstd::ZSTD_dParameter = zstd::ZSTD_dParameter::ZSTD_d_experimentalParam1;
/// `ZSTD_ps_disable`.
const OFF: c_int = 2;

/// How hard to search, in the library's own terms; zero means what the level says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The level that fills in what is zero here.
    pub level: i32,
    /// Logarithm of the distance that the search looks back.
    pub window_log: i32,
    /// Logarithm of the entries of the first table.
    pub hash_log: i32,
    /// Logarithm of the entries of the second table.
    pub chain_log: i32,
    /// Logarithm of the candidates tried for one position.
    pub search_log: i32,
    /// Shortest match.
    pub min_match: i32,
    /// 1 (fast) to 9 (btultra2).
    pub strategy: i32,
    /// Use hash chains where the library would use rows.
    pub chains: bool,
}

impl Parameters {
    /// What the library itself does at that level.
    #[must_use]
    pub const fn of_level(level: i32) -> Self {
        Self {
            level,
            window_log: 0,
            hash_log: 0,
            chain_log: 0,
            search_log: 0,
            min_match: 0,
            strategy: 0,
            chains: false,
        }
    }

    /// Every setting of a context or of tables, in the library's names.
    fn settings(&self) -> [(zstd::ZSTD_cParameter, c_int); 13] {
        use zstd::ZSTD_cParameter as Name;
        [
            (Name::ZSTD_c_compressionLevel, self.level),
            (Name::ZSTD_c_windowLog, self.window_log),
            (Name::ZSTD_c_hashLog, self.hash_log),
            (Name::ZSTD_c_chainLog, self.chain_log),
            (Name::ZSTD_c_searchLog, self.search_log),
            (Name::ZSTD_c_minMatch, self.min_match),
            (Name::ZSTD_c_strategy, self.strategy),
            (ROWS, if self.chains { OFF } else { 0 }),
            // A page is one block: its header can then be left out (see `codec::block`).
            (SPLIT_BLOCKS, OFF),
            (FORMAT, MAGICLESS),
            (Name::ZSTD_c_contentSizeFlag, 0),
            (Name::ZSTD_c_checksumFlag, 0),
            (Name::ZSTD_c_dictIDFlag, 0),
        ]
    }
}

/// Whether the bytes begin like a dictionary with entropy tables.
#[must_use]
pub fn has_dictionary_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&DICTIONARY_MAGIC)
}

/// Length of the entropy tables that a dictionary begins with; none if it has no sound ones.
#[must_use]
pub fn entropy_length(bytes: &[u8]) -> Option<usize> {
    // SAFETY: reads `len` bytes at the pointer, which the slice has.
    let length = unsafe { zstd::ZDICT_getDictHeaderSize(bytes.as_ptr().cast(), bytes.len()) };
    succeeded(length).filter(|length| *length <= bytes.len())
}

/// Tables to compress with one dictionary. They point into its bytes.
pub struct CompressionTables {
    tables: NonNull<zstd::ZSTD_CDict>,
    /// Never given out: this is what `tables` points into.
    _bytes: DictionaryBytes,
}

// SAFETY: the library never changes a finished CDict ("can be shared by multiple threads"), and
// the bytes it points into are Send and Sync.
unsafe impl Send for CompressionTables {}
// SAFETY: as above.
unsafe impl Sync for CompressionTables {}

impl CompressionTables {
    /// Tables over the bytes behind the first `skipped`.
    ///
    /// None when the library finds the dictionary or the parameters unsound or has no memory.
    #[must_use]
    pub fn new(bytes: DictionaryBytes, skipped: usize, parameters: &Parameters) -> Option<Self> {
        let content = (*bytes).as_ref().get(skipped..)?;
        // What follows a header is content, whatever it begins with.
        let kind = if skipped == 0 {
            zstd::ZSTD_dictContentType_e::ZSTD_dct_auto
        } else {
            zstd::ZSTD_dictContentType_e::ZSTD_dct_rawContent
        };
        // SAFETY: the set of parameters lives from create to free, and is not null in between.
        // The library keeps the pointer to `content`. These bytes are borrowed from what the Arc
        // holds, at an address that moving the Arc does not change; the Arc is a field of the
        // result and never given out, so nobody can take it back or borrow it mutably, and the
        // borrow stays true until `drop` has freed the tables: it is the borrow of a shared
        // reference that lives as long as the Arc.
        let tables = unsafe {
            let set = zstd::ZSTD_createCCtxParams();
            if set.is_null() {
                return None;
            }
            let sound = parameters.settings().into_iter().all(|(name, value)| {
                succeeded(zstd::ZSTD_CCtxParams_setParameter(set, name, value)).is_some()
            });
            let tables = if sound {
                zstd::ZSTD_createCDict_advanced2(
                    content.as_ptr().cast(),
                    content.len(),
                    zstd::ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef,
                    kind,
                    set,
                    DEFAULT_MEMORY,
                )
            } else {
                ptr::null_mut()
            };
            zstd::ZSTD_freeCCtxParams(set);
            tables
        };
        Some(Self { tables: NonNull::new(tables)?, _bytes: bytes })
    }

    /// Memory of the tables, without the dictionary's bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // SAFETY: the tables live until drop.
        unsafe { zstd::ZSTD_sizeof_CDict(self.tables.as_ptr()) }
    }
}

impl Drop for CompressionTables {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once; no context keeps it (see `Compressor`).
        unsafe { zstd::ZSTD_freeCDict(self.tables.as_ptr()) };
    }
}

/// Tables to decompress with one dictionary. They point into its bytes.
pub struct DecompressionTables {
    tables: NonNull<zstd::ZSTD_DDict>,
    /// Never given out: this is what `tables` points into.
    _bytes: DictionaryBytes,
}

// SAFETY: the library never changes a finished DDict, and the bytes are Send and Sync.
unsafe impl Send for DecompressionTables {}
// SAFETY: as above.
unsafe impl Sync for DecompressionTables {}

impl DecompressionTables {
    /// Tables over the bytes. None when they are unsound or there is no memory.
    #[must_use]
    pub fn new(bytes: DictionaryBytes) -> Option<Self> {
        let content = (*bytes).as_ref();
        // SAFETY: the library keeps the pointer; the bytes stay where and what they are until
        // `drop` has freed the tables, for the reasons given in `CompressionTables::new`.
        let tables = unsafe {
            zstd::ZSTD_createDDict_advanced(
                content.as_ptr().cast(),
                content.len(),
                zstd::ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef,
                zstd::ZSTD_dictContentType_e::ZSTD_dct_auto,
                DEFAULT_MEMORY,
            )
        };
        Some(Self { tables: NonNull::new(tables)?, _bytes: bytes })
    }

    /// Memory of the tables, without the dictionary's bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // SAFETY: the tables live until drop.
        unsafe { zstd::ZSTD_sizeof_DDict(self.tables.as_ptr()) }
    }
}

impl Drop for DecompressionTables {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once; no context reads it after its call.
        unsafe { zstd::ZSTD_freeDDict(self.tables.as_ptr()) };
    }
}

/// A context that compresses with dictionaries or prefixes. Keeps none of them after a call.
pub struct Compressor(NonNull<zstd::ZSTD_CCtx>);

// SAFETY: the context is reached through `&mut self` only, and is bound to no thread.
unsafe impl Send for Compressor {}

impl Compressor {
    /// A context with these parameters (with a dictionary, those of its tables count instead).
    ///
    /// None when a parameter is out of bounds or there is no memory.
    #[must_use]
    pub fn new(parameters: &Parameters) -> Option<Self> {
        // SAFETY: takes nothing; the result is checked for null.
        let context = Self(NonNull::new(unsafe { zstd::ZSTD_createCCtx() })?);
        for (name, value) in parameters.settings() {
            // SAFETY: the context lives until drop; the library checks name and value.
            let set = unsafe { zstd::ZSTD_CCtx_setParameter(context.0.as_ptr(), name, value) };
            succeeded(set)?;
        }
        Some(context)
    }

    /// The frame of `source` in the first bytes of `out`, if it fits there.
    #[must_use]
    pub fn with_dictionary(
        &mut self,
        dictionary: &CompressionTables,
        source: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        let context = self.0.as_ptr();
        // SAFETY: context and tables live through the block; the second `refCDict` makes the
        // context forget the tables, so that they can be freed at any time afterwards.
        unsafe {
            let set = zstd::ZSTD_CCtx_refCDict(context, dictionary.tables.as_ptr());
            let length = succeeded(set).and_then(|_| self.compress(source, out));
            zstd::ZSTD_CCtx_refCDict(context, ptr::null());
            length
        }
    }

    /// The frame of `source` as what follows `prefix`, if it fits into `out`.
    #[must_use]
    pub fn with_prefix(&mut self, prefix: &[u8], source: &[u8], out: &mut [u8]) -> Option<usize> {
        let context = self.0.as_ptr();
        // SAFETY: context and prefix live through the block; the second `refPrefix` makes the
        // context forget a prefix that an early error may have left unused.
        unsafe {
            let set = zstd::ZSTD_CCtx_refPrefix(context, prefix.as_ptr().cast(), prefix.len());
            let length = succeeded(set).and_then(|_| self.compress(source, out));
            zstd::ZSTD_CCtx_refPrefix(context, ptr::null(), 0);
            length
        }
    }

    fn compress(&mut self, source: &[u8], out: &mut [u8]) -> Option<usize> {
        // SAFETY: both buffers are as long as said, `out` is not shared, and neither is kept.
        let length = unsafe {
            zstd::ZSTD_compress2(
                self.0.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                source.as_ptr().cast(),
                source.len(),
            )
        };
        succeeded(length)
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once.
        unsafe { zstd::ZSTD_freeCCtx(self.0.as_ptr()) };
    }
}

/// A context that decompresses with dictionaries or prefixes. Allocates nothing after its making.
pub struct Decompressor(NonNull<zstd::ZSTD_DCtx>);

// SAFETY: the context is reached through `&mut self` only, and is bound to no thread.
unsafe impl Send for Decompressor {}

impl Decompressor {
    /// A context. None when there is no memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        // SAFETY: takes nothing; the result is checked for null.
        let context = Self(NonNull::new(unsafe { zstd::ZSTD_createDCtx() })?);
        // SAFETY: the context lives until drop; the library checks name and value.
        let set =
            unsafe { zstd::ZSTD_DCtx_setParameter(context.0.as_ptr(), DECODER_FORMAT, MAGICLESS) };
        succeeded(set).map(|_| context)
    }

    /// The contents of a frame that was made with this dictionary; its length.
    #[must_use]
    pub fn with_dictionary(
        &mut self,
        dictionary: &DecompressionTables,
        frame: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        // SAFETY: the buffers are as long as said and `out` is not shared; the library checks
        // whatever the frame says against them. The context keeps addresses in the tables, but
        // reads them only between the beginning and the end of this call: the next one, of either
        // method, begins by setting them anew.
        let length = unsafe {
            zstd::ZSTD_decompress_usingDDict(
                self.0.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                frame.as_ptr().cast(),
                frame.len(),
                dictionary.tables.as_ptr(),
            )
        };
        succeeded(length)
    }

    /// The contents of a frame that was made with this prefix; its length.
    ///
    /// A prefix that begins like a dictionary with entropy tables would be read as one: refused.
    /// (The library's other way, a reference to the prefix, allocates with every call.)
    #[must_use]
    pub fn with_prefix(&mut self, prefix: &[u8], frame: &[u8], out: &mut [u8]) -> Option<usize> {
        if has_dictionary_magic(prefix) {
            return None;
        }
        // SAFETY: as in `with_dictionary`.
        let length = unsafe {
            zstd::ZSTD_decompress_usingDict(
                self.0.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                frame.as_ptr().cast(),
                frame.len(),
                prefix.as_ptr().cast(),
                prefix.len(),
            )
        };
        succeeded(length)
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: made by the library, freed once.
        unsafe { zstd::ZSTD_freeDCtx(self.0.as_ptr()) };
    }
}

/// What the search of a dictionary's parts depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Training {
    /// Length of one part.
    pub segment: u32,
    /// Length of the strings that are counted; the library knows 6 and 8.
    pub counted: u32,
    /// Logarithm of the counters.
    pub counters_log: u32,
    /// 1 counts every string, 10 one in ten.
    pub acceleration: u32,
    /// The level whose entropy tables it begins with.
    pub level: i32,
}

/// A dictionary of at most `size` bytes from samples of `length` bytes each, end to end.
///
/// None when the library cannot make one of these samples. Leaves no state behind, but the library
/// keeps its settings in statics while it works: one call at a time.
#[must_use]
pub fn train(samples: &[u8], length: usize, size: usize, how: &Training) -> Option<Vec<u8>> {
    let count = samples.len().checked_div(length)?;
    let lengths = vec![length; count];
    let mut dictionary = vec![0; size];
    let parameters = zstd::ZDICT_fastCover_params_t {
        k: how.segment,
        d: how.counted,
        f: how.counters_log,
        steps: 0,
        nbThreads: 1,
        splitPoint: 1.0,
        accel: how.acceleration,
        shrinkDict: 0,
        shrinkDictMaxRegression: 0,
        zParams: zstd::ZDICT_params_t {
            compressionLevel: how.level,
            notificationLevel: 0,
            dictID: 0,
        },
    };
    // SAFETY: the lengths add up to no more than the samples have, there are `count` of them, and
    // the dictionary has room for `size` bytes; nothing is kept.
    let trained = unsafe {
        zstd::ZDICT_trainFromBuffer_fastCover(
            dictionary.as_mut_ptr().cast::<c_void>(),
            dictionary.len(),
            samples.as_ptr().cast(),
            lengths.as_ptr(),
            u32::try_from(count).ok()?,
            parameters,
        )
    };
    dictionary.truncate(succeeded(trained)?);
    Some(dictionary)
}

/// malloc and free, as everything else in the library uses.
const DEFAULT_MEMORY: zstd::ZSTD_customMem =
    zstd::ZSTD_customMem { customAlloc: None, customFree: None, opaque: ptr::null_mut() };

/// The library's answer as an option: its errors are numbers at the end of the range.
fn succeeded(code: usize) -> Option<usize> {
    // SAFETY: looks at a number only.
    (unsafe { zstd::ZSTD_isError(code) } == 0).then_some(code)
}
