//! Classes of literal mappings and of pages made by hand.

use super::*;
use crate::region;
use std::collections::HashMap;

/// Pages that a test made.
#[derive(Default)]
struct Made {
    pages: HashMap<u64, Page>,
    reads: usize,
}

impl Made {
    fn with(mut self, address: u64, page: Page) -> Self {
        self.pages.insert(address, page);
        self
    }

    fn filled(range: Range<u64>, page: impl Fn(u64) -> Page) -> Self {
        let pages = range.step_by(PAGE_SIZE).map(|address| (address, page(address))).collect();
        Self { pages, reads: 0 }
    }
}

impl Source for Made {
    fn readable(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let pages = range.clone().step_by(PAGE_SIZE).filter(|at| self.pages.contains_key(at));
        pages.map(|at| at..at + PAGE_SIZE as u64).collect()
    }

    fn read(&mut self, address: u64, page: &mut Page) -> bool {
        self.reads += 1;
        self.pages.get(&address).is_some_and(|made| {
            *page = *made;
            true
        })
    }
}

fn page_of(word: impl Fn(usize) -> u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (index, bytes) in page.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(index).to_le_bytes());
    }
    page
}

fn page_from(words: &[u64]) -> Page {
    page_of(|index| words.get(index).copied().unwrap_or(0))
}

fn by_mapping(text: &str) -> Vec<Class> {
    classify(&region::parse(text), &mut Made::default())
}

fn single(text: &str, mut source: Made) -> Class {
    let classes = classify(&region::parse(text), &mut source);
    assert_eq!(1, classes.len(), "{text}");
    classes[0]
}

/// As CPython 3.11 left it: 64-byte blocks, all 255 used.
fn pool(address: u64) -> Page {
    let table = 0x7fa4_3525_c060;
    let words = [0xff, 0, table, table, 0x3_0000_00ca, 0x3fc0_0000_3ff0, 0, 0];
    assert_eq!(0, address % 4096);
    page_from(&words)
}

fn numbers(_: u64) -> Page {
    page_of(|index| (index as f64 / 3.0).to_bits())
}

#[test]
fn files_are_code_data_and_cache() {
    let text = "\
1000-2000 r--p 0 fe:00 7   /usr/lib/libx.so.6
2000-3000 r-xp 0 fe:00 7   /usr/lib/libx.so.6
3000-4000 r--p 0 fe:00 7   /usr/lib/libx.so.6
Anonymous: 4 kB
4000-5000 rw-p 0 fe:00 7   /usr/lib/libx.so.6
5000-9000 rw-p 0 00:00 0
20000-30000 r--p 0 fe:00 8   /usr/share/a.jpg
40000-50000 rw-s 0 fe:00 9   /tmp/cache.db
60000-70000 rwxp 0 00:00 0
70000-80000 r--p 0 fe:00 10  /usr/lib/locale/C.utf8/LC_CTYPE
";
    let expected = [
        Class::Code,
        Class::Code,
        Class::RelroAndData,
        Class::RelroAndData,
        Class::RelroAndData,
        Class::FileCache,
        Class::FileCache,
        Class::Code,
        Class::FileCache,
    ];
    assert_eq!(expected.to_vec(), by_mapping(text));
}

#[test]
fn kernel_memory_and_names() {
    let text = "\
10000-20000 rw-p 0 00:00 0  [heap]
7ffd0000000-7ffd0010000 rw-p 0 00:00 0  [stack]
7ffd0020000-7ffd0024000 r--p 0 00:00 0  [vvar]
7ffd0024000-7ffd0026000 r-xp 0 00:00 0  [vdso]
7ffd0030000-7ffd0040000 rw-p 0 00:00 0  [anon:partition_alloc]
7ffd0040000-7ffd0050000 rw-p 0 00:00 0  [anon: glibc: malloc arena]
7ffd0050000-7ffd0060000 rw-p 0 00:00 0  [anon: glibc: pthread stack: 12]
7ffd0070000-7ffd0080000 rw-s 0 00:05 3  /dev/dri/card0
";
    let expected = [
        Class::AllocatorArena,
        Class::Stack,
        Class::Other,
        Class::Other,
        Class::PartitionAlloc,
        Class::AllocatorArena,
        Class::Stack,
        Class::Other,
    ];
    assert_eq!(expected.to_vec(), by_mapping(text));
}

#[test]
fn partition_alloc_by_its_guards() {
    // Two super pages with their books, the first with a part whose flags differ, and a stack of an
    // ordinary thread that happens to begin where slots would.
    let text = "\
84400000000-84400002000 ---p 0 00:00 0
84400002000-84400003000 rw-p 0 00:00 0
84400003000-84400004000 ---p 0 00:00 0
84400004000-844001f4000 rw-p 0 00:00 0
844001f4000-844001f8000 rw-p 0 00:00 0
844001fc000-84400202000 ---p 0 00:00 0
84400202000-84400203000 rw-p 0 00:00 0
84400203000-84400204000 ---p 0 00:00 0
84400204000-84400344000 rw-p 0 00:00 0
7f0000003000-7f0000004000 ---p 0 00:00 0
7f0000004000-7f0000009000 rw-p 0 00:00 0
";
    let found = by_mapping(text);
    let partitions: Vec<usize> =
        (0..found.len()).filter(|index| found[*index] == Class::PartitionAlloc).collect();
    assert_eq!(vec![1, 3, 4, 6, 8], partitions, "{found:?}");
}

#[test]
fn a_cage_is_v8_and_a_reservation_of_partition_alloc_is_not() {
    let text = "\
84000000000-84000004000 ---p 0 00:00 0
84000004000-84000108000 rw-p 0 00:00 0
84000108000-84200000000 ---p 0 00:00 0
244400000000-244400010000 r--p 0 00:00 0
244400010000-244401000000 ---p 0 00:00 0
244401000000-244401462000 rw-p 0 00:00 0
244401462000-244500000000 ---p 0 00:00 0
";
    let found = by_mapping(text);
    assert_eq!(Class::PartitionAlloc, found[1]);
    assert_eq!((Class::V8Heap, Class::V8Heap), (found[3], found[5]));
}

#[test]
fn arenas_and_stacks_of_threads() {
    let text = "\
7f3028000000-7f3029048000 rw-p 0 00:00 0
7f3029048000-7f302c000000 ---p 0 00:00 0
7f30301ff000-7f3030200000 ---p 0 00:00 0
7f3030200000-7f3030a00000 rw-p 0 00:00 0
";
    let found = by_mapping(text);
    assert_eq!((Class::AllocatorArena, Class::Stack), (found[0], found[3]));
}

#[test]
fn a_thread_is_told_by_its_control_block() {
    let (text, last) = ("7f3000000000-7f3000040000 rw-p 0 0:0 0", 0x7f30_0003_f000);
    let block = last + 0x6c0;
    let page = page_of(|index| if index == 0xd8 || index == 0xda { block } else { 0 });
    assert_eq!(Class::Stack, single(text, Made::default().with(last, page)));
    let elsewhere = Made::default().with(last - 0x1000, page);
    assert_eq!(Class::Other, single(text, elsewhere));
}

#[test]
fn pools_of_python() {
    let range = 0x7fa4_1e98_a000..0x7fa4_1ea8_a000;
    let text = "7fa41e98a000-7fa41ea8a000 rw-p 0 00:00 0";
    let page = |address: u64| {
        if address.is_multiple_of(0x4000) { pool(address) } else { page_of(|_| 0x7fa4_2042_0010) }
    };
    assert_eq!(Class::InterpreterHeap, single(text, Made::filled(range.clone(), page)));
    // The same header at any other place is none.
    let moved = |address: u64| {
        if address % 0x4000 == 0x1000 { pool(address) } else { page_of(|_| 0x7fa4_2042_0010) }
    };
    assert_eq!(Class::Other, single(text, Made::filled(range, moved)));
}

#[test]
fn every_field_of_a_pool_counts() {
    let at = 0x7fa4_2000_0000;
    assert_eq!(Some(Sign::Pool), sign::of_page(at, &pool(at)));
    for (offset, value) in [(0, 0xff_u8), (13, 1), (36, 40), (40, 0xf1), (44, 0xc1), (31, 0x80)] {
        let mut page = pool(at);
        page[offset] = page[offset].wrapping_add(value);
        if offset == 0 {
            page[1] = 1;
        }
        assert_ne!(Some(Sign::Pool), sign::of_page(at, &page), "offset {offset}");
    }
}

#[test]
fn chunks_of_v8() {
    let start = 0x2f74_deb8_0000_u64;
    let header = [0x3d2000, 0x92, 0xf237360, start + 0x1148, start + 0x3d1a58, 0x3d0910];
    let text = "2f74deb80000-2f74def52000 rw-p 0 00:00 0";
    assert_eq!(Class::V8Heap, single(text, Made::default().with(start, page_from(&header))));
    let mut wrong = header;
    wrong[4] = start + 0x3d_3000;
    assert_eq!(Class::Other, single(text, Made::default().with(start, page_from(&wrong))));
    // Without the header, by the tags of its addresses.
    let objects = |_| page_of(|index| 0x2f73_fb62_e539 + 48 * index as u64);
    let range = start + 0x40000..start + 0x80000;
    assert_eq!(Class::V8Heap, single(text, Made::filled(range.clone(), objects)));
    let plain = |_| page_of(|index| 0x2f73_fb62_e538 + 48 * index as u64);
    assert_eq!(Class::Other, single(text, Made::filled(range, plain)));
}

#[test]
fn arenas_and_blocks_of_malloc_by_their_headers() {
    let start = 0x7f30_2800_0000;
    let info = [start + 0x30, 0, 0x104_8000, 0x104_8000, 0x1000];
    let text = "7f3028000000-7f3029048000 rw-p 0 00:00 0";
    let made = Made::default().with(start, page_from(&info));
    assert_eq!(Class::AllocatorArena, single(text, made));
    let text = "7f3028001000-7f3028101000 rw-p 0 00:00 0";
    let made = Made::default().with(start + 0x1000, page_from(&[0, 0x10_0002]));
    assert_eq!(Class::AllocatorArena, single(text, made));
}

#[test]
fn arrays_by_their_numbers() {
    let range = 0x7f30_2800_1000..0x7f30_2810_1000;
    let text = "7f3028001000-7f3028101000 rw-p 0 00:00 0";
    let class = |page: fn(u64) -> Page| single(text, Made::filled(range.clone(), page));
    assert_eq!(Class::Array, class(numbers));
    assert_eq!(Class::Array, class(|at| page_of(|index| at % 977 + index as u64)));
    assert_eq!(Class::Array, class(|_| page_of(|index| (index as u64) << 32 | 7)));
    assert_eq!(Class::Array, class(|_| page_of(|_| 0xbf80_0000_3f80_0000)));
    assert_eq!(Class::Other, class(|_| [0; PAGE_SIZE]));
    assert_eq!(Class::Other, class(|_| [b'A'; PAGE_SIZE]));
    assert_eq!(Class::Other, class(|at| page_of(|index| at + 64 * index as u64)));
    let random = |at: u64| page_of(|index| (at + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    assert_eq!(Class::Other, class(random));
}

#[test]
fn variables_of_a_library_are_no_array_for_some_numbers() {
    let text = "\
7f3028000000-7f3028001000 rw-p 0 fe:00 7  /usr/lib/libx.so.6
7f3028001000-7f3028101000 rw-p 0 00:00 0
";
    let range = 0x7f30_2800_1000..0x7f30_2810_1000;
    // Its first quarter holds addresses.
    let mixed = |address: u64| {
        if address < 0x7f30_2804_1000 { page_of(|_| address) } else { numbers(address) }
    };
    let regions = region::parse(text);
    let class =
        |page: fn(u64) -> Page| classify(&regions, &mut Made::filled(range.clone(), page))[1];
    assert_eq!(Class::RelroAndData, class(mixed));
    assert_eq!(Class::Array, class(numbers));
}

#[test]
fn memory_that_asked_for_huge_pages_is_an_array() {
    let text = "7f3028001000-7f3028801000 rw-p 0 00:00 0\nVmFlags: rd wr mr mw me ac hg\n";
    assert_eq!(Class::Array, single(text, Made::default()));
}

#[test]
fn pictures_in_shared_memory() {
    let text =
        "7faa4bc72000-7faa4bcb2000 rw-s 0 0:1 290354   /memfd:shared-memory-region (deleted)";
    let range = 0x7faa_4bc7_2000..0x7faa_4bcb_2000;
    let green = |_| page_of(|_| 0xff00_ff00_ff00_ff00);
    assert_eq!(Class::PixelBuffer, single(text, Made::filled(range.clone(), green)));
    let table = |at| page_of(|index| at + 24 * index as u64);
    assert_eq!(Class::Other, single(text, Made::filled(range.clone(), table)));
    assert_eq!(Class::Other, single(text, Made::default()));
    let private = text.replace("rw-s", "rw-p");
    assert_eq!(Class::Other, single(&private, Made::filled(range, green)));
}

#[test]
fn few_pages_are_read() {
    let mut text = String::new();
    for number in 0..2000_u64 {
        let start = 0x7f00_0000_0000 + (number << 20);
        text += &format!("{start:x}-{:x} rw-p 0 00:00 0\n", start + 0x80000);
    }
    let regions = region::parse(&text);
    let mut made = Made::filled(0x7f00_0000_0000..0x7f00_0080_0000, numbers);
    let found = classify(&regions, &mut made);
    assert_eq!(2000, found.len());
    assert_eq!(Class::Array, found[0]);
    assert!(made.reads <= 2000 * (2 + SAMPLES_MIN as usize), "{} reads", made.reads);

    let whole = region::parse("7f0000000000-7f0000800000 rw-p 0 00:00 0");
    made.reads = 0;
    assert_eq!(vec![Class::Array], classify(&whole, &mut made));
    assert!(made.reads <= 2 + SAMPLES_MAX as usize, "{} reads", made.reads);
}

#[test]
fn nonsense_does_not_panic() {
    let text = "\
0-1000 ---p 0 0:0 0
1000-2000 rw-p 0 0:0 0
fffffffffffff000-ffffffffffffffff rw-p 0 0:0 0
";
    let regions = region::parse(text);
    for fill in [0, 1, 0x92, u64::MAX, u64::MAX - 7, 1 << 63, 0x40000] {
        let made = |address: u64| (address, page_of(|_| fill));
        let pages = [0, 0x1000, 0xffff_ffff_ffff_f000].map(made).into_iter().collect();
        let mut source = Everywhere(pages);
        assert_eq!(3, classify(&regions, &mut source).len());
    }
}

/// Pages that are readable at the addresses of every region.
struct Everywhere(HashMap<u64, Page>);

impl Source for Everywhere {
    fn readable(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        vec![range.clone()]
    }

    fn read(&mut self, address: u64, page: &mut Page) -> bool {
        self.0.get(&(address & !0xfff)).is_some_and(|made| {
            *page = *made;
            true
        })
    }
}
