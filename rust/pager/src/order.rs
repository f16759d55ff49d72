//! In which order to apply events that were open together.  Pure.

use crate::sys::userfaultfd::Message;
use std::ops::Range;

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// Addresses whose entries an event replaces or drops.
fn claim(message: &Message) -> Option<Range<u64>> {
    match *message {
        Message::Remap { to, length, .. } => Some(to..to + length),
        Message::Unmap { start, end } | Message::Remove { start, end } => Some(start..end),
        Message::Fork { .. } | Message::Fault { .. } | Message::Unknown(_) => None,
    }
}

/// Which message of a batch (in queue order, not empty) to apply next.
///
/// `occupied` tells whether a range has pages that are out; `watched` whether some of it is a
/// watched mapping now.  The first message is next, unless what it claims still belongs to
/// somebody who, by a later message, had left before.
pub fn choose(
    batch: &[Message],
    occupied: impl Fn(Range<u64>) -> bool,
    watched: impl Fn(Range<u64>) -> bool,
) -> usize {
    let mut index = 0;
    // Explanations can only form a circle if the kernel's messages contradict each other.
    for _ in 0..batch.len() {
        match explanation(batch, index, &occupied, &watched) {
            Some(earlier) => index = earlier,
            None => return index,
        }
    }
    0
}

fn explanation(
    batch: &[Message],
    index: usize,
    occupied: &impl Fn(Range<u64>) -> bool,
    watched: &impl Fn(Range<u64>) -> bool,
) -> Option<usize> {
    let claimed = claim(&batch[index])?;
    if !occupied(claimed.clone()) {
        return None;
    }
    let arrives = matches!(batch[index], Message::Remap { .. });
    batch.iter().enumerate().skip(index + 1).find_map(|(later, message)| {
        let left = match *message {
            Message::Remap { from, length, .. } => overlap(&(from..from + length), &claimed),
            Message::Unmap { start, end } if arrives => overlap(&(start..end), &claimed),
            _ => None,
        }?;
        // Who left after an arrival is who had arrived, unless somebody lives there now.
        (occupied(left.clone()) && watched(left)).then_some(later)
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

    #[test]
    fn queue_order_is_kept_where_nothing_speaks_against_it() {
        assert_eq!(0, choose(&[remap(0, 100), remap(100, 200)], |_| false, |_| true));
    }

    #[test]
    fn who_leaves_goes_before_who_arrives() {
        // B moved onto 100, from where A had gone to 200; B's message came first.
        let batch = [remap(0, 100), remap(100, 200), unmap(100)];
        assert_eq!(1, choose(&batch, |range| range.start == 100, |_| true));
    }

    #[test]
    fn an_unmapped_owner_goes_before_who_arrives() {
        let batch = [remap(0, 100), unmap(100)];
        assert_eq!(1, choose(&batch, |range| range.start == 100, |_| true));
    }

    #[test]
    fn a_program_that_empties_and_then_moves_is_taken_at_its_word() {
        // Nobody lives at 100 any more: the one who emptied it is the one who moved.
        let batch = [Message::Remove { start: 100, end: 110 }, remap(100, 200)];
        assert_eq!(0, choose(&batch, |range| range.start == 100, |range| range.start != 100));
    }

    #[test]
    fn a_circle_ends() {
        let batch = [remap(0, 100), remap(100, 0)];
        assert!(choose(&batch, |_| true, |_| true) < 2);
    }
}
