//! What the mappings of a process tell, without a look at their pages.

use super::Class;
use crate::address::PAGE_SIZE;
use crate::region::Region;
use std::collections::HashSet;
use std::ops::Range;

/// Unit that PartitionAlloc reserves and aligns by.
const SUPER_PAGE: u64 = 2 << 20;
/// Where the slots of a super page begin: behind a guard, the books on it, and another guard.
const SUPER_PAGE_HEAD: u64 = 16 << 10;
/// Unit that glibc reserves and aligns by for the arenas of threads.
const GLIBC_HEAP: u64 = 64 << 20;
/// Alignment and least size of a cage: what a 32-bit offset from its start reaches.
const CAGE: u64 = 4 << 30;
/// Stack of a thread if nobody chose another size, on all common distributions.
const THREAD_STACK: u64 = 8 << 20;
/// Largest guard below a stack.
const GUARD_MAX: u64 = 64 << 10;

/// What a mapping tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    /// Class as far as it is known.
    pub class: Class,
    /// No page could tell more.
    pub certain: bool,
    /// Shared memory without a file, where only pictures are looked for.
    pub shared_memory: bool,
}

impl Guess {
    const fn certain(class: Class) -> Self {
        Self { class, certain: true, shared_memory: false }
    }

    const fn open(class: Class) -> Self {
        Self { class, certain: false, shared_memory: false }
    }
}

impl Region {
    /// What this region holds, as far as its own mapping tells; [`super::classify`] sees more.
    #[must_use]
    pub fn class(&self) -> Class {
        alone(self).class
    }

    fn letter(&self, index: usize) -> Option<u8> {
        self.protection.as_bytes().get(index).copied()
    }

    fn is_inaccessible(&self) -> bool {
        self.protection.starts_with("---")
    }

    fn is_writable(&self) -> bool {
        self.letter(1) == Some(b'w')
    }

    fn is_executable(&self) -> bool {
        self.letter(2) == Some(b'x')
    }

    fn is_shared(&self) -> bool {
        self.letter(3) == Some(b's')
    }

    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Files that are memory or devices under a name.
fn is_fileless(name: &str) -> bool {
    ["/memfd:", "/SYSV", "/dev/", "anon_inode:", "socket:", "/anon_hugepage"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn alone(region: &Region) -> Guess {
    let name = region.name.as_str();
    if region.is_executable() {
        return Guess::certain(if name == "[vdso]" || name == "[vsyscall]" {
            Class::Other
        } else {
            Class::Code
        });
    }
    if region.inode != 0 {
        return Guess::certain(of_file(region));
    }
    if region.is_shared() {
        return Guess { shared_memory: true, ..Guess::open(Class::Other) };
    }
    if name == "[heap]" {
        let wants_huge = region.flags.contains(b"hg");
        return Guess::open(if wants_huge { Class::Array } else { Class::AllocatorArena });
    }
    if name.starts_with("[stack") {
        return Guess::certain(Class::Stack);
    }
    if let Some(name) = name.strip_prefix("[anon:") {
        // Programs name their memory with PR_SET_VMA_ANON_NAME.
        let named = [
            ("stack", Class::Stack),
            ("partition_alloc", Class::PartitionAlloc),
            ("v8", Class::V8Heap),
            (".bss", Class::RelroAndData),
            ("malloc", Class::AllocatorArena),
        ];
        let found = named.into_iter().find(|(part, _)| name.contains(part));
        return found.map_or(Guess::open(Class::Other), |(_, class)| Guess::certain(class));
    }
    if !name.is_empty() || region.is_inaccessible() {
        return Guess::certain(Class::Other);
    }
    let wants_huge = region.flags.contains(b"hg");
    Guess::open(if wants_huge { Class::Array } else { Class::Other })
}

fn of_file(region: &Region) -> Class {
    if is_fileless(&region.name) {
        return Class::Other;
    }
    let library = region.name.split('/').next_back().is_some_and(|name| name.contains(".so"));
    if region.is_shared() {
        Class::FileCache
    } else if region.is_writable() || region.anonymous > 0 {
        Class::RelroAndData
    } else if library {
        Class::Code
    } else {
        Class::FileCache
    }
}

/// What each region is, told by all mappings of a process together.
pub fn guesses(regions: &[Region]) -> Vec<Guess> {
    let programs: HashSet<(u64, &str)> = regions
        .iter()
        .filter(|region| region.inode != 0 && region.is_executable())
        .map(|region| (region.inode, region.name.as_str()))
        .collect();
    let cages = cages(regions);
    let mut found: Vec<Guess> = Vec::with_capacity(regions.len());
    // The last super page that was met; parts of it may have flags of their own.
    let mut partition = None;
    for (index, region) in regions.iter().enumerate() {
        let guess = alone(region);
        let anonymous = region.inode == 0 && !region.is_shared() && region.name.is_empty();
        let guess = if region.inode != 0 {
            beside_program(region, guess, &programs)
        } else if anonymous && !guess.certain {
            let super_page = region.range.start / SUPER_PAGE;
            if is_partition(regions, index) {
                partition = Some(super_page);
            }
            if partition == Some(super_page) {
                Guess::certain(Class::PartitionAlloc)
            } else {
                by_place(regions, index, &cages).unwrap_or(guess)
            }
        } else {
            guess
        };
        found.push(guess);
    }
    found
}

/// Parts of files that are mapped to be run are told from other files by their executable part.
fn beside_program(region: &Region, guess: Guess, programs: &HashSet<(u64, &str)>) -> Guess {
    if region.is_shared() && is_fileless(&region.name) && !region.name.starts_with("/dev/d") {
        // Devices (/dev/dri) stay as they are; /dev/shm and /dev/zero are memory.
        return Guess { shared_memory: true, ..Guess::open(Class::Other) };
    }
    if region.is_shared() || region.is_executable() || is_fileless(&region.name) {
        return guess;
    }
    let program = programs.contains(&(region.inode, region.name.as_str()));
    Guess::certain(match (program, region.is_writable() || region.anonymous > 0) {
        (true, true) => Class::RelroAndData,
        (true, false) => Class::Code,
        (false, _) => Class::FileCache,
    })
}

fn by_place(regions: &[Region], index: usize, cages: &[Range<u64>]) -> Option<Guess> {
    let region = &regions[index];
    let start = region.range.start;
    if cages.iter().any(|cage| cage.contains(&start)) {
        return Some(Guess::certain(Class::V8Heap));
    }
    let above = regions.get(index + 1).filter(|above| above.range.start == region.range.end);
    if start.is_multiple_of(GLIBC_HEAP)
        && above.is_some_and(|above| {
            above.is_inaccessible() && above.range.end == start.saturating_add(GLIBC_HEAP)
        })
    {
        return Some(Guess::certain(Class::AllocatorArena));
    }
    let below = &regions[index.checked_sub(1)?];
    if below.range.end != start {
        return None;
    }
    if below.is_inaccessible() && below.length() <= GUARD_MAX && region.length() == THREAD_STACK {
        return Some(Guess::certain(Class::Stack));
    }
    // Variables that begin as zero lie behind the last page of the file; libraries' other
    // neighbours may have merged with them, so pages may tell more.
    let data = below.inode != 0 && !below.is_shared() && below.is_writable();
    (data && region.is_writable()).then_some(Guess::open(Class::RelroAndData))
}

/// Slots of PartitionAlloc (or of a block with a super page of its own), or the books on them.
fn is_partition(regions: &[Region], index: usize) -> bool {
    let region = &regions[index];
    let start = region.range.start;
    let (head, offset) = (start / SUPER_PAGE * SUPER_PAGE, start % SUPER_PAGE);
    let is_books = |region: &Region| {
        let offset = region.range.start % SUPER_PAGE;
        let end = region.range.end - region.range.start / SUPER_PAGE * SUPER_PAGE;
        region.is_writable()
            && (PAGE_SIZE as u64..SUPER_PAGE_HEAD).contains(&offset)
            && end < SUPER_PAGE_HEAD
    };
    let guard = |index: Option<usize>, end: u64| {
        index
            .and_then(|index| regions.get(index).map(|region| (index, region)))
            .filter(|(_, region)| region.is_inaccessible() && region.range.end == end)
    };
    if offset == SUPER_PAGE_HEAD {
        let Some((at, below)) = guard(index.checked_sub(1), start) else { return false };
        let books = at.checked_sub(1).map(|at| &regions[at]);
        return below.range.start <= head
            || books.is_some_and(|books| books.range.end == below.range.start && is_books(books));
    }
    // The books: a guard on either side, and slots where they belong.
    let slots = regions.get(index + 2);
    is_books(region)
        && guard(index.checked_sub(1), start).is_some()
        && guard(Some(index + 1), head + SUPER_PAGE_HEAD).is_some()
        && slots.is_some_and(|slots| slots.range.start == head + SUPER_PAGE_HEAD)
}

/// Cages of V8 and of its collector: reserved as a whole at a multiple of their size, so that
/// objects refer to one another by 32 bits.  They begin with a guard or with read-only objects.
fn cages(regions: &[Region]) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for (index, region) in regions.iter().enumerate() {
        let start = region.range.start;
        let plain = region.inode == 0 && region.name.is_empty() && !region.is_shared();
        let quiet = !region.is_writable() && !region.is_executable();
        if plain
            && quiet
            && start.is_multiple_of(CAGE)
            && run_end(&regions[index..]) - start >= CAGE
        {
            found.push(start..start + CAGE);
        }
    }
    // PartitionAlloc reserves in the same way.
    let partitions = (0..regions.len()).filter(|index| is_partition(regions, *index));
    for start in partitions.map(|index| regions[index].range.start) {
        found.retain(|cage| !cage.contains(&start));
    }
    found
}

/// Where the mappings that follow one another without a gap end.
fn run_end(regions: &[Region]) -> u64 {
    let mut end = regions.first().map_or(0, |region| region.range.start);
    for region in regions.iter().take_while(|region| region.inode == 0) {
        if region.range.start != end {
            break;
        }
        end = region.range.end;
    }
    end
}
