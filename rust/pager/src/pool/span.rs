//! One span: slots of one size, how often each is referenced, and how far memory may reach.
//!
//! Sizes go up in steps of 16 bytes, and no size fills a fixed number of pages without a rest.
//! So every span has the same stride in the file, but each size uses only as many of its pages
//! as leave the smallest rest; what follows up to the stride is never touched.

use super::SLOT_UNIT;
use crate::address::PAGE_SIZE;

/// Distance between spans in the file.
pub const SPAN_STRIDE: u64 = PAGES_MAX as u64 * PAGE_SIZE as u64;
/// Number of slot sizes: 16, 32, … 4096 bytes.
pub const CLASSES: usize = PAGE_SIZE / SLOT_UNIT as usize;

/// Most pages that a span uses. Twice as many as 16 pages leave a quarter of the rest (0.04 % of
/// the span on average for slots of 300 to 1500 bytes), and an open span pays only for the pages
/// it has reached; more would make spans that random frees hardly ever empty.
const PAGES_MAX: u32 = 32;
/// Fewest pages that a span uses: with fewer the rest grows in proportion.
const PAGES_MIN: u32 = 16;
/// A counter with this value stands for one kept outside of the span.
const MANY: u8 = u8::MAX;
/// Value of [`Span::victim_from`] for a span that is no victim; no span has as many slots.
pub(super) const NO_VICTIM: u16 = u16::MAX;

/// How the slots of one class lie in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub slot_bytes: u32,
    pub slots: u32,
    pub pages: u32,
}

static GEOMETRY: [Geometry; CLASSES] = geometry_of_all();

const fn geometry_of_all() -> [Geometry; CLASSES] {
    let mut all = [Geometry { slot_bytes: 0, slots: 0, pages: 0 }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        all[class] = best_geometry((class as u32 + 1) * SLOT_UNIT as u32);
        class += 1;
    }
    all
}

/// The number of pages with the smallest share of bytes that fit no slot; the largest such.
const fn best_geometry(slot_bytes: u32) -> Geometry {
    let (mut best, mut pages) = (PAGES_MAX, PAGES_MAX - 1);
    while pages >= PAGES_MIN {
        // rest(pages) / pages < rest(best) / best
        if rest(pages, slot_bytes) * best < rest(best, slot_bytes) * pages {
            best = pages;
        }
        pages -= 1;
    }
    Geometry { slot_bytes, slots: best * PAGE_SIZE as u32 / slot_bytes, pages: best }
}

const fn rest(pages: u32, slot_bytes: u32) -> u32 {
    pages * PAGE_SIZE as u32 % slot_bytes
}

impl Geometry {
    pub(super) fn of(class: u8) -> Self {
        GEOMETRY[usize::from(class)]
    }

    /// Pages that the first `slots` slots touch.
    pub(super) fn pages_of(self, slots: u32) -> u32 {
        (slots * self.slot_bytes).div_ceil(PAGE_SIZE as u32)
    }

    /// Pages that this many slots of the class need if nothing lies in between.
    pub(super) fn pages_packed(self, slots: u64) -> u64 {
        let per_span = u64::from(self.slots);
        let rest = (slots % per_span) as u32;
        slots / per_span * u64::from(self.pages) + u64::from(self.pages_of(rest))
    }

    /// The pages of the slot, as bits.
    fn page_bits(self, slot: u32) -> u32 {
        let start = slot * self.slot_bytes;
        let end = start + self.slot_bytes - 1;
        1 << (start / PAGE_SIZE as u32) | 1 << (end / PAGE_SIZE as u32)
    }
}

/// The class for `len` bytes: the smallest slot that holds them.
pub(super) fn class_of(len: usize) -> Option<u8> {
    if len == 0 || len > PAGE_SIZE {
        return None;
    }
    u8::try_from((len - 1) / SLOT_UNIT as usize).ok()
}

/// What the next slot of a span costs. Ordered as slots are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seat {
    /// Nothing: it lies among slots that were used before.
    Hole,
    /// Perhaps a page: it lies beyond them.
    Fresh,
    /// There is none to hand out.
    Nowhere,
}

/// What a reference count did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// It is kept in the span.
    Here,
    /// It does not fit and is kept outside of it.
    Outside,
}

/// A span with at least one slot in use.
#[derive(Debug)]
pub(super) struct Span {
    /// References per slot; 0 means free, [`MANY`] kept outside.
    refs: Box<[u8]>,
    pub used: u16,
    /// The lowest slot that is free; the number of slots if none is.
    pub lowest_free: u16,
    /// No slot from here on has memory: it was never used, or its pages were given back.
    pub reach: u16,
    /// Slots from here on are to be moved away and are not handed out.
    pub victim_from: u16,
    pub class: u8,
    /// Where the index has noted the span.
    pub seat: Seat,
}

impl Span {
    pub(super) fn new(class: u8) -> Self {
        let slots = Geometry::of(class).slots as usize;
        Self {
            refs: vec![0; slots].into(),
            used: 0,
            lowest_free: 0,
            reach: 0,
            victim_from: NO_VICTIM,
            class,
            seat: Seat::Nowhere,
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry::of(self.class)
    }

    pub(super) fn slots(&self) -> usize {
        self.refs.len()
    }

    pub(super) fn is_full(&self) -> bool {
        usize::from(self.used) == self.refs.len()
    }

    /// Pages that may have memory.
    pub(super) fn pages(&self) -> u32 {
        self.geometry().pages_of(u32::from(self.reach))
    }

    /// Where the span belongs now.
    pub(super) fn due_seat(&self) -> Seat {
        let end = self.victim_from.min(self.refs.len() as u16);
        if self.lowest_free >= end {
            Seat::Nowhere
        } else if self.lowest_free < self.reach {
            Seat::Hole
        } else {
            Seat::Fresh
        }
    }

    /// The slot that starts at this byte of the span, free or not.
    pub(super) fn slot_at(&self, within: u32) -> Option<usize> {
        let slot_bytes = self.geometry().slot_bytes;
        let slot = (within / slot_bytes) as usize;
        (within.is_multiple_of(slot_bytes) && slot < self.refs.len()).then_some(slot)
    }

    /// Whether the slot around this byte of the span is to be moved away.
    pub(super) fn is_victim(&self, within: u32) -> bool {
        match self.victim_from {
            NO_VICTIM => false,
            from => within / self.geometry().slot_bytes >= u32::from(from),
        }
    }

    /// References of a slot; `None` when they are kept outside.
    pub(super) fn refs(&self, slot: usize) -> Option<u32> {
        Some(self.refs[slot]).filter(|refs| *refs < MANY).map(u32::from)
    }

    /// Used slots from `from` on.
    pub(super) fn used_from(&self, from: usize) -> u64 {
        self.refs.iter().skip(from).filter(|refs| **refs > 0).count() as u64
    }

    /// Takes a free slot, with one reference. Returns the number of pages newly reached.
    pub(super) fn take(&mut self, slot: usize) -> u32 {
        let pages = self.pages();
        self.refs[slot] = 1;
        self.used += 1;
        self.reach = self.reach.max(slot as u16 + 1);
        if slot == usize::from(self.lowest_free) {
            self.lowest_free = self.next_free(slot + 1);
        }
        self.pages() - pages
    }

    /// Frees a used slot.
    pub(super) fn give_back(&mut self, slot: usize) {
        self.refs[slot] = 0;
        self.used -= 1;
        self.lowest_free = self.lowest_free.min(slot as u16);
    }

    /// Stores the references of a used slot, at least one.
    pub(super) fn set_refs(&mut self, slot: usize, refs: u32) -> Counted {
        match u8::try_from(refs) {
            Ok(refs) if refs < MANY => {
                self.refs[slot] = refs;
                Counted::Here
            }
            _ => {
                self.refs[slot] = MANY;
                Counted::Outside
            }
        }
    }

    /// Pages with a byte of a used slot, as bits.
    pub(super) fn live_pages(&self) -> u32 {
        let geometry = self.geometry();
        let used = self.refs.iter().enumerate().filter(|(_, refs)| **refs > 0);
        used.fold(0, |bits, (slot, _)| bits | geometry.page_bits(slot as u32))
    }

    /// Forgets what was reached beyond the last used slot.
    pub(super) fn shorten_reach(&mut self) {
        let end = self.refs.iter().rposition(|refs| *refs > 0).map_or(0, |slot| slot + 1);
        self.reach = end as u16;
    }

    fn next_free(&self, from: usize) -> u16 {
        // In chunks because the compiler searches a whole chunk at once: up to 8192 slots.
        let rest = self.refs.get(from..).unwrap_or_default();
        let chunk = rest.chunks(64).position(|chunk| chunk.contains(&0));
        let start = chunk.map_or(rest.len(), |chunk| chunk * 64);
        let tail = rest[start..].iter().position(|refs| *refs == 0).unwrap_or(0);
        (from + start + tail) as u16
    }
}
