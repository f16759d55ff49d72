//! One truth about the pool each.

use super::*;

const SPAN_4096: u64 = 32 * 4096;

#[test]
fn every_slot_size_fits_its_span_with_little_rest() {
    for class in 0..=u8::MAX {
        let geometry = Geometry::of(class);
        let (size, used) = (geometry.slot_bytes, geometry.slots * geometry.slot_bytes);
        assert_eq!(class_of(size as usize), Some(class));
        assert_eq!(class_of(size as usize - 15), Some(class));
        let room = geometry.pages * PAGE as u32;
        assert!(used <= room && u64::from(room) <= SPAN_STRIDE);
        assert!((room - used) * 100 <= room * 3, "{size}: a rest of {}", room - used);
        assert_eq!(geometry.pages_of(geometry.slots), geometry.pages);
    }
    assert_eq!((class_of(0), class_of(PAGE_SIZE + 1)), (None, None));
}

#[test]
fn a_file_is_longer_than_its_cap_and_below_the_end_of_offsets() {
    assert_eq!(file_bytes(0), CLASSES as u64 * SPAN_STRIDE);
    assert!(file_bytes(1 << 20).is_multiple_of(SPAN_STRIDE));
    assert_eq!((file_bytes(1 << 40), file_bytes(u64::MAX)), (OFFSETS_END, OFFSETS_END));
}

#[test]
fn a_span_pays_only_for_the_pages_it_has_reached() {
    let mut pool = PoolIndex::new(1 << 20);
    for len in (16..=4096).step_by(16) {
        assert!(pool.alloc(len).is_some(), "256 sizes fit into 256 pages");
    }
    assert_eq!(pool.stats().bytes_spans, 1 << 20);
    assert_eq!((pool.alloc(4096), pool.alloc(16).is_some()), (None, true));
}

#[test]
fn a_drained_span_serves_another_size_at_the_same_place() {
    let mut pool = PoolIndex::new(SPAN_4096);
    let big: Vec<_> = (0..32).map(|_| pool.alloc(4096).expect("32 fit")).collect();
    assert_eq!((pool.alloc(4096), pool.alloc(16)), (None, None));
    for offset in &big[1..] {
        assert_eq!(pool.release(*offset, 4096).expect("allocated above").span_freed, None);
    }
    let released = pool.release(big[0], 4096).expect("allocated above");
    assert_eq!(released.span_freed, Some(0..SPAN_4096));
    assert_eq!(pool.alloc(16), Some(0));
    assert_eq!(pool.stats().bytes_spans, PAGE);
}

#[test]
fn holes_come_before_fresh_pages_and_low_spans_before_high_ones() {
    let mut pool = PoolIndex::new(1 << 20);
    let slots: Vec<_> = (0..80).map(|_| pool.alloc(4096).expect("three spans")).collect();
    pool.release(slots[70], 4096).expect("allocated above");
    pool.release(slots[3], 4096).expect("allocated above");
    assert_eq!(pool.alloc(4096), Some(slots[3]));
    assert_eq!(pool.alloc(4096), Some(slots[70]));
    assert_eq!(pool.alloc(4096), Some(slots[79] + 4096));
}

#[test]
fn a_wrong_length_changes_nothing() {
    let mut pool = PoolIndex::new(1 << 20);
    let offset = pool.alloc(1000).expect("empty pool");
    let before = pool.stats();
    for len in [0, 16, 992, 1009, 4097] {
        assert_eq!(pool.release(offset, len), Err(Error::WrongLength { offset, len }));
    }
    for offset in [offset + 16, SPAN_STRIDE, u64::MAX] {
        assert_eq!(pool.release(offset, 1000), Err(Error::NoSuchSlot { offset }));
        assert_eq!(pool.add_ref(offset), Err(Error::NoSuchSlot { offset }));
    }
    assert_eq!(pool.stats(), before);
}

#[test]
fn no_allocation_before_the_adoption_is_finished() {
    let mut pool = PoolIndex::for_file(4 * SPAN_STRIDE);
    pool.adopt(2 * SPAN_STRIDE + 112, 100).expect("fits");
    assert_eq!(pool.alloc(100), None);
    let rest = 2 * SPAN_STRIDE + PAGE..4 * SPAN_STRIDE;
    assert_eq!(pool.finish_adoption(), [0..2 * SPAN_STRIDE, rest]);
    assert_eq!(pool.alloc(100), Some(2 * SPAN_STRIDE));
}

#[test]
fn impossible_entries_are_not_adopted() {
    let mut pool = PoolIndex::for_file(2 * SPAN_STRIDE);
    pool.adopt(0, 4096).expect("fits");
    let conflict = |offset, len| Err(Error::Conflict { offset, len });
    assert_eq!(pool.adopt(16, 4096), conflict(16, 4096));
    assert_eq!(pool.adopt(4096, 16), conflict(4096, 16));
    assert_eq!(pool.adopt(SPAN_STRIDE + 8, 16), conflict(SPAN_STRIDE + 8, 16));
    for (offset, len) in [(2 * SPAN_STRIDE, 16), (u64::MAX, 16), (0, 0), (0, 4097)] {
        let error = pool.adopt(offset, len).expect_err("impossible");
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    }
    assert_eq!(pool.stats().slots, 1);
}

#[test]
fn a_lower_cap_stops_growth_and_keeps_what_is_there() {
    let mut pool = PoolIndex::new(2 * SPAN_4096);
    let slots: Vec<_> = (0..64).map(|_| pool.alloc(4096).expect("two spans")).collect();
    pool.set_bytes_max(SPAN_4096);
    assert_eq!(pool.stats().bytes_spans, 2 * SPAN_4096);
    for offset in &slots[..32] {
        assert_eq!(pool.alloc(1), None);
        pool.release(*offset, 4096).expect("allocated above");
    }
    assert_eq!((pool.alloc(1), pool.refs(slots[63])), (None, 1));
    pool.release(slots[63], 4096).expect("allocated above");
    assert_eq!(pool.trim(0..2), [SPAN_STRIDE + 31 * PAGE..SPAN_STRIDE + 32 * PAGE]);
    assert_eq!(pool.alloc(1), Some(0));
}

#[test]
fn the_end_of_the_file_is_a_full_pool() {
    let mut pool = PoolIndex::for_file(SPAN_STRIDE);
    pool.finish_adoption();
    pool.set_bytes_max(1 << 30);
    assert_eq!((pool.alloc(1), pool.alloc(17)), (Some(0), None));
}

#[test]
fn counts_beyond_a_byte_are_exact_and_come_back() {
    let mut pool = PoolIndex::new(1 << 20);
    let offset = pool.alloc(100).expect("empty pool");
    for refs in 1..1000 {
        assert_eq!(pool.refs(offset), refs);
        pool.add_ref(offset).expect("in use");
    }
    for refs in (1..=1000).rev() {
        assert_eq!((pool.refs(offset), pool.many.len()), (refs, usize::from(refs > 254)));
        let released = pool.release(offset, 100).expect("in use");
        assert_eq!(released.slot_freed, refs == 1);
    }
}

#[test]
fn a_full_counter_refuses_and_keeps_its_value() {
    let mut pool = PoolIndex::new(1 << 20);
    let offset = pool.alloc(100).expect("empty pool");
    pool.set_refs(offset, u32::MAX);
    assert_eq!(pool.add_ref(offset), Err(Error::TooManyRefs { offset }));
    assert_eq!(pool.adopt(offset, 100), Err(Error::TooManyRefs { offset }));
    assert_eq!(pool.refs(offset), u32::MAX);
}

#[test]
fn a_victim_that_is_needed_stops_being_one() {
    let mut pool = PoolIndex::new(2 * SPAN_4096);
    let slots: Vec<_> = (0..64).map(|_| pool.alloc(4096).expect("two spans")).collect();
    for offset in slots[..32].iter().step_by(2).chain(&slots[32..56]) {
        pool.release(*offset, 4096).expect("allocated above");
    }
    // The 24 used slots fit into the first span, below its slot 24.
    let plan = pool.plan_compaction();
    assert_eq!((plan.spans, plan.slots, plan.bytes_gained), (2, 12, 40 * PAGE));
    let victims = |pool: &PoolIndex| [22, 24, 56].map(|slot| pool.is_victim(slots[slot]));
    assert_eq!(victims(&pool), [false, true, true]);
    for expected in [12, 4].into_iter().zip([[false, true, true], [false, false, true]]) {
        for _ in 0..expected.0 {
            assert!(pool.alloc(4096).is_some_and(|offset| offset < SPAN_STRIDE));
        }
        assert_eq!(victims(&pool), expected.1);
    }
    assert_eq!((pool.alloc(4096), victims(&pool)), (Some(slots[32]), [false; 3]));
}
