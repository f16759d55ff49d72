//! How much of a touched page's neighbourhood to bring along.
//!
//! A window is a block of pages around a refault, aligned to its own size.  The first refault in a
//! neighbourhood is never believed: only the next one beside it opens a window, of the least size.
//! Pages that a window brought do not fault, so that it paid off shows by where the next refault
//! lands: just beyond its border, so that its pages were passed over.  Then the next window is
//! twice as large.  A window that nothing follows is doubted when its place is taken by another
//! one; after doubts it takes more refaults in a row to open one.
//!
//! In a wake, moreover, the next pages *along* a touched one come with it, as in the kernel's own
//! fault-around: programs lay out what they use together.  In recorded wakes of a data analysis
//! and a batch job of Node whose habits were not known, blocks of 8 pages took the faults from
//! 17,400 to 4,100 and from 18,500 to 2,800, for 1.9 and 1.2 times the pages.  One block in eight
//! is left to fault page by page: while hardly any of these is touched twice, nothing comes along.
//! Who is faster than those that bring a block faults on its pages; they are not asked again.
//!
//! Pure: no lock, no clock, no allocation.

use crate::address::PageNumber;
use crate::error::{Error, Result};
use std::ops::Range;

/// Pages that come along with a touched one, with it: a block aligned to its size.
pub const ALONG_PAGES: u64 = 8;
/// One block of so many is left, to see whether its neighbours are touched.
const LEFT_PART: u32 = 8;
/// Blocks left that are watched: for the time of 256 refaults.
const LEFT: usize = 32;
/// Trust in blocks: at first, from where on they come, at most; and what a touched neighbour adds.
/// One that was not touched takes 1.
const TRUST_AT_FIRST: u8 = 8;
const TRUST_ENOUGH: u8 = 6;
const TRUST_MAX: u8 = 16;
const TRUST_GAIN: u8 = 3;
/// Blocks on their way: more than the workers have before them.
const COMING: usize = 16;
/// Neighbourhoods watched at a time: about one for each thread that walks through memory.
const TRACKS: usize = 8;
/// Refaults in a row that open a window, and how many more doubts can ask for.
const STEPS_MIN: u8 = 2;
const DOUBT_MAX: u8 = 4;
/// Fewer pages are not worth a worker's way; more would be a guess too far.
const WINDOW_PAGES: std::ops::RangeInclusive<u64> = 16..=256;

/// Sizes of windows, in pages; none are opened if `max` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The first one of a neighbourhood.
    pub min: u64,
    /// The largest.
    pub max: u64,
}

impl Sizes {
    /// Check both values.
    ///
    /// # Errors
    /// `InvalidSetting` that names the field.
    pub fn check(&self) -> Result<()> {
        let bad = |field, problem: String| Err(Error::InvalidSetting { field, problem });
        if self.max == 0 {
            return Ok(());
        }
        if !WINDOW_PAGES.contains(&self.max) {
            return bad("window_max", format!("{} is neither 0 nor in 16..256", self.max));
        }
        if !(*WINDOW_PAGES.start()..=self.max).contains(&self.min) {
            return bad("window_min", format!("{} is not in 16..{}", self.min, self.max));
        }
        Ok(())
    }
}

/// Refaults near each other.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    start: u64,
    /// Size of the block that the last refault was in; 0: no track.
    pages: u64,
    /// Refaults in a row.
    steps: u8,
    /// The block was brought.
    open: bool,
    /// When it was followed last.
    turn: u64,
}

/// What a refault says of windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Bring these pages.
    pub bring: Option<Range<PageNumber>>,
    /// A window brought these pages, and they were passed over.
    pub passed: Option<Range<PageNumber>>,
}

/// The neighbourhoods of one space.
#[derive(Debug, Default)]
pub struct Ahead {
    sizes: Sizes,
    tracks: [Track; TRACKS],
    turn: u64,
    doubt: u8,
    left: Left,
    /// Numbers of the blocks that came along last, in a ring; 0: none.
    coming: [u64; COMING],
    newest: usize,
}

/// Blocks that were left to fault page by page, and what they taught.
#[derive(Debug)]
struct Left {
    /// Numbers of blocks; 0: none.
    blocks: [u64; LEFT],
    next: usize,
    turn: u32,
    trust: u8,
}

impl Default for Left {
    fn default() -> Self {
        Self { blocks: [0; LEFT], next: 0, turn: 0, trust: TRUST_AT_FIRST }
    }
}

impl Left {
    /// A page of a block was touched: whether the others come along.
    fn touched(&mut self, block: u64) -> bool {
        if let Some(watched) = self.blocks.iter_mut().find(|watched| **watched == block) {
            *watched = 0;
            self.trust = (self.trust + TRUST_GAIN).min(TRUST_MAX);
            return true;
        }
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(LEFT_PART) {
            let oldest = std::mem::replace(&mut self.blocks[self.next], block);
            self.next = (self.next + 1) % LEFT;
            self.trust = self.trust.saturating_sub(u8::from(oldest != 0));
            return false;
        }
        self.trust >= TRUST_ENOUGH
    }
}

impl Ahead {
    /// Allow windows of these sizes from now on; what was seen before is forgotten.
    pub fn set_sizes(&mut self, sizes: Sizes) {
        *self = Self { sizes, ..Self::default() };
    }

    /// Where the pages lie that come along with a touched one; empty if none do.
    pub fn along(&mut self, page: PageNumber) -> Range<PageNumber> {
        let block = page.0 / ALONG_PAGES;
        let start = PageNumber(block * ALONG_PAGES);
        let known = self.sizes.max == 0 || self.coming.contains(&block);
        if known || !self.left.touched(block) {
            return start..start;
        }
        self.newest = (self.newest + 1) % COMING;
        self.coming[self.newest] = block;
        start..start.forward(ALONG_PAGES)
    }

    /// The pages have left: what had come along may be out again.
    pub fn sleep(&mut self) {
        self.coming = [0; COMING];
    }

    /// A page faulted.
    pub fn refault(&mut self, page: PageNumber) -> Step {
        if self.sizes.max == 0 {
            return Step::default();
        }
        self.turn += 1;
        let (min, max) = (self.sizes.min, self.sizes.max);
        let (turn, steps_needed) = (self.turn, STEPS_MIN + self.doubt);
        let Some(track) = self.tracks.iter_mut().find(|track| track.is_near(page.0)) else {
            self.begin_track(page.0);
            return Step::default();
        };
        track.turn = turn;
        if track.holds(page.0) && track.open {
            // On its way, or it was not out when the window was brought.
            return Step::default();
        }
        let passed = track.open.then(|| track.range());
        let pages = if track.open { (track.pages * 2).min(max) } else { min };
        let steps = track.steps.saturating_add(1);
        let open = track.open || steps >= steps_needed;
        *track = Track { start: page.0 / pages * pages, pages, steps, open, turn };
        let bring = open.then(|| track.range());
        if passed.is_some() {
            self.doubt = self.doubt.saturating_sub(1);
        }
        Step { bring, passed }
    }

    fn begin_track(&mut self, page: u64) {
        let min = self.sizes.min;
        let Some(oldest) = self.tracks.iter_mut().min_by_key(|track| track.turn) else { return };
        if oldest.open {
            self.doubt = (self.doubt + 1).min(DOUBT_MAX);
        }
        let turn = self.turn;
        *oldest = Track { start: page / min * min, pages: min, steps: 1, open: false, turn };
    }
}

impl Track {
    const fn range(&self) -> Range<PageNumber> {
        PageNumber(self.start)..PageNumber(self.start + self.pages)
    }

    const fn holds(&self, page: u64) -> bool {
        page >= self.start && page - self.start < self.pages
    }

    /// In the block or as far as its size beyond it.
    const fn is_near(&self, page: u64) -> bool {
        let start = self.start.saturating_sub(self.pages);
        self.pages > 0 && page >= start && page - start < 3 * self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead() -> Ahead {
        Ahead { sizes: Sizes { min: 16, max: 256 }, ..Ahead::default() }
    }

    /// Refaults of somebody who touches these pages, if windows come at once; windows and refaults.
    fn walk(ahead: &mut Ahead, pages: impl Iterator<Item = u64>) -> (Vec<u64>, usize) {
        let (mut home, mut sizes, mut refaults) = (std::collections::BTreeSet::new(), vec![], 0);
        for page in pages {
            if !home.insert(page) {
                continue;
            }
            refaults += 1;
            if let Some(range) = ahead.refault(PageNumber(page)).bring {
                sizes.push(range.end.0 - range.start.0);
                home.extend(range.start.0..range.end.0);
            }
        }
        (sizes, refaults)
    }

    #[test]
    fn one_who_walks_forwards_gets_ever_larger_windows() {
        let (sizes, refaults) = walk(&mut ahead(), 1000..6000);
        assert_eq!(vec![16, 32, 64, 128, 256, 256], sizes[..6]);
        assert!(refaults < 40, "{refaults} refaults");
    }

    #[test]
    fn one_who_walks_backwards_does_as_well() {
        let (_, refaults) = walk(&mut ahead(), (1000..6000).rev());
        assert!(refaults < 40, "{refaults} refaults");
    }

    #[test]
    fn eight_walks_at_a_time_are_told_apart() {
        let pages = (0..2000u64).flat_map(|step| (0..8).map(move |who| who * 100_000 + step));
        let (_, refaults) = walk(&mut ahead(), pages);
        assert!(refaults < 8 * 40, "{refaults} refaults");
    }

    #[test]
    fn scattered_touches_open_no_window() {
        let pages = (0..5000u64).map(|step| step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30);
        assert_eq!(0, walk(&mut ahead(), pages).0.len());
    }

    #[test]
    fn windows_that_do_not_pay_become_rare() {
        // Pairs of neighbours, never followed by a third.
        let pages = (0..3000u64).flat_map(|step| [step * 10_007, step * 10_007 + 1]);
        let (sizes, _) = walk(&mut ahead(), pages);
        assert!(sizes.len() < 50, "{} windows", sizes.len());
        assert!(sizes.iter().all(|pages| *pages == 16));
    }

    #[test]
    fn what_was_passed_over_is_told() {
        let mut ahead = ahead();
        assert_eq!(Step::default(), ahead.refault(PageNumber(0)));
        let opened = ahead.refault(PageNumber(1));
        assert_eq!(Some(PageNumber(0)..PageNumber(16)), opened.bring);
        assert_eq!(Step::default(), ahead.refault(PageNumber(5)));
        let next = ahead.refault(PageNumber(16));
        assert_eq!(Some(PageNumber(0)..PageNumber(32)), next.bring);
        assert_eq!(opened.bring, next.passed);
    }

    /// Touch pages of which neighbours come along; refaults.
    fn touch(ahead: &mut Ahead, pages: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut home, mut refaults) = (std::collections::BTreeSet::new(), 0);
        for page in pages.filter(|page| *page > 0) {
            if home.insert(page) {
                refaults += 1;
                let block = ahead.along(PageNumber(page));
                home.extend(block.start.0..block.end.0);
            }
        }
        (refaults, home.len())
    }

    #[test]
    fn a_block_comes_along() {
        assert_eq!(PageNumber(16)..PageNumber(24), ahead().along(PageNumber(17)));
        assert_eq!(PageNumber(16)..PageNumber(24), ahead().along(PageNumber(23)));
    }

    #[test]
    fn a_block_is_asked_for_once_until_its_pages_have_left() {
        let mut ahead = ahead();
        assert_eq!(PageNumber(16)..PageNumber(24), ahead.along(PageNumber(17)));
        assert!(ahead.along(PageNumber(18)).is_empty());
        ahead.sleep();
        assert_eq!(PageNumber(16)..PageNumber(24), ahead.along(PageNumber(18)));
    }

    #[test]
    fn blocks_that_are_used_keep_coming_whatever_the_order() {
        // Two pages of each block, in an order that is far from that of addresses.
        let pages = (0..4000u64).map(|step| step * 1009 % 4000 * 4);
        let (refaults, home) = touch(&mut ahead(), pages);
        assert!(refaults < 2400, "{refaults} refaults for 4000 pages");
        assert!(home < 17_000);
    }

    #[test]
    fn scattered_touches_bring_nothing_along_in_the_end() {
        let mut ahead = ahead();
        let pages = (0..2000u64).map(|step| step * 211);
        let (_, home) = touch(&mut ahead, pages.clone());
        assert!(home < 5000, "{home} pages for 2000");
        assert_eq!(ahead.left.trust, 0);
        let (refaults, home) = touch(&mut ahead, pages.map(|page| page + 1_000_003));
        assert_eq!((2000, 2000), (refaults, home));
    }

    #[test]
    fn switched_off_means_off() {
        let mut ahead = Ahead::default();
        assert!((0..100).all(|page| ahead.refault(PageNumber(page)) == Step::default()));
        assert!(ahead.along(PageNumber(17)).is_empty());
    }
}
