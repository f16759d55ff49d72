//! What prefetch did and knows, on its way to Python.

use crate::values::{micros, value};
use agentzip_pager::habit::RefaultRange;
use agentzip_pager::{engine, prefetch};
use pyo3::prelude::*;

value!(
    /// What a wake did.
    WakeReport {
        pid: i32,
        pages_in: u64,
        pages_following: u64,
        pages_present: u64,
        pages_spared: u64,
        pages_lost: u64,
        elapsed_us: f64,
    }
);

impl WakeReport {
    /// From the engine's.
    pub fn new(pid: i32, report: &prefetch::WakeReport) -> Self {
        Self {
            pid,
            pages_in: report.pages_in,
            pages_following: report.pages_following,
            pages_present: report.pages_present,
            pages_spared: report.pages_spared,
            pages_lost: report.pages_lost,
            elapsed_us: micros(report.elapsed),
        }
    }
}

value!(
    /// What a target has learned to need when it wakes.
    LearnedSet {
        pid: i32,
        pages: u64,
        pages_expected: u64,
        pages_out: u64,
        wakes: u64,
    }
);

impl LearnedSet {
    /// From the engine's.
    pub fn new(pid: i32, learned: &engine::LearnedSet) -> Self {
        Self {
            pid,
            pages: learned.pages,
            pages_expected: learned.pages_expected,
            pages_out: learned.pages_out,
            wakes: learned.wakes,
        }
    }
}

value!(
    /// Pages that came back because they were touched.
    Refault {
        start: u64,
        end: u64,
        after_ms: u64,
    }
);

impl Refault {
    /// From the engine's.
    pub fn new(refault: &RefaultRange) -> Self {
        let RefaultRange { range, after_ms } = refault;
        Self { start: range.start, end: range.end, after_ms: *after_ms }
    }
}
