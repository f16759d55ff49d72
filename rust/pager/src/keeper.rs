//! The keeper from the engine's side: start it, watch it, take over from another's.
//!
//! The address of the keeper is `RUN_DIR/keeper.sock`.  A new keeper binds a temporary name and is
//! renamed over the old one only when it holds everything; an orphaned keeper that finds somebody
//! else at its address, or no target alive, ends itself.  So at each moment exactly one keeper that
//! holds everything can be found there, whoever is killed, as long as there is anything to hold.

use crate::error::{Error, Result};
use crate::sys::descriptors;
use crate::sys::twin::{BUSY, DONE, END, MORE, TAKE, Twin};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::collections::HashMap;
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a killed engine's keeper may take to notice.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running keeper of ours.
#[derive(Debug)]
pub struct Keeper {
    twin: Twin,
    path: PathBuf,
    _listener: OwnedFd,
}

/// What another engine's keeper handed over: descriptors by their number in its table.
pub type Inheritance = HashMap<RawFd, OwnedFd>;

fn seqpacket() -> std::io::Result<OwnedFd> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok(socket)
}

/// Path of the keeper's socket.
#[must_use]
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("keeper.sock")
}

impl Keeper {
    /// Start a keeper and put it at the address; it holds the swap file as well.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn start(run_dir: &Path, swap_file: Option<BorrowedFd<'_>>) -> Result<Self> {
        let path = socket_path(run_dir);
        let draft = run_dir.join(format!("keeper.{}.sock", std::process::id()));
        let failed = Error::os("starting the keeper");
        Self::start_at(&path, &draft, swap_file).map_err(failed)
    }

    fn start_at(
        path: &Path,
        draft: &Path,
        swap_file: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<Self> {
        let _ = std::fs::remove_file(draft);
        let listener = seqpacket()?;
        bind(&listener, &SocketAddrUnix::new(draft)?)?;
        listen(&listener, 4)?;
        let inode = std::fs::metadata(draft)?.ino();
        let name = CString::new(path.as_os_str().as_bytes())?;
        let twin = Twin::start(listener.as_fd(), swap_file, &name, inode)?;
        if let Err(error) = std::fs::rename(draft, path) {
            twin.stop();
            return Err(error);
        }
        Ok(Self { twin, path: path.to_owned(), _listener: listener })
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.twin.pid()
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.twin.is_alive()
    }

    /// A descriptor that can be read when it has ended.
    #[must_use]
    pub fn death(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.twin.pidfd)
    }

    /// Clear away a keeper that was killed.
    pub fn reap(&self) {
        self.twin.reap();
    }

    /// End it: nothing is left to keep.
    pub fn stop(&self) {
        let _ = std::fs::remove_file(&self.path);
        self.twin.stop();
    }
}

/// Connection to the keeper of a dead engine, kept open until ours has taken its place.
#[derive(Debug)]
pub struct Predecessor(OwnedFd);

/// Answer of a keeper.
enum Answer {
    Estate(Inheritance),
    /// Its engine is alive.
    Busy,
    /// It ended before it began to answer: it had nothing to keep, or another took its place.
    Ended,
}

/// Ask whatever keeper is at the address for all it holds; `None` if nobody is.
///
/// # Errors
/// `AlreadyRunning`: its engine lives; or the hand-over broke (the keeper still holds all).
pub fn inherit(run_dir: &Path) -> Result<Option<(Predecessor, Inheritance)>> {
    let path = socket_path(run_dir);
    let deadline = Instant::now() + PATIENCE;
    let failed = Error::os("asking the keeper");
    let address = SocketAddrUnix::new(&path).map_err(|e| failed(e.into()))?;
    loop {
        let failed = Error::os("asking the keeper");
        let socket = seqpacket().map_err(failed)?;
        if connect(&socket, &address).is_err() {
            // No socket, or one that a dead keeper left: nobody holds anything.
            return Ok(None);
        }
        if !descriptors::is_own_user(socket.as_fd()) {
            return Err(Error::NotPermitted {
                what: "taking over from the keeper of another user".to_owned(),
                cause: ErrorKind::PermissionDenied.into(),
            });
        }
        match ask(&socket)? {
            Answer::Estate(inheritance) => return Ok(Some((Predecessor(socket), inheritance))),
            Answer::Busy if Instant::now() >= deadline => {
                return Err(Error::AlreadyRunning(run_dir.display().to_string()));
            }
            Answer::Ended if Instant::now() >= deadline => {
                return Err(cut_short("asking the keeper"));
            }
            Answer::Busy | Answer::Ended => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn cut_short(what: &'static str) -> Error {
    Error::Os { what, cause: ErrorKind::UnexpectedEof.into() }
}

fn ask(socket: &OwnedFd) -> Result<Answer> {
    let hung_up = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
    };
    match descriptors::send(socket.as_fd(), &[TAKE], &[]) {
        Err(error) if hung_up(&error) => return Ok(Answer::Ended),
        sent => sent.map_err(Error::os("asking the keeper"))?,
    }
    let mut inheritance = Inheritance::new();
    loop {
        let mut bytes = [0u8; 16];
        let (count, mut received) = match descriptors::receive(socket.as_fd(), &mut bytes) {
            Ok((0, _)) if inheritance.is_empty() => return Ok(Answer::Ended),
            Err(error) if hung_up(&error) && inheritance.is_empty() => return Ok(Answer::Ended),
            answer => answer.map_err(Error::os("receiving from the keeper"))?,
        };
        match (count, bytes[0]) {
            (1.., END) => return Ok(Answer::Estate(inheritance)),
            (1.., BUSY) => return Ok(Answer::Busy),
            (5.., MORE) => {
                let number = RawFd::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
                let descriptor = received.pop().ok_or_else(|| {
                    cut_short("receiving a descriptor from the keeper (descriptor limit?)")
                })?;
                inheritance.insert(number, descriptor);
            }
            _ => return Err(cut_short("receiving from the keeper")),
        }
    }
}

impl Predecessor {
    /// Ours holds everything now: the old one may end.
    pub fn dismiss(self) {
        // If this does not reach it, it finds ours at its address and ends by itself.
        let _ = descriptors::send(self.0.as_fd(), &[DONE], &[]);
    }
}
