//! Round trips of every algorithm, and damaged bytes that must end in an error.

use std::cell::RefCell;

use proptest::prelude::*;

use super::encoder::MIN_SAVING;
use super::*;
use crate::address::Page;

fn algorithms() -> Vec<Algorithm> {
    let mut all = vec![Algorithm::Raw];
    all.extend([0, 1, 3, 9, 12].map(|level| Algorithm::Lz4 { level }));
    all.extend([-50, -1, 0, 1, 3, 7, 12, 19, 22].map(|level| Algorithm::Zstd { level }));
    all
}

fn encoder(algorithm: Algorithm) -> Encoder {
    Encoder::new(algorithm).expect("memory for a context")
}

/// Little entropy, as a heap has: small numbers, pointers, text, gaps.
pub(super) fn structured(seed: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut state = seed | 1;
    for (number, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        *word = match state >> 62 {
            0 => (0x7f3a_1c00_0000 + (state >> 50) * 16).to_le_bytes(),
            1 => (number as u64).to_le_bytes(),
            2 => *b"column_a",
            _ => [0; 8],
        };
    }
    page
}

pub(super) fn any_page() -> impl Strategy<Value = Page> {
    let random = prop::collection::vec(any::<u8>(), PAGE_SIZE)
        .prop_map(|bytes| <Page>::try_from(bytes).expect("one page of bytes"));
    // A random part that crosses the border where an encoding stops being worth it.
    let mixed = (random.clone(), 3600usize..=PAGE_SIZE).prop_map(|(mut page, from)| {
        page[from..].fill(0);
        page
    });
    let constant = any::<u64>().prop_map(|fill| {
        let mut page = [0; PAGE_SIZE];
        fill_page(fill, &mut page);
        page
    });
    prop_oneof![random, mixed, constant, any::<u64>().prop_map(structured)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_algorithm_gives_the_page_back(page in any_page()) {
        let mut decoder = Decoder::new();
        for algorithm in algorithms() {
            let mut encoder = encoder(algorithm);
            // Twice, because contexts are used again.
            for _ in 0..2 {
                let (mut stored, mut back) = ([0xa5; PAGE_SIZE], [0x5a; PAGE_SIZE]);
                let (codec, len) = encoder.encode(&page, &mut stored);
                if codec == CodecId::RAW {
                    prop_assert_eq!(len, PAGE_SIZE);
                } else {
                    prop_assert!(len <= PAGE_SIZE - MIN_SAVING);
                }
                prop_assert_eq!(decoder.decode(codec, &stored[..len], &mut back), Ok(()));
                prop_assert!(back == page, "{:?}", algorithm);
            }
        }
    }

    #[test]
    fn truncated_bytes_are_an_error(seed in any::<u64>(), cut in any::<prop::sample::Index>()) {
        let page = structured(seed);
        for algorithm in algorithms() {
            let (mut stored, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let (codec, len) = encoder(algorithm).encode(&page, &mut stored);
            let short = &stored[..cut.index(len)];
            prop_assert!(Decoder::new().decode(codec, short, &mut back).is_err());
        }
    }

    #[test]
    fn only_a_page_of_one_word_is_same_filled(
        fill in any::<u64>(),
        place in 0..PAGE_SIZE,
        other in 1u8..,
    ) {
        let mut page = [0; PAGE_SIZE];
        fill_page(fill, &mut page);
        prop_assert_eq!(same_filled(&page), Some(fill));
        let before = checksum(&page);
        page[place] ^= other;
        prop_assert_eq!(same_filled(&page), None);
        prop_assert_ne!(checksum(&page), before);
    }
}

proptest! {
    #![proptest_config(crate::fuzz::cases(20_000))]

    #[test]
    fn arbitrary_bytes_never_panic(
        codec in 0u8..16,
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        decode_damaged(CodecId(codec % 4), &data);
        decode_damaged(CodecId(codec), &data);
    }

    #[test]
    fn damaged_pages_never_panic(
        seed in any::<u64>(),
        zstd in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut stored = [0; PAGE_SIZE];
        let (codec, len) = encode_either(zstd, &structured(seed), &mut stored);
        for (place, byte) in damage {
            stored[place.index(len)] = byte;
        }
        decode_damaged(codec, &stored[..len]);
    }
}

thread_local! {
    /// One decoder for all cases: an error must not spoil it for the next page.
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new());
    static ENCODERS: RefCell<[Option<Encoder>; 2]> = const { RefCell::new([None, None]) };
}

/// Encodes with one of two encoders that last as long as the thread.
fn encode_either(zstd: bool, page: &Page, stored: &mut Page) -> (CodecId, usize) {
    let algorithm = [Algorithm::Lz4 { level: 0 }, Algorithm::Zstd { level: 1 }][usize::from(zstd)];
    ENCODERS.with_borrow_mut(|encoders| {
        let encoder = encoders[usize::from(zstd)].get_or_insert_with(|| encoder(algorithm));
        encoder.encode(page, stored)
    })
}

/// Decodes bytes that may be anything, then a good page with the same decoder.
fn decode_damaged(codec: CodecId, data: &[u8]) {
    let mut out = [0; PAGE_SIZE];
    DECODER.with_borrow_mut(|decoder| {
        // A page or an error; coming back from the call is what is tested.
        let _ = decoder.decode(codec, data, &mut out);
        let (mut stored, page) = ([0; PAGE_SIZE], structured(data.len() as u64));
        let (codec, len) = encode_either(true, &page, &mut stored);
        decoder.decode(codec, &stored[..len], &mut out).expect("good bytes");
        assert!(out == page);
    });
}

#[test]
fn small_pages_carry_little_overhead() {
    let mut page = [0; PAGE_SIZE];
    page[0] = 1;
    let mut out = [0; PAGE_SIZE];
    let (codec, len) = encoder(Algorithm::Zstd { level: 3 }).encode(&page, &mut out);
    assert_eq!(codec, CodecId::ZSTD);
    assert!(len <= 16, "{len} bytes for a page with one bit set");
    assert_ne!(out[..4], ZSTD_MAGIC);
}

#[test]
fn names_and_levels_are_checked() {
    for algorithm in algorithms() {
        assert_eq!(Algorithm::parse(algorithm.name(), algorithm.level()), Ok(algorithm));
    }
    for (name, level) in [("lz4", -1), ("lz4", 13), ("zstd", 23), ("raw", 1), ("LZ4", 0)] {
        let error = Algorithm::parse(name, level).expect_err("must be refused");
        assert!(error.contains("use "), "{error}");
    }
}

#[test]
fn wrong_lengths_and_codecs_are_named() {
    let (mut decoder, mut out) = (Decoder::new(), [0; PAGE_SIZE]);
    let mut decode = |codec, data: &[u8]| decoder.decode(codec, data, &mut out);
    assert_eq!(decode(CodecId::RAW, &[0; 5]), Err(DecodeError::WrongLength(5)));
    assert_eq!(decode(CodecId::RAW, &[0; 4097]), Err(DecodeError::TooLong(4097)));
    assert_eq!(decode(CodecId(9), &[0; 5]), Err(DecodeError::UnknownCodec(9)));
    assert_eq!(decode(CodecId::LZ4, &[]), Err(DecodeError::Malformed(1)));
    assert_eq!(decode(CodecId::ZSTD, &[]), Err(DecodeError::Malformed(2)));
    // Well-formed, but three bytes only.
    assert_eq!(decode(CodecId::LZ4, &[0x30, 1, 2, 3]), Err(DecodeError::WrongLength(3)));
}

#[test]
fn random_bytes_look_incompressible_and_heaps_do_not() {
    let mut random = [0; PAGE_SIZE];
    let mut state = 1_u64;
    for word in random.as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        *word = (state ^ state >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd).to_le_bytes();
    }
    assert!(looks_incompressible(&random));
    let mut out = [0; PAGE_SIZE];
    let mut encoder = encoder(Algorithm::Zstd { level: 19 });
    assert_eq!((CodecId::RAW, PAGE_SIZE), encoder.encode(&random, &mut out));
    // Text of 64 symbols is not: it has 6 bits in 8.
    let base64 = random.map(|byte| b'0' + byte % 64);
    assert!(!looks_incompressible(&base64));
    assert!(!looks_incompressible(&structured(1)));
    assert!(!looks_incompressible(&[7; PAGE_SIZE]));
}
