//! Stored pages made smaller while their program sleeps.
//!
//! Background work on the pool alone; the program and its memory are not touched.  A page is
//! decoded, normalised (addresses replaced by region and offset), and encoded anew: with a larger
//! dictionary at a higher level, or as a difference to similar pages of the same space and of one
//! peer.  The new blob is decoded again and compared before the entry changes, and the entry
//! changes by one store: at any instant a page has exactly one good blob.
//!
//! A pass gives way at once: to a fault of its program, and to whoever works on the space (page in,
//! page out, detach).  What it did up to there stays done, and the next call goes on from there.

use crate::address::{PAGE_SIZE, PAGES_END, PageNumber};
use crate::codec::{CodecId, Preset};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::leaders::Leaders;
use crate::page_table::{Entry, Stored};
use crate::points;
use crate::references::Reference;
use crate::region;
use crate::shared::Shared;
use crate::space::Space;
use crate::squeeze::{Candidates, Recipe, Squeezer};
use crate::sys::foreign;
use crate::target;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pages looked at, and then published, at a time: some milliseconds of work.
const BATCH_PAGES: usize = 32;

/// How small, and how much work to make and to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// A dictionary at a low level.
    Warm,
    /// The own dictionary at a high level, and deltas.
    Cold,
    /// The same at the highest level.
    Frozen,
}

impl Tier {
    /// The tier of that name.
    ///
    /// # Errors
    /// `InvalidSetting`, with the names there are.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "warm" => Ok(Self::Warm),
            "cold" => Ok(Self::Cold),
            "frozen" => Ok(Self::Frozen),
            _ => Err(Error::InvalidSetting {
                field: "tier",
                problem: format!("{name:?} is none of warm, cold, frozen"),
            }),
        }
    }

    fn preset(self) -> Preset {
        match self {
            Self::Warm => Preset::Warm,
            Self::Cold => Preset::Cold,
            Self::Frozen => Preset::Frozen,
        }
    }

    /// Whether a page of this codec may still gain from a pass.
    fn improves(self, codec: CodecId) -> bool {
        match codec {
            CodecId::LZ4 | CodecId::ZSTD => true,
            CodecId::DICT => self != Self::Warm,
            // The level of a blob is not recorded: a frozen pass tries all of them once.
            CodecId::COLD | CodecId::DELTA => self == Self::Frozen,
            _ => false,
        }
    }
}

/// What a pass is asked to do.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Where to.
    pub tier: Tier,
    /// Dictionary to encode with; `None` leaves the choice of the last pass, or uses none.
    pub dictionary: Option<u16>,
    /// Stop after this time.
    pub budget: Option<Duration>,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecodeReport {
    /// Stored pages looked at.
    pub pages_seen: u64,
    /// Of those, pages that have a smaller blob now.
    pub pages_recoded: u64,
    /// Of those recoded, differences to other pages.
    pub pages_delta: u64,
    /// Encoded length of the pages recoded, before.
    pub bytes_before: u64,
    /// And after.
    pub bytes_after: u64,
    /// Processor time of the calling thread.
    pub cpu: Duration,
    /// The whole space was passed.
    pub done: bool,
    /// The pass gave way to a fault or to another operation.
    pub preempted: bool,
}

/// A pass over one space that may be interrupted and gone on with.
pub struct Pass {
    tier: Tier,
    recipe: Recipe,
    own: Leaders,
    next: PageNumber,
}

impl Pass {
    /// Memory of what it has found so far.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.own.memory_bytes()
    }
}

/// A page that has a smaller blob, not published yet.
struct Recoded {
    page: PageNumber,
    old: Stored,
    new: Stored,
}

/// Make the stored pages of `space` smaller; `peer` lends its leaders.
///
/// # Errors
/// An unknown dictionary, or one of another trust domain; a peer of another domain.
pub fn recode(
    shared: &Shared,
    space: &Space,
    peer: Option<&Space>,
    request: Request,
) -> Result<RecodeReport> {
    let began = Instant::now();
    let cpu = foreign::thread_time();
    foreign::background(true);
    let result = run(shared, space, peer, request, began);
    foreign::background(false);
    let mut report = result?;
    report.cpu = foreign::thread_time().saturating_sub(cpu);
    Ok(report)
}

fn run(
    shared: &Shared,
    space: &Space,
    peer: Option<&Space>,
    request: Request,
    began: Instant,
) -> Result<RecodeReport> {
    let mut report = RecodeReport::default();
    let mut squeezer = Squeezer::new(request.tier.preset())?;
    shared.caches.remember_contents(shared);
    let mut pass = begin(shared, space, request)?;
    let involved = [Some(space), peer].into_iter().flatten().map(Space::id);
    let peer = match peer {
        Some(peer) if peer.header.domain != space.header.domain => {
            let problem = "it belongs to another trust domain".to_owned();
            return Err(Error::InvalidSetting { field: "peer", problem });
        }
        Some(peer) if request.tier != Tier::Warm && peer.id() != space.id() => {
            Some(shared.caches.leaders_of(shared, peer, &mut squeezer.reader))
        }
        _ => None,
    };
    let faults = space.faults.load(Ordering::Relaxed);
    while !report.done && !report.preempted {
        if request.budget.is_some_and(|budget| began.elapsed() >= budget) {
            break;
        }
        pass_batch(shared, space, &mut pass, peer.as_deref(), &mut squeezer, &mut report)?;
        report.preempted |= space.faults.load(Ordering::Relaxed) != faults;
    }
    if report.done {
        if pass.tier != Tier::Warm {
            shared.caches.leaders.lock().insert(space.id(), Arc::new(pass.own));
        }
    } else {
        shared.caches.passes.lock().insert(space.id(), pass);
    }
    // Who was forgotten meanwhile will not be a second time: its slots would stay for ever.
    for id in involved {
        if shared.space(id).is_none() {
            shared.caches.forget(id);
        }
    }
    Ok(report)
}

/// Go on with the pass that was interrupted, or begin one.
fn begin(shared: &Shared, space: &Space, request: Request) -> Result<Pass> {
    let known = shared.caches.passes.lock().remove(&space.id());
    let asked = |pass: &Pass| {
        let number = pass.recipe.dictionary.as_ref().map(|(reference, _)| reference.id);
        pass.tier == request.tier && (request.dictionary.is_none() || number == request.dictionary)
    };
    if let Some(pass) = known.filter(asked) {
        return Ok(pass);
    }
    let preset = request.tier.preset();
    let dictionary = request
        .dictionary
        .map(|number| {
            let reference = dictionary_for(shared, space, number)?;
            let compiled = shared.caches.compile(&reference, preset)?;
            Ok::<_, Error>((reference, compiled))
        })
        .transpose()?;
    let layout = match request.tier {
        Tier::Warm => None,
        Tier::Cold | Tier::Frozen => layout_of(space)
            .map(|layout| shared.store.references.add_layout(&layout, space.header.domain))
            .transpose()?,
    };
    let own = Leaders::new(&shared.store);
    let recipe = Recipe { preset, dictionary, layout, deltas: request.tier != Tier::Warm };
    Ok(Pass { tier: request.tier, recipe, own, next: PageNumber(0) })
}

/// A dictionary that pages of this space may be encoded with.
///
/// # Errors
/// There is none of that number, or it was made from another trust domain's pages.
pub fn dictionary_for(shared: &Shared, space: &Space, number: u16) -> Result<Arc<Reference>> {
    let problem = |problem: String| Error::InvalidSetting { field: "dictionary", problem };
    let reference = shared
        .store
        .references
        .get(number)
        .filter(|reference| reference.is_dictionary())
        .ok_or_else(|| problem(format!("there is no dictionary {number}")))?;
    if reference.domain != 0 && reference.domain != space.header.domain {
        return Err(problem(format!("{number} was made in another trust domain")));
    }
    Ok(reference)
}

/// How the addresses of a space are normalised; `None` when nothing of it moves or it is gone.
#[must_use]
pub fn layout_of(space: &Space) -> Option<Layout> {
    let text = target::read_maps(space.header.pid, false).ok()?;
    let layout = Layout::of(&region::parse(&text));
    (!layout.is_identity()).then_some(layout)
}

/// One batch: look, encode, publish.
fn pass_batch(
    shared: &Shared,
    space: &Space,
    pass: &mut Pass,
    peer: Option<&Leaders>,
    squeezer: &mut Squeezer,
    report: &mut RecodeReport,
) -> Result<()> {
    let mut entries = Vec::with_capacity(BATCH_PAGES);
    let held: Vec<(PageNumber, Stored)> = foreign::in_foreground(|| {
        let _core = space.core.lock();
        let rest = pass.next..PageNumber(PAGES_END);
        match space.table.collect_range(rest, BATCH_PAGES, &mut entries) {
            Some(next) => pass.next = next,
            None => report.done = true,
        }
        let wanted = |entry| match entry {
            Entry::Pooled(stored) if pass.tier.improves(stored.codec) => Some(stored),
            _ => None,
        };
        if pass.tier != Tier::Warm {
            give_up_kept(shared, space, &entries);
        }
        // Held, so that nobody uses the slot again while it is read without the lock.
        entries
            .iter()
            .filter_map(|(page, entry)| Some((*page, wanted(*entry)?)))
            .filter(|(_, stored)| shared.store.share(stored).is_ok())
            .collect()
    });
    let mut recoded = Vec::new();
    let mut candidates = Candidates { own: &mut pass.own, peer };
    let mut plain = Box::new([0; PAGE_SIZE]);
    for (page, old) in &held {
        report.pages_seen += 1;
        // A page that cannot be read is found lost when it is touched; here nobody waits for it.
        if shared.store.get(old, &mut squeezer.reader, &mut plain)
            && let Some(new) = squeezer.squeeze(
                &shared.store,
                space.header.domain,
                &pass.recipe,
                &mut candidates,
                (old, &plain),
            )
        {
            recoded.push(Recoded { page: *page, old: *old, new });
        }
    }
    points::pass("recode.encoded");
    foreign::in_foreground(|| publish(shared, space, &recoded, report));
    points::pass("recode.published");
    for (_, stored) in &held {
        shared.store.let_go(stored);
    }
    Ok(())
}

/// Let go of warm copies of pages that are home again: the page was used since it left, and the
/// copy would keep its dictionary.  The caller holds the lock of the space.
fn give_up_kept(shared: &Shared, space: &Space, entries: &[(PageNumber, Entry)]) {
    for (page, entry) in entries {
        if matches!(entry, Entry::Kept(stored) if stored.codec == CodecId::DICT)
            && space.table.set(*page, Entry::Absent).is_ok()
        {
            shared.store.release(space.header.domain, entry);
        }
    }
}

/// Make the entries name the new blobs, where they still name the old ones.
fn publish(shared: &Shared, space: &Space, recoded: &[Recoded], report: &mut RecodeReport) {
    let domain = space.header.domain;
    // Whoever works on the space goes before us; what we made for it is thrown away.
    let operation = space.operation.try_lock();
    report.preempted |= operation.is_none();
    let _core = space.core.lock();
    for Recoded { page, old, new } in recoded {
        let current = space.table.get(*page) == Entry::Pooled(*old);
        let set =
            operation.is_some() && current && space.table.set(*page, Entry::Pooled(*new)).is_ok();
        if !set {
            shared.store.release_stored(domain, new);
            continue;
        }
        shared.store.release_stored(domain, old);
        report.pages_recoded += 1;
        report.pages_delta += u64::from(new.codec == CodecId::DELTA);
        report.bytes_before += u64::from(old.len);
        report.bytes_after += u64::from(new.len);
    }
}
