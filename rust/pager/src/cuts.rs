//! What the messages of one read mean, told by the calls that threads are held in.  Pure.
//!
//! A read that waited until all that took effect was queued, and that brings no more than was
//! queued then, is a *cut* through the program's history: its messages are the effects since the
//! last one, at most one call of each thread, and what calls of the last cut had to say still.
//! Nobody acts on what a call brought before the call was read, so all of a cut left places that
//! they had before it: who leaves goes before who comes, and there is no other order to find.  What
//! is left to tell is which "unmapped" is of a call that was read before:
//!
//! - the one that a thread sends after its "moved", of the old place, says nothing new;
//! - nor does one of what a mapping lost that shrank as it moved: it took effect with the "moved".
//!   Somebody else may have come there before it is read, so the place is given up with that.
//!
//! The kernel does not name the thread of a message, but it tells in which call, with which
//! arguments, a thread sleeps; and a message is of exactly the range that its call was given, over
//! however many mappings (`userfaultfd_unmap_prep`).

use crate::sys::userfaultfd::Message;
use std::ops::Range;

pub mod kept;

/// A call that changes mappings and that a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which thread.
    pub thread: i32,
    /// What it asked for.
    pub call: Call,
}

/// Arguments of a call, in bytes, lengths in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `munmap`, or a call that maps or gives up a range.
    Unmap {
        /// First address.
        start: u64,
        /// Behind the last one.
        end: u64,
    },
    /// `mremap`.
    Move {
        /// Old place.
        from: u64,
        /// Length there.
        length: u64,
        /// Length at the new place.
        new_length: u64,
        /// The new place, if the program chose it.
        to: Option<u64>,
        /// The old mapping stays, empty (`MREMAP_DONTUNMAP`).
        keeps: bool,
    },
}

/// What a message of a read is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// It says nothing new.
    pub echo: bool,
    /// Its call has told before that it cleared the place: it took effect then.
    pub earlier: bool,
}

/// What a cut says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Of each message.
    pub judgements: Vec<Judgement>,
    /// Places whose tenants left with a message, beside those that it names.
    pub given_up: Vec<(usize, Range<u64>)>,
    /// Places that a message has brought something to: longer than it says, if what came grew.
    pub taken: Vec<(usize, Range<u64>)>,
}

/// What is remembered from cut to cut while events are open: calls in progress that have told
/// something and have more to tell.
#[derive(Debug, Default)]
pub struct Cuts(Vec<(Held, Told)>);

/// How far a call has told what it did.  All of it took effect before its first message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// Nothing yet.
    #[default]
    Nothing,
    /// That the place is clear which it moved to.
    Cleared,
    /// The move.
    Moved,
    /// And what it left behind as it shrank.
    Tail,
    /// All.
    Everything,
}

/// One of the held calls, while messages are given to them.
struct Caller {
    held: Held,
    /// With the message that this cut brings of it, once that was found.
    told: Told,
    found: bool,
    /// It had told something in an earlier cut.
    again: bool,
}

impl Cuts {
    /// No event is open: no message of an earlier call will come.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Calls in progress that have told something and have more to tell.
    #[must_use]
    pub fn calls(&self) -> &[(Held, Told)] {
        &self.0
    }

    /// Calls that have moved something and not told all, of threads that do not wait to be read:
    /// what is missing comes for certain, unless the thread ends.
    pub fn owing<'a>(&'a self, waiting: &'a [i32]) -> impl Iterator<Item = &'a Held> {
        let owes = |call: &&(Held, Told)| {
            matches!(call.1, Told::Moved | Told::Tail) && !waiting.contains(&call.0.thread)
        };
        self.0.iter().filter(owes).map(|call| &call.0)
    }

    /// The calls that threads are held in, each with what it has told so far.
    #[must_use]
    pub fn with_told(&self, held: &[Held]) -> Vec<(Held, Told)> {
        let told = |held: &Held| {
            let before = self.0.iter().find(|before| before.0 == *held);
            (*held, before.map_or(Told::Nothing, |before| before.1))
        };
        held.iter().map(told).collect()
    }

    /// Take what another engine knew.
    pub fn restore(&mut self, calls: &[(Held, Told)]) {
        self.0 = calls.iter().filter(|call| call.1 != Told::Nothing).copied().collect();
    }

    /// Whether all effects of what was read are told.
    #[must_use]
    pub fn are_whole(&self) -> bool {
        self.0.iter().all(|call| call.1 != Told::Cleared)
    }

    /// What the messages of a cut say, by the calls that threads were held in when it was made.
    pub fn judge(&mut self, messages: &[Message], held: &[Held]) -> Cut {
        let caller =
            |(held, told)| Caller { held, told, found: false, again: told != Told::Nothing };
        let mut callers: Vec<Caller> = self.with_told(held).into_iter().map(caller).collect();
        let judgements = vec![Judgement::default(); messages.len()];
        let mut cut = Cut { judgements, ..Cut::default() };
        for (index, message) in messages.iter().enumerate() {
            if let Message::Remap { from, to, length } = *message {
                judge_moved(&mut cut, &mut callers, index, (from, to, length));
            }
        }
        for (index, message) in messages.iter().enumerate() {
            if let Message::Unmap { start, end } = *message {
                judge_unmapped(&mut cut, &mut callers, index, &(start..end));
            }
        }
        let goes_on = |it: &&Caller| !matches!(it.told, Told::Nothing | Told::Everything);
        self.0 = callers.iter().filter(goes_on).map(|it| (it.held, it.told)).collect();
        cut
    }
}

/// Give a "moved" to the call that it is of: one that asked for that very place, if there is one.
fn judge_moved(
    cut: &mut Cut,
    callers: &mut [Caller],
    index: usize,
    (old, new, moved): (u64, u64, u64),
) {
    let matches = |it: &Caller, wanted: Option<u64>| {
        !it.found
            && matches!(it.told, Told::Nothing | Told::Cleared)
            && matches!(it.held.call, Call::Move { from, length, new_length, to, .. }
                if from == old && to == wanted && moved == length.min(new_length)
                    // What shrinks stays where it is, unless it is sent elsewhere.
                    && (to.is_some() || new_length >= length))
    };
    let found = callers
        .iter()
        .position(|it| matches(it, Some(new)))
        .or_else(|| callers.iter().position(|it| matches(it, None)));
    let Some(caller) = found.map(|place| &mut callers[place]) else { return };
    let Call::Move { from, length, new_length, keeps, .. } = caller.held.call else { return };
    (caller.found, caller.told) = (true, if keeps { Told::Everything } else { Told::Moved });
    cut.judgements[index].earlier = caller.again;
    if new_length < length {
        cut.given_up.push((index, from + new_length..from + length));
    }
    cut.taken.push((index, new..new + new_length));
}

/// Give an "unmapped" to a call that has this one to tell next.
fn judge_unmapped(cut: &mut Cut, callers: &mut [Caller], index: usize, range: &Range<u64>) {
    let is_it = |caller: &&mut Caller| !caller.found && next_unmapped(caller).0 == *range;
    let Some(caller) = callers.iter_mut().find(is_it) else { return };
    let before = caller.told;
    (caller.found, caller.told) = (true, next_unmapped(caller).1);
    // After its move nothing of a call is new.
    cut.judgements[index].echo = before != Told::Nothing;
}

/// The "unmapped" that a call tells next, if that is what it tells next, and what it has told then.
fn next_unmapped(caller: &Caller) -> (Range<u64>, Told) {
    match (caller.held.call, caller.told) {
        (Call::Unmap { start, end }, Told::Nothing) => (start..end, Told::Everything),
        // Only what moves to a place of its choice clears one.
        (Call::Move { to: Some(to), new_length, .. }, Told::Nothing) => {
            (to..to + new_length, Told::Cleared)
        }
        // What shrinks where it is moves nothing.
        (Call::Move { from, length, new_length, .. }, Told::Nothing) if new_length < length => {
            (from + new_length..from + length, Told::Everything)
        }
        (Call::Move { from, length, new_length, .. }, Told::Moved) if new_length < length => {
            (from + new_length..from + length, Told::Tail)
        }
        (Call::Move { from, length, new_length, .. }, Told::Moved | Told::Tail) => {
            (from..from + length.min(new_length), Told::Everything)
        }
        _ => (0..0, caller.told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: u64 = 0x1000;
    const NEW: u64 = 0x9000;
    const PAGE: u64 = 0x1000;

    fn a_move(thread: i32, from: u64, to: Option<u64>) -> Held {
        let call = Call::Move { from, length: PAGE, new_length: PAGE, to, keeps: false };
        Held { thread, call }
    }

    const fn moved(from: u64, to: u64) -> Message {
        Message::Remap { from, to, length: PAGE }
    }

    const fn unmapped(start: u64) -> Message {
        Message::Unmap { start, end: start + PAGE }
    }

    const NEWS: Judgement = Judgement { echo: false, earlier: false };
    const ECHO: Judgement = Judgement { echo: true, ..NEWS };

    fn judge(cuts: &mut Cuts, messages: &[Message], held: &[Held]) -> (Vec<Judgement>, bool) {
        let cut = cuts.judge(messages, held);
        (cut.judgements, cuts.are_whole())
    }

    #[test]
    fn after_moved_comes_an_echo_whoever_came_there_meanwhile() {
        let mut cuts = Cuts::default();
        let both = [a_move(1, OLD, None), a_move(2, NEW, Some(OLD))];
        let messages = [moved(NEW, OLD), moved(OLD, 0x5000)];
        assert_eq!((vec![NEWS; 2], true), judge(&mut cuts, &messages, &both));
        let messages = [unmapped(OLD), unmapped(NEW)];
        assert_eq!((vec![ECHO; 2], true), judge(&mut cuts, &messages, &both));
    }

    #[test]
    fn who_came_may_unmap_the_same_range_himself() {
        let mut cuts = Cuts::default();
        let first = a_move(1, OLD, None);
        cuts.judge(&[moved(OLD, 0x5000), moved(NEW, OLD)], &[first, a_move(2, NEW, None)]);
        let call = Call::Unmap { start: OLD, end: OLD + PAGE };
        let held = [first, Held { thread: 2, call }];
        let (mut judged, whole) = judge(&mut cuts, &[unmapped(OLD), unmapped(OLD)], &held);
        judged.sort_by_key(|judgement| judgement.echo);
        assert_eq!((vec![NEWS, ECHO], true), (judged, whole));
    }

    #[test]
    fn a_mapping_kept_has_no_echo() {
        let mut cuts = Cuts::default();
        let call = Call::Move { from: OLD, length: PAGE, new_length: PAGE, to: None, keeps: true };
        cuts.judge(&[moved(OLD, NEW)], &[Held { thread: 1, call }]);
        let call = Call::Unmap { start: OLD, end: OLD + PAGE };
        let held = [Held { thread: 1, call }];
        assert_eq!((vec![NEWS], true), judge(&mut cuts, &[unmapped(OLD)], &held));
    }

    #[test]
    fn a_place_cleared_for_a_move_is_not_the_whole_story() {
        let mut cuts = Cuts::default();
        let held = [a_move(1, OLD, Some(NEW))];
        assert_eq!((vec![NEWS], false), judge(&mut cuts, &[unmapped(NEW)], &held));
        let earlier = Judgement { earlier: true, ..NEWS };
        assert_eq!((vec![earlier], true), judge(&mut cuts, &[moved(OLD, NEW)], &held));
        assert_eq!((vec![ECHO], true), judge(&mut cuts, &[unmapped(OLD)], &held));
    }

    #[test]
    fn what_shrinks_as_it_moves_gives_its_tail_up_at_once() {
        let held = |to: Option<u64>| {
            let (length, new_length) = (3 * PAGE, PAGE);
            [Held {
                thread: 1,
                call: Call::Move { from: OLD, length, new_length, to, keeps: false },
            }]
        };
        let shrinks = held(Some(NEW));
        let tail = OLD + PAGE..OLD + 3 * PAGE;
        let message = Message::Unmap { start: tail.start, end: tail.end };
        let mut cuts = Cuts::default();
        let cut = cuts.judge(&[moved(OLD, NEW)], &shrinks);
        assert_eq!(vec![(0, tail)], cut.given_up);
        assert_eq!(vec![(0, NEW..NEW + PAGE)], cut.taken);
        assert_eq!((vec![ECHO], true), judge(&mut cuts, &[message], &shrinks));
        // In place there is nothing before it.
        let cut = Cuts::default().judge(&[message], &held(None));
        assert_eq!((vec![NEWS], vec![]), (cut.judgements, cut.given_up));
    }

    #[test]
    fn who_has_moved_waits_with_his_echo() {
        let mut cuts = Cuts::default();
        let held = [a_move(1, OLD, Some(NEW))];
        judge(&mut cuts, &[moved(OLD, NEW)], &held);
        // Another one does the same, set free by the read that brings the first one's echo.
        let messages = [unmapped(OLD), moved(OLD, NEW)];
        assert_eq!((vec![ECHO, NEWS], true), judge(&mut cuts, &messages, &held));
    }

    #[test]
    fn who_has_moved_owes_the_rest() {
        let mut cuts = Cuts::default();
        let held = [a_move(1, OLD, Some(NEW)), a_move(2, 0x5000, Some(0x7000))];
        judge(&mut cuts, &[moved(OLD, NEW), unmapped(0x7000)], &held);
        // The second one may find no memory to move with.
        assert_eq!(vec![&held[0]], cuts.owing(&[2]).collect::<Vec<_>>());
        assert_eq!(0, cuts.owing(&[1]).count());
    }

    #[test]
    fn who_waits_for_the_lock_has_told_nothing() {
        let call = Call::Unmap { start: OLD, end: OLD + PAGE };
        let held = [Held { thread: 1, call }];
        let mut cuts = Cuts::default();
        judge(&mut cuts, &[], &held);
        assert_eq!((vec![NEWS], true), judge(&mut cuts, &[unmapped(OLD)], &held));
    }

    #[test]
    fn the_same_call_once_more_is_another_one() {
        let call = Call::Unmap { start: OLD, end: OLD + PAGE };
        let held = [Held { thread: 1, call }];
        let mut cuts = Cuts::default();
        for _ in 0..2 {
            assert_eq!((vec![NEWS], true), judge(&mut cuts, &[unmapped(OLD)], &held));
        }
        // A move has more to tell after the same message.
        let held = [a_move(1, OLD, Some(NEW))];
        for _ in 0..2 {
            assert_eq!((vec![NEWS], true), judge(&mut cuts, &[moved(OLD, NEW)], &held));
            assert_eq!((vec![ECHO], true), judge(&mut cuts, &[unmapped(OLD)], &held));
        }
    }
}
