//! Exchange is exact on any page and any layout, bytes are checked, and processes get alike.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const PAGE: u64 = PAGE_SIZE as u64;
const GIB: u64 = 1 << 30;

fn region(start: u64, length: u64, protection: &str, inode: u64, name: &str) -> Region {
    Region {
        range: start..start + length,
        protection: protection.to_owned(),
        inode,
        name: name.to_owned(),
        resident: 0,
        proportional: 0,
        anonymous: 0,
        flags: Vec::new(),
        protection_key: 0,
    }
}

/// A small process whose bases are off by `pages` from those of the one with 0.
fn process(pages: u64) -> Vec<Region> {
    let off = pages * PAGE;
    let anonymous = |start, length| region(start + off, length, "rw-p", 0, "");
    let file = |start, name| region(start + off, 0x4000, "rw-p", 7, name);
    vec![
        file(0x5500_0000_0000, "/usr/bin/python3"),
        region(0x5500_1000_0000 + 3 * off, 0x10_0000, "rw-p", 0, "[heap]"),
        anonymous(0x7f00_0000_0000, 0x10_0000),
        file(0x7f00_0010_0000, "/srv/a/lib/one.so"),
        anonymous(0x7f00_0010_4000, 0x2000),
        file(0x7f00_0010_6000, "/usr/lib/libc.so.6"),
        region(0x7ffd_0000_0000 + 5 * off, 0x2_1000, "rw-p", 0, "[stack]"),
    ]
}

fn page_of(words: &[u64]) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *at = word.to_le_bytes();
    }
    page
}

fn applied(layout: &Layout, words: &[u64]) -> Vec<u64> {
    let mut page = page_of(words);
    layout.apply(&mut page);
    let (all, _) = page.as_chunks::<8>();
    all.iter().map(|word| u64::from_le_bytes(*word)).take(words.len()).collect()
}

/// The same without a search.
fn exchanged(layout: &Layout, word: u64) -> u64 {
    for area in &layout.areas {
        if area.addresses().contains(&word) {
            return area.canonical + (word - area.start);
        }
        if area.canonical().contains(&word) {
            return area.start + (word - area.canonical);
        }
    }
    word
}

/// Both ends of every range from both sides, and the ends of everything.
fn border_words(layout: &Layout) -> Vec<u64> {
    let ends = layout.areas.iter().flat_map(|area| {
        let (here, there) = (area.addresses(), area.canonical());
        [here.start, here.end, there.start, there.end]
    });
    let ends = ends.chain([0, CANONICAL_START, CANONICAL_END, u64::MAX]);
    let around = ends.flat_map(|end| [-9, -8, -1, 0, 1, 8].map(|by| end.wrapping_add_signed(by)));
    around.collect()
}

/// Any areas that are sound: gaps and lengths in pages from tiny to huge, order shuffled.
fn any_layout() -> impl Strategy<Value = Layout> {
    let size = prop_oneof![0u64..3, 0u64..200, 0u64..1 << 16, 0u64..1 << 26];
    let steps = prop::collection::vec((size.clone(), size.clone(), size, any::<u32>()), 0..40);
    steps.prop_map(|steps| {
        let mut at = 0;
        let mut areas = Vec::new();
        for (gap, length, _, _) in &steps {
            let area = Area { start: at + gap * PAGE, length: (length + 1) * PAGE, canonical: 0 };
            at = area.start + area.length;
            areas.push(area);
        }
        let mut order: Vec<usize> = (0..steps.len()).collect();
        order.sort_by_key(|index| steps[*index].3);
        let mut at = CANONICAL_START;
        for index in order {
            areas[index].canonical = at + steps[index].2 * PAGE;
            at = areas[index].canonical + areas[index].length;
        }
        Layout::new(areas).expect("sound areas")
    })
}

fn any_word(layout: &Layout) -> BoxedStrategy<u64> {
    let borders = border_words(layout);
    let near = (prop::sample::select(borders), -70_000i64..70_000);
    prop_oneof![
        near.prop_map(|(word, by)| word.wrapping_add_signed(by)),
        any::<u64>(),
        0..CANONICAL_END,
        Just(u64::MAX),
    ]
    .boxed()
}

fn layout_and_words() -> impl Strategy<Value = (Layout, Vec<u64>)> {
    any_layout().prop_flat_map(|layout| {
        let words = prop::collection::vec(any_word(&layout), PAGE_SIZE / 8);
        (Just(layout), words)
    })
}

fn any_regions() -> impl Strategy<Value = Vec<Region>> {
    let names = ["", "", "", "[heap]", "[stack]", "[vdso]", "[anon: x]", "/a/b.so", "/a/c", "d"];
    let start = prop_oneof![
        0u64..1 << 36,
        (0x7f00_0000_0000u64 >> 12)..(0x7f00_8000_0000 >> 12),
        0u64..1 << 20,
        Just((CANONICAL_START >> 12) - 1),
    ];
    let length = prop_oneof![1u64..4, 1u64..1 << 10, 1u64..1 << 28];
    let one = (start, length, prop::sample::select(names.to_vec()), any::<bool>());
    prop::collection::vec(one, 0..60).prop_map(|all| {
        let made = all.into_iter().map(|(start, length, name, writable)| {
            let inode = u64::from(name.contains('/'));
            let protection = if writable { "rw-p" } else { "r--p" };
            region(start * PAGE, length * PAGE, protection, inode, name)
        });
        made.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn twice_is_not_at_all((layout, words) in layout_and_words()) {
        let once = applied(&layout, &words);
        let expected: Vec<u64> = words.iter().map(|word| exchanged(&layout, *word)).collect();
        prop_assert_eq!(&expected, &once);
        prop_assert_eq!(&words, &applied(&layout, &once));
    }

    #[test]
    fn no_two_words_become_one((layout, words) in layout_and_words()) {
        let before: HashSet<u64> = words.iter().copied().collect();
        let after: HashSet<u64> = applied(&layout, &words).into_iter().collect();
        prop_assert_eq!(before.len(), after.len());
    }

    #[test]
    fn any_regions_make_a_sound_layout(regions in any_regions()) {
        let layout = Layout::of(&regions);
        for words in border_words(&layout).chunks(PAGE_SIZE / 8) {
            prop_assert_eq!(words, &applied(&layout, &applied(&layout, words))[..]);
        }
        prop_assert_eq!(&layout, &Layout::from_bytes(&layout.to_bytes()).expect("own bytes"));
    }

    #[test]
    fn a_layout_survives_its_bytes(layout in any_layout()) {
        let bytes = layout.to_bytes();
        prop_assert_eq!(layout.encoded_bytes(), bytes.len());
        prop_assert_eq!(&layout, &Layout::from_bytes(&bytes).expect("own bytes"));
    }

    #[test]
    fn a_changed_byte_is_noticed(layout in any_layout(), at: prop::sample::Index, by in 1u8..) {
        let mut bytes = layout.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= by;
        prop_assert!(Layout::from_bytes(&bytes).is_err());
        prop_assert!(Layout::from_bytes(&bytes[..at]).is_err());
    }

    #[test]
    fn areas_that_were_never_checked_are_refused_or_exact(
        words in prop::collection::vec(0..CANONICAL_END >> 12, 3..30),
        wild: bool,
    ) {
        let unit = if wild { 0x1001 } else { PAGE };
        let area = |words: &[u64; 3]| {
            let [start, length, canonical] = words.map(|word| word * unit);
            Area { start: start / 2, length: length >> 20, canonical: canonical | CANONICAL_START }
        };
        let areas: Vec<Area> = words.as_chunks::<3>().0.iter().map(area).collect();
        if let Ok(layout) = Layout::new(areas) {
            let words = border_words(&layout);
            prop_assert_eq!(&words, &applied(&layout, &applied(&layout, &words)));
        }
    }
}

proptest! {
    #![proptest_config(crate::fuzz::cases(2_000))]

    #[test]
    fn arbitrary_bytes_are_no_layout(data in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Layout::from_bytes(&data).is_err());
    }

    #[test]
    fn what_has_a_right_checksum_is_still_refused_or_exact(
        count in 0u64..4,
        words in prop::collection::vec(any_area_word(), 0..10),
    ) {
        let mut bytes: Vec<u8> =
            [MAGIC, count].into_iter().chain(words).flat_map(u64::to_le_bytes).collect();
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        if let Ok(layout) = Layout::from_bytes(&bytes) {
            let words = border_words(&layout);
            prop_assert_eq!(&words, &applied(&layout, &applied(&layout, &words)));
            prop_assert_eq!(bytes, layout.to_bytes());
        }
    }
}

/// A start, a length or a canonical place, each now and then where it belongs.
fn any_area_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u64..64).prop_map(|pages| pages * PAGE),
        (0u64..64).prop_map(|pages| CANONICAL_START + pages * PAGE),
        (0u64..4).prop_map(|pages| CANONICAL_END - pages * PAGE),
    ]
}

#[test]
fn pages_that_differ_in_bases_only_become_equal() {
    // 4 pages are one pool, so that all distances keep.
    let (one, other) = (process(0), process(4));
    let into =
        |regions: &[Region]| -> Vec<u64> { regions.iter().map(|it| it.range.start + 24).collect() };
    let (mut here, mut there) = (into(&one), into(&other));
    here.extend([7, 0, u64::MAX]);
    there.extend([7, 0, u64::MAX]);
    assert_ne!(here, there);
    let here = applied(&Layout::of(&one), &here);
    assert_eq!(here, applied(&Layout::of(&other), &there));
    assert!(here[..7].iter().all(|word| *word >= CANONICAL_START));
}

#[test]
fn objects_keep_their_place_in_a_pool() {
    for pages in 0..4 {
        let regions = process(pages);
        let pool = regions[2].range.start.next_multiple_of(16 << 10);
        let canonical = applied(&Layout::of(&regions), &[pool])[0];
        assert_eq!(0, canonical % (16 << 10));
    }
}

#[test]
fn a_file_is_known_under_another_root() {
    let mut other = process(4);
    other[3].name = "/mnt/b/lib/one.so".to_owned();
    let word = |regions: &[Region]| applied(&Layout::of(regions), &[regions[3].range.start])[0];
    assert_eq!(word(&process(0)), word(&other));
}

#[test]
fn a_blocks_own_alignment_is_kept_where_the_program_drew_its_address() {
    let block = |at| {
        let mut regions = process(0);
        regions.push(region(at, 0xd000, "r--p", 0, ""));
        regions.push(region(at + (9 << 20), 256 << 10, "rw-p", 0, ""));
        applied(&Layout::of(&regions), &[at + 0x123])[0]
    };
    assert_eq!(block(0x29bb_5400_0000), block(0x0100_7584_0000));
    assert_eq!(0x123, block(0x29bb_5400_0000) % (256 << 10));
}

#[test]
fn huge_and_many_mappings_are_bounded() {
    let mut regions = process(0);
    // The shadow of an address sanitizer, a cage, and blocks all over.
    regions.push(region(0x1000_7fff_8000, 15 << 40, "rw-p", 0, ""));
    regions.push(region(0x6000_0000_0000, 1 << 40, "---p", 0, ""));
    let blocks = (0..20_000).map(|it| region(64 * GIB + it * GIB / 2, 0x3000, "rw-p", 0, ""));
    regions.extend(blocks);
    let layout = Layout::of(&regions);
    assert_eq!(2 * AREAS_MAX * size_of::<Area>(), layout.memory_bytes());
    assert!(!layout.is_identity());
    for word in [0x6000_0000_1234, regions[0].range.start, regions[3].range.start] {
        assert_ne!(word, applied(&layout, &[word])[0]);
    }
}

#[test]
fn a_checksum_does_not_excuse_overlapping_areas() {
    let area = Area { start: PAGE, length: PAGE, canonical: CANONICAL_START };
    let over =
        [Area { start: 2 * PAGE, ..area }, Area { canonical: area.canonical + PAGE, ..area }];
    for second in over {
        let mut bytes: Vec<u8> = [MAGIC, 2].into_iter().flat_map(u64::to_le_bytes).collect();
        for area in [area, second] {
            let words = [area.start, area.length, area.canonical];
            bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
        }
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        assert_eq!(Err(LayoutError::Areas), Layout::from_bytes(&bytes));
    }
}

#[test]
fn nothing_mapped_is_nothing_to_do() {
    let layout = Layout::of(&[]);
    assert!(layout.is_identity());
    assert_eq!(vec![1, u64::MAX, CANONICAL_START], {
        applied(&layout, &[1, u64::MAX, CANONICAL_START])
    });
    assert_eq!(Err(LayoutError::Format), Layout::from_bytes(b"AZLY"));
    assert_eq!(Err(LayoutError::Format), Layout::from_bytes(&[]));
}
