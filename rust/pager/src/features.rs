//! What this kernel and these privileges allow, probed by doing it to ourselves.

use crate::sys::foreign;
use crate::sys::pagemap::{Filter, Pagemap, WATCHED};
use crate::sys::userfaultfd::{NAMED_FEATURES, Userfaultfd, open_device};
use std::io;
use std::os::fd::AsFd;

/// Feature name and, if it does not work, the exact cause (empty if it works).
#[must_use]
pub fn probe() -> Vec<(&'static str, String)> {
    let mut found = vec![("userfaultfd_device", cause(open_device().map(drop)))];
    for (name, bits) in NAMED_FEATURES {
        let answer = Userfaultfd::for_self().and_then(|descriptor| descriptor.enable(bits));
        found.push((name, cause(answer)));
    }
    found.push(("pagemap_scan", cause(probe_pagemap())));
    found.push(("pidfd_thread", cause(probe_thread().map(drop))));
    let take = probe_thread().and_then(|thread| {
        foreign::take_descriptor(thread.as_fd(), 0).or_else(|error| {
            // Nothing is open as 0: the call itself works.
            if error.raw_os_error() == Some(rustix::io::Errno::BADF.raw_os_error()) {
                Ok(thread)
            } else {
                Err(error)
            }
        })
    });
    found.push(("pidfd_getfd", cause(take.map(drop))));
    found.push(("ptrace", probe_capability(19, "CAP_SYS_PTRACE")));
    found.push(("suspend_seccomp", probe_capability(21, "CAP_SYS_ADMIN")));
    found
}

fn cause(answer: io::Result<()>) -> String {
    answer.err().map(|error| error.to_string()).unwrap_or_default()
}

fn probe_pagemap() -> io::Result<()> {
    let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let filter = Filter { all_of: WATCHED, any_of: 0, none_of: 0 };
    Pagemap::open(own)?.scan(0x1_0000..0x2_0000, filter, &mut Vec::new())
}

fn probe_thread() -> io::Result<std::os::fd::OwnedFd> {
    foreign::open_thread(rustix::thread::gettid().as_raw_nonzero().get())
}

/// Whether a capability is in the effective set, by /proc/self/status.
fn probe_capability(number: u32, name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(0);
    if effective >> number & 1 == 1 { String::new() } else { format!("{name} is missing") }
}
