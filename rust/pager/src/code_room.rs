//! Some unused bytes of executable memory in a target, for the springboard.
//!
//! The kernel's vDSO is in every process and ends in padding; so do most executable file mappings.
//! A room in which a thread may still be (a loan was cut short, by this engine or by the death of
//! one before it) keeps its code and is not used again: the thread finds its way home whenever the
//! scheduler lets it.  Only when all rooms are taken are they looked through and emptied.

use crate::address::{PAGE_SIZE, Page};
use crate::error::{Error, Result};
use crate::quarantine::Look;
use crate::region;
use crate::sys::arch::{SPRINGBOARD_BYTES, SPRINGBOARD_HEAD};
use crate::sys::foreign::ForeignMemory;
use crate::target::{self, Target};
use std::ops::Range;
use std::time::Duration;

/// Bytes per room.
const ROOM: usize = 160;
const _: () = assert!(SPRINGBOARD_BYTES <= ROOM);
/// CPU time in which a thread has certainly left a room: a dozen instructions, and a preemption.
const LEAVE_NANOS: u64 = 1_000_000;
/// How often to look whether all threads have left, and how long to wait between.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// A room for one springboard.
#[derive(Debug)]
pub struct CodeRoom(u64);

struct Room {
    address: u64,
    free: bool,
}

impl CodeRoom {
    /// A room that nobody is in.
    ///
    /// # Errors
    /// `Unsupported`: no executable mapping ends in padding; `TargetBusy`: threads whose loans were
    /// cut short are still on their way; `TargetGone`.
    pub fn find(target: &Target, memory: &ForeignMemory) -> Result<Self> {
        let rooms = rooms(target.pid, memory)?;
        if let Some(room) = rooms.iter().find(|room| room.free) {
            return Ok(Self(room.address));
        }
        let Some(first) = rooms.first() else {
            let cause =
                format!("pid {} has no padding at the end of its executable mappings", target.pid);
            return Err(Error::Unsupported { feature: "springboard", cause });
        };
        wait_until_empty(target, &rooms)?;
        for room in &rooms {
            Self(room.address).restore(memory);
        }
        Ok(Self(first.address))
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0
    }

    /// Make it padding again.
    pub fn restore(&self, memory: &ForeignMemory) {
        // Failure means that the target is gone.
        let _ = memory.write(self.0, &[0; SPRINGBOARD_BYTES]);
    }
}

fn rooms(pid: i32, memory: &ForeignMemory) -> Result<Vec<Room>> {
    let mut regions = region::parse(&target::read_maps(pid, false)?);
    if regions.is_empty() {
        // Between two images (exec) or at its end.
        return Err(Error::TargetGone(pid));
    }
    regions.retain(|region| {
        let of_file = region.inode != 0 && region.protection.ends_with('p');
        region.protection.starts_with("r-x") && (region.name == "[vdso]" || of_file)
    });
    regions.sort_by_key(|region| region.name != "[vdso]");
    let mut found = Vec::new();
    for region in regions {
        let mut bytes: Page = [0; PAGE_SIZE];
        if memory.read(region.range.end - PAGE_SIZE as u64, &mut bytes).is_err() {
            continue;
        }
        for (index, room) in bytes.as_rchunks::<ROOM>().1.iter().rev().enumerate() {
            let free = room.iter().all(|byte| *byte == 0);
            // Anything but zeros and our own code ends the padding.
            if !free && !room.starts_with(&SPRINGBOARD_HEAD) {
                break;
            }
            let address = region.range.end - (ROOM * (index + 1)) as u64;
            found.push(Room { address, free });
        }
    }
    Ok(found)
}

/// Wait until every thread was seen asleep outside of the rooms, or has used so much CPU time since
/// the first look that it has left.
fn wait_until_empty(target: &Target, rooms: &[Room]) -> Result<()> {
    let pid = target.pid;
    let inside = |address: u64| {
        rooms.iter().any(|room| {
            let room: Range<u64> = room.address..room.address + ROOM as u64;
            room.contains(&address)
        })
    };
    let first = target::look_at_threads(pid);
    for _ in 0..TRIES {
        let has_left = |look: &Look| {
            let since = first.iter().find(|first| first.thread == look.thread);
            let ran = since.is_none_or(|since| look.runtime > since.runtime + LEAVE_NANOS);
            ran || look.address.is_some_and(|address| !inside(address))
        };
        if target::look_at_threads(pid).iter().all(has_left) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    let why = "threads whose loans were cut short are still on their way".to_owned();
    Err(Error::TargetBusy { pid, why })
}
