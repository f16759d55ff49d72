//! Small windows, one rule each; the histories of a model are in `events/tests.rs`.

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

/// The order of messages with the numbers of their reads, if pages are out at `out` at first and
/// `watched` is watched in the end; without echoes.
fn order(events: &[(Message, u64)], out: &[u64], watched: &[Range<u64>]) -> Vec<usize> {
    let window: Vec<Event> =
        events.iter().map(|&(message, read)| Event { message, read, clears: false }).collect();
    let occupied = |range: Range<u64>| out.iter().any(|start| range.contains(start));
    let turns = put_in_order(&window, occupied, watched);
    turns.iter().filter(|turn| !turn.echo).map(|turn| turn.index).collect()
}

#[test]
fn queue_order_is_kept_where_nothing_speaks_against_it() {
    assert_eq!(vec![0, 1], order(&[(remap(0, 100), 1), (remap(100, 200), 2)], &[0], &[]));
}

#[test]
fn who_leaves_goes_before_who_arrives() {
    // B moved onto 100, from where A had gone to 200; B's message came first.
    let events = [(remap(0, 100), 1), (remap(100, 200), 1), (unmap(100), 2)];
    assert_eq!(vec![1, 0], order(&events, &[0, 100], &[100..110, 200..210]));
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
    let events = [(remap(300, 0), 1), (remap(100, 500), 1), (remap(0, 100), 1), (unmap(100), 2)];
    let watched = [0..10, 100..110, 500..510];
    assert_eq!(vec![1, 2, 0], order(&events, &[0, 100, 300], &watched));
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
    assert_eq!(vec![2, 0, 1], order(&events, &[0, 100], &[100..110, 200..210]));
}

#[test]
fn a_circle_ends() {
    let events = [(remap(0, 100), 1), (remap(100, 0), 1)];
    assert_eq!(2, order(&events, &[0, 100], &[]).len());
}

#[test]
fn a_child_is_taken_in_before_what_its_parent_lost_after_it() {
    let fork = Message::Fork { descriptor: 3, inode: 0 };
    let event = |message: Message, read: u64| Event { message, read, clears: false };
    let window = [event(unmap(0), 1), event(unmap(20), 2), event(fork, 2), event(remap(40, 60), 2)];
    assert_eq!(vec![0, 2, 1, 3], by_reads(&window, &[0, 1, 2, 3]));
}
