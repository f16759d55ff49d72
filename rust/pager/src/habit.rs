//! What a space has learned: the pages that it needs when it wakes, in the order of first need.
//!
//! A set with an order, not a sequence: from wake to wake the same pages are needed, but hardly
//! ever one after the same other.  A *wake* begins when it is announced, or with the first burst of
//! refaults after a page out.  Pages that fault from then on are noted, for a bounded time; the
//! next page out ends the wake and folds the notes into the set.  Each wake that a page is needed
//! in adds to its weight, each one that it stayed away in halves it.  The first wake is
//! believed, and so is what appears later, until it stays away.  Only if much does, it is
//! *on trial* until a second wake needs it, because one wake may touch all there is (a full
//! collection of garbage does) and the next ones a fifth of it.
//!
//! A page that is brought home early does not fault, and so says nothing about its need.  Two
//! things do: a written page was needed (the page out sees it by its checksum), and a part of the
//! set, another one at each wake, is *spared* from prefetch and left to fault.  What the spared
//! pages say is taken to hold for their *cohort*, the pages that were learned in the same wake: of
//! a cohort whose spared pages mostly stayed away, all that was brought counts as not needed.
//! Pages that only one wake has needed are spared more often than proven ones, as most waste is
//! among them.  A spared page stands for as many as its share says.  Hence
//!
//! - precision = `spared_touched / spared`, both in pages that they stand for;
//! - waste = 1 - precision; hits = precision x `prefetched`;
//! - `missed` counts faults on what prefetch did not mean to bring, learned or not;
//! - hit rate = hits / (hits + missed).
//!
//! The numbers were chosen on recorded wakes (ARCHITECTURE.md).
//! Pure but for its counters: no lock, no clock, no I/O.  A refault costs a binary search and two
//! stores, and allocates nothing; all that grows does so when a page out ends.

use crate::address::{PAGE_SIZE, PageNumber};
use crate::stats::increment;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sample::{CHOSEN, PART_SHIFT, Parts, SPARED, TOUCHED, idle_cohorts, is_turn, stands_for};

mod sample;
#[cfg(test)]
mod tests;

/// Pages that a set can hold, 1 MiB of memory; the least needed ones give way.
pub const PAGES_MAX: usize = 1 << 16;
/// How long a wake is learned from.  What is touched later is the work, not the waking.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Refaults within this time belong together.
const BURST: Duration = Duration::from_millis(50);
/// So many refaults of learned pages in a burst are a wake: one in 64 of the set, between these
/// bounds.  Below, it is the tick of a framework; above, the burst would have no time for them.
const BURST_PART: usize = 64;
const BURST_KNOWN: std::ops::RangeInclusive<usize> = 4..=128;
/// So many times as many are a wake, if they are of other pages.
const BURST_UNKNOWN_FACTOR: usize = 4;
const BURST_UNKNOWN: std::ops::RangeInclusive<usize> = 32..=256;
/// Weight of a page that was needed for the first time, and what each further wake adds.
const GAIN: u8 = 4;
/// With less than that it stayed away twice: it is not brought, but left to fault.
const EXPECTED: u8 = 2;
/// A page that was needed more than once has to stay away twice.
const WEIGHT_MAX: u8 = 8;
/// Weight of what may be needed, and is not expected any more when it stays away once: what the
/// first wake brought along with a touched neighbour, and what a later wake needed for the first
/// time.
const GUESS: u8 = 3;
/// Weight of what a later wake needed for the first time, if that is more than one page for so many
/// known ones: it is on trial, and needs one more wake to be brought.
const TRIAL: u8 = 1;
const TRIAL_PART: usize = 2;
/// A wake that needs so many times what is known is believed as the first one is.
const FEW_KNOWN: usize = 4;
/// Room for notes, 128 KiB, beside that for twice the size of the set.
const NOTES_MORE: usize = 1 << 14;
/// Refaults that are kept until somebody asks: those of two wakes that need everything, between
/// these bounds.
const REFAULTS_KEPT: std::ops::RangeInclusive<usize> = 256..=4096;
/// Refaults of neighbours so close in time are told as one.
const REFAULTS_APART_MS: u64 = 50;
/// Unit of the order, so that 16 bits cover four seconds; what comes later is last.
const ORDER_MICROS: u128 = 64;
const PAGE_BITS: u32 = 36;
/// Of a note: the page was brought along, not touched.
const GUESSED: u64 = 1 << 63;
/// Of a cohort: its pages were.
const GUESSED_COHORT: u8 = 1 << 7;
/// In the bits above a page's: three days, or longer.
const AFTER_MS_MAX: u64 = u64::MAX >> PAGE_BITS;

/// A page that was needed in a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Which.
    pub page: PageNumber,
    /// When it is needed first, in units of 64 us after the wake's begin.
    pub order: u16,
    /// How sure it is that it will be needed, 1 to 8.
    pub weight: u8,
    /// In which wake it was learned, modulo 128, and whether by a guess; 0 also from elsewhere.
    cohort: u8,
    marks: u8,
}

impl Learned {
    /// Whether the next wake brings it home; of the others it waits for a fault.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.weight >= EXPECTED
    }

    /// A page of somebody else's set, on trial.
    #[must_use]
    pub fn foreign(page: PageNumber, order: u16, weight: u8) -> Self {
        Self { page, order, weight: weight.clamp(1, GAIN), cohort: 0, marks: 0 }
    }
}

/// What happened to the learned set of a space; counted since its attach.
#[derive(Debug, Default)]
pub struct Tally {
    /// Wakes, announced or seen.
    pub wakes: AtomicU64,
    /// Pages brought home by prefetch.
    pub prefetched: AtomicU64,
    /// Pages of the set that the ones left to fault stand for.
    pub spared: AtomicU64,
    /// Of those, what the ones that did fault stand for.
    pub spared_touched: AtomicU64,
    /// Refaults in a wake on what prefetch did not mean to bring.
    pub missed: AtomicU64,
    /// Pages of the set that were touched before prefetch had brought them.
    pub late: AtomicU64,
    /// Pages brought home because a neighbour was touched.
    pub windowed: AtomicU64,
    /// Refaults that nobody asked for in time.
    pub refaults_dropped: AtomicU64,
    /// Pages in the set.
    pub learned: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    /// Memory of the set and the notes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Pages in a row that came back because they were touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefaultRange {
    /// Byte addresses.
    pub range: Range<u64>,
    /// How long after the end of the last page out, in milliseconds.
    pub after_ms: u64,
}

/// Refaults that follow each other closely.
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    began: Option<Instant>,
    /// Of learned pages.
    known: usize,
    all: usize,
}

/// What a refault calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Nothing is out, or a page out is at work.
    Unheard,
    /// Nothing.
    Nothing,
    /// The sandbox wakes: bring the set home.
    Replay,
}

/// The set at one moment, to choose from without a lock.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    learned: Vec<Learned>,
    generation: u64,
    wake: u64,
    fresh: bool,
}

/// What a wake brings home.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Pages to bring, first needed first.
    pub pages: Vec<PageNumber>,
    /// Learned pages that are home already.
    pub present: u64,
    /// Pages held back.
    pub spared: u64,
    /// What those stand for.
    stands_for: u64,
    marks: Vec<(u32, u8)>,
    generation: u64,
}

/// The learned set of one space, and its wake in progress.
#[derive(Debug, Default)]
pub struct Habit {
    /// By page, each once.
    learned: Vec<Learned>,
    /// Goes up when positions in `learned` change.
    generation: u64,
    /// Pages needed since the last page out, with their order.
    noted: Vec<u64>,
    /// Of those noted, what belongs to wakes; the rest is a burst that may become one.
    noted_for_sure: usize,
    /// Pages that came back because they were touched, with the time since the last page out.
    refaults: VecDeque<u64>,
    /// End of the last page out; `None` before it and while one runs.
    asleep_since: Option<Instant>,
    awake_since: Option<Instant>,
    burst: Burst,
    /// A wake is replayed when it is seen.
    pub replay: bool,
    /// The set was brought home, or is about to be, since the last page out.
    replayed: bool,
    /// Some wake began since the last page out.
    woke: bool,
    /// Page outs that have begun.
    sleeps: u64,
    tally: Arc<Tally>,
}

impl Habit {
    /// Counters, which can be read without the lock of the space.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Whether the space is in a wake.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.awake_since.is_some()
    }

    /// A page is about to be brought along with a touched neighbour; false if it must not be.
    pub fn brings_along(&mut self, page: PageNumber, now: Instant) -> bool {
        let Some(since) = self.awake_since else { return false };
        match self.find(page) {
            Some(index) => self.learned[index].marks & SPARED == 0,
            None => {
                let order = order_of(now.saturating_duration_since(since));
                self.note(page, order, GUESSED);
                true
            }
        }
    }

    /// How many page outs have begun: what was asked for before another one is not wanted after it.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Whether the next wake brings the page home.
    #[must_use]
    pub fn returns(&self, page: PageNumber) -> bool {
        self.find(page).is_some_and(|index| self.learned[index].weight >= GAIN)
    }

    /// A page that was out has been touched, and was brought.
    pub fn refault(&mut self, page: PageNumber, now: Instant) -> Call {
        let Some(asleep_since) = self.asleep_since else { return Call::Unheard };
        self.keep_refault(page, now.saturating_duration_since(asleep_since));
        let known = self.find(page);
        let meant = known.is_some_and(|index| self.judge_mark(index));
        if self.awake_since.is_some_and(|since| now.saturating_duration_since(since) > WINDOW) {
            self.awake_since = None;
            self.burst = Burst::default();
            self.noted_for_sure = self.noted.len();
        }
        self.count_in_burst(known.is_some(), now);
        let since = self.awake_since.or(self.burst.began).unwrap_or(now);
        self.note(page, order_of(now.saturating_duration_since(since)), 0);
        if self.awake_since.is_some() {
            self.tally.missed.fetch_add(u64::from(!meant), Ordering::Relaxed);
        } else if self.burst.known >= self.known_for_a_wake()
            || self.burst.all >= self.unknown_for_a_wake()
        {
            self.begin_wake(since);
            self.tally.missed.fetch_add(self.burst.all as u64, Ordering::Relaxed);
        }
        if self.replay && !self.replayed && self.burst.known >= self.known_for_a_wake() {
            self.replayed = true;
            return Call::Replay;
        }
        Call::Nothing
    }

    /// A page that a window brought was passed over: it is needed as if it had faulted.
    pub fn passed_over(&mut self, page: PageNumber, now: Instant) {
        if let Some(since) = self.awake_since.or(self.burst.began) {
            self.burst.all += 1;
            self.note(page, order_of(now.saturating_duration_since(since)), 0);
        }
    }

    /// A page had changed when it left again.
    pub fn written(&mut self, page: PageNumber) {
        if let Some(index) = self.find(page)
            && self.learned[index].marks & CHOSEN != 0
        {
            let known = &mut self.learned[index];
            known.marks &= !CHOSEN;
            known.weight = (known.weight + GAIN).min(WEIGHT_MAX);
        }
    }

    /// A mapping moved, and what was learned with it.
    pub fn moved(&mut self, from: PageNumber, to: PageNumber, count: u64) {
        let first = self.learned.partition_point(|known| known.page < from);
        let end = self.learned.partition_point(|known| known.page < from.forward(count));
        if first == end {
            return;
        }
        let target = to..to.forward(count);
        let (mut gone, mut index) = (0, 0);
        // What was learned of the target's addresses is not true of their new tenant.
        self.learned.retain(|known| {
            let stays = !target.contains(&known.page);
            gone += usize::from(!stays && index < first);
            index += 1;
            stays
        });
        for known in &mut self.learned[first - gone..end - gone] {
            known.page = PageNumber(to.0 + (known.page.0 - from.0));
        }
        self.learned.sort_unstable_by_key(|known| known.page);
        self.changed();
    }

    /// The last attempt to bring the set home could not begin: the next burst tries again.
    pub fn not_replayed(&mut self) {
        self.replayed = false;
    }

    /// A page out begins: the wake is over.  Take the set out, to be folded without the lock;
    /// nothing is learned until [`Habit::sleep`].
    pub fn close(&mut self) -> Fold {
        self.asleep_since = None;
        self.sleeps += 1;
        let noted = match (self.woke, self.awake_since) {
            (false, _) => 0,
            (true, Some(_)) => self.noted.len(),
            // A burst that became no wake is nobody's habit.
            (true, None) => self.noted_for_sure,
        };
        Fold {
            learned: self.learned.clone(),
            noted: self.noted[..noted].to_vec(),
            woke: self.woke,
            wakes: self.tally.wakes.load(Ordering::Relaxed),
            generation: self.generation,
        }
    }

    /// Take the folded set, unless a mapping moved meanwhile; then the wake taught nothing.
    pub fn reopen(&mut self, fold: Fold) {
        if fold.generation == self.generation {
            self.learned = fold.learned;
            self.changed();
        }
    }

    /// A page out has ended, with so many pages out.
    pub fn sleep(&mut self, now: Instant, pages_out: u64) {
        self.asleep_since = Some(now);
        self.awake_since = None;
        self.burst = Burst::default();
        (self.replayed, self.woke) = (false, false);
        self.noted.clear();
        self.noted_for_sure = 0;
        let out = usize::try_from(pages_out).unwrap_or(PAGES_MAX).min(PAGES_MAX);
        let room = match self.learned.len() {
            0 => out,
            // Who needs twice as much as ever is learned from again at the next wake.
            known => out.min(2 * known + NOTES_MORE),
        };
        self.noted.shrink_to(room);
        self.noted.reserve_exact(room);
        let kept = (2 * out).clamp(*REFAULTS_KEPT.start(), *REFAULTS_KEPT.end());
        self.refaults.reserve_exact(kept.saturating_sub(self.refaults.len()));
        self.learned.iter_mut().for_each(|known| known.marks = 0);
        self.changed();
    }

    /// A wake is announced, or was seen: what to choose from.
    pub fn wake(&mut self, now: Instant) -> Snapshot {
        let fresh = !self.learned.iter().any(|known| known.marks != 0);
        if self.asleep_since.is_some() && self.awake_since.is_none() {
            self.begin_wake(now);
        }
        self.replayed = true;
        Snapshot {
            learned: self.learned.clone(),
            generation: self.generation,
            wake: self.tally.wakes.load(Ordering::Relaxed),
            fresh,
        }
    }

    /// Remember what was chosen.
    pub fn chose(&mut self, choice: &Choice) {
        if choice.generation == self.generation {
            for (index, mark) in &choice.marks {
                self.learned[*index as usize].marks = *mark;
            }
            self.tally.spared.fetch_add(choice.stands_for, Ordering::Relaxed);
        }
    }

    /// Learned pages.
    #[must_use]
    pub fn pages(&self) -> &[Learned] {
        &self.learned
    }

    /// Add pages of somebody else's set; what is known of a page already stands.
    pub fn adopt(&mut self, mut pages: Vec<Learned>) {
        pages.retain(|page| self.find(page.page).is_none());
        self.learned.extend(pages);
        arrange(&mut self.learned);
        self.changed();
    }

    /// Refaults since the last call, neighbours together, oldest first.
    pub fn take_refaults(&mut self) -> Vec<RefaultRange> {
        let mut all: Vec<u64> = self.refaults.drain(..).collect();
        all.sort_by_key(|refault| page_of(*refault));
        let mut ranges: Vec<RefaultRange> = Vec::new();
        for refault in all {
            let (start, after_ms) = (page_of(refault).start().0, refault >> PAGE_BITS);
            let end = start + PAGE_SIZE as u64;
            match ranges.last_mut() {
                Some(last)
                    if (last.range.start..=last.range.end).contains(&start)
                        && last.after_ms.abs_diff(after_ms) <= REFAULTS_APART_MS =>
                {
                    last.range.end = end;
                    last.after_ms = last.after_ms.min(after_ms);
                }
                _ => ranges.push(RefaultRange { range: start..end, after_ms }),
            }
        }
        ranges.sort_by_key(|range| range.after_ms);
        ranges
    }

    fn begin_wake(&mut self, since: Instant) {
        self.awake_since = Some(since);
        self.woke = true;
        increment(&self.tally.wakes);
    }

    fn find(&self, page: PageNumber) -> Option<usize> {
        self.learned.binary_search_by_key(&page, |known| known.page).ok()
    }

    /// A learned page was touched; whether it was chosen or spared, and touched for the first time.
    fn judge_mark(&mut self, index: usize) -> bool {
        let marks = &mut self.learned[index].marks;
        if *marks & CHOSEN != 0 {
            *marks = 0;
            increment(&self.tally.late);
            return true;
        }
        let first = *marks & (SPARED | TOUCHED) == SPARED;
        if first {
            *marks |= TOUCHED;
            let stands_for = stands_for(*marks >> PART_SHIFT);
            self.tally.spared_touched.fetch_add(stands_for, Ordering::Relaxed);
        }
        first
    }

    fn count_in_burst(&mut self, known: bool, now: Instant) {
        let burst = &mut self.burst;
        if burst.began.is_none_or(|began| now.saturating_duration_since(began) > BURST) {
            *burst = Burst { began: Some(now), known: 0, all: 0 };
            if self.awake_since.is_none() {
                self.noted.truncate(self.noted_for_sure);
            }
        }
        burst.all += 1;
        burst.known += usize::from(known);
    }

    fn known_for_a_wake(&self) -> usize {
        let (low, high) = (*BURST_KNOWN.start(), *BURST_KNOWN.end());
        (self.learned.len() / BURST_PART).clamp(low, high)
    }

    fn unknown_for_a_wake(&self) -> usize {
        let (low, high) = (*BURST_UNKNOWN.start(), *BURST_UNKNOWN.end());
        (self.known_for_a_wake() * BURST_UNKNOWN_FACTOR).clamp(low, high)
    }

    /// More than there is room for is not noted: nothing grows while a page is waited for.
    fn note(&mut self, page: PageNumber, order: u16, guessed: u64) {
        if self.noted.len() < self.noted.capacity().min(PAGES_MAX) {
            self.noted.push(guessed | u64::from(order) << PAGE_BITS | page.0);
        }
    }

    fn keep_refault(&mut self, page: PageNumber, after: Duration) {
        if self.refaults.len() == self.refaults.capacity() {
            self.refaults.pop_front();
            increment(&self.tally.refaults_dropped);
        }
        let after_ms =
            u64::try_from(after.as_millis()).map_or(AFTER_MS_MAX, |ms| ms.min(AFTER_MS_MAX));
        self.refaults.push_back(after_ms << PAGE_BITS | page.0);
    }

    fn changed(&mut self) {
        self.generation += 1;
        let bytes = self.learned.capacity() * size_of::<Learned>()
            + self.noted.capacity() * size_of::<u64>()
            + self.refaults.capacity() * size_of::<u64>();
        self.tally.learned.store(self.learned.len() as u64, Ordering::Relaxed);
        self.tally.bytes.store(bytes as u64, Ordering::Relaxed);
    }
}

/// A set and the notes of a wake, on their way into each other.
#[derive(Debug)]
pub struct Fold {
    learned: Vec<Learned>,
    noted: Vec<u64>,
    woke: bool,
    /// How many there were, with this one.
    wakes: u64,
    generation: u64,
}

impl Fold {
    /// Weigh every page by what the wake said of it.
    ///
    /// `is_out`: it stayed away through the wake; `is_mapped`: there still is such a page.
    pub fn fold(
        &mut self,
        is_out: impl Fn(PageNumber) -> bool,
        is_mapped: impl Fn(PageNumber) -> bool,
    ) {
        // Guesses are only made of a space whose habit is not known.
        let touched = self.noted.iter().filter(|note| **note & GUESSED == 0).count();
        let is_first = self.wakes <= 1 || touched > FEW_KNOWN * self.learned.len();
        self.noted.retain(|note| is_first || note & GUESSED == 0);
        let weight = if is_first { GAIN } else { TRIAL };
        let learn = |note| learned_of(note, weight, self.wakes as u8);
        let mut needed: Vec<Learned> = self.noted.drain(..).map(learn).collect();
        // What was touched, before what was guessed.
        needed.sort_by_key(|need| (need.page, Reverse(need.weight), need.order));
        needed.dedup_by_key(|need| need.page);
        let mut new = Vec::new();
        let idle_cohorts = idle_cohorts(&self.learned);
        let known = &mut self.learned;
        let mut is_needed = vec![false; known.len()];
        for need in needed {
            match known.binary_search_by_key(&need.page, |known| known.page) {
                Ok(_) if need.weight == GUESS => {}
                Ok(index) => {
                    let known = &mut known[index];
                    known.weight = (known.weight + GAIN).min(WEIGHT_MAX);
                    known.order = known.order.midpoint(need.order);
                    is_needed[index] = true;
                }
                Err(_) => new.push(need),
            }
        }
        for (known, is_needed) in known.iter_mut().zip(is_needed) {
            let stayed_away = is_out(known.page)
                || known.marks & CHOSEN != 0 && idle_cohorts[usize::from(known.cohort)];
            if self.woke && !is_needed && stayed_away {
                known.weight /= 2;
            }
        }
        if !is_first && new.len() <= known.len() / TRIAL_PART {
            new.iter_mut().for_each(|new: &mut Learned| new.weight = GUESS);
        }
        known.extend(new);
        known.retain(|known| known.weight > 0 && is_mapped(known.page));
        arrange(known);
        known.shrink_to_fit();
    }
}

impl Snapshot {
    /// Choose what to bring home of what `is_out`, and what to spare; no more than `pages_max`,
    /// the surest ones.
    pub fn choose(&self, pages_max: usize, is_out: impl Fn(PageNumber) -> bool) -> Choice {
        let mut choice = Choice { generation: self.generation, ..Choice::default() };
        let parts = Parts::of(&self.learned);
        let mut chosen: Vec<(Learned, u32)> = Vec::new();
        for (known, index) in self.learned.iter().zip(0u32..) {
            let part = parts.for_page(known);
            if !is_out(known.page) {
                choice.present += 1;
            } else if !known.is_expected() {
                // Whether it is needed again shows by a fault.
            } else if known.marks & SPARED != 0 {
                // Of the same wake: it goes on being spared.
            } else if self.fresh && is_turn(known.page, self.wake, part) {
                choice.spared += 1;
                choice.stands_for += stands_for(part);
                choice.marks.push((index, SPARED | part << PART_SHIFT));
            } else {
                chosen.push((*known, index));
            }
        }
        if chosen.len() > pages_max {
            chosen.sort_by_key(|(known, _)| (Reverse(known.weight), known.order));
            chosen.truncate(pages_max);
        }
        chosen.sort_by_key(|(known, _)| (known.order, known.page));
        choice.marks.extend(chosen.iter().map(|(_, index)| (*index, CHOSEN)));
        choice.pages = chosen.into_iter().map(|(known, _)| known.page).collect();
        choice
    }
}

/// The surest `pages_max` of some pages, which come in order of addresses, as ranges of addresses;
/// the surest first, of equally sure ones the first needed first.
pub fn hottest<'a>(
    pages: impl Iterator<Item = &'a Learned>,
    mut pages_max: u64,
) -> Vec<Range<u64>> {
    let mut runs: Vec<(Range<u64>, u8, u16)> = Vec::new();
    for known in pages {
        let (start, grade) = (known.page.start().0, known.weight.div_ceil(GAIN));
        let end = start + PAGE_SIZE as u64;
        match runs.last_mut() {
            Some((range, last, order)) if range.end == start && *last == grade => {
                range.end = end;
                *order = known.order.min(*order);
            }
            _ => runs.push((start..end, grade, known.order)),
        }
    }
    runs.sort_by_key(|(_, grade, order)| (Reverse(*grade), *order));
    let mut ranges = Vec::new();
    for (range, ..) in runs {
        let pages = pages_max.min((range.end - range.start) / PAGE_SIZE as u64);
        if pages == 0 {
            break;
        }
        pages_max -= pages;
        ranges.push(range.start..range.start + pages * PAGE_SIZE as u64);
    }
    ranges
}

fn order_of(since: Duration) -> u16 {
    u16::try_from(since.as_micros() / ORDER_MICROS).unwrap_or(u16::MAX)
}

/// The page that a word of notes or refaults is about.
fn page_of(word: u64) -> PageNumber {
    PageNumber(word & ((1 << PAGE_BITS) - 1))
}

fn learned_of(note: u64, weight: u8, wake: u8) -> Learned {
    let guessed = note & GUESSED != 0;
    let cohort = wake & !GUESSED_COHORT | if guessed { GUESSED_COHORT } else { 0 };
    let weight = if guessed { GUESS } else { weight };
    let order = (note >> PAGE_BITS) as u16;
    Learned { page: page_of(note), order, weight, cohort, marks: 0 }
}

/// By page, each once, and no more than there is room for.
fn arrange(pages: &mut Vec<Learned>) {
    if pages.len() > PAGES_MAX {
        pages.sort_by_key(|known| (Reverse(known.weight), known.order));
        pages.truncate(PAGES_MAX);
    }
    pages.sort_unstable_by_key(|known| known.page);
    pages.dedup_by_key(|known| known.page);
}
