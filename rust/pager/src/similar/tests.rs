//! What is found, what is not, and how much memory that takes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Random-looking bytes; the same seed gives the same page.
fn noise(seed: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    for word in page.as_chunks_mut::<WORD_BYTES>().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        *word = (state ^ (state >> 33)).to_le_bytes();
    }
    page
}

fn filled(pages: &[Page]) -> Index {
    let mut index = Index::new();
    for (number, page) in (0..).zip(pages) {
        index.insert(number, &Sketch::of(page));
    }
    index
}

/// `page` with a share of its 64-byte runs taken from `leader`, each moved to another place.
fn borrowed(page: &Page, leader: &Page, share: usize, shift: usize) -> Page {
    let mut mixed = *page;
    let runs = leader.as_chunks::<64>().0;
    for (place, run) in mixed.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        if place * 7 % 10 < share {
            *run = runs[(place + shift) % runs.len()];
        }
    }
    mixed
}

#[test]
fn a_page_of_one_word_has_no_shingles() {
    for byte in [0, 1, 0xff] {
        let sketch = Sketch::of(&[byte; PAGE_SIZE]);
        assert!(sketch.shingles().is_empty());
        let mut index = Index::new();
        index.insert(3, &sketch);
        assert_eq!(index.find(&sketch, 4), Vec::<u32>::new());
    }
}

#[test]
fn an_empty_index_finds_nothing_and_an_emptied_one_neither() {
    let page = noise(1);
    let mut index = filled(&[page]);
    let empty = Index::new();
    assert_eq!(empty.find(&Sketch::of(&page), 4), Vec::<u32>::new());
    assert_eq!(find_in(&[], &Sketch::of(&page), 4), Vec::new());
    assert_eq!(index.find(&Sketch::of(&page), 0), Vec::<u32>::new());
    assert!(index.memory_bytes() > empty.memory_bytes());
    index.clear();
    assert_eq!(index.find(&Sketch::of(&page), 4), Vec::<u32>::new());
    assert_eq!(index.memory_bytes(), empty.memory_bytes());
    assert!(index.is_empty());
}

#[test]
fn content_is_found_at_another_place_in_the_page() {
    let leader = noise(1);
    let mut moved = leader;
    moved.rotate_left(1032);
    assert_eq!(filled(&[noise(7), leader]).find(&Sketch::of(&moved), 4), vec![1]);
}

#[test]
fn the_leader_that_explains_most_comes_last() {
    let (first, second) = (noise(1), noise(2));
    let mut page = first;
    page[2304..].copy_from_slice(&second[2304..]);
    let index = filled(&[second, first]);
    assert_eq!(index.find(&Sketch::of(&page), 4), vec![0, 1]);
    assert_eq!(index.find(&Sketch::of(&page), 1), vec![1]);
}

#[test]
fn a_leader_that_adds_nothing_is_left_out() {
    let page = noise(1);
    assert_eq!(filled(&[page, page, page]).find(&Sketch::of(&page), 4), vec![2]);
}

#[test]
fn several_indexes_answer_together_and_the_first_wins_a_tie() {
    let (own, peer) = (noise(1), noise(2));
    let mut page = own;
    page[..1024].copy_from_slice(&peer[..1024]);
    let (mine, theirs) = (filled(&[own]), filled(&[own, peer]));
    let expected = vec![Similar { index: 1, leader: 1 }, Similar { index: 0, leader: 0 }];
    assert_eq!(find_in(&[&mine, &theirs], &Sketch::of(&page), 4), expected);
}

#[test]
fn a_little_in_common_is_not_worth_a_try() {
    let (leader, mut page) = (noise(1), noise(2));
    page[..256].copy_from_slice(&leader[..256]);
    assert_eq!(filled(&[leader]).find(&Sketch::of(&page), 4), Vec::<u32>::new());
}

#[test]
fn content_made_to_collide_stays_in_one_bucket() {
    let pair = |tag: u32| Sketch { tags: std::array::from_fn(|i| tag + i as u32), len: 2 };
    let mut index = Index::new();
    (0..10_000).for_each(|leader| index.insert(leader, &pair(1)));
    assert_eq!(index.find(&pair(1), 4), vec![9_999]);
    assert_eq!(index.postings(), 2 * POSTINGS_MAX);
    for tag in (3..50_000).step_by(2) {
        index.insert(tag, &pair(tag));
        assert_eq!(index.find(&pair(tag), 4), vec![tag]);
    }
    let room = BUCKET_SLOTS * index.segments[0].buckets.len();
    assert!(index.postings() <= room && room <= 2 * BUCKET_SLOTS, "room: {room}");
}

/// The sketch of a page that shares nothing with any other.
fn unlike(number: u32) -> Sketch {
    let position = |i: usize| u64::from(number) * SKETCH_SHINGLES_MAX as u64 + i as u64 + 1;
    let tag = |i| (mix(mix(position(i))) as u32).max(FREE + 1);
    Sketch { tags: std::array::from_fn(tag), len: SKETCH_SHINGLES_MAX }
}

/// All tags are distinct here: the most that an index can have to hold.
#[test]
fn a_hundred_thousand_leaders_stay_within_256_bytes_each() {
    const LEADERS: u32 = 100_000;
    let mut index = Index::new();
    let floor = index.memory_bytes() + SEGMENTS * size_of::<Bucket>();
    for number in 0..LEADERS {
        index.insert(number, &unlike(number));
        if number % 100 == 0 {
            let room = floor + 256 * index.len();
            assert!(index.memory_bytes() <= room, "at {number}: {}", index.memory_bytes());
        }
    }
    assert!(index.memory_bytes() <= 256 * LEADERS as usize);
    let kept = index.postings() as f64 / (LEADERS as usize * SKETCH_SHINGLES_MAX) as f64;
    assert!(kept > 0.95, "postings kept: {kept}");
    for number in (0..LEADERS).step_by(37) {
        assert_eq!(index.find(&unlike(number), 1), vec![number]);
    }
}

/// A page built from few distinct words, as heaps are.
fn heap_page() -> impl Strategy<Value = Page> {
    any::<u64>().prop_map(|seed| {
        let mut page = noise(seed);
        for word in page.as_chunks_mut::<WORD_BYTES>().0 {
            let pick = u64::from_le_bytes(*word) % 400;
            *word = if pick < 100 { 0 } else { pick << 4 }.to_le_bytes();
        }
        page
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_page_finds_itself_last(pages in prop::collection::vec(heap_page(), 1..12), at: usize) {
        let at = at % pages.len();
        let found = filled(&pages).find(&Sketch::of(&pages[at]), 4);
        prop_assert_eq!(found.last().map(|leader| pages[*leader as usize]), Some(pages[at]));
    }

    #[test]
    fn a_page_with_most_runs_from_a_leader_finds_it(seed: u32, shift in 0..64_usize) {
        let pages: Vec<Page> = (0..20).map(|n| noise(u64::from(seed) + n)).collect();
        let page = borrowed(&noise(!0), &pages[11], 7, shift);
        prop_assert_eq!(filled(&pages).find(&Sketch::of(&page), 4), vec![11]);
    }

    #[test]
    fn what_is_found_was_inserted_and_is_named_once(
        pages in prop::collection::vec(heap_page(), 1..24), k in 0..9_usize,
    ) {
        let (known, asked) = pages.split_at(pages.len() / 2);
        let (one, two) = (filled(known), filled(asked));
        for page in &pages {
            let found = find_in(&[&one, &two], &Sketch::of(page), k);
            prop_assert!(found.len() <= k);
            let sizes = [known.len(), asked.len()];
            prop_assert!(found.iter().all(|s| (s.leader as usize) < sizes[s.index]));
            let distinct: BTreeSet<_> = found.iter().map(|s| (s.index, s.leader)).collect();
            prop_assert_eq!(distinct.len(), found.len());
            prop_assert_eq!(found, find_in(&[&one, &two], &Sketch::of(page), k));
        }
    }

    #[test]
    fn a_sketch_is_bounded_and_has_no_shingle_twice(page in heap_page()) {
        let sketch = Sketch::of(&page);
        let distinct: BTreeSet<_> = sketch.shingles().iter().collect();
        prop_assert_eq!(distinct.len(), sketch.shingles().len());
        prop_assert!(!distinct.contains(&FREE));
        prop_assert_eq!(sketch, Sketch::of(&page));
    }
}
