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

// The constants were chosen on whole images of pandas, JSON-heap and Node processes (34 000 pages
// each, own leaders with and without those of one peer; differences are of pages ÷ stored bytes,
// at level 3 unless said, each constant varied alone around this or a neighbouring setting).
// A shingle is two words: four words were 2 % worse on pandas and up to
// 1 % better on JSON heaps, but are more often distinct: the index was half as large again. Steps
// of 4 bytes changed -1 to +1 %, steps of 1 byte -0.5 to +2 % for five times the cost of a sketch.

/// Most shingles that a sketch keeps: those with the smallest hashes, so that two pages keep the
/// same ones. Bounds the memory of a leader to 240 bytes when it shares nothing with any other
/// (measured: 103 to 171). 16 were up to 1.4 % worse, 24 were 0.3 % better.
pub const SKETCH_SHINGLES_MAX: usize = 20;

/// Only hashes with this many leading zero bits are taken, one position in 16: most pages then
/// fill their sketch. One in 8 was 0.2 to 0.6 % better with an index up to a fifth larger.
const SAMPLE_BITS: u32 = 4;

/// Most leaders that one shingle remembers. At the bound the newest replaces the oldest: what was
/// allocated at the same time is alike (keeping the oldest was 0.1 to 0.7 % worse). Two were 0.3
/// to 0.7 % worse, eight at most 0.2 % better.
const POSTINGS_MAX: usize = 4;

/// A further leader must explain this many shingles that no chosen one explains. One shingle is
/// often chance, and each leader is one more page to decode on every read: 1 was 0.2 % better at
/// level 9 (pandas) with up to 1.8 times the references, 3 was 2 % worse.
const GAIN_MIN: u32 = 2;

/// Leaders that together explain less than this many per cent of the sketch are not named. A try
/// at level 9 costs hundreds of times a look-up, and below this only one in 5 (Node) to 26 (JSON)
/// pays, and little: 20 was 0.2 to 0.9 % better with an eighth to a half more tries, 40 was 0.3
/// to 1.2 % worse.
const EXPLAINED_PERCENT_MIN: u32 = 20;

/// Postings of one bucket: its tags are two cache lines side by side, its leaders another two.
/// Bounds the work that one shingle can cause. Smaller ones overflow long before others are full.
const BUCKET_SLOTS: usize = 32;

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

    /// The slots with this tag, one bit each. Compares all of them: that needs no branch.
    fn slots_of(&self, tag: u32) -> u32 {
        let bit = |(slot, other): (usize, &u32)| u32::from(*other == tag) << slot;
        self.tags.iter().enumerate().map(bit).fold(0, |bits, bit| bits | bit)
    }

    /// Slots in use.
    fn len(&self) -> usize {
        self.tags.partition_point(|tag| *tag != FREE)
    }

    fn postings(&self) -> impl Iterator<Item = (u32, u32)> {
        self.tags.into_iter().zip(self.leaders).take_while(|(tag, _)| *tag != FREE)
    }

    fn leaders_in(&self, mut slots: u32) -> impl Iterator<Item = u32> {
        std::iter::from_fn(move || {
            let slot = slots.trailing_zeros();
            slots &= slots.wrapping_sub(1);
            self.leaders.get(slot as usize).copied()
        })
    }

    /// Adds a posting as the newest. True when that took a free slot.
    fn insert(&mut self, tag: u32, leader: u32) -> bool {
        let same = self.slots_of(tag);
        if self.leaders_in(same).any(|known| known == leader) {
            return false;
        }
        if same.count_ones() as usize >= POSTINGS_MAX {
            self.replace(same.trailing_zeros() as usize, tag, leader);
            return false;
        }
        self.push(tag, leader)
    }

    /// Adds a posting that is known to be new. True when that took a free slot.
    fn push(&mut self, tag: u32, leader: u32) -> bool {
        let len = self.len();
        if len == BUCKET_SLOTS {
            self.replace(0, tag, leader);
            return false;
        }
        (self.tags[len], self.leaders[len]) = (tag, leader);
        true
    }

    /// Forgets one posting and adds another as the newest.
    fn replace(&mut self, slot: usize, tag: u32, leader: u32) {
        let last = self.len() - 1;
        self.tags.copy_within(slot + 1..=last, slot);
        self.leaders.copy_within(slot + 1..=last, slot);
        (self.tags[last], self.leaders[last]) = (tag, leader);
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
        // Full at three quarters: fuller, and too many buckets would overflow before others fill.
        if self.postings * 4 >= self.buckets.len() * BUCKET_SLOTS * 3 {
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
            self.postings += usize::from(self.buckets[home].push(tag, leader));
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
        self.segments[segment_of(tag)]
            .bucket(tag)
            .into_iter()
            .flat_map(move |b| b.leaders_in(b.slots_of(tag)))
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
/// With k = 2 the gain was 80 to 94 % of that with k = 4, with k = 1 58 to 81 %.
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
    if unexplained.count_zeros() * 100 < sketch.len as u32 * EXPLAINED_PERCENT_MIN {
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
