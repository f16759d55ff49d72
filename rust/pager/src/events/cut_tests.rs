//! Reads of a model program whose threads move, unmap and drop mappings: against the truth.
//!
//! The model does in one step what the kernel does under the lock of the address space, and queues
//! the messages one after the other, as the thread is set free by the read of each.  Nothing is
//! read before all that took effect is queued (`debtors.rs`), and no more than was queued then
//! (`reads.rs`); who is free goes on meanwhile.  What messages a call sends, in which order and of
//! which ranges, is what Linux 6.18 does.

use super::*;
use crate::cuts::Call;
use crate::fuzz;
use crate::points::in_tests::killed_at;
use crate::space::{Header, Phase, Table};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::os::fd::AsFd;

const PAGES: u64 = 24;
const BASE: u64 = 1 << 21;
const THREADS: usize = 5;

const fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

/// Numbers for the small decisions of a step.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

#[derive(Clone, Debug)]
struct Mapping {
    pages: Range<u64>,
    /// Nobody else touches what a call has not returned from yet.
    held_by: Option<usize>,
    /// It grew to where something may just have left, and does not move before that is told.
    has_grown: bool,
}

#[derive(Debug, Default)]
struct Thread {
    call: Option<Call>,
    owed: VecDeque<Message>,
    queued: bool,
}

#[derive(Debug, Default)]
struct Program {
    mappings: Vec<Mapping>,
    /// What is out: page -> contents.
    out: BTreeMap<u64, u64>,
    threads: Vec<Thread>,
    queue: VecDeque<usize>,
    /// What was read with which held calls; for who reads a failure.
    history: Vec<(Vec<Held>, Vec<Message>)>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut program = Self::default();
        program.threads.resize_with(THREADS, Thread::default);
        let mut page = dice.below(2);
        while page < PAGES - 4 {
            let end = page + 1 + dice.below(3);
            program.mappings.push(Mapping { pages: page..end, held_by: None, has_grown: false });
            program.out.extend((page..end).filter(|_| !dice.is(4)).map(|page| (page, 100 + page)));
            page = end + dice.below(3);
        }
        program
    }

    fn is_open(&self) -> bool {
        self.threads.iter().any(|thread| !thread.owed.is_empty())
    }

    fn is_held(&self, range: &Range<u64>) -> bool {
        let held = self.mappings.iter().filter(|mapping| mapping.held_by.is_some());
        held.into_iter().any(|mapping| meet(&mapping.pages, range))
    }

    fn is_mapped(&self, range: &Range<u64>) -> bool {
        self.mappings.iter().any(|mapping| meet(&mapping.pages, range))
    }

    /// What the kernel does with the mappings of a range that is unmapped.
    fn clear(&mut self, range: &Range<u64>) {
        self.out.retain(|page, _| !range.contains(page));
        let old = std::mem::take(&mut self.mappings);
        for mapping in old {
            for part in region::subtract(mapping.pages.clone(), std::slice::from_ref(range)) {
                self.mappings.push(Mapping { pages: part, ..mapping });
            }
        }
        self.mappings.sort_by_key(|mapping| mapping.pages.start);
    }

    /// A free thread makes a call, which takes effect at once.
    fn act(&mut self, dice: &mut Dice) -> Option<usize> {
        let free: Vec<usize> =
            (0..THREADS).filter(|&thread| self.threads[thread].owed.is_empty()).collect();
        let thread = *free.get(dice.below(free.len() as u64) as usize)?;
        let known: Vec<Range<u64>> = self
            .mappings
            .iter()
            .filter(|mapping| mapping.held_by.is_none())
            .map(|mapping| mapping.pages.clone())
            .collect();
        let whole = known.get(dice.below(known.len() as u64) as usize)?.clone();
        let start = whole.start + if dice.is(4) { dice.below(whole.end - whole.start) } else { 0 };
        let mut part = start..whole.end;
        match dice.below(7) {
            2 => {
                // It grows where it is: nobody is told.
                let more = whole.end..(whole.end + 1 + dice.below(2)).min(PAGES);
                if self.is_mapped(&more) {
                    return None;
                }
                let grown = self.mappings.iter_mut().find(|mapping| mapping.pages == whole)?;
                grown.pages.end = more.end;
                grown.has_grown = true;
            }
            0 => {
                // Over the next mapping as well, if there is one right behind.
                if let Some(next) = known.iter().find(|next| next.start == part.end) {
                    part.end = next.end - dice.below(next.end - next.start);
                }
                self.unmap(thread, part);
            }
            1 => {
                self.out.retain(|page, _| !part.contains(page));
                let held = self.mappings.iter_mut().find(|mapping| mapping.pages == whole)?;
                held.held_by = Some(thread);
                let (start, end) = (address(part.start), address(part.end));
                self.threads[thread].owed.push_back(Message::Remove { start, end });
            }
            _ if self.mappings.iter().any(|it| it.has_grown && meet(&it.pages, &part)) => None?,
            _ => self.remap(thread, part, dice)?,
        }
        Some(thread)
    }

    fn unmap(&mut self, thread: usize, range: Range<u64>) {
        let (start, end) = (address(range.start), address(range.end));
        self.threads[thread].owed.push_back(Message::Unmap { start, end });
        self.threads[thread].call = Some(Call::Unmap { start, end });
        self.clear(&range);
    }

    /// `mremap` that leaves the mapping where it is.
    fn shrink(&mut self, thread: usize, from: Range<u64>, new_length: u64) {
        let tail = from.start + new_length..from.end;
        let (start, end) = (address(tail.start), address(tail.end));
        self.threads[thread].owed.push_back(Message::Unmap { start, end });
        self.threads[thread].call = Some(Call::Move {
            from: address(from.start),
            length: end - address(from.start),
            new_length: new_length * PAGE,
            to: None,
            keeps: false,
        });
        self.clear(&tail);
    }

    /// `mremap`; nothing happens if there is no place.
    fn remap(&mut self, thread: usize, from: Range<u64>, dice: &mut Dice) -> Option<()> {
        let length = from.end - from.start;
        let new_length = if dice.is(3) { 1 + dice.below(3) } else { length };
        let shorter = length.min(new_length);
        let keeps = new_length == length && dice.is(5);
        let is_fixed = dice.is(2);
        if new_length < length && !is_fixed {
            self.shrink(thread, from, new_length);
            return Some(());
        }
        let places: Vec<Range<u64>> = (0..PAGES - new_length)
            .map(|start| start..start + new_length)
            .filter(|place| !meet(place, &from) && !self.is_held(place))
            .filter(|place| is_fixed || !self.is_mapped(place))
            .collect();
        let to = places.get(dice.below(places.len() as u64) as usize)?.clone();
        let owed = &mut self.threads[thread].owed;
        let unmap = |range: Range<u64>| Message::Unmap {
            start: address(range.start),
            end: address(range.end),
        };
        if self.mappings.iter().any(|mapping| meet(&mapping.pages, &to)) {
            owed.push_back(unmap(to.clone()));
        }
        let (old, new) = (address(from.start), address(to.start));
        owed.push_back(Message::Remap { from: old, to: new, length: shorter * PAGE });
        if new_length < length {
            owed.push_back(unmap(from.start + new_length..from.end));
        }
        if !keeps {
            owed.push_back(unmap(from.start..from.start + shorter));
        }
        self.threads[thread].call = Some(Call::Move {
            from: old,
            length: length * PAGE,
            new_length: new_length * PAGE,
            to: is_fixed.then_some(new),
            keeps,
        });
        self.clear(&to);
        let moved: Vec<(u64, u64)> = self.out.range(from.clone()).map(|(a, b)| (*a, *b)).collect();
        self.clear(&from);
        let inside = moved.into_iter().filter(|(page, _)| *page < from.start + shorter);
        self.out.extend(inside.map(|(page, fill)| (page - from.start + to.start, fill)));
        let held_by = Some(thread);
        self.mappings.push(Mapping { pages: to, held_by, has_grown: false });
        if keeps {
            self.mappings.push(Mapping { pages: from, held_by, has_grown: false });
        }
        Some(())
    }

    fn queue(&mut self, thread: usize) {
        let it = &mut self.threads[thread];
        if !it.queued && !it.owed.is_empty() {
            it.queued = true;
            self.queue.push_back(thread);
        }
    }

    fn queue_all(&mut self, dice: &mut Dice) {
        let first = dice.below(THREADS as u64) as usize;
        for thread in (first..THREADS).chain(0..first) {
            self.queue(thread);
        }
    }

    /// The calls that threads wait in, and what the others that wait are about to empty.
    fn waiting(&self) -> (Vec<Held>, Vec<Range<u64>>) {
        let (mut held, mut emptied) = (Vec::new(), Vec::new());
        for (thread, it) in (0..).zip(&self.threads).filter(|(_, it)| it.queued) {
            match (it.call, it.owed.front()) {
                (Some(call), _) => held.push(Held { thread, call }),
                (None, Some(Message::Remove { start, end })) => emptied.push(*start..*end),
                _ => {}
            }
        }
        (held, emptied)
    }

    /// Read what is queued, while those go on that are free.
    fn read(&mut self, dice: &mut Dice) -> (Vec<Held>, Vec<Message>) {
        let (held, _) = self.waiting();
        let mut messages = Vec::new();
        for _ in 0..self.queue.len() {
            self.go_on(dice);
            let Some(thread) = self.queue.pop_front() else { break };
            let it = &mut self.threads[thread];
            it.queued = false;
            messages.extend(it.owed.pop_front());
            if it.owed.is_empty() {
                it.call = None;
                let held = self.mappings.iter_mut();
                held.filter(|mapping| mapping.held_by == Some(thread))
                    .for_each(|mapping| mapping.held_by = None);
            } else if dice.is(3) {
                self.queue(thread);
            }
        }
        self.history.push((held.clone(), messages.clone()));
        (held, messages)
    }

    /// Some free thread may do something, and may be so quick that it is queued at once.
    fn go_on(&mut self, dice: &mut Dice) {
        if dice.is(4)
            && let Some(thread) = self.act(dice)
            && dice.is(2)
        {
            self.queue(thread);
        }
    }
}

impl Program {
    /// The reads since the last quiet moment, and where the table differs from the truth.
    fn tell(&self, found: &BTreeMap<u64, u64>) -> String {
        let page = |address: u64| (address - BASE) / PAGE;
        let mut text = String::new();
        for (held, messages) in &self.history {
            for it in held {
                let _ = match it.call {
                    Call::Unmap { start, end } => {
                        writeln!(text, "{} in munmap {}..{}", it.thread, page(start), page(end))
                    }
                    Call::Move { from, length, new_length, to, keeps } => writeln!(
                        text,
                        "{} in mremap {}+{} to {:?}+{} keeps {keeps}",
                        it.thread,
                        page(from),
                        length / PAGE,
                        to.map(page),
                        new_length / PAGE
                    ),
                };
            }
            text.push_str("    read:");
            for message in messages {
                let _ = match *message {
                    Message::Remap { from, to, length } => {
                        write!(text, " moved {}+{} to {};", page(from), length / PAGE, page(to))
                    }
                    Message::Unmap { start, end } => {
                        write!(text, " unmapped {}..{};", page(start), page(end))
                    }
                    Message::Remove { start, end } => {
                        write!(text, " removed {}..{};", page(start), page(end))
                    }
                    _ => Ok(()),
                };
            }
            text.push('\n');
        }
        let _ = writeln!(text, "truth {:?}\nfound {found:?}", self.out);
        text
    }
}

fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// The engine's side: a table that holds what was out at first.
fn begin(program: &Program) -> Space {
    let header =
        Header { id: 7, parent: 0, pid: 1, start_time: 0, area: 0..0, domain: 1, image: 1 };
    let space = Space::of_nobody(Table::create(&header, Phase::Attached).expect("a table"));
    for (page, fill) in &program.out {
        let page = ByteAddress(address(*page)).page();
        space.table.set(page, Entry::Same { fill: *fill }).expect("room");
    }
    space.core.lock().moves = true;
    space
}

/// What the kernel does in a read.
fn put(space: &Space, core: &mut Core, messages: &[Message]) {
    let places = space.table.journal().chunks_exact(MESSAGE_WORDS).skip(core.held);
    for (words, message) in places.zip(messages) {
        let [kind, one, two, three] = match *message {
            Message::Remap { from, to, length } => [0x14, from, to, length],
            Message::Remove { start, end } => [0x15, start, end, 0],
            Message::Unmap { start, end } => [0x16, start, end, 0],
            _ => continue,
        };
        for (word, value) in words.iter().zip([kind, one, two, three]) {
            word.store(value, Ordering::Relaxed);
        }
    }
    core.held += messages.len();
    space.table.set_journal_used(core.held);
}

fn take(space: &Space, shared: &Shared, held: &[Held], messages: &[Message]) {
    let core = &mut *space.core.lock();
    space.begin_cut(core, held, messages.len());
    put(space, core, messages);
    space.take_cut(core, shared, &mut Kit::default(), held);
}

/// The same by engines that are killed: the first after it has read `part` of the messages, or all
/// and passed some steps; the next ones each after `gap` steps.
fn take_and_die(
    space: &mut Space,
    shared: &Shared,
    (held, messages): (&[Held], &[Message]),
    (part, gap): (usize, usize),
) {
    let (now, later) = messages.split_at(part.min(messages.len()));
    let mut survived = killed_at(gap, || {
        let core = &mut *space.core.lock();
        space.begin_cut(core, held, messages.len());
        put(space, core, now);
        if later.is_empty() {
            space.take_cut(core, shared, &mut Kit::default(), held);
        }
    }) && later.is_empty();
    for lives in 1.. {
        if survived {
            break;
        }
        let memory = space.table.words().as_fd().try_clone_to_owned().expect("a duplicate");
        let table = Table::take_over(memory).expect("a table").expect("complete");
        *space = Space::of_nobody(table);
        // Too short a life gets nothing done.
        let gap = if lives < 100 { gap } else { usize::MAX };
        survived = killed_at(gap, || {
            let core = &mut *space.core.lock();
            space.finish_window(core, shared, &mut Kit::default());
            let read_on = |core: &mut Core, events: usize| {
                let rest = &messages[messages.len() - events..];
                put(space, core, rest);
                Ok(rest.len())
            };
            let known = space.resume_cut(core, shared, &mut Kit::default(), read_on);
            assert!(known.expect("a read"), "nothing is known");
        });
    }
}

/// Whether what is queued may be read before all that took effect is.
fn may_be_read(space: &Space, program: &Program) -> bool {
    let (held, emptied) = program.waiting();
    let waiting = program.queue.len();
    waiting > 0 && space.changes_nothing(&space.core.lock(), waiting, (&held, &emptied))
}

/// No event is open any more.
fn settle(space: &Space, shared: &Shared) {
    let core = &mut *space.core.lock();
    core.cuts.forget();
    if core.held > 0 {
        assert!(space.settle_window(core, shared, &mut Kit::default()));
    }
}

fn contents(space: &Space) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    let all = PageNumber(0)..PageNumber(crate::address::PAGES_END);
    space.table.for_each(all, |page, entry| {
        let Entry::Same { fill } = entry else { panic!("{page}: {entry:?}") };
        found.insert((page.start().0 - BASE) / PAGE, fill);
    });
    found
}

/// A whole life of the program, in which threads are held in calls again and again, and in which
/// engines are killed or not; what went wrong in it.
fn live(seed: u64, steps: &[(u8, u64)], are_killed: bool) -> Result<(), String> {
    let shared = Shared::for_tests();
    let mut program = Program::new(seed);
    let mut space = begin(&program);
    let end = [(7, seed), (15, seed)].into_iter().cycle().take(8 * THREADS);
    for (kind, number) in steps.iter().copied().chain(end) {
        let mut dice = Dice(number);
        match kind % 8 {
            0..=3 => {
                program.act(&mut dice);
            }
            4 => program.queue(dice.below(THREADS as u64) as usize),
            _ if program.is_open() => {
                if kind % 8 != 5 || !may_be_read(&space, &program) {
                    program.queue_all(&mut dice);
                }
                let (held, messages) = program.read(&mut dice);
                if are_killed && dice.is(2) {
                    let part = dice.below(2 * messages.len() as u64) as usize;
                    let gap = 1 + dice.below(20) as usize;
                    take_and_die(&mut space, &shared, (&held, &messages), (part, gap));
                } else {
                    take(&space, &shared, &held, &messages);
                }
            }
            _ => {}
        }
        if !program.is_open() {
            program.mappings.iter_mut().for_each(|mapping| mapping.has_grown = false);
            settle(&space, &shared);
            let found = contents(&space);
            if program.out != found {
                return Err(program.tell(&found));
            }
            program.history.clear();
        }
    }
    Ok(())
}

// The same histories in each run.
proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..fuzz::cases(4000) })]

    #[test]
    fn what_was_read_when_all_had_queued_is_understood(
        seed in any::<u64>(),
        steps in proptest::collection::vec((any::<u8>(), any::<u64>()), 4..40),
    ) {
        prop_assert_eq!(Ok(()), live(seed, &steps, false));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(2), ..fuzz::cases(800) })]

    #[test]
    fn whoever_takes_over_understands_it_as_well(
        seed in any::<u64>(),
        steps in proptest::collection::vec((any::<u8>(), any::<u64>()), 4..40),
    ) {
        prop_assert_eq!(Ok(()), live(seed, &steps, true));
    }
}
