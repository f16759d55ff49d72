//! The table against a plain ordered map, and the states a kill can leave behind.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::codec::CodecId;
use crate::page_table::entry::{PLACE_BITS, PLACE_UNIT};
use crate::sys::mapping::SharedMapping;

const LAST: u64 = PAGES_END - 1;
/// Pages below a node of the first, third and sixth level.
const NODE_PAGES: u64 = LEAF_PAGES << SLOT_BITS;
const MIDDLE_PAGES: u64 = NODE_PAGES << (2 * SLOT_BITS);
const UPPER_PAGES: u64 = MIDDLE_PAGES << (3 * SLOT_BITS);
/// Room for every node and leaf that the pages below can ask for.
const ROOM: usize = 1024;

fn memory(units: usize) -> Vec<AtomicU64> {
    (0..HEADER_WORDS + units * UNIT_WORDS).map(|_| AtomicU64::new(0)).collect()
}

fn open(words: &[AtomicU64]) -> PageTable<&[AtomicU64]> {
    PageTable::open(words).expect("valid memory")
}

fn stored(offset: u64) -> Stored {
    Stored { codec: CodecId(2), len: 900, offset, checksum: offset.wrapping_mul(0x9e37_79b9) }
}

fn range(from: u64, count: u64) -> Range<PageNumber> {
    PageNumber(from)..PageNumber(from + count)
}

fn everything() -> Range<PageNumber> {
    PageNumber(0)..PageNumber(PAGES_END)
}

/// Units of a table of these pages in which nothing is superfluous.
fn units_for<'a>(pages: impl IntoIterator<Item = &'a u64>) -> u64 {
    let start = |page: &u64| PageNumber(*page).start().0;
    let ranges: Vec<_> =
        pages.into_iter().map(|page| start(page)..start(page) + PAGE_SIZE as u64).collect();
    (bytes_for(&ranges) - HEADER_WORDS as u64 * WORD_BYTES) / UNIT_BYTES
}

fn units_in_use(table: &PageTable<&[AtomicU64]>) -> u64 {
    table.bump().load(Ordering::Relaxed) - table.free.lock().count()
}

fn content(table: &PageTable<&[AtomicU64]>) -> BTreeMap<u64, Entry> {
    let mut found = BTreeMap::new();
    table.for_each(everything(), |page, entry| {
        assert!(found.insert(page.0, entry).is_none(), "{page} visited twice");
    });
    found
}

fn count(model: &BTreeMap<u64, Entry>) -> Counts {
    let mut counts = Counts::default();
    for entry in model.values() {
        match entry {
            Entry::Absent => {}
            Entry::Staged { .. } => counts.staged += 1,
            Entry::Pooled(_) => counts.pooled += 1,
            Entry::Kept(_) => counts.kept += 1,
            Entry::Same { .. } => counts.same += 1,
            Entry::Lost => counts.lost += 1,
        }
        if let Entry::Pooled(stored) | Entry::Kept(stored) = entry {
            counts.encoded_bytes += u64::from(stored.len);
        }
    }
    counts
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, Entry),
    Clear(u64, u64),
    Move {
        from: u64,
        to: u64,
        count: u64,
        killed: bool,
    },
    Collect(u64, u64, usize),
    Reclaim,
    /// Killed after so many units.
    HalfReclaim(usize),
    Rebuild,
    Reopen,
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let any_stored = (0u8..16, 0u16..=4096, 0u64..=PLACE_BITS, any::<u64>()).prop_map(
        |(codec, len, place, checksum)| Stored {
            codec: CodecId(codec),
            len,
            offset: place * PLACE_UNIT,
            checksum,
        },
    );
    prop_oneof![
        2 => Just(Entry::Absent),
        3 => (0..=PLACE_BITS).prop_map(|slot| Entry::Staged { slot }),
        3 => any_stored.clone().prop_map(Entry::Pooled),
        3 => any_stored.prop_map(Entry::Kept),
        3 => any::<u64>().prop_map(|fill| Entry::Same { fill }),
        1 => Just(Entry::Lost),
    ]
}

/// Pages near the borders of leaves, of nodes and of the address space.
fn any_page() -> impl Strategy<Value = u64> {
    let borders = [
        0,
        LEAF_PAGES,
        NODE_PAGES - LEAF_PAGES,
        NODE_PAGES,
        5 * NODE_PAGES,
        MIDDLE_PAGES,
        UPPER_PAGES - NODE_PAGES,
        UPPER_PAGES,
        LAST - 40,
    ];
    (proptest::sample::select(borders.to_vec()), 0u64..40)
        .prop_map(|(border, near)| (border + near).saturating_sub(20).min(LAST))
}

fn any_step() -> impl Strategy<Value = Step> {
    let moves = (any_page(), any_page(), 1u64..700, any::<bool>())
        .prop_map(|(from, to, count, killed)| Step::Move { from, to, count, killed });
    prop_oneof![
        12 => (any_page(), any_entry()).prop_map(|(page, entry)| Step::Set(page, entry)),
        3 => (any_page(), 0u64..700).prop_map(|(page, count)| Step::Clear(page, count)),
        4 => moves,
        2 => (any_page(), 0u64..MIDDLE_PAGES, 1usize..8)
            .prop_map(|(page, count, max)| Step::Collect(page, count, max)),
        2 => Just(Step::Reclaim),
        2 => (1usize..12).prop_map(Step::HalfReclaim),
        1 => Just(Step::Rebuild),
        1 => Just(Step::Reopen),
    ]
}

type Model = BTreeMap<u64, Entry>;

fn set_model(model: &mut Model, page: u64, entry: Entry) {
    if entry == Entry::Absent {
        model.remove(&page);
    } else {
        model.insert(page, entry);
    }
}

fn move_both<'a>(
    words: &'a [AtomicU64],
    mut table: PageTable<&'a [AtomicU64]>,
    model: &mut Model,
    (from, to, count, killed): (u64, u64, u64, bool),
) -> PageTable<&'a [AtomicU64]> {
    let (source, target) = (PageNumber(from), PageNumber(to));
    let mut dropped = Vec::new();
    if killed && from.abs_diff(to) >= count && from.max(to) + count <= PAGES_END {
        // A kill between the two stores of one page: it is in both places.
        let first = model.range(from..from + count).next().map(|(page, entry)| (*page, *entry));
        if let Some((page, entry)) = first {
            table.set(PageNumber(to + page - from), Entry::Absent).expect("room");
            table.set(PageNumber(to + page - from), entry).expect("room");
            set_model(model, to + page - from, entry);
        }
        table = open(words);
    }
    let result =
        table.move_range(source, target, count, |page, entry| dropped.push((page.0, entry)));
    if from.max(to) + count > PAGES_END {
        assert!(matches!(result, Err(Error::NoSuchPage(_))));
        return table;
    }
    if from.abs_diff(to) < count {
        assert_eq!(result, Err(Error::Overlap(source, target)));
        return table;
    }
    result.expect("enough room");
    let mut expected = Vec::new();
    for step in 0..count {
        if let Some(entry) = model.remove(&(from + step)) {
            expected.extend(model.insert(to + step, entry).map(|old| (to + step, old)));
        }
    }
    assert_eq!(dropped, expected);
    table
}

fn clear_both(table: &PageTable<&[AtomicU64]>, model: &mut Model, from: u64, count: u64) {
    let mut dropped = Vec::new();
    table.clear_range(range(from, count), |page, entry| dropped.push((page.0, entry)));
    let expected: Vec<_> = model.range(from..from + count).map(|(p, e)| (*p, *e)).collect();
    assert_eq!(dropped, expected);
    model.retain(|page, _| !(from..from + count).contains(page));
}

fn collect_both(table: &PageTable<&[AtomicU64]>, model: &Model, from: u64, count: u64, max: usize) {
    let mut all = Vec::new();
    let mut next = Some(PageNumber(from));
    while let Some(start) = next {
        let before = all.len();
        next = table.collect_range(start..PageNumber(from + count), max, &mut all);
        assert!(all.len() - before <= max);
    }
    let all: Vec<_> = all.iter().map(|(page, entry)| (page.0, *entry)).collect();
    let expected: Vec<_> = model.range(from..from + count).map(|(p, e)| (*p, *e)).collect();
    assert_eq!(all, expected);
}

fn run_steps(steps: &[Step]) {
    let words = memory(ROOM);
    let mut table = open(&words);
    let mut model = Model::new();
    for step in steps {
        match *step {
            Step::Set(page, entry) => {
                table.set(PageNumber(page), entry).expect("enough room");
                set_model(&mut model, page, entry);
                assert_eq!(table.get(PageNumber(page)), entry);
            }
            Step::Clear(from, count) => clear_both(&table, &mut model, from, count),
            Step::Move { from, to, count, killed } => {
                table = move_both(&words, table, &mut model, (from, to, count, killed));
            }
            Step::Collect(from, count, max) => {
                collect_both(&table, &model, from, count, max);
            }
            Step::Reclaim => {
                table.reclaim_empty(|_, _| {});
                assert_eq!(units_for(model.keys()), units_in_use(&table));
            }
            Step::HalfReclaim(units) => {
                table.prune(ROOT_WORD, &mut vec![0; UNITS_AT_A_TIME - units]);
                table = open(&words);
            }
            Step::Rebuild => {
                let before = units_in_use(&table);
                table.rebuild().expect("valid table");
                assert_eq!(before, units_in_use(&table));
            }
            Step::Reopen => table = open(&words),
        }
        assert_eq!(table.counts(), count(&model));
    }
    assert_eq!(content(&table), model);
    assert_eq!(content(&open(&words)), model);
}

proptest! {
    #![proptest_config(crate::fuzz::cases(300))]

    #[test]
    fn behaves_like_a_map(steps in proptest::collection::vec(any_step(), 1..60)) {
        run_steps(&steps);
    }

    #[test]
    fn a_kill_between_any_two_stores_leaves_the_old_or_the_new_entry(
        old in any_entry(),
        new in any_entry(),
        stale in any::<u64>(),
    ) {
        let (old_state, old_payload) = encode(old).expect("generated in range");
        let (state, payload) = encode(new).expect("generated in range");
        let mut words = [old_state, old_payload.unwrap_or(stale)];
        let both_in_use = old_payload.is_some() && payload.is_some() && old_payload != payload;
        let mut seen = vec![old];
        for (place, value) in stores((words[0], words[1]), state, payload).into_iter().flatten() {
            words[place] = value;
            // As `open` reads it: a changing entry is lost.
            seen.push(decode(words[0], words[1]));
        }
        prop_assert_eq!(seen.last(), Some(&new));
        let fine = |entry: &Entry| {
            *entry == old || *entry == new || both_in_use && *entry == Entry::Lost
        };
        prop_assert!(seen.iter().all(fine), "{:?}", seen);
    }

    #[test]
    fn every_entry_survives_its_two_words(entry in any_entry()) {
        let (state, payload) = encode(entry).expect("generated in range");
        prop_assert_eq!(decode(state, payload.unwrap_or(0)), entry);
    }
}

proptest! {
    #![proptest_config(crate::fuzz::cases(300))]

    #[test]
    fn damaged_memory_is_refused_or_a_table(
        steps in proptest::collection::vec((any_page(), any_entry()), 1..20),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any_damage()), 1..8),
    ) {
        let words = memory(ROOM);
        let table = open(&words);
        for (page, entry) in steps {
            let _ = table.set(PageNumber(page), entry);
        }
        drop(table);
        for (place, value) in damage {
            words[place.index(words.len())].store(value, Ordering::Relaxed);
        }
        if let Ok(table) = PageTable::open(&words[..]) {
            // What it then holds may be wrong (a checksum per page tells); it stays inside.
            let _ = (content(&table), table.counts());
            table.clear_range(everything(), |_, _| {});
            prop_assert_eq!(Counts::default(), table.counts());
        }
    }
}

/// Words that mean something in a table, and any others.
fn any_damage() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..100, Just(u64::MAX), Just(0), (0u64..64).prop_map(|n| 1 << n)]
}

#[test]
fn last_page_of_the_address_space_is_usable() {
    let words = memory(9);
    let table = open(&words);
    table.set(PageNumber(LAST), Entry::Lost).expect("room for one leaf");
    assert_eq!(table.get(PageNumber(LAST)), Entry::Lost);
    assert_eq!(content(&table), BTreeMap::from([(LAST, Entry::Lost)]));
    for beyond in [PAGES_END, u64::MAX] {
        assert_eq!(table.get(PageNumber(beyond)), Entry::Absent);
        let refused = Err(Error::NoSuchPage(PageNumber(beyond)));
        assert_eq!(table.set(PageNumber(beyond), Entry::Absent), refused);
        assert_eq!(table.set(PageNumber(beyond), Entry::Lost), refused);
    }
    table.clear_range(PageNumber(LAST)..PageNumber(u64::MAX), |_, _| {});
    assert_eq!(table.counts(), Counts::default());
}

#[test]
fn absent_costs_nothing_and_a_full_table_says_so() {
    let words = memory(5);
    let table = open(&words);
    let empty = table.bytes_used();
    table.set(PageNumber(0), Entry::Absent).expect("nothing to store");
    assert_eq!(table.bytes_used(), empty);
    for leaf in 0..3 {
        table.set(PageNumber(leaf * LEAF_PAGES), Entry::Lost).expect("a node and three leaves");
    }
    assert_eq!(table.bytes_used(), empty + 4 * UNIT_BYTES);
    let full = Err(Error::Full { units: 5 });
    assert_eq!(table.set(PageNumber(NODE_PAGES), Entry::Lost), full, "room for a leaf alone");
    assert_eq!(table.bytes_used(), empty + 4 * UNIT_BYTES);
    table.set(PageNumber(3 * LEAF_PAGES), Entry::Lost).expect("the leaf was given back");
    assert_eq!(table.set(PageNumber(4 * LEAF_PAGES), Entry::Lost), full);
    assert_eq!(table.counts().lost, 4);

    table.set(PageNumber(0), Entry::Absent).expect("leaf exists");
    assert_eq!(table.reclaim_empty(|_, _| {}), 1);
    table.set(PageNumber(4 * LEAF_PAGES), Entry::Lost).expect("the freed leaf is used");
    assert_eq!(table.get(PageNumber(0)), Entry::Absent);
}

#[test]
fn a_page_alone_costs_a_leaf_and_one_far_away_a_node_more() {
    let words = memory(9);
    let table = open(&words);
    for (far, units) in [(0, 1), (UPPER_PAGES, 3), (7 * UPPER_PAGES, 4), (7 * UPPER_PAGES + 9, 6)] {
        table.set(PageNumber(far), Entry::Lost).expect("room");
        assert_eq!(units, units_in_use(&table));
    }
    for page in [UPPER_PAGES, 7 * UPPER_PAGES] {
        table.set(PageNumber(page), Entry::Absent).expect("leaf exists");
    }
    assert_eq!(3, table.reclaim_empty(|_, _| {}), "two leaves, and the node above the second");
    assert_eq!(vec![0, 7 * UPPER_PAGES + 9], content(&table).into_keys().collect::<Vec<_>>());
    table.clear_range(everything(), |_, _| {});
    assert_eq!(3, table.reclaim_empty(|_, _| {}));
    assert_eq!(0, words[ROOT_WORD].load(Ordering::Relaxed));
}

#[test]
fn reclaimed_leaves_can_become_a_node() {
    let words = memory(3);
    let table = open(&words);
    for leaf in 0..2 {
        table.set(PageNumber(leaf * LEAF_PAGES), Entry::Same { fill: u64::MAX }).expect("room");
    }
    table.clear_range(everything(), |_, _| {});
    assert_eq!(table.reclaim_empty(|_, _| {}), 3);
    // Stale payload words of a leaf would be links of the node.
    for page in [3 * LEAF_PAGES, UPPER_PAGES] {
        table.set(PageNumber(page), Entry::Lost).expect("all three are used again");
    }
    assert_eq!(content(&open(&words)).into_keys().collect::<Vec<_>>(), [24, UPPER_PAGES]);
}

#[test]
fn a_kill_while_a_node_is_made_leaves_the_old_or_the_new_table() {
    let (words, killed) = (memory(9), memory(9));
    let table = open(&words);
    let mut known = Vec::new();
    for page in [LEAF_PAGES, UPPER_PAGES, UPPER_PAGES + 9 * NODE_PAGES, MIDDLE_PAGES] {
        let former: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let taken = words[BUMP_WORD].load(Ordering::Relaxed);
        table.set(PageNumber(page), Entry::Lost).expect("room");
        let leaf = table.find_leaf(PageNumber(page)).expect("set above");
        // Units are taken and filled before the link to them is stored, and the entry comes last.
        let turn = |at: usize| match at {
            BUMP_WORD => 0,
            _ if at == entry_word(leaf, PageNumber(page)) => 3,
            _ if at >= unit_word(taken + 1) => 1,
            _ => 2,
        };
        let changed = |at: &usize| words[*at].load(Ordering::Relaxed) != former[*at];
        let mut stores: Vec<usize> = (0..words.len()).filter(changed).collect();
        stores.sort_by_key(|at| turn(*at));
        assert_eq!(1, stores.iter().filter(|at| turn(**at) == 2).count(), "one store links it");
        for at in stores {
            killed[at].store(words[at].load(Ordering::Relaxed), Ordering::Relaxed);
            let found: Vec<u64> = content(&open(&killed)).into_keys().collect();
            assert_eq!(known, found.into_iter().filter(|it| *it != page).collect::<Vec<_>>());
        }
        known.push(page);
        known.sort_unstable();
        assert_eq!(known, content(&open(&killed)).into_keys().collect::<Vec<_>>());
    }
}

#[test]
fn a_reader_that_holds_what_is_no_node_any_more_comes_to_an_end() {
    let words = memory(3);
    let table = open(&words);
    for page in [0, UPPER_PAGES] {
        table.set(PageNumber(page), Entry::Lost).expect("room");
    }
    let root = Link::from_word(words[ROOT_WORD].load(Ordering::Relaxed));
    let level = root.level();
    // A page's contents may look like a link that leads back, up, or out of the table.
    for (unit, level) in [(root.unit(), level), (root.unit(), 9), (4, 0), (Link::UNITS_MAX, 0)] {
        let word = unit | u64::from(level) << 28;
        words[unit_word(root.unit())].store(word, Ordering::Relaxed);
        assert_eq!(Entry::Absent, table.get(PageNumber(0)));
    }
}

#[test]
fn impossible_entries_are_refused_untouched() {
    let words = memory(9);
    let table = open(&words);
    let good = stored(16);
    let bad = [
        Entry::Staged { slot: PLACE_BITS + 1 },
        Entry::Pooled(Stored { offset: 8, ..good }),
        Entry::Pooled(Stored { offset: (PLACE_BITS + 1) * PLACE_UNIT, ..good }),
        Entry::Kept(Stored { len: 4097, ..good }),
        Entry::Kept(Stored { codec: CodecId(16), ..good }),
    ];
    for entry in bad {
        assert_eq!(table.set(PageNumber(1), entry), Err(Error::Unrepresentable(entry)));
    }
    assert_eq!(table.counts(), Counts::default());
}

#[test]
fn a_kill_between_bump_and_link_only_leaks_until_open() {
    let words = memory(8);
    open(&words).set(PageNumber(0), Entry::Lost).expect("room");
    words[BUMP_WORD].store(8, Ordering::Relaxed);
    let table = open(&words);
    assert_eq!(1, units_in_use(&table));
    for leaf in 1..7 {
        table.set(PageNumber(leaf * LEAF_PAGES), Entry::Lost).expect("leaked units are used");
    }
    assert_eq!(content(&open(&words)).len(), 7);
}

#[test]
fn a_kill_inside_a_replacement_loses_the_page_and_says_so() {
    let words = memory(9);
    let table = open(&words);
    table.set(PageNumber(3), Entry::Pooled(stored(160))).expect("room");
    table.set(PageNumber(4), Entry::Pooled(stored(320))).expect("room");
    let word = entry_word(table.find_leaf(PageNumber(3)).expect("set above"), PageNumber(3));
    words[word].store(CHANGING, Ordering::Relaxed);
    let table = open(&words);
    assert_eq!(table.get(PageNumber(3)), Entry::Lost);
    assert_eq!(table.get(PageNumber(4)), Entry::Pooled(stored(320)));
    assert_eq!((table.counts().lost, table.counts().pooled), (1, 1));
    // A killed move is done again, and the lost page with it.
    table.move_range(PageNumber(4), PageNumber(3), 1, |_, _| {}).expect("room");
    assert_eq!(table.get(PageNumber(3)), Entry::Pooled(stored(320)));
}

#[test]
fn a_kill_before_the_state_word_keeps_the_old_entry() {
    let words = memory(9);
    let table = open(&words);
    table.set(PageNumber(3), Entry::Staged { slot: 7 }).expect("room");
    let word = entry_word(table.find_leaf(PageNumber(3)).expect("set above"), PageNumber(3));
    words[word + 1].store(0xdead, Ordering::Relaxed);
    assert_eq!(open(&words).get(PageNumber(3)), Entry::Staged { slot: 7 });
}

#[test]
fn nonsense_is_lost_and_bad_links_are_damage() {
    let words = memory(9);
    let table = open(&words);
    table.set(PageNumber(0), Entry::Lost).expect("room");
    let leaf = table.find_leaf(PageNumber(0)).expect("set above");
    for (page, nonsense) in [(1, 6), (2, POOLED | 5000 << LEN_SHIFT), (3, 1 << 60)] {
        words[entry_word(leaf, PageNumber(page))].store(nonsense, Ordering::Relaxed);
    }
    assert_eq!(open(&words).counts().lost, 4);

    let damage = |word: usize, link: u64| {
        let former = words[word].swap(link, Ordering::Relaxed);
        let damaged = OpenError::Damaged { word, link };
        assert_eq!(PageTable::open(&words[..]).expect_err("damage"), damaged);
        words[word].store(former, Ordering::Relaxed);
    };
    // No unit, one that was not handed out, keys that no address has, keys that are no node's.
    let unaligned = Link::to(1, 0, 5).word() | 1 << 28;
    for link in [1 << 40, Link::to(2, 0, 0).word(), u64::MAX, Link::to(1, 9, 0).word(), unaligned] {
        damage(ROOT_WORD, link);
    }
    damage(BUMP_WORD, 10);
    table.set(PageNumber(LEAF_PAGES), Entry::Lost).expect("room");
    let node = Link::from_word(words[ROOT_WORD].load(Ordering::Relaxed));
    // A unit twice, a node within itself, keys of another slot.
    let slot = slot_word(node, 5);
    for link in [Link::to(leaf, 0, 5), Link::to(node.unit(), 1, 0), Link::to(3, 0, 6)] {
        damage(slot, link.word());
    }
    assert_eq!(open(&words).counts().lost, 5);
    assert!(PageTable::open(&words[..HEADER_WORDS - 1]).is_err());
}

#[test]
fn readers_beside_a_writer_never_see_half_an_entry() {
    let words = memory(ROOM);
    let table = open(&words);
    let page = PageNumber(77);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                match table.get(page) {
                    Entry::Pooled(seen) | Entry::Kept(seen) => {
                        assert_eq!(seen, stored(seen.offset), "torn entry");
                    }
                    Entry::Absent | Entry::Staged { slot: 5 } => {}
                    other => panic!("never written: {other:?}"),
                }
            }
        });
        for round in 1..30_000u64 {
            let entry = Entry::Pooled(stored(round % 7 * 16));
            table.set(page, entry).expect("room");
            table.set(page, Entry::Kept(stored(round % 5 * 16))).expect("room");
            table.set(page, Entry::Staged { slot: 5 }).expect("room");
            table.set(page, entry).expect("room");
            table.set(page, Entry::Absent).expect("room");
            if round % 64 == 0 {
                // The leaf of `page` goes to another range while the reader may still hold it.
                table.reclaim_empty(|_, _| {});
                table.set(PageNumber(3 * LEAF_PAGES + 77), Entry::Lost).expect("room");
                table.clear_range(everything(), |_, _| {});
                table.reclaim_empty(|_, _| {});
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("reader saw only whole entries");
    });
}

#[test]
fn a_churning_target_gets_its_table_memory_back() {
    const CHUNK_PAGES: u64 = 64;
    let memory = SharedMapping::create("churn", 64 << 20).expect("a memfd");
    let table = PageTable::open(memory).expect("fresh memory");
    let page = PAGE_SIZE as u64;
    assert_eq!(page, table.words().resident_bytes(), "opening takes a page of the header");
    let mut peak = 0;
    for round in 0..6 {
        // Two leaves of every chunk, at addresses that never come back.
        let start = round << 24;
        for chunk in 0..2000 {
            for near in [1, 60] {
                let page = PageNumber(start + chunk * CHUNK_PAGES + near);
                table.set(page, Entry::Pooled(stored(16 * chunk))).expect("room");
            }
        }
        let survivor = start + 7 * CHUNK_PAGES + 8;
        table.set(PageNumber(survivor), Entry::Same { fill: round }).expect("room");
        peak = peak.max(table.words().resident_bytes());
        table.clear_range(range(start, survivor - start), |_, _| {});
        table.clear_range(range(survivor + 1, 1 << 23), |_, _| {});
        while table.may_have_empty_leaves() {
            table.reclaim_empty(|start, length| table.words().punch(start, length));
        }
    }
    for round in 0..6 {
        let page = PageNumber((round << 24) + 7 * CHUNK_PAGES + 8);
        assert_eq!(table.get(page), Entry::Same { fill: round });
    }
    let left = table.words().resident_bytes();
    assert!(peak > 4000 * UNIT_BYTES, "{peak}");
    // The header, and at most a page for each unit of the survivors' leaves and nodes.
    let header = HEADER_WORDS as u64 * WORD_BYTES;
    assert!(left <= header + 12 * page && peak < 8000 * UNIT_BYTES, "{left}, {peak}");
}

#[test]
fn readers_of_leaves_given_back_see_whole_entries() {
    const LEAVES: u64 = 100;
    let memory = SharedMapping::create("given back", 4 << 20).expect("a memfd");
    let table = PageTable::open(memory).expect("fresh memory");
    let page = PageNumber(5);
    let done = AtomicBool::new(false);
    let mut given_back = 0;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let entry = table.get(page);
                assert!(matches!(entry, Entry::Absent | Entry::Same { fill: 9 }), "{entry:?}");
            }
        });
        for round in 0..1000 {
            // Leaves become nodes and nodes leaves, in memory that was given back meanwhile.
            for first in [0, 1 + round % 3] {
                for leaf in first..first + LEAVES {
                    let page = PageNumber(leaf * NODE_PAGES + 5);
                    let fill = if leaf == 0 { 9 } else { 7 };
                    table.set(page, Entry::Same { fill }).expect("room");
                }
                table.clear_range(everything(), |_, _| {});
                table.reclaim_empty(|start, length| {
                    table.words().punch(start, length);
                    given_back += length;
                });
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("reader saw only whole entries");
    });
    assert!(given_back > 1000 * LEAVES * UNIT_BYTES / 2, "{given_back}");
}

proptest! {
    #[test]
    fn the_memory_of_a_table_is_known_before_it_is_made(
        starts in prop::collection::btree_set(0..40u64, 1..12),
        step in prop::sample::select(vec![
            40, 50, 128, 600, NODE_PAGES - 7, MIDDLE_PAGES - 7, UPPER_PAGES + 3,
        ]),
        length in 1..40u64,
    ) {
        let words = memory(3000);
        let table = open(&words);
        let mut ranges = Vec::new();
        for start in starts {
            let pages = range(start * step, length);
            for page in pages.start.0..pages.end.0 {
                table.set(PageNumber(page), Entry::Same { fill: 1 }).expect("room");
            }
            ranges.push(pages.start.start().0..pages.end.start().0);
        }

        prop_assert_eq!(bytes_for(&ranges), table.bytes_used());
        prop_assert_eq!(HEADER_WORDS as u64 * WORD_BYTES, bytes_for(&[]));
    }
}
