//! The pool against a plain map of slots, before and after an adoption.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize),
    AddRef(prop::sample::Index),
    Release(prop::sample::Index),
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![1usize..=4096, 1000usize..1100, Just(1usize), Just(4096usize)];
    prop_oneof![
        8 => len.prop_map(Step::Alloc),
        2 => any::<prop::sample::Index>().prop_map(Step::AddRef),
        7 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => Just(Step::Restart),
    ]
}

/// Offset to length and references.
type Model = BTreeMap<u64, (usize, u32)>;

fn spans_of(model: &Model) -> BTreeSet<u64> {
    model.keys().map(|offset| offset / SPAN_BYTES).collect()
}

fn check(pool: &PoolIndex, model: &Model) {
    let stats = pool.stats();
    assert_eq!(stats.slots, model.len() as u64);
    assert_eq!(stats.bytes_spans, spans_of(model).len() as u64 * SPAN_BYTES);
    let bytes: u64 = model.values().map(|(len, _)| slot_bytes(*len).expect("stored")).sum();
    assert_eq!(stats.bytes_slots, bytes);
    assert!(stats.bytes_spans <= stats.bytes_max);
    let mut end = 0;
    for (offset, (len, refs)) in model {
        assert!(*offset >= end, "slots overlap at {offset:#x}");
        assert_eq!(offset % SLOT_UNIT, 0);
        end = offset + *len as u64;
        assert_eq!(offset / SPAN_BYTES, (end - 1) / SPAN_BYTES, "slot crosses a span");
        assert!(end <= stats.bytes_max);
        assert_eq!(pool.refs(*offset), *refs);
    }
}

fn adopted(model: &Model, bytes_max: u64) -> PoolIndex {
    let mut pool = PoolIndex::new(bytes_max);
    for (offset, (len, refs)) in model {
        for _ in 0..*refs {
            pool.adopt(*offset, *len).expect("entry of a valid pool");
        }
    }
    let used = spans_of(model);
    let holes = pool.finish_adoption();
    assert!(holes.windows(2).all(|pair| pair[0].end < pair[1].start));
    for number in 0..bytes_max / SPAN_BYTES {
        let is_hole = holes.iter().any(|hole| hole.contains(&(number * SPAN_BYTES)));
        assert_ne!(is_hole, used.contains(&number), "span {number}");
    }
    pool
}

fn release_both(pool: &mut PoolIndex, model: &mut Model, offset: u64) {
    let entry = model.get_mut(&offset).expect("picked from the model");
    entry.1 -= 1;
    let slot_freed = entry.1 == 0;
    if slot_freed {
        model.remove(&offset);
    }
    let span = offset / SPAN_BYTES;
    let span_freed = (slot_freed && !spans_of(model).contains(&span))
        .then(|| span * SPAN_BYTES..(span + 1) * SPAN_BYTES);
    assert_eq!(pool.release(offset), Ok(Released { slot_freed, span_freed }));
    if slot_freed {
        assert_eq!(pool.release(offset), Err(Error::NoSuchSlot { offset }));
        assert_eq!(pool.refs(offset), 0);
    }
}

fn run_steps(steps: &[Step], bytes_max: u64) {
    let mut pool = PoolIndex::new(bytes_max);
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Alloc(len) => match pool.alloc(*len) {
                Some(offset) => {
                    assert_eq!(model.insert(offset, (*len, 1)), None, "slot handed out twice");
                }
                None => {
                    let spans = spans_of(&model).len() as u64;
                    assert_eq!(spans, bytes_max / SPAN_BYTES, "refused below the cap");
                }
            },
            Step::AddRef(pick) if !model.is_empty() => {
                let offset = *pick.get(&model.keys().copied().collect::<Vec<_>>());
                pool.add_ref(offset).expect("slot in use");
                model.entry(offset).and_modify(|entry| entry.1 += 1);
            }
            Step::Release(pick) if !model.is_empty() => {
                let offset = *pick.get(&model.keys().copied().collect::<Vec<_>>());
                release_both(&mut pool, &mut model, offset);
            }
            Step::AddRef(_) | Step::Release(_) => {}
            Step::Restart => pool = adopted(&model, bytes_max),
        }
        check(&pool, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn behaves_like_a_map_of_slots(
        steps in prop::collection::vec(any_step(), 1..200),
        spans in 0u64..12,
    ) {
        run_steps(&steps, spans * SPAN_BYTES + 100);
    }

    #[test]
    fn adopting_nonsense_never_panics(
        entries in prop::collection::vec((0u64..5 * SPAN_BYTES, 0usize..5000), 0..200),
    ) {
        let mut pool = PoolIndex::new(4 * SPAN_BYTES);
        let mut taken = Vec::new();
        for (offset, len) in entries {
            if pool.adopt(offset, len).is_ok() {
                taken.push(offset);
            }
        }
        pool.finish_adoption();
        for offset in taken {
            prop_assert!(pool.release(offset).is_ok());
        }
        prop_assert_eq!(pool.stats().bytes_spans, 0);
        prop_assert_eq!(pool.stats().bytes_slots, 0);
    }
}

#[test]
fn slot_sizes_are_few_and_cost_nothing() {
    let mut sizes = BTreeSet::new();
    for len in 1..=PAGE_SIZE {
        let size = slot_bytes(len).expect("valid length");
        let exact = (len as u64).next_multiple_of(SLOT_UNIT);
        assert!(size >= exact);
        assert_eq!(slots_per_span(size), slots_per_span(exact), "denser would be possible");
        assert_eq!(slot_bytes(size as usize), Some(size));
        sizes.insert(size);
    }
    assert_eq!(sizes.len(), 82);
    assert_eq!((slot_bytes(0), slot_bytes(PAGE_SIZE + 1)), (None, None));
}

#[test]
fn a_drained_span_serves_another_size_at_the_same_place() {
    let mut pool = PoolIndex::new(SPAN_BYTES);
    let big: Vec<_> = (0..8).map(|_| pool.alloc(4096).expect("eight fit")).collect();
    assert_eq!((pool.alloc(4096), pool.alloc(16)), (None, None));
    for offset in big {
        pool.release(offset).expect("allocated above");
    }
    assert_eq!(pool.alloc(16), Some(0));
    assert_eq!(pool.alloc(4096), None);
}

#[test]
fn the_lowest_span_fills_first() {
    let mut pool = PoolIndex::new(8 * SPAN_BYTES);
    let slots: Vec<_> = (0..24).map(|_| pool.alloc(4096).expect("three spans")).collect();
    pool.release(slots[20]).expect("allocated above");
    pool.release(slots[3]).expect("allocated above");
    assert_eq!(pool.alloc(4096), Some(slots[3]));
    assert_eq!(pool.alloc(4096), Some(slots[20]));
}

#[test]
fn no_allocation_before_the_adoption_is_finished() {
    let mut pool = PoolIndex::new(4 * SPAN_BYTES);
    pool.adopt(2 * SPAN_BYTES, 100).expect("fits");
    assert_eq!(pool.alloc(100), None);
    assert_eq!(pool.finish_adoption(), [0..2 * SPAN_BYTES, 3 * SPAN_BYTES..4 * SPAN_BYTES]);
    assert_eq!(pool.alloc(100), Some(2 * SPAN_BYTES + slot_bytes(100).expect("valid length")));
}

#[test]
fn impossible_entries_are_not_adopted() {
    let mut pool = PoolIndex::new(2 * SPAN_BYTES);
    pool.adopt(0, 4096).expect("fits");
    let conflict = |offset, len| Err(Error::Conflict { offset, len });
    assert_eq!(pool.adopt(16, 4096), conflict(16, 4096));
    assert_eq!(pool.adopt(4096, 16), conflict(4096, 16));
    assert_eq!(pool.adopt(SPAN_BYTES + 8, 16), conflict(SPAN_BYTES + 8, 16));
    for (offset, len) in [(2 * SPAN_BYTES, 16), (u64::MAX, 16), (0, 0), (0, 4097)] {
        let error = pool.adopt(offset, len).expect_err("impossible");
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    }
    assert_eq!(pool.stats().slots, 1);
}

#[test]
fn a_lower_cap_stops_growth_and_keeps_what_is_there() {
    let mut pool = PoolIndex::new(4 * SPAN_BYTES);
    let slots: Vec<_> = (0..32).map(|_| pool.alloc(4096).expect("four spans")).collect();
    pool.set_bytes_max(2 * SPAN_BYTES);
    assert_eq!(pool.stats().bytes_spans, 4 * SPAN_BYTES);
    for offset in &slots[..24] {
        assert_eq!(pool.alloc(1), None);
        pool.release(*offset).expect("allocated above");
    }
    assert_eq!(pool.alloc(1), Some(0));
    assert_eq!(pool.refs(slots[31]), 1);
}

#[test]
fn a_full_counter_refuses_and_keeps_its_value() {
    let mut pool = PoolIndex::new(SPAN_BYTES);
    let offset = pool.alloc(100).expect("empty pool");
    pool.spans[0].as_mut().expect("span in use").refs[0] = u32::MAX;
    assert_eq!(pool.add_ref(offset), Err(Error::TooManyRefs { offset }));
    assert_eq!(pool.adopt(offset, 100), Err(Error::TooManyRefs { offset }));
    assert_eq!(pool.refs(offset), u32::MAX);
}
