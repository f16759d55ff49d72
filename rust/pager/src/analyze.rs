//! What a page out would gain, told from outside: no attach, no stop, nothing written.
//!
//! The resident pages that may leave are sampled class by class and encoded as a page out would
//! encode them; the sample's sizes, scaled up, are laid out in the slots of a pool.  Only pages
//! that are in memory are read, so the process gets no fault by it.
//!
//! Equal pages: those inside the sample are counted once, and their *share* is scaled up.  A sample
//! shows fewer of them than there are, so a prediction errs on the side of too little.

use crate::address::{PAGE_SIZE, Page};
use crate::class::{self, Class, Resident, Source};
use crate::codec::{self, Algorithm, CodecId, Encoder, EncodingDictionary, Preset};
use crate::codec::{checksum, looks_incompressible, same_filled};
use crate::error::{Error, Result};
use crate::page_table;
use crate::pool::{CLASSES, SLOT_UNIT, packed_bytes};
use crate::region::{self, Region};
use crate::sample::{self, Pages};
use crate::sys::foreign::{self, ForeignMemory};
use crate::sys::pagemap::Pagemap;
use crate::target::{self, Target};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Pages of a class that are sampled at least, if it has so many.
const CLASS_PAGES_MIN: u64 = 64;
/// Limits of the sample: below, a share is a guess; above, a page out would say it as fast.
const PAGES: std::ops::RangeInclusive<u64> = 64..=20_000;
/// Dictionary of the warm tier.
const DICTIONARY_BYTES: usize = 256 << 10;
/// Fewer pages make no dictionary; at most one byte in so many of them goes into it.
const TRAINING_PAGES_MIN: usize = 128;
const TRAINING_SHARE: usize = 8;
/// A dictionary's number stands before each frame that needs it.
const DICTIONARY_HEAD: usize = 2;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What pages would be encoded with.
    pub algorithm: Algorithm,
    /// Most pages to sample; small classes are sampled beyond it.
    pub pages_max: u64,
}

/// Memory of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassForecast {
    /// In memory, whatever it is.
    pub resident_bytes: u64,
    /// Of that, in regions that may leave.
    pub movable_bytes: u64,
    /// Pages that would leave; more than `movable_bytes` where the kernel's zero page is mapped.
    pub pages: u64,
    /// Pages that were read.
    pub pages_sampled: u64,
    /// Of those, pages that repeat one word.
    pub pages_same_filled: u64,
    /// Of those, pages that would be stored as they are.
    pub pages_raw: u64,
    /// Of those, pages that are equal to another one of the sample.
    pub pages_equal: u64,
    /// Encoded bytes of all its pages, as predicted.
    pub stored_bytes: u64,
    /// The same with a dictionary of the process's own.
    pub stored_bytes_dictionary: u64,
}

/// Memory that stays, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// What keeps it.
    pub reason: &'static str,
    /// In memory.
    pub resident_bytes: u64,
}

/// What is to be expected of a page out.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// Process id.
    pub pid: i32,
    /// Command name.
    pub command: String,
    /// In memory.
    pub rss_bytes: u64,
    /// The same, each page divided by how many processes have it.
    pub pss_bytes: u64,
    /// Of that, what would leave.
    pub leaving_pss_bytes: u64,
    /// Memory of the pool for what would leave, as predicted.
    pub pool_bytes: u64,
    /// The same with a dictionary of the process's own, without the dictionary.
    pub pool_bytes_dictionary: u64,
    /// Memory of the page table.
    pub table_bytes: u64,
    /// Size of that dictionary; 0: none was made, and nothing is said about one.
    pub dictionary_bytes: u64,
    /// By class.
    pub classes: BTreeMap<Class, ClassForecast>,
    /// What stays, the largest first.
    pub stays: Vec<Stay>,
    /// Processor time of the calling thread.
    pub cpu: Duration,
}

/// Sample a live process and say what a page out would gain.
///
/// # Errors
/// As for an attach, where that can be told from outside; `TargetGone`: it ended meanwhile.
pub fn analyze(pid: i32, request: Request) -> Result<Analysis> {
    let cpu = foreign::thread_time();
    if !PAGES.contains(&request.pages_max) {
        let (least, most) = PAGES.into_inner();
        let problem = format!("{} is not from {least} to {most}", request.pages_max);
        return Err(Error::InvalidSetting { field: "pages", problem });
    }
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let target = Target::describe(pid, &[own])?;
    let mut source = open(pid)?;
    let regions = region::parse(&target::read_maps(pid, true)?);
    let classes = class::classify(&regions, &mut source);
    let (mut analysis, pages) = survey(&regions, &classes, &mut source);
    let total: u64 = pages.values().map(Pages::count).sum();
    let mut sample = Sample::new(request.algorithm)?;
    for (class, pages) in &pages {
        let share = u128::from(request.pages_max) * u128::from(pages.count());
        let fair = (share / u128::from(total.max(1))) as u64;
        sample.read(*class, pages, fair.max(CLASS_PAGES_MIN), &mut source);
    }
    // What was read of a program that has gone, or has become another one, says nothing.
    let again = Target::describe(pid, &[]).ok();
    let is_same = again.is_some_and(|again| {
        again.start_time == target.start_time && again.arguments == target.arguments
    });
    if !is_same || (total > 0 && sample.tallies.values().all(|tally| tally.read == 0)) {
        return Err(Error::TargetGone(pid));
    }
    sample.predict(&mut analysis)?;
    analysis.pid = pid;
    analysis.command = target.command;
    analysis.cpu = foreign::thread_time().saturating_sub(cpu);
    Ok(analysis)
}

/// The memory of a process, to be read only.
fn open(pid: i32) -> Result<Resident> {
    let refused = |file: &str, cause: io::Error| match cause.kind() {
        ErrorKind::PermissionDenied => {
            Error::NotPermitted { what: format!("reading /proc/{pid}/{file}"), cause }
        }
        _ => Error::TargetGone(pid),
    };
    let memory = ForeignMemory::open_to_read(pid).map_err(|cause| refused("mem", cause))?;
    let pagemap = Pagemap::open(pid).map_err(|cause| refused("pagemap", cause))?;
    // Asked once with an answer that counts: without it nothing would seem to be in memory.
    sample::resident(&pagemap, 0..PAGE_SIZE as u64, &mut Vec::new()).map_err(
        |cause| match cause.raw_os_error() {
            Some(code) if code == Errno::NOTTY.raw_os_error() => {
                Error::Unsupported { feature: "pagemap_scan", cause: cause.to_string() }
            }
            _ => Error::TargetGone(pid),
        },
    )?;
    Ok(Resident::new(memory, pagemap))
}

/// What there is, and the pages that may leave, by class.
fn survey(
    regions: &[Region],
    classes: &[Class],
    source: &mut Resident,
) -> (Analysis, BTreeMap<Class, Pages>) {
    let mut analysis = Analysis::default();
    let mut pages: BTreeMap<Class, Pages> = BTreeMap::new();
    let mut stays: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut all: Vec<Range<u64>> = Vec::new();
    for (region, class) in regions.iter().zip(classes) {
        analysis.rss_bytes += region.resident;
        analysis.pss_bytes += region.proportional;
        let forecast = analysis.classes.entry(*class).or_default();
        forecast.resident_bytes += region.resident;
        let decision = region.decide(None);
        if !decision.movable {
            *stays.entry(decision.reason).or_default() += region.resident;
            continue;
        }
        forecast.movable_bytes += region.resident;
        analysis.leaving_pss_bytes += region.proportional;
        let pages = pages.entry(*class).or_default();
        let parts = source.readable(&region.range);
        parts.iter().for_each(|part| pages.add(part.clone()));
        all.extend(parts);
    }
    analysis.table_bytes = page_table::bytes_for(&all);
    for (class, pages) in &pages {
        analysis.classes.entry(*class).or_default().pages = pages.count();
    }
    analysis.classes.retain(|_, forecast| forecast.resident_bytes > 0);
    let stays = stays.into_iter().filter(|(_, resident_bytes)| *resident_bytes > 0);
    analysis.stays =
        stays.map(|(reason, resident_bytes)| Stay { reason, resident_bytes }).collect();
    analysis.stays.sort_by_key(|stay| std::cmp::Reverse(stay.resident_bytes));
    (analysis, pages)
}

/// What the sampled pages of one class came to.
#[derive(Debug, Default)]
struct Tally {
    read: u64,
    same: u64,
    equal: u64,
    raw: u64,
    /// Length of each page that would take a slot of its own.
    lengths: Vec<usize>,
    /// Of those bytes, what no dictionary makes fewer.
    incompressible: usize,
    /// Held-out pages without a dictionary, and with it.
    without: usize,
    with: usize,
}

/// Pages that were read, and what they came to.
struct Sample {
    algorithm: Algorithm,
    encoder: Encoder,
    room: Box<Page>,
    seen: HashSet<u64>,
    tallies: BTreeMap<Class, Tally>,
    /// Every second page that is worth encoding trains a dictionary; the others measure it.
    training: Vec<u8>,
    held_out: Vec<(Class, Box<Page>)>,
}

impl Sample {
    fn new(algorithm: Algorithm) -> Result<Self> {
        let encoder =
            Encoder::new(algorithm).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Self {
            algorithm,
            encoder,
            room: Box::new([0; PAGE_SIZE]),
            seen: HashSet::new(),
            tallies: BTreeMap::new(),
            training: Vec::new(),
            held_out: Vec::new(),
        })
    }

    /// Read and encode pages of one class.
    fn read(&mut self, class: Class, pages: &Pages, wanted: u64, source: &mut impl Source) {
        let tally = self.tallies.entry(class).or_default();
        let mut page: Box<Page> = Box::new([0; PAGE_SIZE]);
        let mut trains = false;
        for address in pages.sample(wanted) {
            if !source.read(address, &mut page) {
                continue;
            }
            tally.read += 1;
            if same_filled(&page).is_some() {
                tally.same += 1;
                continue;
            }
            if !self.seen.insert(checksum(&page)) {
                tally.equal += 1;
                continue;
            }
            let (codec, length) = self.encoder.encode(&page, &mut self.room);
            tally.raw += u64::from(codec == CodecId::RAW);
            tally.lengths.push(length);
            if looks_incompressible(&page) {
                tally.incompressible += length;
                continue;
            }
            trains = !trains;
            match trains {
                true => self.training.extend_from_slice(&*page),
                false => self.held_out.push((class, page.clone())),
            }
        }
    }

    /// Scale up what was found.
    fn predict(&mut self, analysis: &mut Analysis) -> Result<()> {
        analysis.dictionary_bytes = self.try_dictionary()? as u64;
        let sum = |part: fn(&Tally) -> usize| self.tallies.values().map(part).sum::<usize>();
        let overall = share(sum(|tally| tally.with), sum(|tally| tally.without));
        let mut slots = vec![0.0; CLASSES];
        for (class, tally) in &self.tallies {
            let Some(forecast) = analysis.classes.get_mut(class) else { continue };
            forecast.pages_sampled = tally.read;
            forecast.pages_same_filled = tally.same;
            forecast.pages_equal = tally.equal;
            forecast.pages_raw = tally.raw;
            let scale = forecast.pages as f64 / tally.read.max(1) as f64;
            let length: usize = tally.lengths.iter().sum();
            forecast.stored_bytes = (length as f64 * scale) as u64;
            // A handful of pages says less about a class than all others do together.
            let few = tally.without < CLASS_PAGES_MIN as usize * PAGE_SIZE / 8;
            let gain = if few { overall } else { share(tally.with, tally.without) };
            let encoded = (length - tally.incompressible) as f64 * gain;
            forecast.stored_bytes_dictionary =
                ((encoded + tally.incompressible as f64) * scale) as u64;
            for length in &tally.lengths {
                slots[length.saturating_sub(1) / SLOT_UNIT as usize] += scale;
            }
        }
        let mut counts = [0; CLASSES];
        for (count, slots) in counts.iter_mut().zip(slots) {
            *count = slots.round() as u64;
        }
        analysis.pool_bytes = packed_bytes(&counts);
        let classes = || analysis.classes.values();
        let stored: u64 = classes().map(|forecast| forecast.stored_bytes).sum();
        let smaller: u64 = classes().map(|forecast| forecast.stored_bytes_dictionary).sum();
        let gain = share(smaller as usize, stored as usize);
        analysis.pool_bytes_dictionary = (analysis.pool_bytes as f64 * gain) as u64;
        Ok(())
    }

    /// Train a dictionary and encode the held-out pages with and without it; returns its size, 0
    /// if there is none: pages are stored as they are, or are too few.
    fn try_dictionary(&mut self) -> Result<usize> {
        let pages = self.training.len() / PAGE_SIZE;
        if self.algorithm == Algorithm::Raw || pages < TRAINING_PAGES_MIN {
            return Ok(0);
        }
        let size = (self.training.len() / TRAINING_SHARE).min(DICTIONARY_BYTES);
        // Samples that have nothing in common are no failure of the analysis.
        let Ok(bytes) = codec::train(&self.training, size) else { return Ok(0) };
        let length = bytes.len();
        let dictionary = EncodingDictionary::new(Arc::new(bytes), Preset::Warm)
            .map_err(|error| Error::Internal(error.to_string()))?;
        let (encoder, room) = (&mut self.encoder, &mut self.room);
        for (class, page) in &self.held_out {
            let tally = self.tallies.entry(*class).or_default();
            let (_, plain) = encoder.encode(page, room);
            let with = encoder.encode_dictionary(&dictionary, page, &mut room[..]);
            tally.without += plain;
            tally.with += with.map_or(plain, |length| length + DICTIONARY_HEAD);
        }
        Ok(length)
    }
}

/// `part / whole`, 1 if there is nothing.
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages by their number.
    struct Written(fn(u64) -> Page);

    impl Source for Written {
        fn readable(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
            vec![range.clone()]
        }

        fn read(&mut self, address: u64, page: &mut Page) -> bool {
            *page = (self.0)(address / PAGE_SIZE as u64);
            true
        }
    }

    fn forecast(count: u64, wanted: u64, write: fn(u64) -> Page) -> Analysis {
        let mut pages = Pages::default();
        pages.add(0..count * PAGE_SIZE as u64);
        let mut sample = Sample::new(Algorithm::Zstd { level: 3 }).expect("an encoder");
        sample.read(Class::Other, &pages, wanted, &mut Written(write));
        let mut analysis = Analysis::default();
        let forecast = ClassForecast { pages: count, ..ClassForecast::default() };
        analysis.classes.insert(Class::Other, forecast);
        sample.predict(&mut analysis).expect("a prediction");
        analysis
    }

    fn noise(number: u64) -> Page {
        let mut page = [0; PAGE_SIZE];
        let mut state = number + 1;
        for word in page.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        page
    }

    fn text(number: u64) -> Page {
        let mut page = [0; PAGE_SIZE];
        let names = ["weight", "price", "colour", "length"];
        let words = (0..).flat_map(|at: u64| {
            let value = (number * 131 + at * 7) % 99_991;
            format!("{{\"{}\": {value}}}, ", names[(value % 4) as usize]).into_bytes()
        });
        page.iter_mut().zip(words).for_each(|(byte, letter)| *byte = letter);
        page
    }

    #[test]
    fn same_filled_pages_take_nothing() {
        let analysis = forecast(5000, 500, |number| [number as u8; PAGE_SIZE]);

        let found = analysis.classes[&Class::Other];
        assert_eq!((500, 500, 0), (found.pages_sampled, found.pages_same_filled, found.pages_raw));
        assert_eq!((0, 0), (found.stored_bytes, analysis.pool_bytes));
    }

    #[test]
    fn noise_is_stored_as_it_is() {
        let analysis = forecast(5000, 500, noise);

        let found = analysis.classes[&Class::Other];
        assert_eq!((500, 500), (found.pages_sampled, found.pages_raw));
        assert_eq!((5000 * 4096, 5000 * 4096), (found.stored_bytes, analysis.pool_bytes));
        assert_eq!(0, analysis.dictionary_bytes);
    }

    #[test]
    fn a_dictionary_is_judged_by_pages_it_was_not_made_from() {
        let analysis = forecast(5000, 1000, text);

        let found = analysis.classes[&Class::Other];
        assert!(found.stored_bytes < 5000 * 4096 / 2, "{found:?}");
        assert!(found.stored_bytes_dictionary < found.stored_bytes, "{found:?}");
        assert!(analysis.pool_bytes >= found.stored_bytes, "{analysis:?}");
        assert!(analysis.dictionary_bytes > 0);
    }

    #[test]
    fn a_sample_says_what_all_pages_would() {
        let mixed = |number| if number % 5 == 0 { noise(number) } else { text(number) };
        let whole = forecast(4000, 4000, mixed).pool_bytes as f64;

        let sampled = forecast(4000, 400, mixed).pool_bytes as f64;

        assert!((sampled / whole - 1.0).abs() < 0.1, "{sampled} of {whole}");
    }

    #[test]
    fn equal_pages_are_counted_once_and_never_overestimated() {
        // Each page is there twice.
        let whole = forecast(2000, 2000, |number| noise(number / 2));
        let sampled = forecast(2000, 200, |number| noise(number / 2));

        assert_eq!(1000, whole.classes[&Class::Other].pages_equal);
        assert!(whole.pool_bytes <= sampled.pool_bytes);
    }
}
