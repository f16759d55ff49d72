//! What of a program is out: how many pages and bytes, by class of memory and by codec.

use crate::address::{ByteAddress, PAGE_SIZE, PAGES_END, Page, PageNumber};
use crate::blob::Head;
use crate::class::{self, Class};
use crate::codec::CodecId;
use crate::page_table::{Entry, Stored};
use crate::region;
use crate::shared::Shared;
use crate::space::Space;
use crate::target;
use std::collections::{BTreeMap, HashMap};

/// Entries looked at under a space's lock at a time: some 100 us.
const BATCH_ENTRIES: usize = 2048;

/// One class of memory in one encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CensusRow {
    /// Class of the regions.
    pub class_name: &'static str,
    /// Encoding of the pages.
    pub codec: &'static str,
    /// Pages that are out.
    pub pages: u64,
    /// Their bytes in the pool; a slot that several pages share counts for each.
    pub bytes: u64,
}

/// Class of pages outside every region: their region went, and its event was not applied yet.
const NOWHERE: &str = Class::Other.name();

/// Count the pages of a space that are out.
#[must_use]
pub fn census(shared: &Shared, space: &Space) -> Vec<CensusRow> {
    let text = target::read_maps(space.header.pid, true).unwrap_or_default();
    let regions = region::parse(&text);
    let classes = class::of_space(shared, space, &regions);
    let mut counts: BTreeMap<(&'static str, &'static str), (u64, u64)> = BTreeMap::new();
    let mut count = |class: &'static str, entry: Entry| {
        let (codec, bytes) = match entry {
            Entry::Pooled(stored) => (codec_name(stored.codec), u64::from(stored.len)),
            Entry::Same { .. } => ("same", 0),
            _ => return,
        };
        let row = counts.entry((class, codec)).or_default();
        row.0 += 1;
        row.1 += bytes;
    };
    let _core = space.core.lock();
    let mut next = PageNumber(0);
    for (region, class) in regions.iter().zip(classes) {
        let pages = ByteAddress(region.range.start).page()..ByteAddress(region.range.end).page_up();
        space.table.for_each(next..pages.start, |_, entry| count(NOWHERE, entry));
        space.table.for_each(pages.clone(), |_, entry| count(class.name(), entry));
        next = pages.end;
    }
    space.table.for_each(next..PageNumber(PAGES_END), |_, entry| count(NOWHERE, entry));
    counts
        .into_iter()
        .map(|((class_name, codec), (pages, bytes))| CensusRow { class_name, codec, pages, bytes })
        .collect()
}

/// Bytes of the slots that pages that are out need, their leaders' included: each slot once,
/// however many share it.  The rest of the pool's payload is copies of pages that are home.
#[must_use]
pub fn payload_bytes_out(shared: &Shared) -> u64 {
    let mut needed: HashMap<u64, u16> = HashMap::new();
    let mut blob: Box<Page> = Box::new([0; PAGE_SIZE]);
    for space in shared.all_spaces() {
        let mut next = Some(PageNumber(0));
        while let Some(start) = next {
            let mut entries = Vec::with_capacity(BATCH_ENTRIES);
            // Held, so that no slot is used again while its head is read.
            let _core = space.core.lock();
            let rest = start..PageNumber(PAGES_END);
            next = space.table.collect_range(rest, BATCH_ENTRIES, &mut entries);
            for (_, entry) in entries {
                match entry {
                    Entry::Pooled(stored) if stored.codec != CodecId::DISK => {
                        note_slots(shared, &stored, &mut blob, &mut needed);
                    }
                    _ => {}
                }
            }
        }
    }
    needed.into_values().map(u64::from).sum()
}

fn note_slots(shared: &Shared, stored: &Stored, blob: &mut Page, needed: &mut HashMap<u64, u16>) {
    needed.insert(stored.offset, stored.len);
    if stored.codec == CodecId::DELTA
        && shared.store.read_blob(stored, blob)
        && let Some((head, _)) = Head::read(stored.codec, &blob[..usize::from(stored.len)])
    {
        needed.extend(head.leaders().map(|leader| (leader.offset, leader.len)));
    }
}

/// The name that people see.
#[must_use]
pub fn codec_name(codec: CodecId) -> &'static str {
    match codec {
        CodecId::RAW => "raw",
        CodecId::LZ4 => "lz4",
        CodecId::ZSTD => "zstd",
        CodecId::DICT => "zstd-dict",
        CodecId::COLD => "cold",
        CodecId::DELTA => "delta",
        CodecId::DISK => "disk",
        _ => "unknown",
    }
}
