//! The thin door between Python and the engine.
//!
//! Every call releases the GIL; only plain values cross.  The contract, with all its docstrings, is
//! `python/agentzip/_native.pyi`.

mod error;
mod values;
mod wakes;

use crate::error::raise;
use crate::values::{
    Analysis, AttachReport, CensusRow, CompactReport, DetachReport, DictionaryInfo, EngineStats,
    PageInReport, PageOutReport, RecodeReport, Region, SpaceStatus, SpillReport, TargetInfo,
    Training, as_ranges,
};
use crate::wakes::{LearnedSet, Refault, WakeReport};
use agentzip_pager::address::PAGE_SIZE;
use agentzip_pager::ahead::Sizes;
use agentzip_pager::attach::Kinship;
use agentzip_pager::codec::Algorithm;
use agentzip_pager::error::Error;
use agentzip_pager::recode::Tier;
use agentzip_pager::target::Target;
use agentzip_pager::{
    analyze as forecasts, class, engine, features as probes, points, recode, region, shared, space,
    target, train,
};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::time::Duration;

/// Settings of one engine.
#[pyclass(frozen, module = "agentzip._native")]
struct EngineSettings {
    settings: shared::Settings,
    crash_at: Option<String>,
}

#[pymethods]
impl EngineSettings {
    #[new]
    #[pyo3(signature = (run_dir, *, pool_bytes_max=8 << 30, algorithm="zstd", level=3,
                        fault_threads=2, stop_limit_us=20_000, chunk_pages=1024, crash_at=None,
                        deduplicate=true, disk_path=None, disk_bytes_max=0))]
    // Python's keyword arguments are the settings object; Rust's side gets one value.
    #[allow(clippy::too_many_arguments)]
    fn new(
        run_dir: String,
        pool_bytes_max: u64,
        algorithm: &str,
        level: i32,
        fault_threads: usize,
        stop_limit_us: u64,
        chunk_pages: usize,
        crash_at: Option<String>,
        deduplicate: bool,
        disk_path: Option<String>,
        disk_bytes_max: u64,
    ) -> PyResult<Self> {
        let algorithm = parse_algorithm(algorithm, level)?;
        let settings = shared::Settings {
            run_dir,
            pool_bytes_max,
            algorithm,
            fault_threads,
            stop_limit: Duration::from_micros(stop_limit_us),
            chunk_pages,
            deduplicate,
            disk_path: disk_path.map(Into::into),
            disk_bytes_max,
        };
        settings.check().map_err(raise)?;
        Ok(Self { settings, crash_at })
    }
}

/// The pager of one host.
#[pyclass(frozen, module = "agentzip._native")]
struct Engine {
    inner: engine::Engine,
    /// What `spaces` told last.  Held for an exchange only: no Python runs meanwhile.
    told: Mutex<HashMap<u64, Py<SpaceStatus>>>,
}

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, settings: &EngineSettings) -> PyResult<Self> {
        if let Some(point) = &settings.crash_at {
            points::arm(point).map_err(raise)?;
        }
        let settings = settings.settings.clone();
        let inner = py.detach(|| engine::Engine::start(settings)).map_err(raise)?;
        Ok(Self { inner, told: Mutex::default() })
    }

    #[pyo3(signature = (*, not_in=Vec::new()))]
    fn adopted(&self, not_in: Vec<String>) -> Vec<i32> {
        let shared = self.inner.shared();
        let others: Vec<u64> = not_in.iter().map(|domain| Kinship::of(domain, "").domain).collect();
        let counts = |pid: &i32| {
            let space = shared.space_of(*pid);
            others.is_empty() || space.is_some_and(|space| !others.contains(&space.header.domain))
        };
        self.inner.adopted().iter().copied().filter(counts).collect()
    }

    #[pyo3(signature = (pid, start_time=None, *, domain="", image=""))]
    fn attach(
        &self,
        py: Python<'_>,
        pid: i32,
        start_time: Option<u64>,
        domain: &str,
        image: &str,
    ) -> PyResult<AttachReport> {
        let kinship = Kinship::of(domain, image);
        let report = py.detach(|| self.inner.attach(pid, start_time, kinship)).map_err(raise)?;
        Ok(AttachReport::new(pid, &report))
    }

    #[pyo3(signature = (pid, ranges=None, keep=None, pages_max=None))]
    fn page_out(
        &self,
        py: Python<'_>,
        pid: i32,
        ranges: Option<Vec<(u64, u64)>>,
        keep: Option<Vec<(u64, u64)>>,
        pages_max: Option<u64>,
    ) -> PyResult<PageOutReport> {
        let ranges = ranges.map(as_ranges).transpose()?;
        let keep = as_ranges(keep.unwrap_or_default())?;
        let wanted = agentzip_pager::page_out::Wanted {
            ranges: ranges.as_deref(),
            keep: &keep,
            pages_max: pages_max.unwrap_or(u64::MAX),
        };
        let report = py.detach(|| self.inner.page_out(pid, wanted)).map_err(raise)?;
        Ok(PageOutReport::new(pid, &report))
    }

    #[pyo3(signature = (pid, ranges=None))]
    fn page_in(
        &self,
        py: Python<'_>,
        pid: i32,
        ranges: Option<Vec<(u64, u64)>>,
    ) -> PyResult<PageInReport> {
        let ranges = ranges.map(as_ranges).transpose()?;
        let report = py.detach(|| self.inner.page_in(pid, ranges.as_deref())).map_err(raise)?;
        Ok(PageInReport::new(pid, &report))
    }

    #[pyo3(signature = (pid, *, pages_max=None, first=None))]
    fn wake(
        &self,
        py: Python<'_>,
        pid: i32,
        pages_max: Option<usize>,
        first: Option<usize>,
    ) -> PyResult<WakeReport> {
        let report = py.detach(|| self.inner.wake(pid, pages_max, first)).map_err(raise)?;
        Ok(WakeReport::new(pid, &report))
    }

    #[pyo3(signature = (pid, *, replay, window_min=16, window_max=0))]
    fn set_prefetch(
        &self,
        py: Python<'_>,
        pid: i32,
        replay: bool,
        window_min: u64,
        window_max: u64,
    ) -> PyResult<()> {
        let window = Sizes { min: window_min, max: window_max };
        py.detach(|| self.inner.set_prefetch(pid, replay, window)).map_err(raise)
    }

    fn learned(&self, py: Python<'_>, pid: i32) -> PyResult<LearnedSet> {
        let learned = py.detach(|| self.inner.learned(pid)).map_err(raise)?;
        Ok(LearnedSet::new(pid, &learned))
    }

    fn hottest(&self, py: Python<'_>, pid: i32, pages_max: u64) -> PyResult<Vec<(u64, u64)>> {
        let ranges = py.detach(|| self.inner.hottest(pid, pages_max)).map_err(raise)?;
        Ok(ranges.into_iter().map(|range| (range.start, range.end)).collect())
    }

    fn export_learned<'py>(&self, py: Python<'py>, pid: i32) -> PyResult<Bound<'py, PyBytes>> {
        let data = py.detach(|| self.inner.export_learned(pid)).map_err(raise)?;
        Ok(PyBytes::new(py, &data))
    }

    fn import_learned(&self, py: Python<'_>, pid: i32, data: &[u8]) -> PyResult<u64> {
        py.detach(|| self.inner.import_learned(pid, data)).map_err(raise)
    }

    fn refaults(&self, py: Python<'_>, pid: i32) -> PyResult<Vec<Refault>> {
        let refaults = py.detach(|| self.inner.refaults(pid)).map_err(raise)?;
        Ok(refaults.iter().map(Refault::new).collect())
    }

    #[pyo3(signature = (pid, memory_floor_bytes=67_108_864))]
    fn detach(&self, py: Python<'_>, pid: i32, memory_floor_bytes: u64) -> PyResult<DetachReport> {
        let report = py.detach(|| self.inner.detach(pid, memory_floor_bytes)).map_err(raise)?;
        Ok(DetachReport::new(pid, &report))
    }

    fn page_in_space(&self, py: Python<'_>, space_id: u64) -> PyResult<PageInReport> {
        let report = py.detach(|| self.inner.page_in_space(space_id)).map_err(raise)?;
        Ok(PageInReport::new(0, &report))
    }

    #[pyo3(signature = (pid, *, name="trained", bytes_max=262_144, pages_max=8_000,
                        normalised=false))]
    fn train(
        &self,
        py: Python<'_>,
        pid: i32,
        name: &str,
        bytes_max: usize,
        pages_max: usize,
        normalised: bool,
    ) -> PyResult<Training> {
        let request = train::Request { bytes_max, pages_max, normalised };
        let training = py.detach(|| self.inner.train(pid, name, request)).map_err(raise)?;
        Ok(Training::new(&training))
    }

    #[pyo3(signature = (data, *, name))]
    fn add_dictionary(&self, py: Python<'_>, data: &[u8], name: &str) -> PyResult<u16> {
        let added = py.detach(|| self.inner.add_dictionary(data, name)).map_err(raise)?;
        Ok(added.id)
    }

    #[pyo3(signature = (pid, dictionary_id=None))]
    fn use_dictionary(&self, pid: i32, dictionary_id: Option<u16>) -> PyResult<()> {
        self.inner.use_dictionary(pid, dictionary_id).map_err(raise)
    }

    fn measure_dictionary(&self, py: Python<'_>, pid: i32, dictionary_id: u16) -> PyResult<f64> {
        py.detach(|| self.inner.measure_dictionary(pid, dictionary_id)).map_err(raise)
    }

    fn drop_dictionary(&self, dictionary_id: u16) -> PyResult<()> {
        self.inner.drop_dictionary(dictionary_id).map_err(raise)
    }

    fn dictionaries(&self) -> Vec<DictionaryInfo> {
        let references = self.inner.shared().store.references.list();
        let dictionaries = references.iter().filter(|reference| reference.is_dictionary());
        dictionaries.map(|reference| DictionaryInfo::new(reference)).collect()
    }

    fn dictionary_bytes<'py>(
        &self,
        py: Python<'py>,
        dictionary_id: u16,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let reference = self.inner.shared().store.references.get(dictionary_id);
        let reference = reference.filter(|reference| reference.is_dictionary());
        let problem = format!("there is no dictionary {dictionary_id}");
        let missing = || raise(Error::InvalidSetting { field: "dictionary", problem });
        Ok(PyBytes::new(py, reference.ok_or_else(missing)?.bytes()))
    }

    #[pyo3(signature = (pid, *, tier="cold", dictionary_id=None, peer=None, budget_us=None))]
    fn recode(
        &self,
        py: Python<'_>,
        pid: i32,
        tier: &str,
        dictionary_id: Option<u16>,
        peer: Option<i32>,
        budget_us: Option<u64>,
    ) -> PyResult<RecodeReport> {
        let request = recode::Request {
            tier: Tier::parse(tier).map_err(raise)?,
            dictionary: dictionary_id,
            budget: budget_us.map(Duration::from_micros),
        };
        let report = py.detach(|| self.inner.recode(pid, peer, request)).map_err(raise)?;
        Ok(RecodeReport::new(pid, &report))
    }

    #[pyo3(signature = (budget_us=None))]
    fn compact(&self, py: Python<'_>, budget_us: Option<u64>) -> CompactReport {
        let report = py.detach(|| self.inner.compact(budget_us.map(Duration::from_micros)));
        CompactReport::new(&report)
    }

    #[pyo3(signature = (pid, *, pages_max=None))]
    fn spill(&self, py: Python<'_>, pid: i32, pages_max: Option<u64>) -> PyResult<SpillReport> {
        let most = pages_max.unwrap_or(u64::MAX);
        let report = py.detach(|| self.inner.spill(pid, most)).map_err(raise)?;
        Ok(SpillReport::new(pid, &report))
    }

    fn losses(&self) -> Vec<String> {
        self.inner.shared().losses.lock().iter().cloned().collect()
    }

    fn census(&self, py: Python<'_>, pid: i32) -> PyResult<Vec<CensusRow>> {
        let rows = py.detach(|| self.inner.census(pid)).map_err(raise)?;
        Ok(rows.iter().map(CensusRow::new).collect())
    }

    fn payload_bytes_out(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.inner.payload_bytes_out())
    }

    fn release_caches(&self, py: Python<'_>) {
        py.detach(|| self.inner.release_caches());
    }

    fn spaces(&self, py: Python<'_>) -> PyResult<Vec<Py<SpaceStatus>>> {
        let found: Vec<(u64, SpaceStatus)> = py.detach(|| {
            let mut spaces = self.inner.shared().all_spaces();
            spaces.sort_by_key(|space| space.id());
            spaces.iter().map(|space| (space.id(), SpaceStatus::new(space))).collect()
        });
        let mut former = std::mem::take(&mut *self.told.lock());
        let mut told = HashMap::with_capacity(found.len());
        let mut statuses = Vec::with_capacity(found.len());
        for (id, status) in found {
            let status = match former.remove(&id) {
                Some(known) if *known.get() == status => known,
                _ => Py::new(py, status)?,
            };
            told.insert(id, status.clone_ref(py));
            statuses.push(status);
        }
        *self.told.lock() = told;
        Ok(statuses)
    }

    fn stats(&self, py: Python<'_>) -> EngineStats {
        py.detach(|| EngineStats::new(&self.inner))
    }

    fn reset_stats(&self) {
        let shared = self.inner.shared();
        shared.counters.reset();
        shared.service.reset();
        shared.decode.reset();
        shared.encode.reset();
        shared.stop.reset();
        shared.hold.reset();
        shared.wake.reset();
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.close()).map_err(raise)
    }
}

fn parse_algorithm(name: &str, level: i32) -> PyResult<Algorithm> {
    Algorithm::parse(name, level)
        .map_err(|problem| raise(Error::InvalidSetting { field: "algorithm", problem }))
}

/// Sample a live process without attaching, and say what a page out would gain.
#[pyfunction]
#[pyo3(signature = (pid, *, algorithm="zstd", level=3, pages_max=2_000))]
fn analyze(
    py: Python<'_>,
    pid: i32,
    algorithm: &str,
    level: i32,
    pages_max: u64,
) -> PyResult<Analysis> {
    let request = forecasts::Request { algorithm: parse_algorithm(algorithm, level)?, pages_max };
    let analysis = py.detach(|| forecasts::analyze(pid, request)).map_err(raise)?;
    Ok(Analysis::new(&analysis))
}

/// Check that a process could be attached.
#[pyfunction]
fn describe(py: Python<'_>, pid: i32) -> PyResult<TargetInfo> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let target = py.detach(|| Target::describe(pid, &[own])).map_err(raise)?;
    Ok(TargetInfo::new(&target))
}

/// Every mapping of a process with the pager's decision.
#[pyfunction]
#[pyo3(signature = (pid, engine=None))]
fn regions(py: Python<'_>, pid: i32, engine: Option<&Engine>) -> PyResult<Vec<Region>> {
    let found = py
        .detach(|| target::read_maps(pid, true).map(|text| region::parse(&text)))
        .map_err(raise)?;
    let shared = engine.map(|engine| engine.inner.shared());
    let space = shared.and_then(|shared| shared.space_of(pid));
    Ok(py.detach(|| {
        let classes = match (shared, space.as_deref()) {
            (Some(shared), Some(space)) => class::of_space(shared, space, &found),
            _ => class::of_process(pid, &found),
        };
        let regions = found.iter().zip(classes);
        regions.map(|(region, class)| Region::new(region, class, space.as_deref())).collect()
    }))
}

/// Probe what this kernel allows.
#[pyfunction]
fn features(py: Python<'_>) -> HashMap<&'static str, String> {
    py.detach(|| probes::probe().into_iter().collect())
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PAGE_SIZE", PAGE_SIZE)?;
    module.add("STATE_FORMAT", space::STATE_FORMAT)?;
    module.add("CRASH_POINTS", points::NAMES.to_vec())?;
    module.add_class::<EngineSettings>()?;
    module.add_class::<Engine>()?;
    values::add_classes(module)?;
    module.add_function(wrap_pyfunction!(analyze, module)?)?;
    module.add_function(wrap_pyfunction!(describe, module)?)?;
    module.add_function(wrap_pyfunction!(regions, module)?)?;
    module.add_function(wrap_pyfunction!(features, module)?)?;
    Ok(())
}
