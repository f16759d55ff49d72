//! The disk tier: stored pages in a file, encrypted.
//!
//! The key lives in a memfd that the keeper shares, and nowhere else; with the last holder it is
//! gone and the file is noise.  Every page has a nonce of its own (a counter in the same memfd,
//! advanced before it is used) and is bound to its place, its length and the checksum of its
//! contents: what was tampered with, truncated, or put elsewhere does not decrypt.
//!
//! ```text
//! nonce u64 | tag 16 B | ciphertext of: codec u8, encoded page
//! ```
//!
//! Pages here are encoded without dictionary or leaders: what is read from a disk must not need
//! anything else to be there.
//!
//! AES-256-GCM-SIV (RFC 8452): if a nonce were repeated after all, only equality would show.

use crate::address::{PAGE_SIZE, Page};
use crate::codec::{Algorithm, CodecId, Decoder, Encoder};
use crate::disk_map::{BLOCK_BYTES, DiskMap};
use crate::error::{Error, Result};
use crate::page_table::Stored;
use crate::sys::mapping::SharedMapping;
use aes_gcm_siv::aead::{AeadInOut, KeyInit};
use aes_gcm_siv::{Aes256GcmSiv, Nonce, Tag};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Name of the key's memfd; the number is the state format.
pub const MEMFD_NAME: &str = "agentzip:swap:3";
/// Level of the frames on disk: read far more rarely than pages in memory.
const LEVEL: i32 = 9;
/// Nonce, tag and codec before the encoded page.
const HEAD_BYTES: usize = 8 + 16 + 1;
/// Longest record.
pub const RECORD_BYTES_MAX: usize = HEAD_BYTES + PAGE_SIZE;
const KEY_BYTES: usize = 4096;

/// Positions in the key's memfd, in words.
mod word {
    pub const MAGIC: usize = 0;
    pub const DEVICE: usize = 1;
    pub const INODE: usize = 2;
    pub const BYTES_MAX: usize = 3;
    pub const NONCE: usize = 4;
    pub const KEY: usize = 8;
}

/// How long the keeper of an engine that has just closed may take to end.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);
const CLAIM_PAUSE: Duration = Duration::from_millis(20);
/// At the beginning of every swap file: a file without it is never emptied.
const TAG: &[u8; 16] = b"agentzip swap 3\n";
const MAGIC: u64 = 0x7069_5A74_6E65_6741;

/// A file of encrypted pages.
pub struct DiskTier {
    file: File,
    map: Mutex<DiskMap>,
    cipher: Aes256GcmSiv,
    state: SharedMapping,
    bytes_max: u64,
}

impl std::fmt::Debug for DiskTier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        formatter.debug_struct("DiskTier").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// Make a file ours and empty, unless another engine works with it or it holds something else.
///
/// The lock belongs to the open file: a keeper and the next engine have it with the descriptor, and
/// it ends with the last of them.
fn claim(file: &File, bytes: u64, path: &Path) -> Result<()> {
    let refused = |problem: String| Error::InvalidSetting { field: "disk_path", problem };
    let failed = |cause: io::Error| refused(format!("{} cannot be used: {cause}", path.display()));
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    let deadline = Instant::now() + CLAIM_PATIENCE;
    while rustix::fs::flock(file, lock).is_err() {
        if Instant::now() >= deadline {
            return Err(refused(format!("{} is in use by another engine", path.display())));
        }
        std::thread::sleep(CLAIM_PAUSE);
    }
    let mut tag = [0u8; TAG.len()];
    if bytes > 0 && (file.read_exact_at(&mut tag, 0).is_err() || tag != *TAG) {
        let problem = format!("{} is no swap file of ours, and is not empty", path.display());
        return Err(refused(problem));
    }
    file.set_len(0).and_then(|()| file.write_all_at(TAG, 0)).map_err(failed)
}

/// What one thread needs to write or read records.
pub struct DiskKit {
    encoder: Encoder,
    decoder: Decoder,
    encoded: Box<Page>,
    record: Box<[u8; RECORD_BYTES_MAX]>,
}

impl DiskKit {
    /// A kit.
    ///
    /// # Errors
    /// The library has no memory for its contexts.
    pub fn new() -> Result<Self> {
        let encoder = Encoder::new(Algorithm::Zstd { level: LEVEL })
            .map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Self {
            encoder,
            decoder: Decoder::new(),
            encoded: Box::new([0; PAGE_SIZE]),
            record: Box::new([0; RECORD_BYTES_MAX]),
        })
    }
}

impl DiskTier {
    /// Make the file anew; what was in it belonged to a key that is gone.
    ///
    /// # Errors
    /// The path cannot be written, is not a regular file, holds somebody else's data, or is in use.
    pub fn create(path: &Path, bytes_max: u64) -> Result<Self> {
        let field = "disk_path";
        let refused = |cause: io::Error| Error::InvalidSetting {
            field,
            problem: format!("{} cannot be used: {cause}", path.display()),
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(refused)?;
        let found = file.metadata().map_err(refused)?;
        if !found.is_file() {
            let problem = format!("{} is not a regular file", path.display());
            return Err(Error::InvalidSetting { field, problem });
        }
        claim(&file, found.len(), path)?;
        let state = SharedMapping::create(MEMFD_NAME, KEY_BYTES)
            .map_err(Error::os("making the key's memory"))?;
        // A key that the host swaps to its disk would undo all this.
        state.lock_on_touch().map_err(Error::os("locking the key in memory"))?;
        let mut key = [0u8; 32];
        let got = rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty());
        if got.map_err(|errno| Error::os("making a key")(errno.into()))? != key.len() {
            return Err(Error::Internal("the kernel gave too few random bytes".to_owned()));
        }
        let words = state.words();
        for (place, part) in words[word::KEY..].iter().zip(key.as_chunks::<8>().0) {
            place.store(u64::from_le_bytes(*part), Ordering::Relaxed);
        }
        words[word::DEVICE].store(found.dev(), Ordering::Relaxed);
        words[word::INODE].store(found.ino(), Ordering::Relaxed);
        words[word::BYTES_MAX].store(bytes_max, Ordering::Relaxed);
        words[word::MAGIC].store(MAGIC, Ordering::Release);
        key.fill(0);
        Ok(Self::new(file, state, bytes_max))
    }

    /// Go on with the file of another engine; `files` are the regular files that it had open.
    /// `None` if its making was cut short.
    ///
    /// # Errors
    /// The file is not among them: pages would be lost, so nothing is served.
    pub fn take_over(state: OwnedFd, files: Vec<OwnedFd>) -> Result<Option<Self>> {
        if rustix::fs::fstat(&state).map_or(0, |stat| stat.st_size) < KEY_BYTES as i64 {
            return Ok(None);
        }
        let state = SharedMapping::map(state).map_err(Error::os("mapping the key of a keeper"))?;
        state.lock_on_touch().map_err(Error::os("locking the key in memory"))?;
        let get = |index: usize| state.words()[index].load(Ordering::Acquire);
        if get(word::MAGIC) != MAGIC {
            return Ok(None);
        }
        let (device, inode) = (get(word::DEVICE), get(word::INODE));
        let ours = files.into_iter().map(File::from).find(|file| {
            file.metadata().is_ok_and(|found| found.dev() == device && found.ino() == inode)
        });
        let file = ours.ok_or_else(|| {
            Error::Internal("the keeper holds the key but not the swap file".to_owned())
        })?;
        let bytes_max = get(word::BYTES_MAX);
        Ok(Some(Self::new(file, state, bytes_max)))
    }

    /// The file; open as long as this value lives.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Nothing is in the file any more: another engine may have it.
    pub fn unlock(&self) {
        // Without it the file is free when its last descriptor is closed.
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }

    fn new(file: File, state: SharedMapping, bytes_max: u64) -> Self {
        let mut key = [0u8; 32];
        for (place, part) in state.words()[word::KEY..].iter().zip(key.as_chunks_mut::<8>().0) {
            *part = place.load(Ordering::Relaxed).to_le_bytes();
        }
        let cipher = Aes256GcmSiv::new(&key.into());
        key.fill(0);
        let mut map = DiskMap::new(bytes_max.max(BLOCK_BYTES));
        // The first block is the file's name tag, not a record's.
        let _ = map.alloc(BLOCK_BYTES);
        Self { file, map: Mutex::new(map), cipher, state, bytes_max }
    }

    /// Write a page; the result names it, with one reference.  `Ok(None)`: the file is full.
    ///
    /// # Errors
    /// What the disk says (ENOSPC, EIO); nothing was stored.
    pub fn write(
        &self,
        page: &Page,
        checksum: u64,
        kit: &mut DiskKit,
    ) -> io::Result<Option<Stored>> {
        let (codec, len) = kit.encoder.encode(page, &mut kit.encoded);
        let total = HEAD_BYTES + len;
        let Some(offset) = self.map.lock().alloc(total as u64) else { return Ok(None) };
        let stored = Stored { codec: CodecId::DISK, len: len as u16, offset, checksum };
        kit.record[HEAD_BYTES - 1] = codec.0;
        kit.record[HEAD_BYTES..total].copy_from_slice(&kit.encoded[..len]);
        let nonce = self.state.words()[word::NONCE].fetch_add(1, Ordering::AcqRel);
        let sealed = self.cipher.encrypt_inout_detached(
            &nonce_of(nonce),
            &bound_to(&stored),
            (&mut kit.record[HEAD_BYTES - 1..total]).into(),
        );
        let written = match sealed {
            Ok(tag) => {
                kit.record[..8].copy_from_slice(&nonce.to_le_bytes());
                kit.record[8..24].copy_from_slice(&tag);
                self.file.write_all_at(&kit.record[..total], offset)
            }
            Err(_) => Err(io::Error::other("the cipher refused a page")),
        };
        if let Err(error) = written {
            self.release(&stored);
            return Err(error);
        }
        Ok(Some(stored))
    }

    /// Make sure that what was written is on the disk, and that reading it asks the disk.
    ///
    /// # Errors
    /// What the disk says.
    pub fn flush(&self) -> io::Result<()> {
        use rustix::fs::{Advice, fadvise};
        self.file.sync_data()?;
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        Ok(())
    }

    /// Read a page; what is wrong with it, if it cannot be had.
    ///
    /// # Errors
    /// What the disk says; or that the record was truncated, tampered with or put elsewhere.
    pub fn read(&self, stored: &Stored, kit: &mut DiskKit, page: &mut Page) -> io::Result<()> {
        let total = HEAD_BYTES + usize::from(stored.len).min(PAGE_SIZE);
        self.file.read_exact_at(&mut kit.record[..total], stored.offset)?;
        let bad = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut nonce = [0; 8];
        nonce.copy_from_slice(&kit.record[..8]);
        let mut tag = [0; 16];
        tag.copy_from_slice(&kit.record[8..24]);
        self.cipher
            .decrypt_inout_detached(
                &nonce_of(u64::from_le_bytes(nonce)),
                &bound_to(stored),
                (&mut kit.record[HEAD_BYTES - 1..total]).into(),
                &Tag::from(tag),
            )
            .map_err(|_| bad("a record of the swap file does not authenticate"))?;
        let codec = CodecId(kit.record[HEAD_BYTES - 1]);
        kit.decoder
            .decode(codec, &kit.record[HEAD_BYTES..total], page)
            .map_err(|_| bad("a record of the swap file does not decode"))?;
        if crate::codec::checksum(page) == stored.checksum {
            Ok(())
        } else {
            Err(bad("a record of the swap file has another checksum"))
        }
    }

    /// One more reference.
    ///
    /// # Errors
    /// A bug: nothing is stored there.
    pub fn share(&self, stored: &Stored) -> Result<()> {
        self.map.lock().add_ref(stored.offset).map_err(|e| Error::Internal(e.to_string()))
    }

    /// One reference less.
    pub fn release(&self, stored: &Stored) {
        // An unknown place would be a bug of the counts; nothing can be served from it.
        let _ = self.map.lock().release(stored.offset, record_len(stored));
    }

    /// At takeover: a page table names this record.
    ///
    /// # Errors
    /// The entry contradicts another one.
    pub fn adopt(&self, stored: &Stored) -> Result<()> {
        let mut map = self.map.lock();
        map.adopt(stored.offset, record_len(stored)).map_err(|e| Error::Internal(e.to_string()))
    }

    /// Bytes of the file that are taken.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.map.lock().bytes() - BLOCK_BYTES
    }

    /// Most bytes of the file.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Memory that it takes itself.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.map.lock().memory_bytes() + KEY_BYTES as u64
    }
}

fn record_len(stored: &Stored) -> u64 {
    (HEAD_BYTES + usize::from(stored.len)) as u64
}

fn nonce_of(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce.into()
}

/// What a record belongs to: it decrypts nowhere else.
fn bound_to(stored: &Stored) -> [u8; 18] {
    let mut bound = [0; 18];
    bound[..8].copy_from_slice(&stored.offset.to_le_bytes());
    bound[8..10].copy_from_slice(&stored.len.to_le_bytes());
    bound[10..].copy_from_slice(&stored.checksum.to_le_bytes());
    bound
}
