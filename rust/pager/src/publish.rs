//! The second half of a page out's step: encode the staged pages and make the table say so.
//!
//! Runs without the space's lock but for publishing; a page that was touched, dropped or moved
//! meanwhile is recognised by its entry, and its encoding is thrown away.

use crate::address::{PAGE_SIZE, Page};
use crate::blob::Head;
use crate::codec::{CodecId, checksum, looks_incompressible, same_filled};
use crate::error::{Error, Result};
use crate::mover::{BATCH_PAGES, Mover};
use crate::page_table::{Entry, Stored};
use crate::points;
use crate::space::Slot;
use crate::store::Encoded;
use std::time::Instant;

/// What LZ4 does not halve is worth the better encoder even for one wait.
const QUICK_BYTES_MAX: usize = PAGE_SIZE / 2;

impl Mover<'_, '_> {
    /// Encode the staged pages and publish them.
    pub(crate) fn store_slots(&mut self, slots: &[u64]) -> Result<()> {
        for batch in slots.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(BATCH_PAGES)) {
            self.store_batch(batch)?;
            if self.report.pool_full {
                return Ok(());
            }
        }
        Ok(())
    }

    fn store_batch(&mut self, batch: &[u64]) -> Result<()> {
        let places: Vec<(Slot, bool)> = {
            let core = self.space.core.lock();
            let returns = |place: Slot| place.owner.is_some_and(|page| core.habit.returns(page));
            let places = batch.iter().map(|slot| core.slots[*slot as usize]);
            places.map(|place| (place, returns(place))).collect()
        };
        let mut pages = std::mem::take(&mut self.pages);
        let address = self.space.slot_address(batch[0]);
        let bytes = &mut pages[..batch.len() * PAGE_SIZE];
        let read = self.worker.memory().read(address, bytes);
        let mut entries = Vec::with_capacity(batch.len());
        if read.is_ok() {
            for ((place, returns), page) in places.iter().zip(bytes.as_chunks::<PAGE_SIZE>().0) {
                let entry = place.owner.and_then(|_| self.encode(page, place.kept, *returns));
                entries.push(entry);
                if self.report.pool_full {
                    break;
                }
            }
        }
        self.pages = pages;
        read.map_err(|_| Error::TargetGone(self.space.header.pid))?;
        points::pass("page_out.encoded");
        self.publish(batch, &entries);
        points::pass("page_out.published");
        Ok(())
    }

    /// Encode one page into the pool; `None` if the pool is full.
    fn encode(&mut self, page: &Page, kept: Option<Stored>, returns: bool) -> Option<Entry> {
        if let Some(fill) = same_filled(page) {
            return Some(Entry::Same { fill });
        }
        let checksum = checksum(page);
        if let Some(stored) = kept
            && stored.checksum == checksum
        {
            return Some(Entry::Kept(stored));
        }
        let domain = self.space.header.domain;
        let (store, kit) = (&self.shared.store, &mut self.kit);
        let same =
            store.find_same((domain, checksum), page, &mut kit.reader, &mut kit.page.0, |_| true);
        if let Some(stored) = same {
            self.report.pages_deduplicated += 1;
            return Some(Entry::Pooled(stored));
        }
        let began = Instant::now();
        let (codec, head, length) = self.encode_bytes(page, returns);
        self.shared.encode.record(began.elapsed());
        let encoded = Encoded { codec, head, frame: &self.encoded[..length] };
        let mut stored = store.put(domain, &encoded, checksum);
        if stored.is_none() && !self.gave_up_kept {
            self.gave_up_kept = true;
            self.shared.give_up_kept();
            stored = store.put(domain, &encoded, checksum);
        }
        self.report.pool_full |= stored.is_none();
        stored.map(Entry::Pooled)
    }

    /// Encode one page into `self.encoded`: how, what it needs, and how many bytes.
    ///
    /// One that the next wake needs is here for that wait only, so what it costs to encode and to
    /// decode counts for more than its bytes.  If the wait turns out long, the tiers below take it.
    fn encode_bytes(&mut self, page: &Page, returns: bool) -> (CodecId, Head, usize) {
        if returns && let Some(quick) = &mut self.quick {
            let (codec, length) = quick.encode(page, &mut self.encoded);
            if length <= QUICK_BYTES_MAX {
                return (codec, Head::default(), length);
            }
        }
        if let Some((reference, dictionary)) = &self.dictionary
            && !looks_incompressible(page)
            && let Some(length) =
                self.encoder.encode_dictionary(dictionary, page, &mut self.encoded[..])
        {
            return (CodecId::DICT, Head::dictionary(reference.id), length);
        }
        let (codec, length) = self.encoder.encode(page, &mut self.encoded);
        (codec, Head::default(), length)
    }

    /// Make encoded pages the table's, unless they were touched or dropped meanwhile.  An entry
    /// `Kept` here means: the old copy is still right.
    fn publish(&mut self, batch: &[u64], entries: &[Option<Entry>]) {
        let mut core = self.space.core.lock();
        for (slot, entry) in batch.iter().zip(entries) {
            let Some(entry) = *entry else { continue };
            let place = core.slots[*slot as usize];
            let still_staged = place
                .owner
                .filter(|page| self.space.table.get(*page) == (Entry::Staged { slot: *slot }));
            let Some(page) = still_staged else {
                self.report.pages_returned += 1;
                if let Entry::Pooled(_) = entry {
                    self.shared.store.release(self.space.header.domain, &entry);
                }
                continue;
            };
            let published = match entry {
                Entry::Kept(stored) => {
                    self.report.pages_clean += 1;
                    // The reference moves from the slot back to the table.
                    core.slots[*slot as usize].kept = None;
                    Entry::Pooled(stored)
                }
                other => {
                    if place.kept.is_some() {
                        core.habit.written(page);
                    }
                    other
                }
            };
            // The entry's place in the table exists: it was marked there.
            let _ = self.space.table.set(page, published);
            self.space.release_slot(&mut core, self.shared, *slot);
            self.report.pages_stored += 1;
            match published {
                Entry::Pooled(stored) => {
                    self.report.bytes_stored += u64::from(stored.len);
                    self.report.pages_raw += u64::from(stored.codec.0 == 0);
                }
                _ => self.report.pages_same_filled += 1,
            }
        }
    }
}
