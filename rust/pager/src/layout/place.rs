//! Which areas a process has, and where each belongs in every process.
//!
//! Nothing here can break a page: a wrong guess makes two processes less alike, and
//! [`Layout`](super::Layout) checks what comes out.

use std::collections::HashMap;
use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{AREAS_MAX, Area, CANONICAL_START};
use crate::region::{Region, subtract};

const GIB: u64 = 1 << 30;
/// Places for files and blocks begin at multiples of this, to which V8 aligns its blocks.
const SLOT: u64 = 256 << 10;
/// Places of files by hash. 16 GiB for some hundred MiB of libraries: few meet.
const FILES: Range<u64> = CANONICAL_START..CANONICAL_START + 16 * GIB;
/// Places of files above [`FILE_LARGE`] (data sets, model weights).
const FILES_LARGE: Range<u64> = CANONICAL_START + 4096 * GIB..CANONICAL_START + 8192 * GIB;
const FILE_LARGE: u64 = GIB / 4;
const HEAP: Range<u64> = CANONICAL_START + 32 * GIB..CANONICAL_START + 48 * GIB;
const STACK: Range<u64> = CANONICAL_START + 63 * GIB..CANONICAL_START + 64 * GIB;
/// Everything in the mapped area that is nothing else, by its distance from the top.
const MAPPED: Range<u64> = CANONICAL_START + 1024 * GIB..CANONICAL_START + 2048 * GIB;
/// Mappings at addresses that the program draws itself (V8 heaps), by length and protection: the
/// read-only part of a V8 heap, where half of its pointers lead, is told from all others by them.
const SCATTERED: Range<u64> = CANONICAL_START + 256 * GIB..CANONICAL_START + 512 * GIB;
/// Reservations so large that their alignment decides where they lie (cages), by length.
const RESERVED: Range<u64> = CANONICAL_START + (16 << 10) * GIB..CANONICAL_START + (64 << 10) * GIB;
const RESERVATION: u64 = GIB;
/// What programs align large blocks to and then see in the addresses: these bits are kept.
const RESERVED_ALIGNMENT: u64 = 4 * GIB;
/// Distances are counted from a multiple of this: the pool size of CPython's allocator, whose
/// objects would otherwise move by the pages that the random top is off.
const POOL: u64 = 16 << 10;
/// Free memory that belongs to heap and mapped area, which grow.
const GROWTH: u64 = GIB;
/// How far the main thread's stack may grow by default.
const STACK_GROWTH: u64 = 8 << 20;

/// The areas of a process with these regions, those first that are worth most.
pub fn areas(regions: &[Region]) -> Vec<Area> {
    let mut regions: Vec<&Region> =
        regions.iter().filter(|region| region.range.end <= CANONICAL_START).collect();
    regions.sort_by_key(|region| region.range.start);
    let runs = runs(&regions);
    let top = runs.iter().filter(|run| run.what.is_mapped()).map(|run| run.range.end).max();
    let top = top.unwrap_or(0);
    let floor = top.saturating_sub(MAPPED.end - MAPPED.start - GROWTH - POOL);
    let lies_apart = |run: &&Run| {
        run.what == What::Anonymous && (run.range.start < floor || run.length() >= RESERVATION)
    };
    let mut wishes = files(&runs);
    wishes.extend(runs.iter().filter(lies_apart).map(apart));
    let granted = grant(wishes);
    let mut areas = heap_and_stack(&runs);
    let taken: Vec<&Area> = areas.iter().chain(&granted).collect();
    let rest = rest(&runs, floor..top, &taken, lies_apart);
    areas.extend(rest);
    areas.extend(granted);
    areas
}

/// What is left between `floor` and `top`, used or free.
fn rest<'a>(
    runs: &'a [Run<'a>],
    Range { start: floor, end: top }: Range<u64>,
    areas: &[&Area],
    lies_apart: impl Fn(&&Run) -> bool,
) -> Vec<Area> {
    let lowest = runs
        .iter()
        .filter(|run| run.what.is_mapped() && run.range.start >= floor)
        .map(|run| run.range.start)
        .min()
        .unwrap_or(top);
    let mut taken: Vec<Range<u64>> = areas.iter().map(|area| area.addresses()).collect();
    taken.extend(runs.iter().filter(|run| lies_apart(run)).map(|run| run.range.clone()));
    taken.sort_by_key(|range| range.start);
    let below = runs.iter().map(|run| run.range.end).filter(|end| *end <= lowest).max();
    let start = lowest.saturating_sub(GROWTH).max(below.unwrap_or(0));
    let origin = MAPPED.end - top.next_multiple_of(POOL);
    let rest = subtract(start..top, &taken);
    rest.into_iter().map(|range| area(&range, range.start + origin)).collect()
}

fn area(range: &Range<u64>, canonical: u64) -> Area {
    Area { start: range.start, length: range.end - range.start, canonical }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What<'a> {
    File { inode: u64, name: &'a str },
    Heap,
    Stack,
    Anonymous,
    Special,
}

impl What<'_> {
    fn of(region: &Region) -> What<'_> {
        match region.name.as_str() {
            name if region.inode != 0 => What::File { inode: region.inode, name },
            "[heap]" => What::Heap,
            "[stack]" => What::Stack,
            name if name.is_empty() || name.starts_with("[anon") => What::Anonymous,
            _ => What::Special,
        }
    }

    /// Whether `mmap` placed it. (The kernel puts its own pages now beside the libraries, now
    /// beside the stack.)
    fn is_mapped(self) -> bool {
        matches!(self, Self::File { .. } | Self::Anonymous)
    }
}

/// Regions in a row that are the same thing.
struct Run<'a> {
    what: What<'a>,
    range: Range<u64>,
    /// Of the first region.
    protection: &'a str,
}

impl Run<'_> {
    const fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

fn runs<'a>(regions: &[&'a Region]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    for region in regions {
        let what = What::of(region);
        let mut range = region.range.clone();
        if let Some(last) = runs.last_mut() {
            range.start = range.start.max(last.range.end);
            if range.is_empty() {
                continue;
            }
            // A library may have holes between its segments.
            let hole = range.start - last.range.end;
            let is_file = matches!(what, What::File { .. });
            if last.what == what && (hole == 0 || is_file && hole < FILE_LARGE) {
                last.range.end = range.end;
                continue;
            }
        }
        runs.push(Run { what, range, protection: &region.protection });
    }
    runs
}

/// A range that would like a certain place among the canonical ones.
struct Wish {
    /// Equal in every process.
    key: u64,
    range: Range<u64>,
    window: Range<u64>,
    slot: u64,
    /// How much of the address the place must have in common.
    alignment: u64,
}

/// Everybody at the place that the key hashes to, or the next free one. What is one of its kind
/// comes before the many blocks of a heap, which nothing tells apart.
fn grant(mut wishes: Vec<Wish>) -> Vec<Area> {
    wishes.sort_by_key(|wish| (wish.key, wish.range.start));
    let mut seen: HashMap<u64, usize> = HashMap::new();
    let mut ranked: Vec<(usize, Wish)> = Vec::with_capacity(wishes.len());
    for wish in wishes {
        let rank = seen.entry(wish.key).or_default();
        ranked.push((*rank, wish));
        *rank += 1;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(AREAS_MAX);
    let mut taken: Vec<Range<u64>> = Vec::new();
    let mut areas = Vec::new();
    for (_, Wish { key, range, window, slot, alignment }) in ranked {
        let offset = range.start % alignment;
        let length = offset + range.end - range.start;
        let slots = (window.end - window.start) / slot;
        let wanted = window.start + key % slots * slot;
        let place = find_place(&taken, wanted..window.end, length, slot)
            .or_else(|| find_place(&taken, window, length, slot));
        if let Some(place) = place {
            let at = taken.partition_point(|other| other.start < place);
            taken.insert(at, place..place + length);
            areas.push(area(&range, place + offset));
        }
    }
    areas
}

fn files(runs: &[Run<'_>]) -> Vec<Wish> {
    let mut occurrences: HashMap<&str, u64> = HashMap::new();
    let mut wishes = Vec::new();
    // From the top: there lie the libraries that every process loads first.
    for run in runs.iter().rev() {
        let What::File { name, .. } = run.what else { continue };
        let name = short(name);
        let occurrence = occurrences.entry(name).or_default();
        let key = xxh3_64_with_seed(name.as_bytes(), *occurrence);
        *occurrence += 1;
        let is_large = run.length() > FILE_LARGE;
        let (window, slot) = if is_large { (FILES_LARGE, 4 * GIB) } else { (FILES, SLOT) };
        wishes.push(Wish { key, range: run.range.clone(), window, slot, alignment: 1 });
    }
    wishes
}

fn apart(run: &Run<'_>) -> Wish {
    let length = run.length();
    if length >= RESERVATION {
        let (window, slot) = (RESERVED, RESERVED_ALIGNMENT);
        let key = xxh3_64(&length.ilog2().to_le_bytes());
        return Wish { key, range: run.range.clone(), window, slot, alignment: slot };
    }
    let key = xxh3_64_with_seed(run.protection.as_bytes(), length);
    Wish { key, range: run.range.clone(), window: SCATTERED, slot: SLOT, alignment: SLOT }
}

/// The last two parts of a path: sandboxes of one image may have different roots.
fn short(name: &str) -> &str {
    let parent = name.rfind('/').and_then(|slash| name[..slash].rfind('/'));
    &name[parent.unwrap_or(0)..]
}

/// First multiple of `slot` inside `window` with `length` free bytes; `taken` is sorted.
fn find_place(taken: &[Range<u64>], window: Range<u64>, length: u64, slot: u64) -> Option<u64> {
    let mut place = window.start;
    let first = taken.partition_point(|other| other.end <= place);
    for other in &taken[first..] {
        if place + length <= other.start {
            break;
        }
        place = other.end.next_multiple_of(slot);
    }
    (place + length <= window.end).then_some(place)
}

fn heap_and_stack(runs: &[Run<'_>]) -> Vec<Area> {
    let mut areas = Vec::new();
    if let Some(at) = runs.iter().position(|run| run.what == What::Heap) {
        let next = runs.get(at + 1).map_or(CANONICAL_START, |next| next.range.start);
        let Range { start, end } = runs[at].range;
        let end = next.min(end.saturating_add(GROWTH)).min(start + HEAP.end - HEAP.start);
        areas.push(area(&(start..end), HEAP.start));
    }
    if let Some(at) = runs.iter().position(|run| run.what == What::Stack) {
        let below = at.checked_sub(1).map_or(0, |below| runs[below].range.end);
        let Range { start, end } = runs[at].range;
        let grown = start.min(end.saturating_sub(STACK_GROWTH));
        let start = below.max(grown).max(end.saturating_sub(STACK.end - STACK.start));
        areas.push(area(&(start..end), STACK.end - (end - start)));
    }
    areas
}
