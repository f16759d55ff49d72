//! Dictionaries and deltas: round trips at every effort, and wrong or damaged input of every kind,
//! which must end in an error or some page.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use proptest::sample::Index;

use super::encoder::MIN_SAVING;
use super::tests::{any_page, structured};
use super::*;
use crate::address::Page;
use crate::sys::sealed::SealedBytes;
use crate::sys::zstd_dictionary::entropy_length;

const PRESETS: [Preset; 5] =
    [Preset::Warm, Preset::Cold, Preset::Frozen, Preset::Level(-5), Preset::Level(12)];

/// Pages of one kind of heap: the same words in another order, and some of their own.
fn sampled(count: u64) -> Vec<u8> {
    (0..count).flat_map(|number| structured(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

/// A trained one, some bytes without entropy tables, nothing.
static DICTIONARIES: LazyLock<[DictionaryBytes; 3]> = LazyLock::new(|| {
    let trained = train(&sampled(200), 32 << 10).expect("a dictionary");
    [Arc::new(trained), Arc::new(sampled(3)), Arc::new([0_u8; 0])]
});

struct Kit {
    encoder: Encoder,
    decoder: Decoder,
    encoding: Vec<Vec<EncodingDictionary>>,
    decoding: Vec<DecodingDictionary>,
}

thread_local! {
    /// One of each for all cases: neither an error nor another dictionary may spoil it.
    static KIT: RefCell<Kit> = RefCell::new(Kit {
        encoder: Encoder::new(Algorithm::Raw).expect("an encoder"),
        decoder: Decoder::new(),
        encoding: DICTIONARIES.iter().map(|bytes| {
            let make = |preset| EncodingDictionary::new(bytes.clone(), preset).expect("tables");
            PRESETS.map(make).into()
        }).collect(),
        decoding: DICTIONARIES.iter().map(|bytes| {
            DecodingDictionary::new(bytes.clone()).expect("tables")
        }).collect(),
    });
}

impl Kit {
    /// Encodes a good page both ways and decodes it: what came before has done no harm.
    fn still_works(&mut self) {
        let (page, prefix) = (structured(5), structured(6));
        let (mut stored, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let len = self.encoder.encode_dictionary(&self.encoding[0][0], &page, &mut stored);
        let stored_page = &stored[..len.expect("a page that shrinks")];
        assert_eq!(
            Ok(()),
            self.decoder.decode_dictionary(&self.decoding[0], stored_page, &mut back)
        );
        assert!(page == back);
        let len = self.encoder.encode_delta(&prefix, Preset::Warm, &page, &mut stored);
        let stored_page = &stored[..len.expect("a page that shrinks")];
        assert_eq!(Ok(()), self.decoder.decode_delta(&prefix, stored_page, &mut back));
        assert!(page == back);
    }
}

/// Another version of a page: some words written, and a part moved by some bytes.
fn edited(page: &Page, edits: &[(Index, u64)], moved: usize) -> Page {
    let mut result = *page;
    for (place, word) in edits {
        result.as_chunks_mut::<8>().0[place.index(512)] = word.to_le_bytes();
    }
    result[1024..3072].rotate_right(moved);
    result
}

fn any_prefix() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any_page(), 1..=DELTA_PAGES_MAX).prop_map(|pages| pages.concat())
}

fn any_edits() -> impl Strategy<Value = Vec<(Index, u64)>> {
    prop::collection::vec((any::<Index>(), any::<u64>()), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_dictionary_and_preset_gives_the_page_back(page in any_page()) {
        KIT.with_borrow_mut(|Kit { encoder, decoder, encoding, decoding }| {
            for (made, decoding) in encoding.iter().zip(decoding.iter()) {
                for dictionary in made {
                    let (mut stored, mut back) = ([0xa5; PAGE_SIZE], [0x5a; PAGE_SIZE]);
                    let len = encoder.encode_dictionary(dictionary, &page, &mut stored);
                    let Some(len) = len else { continue };
                    prop_assert!(len <= PAGE_SIZE - MIN_SAVING);
                    let result = decoder.decode_dictionary(decoding, &stored[..len], &mut back);
                    prop_assert_eq!(Ok(()), result);
                    prop_assert!(page == back, "{:?}", dictionary.preset());
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_prefix_and_preset_gives_the_page_back(
        prefix in any_prefix(),
        other in any_page(),
        edits in any_edits(),
        moved in 0usize..2048,
    ) {
        let last = <&Page>::try_from(&prefix[prefix.len() - PAGE_SIZE..]).expect("a page");
        KIT.with_borrow_mut(|Kit { encoder, decoder, .. }| {
            for page in [edited(last, &edits, moved), other] {
                for preset in PRESETS {
                    let (mut stored, mut back) = ([0xa5; PAGE_SIZE], [0x5a; PAGE_SIZE]);
                    let len = encoder.encode_delta(&prefix, preset, &page, &mut stored);
                    let Some(len) = len else { continue };
                    let result = decoder.decode_delta(&prefix, &stored[..len], &mut back);
                    prop_assert_eq!(Ok(()), result);
                    prop_assert!(page == back, "{:?}", preset);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_page_that_is_in_the_prefix_is_almost_nothing(
        prefix in prop::collection::vec(any::<u8>(), DELTA_PAGES_MAX * PAGE_SIZE),
        which in 0usize..4,
    ) {
        let pages = prefix.as_chunks::<PAGE_SIZE>().0;
        // A copy: what lies inside the prefix is not looked for there.
        let page = &pages[which].clone();
        KIT.with_borrow_mut(|kit| {
            let mut stored = [0; PAGE_SIZE];
            let len = kit.encoder.encode_delta(&prefix, Preset::Cold, page, &mut stored);
            prop_assert!(len.is_some_and(|len| len <= 32), "{:?}", len);
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(crate::fuzz::cases(2_000))]

    #[test]
    fn arbitrary_bytes_and_prefixes_never_panic(
        which in 0usize..3,
        data in prop::collection::vec(any::<u8>(), 0..200),
        prefix in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        KIT.with_borrow_mut(|kit| {
            // A page or an error; coming back from the call is what is tested.
            let mut out = [0; PAGE_SIZE];
            let _ = kit.decoder.decode_dictionary(&kit.decoding[which], &data, &mut out);
            let mut pages = vec![0; PAGE_SIZE];
            pages[..prefix.len()].copy_from_slice(&prefix);
            let _ = kit.decoder.decode_delta(&pages, &data, &mut out);
            let refused = Err(DecodeError::WrongPrefix(prefix.len()));
            prop_assert_eq!(refused, kit.decoder.decode_delta(&prefix, &data, &mut out));
            kit.still_works();
            Ok(())
        })?;
    }

    #[test]
    fn damaged_pages_never_panic(
        seed in any::<u64>(),
        way in (0usize..3, 0usize..5),
        cut in any::<Index>(),
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 0..8),
    ) {
        KIT.with_borrow_mut(|kit| {
            let (mut stored, mut out) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let (page, prefix) = (structured(seed), structured(seed ^ 1));
            let dictionary = &kit.encoding[way.0][way.1];
            let len = kit.encoder.encode_dictionary(dictionary, &page, &mut stored);
            let len = len.expect("a page that shrinks");
            for (place, byte) in &damage {
                stored[place.index(len)] = *byte;
            }
            for decoding in &kit.decoding {
                for data in [&stored[..len], &stored[..cut.index(len)]] {
                    let _ = kit.decoder.decode_dictionary(decoding, data, &mut out);
                }
            }
            let len = kit.encoder.encode_delta(&prefix, PRESETS[way.1], &page, &mut stored);
            let len = len.expect("a page that shrinks");
            for (place, byte) in &damage {
                stored[place.index(len)] = *byte;
            }
            for prefix in [prefix.to_vec(), sampled(4), vec![0; 2 * PAGE_SIZE]] {
                let _ = kit.decoder.decode_delta(&prefix, &stored[..len], &mut out);
                let _ = kit.decoder.decode_delta(&prefix, &stored[..cut.index(len)], &mut out);
            }
            kit.still_works();
        });
    }

    #[test]
    fn damaged_dictionaries_never_panic(
        damage in prop::collection::vec((0usize..200, any::<u8>()), 1..6),
        cut in any::<Index>(),
        seed in any::<u64>(),
    ) {
        let mut bytes = (*DICTIONARIES[0]).as_ref().to_vec();
        for (place, byte) in damage {
            bytes[place] = byte;
        }
        bytes.truncate(cut.index(bytes.len()));
        let bytes: DictionaryBytes = Arc::new(bytes);
        let encoding = EncodingDictionary::new(bytes.clone(), Preset::Warm);
        let (Ok(encoding), Ok(decoding)) = (encoding, DecodingDictionary::new(bytes)) else {
            return Ok(());
        };
        // Both sides took it: then it is a dictionary like any other.
        KIT.with_borrow_mut(|Kit { encoder, decoder, .. }| {
            let (mut stored, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let page = structured(seed);
            let len = encoder.encode_dictionary(&encoding, &page, &mut stored);
            let stored = &stored[..len.expect("a page that shrinks")];
            prop_assert_eq!(Ok(()), decoder.decode_dictionary(&decoding, stored, &mut back));
            prop_assert!(page == back);
            Ok(())
        })?;
    }
}

#[test]
fn a_dictionary_can_be_dropped_as_soon_as_its_call_is_over() {
    let (mut encoder, mut decoder) = (Encoder::new(Algorithm::Raw).expect("one"), Decoder::new());
    for round in 0..20 {
        let bytes = SealedBytes::create("agentzip-test", &sampled(8)).expect("a memfd");
        let bytes: DictionaryBytes = Arc::new(bytes);
        let preset = PRESETS[round % PRESETS.len()];
        let encoding = EncodingDictionary::new(bytes.clone(), preset).expect("tables");
        let (page, mut stored, mut back) = (structured(3), [0; PAGE_SIZE], [0; PAGE_SIZE]);
        let len = encoder.encode_dictionary(&encoding, &page, &mut stored).expect("shrinks");
        drop(encoding);
        let decoding = DecodingDictionary::new(bytes).expect("tables");
        assert_eq!(Ok(()), decoder.decode_dictionary(&decoding, &stored[..len], &mut back));
        drop(decoding);
        assert!(page == back);
    }
}

#[test]
fn tables_do_not_copy_the_dictionary() {
    let bytes: DictionaryBytes = Arc::new(sampled(256));
    let decoding = DecodingDictionary::new(bytes.clone()).expect("tables");
    assert!(decoding.memory_bytes() < 64 << 10, "{}", decoding.memory_bytes());
    let encoding = EncodingDictionary::new(bytes.clone(), Preset::Warm).expect("tables");
    assert!(encoding.memory_bytes() < 800 << 10, "{}", encoding.memory_bytes());
    assert_eq!(3, Arc::strong_count(&bytes));
    drop((encoding, decoding));
    assert_eq!(1, Arc::strong_count(&bytes));
}

#[test]
fn a_fast_preset_leaves_the_entropy_tables_out() {
    let bytes = &DICTIONARIES[0];
    let header = entropy_length((**bytes).as_ref()).expect("a trained dictionary");
    let contents: DictionaryBytes = Arc::new((**bytes).as_ref()[header..].to_vec());
    let (whole, bare) = ([Preset::Warm, Preset::Cold], &mut [[0; PAGE_SIZE]; 2]);
    for preset in whole {
        let [with, without] = [bytes.clone(), contents.clone()].map(|bytes| {
            let dictionary = EncodingDictionary::new(bytes, preset).expect("tables");
            let mut encoder = Encoder::new(Algorithm::Raw).expect("an encoder");
            encoder.encode_dictionary(&dictionary, &structured(77), &mut bare[0])
        });
        assert_eq!(preset == Preset::Warm, with == without, "{with:?} {without:?}");
    }
}

#[test]
fn a_trained_dictionary_pays_and_a_foreign_one_does_not() {
    let held_out: Vec<Page> = (1000..1100).map(|seed| structured(seed * 77)).collect();
    let own = gain(DICTIONARIES[0].clone(), &held_out, Preset::Cold).expect("measured");
    let foreign: DictionaryBytes = Arc::new([0xee_u8; 4096]);
    let foreign = gain(foreign, &held_out, Preset::Cold).expect("measured");
    assert!(own > foreign, "{own} {foreign}");
    assert!(own > 1.0 && foreign < 1.02, "{own} {foreign}");
    let nothing = gain(DICTIONARIES[0].clone(), &[], Preset::Warm).expect("measured");
    assert!((nothing - 1.0).abs() < f64::EPSILON);
}

#[test]
fn samples_that_make_no_dictionary_are_named() {
    let pages = sampled(16);
    assert_eq!(Err(TrainError::NotPages(100)), train(&pages[..100], 32 << 10));
    assert_eq!(Err(TrainError::Size(100)), train(&pages, 100));
    assert_eq!(Err(TrainError::Size(3 << 20)), train(&pages, 3 << 20));
    let too_few = TrainError::TooFew { pages: 16, size: 128 << 10 };
    assert_eq!(Err(too_few), train(&pages, 128 << 10));
    // One byte over and over has nothing that a dictionary could hold.
    let dull = train(&vec![0; 64 * PAGE_SIZE], 32 << 10);
    assert!(dull.as_ref().is_ok_and(|bytes| bytes.len() <= 32 << 10) || dull.is_err());
    assert!(train(&[], 32 << 10).is_err());
}

#[test]
fn prefixes_that_no_decoder_takes_are_refused() {
    KIT.with_borrow_mut(|Kit { encoder, decoder, .. }| {
        let (page, mut stored) = (structured(1), [0; PAGE_SIZE]);
        let mut like_a_dictionary = structured(2);
        like_a_dictionary[..4].copy_from_slice(&0xec30_a437_u32.to_le_bytes());
        for prefix in [&[] as &[u8], &page[1..], &sampled(5), &like_a_dictionary] {
            assert_eq!(None, encoder.encode_delta(prefix, Preset::Cold, &page, &mut stored));
            let refused = Err(DecodeError::WrongPrefix(prefix.len()));
            assert_eq!(refused, decoder.decode_delta(prefix, &[1, 2, 3], &mut stored));
        }
        let too_long = Err(DecodeError::TooLong(PAGE_SIZE + 1));
        assert_eq!(too_long, decoder.decode_delta(&page, &[0; PAGE_SIZE + 1], &mut stored));
        // Room that the result does not fit into is no error either.
        assert_eq!(None, encoder.encode_delta(&[0; PAGE_SIZE], Preset::Warm, &page, &mut [0; 8]));
    });
}
