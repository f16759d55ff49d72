//! One stored page made as small as a tier allows: found elsewhere, alone, or as a difference.

use crate::address::{PAGE_SIZE, Page};
use crate::blob::{Head, LEADERS_MAX, Leader};
use crate::caches::Prepared;
use crate::codec::{Algorithm, CodecId, Encoder, Preset};
use crate::error::{Error, Result};
use crate::leaders::Leaders;
use crate::page_table::Stored;
use crate::references::{Content, Reference};
use crate::similar::{Sketch, find_in};
use crate::store::{Encoded, Reader, Store};
use std::sync::Arc;

/// A delta must be below this part of what the page takes alone: reading it costs more.
const DELTA_WORTH: (usize, usize) = (9, 10);
/// A blob that is not smaller by a slot's step is not worth the store.
const STEP_BYTES: usize = 16;
/// Longest blob: what saves less is kept as it was.
const BLOB_MAX: usize = PAGE_SIZE - 64;

/// What a tier encodes with.
pub struct Recipe {
    /// Levels of the frames.
    pub preset: Preset,
    /// Dictionary of independent frames; held, so that it cannot go before its first page.
    pub dictionary: Option<(Arc<Reference>, Prepared)>,
    /// How addresses are normalised.
    pub layout: Option<Arc<Reference>>,
    /// Whether pages may be differences to others.
    pub deltas: bool,
}

impl Recipe {
    fn layout_number(&self) -> u16 {
        self.layout.as_ref().map_or(0, |layout| layout.id)
    }

    /// Whether a page of this codec is to have another one, even if that is longer: a few that
    /// stayed behind would keep the dictionary of the tier above.
    fn leaves(&self, codec: CodecId) -> bool {
        self.deltas && self.dictionary.is_some() && codec == CodecId::DICT
    }

    /// Codec of an independent frame: without leaders there is no need to normalise.
    fn codec(&self) -> CodecId {
        if self.deltas { CodecId::COLD } else { CodecId::DICT }
    }
}

/// What pages are worked on with; one per thread.
pub struct Squeezer {
    encoder: Encoder,
    /// Reads stored pages.
    pub reader: Reader,
    normal: Box<Page>,
    alone: Box<Page>,
    delta: Box<Page>,
    prefix: Vec<u8>,
    room: Box<Page>,
}

/// Who may lead a page.
pub struct Candidates<'a> {
    /// Pages of its own space; grows as the pass goes on.
    pub own: &'a mut Leaders,
    /// Pages of one other space.
    pub peer: Option<&'a Leaders>,
}

impl Squeezer {
    /// A workbench for a tier.
    ///
    /// # Errors
    /// The library has no memory for its contexts.
    pub fn new(preset: Preset) -> Result<Self> {
        let encoder = Encoder::new(Algorithm::Zstd { level: preset.level() })
            .map_err(|error| Error::Internal(error.to_string()))?;
        let buffer = || Box::new([0; PAGE_SIZE]);
        Ok(Self {
            encoder,
            reader: Reader::default(),
            normal: buffer(),
            alone: buffer(),
            delta: buffer(),
            prefix: Vec::with_capacity(LEADERS_MAX * PAGE_SIZE),
            room: buffer(),
        })
    }

    /// A smaller blob for the page that `old` holds, with a reference for the caller; `None` if
    /// there is none.  Every blob made here was decoded again and compared.
    pub fn squeeze(
        &mut self,
        store: &Store,
        domain: u64,
        recipe: &Recipe,
        candidates: &mut Candidates<'_>,
        (old, page): (&Stored, &Page),
    ) -> Option<Stored> {
        let leaves = recipe.leaves(old.codec);
        let better = |known: &Stored| {
            let smaller = known.len < old.len || leaves && !recipe.leaves(known.codec);
            known.offset != old.offset && smaller
        };
        let key = (domain, old.checksum);
        let same = store.find_same(key, page, &mut self.reader, &mut self.room, better);
        if same.is_some() {
            return same;
        }
        *self.normal = *page;
        if let Some(Content::Layout(layout)) = recipe.layout.as_ref().map(|held| &held.content) {
            layout.apply(&mut self.normal);
        }
        let sketch = recipe.deltas.then(|| Sketch::of(&self.normal));
        let leaders = match &sketch {
            Some(sketch) => self.find_leaders(store, candidates, sketch),
            None => Vec::new(),
        };
        let alone = self.encode_alone(recipe);
        let delta = self.encode_delta(recipe, &leaders);
        let worth = alone.unwrap_or(PAGE_SIZE) * DELTA_WORTH.0 / DELTA_WORTH.1;
        let stored = match (alone, delta) {
            (_, Some(delta)) if delta <= worth => {
                let head = Head::delta(recipe.layout_number(), &leaders);
                self.put(store, recipe, domain, CodecId::DELTA, head, delta, old, page)
            }
            (Some(alone), _) => {
                let number = recipe.dictionary.as_ref().map_or(0, |(reference, _)| reference.id);
                let head = match recipe.codec() {
                    CodecId::COLD => Head::cold(number, recipe.layout_number()),
                    _ => Head::dictionary(number),
                };
                let stored =
                    self.put(store, recipe, domain, recipe.codec(), head, alone, old, page);
                if let (Some(stored), Some(sketch)) = (&stored, &sketch) {
                    candidates.own.add(stored, sketch);
                }
                stored
            }
            (None, _) if leaves => {
                let (codec, length) = self.encoder.encode(page, &mut self.alone);
                self.put(store, recipe, domain, codec, Head::default(), length, old, page)
            }
            (None, _) => None,
        };
        for leader in leaders {
            store.let_go(&leader.stored());
        }
        stored
    }

    /// Similar pages, most similar last, each with a reference; their contents are in `prefix`.
    fn find_leaders(
        &mut self,
        store: &Store,
        candidates: &Candidates<'_>,
        sketch: &Sketch,
    ) -> Vec<Leader> {
        let mut lists = vec![&*candidates.own];
        lists.extend(candidates.peer);
        let indexes: Vec<_> = lists.iter().map(|list| list.index()).collect();
        let mut leaders = Vec::new();
        self.prefix.clear();
        for found in find_in(&indexes, sketch, LEADERS_MAX) {
            let Some(leader) = lists[found.index].slot(found.leader) else { continue };
            // Listed, so its slot is in use.
            if store.share(&leader.stored()).is_err() {
                continue;
            }
            if store.read_leader(leader, &mut self.reader, &mut self.room) {
                self.prefix.extend_from_slice(&*self.room);
                leaders.push(leader);
            } else {
                store.let_go(&leader.stored());
            }
        }
        leaders
    }

    fn encode_alone(&mut self, recipe: &Recipe) -> Option<usize> {
        match &recipe.dictionary {
            Some((_, dictionary)) => {
                self.encoder.encode_dictionary(dictionary, &self.normal, &mut self.alone[..])
            }
            None => {
                let (codec, length) = self.encoder.encode(&self.normal, &mut self.alone);
                (codec == CodecId::ZSTD).then_some(length)
            }
        }
    }

    fn encode_delta(&mut self, recipe: &Recipe, leaders: &[Leader]) -> Option<usize> {
        if leaders.is_empty() {
            return None;
        }
        let (prefix, out) = (&self.prefix, &mut self.delta[..]);
        self.encoder.encode_delta(prefix, recipe.preset, &self.normal, out)
    }

    /// Store a frame, read it back and compare; `None` if it is not smaller or not right.
    #[allow(clippy::too_many_arguments)]
    fn put(
        &mut self,
        store: &Store,
        recipe: &Recipe,
        domain: u64,
        codec: CodecId,
        head: Head,
        frame_len: usize,
        old: &Stored,
        page: &Page,
    ) -> Option<Stored> {
        let frame = match codec {
            CodecId::DELTA => &self.delta[..frame_len],
            _ => &self.alone[..frame_len],
        };
        let encoded = Encoded { codec, head, frame };
        let most = if recipe.leaves(old.codec) {
            PAGE_SIZE
        } else {
            BLOB_MAX.min(usize::from(old.len).saturating_sub(STEP_BYTES))
        };
        if encoded.len() > most {
            return None;
        }
        let stored = store.put(domain, &encoded, old.checksum)?;
        // From the pool, and not from what was remembered of it: a leader remembered from a slot
        // that was used again since would have misled the encoder, and would hide it here.
        self.reader.forget_leaders();
        if store.get(&stored, &mut self.reader, &mut self.room) && *self.room == *page {
            return Some(stored);
        }
        // Would be a bug of an encoder: the good blob stays.
        store.release_stored(domain, &stored);
        None
    }
}
