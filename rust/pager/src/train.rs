//! A dictionary made from a program's own pages, and what it gains.
//!
//! Pages are sampled evenly from what is out and from what is resident; some are held out, and the
//! dictionary is measured on those.  Whether the gain is worth the memory is for others to decide.

use crate::address::{ByteAddress, PAGE_SIZE, PAGES_END, Page, PageNumber};
use crate::codec::{self, Preset, looks_incompressible, same_filled};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::page_table::{Entry, Stored};
use crate::recode::layout_of;
use crate::references::Reference;
use crate::region::{self, Region};
use crate::sample;
use crate::shared::Shared;
use crate::space::Space;
use crate::store::Reader;
use crate::sys::foreign;
use crate::target;
use std::sync::Arc;
use std::time::Duration;

/// Pages that the dictionary is measured on, and not trained with: one in so many, at most so many.
const HELD_OUT: (usize, usize) = (16, 256);
/// Pages that a dictionary made elsewhere is measured on.
const MEASURED_PAGES: usize = 256;
/// Fewer pages make no dictionary.
const PAGES_MIN: usize = 64;

/// What a training made.
#[derive(Clone, Debug)]
pub struct Training {
    /// Number of the dictionary.
    pub id: u16,
    /// Its size.
    pub bytes: u64,
    /// Pages it was made from.
    pub pages_sampled: u64,
    /// Encoded size of held-out pages without it, divided by that with it.
    pub gain: f64,
    /// Processor time of the calling thread.
    pub cpu: Duration,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Largest dictionary.
    pub bytes_max: usize,
    /// Most pages to sample.
    pub pages_max: usize,
    /// For normalised pages (cold tier) or for pages as they are (warm tier).
    pub normalised: bool,
}

/// Where a page can be read.
#[derive(Clone, Copy)]
enum Source {
    Stored(Stored),
    Resident(u64),
}

/// Train a dictionary from pages of `space` and keep it.
///
/// # Errors
/// Too few pages that are worth encoding; the trainer's refusal.
pub fn train(shared: &Shared, space: &Space, name: &str, request: Request) -> Result<Training> {
    let cpu = foreign::thread_time();
    foreign::background(true);
    let result = run(shared, space, name, request);
    foreign::background(false);
    let mut training = result?;
    training.cpu = foreign::thread_time().saturating_sub(cpu);
    Ok(training)
}

fn run(shared: &Shared, space: &Space, name: &str, request: Request) -> Result<Training> {
    let (pages, held_out) = sample(shared, space, request);
    let untrainable = |problem: String| Error::InvalidSetting { field: "train", problem };
    let count = pages.len() / PAGE_SIZE;
    if count < PAGES_MIN {
        return Err(untrainable(format!("{count} pages are too few for a dictionary")));
    }
    let bytes =
        codec::train(&pages, request.bytes_max).map_err(|error| untrainable(error.to_string()))?;
    let reference = shared.store.references.add_dictionary(&bytes, name, space.header.domain)?;
    let preset = if request.normalised { Preset::Cold } else { Preset::Warm };
    let gain = codec::gain(Arc::new(reference.memory()), held_out.as_chunks().0, preset)
        .map_err(|error| Error::Internal(error.to_string()))?;
    Ok(Training {
        id: reference.id,
        bytes: bytes.len() as u64,
        pages_sampled: count as u64,
        gain,
        cpu: Duration::ZERO,
    })
}

/// What a dictionary gains on a sample of the pages of `space`, as they are.
///
/// # Errors
/// The library refuses the dictionary.
pub fn measure(shared: &Shared, space: &Space, dictionary: &Reference) -> Result<f64> {
    let request = Request { bytes_max: 0, pages_max: MEASURED_PAGES, normalised: false };
    let (mut pages, held_out) = sample(shared, space, request);
    pages.extend(held_out);
    codec::gain(Arc::new(dictionary.memory()), pages.as_chunks().0, Preset::Warm)
        .map_err(|error| Error::Internal(error.to_string()))
}

/// Pages to train with, and pages to measure on.
fn sample(shared: &Shared, space: &Space, request: Request) -> (Vec<u8>, Vec<u8>) {
    let layout = if request.normalised { layout_of(space) } else { None };
    let mut reader = Reader::default();
    let mut page: Box<Page> = Box::new([0; PAGE_SIZE]);
    let (mut pages, mut held_out) = (Vec::new(), Vec::new());
    let sources = sources(space, request.pages_max);
    for (number, source) in sources.iter().enumerate() {
        let read = match source {
            Source::Stored(stored) => shared.store.get(stored, &mut reader, &mut page),
            Source::Resident(address) => space
                .memory
                .as_ref()
                .is_some_and(|memory| memory.read(*address, &mut *page).is_ok()),
        };
        if !read || same_filled(&page).is_some() || looks_incompressible(&page) {
            continue;
        }
        if let Some(layout) = &layout {
            Layout::apply(layout, &mut page);
        }
        let spare = number % HELD_OUT.0 == 0 && held_out.len() < HELD_OUT.1 * PAGE_SIZE;
        let list = if spare { &mut held_out } else { &mut pages };
        list.extend_from_slice(&*page);
    }
    (pages, held_out)
}

/// Evenly chosen pages: those that are out, and resident ones that may leave.
fn sources(space: &Space, pages_max: usize) -> Vec<Source> {
    let mut all: Vec<(PageNumber, Source)> = Vec::new();
    {
        let _core = space.core.lock();
        space.table.for_each(PageNumber(0)..PageNumber(PAGES_END), |page, entry| {
            if let Entry::Pooled(stored) = entry {
                all.push((page, Source::Stored(stored)));
            }
        });
    }
    let text = target::read_maps(space.header.pid, true).unwrap_or_default();
    let regions = region::parse(&text);
    let movable = |region: &&Region| region.decide(Some(&space.header.area)).movable;
    let mut present = Vec::new();
    if let Some(pagemap) = &space.pagemap {
        for region in regions.iter().filter(movable) {
            // A region that has gone meanwhile gives no pages.
            let _ = sample::resident(pagemap, region.range.clone(), &mut present);
        }
    }
    for range in present {
        let addresses = (range.start..range.end).step_by(PAGE_SIZE);
        all.extend(addresses.map(|at| (ByteAddress(at).page(), Source::Resident(at))));
    }
    all.sort_by_key(|(page, _)| *page);
    sample::evenly(all.len() as u64, pages_max as u64).map(|at| all[at as usize].1).collect()
}
