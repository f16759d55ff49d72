//! In which order to apply events that were open together.  Pure.
//!
//! A thread is held from the effect of its call to the read of its last event, so nobody acts on
//! what a call brought before that read; each tenant of an address leaves it once; and nobody comes
//! to an address that is taken.  So an order of all events of a window can be *checked*: by who was
//! at an address before the window (he has pages that are out), by who must be there when something
//! leaves or comes, by the reads in between, and by what is watched in the end.
//!
//! The order is searched for.  Events that have no address in common, directly or through others,
//! do not matter to each other and are put in order apart.  In each such group:
//!
//! - the "unmapped" that follows a "moved" says nothing new: an *echo*.  A move without one has
//!   left an empty mapping behind (`MREMAP_DONTUNMAP`).  Which "unmapped" is an echo is part of the
//!   search;
//! - an event is *late* if it took effect before another one that was read earlier.  Of the orders
//!   that pass the check, one with the fewest late events is taken: if everything that had taken
//!   effect was queued when we read, none was late, and there is no choice within one read: nobody
//!   acts there on what another one brought, so who leaves goes before who comes.
//!
//! The search is bounded ([`STEPS_MAX`]).  Should it find none (the messages contradict each other,
//! as those of a program that races with itself, or too many were late), what is watched is left
//! out of it; then each read is taken as a whole, who leaves before who comes.

use crate::sys::userfaultfd::Message;
use std::ops::Range;

/// Steps of a search, for all groups of a window together: bounds the time under the lock.  Each
/// looks at the events of its group a few times; where none was late, an event takes about two.
const STEPS_MAX: usize = 2048;

/// An event of a window, in queue order.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What the kernel said.
    pub message: Message,
    /// Number of the read that brought it; never falls from one event to the next, but in what
    /// [`by_reads`] is given.
    pub read: u64,
    /// It clears the place that another event comes to (an "unmapped" of ours).
    pub clears: bool,
}

impl Event {
    fn leaves(&self) -> Option<Range<u64>> {
        source(&self.message).filter(|_| !self.clears)
    }

    fn comes(&self) -> Option<Range<u64>> {
        if self.clears { source(&self.message) } else { arrival(&self.message) }
    }
}

/// An event in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Which event of the window.
    pub index: usize,
    /// It says nothing new.
    pub echo: bool,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// Whether both are there and have addresses in common.
pub fn overlaps(a: Option<&Range<u64>>, b: Option<&Range<u64>>) -> bool {
    a.zip(b).is_some_and(|(a, b)| overlap(a, b).is_some())
}

/// Addresses that an event brings a tenant to.
pub fn arrival(message: &Message) -> Option<Range<u64>> {
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

/// Addresses whose tenant an event is about.
pub fn source(message: &Message) -> Option<Range<u64>> {
    match *message {
        Message::Remove { start, end } => Some(start..end),
        _ => departure(message),
    }
}

/// Where tenants of a window meet: all that [`put_in_order`] may want to know of what is watched.
/// Sorted, without overlaps.
pub fn meetings(window: &[Event]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for (index, event) in window.iter().enumerate() {
        let Some(place) = arrival(&event.message) else { continue };
        for (other, leaver) in window.iter().enumerate() {
            if let Some(left) = departure(&leaver.message).filter(|_| other != index) {
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

/// The events of a window in the order in which to apply them.
///
/// `occupied` tells whether a range has pages that are out; `watched` is what is watched where
/// tenants of the window meet.
pub fn put_in_order(
    window: &[Event],
    occupied: impl Fn(Range<u64>) -> bool,
    watched: &[Range<u64>],
) -> Vec<Turn> {
    let meetings = meetings(window);
    let mut steps = [STEPS_MAX; 2];
    let mut orders: Vec<Vec<Turn>> = Vec::new();
    let mut order_of = vec![0; window.len()];
    for group in groups(window) {
        let mut search = Search::new(window, &group, &meetings, watched);
        let found = [true, false].iter().zip(&mut steps).any(|(&by_landscape, steps)| {
            search.begin(&occupied, by_landscape);
            search.run(steps)
        });
        for &index in &group {
            order_of[index] = orders.len();
        }
        orders.push(if found { search.turns() } else { whole_reads(window, &group) });
    }
    // In queue order, each behind what must come before it.
    let mut turns = Vec::with_capacity(window.len());
    let mut next: Vec<_> = orders.iter().map(|order| order.iter()).collect();
    let mut placed = vec![false; window.len()];
    for index in 0..window.len() {
        while !placed[index]
            && let Some(turn) = next[order_of[index]].next()
        {
            placed[turn.index] = true;
            turns.push(*turn);
        }
    }
    turns
}

/// The events of a window, by the addresses that they have in common.
fn groups(window: &[Event]) -> Vec<Vec<usize>> {
    let places: Vec<_> =
        window.iter().map(|event| [source(&event.message), arrival(&event.message)]).collect();
    let meet = |a: usize, b: usize| {
        places[a].iter().any(|a| places[b].iter().any(|b| overlaps(a.as_ref(), b.as_ref())))
    };
    let mut grouped = vec![false; window.len()];
    let mut found = Vec::new();
    for first in 0..window.len() {
        if grouped[first] {
            continue;
        }
        grouped[first] = true;
        let mut group = vec![first];
        let mut looked_at = 0;
        while let Some(&member) = group.get(looked_at) {
            let met = |other: &usize| !grouped[*other] && meet(member, *other);
            let more: Vec<usize> = (first + 1..window.len()).filter(met).collect();
            more.iter().for_each(|&other| grouped[other] = true);
            group.extend(more);
            looked_at += 1;
        }
        group.sort_unstable();
        found.push(group);
    }
    found
}

/// Events by the reads that brought them, each of which all of its events took effect before, and
/// none of another: who leaves before who comes.
pub fn by_reads(window: &[Event], group: &[usize]) -> Vec<usize> {
    let mut open = group.to_vec();
    // A child has all that left its parent after it was forked; what it lacks of the rest shows in
    // its own mappings.
    let is_fork = |event: &Event| matches!(event.message, Message::Fork { .. });
    open.sort_by_key(|&index| (window[index].read, !is_fork(&window[index])));
    let mut order = Vec::with_capacity(group.len());
    while let Some(&first) = open.first() {
        let is_free = |&index: &usize| {
            let event = &window[index];
            let place = event.comes();
            // Of two tenants of one place the one that was unmapped came after the one that moved.
            let unmapped = event.leaves().filter(|_| place.is_none());
            let goes_first = |&other: &usize| {
                let before = &window[other];
                let clears = before.comes().filter(|_| before.clears && !event.clears);
                let moves = before.leaves().filter(|_| before.comes().is_some());
                let meet = |a: &Option<_>, b: Option<_>| overlaps(a.as_ref(), b.as_ref());
                other != index
                    && before.read <= event.read
                    && (meet(&place, before.leaves())
                        || meet(&place, clears)
                        || meet(&unmapped, moves))
            };
            event.read <= window[first].read && !open.iter().any(goes_first)
        };
        let index = open.iter().copied().find(is_free).unwrap_or(first);
        order.push(index);
        open.retain(|&other| other != index);
    }
    order
}

/// The order of a group whose messages contradict each other.
fn whole_reads(window: &[Event], group: &[usize]) -> Vec<Turn> {
    let mut echoes = Vec::new();
    let order = by_reads(window, group);
    let mut turns = Vec::with_capacity(order.len());
    for (place, &index) in order.iter().enumerate() {
        let mut rest = order[place + 1..].to_vec();
        rest.sort_unstable();
        let is_its_echo =
            |other: &usize| is_echo(&window[*other], &window[index]) && !echoes.contains(other);
        echoes.extend(rest.into_iter().find(is_its_echo));
        turns.push(Turn { index, echo: echoes.contains(&index) });
    }
    turns
}

/// Whether this can be the "unmapped" that a thread sends after its "moved".
fn is_echo(event: &Event, moved: &Event) -> bool {
    let Message::Remap { from, length, .. } = moved.message else { return false };
    // Its thread was held in between, so a later read brings it.
    event.message == Message::Unmap { start: from, end: from + length } && event.read > moved.read
}

/// Who is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tenancy {
    /// Whoever was there before the window, if anybody was.
    Unknown,
    Free,
    Taken,
}

/// Addresses that no event tells apart, at a moment of the search.
#[derive(Clone, Debug)]
struct Piece {
    range: Range<u64>,
    tenancy: Tenancy,
    /// The first read that can bring the next event of these addresses.
    earliest: u64,
    /// How many events are still to come here.
    to_come: usize,
    /// Whether it is watched in the end, if that is known.
    watched: Option<bool>,
}

/// An event during the search.
#[derive(Clone, Debug)]
struct Open {
    index: usize,
    event: Event,
    source: Range<usize>,
    arrival: Range<usize>,
    done: bool,
}

/// The search for the order of a group.
struct Search {
    pieces: Vec<Piece>,
    open: Vec<Open>,
    /// What was done so far: an event, and its echo.
    taken: Vec<(usize, Option<usize>)>,
    steps: usize,
}

impl Search {
    fn new(
        window: &[Event],
        group: &[usize],
        meetings: &[Range<u64>],
        watched: &[Range<u64>],
    ) -> Self {
        let ranges = group.iter().flat_map(|&index| {
            let message = &window[index].message;
            source(message).into_iter().chain(arrival(message))
        });
        let mut cuts: Vec<u64> = ranges.flat_map(|range| [range.start, range.end]).collect();
        if let (Some(&first), Some(&last)) = (cuts.iter().min(), cuts.iter().max()) {
            let seen = meetings.iter().chain(watched).flat_map(|range| [range.start, range.end]);
            cuts.extend(seen.filter(|cut| (first..last).contains(cut)));
        }
        cuts.sort_unstable();
        cuts.dedup();
        let holds = |all: &[Range<u64>], at: u64| all.iter().any(|range| range.contains(&at));
        let piece = |pair: &[u64]| Piece {
            range: pair[0]..pair[1],
            tenancy: Tenancy::Unknown,
            earliest: 0,
            to_come: 0,
            watched: holds(meetings, pair[0]).then(|| holds(watched, pair[0])),
        };
        let mut pieces: Vec<Piece> = cuts.windows(2).map(piece).collect();
        let numbers = |range: Option<Range<u64>>| {
            let at = |address: u64| cuts.partition_point(|cut| *cut < address);
            range.map_or(0..0, |range| at(range.start)..at(range.end))
        };
        let open = |&index: &usize| {
            let event = window[index];
            let (source, arrival) = (source(&event.message), arrival(&event.message));
            Open { index, event, source: numbers(source), arrival: numbers(arrival), done: false }
        };
        let open: Vec<Open> = group.iter().map(open).collect();
        for event in &open {
            for number in event.source.clone().chain(event.arrival.clone()) {
                pieces[number].to_come += 1;
            }
        }
        Self { pieces, open, taken: Vec::with_capacity(group.len()), steps: 0 }
    }

    /// Tell who was there before the window: who has pages that are out; and, from the end on
    /// backwards, who was not brought.  Each tenant that left has one "unmapped", echo or not.
    fn begin(&mut self, occupied: impl Fn(Range<u64>) -> bool, by_landscape: bool) {
        for (number, piece) in self.pieces.iter_mut().enumerate() {
            let unmapped = |open: &&Open| {
                matches!(open.event.message, Message::Unmap { .. }) && open.source.contains(&number)
            };
            let left = self.open.iter().filter(unmapped).count();
            let come = self.open.iter().filter(|open| open.arrival.contains(&number)).count();
            piece.watched = piece.watched.filter(|_| by_landscape);
            piece.tenancy = match piece.watched.map(|there| usize::from(there) + left) {
                _ if piece.to_come > 1 && occupied(piece.range.clone()) => Tenancy::Taken,
                Some(all) if all == come => Tenancy::Free,
                Some(all) if all == come + 1 => Tenancy::Taken,
                _ => Tenancy::Unknown,
            };
        }
    }

    /// Find an order with as few late events as there can be.
    fn run(&mut self, steps: &mut usize) -> bool {
        self.steps = *steps;
        let found = (0..=self.open.len()).any(|late| self.go_on(late));
        *steps = self.steps;
        found
    }

    /// The order that was found.
    fn turns(&self) -> Vec<Turn> {
        let turn = |echo: bool| move |at: usize| Turn { index: self.open[at].index, echo };
        let event = |&(at, echo): &(usize, Option<usize>)| {
            std::iter::once(turn(false)(at)).chain(echo.map(turn(true)))
        };
        self.taken.iter().flat_map(event).collect()
    }

    /// Put what is left in order, with at most so many late events.
    fn go_on(&mut self, late: usize) -> bool {
        let Some(first) = self.open.iter().position(|open| !open.done) else { return true };
        let read = self.open[first].event.read;
        let in_time = |at: &usize| self.open[*at].event.read == read;
        let mut candidates: Vec<usize> = (first..self.open.len())
            .filter(|&at| !self.open[at].done)
            .take_while(in_time)
            .collect();
        let now = candidates.len();
        if late > 0 {
            for goal in 0..now {
                self.explain(candidates[goal], &mut candidates);
            }
        }
        let Some(rest) = self.steps.checked_sub(candidates.len() - now) else { return false };
        self.steps = rest;
        let mut gone_on = false;
        for (place, at) in candidates.into_iter().enumerate() {
            let is_late = place >= now;
            // Of what one read has brought, the first that can be is as good as any.
            if gone_on && !is_late {
                continue;
            }
            for echo in self.ways(at) {
                let Some(rest) = self.steps.checked_sub(1) else { return false };
                self.steps = rest;
                let Some(before) = self.take(at, echo) else { continue };
                if self.agrees(at) {
                    gone_on = true;
                    if self.go_on(late - usize::from(is_late)) {
                        return true;
                    }
                }
                self.give_back(before);
            }
        }
        false
    }

    /// With which echoes an event can be, the likeliest first: with that of the next read, with
    /// none, with later ones.
    fn ways(&self, at: usize) -> Vec<Option<usize>> {
        let moved = &self.open[at].event;
        let is_possible =
            |echo: &usize| !self.open[*echo].done && is_echo(&self.open[*echo].event, moved);
        let mut ways: Vec<_> =
            (at + 1..self.open.len()).filter(is_possible).map(Some).chain([None]).collect();
        let soon = |echo: usize| self.open[echo].event.read == moved.read + 1;
        ways.sort_by_key(|way| way.map_or(1, |echo| if soon(echo) { 0 } else { 2 }));
        ways
    }

    /// Add who may have left before an event that was read earlier: who makes room for it, or for
    /// another one who makes room; the latter before the former.  Nothing else can be late, because
    /// of the reads in between.  What can be the echo of a move to come is taken for that.
    fn explain(&self, goal: usize, found: &mut Vec<usize>) {
        let arrival = &self.open[goal].arrival;
        if arrival.clone().all(|number| self.pieces[number].tenancy == Tenancy::Free) {
            return;
        }
        for (at, open) in self.open.iter().enumerate().filter(|(_, open)| !open.done) {
            let makes_room = departure(&open.event.message).is_some()
                && open.source.start < arrival.end
                && arrival.start < open.source.end;
            let follows = |moved: &Open| !moved.done && is_echo(&open.event, &moved.event);
            if makes_room && !found.contains(&at) && !self.open.iter().any(follows) {
                let place = found.len();
                found.push(at);
                self.explain(at, found);
                found[place..].rotate_left(1);
            }
        }
    }

    /// Let an event take effect next, if it can; returns what was before.
    fn take(&mut self, at: usize, echo: Option<usize>) -> Option<Vec<Piece>> {
        let Open { event, source, arrival, .. } = self.open[at].clone();
        let touched = || source.clone().chain(arrival.clone());
        let is = |number: usize, tenancy: Tenancy| self.pieces[number].tenancy == tenancy;
        let somebody = source.is_empty() || source.clone().any(|n| !is(n, Tenancy::Free));
        let room = !arrival.clone().any(|n| is(n, Tenancy::Taken));
        let moment = touched().map(|n| self.pieces[n].earliest).max().unwrap_or(0);
        if !somebody || !room || moment > event.read {
            return None;
        }
        let before = touched().map(|n| self.pieces[n].clone()).collect();
        let leaves = echo.is_some() || matches!(event.message, Message::Unmap { .. });
        let held = echo.map_or(event.read, |echo| self.open[echo].event.read) + 1;
        for number in touched() {
            let piece = &mut self.pieces[number];
            let free = leaves && source.contains(&number);
            piece.tenancy = if free { Tenancy::Free } else { Tenancy::Taken };
            piece.earliest = if free { moment } else { held };
            piece.to_come -= 1 + usize::from(echo.is_some() && source.contains(&number));
        }
        self.open[at].done = true;
        if let Some(echo) = echo {
            self.open[echo].done = true;
        }
        self.taken.push((at, echo));
        Some(before)
    }

    /// Undo the last [`Self::take`].
    fn give_back(&mut self, before: Vec<Piece>) {
        let Some((at, echo)) = self.taken.pop() else { return };
        for undone in [Some(at), echo].into_iter().flatten() {
            self.open[undone].done = false;
        }
        let Open { source, arrival, .. } = &self.open[at];
        for (number, piece) in source.clone().chain(arrival.clone()).zip(before) {
            self.pieces[number] = piece;
        }
    }

    /// Whether what an event has led to can be: nobody is to act on it too early, and what nothing
    /// else comes to is as it is seen in the end.
    fn agrees(&self, at: usize) -> bool {
        let Open { source, arrival, .. } = &self.open[at];
        source.clone().chain(arrival.clone()).all(|number| {
            let piece = &self.pieces[number];
            let too_early = |open: &Open| {
                !open.done && open.event.read < piece.earliest && open.source.contains(&number)
            };
            let taken = piece.tenancy == Tenancy::Taken;
            match piece.watched {
                Some(watched) if piece.to_come == 0 => taken == watched,
                _ => !(taken && self.open.iter().any(too_early)),
            }
        })
    }
}

#[cfg(test)]
mod tests;
