//! What can go wrong, and what it means.
//!
//! Outcomes of normal life (a page was home already, the address space is changing) are enums of
//! the modules that see them; an [`Error`] is what the caller did not plan for.  Each variant maps
//! to exactly one Python exception class of the same name.

use rustix::io::Errno;
use std::io;

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an engine operation could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is out of its range.
    #[error("{field}: {problem}")]
    InvalidSetting {
        /// Name of the setting.
        field: &'static str,
        /// What is wrong with it and what would be right.
        problem: String,
    },
    /// No process has this pid.
    #[error("no process with pid {0}")]
    NoSuchProcess(i32),
    /// The pid names another process than the caller meant.
    #[error("pid {pid} was reused: it started at tick {actual}, not {expected}")]
    PidReused {
        /// The pid.
        pid: i32,
        /// Start time the caller expected (clock ticks after boot).
        expected: u64,
        /// Start time the process has.
        actual: u64,
    },
    /// The kernel refused access.
    #[error("not permitted: {what}: {cause}")]
    NotPermitted {
        /// What was attempted.
        what: String,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// Another tracer has the target.
    #[error("pid {pid} is traced by pid {tracer}")]
    AlreadyTraced {
        /// The target.
        pid: i32,
        /// Its tracer.
        tracer: i32,
    },
    /// The target is this engine or its keeper.
    #[error("pid {0} is AgentZip itself")]
    OwnProcess(i32),
    /// The target has no user memory.
    #[error("pid {0} is a kernel thread")]
    KernelThread(i32),
    /// The target runs other machine code than this engine.
    #[error("pid {pid} is not a 64-bit x86-64 process: {found}")]
    WrongArchitecture {
        /// The target.
        pid: i32,
        /// What was found.
        found: String,
    },
    /// The target is managed already.
    #[error("pid {0} is attached already")]
    AlreadyAttached(i32),
    /// The target is not managed.
    #[error("pid {0} is not attached")]
    NotAttached(i32),
    /// No thread could be borrowed in time.
    #[error("pid {pid} is busy: {why}")]
    TargetBusy {
        /// The target.
        pid: i32,
        /// What was waited for.
        why: String,
    },
    /// The target exited or exec'ed.
    #[error("pid {0} is gone: it exited or replaced itself")]
    TargetGone(i32),
    /// The kernel lacks a feature.
    #[error("unsupported: {feature}: {cause}")]
    Unsupported {
        /// The missing feature.
        feature: &'static str,
        /// The kernel's answer.
        cause: String,
    },
    /// Another engine owns the run directory.
    #[error("another engine is running in {0}")]
    AlreadyRunning(String),
    /// A keeper holds state that this version cannot read.
    #[error("the keeper's state has format {found}, this version knows {known}")]
    IncompatibleState {
        /// Format found.
        found: u64,
        /// Format known.
        known: u64,
    },
    /// Too little memory to bring pages home.
    #[error("not enough memory: {} MiB of pid {pid} still out", .bytes_out >> 20)]
    NotEnoughMemory {
        /// The target.
        pid: i32,
        /// Logical bytes that are still out.
        bytes_out: u64,
    },
    /// The engine still manages targets.
    #[error("{0} managed address spaces remain")]
    TargetsRemain(usize),
    /// A call on our own side failed in a way that is not the target's doing.
    #[error("{what}: {cause}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// A broken assumption: a bug.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Wrap a failed access to a target's memory: a short one means that the memory is gone.
    pub fn memory(pid: i32, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => Self::TargetGone(pid),
            _ => Self::os(what)(cause),
        }
    }

    /// Name of the Python exception class this becomes.
    #[must_use]
    pub fn class_name(&self) -> &'static str {
        match self {
            Self::InvalidSetting { .. } => "InvalidSetting",
            Self::NoSuchProcess(_) => "NoSuchProcess",
            Self::PidReused { .. } => "PidReused",
            Self::NotPermitted { .. } => "NotPermitted",
            Self::AlreadyTraced { .. } => "AlreadyTraced",
            Self::OwnProcess(_) => "OwnProcess",
            Self::KernelThread(_) => "KernelThread",
            Self::WrongArchitecture { .. } => "WrongArchitecture",
            Self::AlreadyAttached(_) => "AlreadyAttached",
            Self::NotAttached(_) => "NotAttached",
            Self::TargetBusy { .. } => "TargetBusy",
            Self::TargetGone(_) => "TargetGone",
            Self::Unsupported { .. } => "Unsupported",
            Self::AlreadyRunning(_) => "AlreadyRunning",
            Self::IncompatibleState { .. } => "IncompatibleState",
            Self::NotEnoughMemory { .. } => "NotEnoughMemory",
            Self::TargetsRemain(_) => "TargetsRemain",
            Self::Os { .. } | Self::Internal(_) => "InternalError",
        }
    }

    /// Wrap the kernel's answer to a call of ours.  A limit that was reached is not a bug.
    pub fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| match Errno::from_io_error(&cause) {
            Some(Errno::MFILE | Errno::NFILE) => Self::NotPermitted {
                what: format!("{what} (the limit of open descriptors, RLIMIT_NOFILE, is reached)"),
                cause,
            },
            _ => Self::Os { what, cause },
        }
    }
}
