//! The engine of AgentZip: it takes pages out of running processes and gives them back.
//!
//! Knows no Python and no policy.  Read it in this order: [`page_out`] beside [`page_in`], then
//! [`serve`], then [`borrow`], then [`engine`].
#![deny(unsafe_code)]
// Sizes and page counts are 64-bit on every machine that this runs on.
#![cfg_attr(not(target_pointer_width = "64"), compile_error("64-bit only"))]

/// Page numbers and byte addresses.
pub mod address;
/// How much of a touched page's neighbourhood to bring along.
pub mod ahead;
/// What a page out would gain, without an attach.
pub mod analyze;
/// Borrow a process and give it back as it was found.
pub mod attach;
/// What a stored page needs beside its frame.
pub mod blob;
/// Borrow one thread for a moment to make a worker inside a target.
pub mod borrow;
/// What can be made again at any time.
pub mod caches;
/// What of a program is out, by class and codec.
pub mod census;
/// What a region holds.
pub mod class;
/// Room for the springboard.
pub mod code_room;
/// Pages to bytes and back.
pub mod codec;
/// Half-empty pool memory back to the host.
pub mod compact;
/// What the messages of one read mean, by the calls that threads are held in.
pub mod cuts;
/// Who has changed an address space and may not have said so yet.
pub mod debtors;
/// Slots by their contents.
pub mod dedup;
/// Taken parts of the swap file.
pub mod disk_map;
/// Faults on pages that are on the disk.
pub mod disk_reads;
/// Encrypted pages in a file.
pub mod disk_tier;
/// All parts of one host's pager together.
pub mod engine;
/// What can go wrong.
pub mod error;
/// The table kept true when the program changes its address space.
pub mod events;
/// The threads that answer the kernel.
pub mod fault_loop;
/// What this kernel allows.
pub mod features;
/// Fault threads where their programs run.
pub mod follow;
/// A target forked.
pub mod fork;
/// How many cases property tests run.
#[cfg(test)]
mod fuzz;
/// Which pages a space needs when it wakes.
pub mod habit;
/// What is done unasked.
pub mod housekeeping;
/// A call that a loan interrupted is made again, or ended.
pub mod interrupted;
/// The keeper, from the engine's side.
pub mod keeper;
/// Addresses made comparable between processes.
pub mod layout;
/// Pages that others are encoded as a difference to.
pub mod leaders;
/// The steps of one page out.
pub mod mover;
/// In which order to apply events that were open together.
pub mod order;
/// Pooled pages home, before they are touched.
pub mod page_in;
/// Resident pages out.
pub mod page_out;
/// Where every page of an address space is.
pub mod page_table;
/// Descriptors into and out of a worker.
pub mod passage;
/// Places where a test can kill this process.
pub mod points;
/// Slots and references of the pool.
pub mod pool;
/// Learned pages home before they are touched.
pub mod prefetch;
/// Staged pages into the pool.
pub mod publish;
/// Ranges that the program is about to empty.
pub mod quarantine;
/// Messages of the kernel, as far as they can be read safely.
pub mod reads;
/// Stored pages made smaller in the background.
pub mod recode;
/// Dictionaries and layouts in memory that outlives us.
pub mod references;
/// What a process has mapped, and which of it may leave.
pub mod region;
/// Which pages to look at.
pub mod sample;
/// Answers to faults and events of one space.
pub mod serve;
/// Staged pages home, whatever happened.
pub mod settle;
/// What all parts of one engine share.
pub mod shared;
/// Similar pages, found by content.
pub mod similar;
/// One managed address space.
pub mod space;
/// Stored pages from the pool to the disk.
pub mod spill;
/// One stored page made as small as a tier allows.
pub mod squeeze;
/// Counters and latency histograms.
pub mod stats;
/// The pool's bytes and index together.
pub mod store;
/// The fence around the kernel.
#[allow(unsafe_code)]
pub mod sys;
/// Take over from a killed engine.
pub mod takeover;
/// One foreign process from outside.
pub mod target;
/// Learned sets from one process to another of its kind.
pub mod template;
/// A dictionary from a program's own pages.
pub mod train;
/// Touchers woken on the processor where they slept.
pub mod waker;
/// Writes for a borrower that must not wait.
pub mod writer;
