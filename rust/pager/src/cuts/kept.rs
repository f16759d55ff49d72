//! What an engine knows of calls in progress, kept where the next one finds it.
//!
//! Written before a cut is read and again when its messages are judged; each time into the place
//! that is not in use, so that one store makes it valid.  Whoever takes over judges the messages of
//! a cut that was read in part, or not judged to the end, by exactly what its reader had seen.

use super::{Call, Held, Told};
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that can be kept; of more, nothing is.
pub const CALLS_MAX: usize = 85;
/// Words of one call.
pub const CALL_WORDS: usize = 6;
/// Words of both places.
pub const WORDS: usize = 2 * CALLS_MAX * CALL_WORDS;

/// Fields of the state word.
mod state {
    pub const VALID: u64 = 1;
    /// The second place is the one in use.
    pub const SECOND: u64 = 1 << 1;
    /// A cut is being read.
    pub const READING: u64 = 1 << 2;
    pub const CALLS_SHIFT: u32 = 16;
    pub const FIRST_SHIFT: u32 = 32;
    pub const EVENTS_SHIFT: u32 = 48;
    pub const FIELD: u64 = 0xffff;
}

/// Calls in progress, each with what it has told.
pub type Calls = Vec<(Held, Told)>;

/// A cut that was begun and not judged to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Place of the journal from which on its messages lie.
    pub first: usize,
    /// How many events it has.
    pub events: usize,
}

/// The words in which it is kept.
pub struct Kept<'a> {
    /// What is valid.
    pub state: &'a AtomicU64,
    /// [`WORDS`] of them.
    pub words: &'a [AtomicU64],
}

impl Kept<'_> {
    /// Keep the calls in progress, with what they have told before the cut that was begun.
    pub fn store(&self, calls: &[(Held, Told)], begun: Option<Begun>) {
        let last = self.state.load(Ordering::Acquire);
        if calls.len() > CALLS_MAX {
            self.forget();
            return;
        }
        let second = !last & state::SECOND;
        for (words, call) in self.place(second).chunks_exact(CALL_WORDS).zip(calls) {
            for (word, value) in words.iter().zip(to_words(call)) {
                word.store(value, Ordering::Relaxed);
            }
        }
        let reading = begun.map_or(0, |begun| {
            state::READING
                | (begun.first as u64) << state::FIRST_SHIFT
                | (begun.events as u64) << state::EVENTS_SHIFT
        });
        let count = (calls.len() as u64) << state::CALLS_SHIFT;
        self.state.store(state::VALID | second | count | reading, Ordering::Release);
    }

    /// Nothing is known of calls in progress.
    pub fn forget(&self) {
        let second = self.state.load(Ordering::Acquire) & state::SECOND;
        self.state.store(second, Ordering::Release);
    }

    /// What was kept; `None` if nothing is known.
    #[must_use]
    pub fn load(&self) -> Option<(Calls, Option<Begun>)> {
        let state = self.state.load(Ordering::Acquire);
        let field = |shift: u32| ((state >> shift) & state::FIELD) as usize;
        if state & state::VALID == 0 || field(state::CALLS_SHIFT) > CALLS_MAX {
            return None;
        }
        let words = self.place(state & state::SECOND).chunks_exact(CALL_WORDS);
        let calls = words.take(field(state::CALLS_SHIFT)).map(of_words).collect::<Option<_>>()?;
        let begun = Begun { first: field(state::FIRST_SHIFT), events: field(state::EVENTS_SHIFT) };
        Some((calls, (state & state::READING != 0).then_some(begun)))
    }

    fn place(&self, second: u64) -> &[AtomicU64] {
        let (first_half, second_half) = self.words.split_at(CALLS_MAX * CALL_WORDS);
        if second == 0 { first_half } else { second_half }
    }
}

const UNMAP: u64 = 1;
const MOVE: u64 = 2;
const CHOSEN: u64 = 1 << 8;
const KEEPS: u64 = 1 << 9;
const TOLD_SHIFT: u32 = 16;
const THREAD_SHIFT: u32 = 32;
const TOLD: [Told; 5] = [Told::Nothing, Told::Cleared, Told::Moved, Told::Tail, Told::Everything];

fn to_words((held, told): &(Held, Told)) -> [u64; CALL_WORDS] {
    let head = (held.thread as u64) << THREAD_SHIFT | (*told as u64) << TOLD_SHIFT;
    match held.call {
        Call::Unmap { start, end } => [head | UNMAP, start, end, 0, 0, 0],
        Call::Move { from, length, new_length, to, keeps } => {
            let chosen = if to.is_some() { CHOSEN } else { 0 };
            let keeps = if keeps { KEEPS } else { 0 };
            [head | MOVE | chosen | keeps, from, length, new_length, to.unwrap_or(0), 0]
        }
    }
}

fn of_words(words: &[AtomicU64]) -> Option<(Held, Told)> {
    let word = |index: usize| words[index].load(Ordering::Relaxed);
    let head = word(0);
    let call = match head & 0xff {
        UNMAP => Call::Unmap { start: word(1), end: word(2) },
        MOVE => Call::Move {
            from: word(1),
            length: word(2),
            new_length: word(3),
            to: (head & CHOSEN != 0).then(|| word(4)),
            keeps: head & KEEPS != 0,
        },
        _ => return None,
    };
    let told = *TOLD.get((head >> TOLD_SHIFT & 0xff) as usize)?;
    Some((Held { thread: (head >> THREAD_SHIFT) as i32, call }, told))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> (AtomicU64, Vec<AtomicU64>) {
        (AtomicU64::new(0), (0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    fn call(thread: i32, to: Option<u64>, keeps: bool) -> Held {
        let call = Call::Move { from: 0x1000, length: 0x3000, new_length: 0x2000, to, keeps };
        Held { thread, call }
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was() {
        let (state, words) = words();
        let kept = Kept { state: &state, words: &words };
        assert_eq!(None, kept.load());
        let unmap = Held { thread: 7, call: Call::Unmap { start: 0x5000, end: 0x9000 } };
        let calls = vec![
            (unmap, Told::Nothing),
            (call(8, None, true), Told::Moved),
            (call(1 << 22, Some(0), false), Told::Cleared),
        ];
        let begun = Some(Begun { first: 400, events: 3 });
        kept.store(&calls, begun);
        assert_eq!(Some((calls.clone(), begun)), kept.load());
        kept.store(&calls[1..], None);
        assert_eq!(Some((calls[1..].to_vec(), None)), kept.load());
        kept.forget();
        assert_eq!(None, kept.load());
    }

    #[test]
    fn a_half_written_place_is_not_the_valid_one() {
        let (state, words) = words();
        let kept = Kept { state: &state, words: &words };
        kept.store(&[(call(1, None, false), Told::Moved)], None);
        let before = state.load(Ordering::Relaxed);
        kept.store(&[(call(2, Some(4096), true), Told::Tail)], None);
        state.store(before, Ordering::Relaxed);
        assert_eq!(Some((vec![(call(1, None, false), Told::Moved)], None)), kept.load());
    }

    #[test]
    fn too_many_are_not_kept_in_part() {
        let (state, words) = words();
        let kept = Kept { state: &state, words: &words };
        kept.store(&vec![(call(1, None, false), Told::Nothing); CALLS_MAX], None);
        assert_eq!(CALLS_MAX, kept.load().map_or(0, |found| found.0.len()));
        kept.store(&vec![(call(1, None, false), Told::Nothing); CALLS_MAX + 1], None);
        assert_eq!(None, kept.load());
    }
}
