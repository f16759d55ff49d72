//! Which stored pages look like this one: sketches of pages, and an index from sketch to page.
//!
//! Not a codec and not a store: it names up to k *leaders* (pages that are stored for
//! themselves), and whoever asks encodes the page against them and decides whether that paid.
//! Pages are compared by content alone, because the same objects lie at other addresses in every
//! process. The one idea: cut a page into short overlapping pieces (shingles), keep those whose
//! hash is small, so that two pages that share content keep the same ones, and look them up.
//!
//! The content is the sandbox's, so it can be made to collide. An insert or a look-up of one
//! shingle touches one bucket of fixed size whatever the content is; a full bucket forgets its
//! oldest posting. Forgetting is harmless: a leader not found costs bytes, never a wrong page.

use crate::address::{PAGE_SIZE, Page};

#[cfg(test)]
mod tests;

const WORD_BYTES: usize = size_of::<u64>();
const PAGE_WORDS: usize = PAGE_SIZE / WORD_BYTES;

/// Most shingles that a sketch keeps, those with the smallest hashes. Bounds the index's memory.
pub const SKETCH_SHINGLES_MAX: usize = 16;

/// Only hashes with this many leading zero bits are taken: one position in 16.
const SAMPLE_BITS: u32 = 4;

/// Most leaders that one shingle remembers; the newest replaces the oldest.
const POSTINGS_MAX: usize = 4;

/// A further leader must explain at least this many shingles that no chosen one explains.
const GAIN_MIN: u32 = 1;

/// Leaders that together explain less than one in this many shingles are not worth a try.
const EXPLAINED_SHARE: u32 = 4;

/// Postings of one bucket: its tags are one cache line, its leaders another.
const BUCKET_SLOTS: usize = 16;

/// Parts of an index that grow by themselves: growing one copies a 64th of the index.
const SEGMENTS: usize = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = 6;

/// Marks a free slot; no shingle has this tag.
const FREE: u32 = 0;

/// What is kept of a page's content to find pages like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sketch {
    tags: [u32; SKETCH_SHINGLES_MAX],
    len: usize,
}

impl Sketch {
    /// The sketch of a page; empty when the page repeats one word throughout.
    pub fn of(page: &Page) -> Self {
        let mut taken = [0; PAGE_WORDS];
        let count = sample(page, &mut taken);
        let taken = &mut taken[..count];
        taken.sort_unstable();
        let mut sketch = Self { tags: [FREE; SKETCH_SHINGLES_MAX], len: 0 };
        for hash in taken {
            // The high bits chose this shingle, so only the low ones still tell shingles apart.
            let tag = (*hash as u32).max(FREE + 1);
            if sketch.shingles().contains(&tag) {
                continue;
            }
            sketch.tags[sketch.len] = tag;
            sketch.len += 1;
            if sketch.len == SKETCH_SHINGLES_MAX {
                break;
            }
        }
        sketch
    }

    /// The tags of the shingles that were kept, without repetition.
    pub fn shingles(&self) -> &[u32] {
        &self.tags[..self.len]
    }
}

/// Writes the hashes of the sampled shingles and gives their number.
///
/// Nothing in the loop depends on a branch: which shingles are taken is as good as random.
fn sample(page: &Page, taken: &mut [u64; PAGE_WORDS]) -> usize {
    let (words, _) = page.as_chunks::<WORD_BYTES>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let mut before = words.next().unwrap_or_default();
    let mut before_mixed = mix(before);
    let mut count = 0;
    for word in words {
        let mixed = mix(word);
        let sum = before_mixed.rotate_left(17).wrapping_add(mixed);
        let hash = (sum ^ (sum >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let hash = hash ^ (hash >> 32);
        taken[count] = hash;
        // One word twice says nothing: zeros and fill patterns are in every page.
        count += usize::from((hash >> (u64::BITS - SAMPLE_BITS) == 0) & (word != before));
        (before, before_mixed) = (word, mixed);
    }
    count
}

fn mix(word: u64) -> u64 {
    let product = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

/// Postings whose tags are near one another; the used ones come first, oldest first.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; BUCKET_SLOTS],
    leaders: [u32; BUCKET_SLOTS],
}

impl Bucket {
    const EMPTY: Self = Self { tags: [FREE; BUCKET_SLOTS], leaders: [0; BUCKET_SLOTS] };

    /// Slots in use.
    fn len(&self) -> usize {
        self.tags.iter().filter(|tag| **tag != FREE).count()
    }

    fn postings(&self) -> impl Iterator<Item = (u32, u32)> {
        self.tags.into_iter().zip(self.leaders).take_while(|(tag, _)| *tag != FREE)
    }

    fn leaders_of(&self, tag: u32) -> impl Iterator<Item = u32> {
        self.postings().filter(move |(other, _)| *other == tag).map(|(_, leader)| leader)
    }

    /// Adds a posting as the newest. True when that took a free slot.
    fn insert(&mut self, tag: u32, leader: u32) -> bool {
        if self.leaders_of(tag).any(|known| known == leader) {
            return false;
        }
        let len = self.len();
        let oldest = if self.leaders_of(tag).count() >= POSTINGS_MAX {
            self.tags.iter().position(|other| *other == tag).unwrap_or(0)
        } else if len == BUCKET_SLOTS {
            0
        } else {
            self.tags[len] = tag;
            self.leaders[len] = leader;
            return true;
        };
        self.tags[oldest..len].rotate_left(1);
        self.leaders[oldest..len].rotate_left(1);
        self.tags[len - 1] = tag;
        self.leaders[len - 1] = leader;
        false
    }
}

/// The part of an index that holds the tags that begin with the same bits, in rising order of
/// bucket, so that growing is one pass over old and new memory.
#[derive(Default)]
struct Segment {
    buckets: Vec<Bucket>,
    postings: usize,
}

impl Segment {
    /// Where a tag belongs; the segment must not be empty.
    fn home(&self, tag: u32) -> usize {
        let within = u64::from(tag << SEGMENT_BITS);
        ((within * self.buckets.len() as u64) >> u32::BITS) as usize
    }

    fn bucket(&self, tag: u32) -> Option<&Bucket> {
        self.buckets.get(self.home(tag))
    }

    fn insert(&mut self, tag: u32, leader: u32) {
        // Full at 27 of 32 slots: fuller, and more than one posting in 30 would be forgotten.
        if self.postings * 32 >= self.buckets.len() * BUCKET_SLOTS * 27 {
            self.grow();
        }
        let home = self.home(tag);
        self.postings += usize::from(self.buckets[home].insert(tag, leader));
    }

    /// An eighth more room: a larger step would be copied less often, but stand empty for longer.
    fn grow(&mut self) {
        let count = self.buckets.len() + (self.buckets.len() / 8).max(1);
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; count]);
        self.postings = 0;
        for (tag, leader) in old.iter().flat_map(Bucket::postings) {
            let home = self.home(tag);
            self.postings += usize::from(self.buckets[home].insert(tag, leader));
        }
    }
}

/// A leader that explains part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Similar {
    /// Place of the index in the list that was asked.
    pub index: usize,
    /// The number under which the leader was inserted there.
    pub leader: u32,
}

/// Finds leaders by the content that they share with a page.
///
/// Holds numbers and hashes, no pages; belongs to one thread at a time, or many that only ask.
pub struct Index {
    segments: Vec<Segment>,
    leaders: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

impl Index {
    /// An index without leaders.
    pub fn new() -> Self {
        Self { segments: (0..SEGMENTS).map(|_| Segment::default()).collect(), leaders: 0 }
    }

    /// Number of inserts so far; the oldest leaders may be forgotten in part.
    pub const fn len(&self) -> usize {
        self.leaders
    }

    /// True when nothing was inserted.
    pub const fn is_empty(&self) -> bool {
        self.leaders == 0
    }

    /// Postings that are held: what the memory is spent on.
    pub fn postings(&self) -> usize {
        self.segments.iter().map(|segment| segment.postings).sum()
    }

    /// Bytes of memory in use.
    pub fn memory_bytes(&self) -> usize {
        let buckets: usize = self.segments.iter().map(|segment| segment.buckets.capacity()).sum();
        size_of::<Self>() + SEGMENTS * size_of::<Segment>() + buckets * size_of::<Bucket>()
    }

    /// Forgets all leaders and gives the memory back.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Makes a page findable under a number of the caller's choice.
    pub fn insert(&mut self, leader: u32, sketch: &Sketch) {
        for tag in sketch.shingles() {
            self.segments[segment_of(*tag)].insert(*tag, leader);
        }
        self.leaders += 1;
    }

    /// Up to `k` leaders of this index for a page, best last. See [`find_in`].
    pub fn find(&self, sketch: &Sketch, k: usize) -> Vec<u32> {
        find_in(&[self], sketch, k).into_iter().map(|similar| similar.leader).collect()
    }

    fn leaders_of(&self, tag: u32) -> impl Iterator<Item = u32> {
        self.segments[segment_of(tag)].bucket(tag).into_iter().flat_map(move |b| b.leaders_of(tag))
    }
}

const fn segment_of(tag: u32) -> usize {
    (tag >> (u32::BITS - SEGMENT_BITS)) as usize
}

/// A leader and the set of the page's shingles that it has, one bit each.
struct Candidate {
    similar: Similar,
    shingles: u32,
}

/// Up to `k` leaders of several indexes that together explain most of a page, best last: that is
/// where a prefix is cheapest to refer to. Empty when they would not explain enough.
///
/// Greedy: each next leader is the one that explains most of what is still unexplained. Among
/// equals the earlier index wins, then the newer number.
pub fn find_in(indexes: &[&Index], sketch: &Sketch, k: usize) -> Vec<Similar> {
    const { assert!(SKETCH_SHINGLES_MAX <= u32::BITS as usize) };
    let candidates = candidates(indexes, sketch);
    let mut unexplained = u32::MAX;
    let mut chosen = Vec::with_capacity(k.min(SKETCH_SHINGLES_MAX));
    while chosen.len() < k {
        let gain = |candidate: &&Candidate| (candidate.shingles & unexplained).count_ones();
        // Of equals this takes the last one, and the candidates are in rising order of worth.
        let Some(best) = candidates.iter().max_by_key(gain) else { break };
        if gain(&best) < GAIN_MIN {
            break;
        }
        unexplained &= !best.shingles;
        chosen.push(best.similar);
    }
    if unexplained.count_zeros() * EXPLAINED_SHARE < sketch.len as u32 {
        return Vec::new();
    }
    chosen.reverse();
    chosen
}

/// Every leader that has a shingle of the page, each once, the preferred ones last.
fn candidates(indexes: &[&Index], sketch: &Sketch) -> Vec<Candidate> {
    let mut hits = Vec::with_capacity(indexes.len() * sketch.len * POSTINGS_MAX);
    for (place, tag) in sketch.shingles().iter().enumerate() {
        for (index, asked) in indexes.iter().enumerate() {
            let hit =
                |leader| Candidate { similar: Similar { index, leader }, shingles: 1 << place };
            hits.extend(asked.leaders_of(*tag).map(hit));
        }
    }
    let worth = |hit: &Candidate| (usize::MAX - hit.similar.index, hit.similar.leader);
    hits.sort_unstable_by_key(worth);
    hits.dedup_by(|next, first| {
        let same = next.similar == first.similar;
        first.shingles |= if same { next.shingles } else { 0 };
        same
    });
    hits
}
