//! Realistic mixes of lengths: what a bad pattern of releases wastes, and what compaction leaves.

use super::*;
use std::time::Instant;

/// A fixed sequence of numbers, so that a failure can be looked at again.
struct Numbers(u64);

impl Numbers {
    /// Evenly between 0 and `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) as usize) % end
    }

    /// Around 850, seldom below 300 or above 1400.
    fn bell(&mut self) -> usize {
        250 + (0..4).map(|_| self.below(301)).sum::<usize>()
    }

    /// Every length from 300 to 1500 equally often.
    fn flat(&mut self) -> usize {
        300 + self.below(1201)
    }
}

/// Pages of the file with memory, and the cap that they must never pass.
struct Memory {
    touched: Vec<bool>,
    pages: u64,
    pages_max: u64,
}

impl Memory {
    fn new(bytes_max: u64) -> Self {
        let touched = vec![false; (file_bytes(bytes_max) / PAGE) as usize];
        Self { touched, pages: 0, pages_max: bytes_max / PAGE }
    }

    fn set(&mut self, pages: Range<u64>, value: bool) {
        for page in &mut self.touched[pages.start as usize..pages.end as usize] {
            self.pages = self.pages + u64::from(value) - u64::from(*page);
            *page = value;
        }
        assert!(self.pages <= self.pages_max, "above the cap");
    }

    fn alloc(&mut self, pool: &mut PoolIndex, len: usize) -> Option<u64> {
        let offset = pool.alloc(len)?;
        self.set(pages_of(offset, len), true);
        Some(offset)
    }

    fn punch(&mut self, range: &Range<u64>) {
        for page in range.start / PAGE..range.end / PAGE {
            self.pages -= u64::from(self.touched[page as usize]);
            self.touched[page as usize] = false;
        }
    }

    fn release(&mut self, pool: &mut PoolIndex, slot: (u64, usize)) {
        let released = pool.release(slot.0, slot.1).expect("in use");
        if let Some(range) = released.span_freed {
            self.punch(&range);
        }
    }

    fn compact(&mut self, pool: &mut PoolIndex, slots: &mut [(u64, usize)]) -> Compaction {
        let plan = pool.plan_compaction();
        for slot in slots {
            if pool.is_victim(slot.0) {
                let new = self.alloc(pool, slot.1).expect("there is room among the kept spans");
                self.release(pool, std::mem::replace(slot, (new, slot.1)));
            }
        }
        for range in pool.end_compaction() {
            self.punch(&range);
        }
        plan
    }

    /// Memory beyond the payload, in parts of the payload.
    fn waste(&self, pool: &PoolIndex) -> f64 {
        (self.pages * PAGE) as f64 / pool.stats().bytes_payload as f64 - 1.0
    }
}

/// Fills a pool of `bytes_max` to its cap, frees every other slot, compacts: no more than `limit`
/// of the payload is wasted then.
fn fill_free_compact(name: &str, bytes_max: u64, len: fn(&mut Numbers) -> usize, limit: f64) {
    let mut numbers = Numbers(7);
    let mut memory = Memory::new(bytes_max);
    let mut pool = PoolIndex::new(bytes_max);
    let mut slots = Vec::new();
    loop {
        let len = len(&mut numbers);
        let Some(offset) = memory.alloc(&mut pool, len) else { break };
        slots.push((offset, len));
    }
    let filled = (slots.len(), pool.stats().bytes_payload, memory.waste(&pool), memory.pages);
    let mut kept = Vec::new();
    for (number, slot) in slots.into_iter().enumerate() {
        if number % 2 == 0 || number % 97 < 2 {
            kept.push(slot);
        } else {
            memory.release(&mut pool, slot);
        }
    }
    let freed = (memory.waste(&pool), memory.pages);
    let index_bytes = pool.index_bytes();
    let plan = memory.compact(&mut pool, &mut kept);
    let waste = memory.waste(&pool);
    let (stats, after) = (pool.stats(), pool.waste());
    println!(
        "{name}: filled {} slots, {} MiB payload, waste {:.2} %; kept {}: waste {:.1} %; moved {} \
         slots: {} to {} pages, waste {:.2} % of {} MiB; index {:.2} B a slot, {:.2} % of payload",
        filled.0,
        filled.1 >> 20,
        filled.2 * 100.0,
        kept.len(),
        freed.0 * 100.0,
        plan.slots,
        freed.1,
        memory.pages,
        waste * 100.0,
        stats.bytes_payload >> 20,
        index_bytes as f64 / filled.0 as f64,
        index_bytes as f64 / filled.1 as f64 * 100.0,
    );
    assert_eq!(memory.pages * PAGE, stats.bytes_spans);
    assert_eq!(after.bytes_gainable, 0);
    assert!(plan.bytes_gained > 0 && memory.pages * 3 < filled.3 * 2, "the pool has to shrink");
    assert!(waste <= limit, "{name}: {waste}");
    check_notes(&pool);
}

#[test]
fn compaction_leaves_two_percent_of_a_pool_of_100_000_slots() {
    fill_free_compact("180 MB, bell", 180 << 20, Numbers::bell, 0.02);
    fill_free_compact("180 MB, flat", 180 << 20, Numbers::flat, 0.02);
}

#[test]
fn compaction_leaves_two_percent_of_a_pool_of_20_mb() {
    fill_free_compact("40 MB, bell", 40 << 20, Numbers::bell, 0.02);
    fill_free_compact("40 MB, flat", 40 << 20, Numbers::flat, 0.02);
}

#[test]
fn small_pages_waste_what_the_step_of_16_bytes_costs() {
    // 7.5 bytes of 320 on average are 2.3 %.
    fill_free_compact("40 MB, small", 40 << 20, |numbers| 40 + numbers.below(561), 0.03);
}

#[test]
fn compaction_of_a_pool_at_its_cap_never_passes_it() {
    let bytes_max = 8 << 20;
    let (mut numbers, mut memory) = (Numbers(3), Memory::new(bytes_max));
    let mut pool = PoolIndex::new(bytes_max);
    let mut slots = Vec::new();
    for _ in 0..20 {
        while let len = numbers.bell()
            && let Some(offset) = memory.alloc(&mut pool, len)
        {
            slots.push((offset, len));
        }
        for _ in 0..slots.len() / 3 {
            let slot = slots.swap_remove(numbers.below(slots.len()));
            memory.release(&mut pool, slot);
        }
        // At the cap a move may find no fresh page; what it then leaves is little, and by the
        // second time there are pages.
        let gained = memory.compact(&mut pool, &mut slots).bytes_gained;
        let left = pool.waste().bytes_gainable;
        assert!(left * 20 < gained, "{left} of {gained} left");
        memory.compact(&mut pool, &mut slots);
        assert_eq!(pool.waste().bytes_gainable, 0);
    }
    for slot in slots {
        memory.release(&mut pool, slot);
    }
    assert_eq!((memory.pages, pool.stats().slots), (0, 0));
}

#[test]
#[ignore = "prints the time that calls take"]
fn time_of_calls() {
    let mut numbers = Numbers(7);
    let mut pool = PoolIndex::new(4 << 30);
    let lens: Vec<usize> = (0..2_000_000).map(|_| numbers.bell()).collect();
    let each = |name: &str, start: Instant, calls: usize| {
        println!("{name}: {:.0} ns", start.elapsed().as_nanos() as f64 / calls as f64);
    };
    let start = Instant::now();
    let mut slots: Vec<_> =
        lens.iter().map(|len| (pool.alloc(*len).expect("room"), *len)).collect();
    each("alloc, growing", start, slots.len());
    let half = slots.len() / 2;
    let gone: Vec<_> = (0..half).map(|_| slots.swap_remove(numbers.below(slots.len()))).collect();
    let start = Instant::now();
    for (offset, len) in &gone {
        pool.release(*offset, *len).expect("in use");
    }
    each("release, at random", start, half);
    let start = Instant::now();
    slots
        .extend(gone.iter().take(half / 2).map(|(_, len)| (pool.alloc(*len).expect("room"), *len)));
    each("alloc, into holes", start, half / 2);
    let start = Instant::now();
    let plan = pool.plan_compaction();
    println!("plan: {:?}, {plan:?}", start.elapsed());
    let start = Instant::now();
    let victims = slots.iter().filter(|slot| pool.is_victim(slot.0)).count();
    each("is_victim", start, slots.len());
    assert_eq!(plan.slots, victims as u64);
    let start = Instant::now();
    for slot in slots.iter_mut().filter(|slot| slot.0 < u64::MAX) {
        if pool.is_victim(slot.0) {
            let new = pool.alloc(slot.1).expect("room");
            pool.release(slot.0, slot.1).expect("in use");
            slot.0 = new;
        }
    }
    each("is_victim, alloc, release of a moved slot", start, victims);
    let start = Instant::now();
    println!("end: {} ranges, {:?}", pool.end_compaction().len(), start.elapsed());
    let start = Instant::now();
    let mut copy = PoolIndex::for_file(file_bytes(4 << 30));
    for (offset, len) in &slots {
        copy.adopt(*offset, *len).expect("a valid pool");
    }
    each("adopt", start, slots.len());
    let start = Instant::now();
    copy.finish_adoption();
    println!("finish_adoption: {:?}", start.elapsed());
    assert_eq!(copy.stats().bytes_spans, pool.stats().bytes_spans);
}
