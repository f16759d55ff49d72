//! What a region holds, as far as its mapping tells.

use crate::region::{Kind, Region};

/// Class of memory, for decisions and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Objects of an interpreter, or the brk heap.
    InterpreterHeap,
    /// Anything that is not recognised.
    Other,
}

impl Class {
    /// The name that people see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InterpreterHeap => "interpreter heap",
            Self::Other => "other",
        }
    }
}

impl Region {
    /// What this region holds.
    #[must_use]
    pub fn class(&self) -> Class {
        match self.decide(None).kind {
            Kind::Heap => Class::InterpreterHeap,
            _ => Class::Other,
        }
    }
}
