//! The pool against a plain map of slots and a set of touched pages, before and after adoptions,
//! in and out of compactions.

use proptest::prelude::*;

use super::*;

mod patterns;
mod single;

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize),
    AddRef(prop::sample::Index),
    Release(prop::sample::Index),
    WrongRelease(prop::sample::Index, usize),
    Restart,
    Plan,
    Move(usize),
    End,
}

fn any_step() -> impl Strategy<Value = Step> {
    // Few lengths, or no span ever has two slots; large ones, or no span is ever full.
    let len = prop_oneof![1usize..=4096, 2000usize..2040, Just(4090usize), Just(16usize)];
    let pick = any::<prop::sample::Index>;
    prop_oneof![
        20 => len.prop_map(Step::Alloc),
        3 => pick().prop_map(Step::AddRef),
        14 => pick().prop_map(Step::Release),
        1 => (pick(), 0usize..5000).prop_map(|(pick, len)| Step::WrongRelease(pick, len)),
        1 => Just(Step::Restart),
        2 => Just(Step::Plan),
        3 => (1usize..20).prop_map(Step::Move),
        1 => Just(Step::End),
    ]
}

/// What a pool must look like: offset to length and references, and the pages with memory.
#[derive(Clone, Debug, Default)]
struct Model {
    slots: BTreeMap<u64, (usize, u32)>,
    touched: BTreeSet<u64>,
}

fn pages_of(offset: u64, len: usize) -> Range<u64> {
    offset / PAGE..(offset + len as u64).div_ceil(PAGE)
}

impl Model {
    fn live(&self) -> BTreeSet<u64> {
        let slot_end = |len: usize| len.next_multiple_of(SLOT_UNIT as usize);
        let slots = self.slots.iter();
        slots.flat_map(|(offset, (len, _))| pages_of(*offset, slot_end(*len))).collect()
    }

    fn punch(&mut self, ranges: &[Range<u64>]) {
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        let live = self.live();
        for range in ranges {
            assert!(range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE));
            let pages = range.start / PAGE..range.end / PAGE;
            assert_eq!(live.range(pages.clone()).next(), None, "a used page would be punched");
            self.touched.retain(|page| !pages.contains(page));
        }
    }

    fn alloc(&mut self, pool: &mut PoolIndex, len: usize) -> Option<u64> {
        let offset = pool.alloc(len)?;
        assert!(!pool.is_victim(offset));
        assert_eq!(self.slots.insert(offset, (len, 1)), None, "slot handed out twice");
        self.touched.extend(pages_of(offset, len));
        Some(offset)
    }

    fn release(&mut self, pool: &mut PoolIndex, offset: u64) {
        let entry = self.slots.get_mut(&offset).expect("picked from the model");
        let len = entry.0;
        entry.1 -= 1;
        let slot_freed = entry.1 == 0;
        if slot_freed {
            self.slots.remove(&offset);
        }
        let span = offset / SPAN_STRIDE * SPAN_STRIDE;
        let emptied = self.slots.range(span..span + SPAN_STRIDE).next().is_none();
        let released = pool.release(offset, len).expect("in use");
        assert_eq!(released.slot_freed, slot_freed);
        assert_eq!(released.span_freed.is_some(), slot_freed && emptied);
        if let Some(range) = released.span_freed {
            assert_eq!(range.start, span);
            self.punch(&[range]);
            let mut left = self.touched.range(span / PAGE..(span + SPAN_STRIDE) / PAGE);
            assert_eq!(left.next(), None, "an empty span keeps memory");
        }
        if slot_freed {
            assert_eq!(pool.release(offset, len), Err(Error::NoSuchSlot { offset }));
            assert_eq!(pool.refs(offset), 0);
        }
    }

    /// What a compactor does with at most `slots_max` slots: returns how many it has moved.
    fn move_victims(&mut self, pool: &mut PoolIndex, slots_max: usize) -> usize {
        let offsets: Vec<u64> = self.slots.keys().copied().collect();
        let mut moved = 0;
        for offset in offsets {
            if moved == slots_max || !pool.is_victim(offset) {
                continue;
            }
            let (len, refs) = self.slots[&offset];
            let Some(new) = self.alloc(pool, len) else { break };
            for _ in 1..refs {
                pool.add_ref(new).expect("just allocated");
            }
            self.slots.insert(new, (len, refs));
            for _ in 0..refs {
                self.release(pool, offset);
            }
            moved += 1;
        }
        moved
    }

    fn end_compaction(&mut self, pool: &mut PoolIndex) {
        let empty = pool.end_compaction();
        self.punch(&empty);
        assert_eq!(self.touched, self.live(), "memory without a slot");
        assert!(self.slots.keys().all(|offset| !pool.is_victim(*offset)));
    }

    fn adopted(&mut self, file_bytes: u64, bytes_max: u64) -> PoolIndex {
        let mut pool = PoolIndex::for_file(file_bytes);
        for (offset, (len, refs)) in &self.slots {
            for _ in 0..*refs {
                pool.adopt(*offset, *len).expect("entry of a valid pool");
            }
        }
        assert_eq!(pool.alloc(1), None, "before the adoption is finished");
        let holes = pool.finish_adoption();
        self.punch(&holes);
        assert_eq!(self.touched, self.live());
        pool.set_bytes_max(bytes_max);
        pool
    }

    fn check(&self, pool: &PoolIndex) {
        let stats = pool.stats();
        assert_eq!(stats.slots, self.slots.len() as u64);
        let bytes: usize = self.slots.values().map(|(len, _)| len).sum();
        assert_eq!(stats.bytes_payload, bytes as u64);
        let rounded = |len: &usize| len.next_multiple_of(SLOT_UNIT as usize);
        let bytes: usize = self.slots.values().map(|(len, _)| rounded(len)).sum();
        assert_eq!(stats.bytes_slots, bytes as u64);
        assert!(stats.bytes_spans <= stats.bytes_max, "above the cap");
        assert!(self.touched.len() as u64 * PAGE <= stats.bytes_spans, "more memory than counted");
        assert_eq!(pool.waste().bytes, stats.bytes_spans - stats.bytes_payload);
        let mut end = 0;
        for (offset, (len, refs)) in &self.slots {
            assert!(*offset >= end, "slots overlap at {offset:#x}");
            assert_eq!(offset % SLOT_UNIT, 0);
            end = offset + *len as u64;
            assert_eq!(offset / SPAN_STRIDE, (end - 1) / SPAN_STRIDE, "slot crosses a span");
            assert!(end <= pool.file_bytes);
            assert_eq!(pool.refs(*offset), *refs);
        }
    }
}

/// Nothing the index has noted about its spans contradicts them.
fn check_notes(pool: &PoolIndex) {
    let mut pages = vec![0; CLASSES];
    let mut seated = vec![BTreeSet::new(); CLASSES];
    for (number, span) in (0u32..).zip(&pool.spans) {
        assert_eq!(span.is_none(), pool.unused.contains(&number));
        let Some(span) = span else { continue };
        let free = (0..span.slots()).find(|slot| span.refs(*slot) == Some(0));
        assert_eq!(usize::from(span.lowest_free), free.unwrap_or(span.slots()));
        assert_eq!(span.seat, span.due_seat());
        assert_eq!(span.used_from(0), u64::from(span.used));
        assert_eq!(span.used_from(usize::from(span.reach)), 0);
        let class = usize::from(span.class);
        pages[class] += u64::from(span.pages());
        let victim = (Reverse(span.victim_from), number);
        let noted = pool.classes[class].victims.contains(&victim);
        assert_eq!(noted, span.victim_from != NO_VICTIM);
        if span.seat != Seat::Nowhere {
            seated[class].insert((span.seat, number));
        }
    }
    for (class, (pages, seated)) in pool.classes.iter().zip(pages.iter().zip(&seated)) {
        assert_eq!((class.pages, &class.rooms), (*pages, seated));
    }
    assert_eq!(pool.pages, pages.iter().sum::<u64>());
}

fn run_steps(steps: &[Step], bytes_max: u64) {
    let mut pool = PoolIndex::new(bytes_max);
    let mut model = Model::default();
    for step in steps {
        let offsets: Vec<u64> = model.slots.keys().copied().collect();
        match step {
            Step::Alloc(len) => {
                if model.alloc(&mut pool, *len).is_none() {
                    assert_eq!(pool.pages, bytes_max / PAGE, "refused below the cap");
                    let class = class_of(*len).expect("valid length");
                    let class = &pool.classes[usize::from(class)];
                    let hole = class.rooms.iter().find(|(seat, _)| *seat == Seat::Hole);
                    assert_eq!((hole, class.victims.len()), (None, 0), "refused despite a hole");
                }
            }
            Step::AddRef(pick) if !offsets.is_empty() => {
                let offset = *pick.get(&offsets);
                pool.add_ref(offset).expect("slot in use");
                model.slots.entry(offset).and_modify(|entry| entry.1 += 1);
            }
            Step::Release(pick) if !offsets.is_empty() => {
                model.release(&mut pool, *pick.get(&offsets));
            }
            Step::WrongRelease(pick, len) if !offsets.is_empty() => {
                let offset = *pick.get(&offsets);
                if class_of(*len) != class_of(model.slots[&offset].0) {
                    let wrong = Err(Error::WrongLength { offset, len: *len });
                    assert_eq!(pool.release(offset, *len), wrong);
                }
            }
            Step::Restart => {
                let former = pool;
                pool = model.adopted(former.file_bytes, bytes_max);
                let mut trimmed = former;
                trimmed.end_compaction();
                assert_eq!(pool.stats(), trimmed.stats());
            }
            Step::Plan => {
                let plan = pool.plan_compaction();
                let victims = model.slots.keys().filter(|offset| pool.is_victim(**offset));
                assert_eq!(plan.slots, victims.count() as u64);
                assert_eq!(plan.bytes_gained, pool.waste().bytes_gainable);
            }
            Step::Move(slots_max) => {
                model.move_victims(&mut pool, *slots_max);
            }
            Step::End => model.end_compaction(&mut pool),
            Step::AddRef(_) | Step::Release(_) | Step::WrongRelease(..) => {}
        }
        model.check(&pool);
        check_notes(&pool);
    }
    let former = model.slots.len();
    pool.set_bytes_max(bytes_max + PAGE * CLASSES as u64);
    pool.plan_compaction();
    model.move_victims(&mut pool, usize::MAX);
    model.end_compaction(&mut pool);
    assert_eq!((model.slots.len(), pool.waste().bytes_gainable), (former, 0));
    model.check(&pool);
    check_notes(&pool);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn behaves_like_a_map_of_slots(
        steps in prop::collection::vec(any_step(), 1..300),
        pages in 0u64..120,
    ) {
        run_steps(&steps, pages * PAGE + 100);
    }

    #[test]
    fn adopting_nonsense_never_panics(
        entries in prop::collection::vec((0u64..5 * SPAN_STRIDE, 0usize..5000), 0..200),
        units in prop::collection::vec((0u64..5 * SPAN_STRIDE / 16, 1usize..64), 0..200),
    ) {
        let mut pool = PoolIndex::for_file(4 * SPAN_STRIDE);
        let mut taken = Vec::new();
        let aligned = units.into_iter().map(|(unit, len)| (unit * 16, len));
        for (offset, len) in entries.into_iter().chain(aligned) {
            if pool.adopt(offset, len).is_ok() {
                taken.push((offset, len));
            }
        }
        pool.finish_adoption();
        check_notes(&pool);
        for (offset, len) in taken {
            prop_assert!(pool.release(offset, len).is_ok());
        }
        prop_assert_eq!(pool.stats().bytes_spans, 0);
        prop_assert_eq!(pool.stats().bytes_slots, 0);
    }
}
