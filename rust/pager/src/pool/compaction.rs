//! Emptying sparse spans, so that memory goes back to the host.
//!
//! Random releases leave spans half empty, and only an empty one gives its memory back. Per slot
//! size the fullest spans are kept, as many as the used slots need; the others become victims.
//! Of the kept ones the last is not filled up: its slots beyond what is left over are victims as
//! well, so that it ends without gaps. Room for every victim's slots is then free among the kept.
//!
//! The index does not move anything. Whoever owns the bytes and the table entries allocates
//! anew, copies, points the entry there and releases the old slot, for each entry that
//! [`is_victim`](PoolIndex::is_victim). Between two of those steps everything else may go on.

use std::cmp::Reverse;
use std::ops::{AddAssign, Range};

use super::span::{CLASSES, Geometry};
use super::{OFFSETS_END, PAGE, PoolIndex, push_pages, split};

/// What a compaction has to do, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Spans with slots to be moved away.
    pub spans: u64,
    /// Slots to be moved.
    pub slots: u64,
    /// Their size: what has to be copied.
    pub bytes_slots: u64,
    /// Memory that comes back when all are moved.
    pub bytes_gained: u64,
}

impl AddAssign for Compaction {
    fn add_assign(&mut self, other: Self) {
        self.spans += other.spans;
        self.slots += other.slots;
        self.bytes_slots += other.bytes_slots;
        self.bytes_gained += other.bytes_gained;
    }
}

/// Memory of the pool that holds no payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waste {
    /// All of it, at most.
    pub bytes: u64,
    /// What a compaction would gain of that.
    pub bytes_gainable: u64,
}

impl PoolIndex {
    /// How much memory holds no payload. Looks at every slot size, at no span.
    pub fn waste(&self) -> Waste {
        let gainable: u64 = (0..=u8::MAX).map(|class| self.pages_gainable(class)).sum();
        let stats = self.stats();
        Waste {
            bytes: stats.bytes_spans.saturating_sub(stats.bytes_payload),
            bytes_gainable: gainable * PAGE,
        }
    }

    /// Chooses the spans to be emptied, of all slot sizes. Looks at every partly used span: where
    /// that is too long for one lock, [`Self::plan_class`] does the same in pieces.
    pub fn plan_compaction(&mut self) -> Compaction {
        let mut plan = Compaction::default();
        for class in 0..CLASSES {
            plan += self.plan_class(class);
        }
        plan
    }

    /// Chooses the spans to be emptied of one slot size, `class` of [`CLASSES`]. A former choice
    /// is forgotten. Nothing is chosen where not a page would be gained.
    pub fn plan_class(&mut self, class: usize) -> Compaction {
        let mut plan = Compaction::default();
        let Ok(class) = u8::try_from(class) else { return plan };
        self.pardon_class(class);
        let gained = self.pages_gainable(class);
        if gained == 0 || self.adopting {
            return plan;
        }
        let rooms = self.classes[usize::from(class)].rooms.iter();
        let used = |number| self.span(number).map_or(0, |span| span.used);
        let mut partial: Vec<_> =
            rooms.map(|(_, number)| (Reverse(used(*number)), *number)).collect();
        let total: u64 = partial.iter().map(|(used, _)| u64::from(used.0)).sum();
        let slots = u64::from(Geometry::of(class).slots);
        let kept = (total / slots) as usize;
        if kept >= partial.len() {
            return plan;
        }
        let (_, last, victims) = partial.select_nth_unstable(kept);
        plan += self.mark(last.1, (total % slots) as u16);
        for (_, number) in victims {
            plan += self.mark(*number, 0);
        }
        plan.bytes_gained = gained * PAGE;
        plan
    }

    /// Whether the slot at `offset` is to be moved away.
    #[must_use]
    pub fn is_victim(&self, offset: u64) -> bool {
        let (number, within) = split(offset);
        offset < OFFSETS_END && self.span(number).is_some_and(|span| span.is_victim(within))
    }

    /// Ends the compaction, complete or not: there are no victims any more.
    ///
    /// Returns the pages that hold nothing in spans that hold something; their memory should go
    /// back to the kernel, before the next call of [`Self::alloc`]. Looks at every slot of partly
    /// used spans: where that is too long for one lock, [`Self::forget_victims`] and
    /// [`Self::trim`] do the same in pieces.
    pub fn end_compaction(&mut self) -> Vec<Range<u64>> {
        self.forget_victims();
        self.trim(0..self.spans_end())
    }

    /// There are no victims any more.
    pub fn forget_victims(&mut self) {
        for class in 0..=u8::MAX {
            self.pardon_class(class);
        }
    }

    /// Number of the spans that [`Self::trim`] can look at, used or not.
    #[must_use]
    pub fn spans_end(&self) -> u32 {
        self.spans.len() as u32
    }

    /// The pages that hold nothing in those of the spans `numbers` that are partly used. Their
    /// memory should go back to the kernel, before the next call of [`Self::alloc`].
    pub fn trim(&mut self, numbers: Range<u32>) -> Vec<Range<u64>> {
        let mut empty = Vec::new();
        for number in numbers.start..numbers.end.min(self.spans_end()) {
            let Some(span) = self.spans.get_mut(number as usize).and_then(Option::as_mut) else {
                continue;
            };
            if span.is_full() {
                continue;
            }
            let before = span.pages();
            let reached = u32::MAX >> (u32::BITS - before.max(1));
            push_pages(&mut empty, u64::from(number), reached & !span.live_pages());
            span.shorten_reach();
            let less = u64::from(before - span.pages());
            self.classes[usize::from(span.class)].pages -= less;
            self.pages -= less;
            self.reseat(number);
        }
        empty
    }

    /// Pages that a slot size would need less if its slots lay without gaps.
    fn pages_gainable(&self, class: u8) -> u64 {
        let Some(spans) = self.classes.get(usize::from(class)) else { return 0 };
        spans.pages.saturating_sub(Geometry::of(class).pages_packed(spans.slots))
    }

    /// Makes the slots of a span from `from` on victims.
    fn mark(&mut self, number: u32, from: u16) -> Compaction {
        let Some(span) = self.span_mut(number) else { return Compaction::default() };
        span.victim_from = from;
        let (class, slots) = (span.class, span.used_from(usize::from(from)));
        let bytes_slots = slots * u64::from(span.geometry().slot_bytes);
        self.classes[usize::from(class)].victims.insert((Reverse(from), number));
        self.reseat(number);
        Compaction { spans: u64::from(slots > 0), slots, bytes_slots, bytes_gained: 0 }
    }

    fn pardon_class(&mut self, class: u8) {
        while let Some((_, number)) = self.classes[usize::from(class)].victims.pop_first() {
            self.pardon(number);
        }
    }
}
