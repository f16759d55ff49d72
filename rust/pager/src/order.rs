//! In which order to apply events that were open together.  Pure.
//!
//! A thread is held from the effect of its call to the read of its event, so nobody can act on what
//! a call brought before its message was read.  And each tenant of an address leaves it once.  So:
//!
//! - who leaves by a read not later than an arrival at the same addresses was there before it; who
//!   leaves by a later one is the tenant before, or the one who came;
//! - which of the two follows from who is there in the end: there was a tenant before, if more have
//!   left than have come, or if he still has pages that are out;
//! - who queued before an arrival that he empties the addresses (`MADV_DONTNEED`, announced before
//!   it takes effect) was there before it; who queued it after has come;
//! - the "unmapped" that follows a "moved" says nothing new: an echo.
//!
//! Not told apart: an old tenant and a new one, if both have left by reads after the arrival.  Then
//! who queued first is taken to have left first, which is wrong only if the old tenant had not
//! queued yet when the arrival was read.

use crate::sys::userfaultfd::Message;
use std::ops::Range;

/// An event of a window, in queue order.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What the kernel said.
    pub message: Message,
    /// Number of the read that brought it.
    pub read: u64,
    /// It is applied.
    pub done: bool,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// Addresses that an event brings a tenant to.
fn arrival(message: &Message) -> Option<Range<u64>> {
    match *message {
        Message::Remap { to, length, .. } => Some(to..to + length),
        _ => None,
    }
}

/// Addresses whose tenant leaves.
fn departure(message: &Message) -> Option<Range<u64>> {
    match *message {
        Message::Remap { from, length, .. } => Some(from..from + length),
        Message::Unmap { start, end } => Some(start..end),
        _ => None,
    }
}

/// What an event says about who lives where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What it says.
    Plain,
    /// The "unmapped" that a thread sends after its "moved": nothing new.
    Echo,
    /// A move that leaves an empty mapping behind (`MREMAP_DONTUNMAP`): its tenant stays.
    Stays,
}

/// The roles of the events of a whole window.
///
/// Where a mapping that stayed is unmapped later in the window, that is taken for the echo: it is
/// empty, so this has nothing to say either.
pub fn roles(window: &[Event]) -> Vec<Role> {
    let mut roles = vec![Role::Plain; window.len()];
    for (index, event) in window.iter().enumerate() {
        let Message::Remap { from, length, .. } = event.message else { continue };
        let echo = Message::Unmap { start: from, end: from + length };
        let mut candidates = (index + 1..window.len())
            .filter(|&at| window[at].message == echo && roles[at] == Role::Plain);
        // Its thread was held in between, so a later read brings it, or a slow one the same.
        let first = candidates.clone().next();
        let place = candidates.find(|&at| window[at].read > event.read).or(first);
        match place {
            Some(place) => roles[place] = Role::Echo,
            None => roles[index] = Role::Stays,
        }
    }
    roles
}

/// Where tenants of a window meet: all that [`choose`] may want to know of what is watched.
/// Sorted, without overlaps.
pub fn meetings(window: &[Event]) -> Vec<Range<u64>> {
    let roles = roles(window);
    let mut found = Vec::new();
    for (index, event) in window.iter().enumerate() {
        let Some(place) = arrival(&event.message) else { continue };
        for (other, leaver) in window.iter().enumerate() {
            if let Some(left) = departure(&leaver.message).filter(|_| other != index)
                && roles[other] != Role::Echo
            {
                found.extend(overlap(&place, &left));
            }
        }
    }
    found.sort_by_key(|range: &Range<u64>| range.start);
    found.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    found
}

/// Which event of a window to apply next; at least one is not done.
///
/// `occupied` tells whether a range has pages that are out; `watched` is what is watched now.
pub fn choose(
    window: &[Event],
    occupied: impl Fn(Range<u64>) -> bool,
    watched: &[Range<u64>],
) -> usize {
    let mut open: Vec<Open<'_>> = window.iter().zip(roles(window)).enumerate().collect();
    open.retain(|(_, (event, role))| !event.done && *role != Role::Echo);
    let Some(&(first, _)) = open.first() else {
        return window.iter().position(|event| !event.done).unwrap_or(0);
    };
    let mut index = first;
    // Explanations can only form a circle if the kernel's messages contradict each other.
    for _ in 0..open.len() {
        match earlier(&open, index, &window[index], &occupied, watched) {
            Some(before) => index = before,
            None => return index,
        }
    }
    first
}

/// An event that is not applied yet: its index, and what it is.
type Open<'a> = (usize, (&'a Event, Role));

/// An open event that must come before this one.
fn earlier(
    open: &[Open<'_>],
    index: usize,
    event: &Event,
    occupied: &impl Fn(Range<u64>) -> bool,
    watched: &[Range<u64>],
) -> Option<usize> {
    if let Some(left) = departure(&event.message)
        && let Some(emptied) = emptied_before(open, index, &left)
    {
        return Some(emptied);
    }
    let place = arrival(&event.message)?;
    let leavers = || {
        open.iter().filter(|(at, _)| *at != index).filter_map(|(at, leaver)| {
            Some((*at, *leaver, overlap(&departure(&leaver.0.message)?, &place)?))
        })
    };
    if let Some((at, ..)) = leavers().find(|(_, leaver, _)| leaver.0.read <= event.read) {
        return Some(at);
    }
    leavers().filter(|(_, leaver, _)| leaver.1 != Role::Stays).find_map(|(at, _, part)| {
        let meets = |range: Option<Range<u64>>| range.is_some_and(|r| overlap(&r, &part).is_some());
        let there = usize::from(watched.iter().any(|range| overlap(range, &part).is_some()));
        let come = open.iter().filter(|(_, (other, _))| meets(arrival(&other.message))).count();
        let leaves =
            |(other, role): (&Event, Role)| role != Role::Stays && meets(departure(&other.message));
        let gone = open.iter().filter(|(_, other)| leaves(*other)).count();
        (there + gone > come || occupied(part.clone())).then_some(at)
    })
}

/// The tenant that leaves had emptied its addresses before, if no other one came before that.
fn emptied_before(open: &[Open<'_>], index: usize, left: &Range<u64>) -> Option<usize> {
    open.iter().find_map(|(at, (other, _))| {
        let Message::Remove { start, end } = other.message else { return None };
        let part = overlap(&(start..end), left).filter(|_| *at < index)?;
        let another = open.iter().any(|(came, (newcomer, _))| {
            came < at && arrival(&newcomer.message).is_some_and(|to| overlap(&to, &part).is_some())
        });
        (!another).then_some(*at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn remap(from: u64, to: u64) -> Message {
        Message::Remap { from, to, length: 10 }
    }
    const fn unmap(start: u64) -> Message {
        Message::Unmap { start, end: start + 10 }
    }
    const fn remove(start: u64) -> Message {
        Message::Remove { start, end: start + 10 }
    }

    /// The order of messages with the numbers of their reads, if pages are out at `out` at first
    /// and `watched` is watched in the end.
    fn order(events: &[(Message, u64)], out: &[u64], watched: &[Range<u64>]) -> Vec<usize> {
        let mut window: Vec<Event> =
            events.iter().map(|&(message, read)| Event { message, read, done: false }).collect();
        let mut out = out.to_vec();
        let mut order = Vec::new();
        while window.iter().any(|event| !event.done) {
            let occupied = |range: Range<u64>| out.contains(&range.start);
            let chosen = choose(&window, occupied, watched);
            window[chosen].done = true;
            order.push(chosen);
            if let Some(left) = departure(&window[chosen].message) {
                let was_out = out.contains(&left.start);
                out.retain(|start| *start != left.start);
                out.extend(arrival(&window[chosen].message).filter(|_| was_out).map(|to| to.start));
            }
        }
        order
    }

    #[test]
    fn queue_order_is_kept_where_nothing_speaks_against_it() {
        assert_eq!(vec![0, 1], order(&[(remap(0, 100), 1), (remap(100, 200), 2)], &[0], &[]));
    }

    #[test]
    fn who_leaves_goes_before_who_arrives() {
        // B moved onto 100, from where A had gone to 200; B's message came first.
        let events = [(remap(0, 100), 1), (remap(100, 200), 1), (unmap(100), 2)];
        assert_eq!(vec![1, 0, 2], order(&events, &[0, 100], &[100..110, 200..210]));
        // And B moved on after that, which changes nothing.
        let events = [(remap(0, 100), 1), (remap(100, 200), 1), (remap(100, 300), 2)];
        assert_eq!(vec![1, 0, 2], order(&events, &[0, 100], &[200..210, 300..310]));
    }

    #[test]
    fn an_unmapped_owner_goes_before_who_arrives() {
        let events = [(remap(0, 100), 1), (unmap(100), 2)];
        assert_eq!(vec![1, 0], order(&events, &[0, 100], &[100..110]));
    }

    #[test]
    fn who_leaves_an_empty_place_is_told_from_who_came_by_who_is_there() {
        let events = [(remap(0, 100), 1), (unmap(100), 2)];
        assert_eq!(vec![1, 0], order(&events, &[0], &[100..110]));
        assert_eq!(vec![0, 1], order(&events, &[0], &[]));
    }

    #[test]
    fn an_explanation_can_have_been_queued_before() {
        let events =
            [(remap(300, 0), 1), (remap(100, 500), 1), (remap(0, 100), 1), (unmap(100), 2)];
        let watched = [0..10, 100..110, 500..510];
        assert_eq!(vec![1, 2, 0, 3], order(&events, &[0, 100, 300], &watched));
    }

    #[test]
    fn a_program_that_empties_and_then_moves_is_taken_at_its_word() {
        let events = [(remove(100), 1), (remap(100, 200), 2)];
        assert_eq!(vec![0, 1], order(&events, &[100], &[200..210]));
        // Also where the move explains another one.
        let events = [(remove(100), 1), (remap(0, 100), 2), (remap(100, 200), 2)];
        assert_eq!(vec![0, 2, 1], order(&events, &[0, 100], &[100..110, 200..210]));
    }

    #[test]
    fn who_came_and_emptied_is_not_taken_for_who_left() {
        let events = [(remap(0, 100), 1), (remove(100), 2), (remap(100, 200), 3), (unmap(100), 4)];
        assert_eq!(vec![2, 0, 1, 3], order(&events, &[0, 100], &[100..110, 200..210]));
    }

    #[test]
    fn a_circle_ends() {
        let events = [(remap(0, 100), 1), (remap(100, 0), 1)];
        assert_eq!(2, order(&events, &[0, 100], &[]).len());
    }
}
