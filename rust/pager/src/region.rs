//! What a process has mapped, and which of it may leave.
//!
//! Pure: text of /proc/PID/smaps or /proc/PID/maps in, regions and decisions out.

use std::ops::Range;

/// What a region is, as far as it can be told from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The brk heap.
    Heap,
    /// Private memory without a file: arenas, object heaps, arrays, thread stacks.
    Anonymous,
    /// The main thread's stack.
    Stack,
    /// Pages of a file that are still the file's.
    File,
    /// Private pages of a file mapping that were written (.data, relocated tables).
    FileWritten,
    /// Memory that other processes may map as well.
    Shared,
    /// Kernel-provided or device memory.
    Special,
    /// Our own staging area.
    Helper,
}

impl Kind {
    /// The name `inspect` shows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Anonymous => "anonymous",
            Self::Stack => "stack",
            Self::File => "file",
            Self::FileWritten => "file-private-written",
            Self::Shared => "shared",
            Self::Special => "special",
            Self::Helper => "helper",
        }
    }
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Addresses.
    pub range: Range<u64>,
    /// `rwxp` letters.
    pub protection: String,
    /// Inode of the file behind it, 0 for none.
    pub inode: u64,
    /// Path or `[name]`.
    pub name: String,
    /// Bytes in memory (smaps only).
    pub resident: u64,
    /// Bytes in memory, each divided by how many processes have it (smaps only).
    pub proportional: u64,
    /// Of those resident, private ones that belong to no file (smaps only).
    pub anonymous: u64,
    /// Two-letter flags (smaps only); see proc_pid_smaps(5).
    pub flags: Vec<[u8; 2]>,
    /// Memory protection key (smaps only).
    pub protection_key: u32,
}

/// Flags that forbid paging out, with the reason shown to people.
const FORBIDDEN_FLAGS: [([u8; 2], &str); 8] = [
    (*b"wf", "wiped on fork: a child must see zeros"),
    (*b"io", "device memory"),
    (*b"pf", "device memory (pure page frames)"),
    (*b"mm", "mixed device memory"),
    (*b"dd", "excluded from core dumps by the program, taken as sensitive"),
    (*b"lo", "locked in memory by the program"),
    (*b"ht", "huge pages of hugetlbfs"),
    (*b"ui", "userfaultfd minor mode of the program"),
];

/// Types of files that are compressed already, or too large and too seldom read to be kept by us.
pub const SKIPPED_FILE_TYPES: [&str; 7] = ["jpg", "jpeg", "png", "zip", "mp4", "h5", "safetensors"];

/// May the pages of a region leave?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What it is.
    pub kind: Kind,
    /// Whether its pages may leave.
    pub movable: bool,
    /// Why, in a short sentence.
    pub reason: &'static str,
}

impl Region {
    /// Private memory without a file: what a userfaultfd can watch.  Read-only and inaccessible
    /// neighbours are watched too, or the kernel could not merge them when protections change.
    #[must_use]
    pub fn is_watchable(&self) -> bool {
        let private = self.protection.as_bytes().get(3) == Some(&b'p');
        let named = self.name.is_empty()
            || self.name == "[heap]"
            || self.name.starts_with("[stack")
            || self.name.starts_with("[anon:");
        private && self.inode == 0 && named && self.forbidden().is_none()
    }

    /// Type of the file behind this region: what follows the last dot of its name.
    #[must_use]
    pub fn file_extension(&self) -> Option<&str> {
        let name = self.name.strip_suffix(" (deleted)").unwrap_or(&self.name);
        let (stem, extension) = name.rsplit('/').next()?.rsplit_once('.')?;
        (self.inode != 0 && !stem.is_empty() && !extension.is_empty()).then_some(extension)
    }

    /// Whether the file behind this region is of a type on the skip list.
    #[must_use]
    pub fn is_skipped_type(&self) -> bool {
        self.file_extension().is_some_and(|extension| {
            SKIPPED_FILE_TYPES.iter().any(|skipped| skipped.eq_ignore_ascii_case(extension))
        })
    }

    fn forbidden(&self) -> Option<&'static str> {
        if self.protection_key != 0 {
            return Some("guarded by a memory protection key");
        }
        FORBIDDEN_FLAGS
            .iter()
            .find(|(flag, _)| self.flags.contains(flag))
            .map(|(_, reason)| *reason)
    }

    fn kind(&self) -> Kind {
        if self.protection.as_bytes().get(3) == Some(&b's') {
            Kind::Shared
        } else if self.inode != 0 {
            if self.anonymous > 0 { Kind::FileWritten } else { Kind::File }
        } else if self.name == "[heap]" {
            Kind::Heap
        } else if self.name.starts_with("[stack") {
            Kind::Stack
        } else if self.name.is_empty() || self.name.starts_with("[anon:") {
            Kind::Anonymous
        } else {
            Kind::Special
        }
    }

    /// Decide about this region; `helper` is our own area in the target, if any.
    #[must_use]
    pub fn decide(&self, helper: Option<&Range<u64>>) -> Decision {
        let kind = self.kind();
        if helper
            .is_some_and(|helper| self.range.start < helper.end && helper.start < self.range.end)
        {
            let reason = "AgentZip's own staging area, removed at detach";
            return Decision { kind: Kind::Helper, movable: false, reason };
        }
        let letters = self.protection.as_bytes();
        let reason = match kind {
            // Pages of files are never encoded, whatever their type: they are on the disk already.
            Kind::Shared | Kind::File | Kind::FileWritten if self.is_skipped_type() => {
                "file pages, type on the skip list: never encoded, left to the kernel"
            }
            Kind::Shared => {
                "shared: another process may map it; leaves only by the kernel's own path"
            }
            Kind::File => "file pages: the kernel drops and rereads them by itself",
            Kind::FileWritten => "written copy of file pages: out of reach of a userfaultfd",
            Kind::Special => "provided by the kernel",
            Kind::Heap | Kind::Stack | Kind::Anonymous | Kind::Helper => match self.forbidden() {
                Some(reason) => reason,
                None if letters.first() != Some(&b'r') => "not readable",
                None if letters.get(2) == Some(&b'x') => "executable: generated code",
                None if letters.get(1) != Some(&b'w') => {
                    "read-only: the kernel moves writable pages only"
                }
                None if kind == Kind::Stack => {
                    let reason = "stack: all but its live end, arguments and environment";
                    return Decision { kind, movable: true, reason };
                }
                None => {
                    let reason = "private anonymous memory";
                    return Decision { kind, movable: true, reason };
                }
            },
        };
        Decision { kind, movable: false, reason }
    }
}

/// Parse the text of /proc/PID/smaps or /proc/PID/maps.  Lines that are neither are skipped.
///
/// The kernel writes that text in pieces, between which the program may move a mapping: what it
/// then shows twice is cut, so that regions never overlap.
#[must_use]
pub fn parse(text: &str) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    for line in text.lines() {
        if let Some(mut region) = parse_head(line) {
            let shown = regions.last().map_or(0, |last| last.range.end);
            region.range.start = region.range.start.max(shown);
            region.range.end = region.range.end.max(region.range.start);
            regions.push(region);
        } else if let Some(region) = regions.last_mut() {
            parse_field(line, region);
        }
    }
    regions.retain(|region| !region.range.is_empty());
    regions
}

fn parse_head(line: &str) -> Option<Region> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let mut fields = rest.splitn(4, ' ');
    let protection = fields.next()?;
    let (_offset, _device) = (fields.next()?, fields.next()?);
    let tail = fields.next()?;
    let (inode, name) = tail.split_once(' ').unwrap_or((tail, ""));
    if protection.len() != 4 || range.start >= range.end {
        return None;
    }
    Some(Region {
        range,
        protection: protection.to_owned(),
        inode: inode.parse().ok()?,
        name: name.trim_start().to_owned(),
        resident: 0,
        proportional: 0,
        anonymous: 0,
        flags: Vec::new(),
        protection_key: 0,
    })
}

fn parse_field(line: &str, region: &mut Region) {
    let Some((key, value)) = line.split_once(':') else { return };
    let kibibytes =
        || value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0).saturating_mul(1024);
    match key {
        "Rss" => region.resident = kibibytes(),
        "Pss" => region.proportional = kibibytes(),
        "Anonymous" => region.anonymous = kibibytes(),
        "ProtectionKey" => region.protection_key = value.trim().parse().unwrap_or(0),
        "VmFlags" => {
            region.flags = value
                .split_ascii_whitespace()
                .filter_map(|flag| flag.as_bytes().try_into().ok())
                .collect();
        }
        _ => {}
    }
}

/// Where in the address space an area of `length` bytes disturbs nobody: the middle of the largest
/// gap, far from where heap and mappings grow.  The address is a multiple of 2 MiB.
#[must_use]
pub fn find_gap(regions: &[Region], length: u64, address_end: u64) -> Option<u64> {
    const ALIGNMENT: u64 = 2 << 20;
    const LOWEST: u64 = 1 << 32;
    let mut best: Option<Range<u64>> = None;
    let mut previous = LOWEST;
    let ends = regions.iter().map(|region| region.range.clone());
    for range in ends.chain(std::iter::once(address_end..address_end)) {
        if range.start > address_end {
            break;
        }
        let gap = previous..range.start.max(previous);
        if best.as_ref().is_none_or(|best| gap.end - gap.start > best.end - best.start) {
            best = Some(gap);
        }
        previous = previous.max(range.end);
    }
    let gap = best?;
    let middle = gap.start + (gap.end - gap.start) / 2;
    let address = middle / ALIGNMENT * ALIGNMENT;
    (address >= gap.start && address + length <= gap.end).then_some(address)
}

/// The parts of `range` that no range of `holes` (sorted) covers.
#[must_use]
pub fn subtract(range: Range<u64>, holes: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut start = range.start;
    for hole in holes {
        if hole.end <= start || hole.start >= range.end {
            continue;
        }
        if hole.start > start {
            rest.push(start..hole.start);
        }
        start = start.max(hole.end);
    }
    if start < range.end {
        rest.push(start..range.end);
    }
    rest
}

/// The parts of `range` that lie in some range of `wanted`; all of it when `wanted` is `None`.
#[must_use]
pub fn intersect(range: &Range<u64>, wanted: Option<&[Range<u64>]>) -> Vec<Range<u64>> {
    let Some(wanted) = wanted else { return vec![range.clone()] };
    let mut parts: Vec<Range<u64>> = wanted
        .iter()
        .map(|want| want.start.max(range.start)..want.end.min(range.end))
        .filter(|part| part.start < part.end)
        .collect();
    parts.sort_by_key(|part| part.start);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use proptest::prelude::*;

    const TEXT: &str = "\
5581e8000000-5581e8100000 rw-p 00000000 00:00 0                          [heap]
Rss:                 512 kB
Anonymous:           512 kB
ProtectionKey:         0
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Rss:                2048 kB
VmFlags: rd wr mr mw me wf sd
7f0000400000-7f0000500000 r-xp 00001000 fe:00 123                        /usr/lib/a b.so
VmFlags: rd ex mr mw me sd
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn a_plain_heap_may_leave() {
        let regions = parse(TEXT);
        assert_eq!(4, regions.len());
        assert_eq!(512 << 10, regions[0].resident);
        assert!(regions[0].decide(None).movable);
        assert_eq!("/usr/lib/a b.so", regions[2].name);
    }

    #[test]
    fn memory_wiped_on_fork_stays() {
        let decision = parse(TEXT)[1].decide(None);
        assert!(!decision.movable);
        assert_eq!("wiped on fork: a child must see zeros", decision.reason);
    }

    #[test]
    fn memory_behind_a_protection_key_stays() {
        let text = TEXT.replacen("ProtectionKey:         0", "ProtectionKey:         5", 1);
        let decision = parse(&text)[0].decide(None);
        assert!(!decision.movable && !parse(&text)[0].is_watchable());
        assert_eq!("guarded by a memory protection key", decision.reason);
    }

    #[test]
    fn our_own_area_is_never_moved() {
        let helper = 0x7f00_0000_0000..0x7f00_0020_0000;
        assert_eq!(Kind::Helper, parse(TEXT)[1].decide(Some(&helper)).kind);
    }

    #[test]
    fn the_gap_is_free() {
        let regions = parse(TEXT);
        let address = find_gap(&regions, 8 << 20, 0x7fff_ffff_f000).expect("a gap");
        assert!(regions.iter().all(|region| {
            region.range.end <= address || address + (8 << 20) <= region.range.start
        }));
    }

    #[test]
    fn subtract_leaves_the_rest() {
        assert_eq!(vec![0..2, 4..6, 8..10], subtract(0..10, &[2..4, 6..8]));
        assert!(subtract(3..5, &[0..9]).is_empty());
    }

    #[test]
    fn a_mapping_shown_twice_is_cut() {
        let text = "1000-5000 rw-p 0 0:0 0\n3000-8000 rw-p 0 0:0 0\n4000-5000 rw-p 0 0:0 0\n";
        let ranges: Vec<_> = parse(text).into_iter().map(|region| region.range).collect();
        assert_eq!(vec![0x1000..0x5000, 0x5000..0x8000], ranges);
    }

    #[test]
    fn files_on_the_skip_list_say_so() {
        let decide = |mapping: &str| parse(mapping)[0].decide(None);
        for letters in ["r--p", "r--s", "rw-s"] {
            for name in ["/a/x.jpg", "/a/x.JPEG", "/x.tar.zip", "/m.safetensors (deleted)"] {
                let decision = decide(&format!("1000-2000 {letters} 0 fe:00 5    {name}\n"));
                assert!(!decision.movable && decision.reason.contains("skip list"), "{name}");
            }
        }
        for name in ["/a.jpg/x", "/x.jpg.txt", "/x", "/.png", "/lib.so.6", "/a.jpgx"] {
            let decision = decide(&format!("1000-2000 r--p 0 fe:00 5    {name}\n"));
            assert!(!decision.movable && !decision.reason.contains("skip list"), "{name}");
        }
    }

    #[test]
    fn garbage_is_no_region() {
        for line in ["", "zz-yy rw-p", "10-5 rw-p 0 0 0", "1-2", "Rss: 5 kB", "1-2 rw 0 0:0 0"] {
            assert!(parse(line).is_empty(), "{line}");
        }
    }

    /// Lines as the kernel writes them, with a part changed now and then.
    fn any_line() -> impl Strategy<Value = String> {
        let address = prop_oneof![
            (0u64..1 << 12).prop_map(|page| format!("{:x}", page << 12)),
            any::<u64>().prop_map(|address| format!("{address:x}")),
            "[0-9a-fxg-]{0,20}",
        ];
        let protection = prop_oneof![3 => "[r-][w-][x-][ps]", 1 => "\\PC{0,6}"];
        let inode = prop_oneof![Just("0".to_owned()), "[0-9]{1,22}", "\\PC{0,4}"];
        let name = prop_oneof![
            Just(String::new()),
            Just("[heap]".to_owned()),
            "/[a-z/. ]{0,9}(\\.(so|JPEG|zip))?( \\(deleted\\))?",
            "\\PC{0,12}",
        ];
        let head = (address.clone(), address, protection, inode, name).prop_map(
            |(start, end, protection, inode, name)| {
                format!("{start}-{end} {protection} 00000000 fe:00 {inode}      {name}")
            },
        );
        let key = prop_oneof!["Rss", "Pss", "Anonymous", "ProtectionKey", "VmFlags", "\\PC{0,5}"];
        let value = prop_oneof!["[0-9]{0,25} kB", "( (rd|wf|lo|io|x)){0,6}", "\\PC{0,12}"];
        let field = (key, value).prop_map(|(key, value)| format!("{key}: {value}"));
        prop_oneof![3 => head, 2 => field, 1 => "\\PC{0,60}"]
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(500))]

        #[test]
        fn any_text_is_read_as_sound_regions(lines in prop::collection::vec(any_line(), 0..12)) {
            let regions = parse(&lines.join("\n"));
            let mut shown = 0;
            for region in &regions {
                prop_assert!(shown <= region.range.start && region.range.start < region.range.end);
                shown = region.range.end;
                let _ = region.decide(Some(&(0x1000..0x9000)));
            }
            // Who uses them next takes them as they are.
            let layout = Layout::of(&regions);
            prop_assert_eq!(&layout, &Layout::from_bytes(&layout.to_bytes()).expect("own bytes"));
            if let Some(address) = find_gap(&regions, 8 << 20, 1 << 47) {
                let area = address..address + (8 << 20);
                prop_assert_eq!(vec![area.clone()], subtract(area, &ranges(&regions)));
            }
        }
    }

    fn ranges(regions: &[Region]) -> Vec<Range<u64>> {
        regions.iter().map(|region| region.range.clone()).collect()
    }
}
