//! Plain values on their way to Python.

use crate::error::raise;
use crate::wakes::{LearnedSet, Refault, WakeReport};
use agentzip_pager::address::{ByteAddress, PAGE_SIZE};
use agentzip_pager::class::Class;
use agentzip_pager::disk_tier::DiskTier;
use agentzip_pager::error::Error;
use agentzip_pager::page_table::Entry;
use agentzip_pager::references::Reference;
use agentzip_pager::space::Space;
use agentzip_pager::stats::Histogram;
use agentzip_pager::target::Target;
use agentzip_pager::{
    analyze, attach, census, compact, engine, page_in, page_out, recode, region, spill, train,
};
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Byte ranges as they come from Python, checked.
pub fn as_ranges(pairs: Vec<(u64, u64)>) -> PyResult<Vec<Range<u64>>> {
    let page = PAGE_SIZE as u64;
    let check = |(start, end): (u64, u64)| {
        if start < end && start % page == 0 && end % page == 0 {
            Ok(start..end)
        } else {
            let problem = format!("{start:#x}-{end:#x} is not a range of whole pages");
            Err(raise(Error::InvalidSetting { field: "ranges", problem }))
        }
    };
    pairs.into_iter().map(check).collect()
}

/// Microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

macro_rules! value {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[pyclass(frozen, get_all, module = "agentzip._native")]
        #[derive(PartialEq)]
        pub struct $name { $($field: $type,)* }

        #[pymethods]
        impl $name {
            fn __repr__(&self) -> String {
                let fields = [$(format!("{}={:?}", stringify!($field), self.$field)),*];
                format!("{}({})", stringify!($name), fields.join(", "))
            }
        }
    };
}
pub(crate) use value;

value!(
    /// What an attach cost.
    AttachReport {
        pid: i32,
        stop_us: f64,
        attach_us: f64,
        warnings: Vec<String>,
    }
);

impl AttachReport {
    /// From the engine's.
    pub fn new(pid: i32, report: &attach::AttachReport) -> Self {
        Self {
            pid,
            stop_us: micros(report.stop),
            attach_us: micros(report.elapsed),
            warnings: report.warnings.clone(),
        }
    }
}

value!(
    /// What a page out did.
    PageOutReport {
        pid: i32,
        pages_moved: u64,
        pages_stored: u64,
        pages_clean: u64,
        pages_same_filled: u64,
        pages_deduplicated: u64,
        pages_raw: u64,
        pages_returned: u64,
        pages_pinned: u64,
        regions_skipped: u64,
        bytes_logical: u64,
        bytes_stored: u64,
        chunks: u64,
        elapsed_us: f64,
        stop_us: f64,
        hold_us: Vec<f64>,
        pool_full: bool,
        interrupted: bool,
    }
);

impl PageOutReport {
    /// From the engine's.
    pub fn new(pid: i32, report: &page_out::PageOutReport) -> Self {
        Self {
            pid,
            pages_moved: report.pages_moved,
            pages_stored: report.pages_stored,
            pages_clean: report.pages_clean,
            pages_same_filled: report.pages_same_filled,
            pages_deduplicated: report.pages_deduplicated,
            pages_raw: report.pages_raw,
            pages_returned: report.pages_returned,
            pages_pinned: report.pages_pinned,
            regions_skipped: report.regions_skipped,
            bytes_logical: report.pages_stored * PAGE_SIZE as u64,
            bytes_stored: report.bytes_stored,
            chunks: report.chunks,
            elapsed_us: micros(report.elapsed),
            stop_us: micros(report.stop),
            hold_us: report.hold.iter().copied().map(micros).collect(),
            pool_full: report.pool_full,
            interrupted: report.interrupted,
        }
    }
}

value!(
    /// What a page in did.
    PageInReport {
        pid: i32,
        pages_in: u64,
        pages_present: u64,
        pages_lost: u64,
        pages_out: u64,
        elapsed_us: f64,
    }
);

impl PageInReport {
    /// From the engine's.
    pub fn new(pid: i32, report: &page_in::PageInReport) -> Self {
        Self {
            pid,
            pages_in: report.pages_in,
            pages_present: report.pages_present,
            pages_lost: report.pages_lost,
            pages_out: report.pages_out,
            elapsed_us: micros(report.elapsed),
        }
    }
}

value!(
    /// What a detach did.
    DetachReport {
        pid: i32,
        pages_in: u64,
        pages_out: u64,
        complete: bool,
        elapsed_us: f64,
        stop_us: f64,
    }
);

impl DetachReport {
    /// From the engine's.
    pub fn new(pid: i32, report: &attach::DetachReport) -> Self {
        Self {
            pid,
            pages_in: report.pages_in,
            pages_out: report.pages_out,
            complete: report.complete,
            elapsed_us: micros(report.elapsed),
            stop_us: micros(report.stop),
        }
    }
}

value!(
    /// One managed address space.
    SpaceStatus {
        id: u64,
        pid: i32,
        parent_id: u64,
        command: String,
        state: &'static str,
        pages_out: u64,
        pages_staged: u64,
        pages_kept: u64,
        pages_same_filled: u64,
        pages_lost: u64,
        bytes_logical: u64,
        bytes_pool: u64,
        bytes_table: u64,
        faults: u64,
        faults_zero: u64,
        wakes: u64,
        pages_prefetched: u64,
        pages_spared: u64,
        pages_spared_touched: u64,
        pages_missed: u64,
        pages_late: u64,
        pages_windowed: u64,
        learned_pages: u64,
        refaults_dropped: u64,
        prefetching: bool,
    }
);

impl SpaceStatus {
    /// From the engine's.
    pub fn new(space: &Space) -> Self {
        let counts = space.table.counts();
        let gone = space.is_gone();
        let state = space.table.phase().map_or("attaching", |phase| phase.name());
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            id: space.id(),
            pid: space.header.pid,
            parent_id: space.header.parent,
            command: space.command.clone(),
            state: if gone { "gone" } else { state },
            pages_out: space.pages_out(),
            pages_staged: counts.staged,
            pages_kept: counts.kept,
            pages_same_filled: counts.same,
            pages_lost: counts.lost,
            bytes_logical: space.pages_out() * PAGE_SIZE as u64,
            bytes_pool: counts.encoded_bytes,
            bytes_table: space.table.words().resident_bytes(),
            faults: space.faults.load(Ordering::Relaxed),
            faults_zero: space.faults_zero.load(Ordering::Relaxed),
            wakes: get(&space.tally.wakes),
            pages_prefetched: get(&space.tally.prefetched),
            pages_spared: get(&space.tally.spared),
            pages_spared_touched: get(&space.tally.spared_touched),
            pages_missed: get(&space.tally.missed),
            pages_late: get(&space.tally.late),
            pages_windowed: get(&space.tally.windowed),
            learned_pages: get(&space.tally.learned),
            refaults_dropped: get(&space.tally.refaults_dropped),
            prefetching: space.prefetching.load(Ordering::Relaxed),
        }
    }
}

value!(
    /// What a training made.
    Training {
        id: u16,
        bytes: u64,
        pages_sampled: u64,
        gain: f64,
        cpu_us: f64,
    }
);

impl Training {
    /// From the engine's.
    pub fn new(training: &train::Training) -> Self {
        Self {
            id: training.id,
            bytes: training.bytes,
            pages_sampled: training.pages_sampled,
            gain: training.gain,
            cpu_us: micros(training.cpu),
        }
    }
}

value!(
    /// One dictionary.
    DictionaryInfo {
        id: u16,
        name: String,
        domain: String,
        bytes: u64,
        uses: u64,
        dropped: bool,
    }
);

impl DictionaryInfo {
    /// From the engine's.
    pub fn new(reference: &Reference) -> Self {
        let domain = reference.domain;
        Self {
            id: reference.id,
            name: reference.name.clone(),
            domain: if domain == 0 { String::new() } else { format!("{domain:016x}") },
            bytes: reference.bytes().len() as u64,
            uses: reference.uses(),
            dropped: reference.is_dropped(),
        }
    }
}

value!(
    /// What a background pass did.
    RecodeReport {
        pid: i32,
        pages_seen: u64,
        pages_recoded: u64,
        pages_delta: u64,
        bytes_before: u64,
        bytes_after: u64,
        cpu_us: f64,
        done: bool,
        preempted: bool,
    }
);

impl RecodeReport {
    /// From the engine's.
    pub fn new(pid: i32, report: &recode::RecodeReport) -> Self {
        Self {
            pid,
            pages_seen: report.pages_seen,
            pages_recoded: report.pages_recoded,
            pages_delta: report.pages_delta,
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
            cpu_us: micros(report.cpu),
            done: report.done,
            preempted: report.preempted,
        }
    }
}

value!(
    /// What a compaction did.
    CompactReport {
        pages_moved: u64,
        bytes_before: u64,
        bytes_after: u64,
        cpu_us: f64,
        done: bool,
    }
);

impl CompactReport {
    /// From the engine's.
    pub fn new(report: &compact::CompactReport) -> Self {
        Self {
            pages_moved: report.pages_moved,
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
            cpu_us: micros(report.cpu),
            done: report.done,
        }
    }
}

value!(
    /// What a spill to the disk tier did.
    SpillReport {
        pid: i32,
        pages_spilled: u64,
        bytes_spilled: u64,
        cpu_us: f64,
        stopped: String,
    }
);

impl SpillReport {
    /// From the engine's.
    pub fn new(pid: i32, report: &spill::SpillReport) -> Self {
        Self {
            pid,
            pages_spilled: report.pages_spilled,
            bytes_spilled: report.bytes_spilled,
            cpu_us: micros(report.cpu),
            stopped: report.stopped.clone(),
        }
    }
}

value!(
    /// One class of memory in one encoding.
    CensusRow {
        class_name: &'static str,
        codec: &'static str,
        pages: u64,
        bytes: u64,
    }
);

impl CensusRow {
    /// From the engine's.
    pub fn new(row: &census::CensusRow) -> Self {
        Self { class_name: row.class_name, codec: row.codec, pages: row.pages, bytes: row.bytes }
    }
}

value!(
    /// A latency distribution.
    Latency {
        count: u64,
        p50_us: f64,
        p99_us: f64,
        max_us: f64,
        mean_us: f64,
    }
);

impl Latency {
    #[allow(clippy::cast_precision_loss)]
    fn new(histogram: &Histogram) -> Self {
        let snapshot = histogram.snapshot();
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Self {
            count: snapshot.count,
            p50_us: micros(snapshot.p50_ns),
            p99_us: micros(snapshot.p99_ns),
            max_us: micros(snapshot.max_ns),
            mean_us: micros(snapshot.mean_ns),
        }
    }
}

value!(
    /// Figures of the whole engine.
    EngineStats {
        pool_bytes: u64,
        pool_payload_bytes: u64,
        pool_bytes_max: u64,
        pool_slots: u64,
        pool_waste_bytes: u64,
        table_bytes: u64,
        index_bytes: u64,
        dictionary_bytes: u64,
        learned_bytes: u64,
        disk_bytes: u64,
        disk_bytes_max: u64,
        faults: u64,
        faults_zero: u64,
        faults_disk: u64,
        faults_already_present: u64,
        faults_retried: u64,
        fault_panics: u64,
        pages_lost: u64,
        events_fork: u64,
        events_remap: u64,
        events_remove: u64,
        events_unmap: u64,
        fault_service: Latency,
        decode: Latency,
        encode: Latency,
        stop: Latency,
        hold: Latency,
        wake: Latency,
        keeper_pid: i32,
        keeper_restarts: u64,
    }
);

impl EngineStats {
    /// From the engine's.
    pub fn new(engine: &engine::Engine) -> Self {
        let shared = engine.shared();
        let pool = shared.store.stats();
        let counters = shared.counters.snapshot();
        let (keeper_pid, keeper_restarts) = engine.keeper();
        let tables = shared.all_spaces();
        Self {
            pool_bytes: shared.store.resident_bytes(),
            pool_payload_bytes: pool.bytes_payload,
            pool_bytes_max: pool.bytes_max,
            pool_slots: pool.slots,
            pool_waste_bytes: shared.store.resident_bytes().saturating_sub(pool.bytes_payload),
            index_bytes: shared.store.index_bytes() + shared.caches.memory_bytes(),
            dictionary_bytes: shared.store.references.memory_bytes(),
            learned_bytes: tables.iter().map(|space| space.tally.bytes()).sum(),
            disk_bytes: shared.store.disk().map_or(0, DiskTier::bytes),
            disk_bytes_max: shared.store.disk().map_or(0, DiskTier::bytes_max),
            table_bytes: tables.iter().map(|space| space.table.words().resident_bytes()).sum(),
            faults: counters.faults,
            faults_zero: counters.faults_zero,
            faults_disk: counters.faults_disk,
            faults_already_present: counters.faults_already_present,
            faults_retried: counters.faults_retried,
            fault_panics: counters.fault_panics,
            pages_lost: counters.pages_lost,
            events_fork: counters.events_fork,
            events_remap: counters.events_remap,
            events_remove: counters.events_remove,
            events_unmap: counters.events_unmap,
            fault_service: Latency::new(&shared.service),
            decode: Latency::new(&shared.decode),
            encode: Latency::new(&shared.encode),
            stop: Latency::new(&shared.stop),
            hold: Latency::new(&shared.hold),
            wake: Latency::new(&shared.wake),
            keeper_pid,
            keeper_restarts,
        }
    }
}

value!(
    /// One mapping of a process.
    Region {
        start: u64,
        end: u64,
        protection: String,
        name: String,
        kind: &'static str,
        class_name: &'static str,
        resident_bytes: u64,
        out_bytes: u64,
        movable: bool,
        reason: &'static str,
    }
);

impl Region {
    /// From the engine's.
    pub fn new(region: &region::Region, class: Class, space: Option<&Space>) -> Self {
        let decision = region.decide(space.map(|space| &space.header.area));
        let mut out = 0;
        if let Some(space) = space {
            let pages =
                ByteAddress(region.range.start).page()..ByteAddress(region.range.end).page();
            let _core = space.core.lock();
            space.table.for_each(pages, |_, entry| {
                let is_out = !matches!(entry, Entry::Absent | Entry::Kept(_));
                out += if is_out { PAGE_SIZE as u64 } else { 0 };
            });
        }
        Self {
            start: region.range.start,
            end: region.range.end,
            protection: region.protection.clone(),
            name: region.name.clone(),
            kind: decision.kind.name(),
            class_name: class.name(),
            resident_bytes: region.resident,
            out_bytes: out,
            movable: decision.movable,
            reason: decision.reason,
        }
    }
}

value!(
    /// What is to be expected of one class of memory.
    ClassForecast {
        class_name: &'static str,
        resident_bytes: u64,
        movable_bytes: u64,
        pages: u64,
        pages_sampled: u64,
        pages_same_filled: u64,
        pages_raw: u64,
        pages_equal: u64,
        stored_bytes: u64,
        stored_bytes_dictionary: u64,
    }
);

value!(
    /// Memory that stays.
    Stay {
        reason: &'static str,
        resident_bytes: u64,
    }
);

value!(
    /// What is to be expected of a page out.
    Analysis {
        pid: i32,
        command: String,
        rss_bytes: u64,
        pss_bytes: u64,
        leaving_pss_bytes: u64,
        pool_bytes: u64,
        pool_bytes_dictionary: u64,
        table_bytes: u64,
        dictionary_bytes: u64,
        classes: Vec<ClassForecast>,
        stays: Vec<Stay>,
        cpu_us: f64,
    }
);

macro_rules! printable {
    ($($name:ident)*) => { $(
        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(&self.__repr__())
            }
        }

        impl Clone for $name {
            fn clone(&self) -> Self {
                Self { ..*self }
            }
        }
    )* };
}

printable!(ClassForecast Latency Stay);

impl Analysis {
    /// From the engine's.
    pub fn new(analysis: &analyze::Analysis) -> Self {
        let classes = analysis.classes.iter().map(|(class, forecast)| ClassForecast {
            class_name: class.name(),
            resident_bytes: forecast.resident_bytes,
            movable_bytes: forecast.movable_bytes,
            pages: forecast.pages,
            pages_sampled: forecast.pages_sampled,
            pages_same_filled: forecast.pages_same_filled,
            pages_raw: forecast.pages_raw,
            pages_equal: forecast.pages_equal,
            stored_bytes: forecast.stored_bytes,
            stored_bytes_dictionary: forecast.stored_bytes_dictionary,
        });
        let stays = analysis.stays.iter();
        let stays =
            stays.map(|stay| Stay { reason: stay.reason, resident_bytes: stay.resident_bytes });
        Self {
            pid: analysis.pid,
            command: analysis.command.clone(),
            rss_bytes: analysis.rss_bytes,
            pss_bytes: analysis.pss_bytes,
            leaving_pss_bytes: analysis.leaving_pss_bytes,
            pool_bytes: analysis.pool_bytes,
            pool_bytes_dictionary: analysis.pool_bytes_dictionary,
            table_bytes: analysis.table_bytes,
            dictionary_bytes: analysis.dictionary_bytes,
            classes: classes.collect(),
            stays: stays.collect(),
            cpu_us: micros(analysis.cpu),
        }
    }
}

value!(
    /// A process before it is attached.
    TargetInfo {
        pid: i32,
        start_time: u64,
        command: String,
        threads: u32,
        seccomp: u32,
    }
);

impl TargetInfo {
    /// From the engine's.
    pub fn new(target: &Target) -> Self {
        Self {
            pid: target.pid,
            start_time: target.start_time,
            command: target.command.clone(),
            threads: target.threads,
            seccomp: target.seccomp,
        }
    }
}

/// Add every class to the module.
pub fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WakeReport>()?;
    module.add_class::<LearnedSet>()?;
    module.add_class::<Refault>()?;
    module.add_class::<AttachReport>()?;
    module.add_class::<PageOutReport>()?;
    module.add_class::<PageInReport>()?;
    module.add_class::<DetachReport>()?;
    module.add_class::<SpaceStatus>()?;
    module.add_class::<Training>()?;
    module.add_class::<DictionaryInfo>()?;
    module.add_class::<RecodeReport>()?;
    module.add_class::<CompactReport>()?;
    module.add_class::<CensusRow>()?;
    module.add_class::<SpillReport>()?;
    module.add_class::<Latency>()?;
    module.add_class::<EngineStats>()?;
    module.add_class::<Region>()?;
    module.add_class::<ClassForecast>()?;
    module.add_class::<Stay>()?;
    module.add_class::<Analysis>()?;
    module.add_class::<TargetInfo>()
}
