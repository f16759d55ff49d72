//! What the messages of one read mean, told by the calls that threads are held in.  Pure.
//!
//! A read that waited until all that took effect was queued is a *cut* through the program's
//! history: its messages are the effects since the last one, at most one call of each thread, and
//! what calls of the last cut had to say still.  Nobody acts on what a call brought before the call
//! was read, so all of a cut left places that they had before it: who leaves goes before who comes,
//! and there is no other order to find.  What is left to tell is which "unmapped" is of a call that
//! was read before:
//!
//! - the one that a thread sends after its "moved", of the old place, says nothing new;
//! - nor does one of a place that its call gave up when it took effect, if the call ends with
//!   several: of a mapping that shrank as it moved, and of an unmap over more than one mapping.
//!   Somebody else may have come there before it is read, so the place is given up with the first.
//!
//! The kernel does not name the thread of a message, but it tells in which call, with which
//! arguments, a thread sleeps.

use crate::order;
use crate::sys::userfaultfd::Message;
use std::ops::Range;

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
    /// It came after the rest: of a thread that the same read had set free.
    pub later: bool,
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
    /// All effects are told by now: a call that first cleared the place that it moved to tells of
    /// the move with the next cut.
    pub is_whole: bool,
}

/// What is remembered from cut to cut while events are open: calls in progress that have told
/// something, and whether their "moved" was read.  Not kept beyond a kill.
#[derive(Debug, Default)]
pub struct Cuts(Vec<(Held, bool)>);

/// One of the held calls, while messages are given to them.
struct Caller {
    held: Held,
    /// It was held in the same call at the last cut, and had told something.
    again: bool,
    /// Its "moved" was read before, or is its message.
    moved: bool,
    /// Its message was found.
    told: bool,
}

impl Cuts {
    /// No event is open: no message of an earlier call will come.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// What the messages of a cut say, by the calls that threads were held in when it was made.
    pub fn judge(&mut self, messages: &[Message], held: &[Held]) -> Cut {
        let mut callers: Vec<Caller> = held.iter().map(|held| self.caller(held)).collect();
        let judgements = vec![Judgement::default(); messages.len()];
        let mut cut = Cut { judgements, is_whole: true, ..Cut::default() };
        for (index, message) in messages.iter().enumerate() {
            if let Message::Remap { from, to, .. } = *message {
                judge_moved(&mut cut, &mut callers, index, (from, to));
            }
        }
        let mut moved: Vec<Range<u64>> = messages.iter().filter_map(old_place).collect();
        for (index, message) in messages.iter().enumerate() {
            if let Message::Unmap { start, end } = *message {
                judge_unmapped(&mut cut, &mut callers, &mut moved, index, &(start..end));
            }
        }
        tell_later_ones(&mut cut, messages);
        // Who has told nothing may still wait for the lock of the address space.
        let told = callers.iter().filter(|caller| caller.told || caller.again);
        self.0 = told.map(|caller| (caller.held, caller.moved)).collect();
        cut
    }

    fn caller(&self, held: &Held) -> Caller {
        let before = self.0.iter().find(|before| before.0 == *held);
        let moved = before.is_some_and(|before| before.1);
        Caller { held: *held, again: before.is_some(), moved, told: false }
    }
}

/// Of what nobody was held in when the threads were looked at, one after the other, most has come
/// while they were: it belongs to the cut like the rest.  Only who leaves a place that somebody
/// came to after its former tenant had left came later.
fn tell_later_ones(cut: &mut Cut, messages: &[Message]) {
    let unheld: Vec<bool> = cut.judgements.iter().map(|judgement| judgement.later).collect();
    for index in (0..messages.len()).filter(|&index| unheld[index]) {
        let place = order::source(&messages[index]);
        let meets = |other: Option<Range<u64>>| order::overlaps(place.as_ref(), other.as_ref());
        let left =
            (0..messages.len()).any(|other| !unheld[other] && meets(old_place(&messages[other])));
        let came = messages.iter().any(|other| meets(order::arrival(other)));
        let judgement = &mut cut.judgements[index];
        judgement.later = !judgement.echo && left && came;
    }
}

fn judge_moved(cut: &mut Cut, callers: &mut [Caller], index: usize, (from, to): (u64, u64)) {
    let Some(caller) = tell(callers, |it| !it.moved && moves(it, from, to)) else {
        cut.judgements[index].later = true;
        return;
    };
    caller.moved = true;
    cut.judgements[index].earlier = caller.again;
    if let Call::Move { length, new_length, .. } = caller.held.call {
        if new_length < length {
            cut.given_up.push((index, from + new_length..from + length));
        }
        cut.taken.push((index, to..to + new_length));
    }
}

fn judge_unmapped(
    cut: &mut Cut,
    callers: &mut [Caller],
    moved: &mut Vec<Range<u64>>,
    index: usize,
    range: &Range<u64>,
) {
    let judgement = &mut cut.judgements[index];
    let is_late = |it: &Caller| {
        is_old_place(&it.held.call, range) || it.again && gives_up(&it.held.call, range)
    };
    if tell(callers, is_late).is_some() {
        judgement.echo = true;
    } else if tell(callers, |it| !it.again && clears(it, range)).is_some() {
        cut.is_whole = false;
    } else if let Some(caller) = tell(callers, |it| gives_up(&it.held.call, range)) {
        if let Call::Unmap { start, end } = caller.held.call
            && (start..end) != *range
        {
            cut.given_up.push((index, start..end));
        }
    } else {
        judgement.later = true;
        // Of a thread that the same read had set free after its "moved".
        judgement.echo = take(moved, |place| place == range);
    }
}

/// Take the first one out that is wanted; false if there is none.
fn take(places: &mut Vec<Range<u64>>, is_wanted: impl Fn(&Range<u64>) -> bool) -> bool {
    let found = places.iter().position(is_wanted);
    found.is_some_and(|index| {
        places.swap_remove(index);
        true
    })
}

fn old_place(message: &Message) -> Option<Range<u64>> {
    match *message {
        Message::Remap { from, length, .. } => Some(from..from + length),
        _ => None,
    }
}

/// Give a message to the first caller that it can be of, if there is one.
fn tell(callers: &mut [Caller], is_of: impl Fn(&Caller) -> bool) -> Option<&mut Caller> {
    let found = callers.iter_mut().find(|caller| !caller.told && is_of(caller))?;
    found.told = true;
    Some(found)
}

fn moves(caller: &Caller, old: u64, new: u64) -> bool {
    matches!(caller.held.call, Call::Move { from, to, .. }
        if from == old && to.is_none_or(|to| to == new))
}

/// Whether a range is what a call moved away and did not keep.
fn is_old_place(call: &Call, range: &Range<u64>) -> bool {
    matches!(*call, Call::Move { from, length, new_length, keeps: false, .. }
        if *range == (from..from + length.min(new_length)))
}

/// Whether a range is a part of what a call unmaps, or of what it leaves behind as it shrinks.
fn gives_up(call: &Call, range: &Range<u64>) -> bool {
    let given = match *call {
        Call::Unmap { start, end } => start..end,
        Call::Move { from, length, new_length, .. } => from + new_length.min(length)..from + length,
    };
    given.start <= range.start && range.end <= given.end
}

/// Whether a range is a part of the place that a call clears before it moves there.
fn clears(caller: &Caller, range: &Range<u64>) -> bool {
    matches!(caller.held.call, Call::Move { to: Some(to), new_length, .. }
        if to <= range.start && range.end <= to + new_length)
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

    const NEWS: Judgement = Judgement { echo: false, later: false, earlier: false };
    const ECHO: Judgement = Judgement { echo: true, ..NEWS };

    fn judge(cuts: &mut Cuts, messages: &[Message], held: &[Held]) -> (Vec<Judgement>, bool) {
        let cut = cuts.judge(messages, held);
        (cut.judgements, cut.is_whole)
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
        let call =
            Call::Move { from: OLD, length: 3 * PAGE, new_length: PAGE, to: None, keeps: false };
        let shrinks = [Held { thread: 1, call }];
        let tail = OLD + PAGE..OLD + 3 * PAGE;
        let message = Message::Unmap { start: tail.start, end: tail.end };
        let mut cuts = Cuts::default();
        let cut = cuts.judge(&[moved(OLD, NEW)], &shrinks);
        assert_eq!(vec![(0, tail)], cut.given_up);
        assert_eq!(vec![(0, NEW..NEW + PAGE)], cut.taken);
        assert_eq!((vec![ECHO], true), judge(&mut cuts, &[message], &shrinks));
        // In place there is nothing before it.
        let cut = Cuts::default().judge(&[message], &shrinks);
        assert_eq!((vec![NEWS], vec![]), (cut.judgements, cut.given_up));
    }

    #[test]
    fn two_mappings_unmapped_at_once_are_gone_with_the_first() {
        let call = Call::Unmap { start: OLD, end: OLD + 2 * PAGE };
        let held = [Held { thread: 1, call }];
        let mut cuts = Cuts::default();
        let cut = cuts.judge(&[unmapped(OLD)], &held);
        assert_eq!(vec![(0, OLD..OLD + 2 * PAGE)], cut.given_up);
        assert_eq!((vec![ECHO], true), judge(&mut cuts, &[unmapped(OLD + PAGE)], &held));
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
    fn who_waits_for_the_lock_has_told_nothing() {
        let call = Call::Unmap { start: OLD, end: OLD + PAGE };
        let held = [Held { thread: 1, call }];
        let mut cuts = Cuts::default();
        judge(&mut cuts, &[], &held);
        assert_eq!((vec![NEWS], true), judge(&mut cuts, &[unmapped(OLD)], &held));
    }

    #[test]
    fn who_leaves_where_another_has_just_come_came_after() {
        let mut cuts = Cuts::default();
        let later = Judgement { later: true, ..NEWS };
        let held = [a_move(1, OLD, None), a_move(2, NEW, None)];
        let messages = [moved(OLD, 0x5000), moved(NEW, OLD), moved(OLD, 0x7000)];
        assert_eq!((vec![NEWS, NEWS, later], true), judge(&mut cuts, &messages, &held));
        // Nobody else made room: it did itself, while the threads were looked at.
        let messages = [moved(NEW, OLD), moved(OLD, 0x7000)];
        assert_eq!((vec![NEWS, NEWS], true), judge(&mut Cuts::default(), &messages, &held[1..]));
    }
}
