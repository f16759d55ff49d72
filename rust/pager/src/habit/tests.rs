//! The set is bounded, keeps the order of need, and lets go of what is not needed.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const MS: Duration = Duration::from_millis(1);

/// A space that sleeps and wakes; pages are out unless they were touched or brought.
struct Life {
    habit: Habit,
    now: Instant,
    home: HashSet<u64>,
}

impl Life {
    fn new() -> Self {
        let mut life = Self { habit: Habit::default(), now: Instant::now(), home: HashSet::new() };
        life.page_out();
        life
    }

    fn page_out(&mut self) {
        let mut fold = self.habit.close();
        fold.fold(|page| !self.home.contains(&page.0), |_| true);
        self.habit.reopen(fold);
        self.now += MS;
        self.habit.sleep(self.now, PAGES_MAX as u64);
        self.home.clear();
    }

    /// Touch pages, one each 75 us; returns how often a replay was called for.
    fn touch(&mut self, pages: impl IntoIterator<Item = u64>) -> usize {
        let mut replays = 0;
        for page in pages {
            if self.home.insert(page) {
                self.now += Duration::from_micros(75);
                let call = self.habit.refault(PageNumber(page), self.now);
                replays += usize::from(call == Call::Replay);
            }
        }
        replays
    }

    fn announce(&mut self) -> Choice {
        let snapshot = self.habit.wake(self.now);
        let choice = snapshot.choose(usize::MAX, |page| !self.home.contains(&page.0));
        self.habit.chose(&choice);
        self.home.extend(choice.pages.iter().map(|page| page.0));
        choice
    }

    fn numbers(&self) -> Vec<u64> {
        self.habit.pages().iter().map(|known| known.page.0).collect()
    }

    fn tally(&self, of: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        of(&self.habit.tally).load(Ordering::Relaxed)
    }
}

#[test]
fn a_wake_is_learned_and_brought_in_the_order_of_need() {
    let mut life = Life::new();
    let needed: Vec<u64> = (0..400).map(|step| 100_000 - 7 * step).collect();
    life.touch(needed.iter().copied());
    life.page_out();
    assert_eq!(needed.len(), life.numbers().len());
    let choice = life.announce();
    assert_eq!(400, choice.pages.len() as u64 + choice.spared);
    assert!(choice.pages.is_sorted_by_key(|page| std::cmp::Reverse(page.0)), "{choice:?}");
    assert!((50..150).contains(&choice.spared), "{} spared, of 400 unproven", choice.spared);
}

#[test]
fn what_is_not_needed_any_more_falls_out_after_three_wakes() {
    let mut life = Life::new();
    life.touch(0..200);
    life.page_out();
    for wake in 1..4 {
        life.touch(100..300);
        life.page_out();
        assert_eq!(wake < 3, life.numbers().contains(&0), "after {wake} wakes without need");
    }
    assert_eq!((100..300).collect::<Vec<u64>>(), life.numbers());
}

#[test]
fn a_page_out_without_a_wake_teaches_nothing() {
    let mut life = Life::new();
    life.touch(0..200);
    life.page_out();
    for _ in 0..10 {
        life.touch(500..503);
        life.now += 100 * MS;
        life.page_out();
    }
    assert_eq!((0..200).collect::<Vec<u64>>(), life.numbers());
    assert_eq!(1, life.tally(|tally| &tally.wakes));
}

#[test]
fn useless_pages_are_found_by_the_spared_sample() {
    let mut life = Life::new();
    life.touch(0..2000);
    life.page_out();
    // Of what was learned only a tenth is needed from now on.
    for _ in 0..4 {
        life.announce();
        life.touch(0..200);
        life.page_out();
    }
    let numbers = life.numbers();
    assert_eq!(200, numbers.iter().filter(|page| **page < 200).count());
    assert!(numbers.len() < 400, "{} pages are still learned", numbers.len());
    assert!(life.announce().pages.iter().all(|page| page.0 < 200));
}

#[test]
fn what_the_sample_says_is_what_is_so() {
    let mut life = Life::new();
    life.touch(0..4000);
    life.page_out();
    // Half of it is proven, and of the other half a part is needed.
    let choice = life.announce();
    life.touch(0..3000);
    life.page_out();
    let wanted = choice.pages.iter().filter(|page| page.0 < 3000).count() as f64;
    let (spared, touched) =
        (life.tally(|tally| &tally.spared), life.tally(|tally| &tally.spared_touched));
    let (told, is_so) = (touched as f64 / spared as f64, wanted / choice.pages.len() as f64);
    assert!((told - is_so).abs() < 0.05, "told {told}, is {is_so}");
    let choice = life.announce();
    life.touch(0..3000);
    let wanted = choice.pages.iter().filter(|page| page.0 < 3000).count() as f64;
    let told = (life.tally(|tally| &tally.spared_touched) - touched) as f64
        / (life.tally(|tally| &tally.spared) - spared) as f64;
    let is_so = wanted / choice.pages.len() as f64;
    assert!((told - is_so).abs() < 0.05, "proven or not: told {told}, is {is_so}");
}

#[test]
fn a_wake_that_touches_everything_is_not_repeated() {
    let mut life = Life::new();
    for _ in 0..3 {
        life.touch(0..2000);
        life.page_out();
    }
    life.announce();
    life.touch(0..8000);
    life.page_out();
    let choice = life.announce();
    assert!(choice.pages.iter().all(|page| page.0 < 2000), "what is on trial was brought");
    let missed = life.tally(|tally| &tally.missed);
    life.touch(2000..2100);
    assert_eq!(missed + 100, life.tally(|tally| &tally.missed), "it was not meant to come");
    life.page_out();
    let choice = life.announce();
    let again = choice.pages.iter().filter(|page| page.0 >= 2000).count() as u64;
    assert!(again > 50, "what a second wake needed comes: {again}");
    assert!(choice.pages.iter().all(|page| page.0 < 2100));
}

#[test]
fn the_few_pages_that_a_later_wake_needs_first_are_believed_once() {
    let mut life = Life::new();
    for _ in 0..3 {
        life.touch(0..2000);
        life.page_out();
    }
    let new = |choice: &Choice| choice.pages.iter().filter(|page| page.0 >= 5000).count();
    life.announce();
    life.touch((0..2000).chain(5000..5400));
    life.page_out();
    assert!(new(&life.announce()) > 250, "they come at the next wake");
    life.touch(0..2000);
    life.page_out();
    let again = new(&life.announce());
    assert!(again < 40, "{again} of what stayed away come again");
}

#[test]
fn what_comes_along_with_the_first_wake_is_a_guess_of_its_own() {
    let mut life = Life::new();
    life.touch(0..400);
    // Of what came along one page in ten is needed.
    let along: Vec<u64> = (1000..1400).collect();
    assert!(along.iter().all(|page| life.habit.brings_along(PageNumber(*page), life.now)));
    life.home.extend(&along);
    life.page_out();
    assert_eq!(800, life.numbers().len());
    let brought = |choice: &Choice| choice.pages.iter().filter(|page| page.0 >= 1000).count();
    assert!(brought(&life.announce()) > 200, "it is tried once");
    life.touch((0..400).chain((1000..1400).step_by(10)));
    life.page_out();
    let choice = life.announce();
    assert!(brought(&choice) < 60, "{} of what was mostly not needed", brought(&choice));
    assert!(choice.pages.len() > 300, "what was touched itself is another cohort");
}

#[test]
fn what_is_spared_does_not_come_along_and_a_known_habit_makes_no_guesses() {
    let mut life = Life::new();
    for _ in 0..2 {
        life.touch(0..400);
        life.page_out();
    }
    assert!(!life.habit.brings_along(PageNumber(7000), life.now), "it is not awake");
    let choice = life.announce();
    let brought: HashSet<u64> = choice.pages.iter().map(|page| page.0).collect();
    let spared = (0..400).find(|page| !brought.contains(page)).expect("some are");
    assert!(!life.habit.brings_along(PageNumber(spared), life.now));
    assert!(life.habit.brings_along(PageNumber(7000), life.now));
    life.page_out();
    assert!(!life.numbers().contains(&7000));
}

#[test]
fn every_needed_page_is_spared_once_in_a_while_and_stays() {
    let mut life = Life::new();
    for _ in 0..2 {
        life.touch(0..1000);
        life.page_out();
    }
    let mut spared = HashSet::new();
    // All by then, but for one chance in ten thousand (and the draw is always the same).
    for _ in 0..600 {
        let choice = life.announce();
        let brought: HashSet<u64> = choice.pages.iter().map(|page| page.0).collect();
        spared.extend((0..1000).filter(|page| !brought.contains(page)));
        assert!(choice.spared < 80, "{} spared of a proven cohort", choice.spared);
        life.touch(0..1000);
        life.page_out();
    }
    assert_eq!((1000, 1000), (spared.len(), life.numbers().len()));
    let tally = |of: fn(&Tally) -> &AtomicU64| life.tally(of);
    assert_eq!(tally(|tally| &tally.spared), tally(|tally| &tally.spared_touched));
    assert_eq!(0, tally(|tally| &tally.late));
}

#[test]
fn a_burst_of_learned_pages_calls_for_one_replay_and_a_tick_does_not() {
    let mut life = Life::new();
    life.habit.replay = true;
    assert_eq!(0, life.touch(0..2000), "nothing is learned yet");
    life.page_out();
    for page in 0..20 {
        life.now += 60 * MS;
        assert_eq!(0, life.touch([page]), "one page at a time is a tick");
    }
    assert_eq!(1, life.touch(100..1000));
    life.page_out();
    assert_eq!(1, life.touch(100..1000), "once in each sleep");
}

#[test]
fn a_written_page_was_needed() {
    let mut life = Life::new();
    life.touch(0..100);
    life.page_out();
    let choice = life.announce();
    let page = choice.pages[0];
    let weight = |life: &Life| life.habit.pages()[life.habit.find(page).unwrap()].weight;
    let before = weight(&life);
    life.habit.written(page);
    life.habit.written(PageNumber(7777));
    assert_eq!(before + GAIN, weight(&life));
}

#[test]
fn a_moved_mapping_takes_what_was_learned_with_it() {
    let mut life = Life::new();
    life.touch((100..200).chain(300..350));
    life.page_out();
    life.habit.moved(PageNumber(150), PageNumber(320), 100);
    let expected: Vec<u64> = (100..150).chain(300..370).collect();
    assert_eq!(expected, life.numbers());
}

#[test]
fn refaults_are_told_once_and_neighbours_together() {
    let mut life = Life::new();
    life.touch([5, 7, 6, 900]);
    let told = life.habit.take_refaults();
    let page = PAGE_SIZE as u64;
    let ranges: Vec<Range<u64>> = told.into_iter().map(|refault| refault.range).collect();
    assert_eq!(vec![5 * page..8 * page, 900 * page..901 * page], ranges);
    assert!(life.habit.take_refaults().is_empty());
    life.touch(10_000..10_000 + *REFAULTS_KEPT.end() as u64 + 3);
    assert_eq!(3, life.tally(|tally| &tally.refaults_dropped));
    life.now += Duration::from_secs(1 << 30);
    life.touch([4]);
    assert_eq!(AFTER_MS_MAX, life.habit.take_refaults().pop().expect("one was late").after_ms);
}

#[test]
fn a_small_space_keeps_few_refaults() {
    let mut habit = Habit::default();
    let now = Instant::now();
    habit.sleep(now, 300);
    for page in 0..601 {
        habit.refault(PageNumber(page), now);
    }
    assert_eq!(1, habit.tally.refaults_dropped.load(Ordering::Relaxed));
    assert!(habit.tally.bytes() < 8 << 10, "{}", habit.tally.bytes());
}

#[test]
fn a_late_refault_is_not_of_the_wake() {
    let mut life = Life::new();
    life.touch(0..100);
    life.now += WINDOW + MS;
    life.touch([5000]);
    life.page_out();
    assert_eq!((0..100).collect::<Vec<u64>>(), life.numbers());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_set_is_bounded_sorted_and_of_what_was_touched(
        wakes in prop::collection::vec((0u64..1 << 18, 1u64..40_000, 1u64..5), 1..6),
    ) {
        let mut life = Life::new();
        let mut touched = HashSet::new();
        for (start, count, step) in wakes {
            let pages: Vec<u64> = (0..count).map(|number| start + number * step).collect();
            touched.extend(pages.iter().copied());
            life.touch(pages);
            life.page_out();
            let numbers = life.numbers();
            prop_assert!(numbers.len() <= PAGES_MAX);
            prop_assert!(numbers.is_sorted_by(|one, next| one < next));
            prop_assert!(numbers.iter().all(|page| touched.contains(page)));
        }
    }

    #[test]
    fn noting_a_refault_takes_no_memory(pages in prop::collection::vec(0u64..1 << 20, 1..3000)) {
        let mut life = Life::new();
        let room = |habit: &Habit| (habit.noted.capacity(), habit.refaults.capacity());
        let before = room(&life.habit);
        life.touch(pages);
        prop_assert_eq!(before, room(&life.habit));
    }
}
