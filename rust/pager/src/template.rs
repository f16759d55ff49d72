//! Learned sets from one process to another of its kind, whose addresses are others.
//!
//! A page is told by its mapping and its place in it.  Mappings have no names that last, so what is
//! exported is the whole list of them, in order of addresses: protection, name and size of each.
//! At import the two lists are aligned as two texts are: files that both have mapped are what holds
//! the alignment in place, and memory without a name is recognised by its neighbours and its size.
//! A mapping that grows downwards (the kernel joins new memory to the lower end of older memory) is
//! counted from its end, any other one from its start.
//!
//! What is imported comes from outside: every number is checked, and the worst that wrong data can
//! do is to bring pages home that nobody needs.

use crate::address::{PAGE_SIZE, PAGES_END, PageNumber};
use crate::error::{Error, Result};
use crate::habit::{Learned, PAGES_MAX};
use crate::region::Region;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"AZHABIT1";
/// Mappings that are told apart; aligning takes the square of it in steps.
const MAPPINGS_MAX: usize = 2048;
const NAME_BYTES_MAX: usize = 64;
const PAGE: u64 = PAGE_SIZE as u64;

/// How alike two mappings are: the same file, and the same size or nearly so.
const SCORE_FILE: u32 = 4;
const SCORE_SIZE: u32 = 3;
const SCORE_NEAR_SIZE: u32 = 2;
const SCORE_KIND: u32 = 1;

/// A mapping as another process can recognise it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    letters: [u8; 4],
    is_file: bool,
    /// Pages are counted from the end.
    from_end: bool,
    name: String,
    pages: u32,
}

/// A page by its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    mapping: u16,
    offset: u32,
    order: u16,
    weight: u8,
}

/// The list that a process is recognised by, and where each mapping is.
fn list(regions: &[Region], area: &Range<u64>) -> (Vec<Mapping>, Vec<Range<u64>>) {
    let (mut mappings, mut ranges): (Vec<Mapping>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
    let ours = |region: &Region| region.range.start < area.end && area.start < region.range.end;
    for region in regions.iter().filter(|region| !ours(region)) {
        let mapping = Mapping::of(region);
        // What a watch keeps apart is one mapping in a process that is not watched.
        let joins = match (mappings.last(), ranges.last()) {
            (Some(last), Some(range)) => {
                let same = (last.letters, &last.name) == (mapping.letters, &mapping.name);
                range.end == region.range.start && same && !last.is_file && !mapping.is_file
            }
            _ => false,
        };
        if joins && let (Some(last), Some(range)) = (mappings.last_mut(), ranges.last_mut()) {
            range.end = region.range.end;
            last.pages = pages_of(range);
        } else if mappings.len() < MAPPINGS_MAX {
            mappings.push(mapping);
            ranges.push(region.range.clone());
        }
    }
    // An arena grows upwards into the room that it has reserved.
    for index in 1..mappings.len() {
        let reserve = &mappings[index].letters == b"---p" && !mappings[index].is_file;
        if reserve && ranges[index].start == ranges[index - 1].end {
            mappings[index - 1].from_end = false;
        }
    }
    (mappings, ranges)
}

fn pages_of(range: &Range<u64>) -> u32 {
    u32::try_from((range.end - range.start) / PAGE).unwrap_or(u32::MAX)
}

impl Mapping {
    fn of(region: &Region) -> Self {
        let is_file = region.inode != 0;
        let name = region.name.rsplit('/').next().unwrap_or_default();
        let mut name = if is_file { name } else { region.name.as_str() };
        while name.len() > NAME_BYTES_MAX {
            let shorter = name.char_indices().next_back().map_or(0, |(place, _)| place);
            name = &name[..shorter];
        }
        let letters = region.protection.as_bytes().try_into().unwrap_or(*b"----");
        let grows_down = name.is_empty() || name.starts_with("[stack");
        let pages = pages_of(&region.range);
        Self { letters, is_file, from_end: !is_file && grows_down, name: name.to_owned(), pages }
    }

    /// 0: not the same.
    fn likeness(&self, other: &Self) -> u32 {
        let key = |mapping: &Self| (mapping.letters, mapping.is_file);
        if key(self) != key(other) || self.name != other.name {
            return 0;
        }
        let (small, large) = (self.pages.min(other.pages), self.pages.max(other.pages));
        let size = match small {
            _ if small == large => SCORE_SIZE,
            // As heaps over other data are.
            _ if small >= large / 4 * 3 => SCORE_NEAR_SIZE,
            _ => 0,
        };
        // Much memory must not lose its counterpart to some little pairs beside it.
        let weight = if size > 0 { small.max(1).ilog2() / 2 } else { 0 };
        size + weight + if self.is_file { SCORE_FILE } else { SCORE_KIND }
    }
}

/// For each of `ours` its counterpart in `theirs`, so that neither order is broken and the sum of
/// likenesses is greatest.
fn align(ours: &[Mapping], theirs: &[Mapping]) -> Vec<Option<usize>> {
    const SKIP_OURS: u8 = 0;
    const SKIP_THEIRS: u8 = 1;
    const PAIR: u8 = 2;
    let width = theirs.len();
    let mut steps = vec![SKIP_OURS; ours.len() * width];
    let mut above = vec![0u32; width + 1];
    for (row, our) in ours.iter().enumerate() {
        let mut current = vec![0u32; width + 1];
        for (column, their) in theirs.iter().enumerate() {
            let likeness = our.likeness(their);
            let pair = if likeness > 0 { above[column] + likeness } else { 0 };
            let (skip_ours, skip_theirs) = (above[column + 1], current[column]);
            let best = pair.max(skip_ours).max(skip_theirs);
            current[column + 1] = best;
            steps[row * width + column] = match best {
                _ if likeness > 0 && best == pair => PAIR,
                _ if best == skip_ours => SKIP_OURS,
                _ => SKIP_THEIRS,
            };
        }
        above = current;
    }
    let mut pairs = vec![None; ours.len()];
    let (mut row, mut column) = (ours.len(), width);
    while row > 0 && column > 0 {
        match steps[(row - 1) * width + column - 1] {
            PAIR => {
                (row, column) = (row - 1, column - 1);
                pairs[row] = Some(column);
            }
            SKIP_OURS => row -= 1,
            _ => column -= 1,
        }
    }
    pairs
}

/// The learned set of a process with these mappings, independent of its addresses.
#[must_use]
pub fn export(regions: &[Region], area: &Range<u64>, learned: &[Learned]) -> Vec<u8> {
    let (mappings, ranges) = list(regions, area);
    let mut places = Vec::new();
    for known in learned {
        let address = known.page.start().0;
        let index = ranges.partition_point(|range| range.end <= address);
        let Some(range) = ranges.get(index).filter(|range| range.contains(&address)) else {
            continue;
        };
        let offset = if mappings[index].from_end {
            (range.end - address) / PAGE - 1
        } else {
            (address - range.start) / PAGE
        };
        if let (Ok(mapping), Ok(offset)) = (u16::try_from(index), u32::try_from(offset)) {
            places.push(Place { mapping, offset, order: known.order, weight: known.weight });
        }
    }
    write(&mappings, &places)
}

/// What a set that another process has learned means in a process with these mappings.
///
/// # Errors
/// `InvalidSetting`: the bytes are no exported set.
pub fn import(data: &[u8], regions: &[Region], area: &Range<u64>) -> Result<Vec<Learned>> {
    let (theirs, places) = read(data).ok_or_else(|| Error::InvalidSetting {
        field: "data",
        problem: "it is no learned set: export one with export_learned".to_owned(),
    })?;
    let (ours, ranges) = list(regions, area);
    let pairs = align(&theirs, &ours);
    let page_of = |place: &Place| {
        let index = pairs[usize::from(place.mapping)]?;
        let (range, offset) = (&ranges[index], u64::from(place.offset));
        let pages = (range.end - range.start) / PAGE;
        let from_start = if theirs[usize::from(place.mapping)].from_end {
            pages.checked_sub(offset + 1)?
        } else {
            offset
        };
        let page = PageNumber(range.start / PAGE + from_start);
        let exists = from_start < pages && page.0 < PAGES_END;
        exists.then(|| Learned::foreign(page, place.order, place.weight))
    };
    Ok(places.iter().filter_map(page_of).collect())
}

fn write(mappings: &[Mapping], places: &[Place]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend((mappings.len() as u32).to_le_bytes());
    out.extend((places.len() as u32).to_le_bytes());
    for mapping in mappings {
        out.extend(mapping.letters);
        out.push(u8::from(mapping.is_file) | u8::from(mapping.from_end) << 1);
        out.push(mapping.name.len() as u8);
        out.extend(mapping.name.as_bytes());
        out.extend(mapping.pages.to_le_bytes());
    }
    for place in places {
        out.extend(place.mapping.to_le_bytes());
        out.extend(place.offset.to_le_bytes());
        out.extend(place.order.to_le_bytes());
        out.push(place.weight);
    }
    out.extend(xxh3_64(&out).to_le_bytes());
    out
}

/// Bytes that are taken one after the other.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
}

fn read(data: &[u8]) -> Option<(Vec<Mapping>, Vec<Place>)> {
    let (body, sum) = data.split_last_chunk::<8>()?;
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let mut bytes = Bytes(body);
    let magic = bytes.array::<8>()?;
    let (mapping_count, place_count) = (bytes.number()? as usize, bytes.number()? as usize);
    if magic != *MAGIC || mapping_count > MAPPINGS_MAX || place_count > PAGES_MAX {
        return None;
    }
    let mut mappings = Vec::with_capacity(mapping_count);
    for _ in 0..mapping_count {
        let letters = bytes.array()?;
        let [flags, length] = bytes.array()?;
        if flags > 3 || usize::from(length) > NAME_BYTES_MAX {
            return None;
        }
        let name = std::str::from_utf8(bytes.take(usize::from(length))?).ok()?.to_owned();
        let (is_file, from_end) = (flags & 1 != 0, flags & 2 != 0);
        mappings.push(Mapping { letters, is_file, from_end, name, pages: bytes.number()? });
    }
    let mut places = Vec::with_capacity(place_count);
    for _ in 0..place_count {
        let mapping = u16::from_le_bytes(bytes.array()?);
        let offset = bytes.number()?;
        let order = u16::from_le_bytes(bytes.array()?);
        let [weight] = bytes.array()?;
        if usize::from(mapping) >= mapping_count {
            return None;
        }
        places.push(Place { mapping, offset, order, weight });
    }
    bytes.0.is_empty().then_some((mappings, places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region;
    use proptest::prelude::*;

    const NOWHERE: Range<u64> = 0..0;

    fn regions(text: &str) -> Vec<Region> {
        region::parse(text)
    }

    fn learned(page: u64) -> Learned {
        Learned::foreign(PageNumber(page), page as u16, 4)
    }

    const THERE: &str = "\
10000-20000 r-xp 0 fe:00 7 /usr/bin/python3
20000-30000 rw-p 0 00:00 0 [heap]
70000-80000 rw-p 0 00:00 0
80000-90000 r-xp 0 fe:00 8 /usr/lib/libc.so.6
90000-98000 rw-p 0 00:00 0
f0000-100000 rw-p 0 00:00 0 [stack]
";
    /// Elsewhere; the heap has grown upwards, the first mapping downwards, and one is new.
    const HERE: &str = "\
510000-520000 r-xp 0 fe:00 7 /opt/bin/python3
720000-740000 rw-p 0 00:00 0 [heap]
b50000-b60000 rw-p 0 00:00 0
b70000-b72000 rw-p 0 00:00 0
b72000-b80000 rw-p 0 00:00 0
c80000-c90000 r-xp 0 fe:00 8 /usr/lib/libc.so.6
c90000-c98000 rw-p 0 00:00 0
ff0000-1000000 rw-p 0 00:00 0 [stack]
";

    #[test]
    fn pages_are_found_again_at_other_addresses() {
        let pages = [0x21, 0x7f, 0x91, 0xff].map(learned);
        let data = export(&regions(THERE), &NOWHERE, &pages);
        let found = import(&data, &regions(HERE), &NOWHERE).unwrap();
        let numbers: Vec<u64> = found.iter().map(|known| known.page.0).collect();
        assert_eq!(vec![0x721, 0xb7f, 0xc91, 0xfff], numbers);
    }

    #[test]
    fn the_same_process_gets_its_own_set_back() {
        let pages: Vec<Learned> = (0x20..0x30).chain(0x70..0x80).map(learned).collect();
        let data = export(&regions(THERE), &NOWHERE, &pages);
        let found = import(&data, &regions(THERE), &NOWHERE).unwrap();
        let key = |known: &Learned| (known.page, known.order, known.weight);
        let numbers = |pages: &[Learned]| pages.iter().map(key).collect::<Vec<_>>();
        assert_eq!(numbers(&pages), numbers(&found));
    }

    #[test]
    fn an_arena_is_counted_from_its_start() {
        let there = "100000-110000 rw-p 0 00:00 0\n110000-200000 ---p 0 00:00 0\n";
        let here = "500000-550000 rw-p 0 00:00 0\n550000-600000 ---p 0 00:00 0\n";
        let data = export(&regions(there), &NOWHERE, &[learned(0x101)]);
        assert_eq!(PageNumber(0x501), import(&data, &regions(here), &NOWHERE).unwrap()[0].page);
    }

    #[test]
    fn our_area_is_nobodys_mapping() {
        let pages = [learned(0x71), learned(0x91)];
        let data = export(&regions(THERE), &(0x70000..0x80000), &pages);
        assert_eq!(1, import(&data, &regions(THERE), &NOWHERE).unwrap().len());
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(1_000))]

        #[test]
        fn garbage_is_refused(data in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(import(&data, &regions(HERE), &NOWHERE).is_err());
        }

        #[test]
        fn a_changed_byte_is_noticed(place in any::<prop::sample::Index>(), bit in 0..8u32) {
            let mut data = export(&regions(THERE), &NOWHERE, &[learned(0x21)]);
            let place = place.index(data.len());
            data[place] ^= 1 << bit;
            prop_assert!(import(&data, &regions(HERE), &NOWHERE).is_err());
        }

        #[test]
        fn what_has_a_right_checksum_is_still_not_believed(
            mut body in prop::collection::vec(any::<u8>(), 0..300),
            counts in (0u32..5, 0u32..5),
        ) {
            let mut data = MAGIC.to_vec();
            data.extend(counts.0.to_le_bytes());
            data.extend(counts.1.to_le_bytes());
            data.append(&mut body);
            data.extend(xxh3_64(&data).to_le_bytes());
            let here = regions(HERE);
            for known in import(&data, &here, &NOWHERE).unwrap_or_default() {
                let address = known.page.start().0;
                prop_assert!(here.iter().any(|region| region.range.contains(&address)));
            }
        }
    }
}
