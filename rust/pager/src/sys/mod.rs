//! The fence: the only folder that may say `unsafe` or name a kernel structure.
//!
//! # Safety contract
//!
//! Every file here opts in to `unsafe_code` by being in this folder and offers only safe functions.
//! Memory of another process, or memory that another process maps as well, is never a Rust
//! reference: it is copied, or seen through atomics.  Descriptors are owned values.  Nothing in
//! here decides anything, logs, or retries beyond EINTR.
// Kernel ABIs are made of casts between integer widths; each is bounded by the call that uses it.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)]

#[cfg(target_arch = "x86_64")]
#[path = "arch_x86_64.rs"]
pub mod arch;
pub mod descriptors;
pub mod foreign;
pub mod mapping;
pub mod pagemap;
pub mod ptrace;
pub mod sealed;
pub mod twin;
pub mod userfaultfd;
pub mod zstd_dictionary;
