//! The directory of a form: its lock, its header and its segments' files.

use super::device::Device;
use super::format::{Geometry, HEADER_BYTES, Header, HeaderRead, HeaderSeal, VERSION};
use super::system;
use crate::BlockForm;
use crate::cipher::{KvCipher, KvKey};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, fchmod, flock, open, openat, unlinkat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOCK: &str = "lock";
const HEADER: &str = "header";
const PROBE: &str = "probe";
const SEGMENT: &str = "segment-";
const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);
const PRIVATE_FOLDER: Mode = Mode::from_raw_mode(0o700);

/// Why a disk tier cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings make no tier.
    #[error("{0}")]
    Settings(String),
    /// Another process has the directory.
    #[error("the disk tier in {} is in use by another agent ({holder})", dir.display())]
    InUse {
        /// The directory of the form.
        dir: PathBuf,
        /// The holder, as the lock file says.
        holder: String,
    },
    /// The directory is not ours, and is left alone.
    #[error("{} is left alone: {what}; move it away or choose another directory", dir.display())]
    Foreign {
        /// The directory of the form.
        dir: PathBuf,
        /// Contents of the directory.
        what: String,
    },
    /// The key is missing, or another one, or one too many.
    #[error("kv-key-file: the disk tier in {} {what}", dir.display())]
    Key {
        /// The directory of the form.
        dir: PathBuf,
        /// The fault, in words.
        what: &'static str,
    },
    /// The system refused.
    #[error("the disk tier in {}: {error}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
}

/// Wishes of whoever opens a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct FolderWish<'k> {
    /// Sizes of segments of a new directory.
    pub(super) geometry: Geometry,
    /// Bytes that the segments may have.
    pub(super) bytes: u64,
    /// The key, if the directory is to be encrypted.
    pub(super) key: Option<&'k KvKey>,
}

/// An open directory, which no other process has.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    handle: File,
    /// Held for as long as the folder is open.
    _lock: File,
    header_file: File,
    header: Header,
    cipher: Option<KvCipher>,
    /// Segments that may be on disk.
    segments_max: u32,
    is_direct: bool,
}

impl Folder {
    /// Opens or makes the directory of a form in `base`. A directory that was made with other
    /// segments keeps them if at least two of them fit into `bytes`; else it starts empty.
    pub(super) fn open(
        base: &Path,
        form: BlockForm,
        wanted: FolderWish<'_>,
    ) -> Result<Self, OpenError> {
        let FolderWish { geometry, bytes, key } = wanted;
        let dir = base.join(folder_name(&form));
        let fail = |error: io::Error| OpenError::Io { dir: dir.clone(), error };
        fs::create_dir_all(base).map_err(fail)?;
        log_others(base, &dir);
        let handle = open_private(&dir).map_err(fail)?;
        let lock = lock(&handle, &dir)?;
        let header_file = open_file(&handle, HEADER, OFlags::CREATE).map_err(fail)?;
        let mut read = vec![0; HEADER_BYTES];
        let has_header = header_file.read_exact_at(&mut read, 0).is_ok();
        let found = if has_header { Header::decode(&read) } else { HeaderRead::Damaged };
        let old = known_header(found, &form)
            .map_err(|what| OpenError::Foreign { dir: dir.clone(), what })?;
        // Also where no segment would be kept: whoever gave a wrong key does not want that.
        let known_key = old.map_or(Ok(None), |old| known_key(&old, key));
        let known_key = known_key.map_err(|what| OpenError::Key { dir: dir.clone(), what })?;
        let kept = old.filter(|old| fits(old, bytes, geometry));
        let (seal, fresh_cipher) = key.map(new_key).unzip();
        let segment_slots = geometry.segment_slots;
        let fresh = Header { form, segment_slots, first_epoch: 1, seal };
        let header = kept.unwrap_or(fresh);
        let cipher = kept.map_or(fresh_cipher, |_| known_key);
        let segments_max =
            u32::try_from(bytes / header.geometry().segment_bytes()).unwrap_or(u32::MAX);
        let mut folder = Self {
            dir: dir.clone(),
            handle,
            _lock: lock,
            header_file,
            header,
            cipher,
            segments_max,
            is_direct: false,
        };
        if kept.is_none() {
            folder.start_empty(old.is_some() || has_header).map_err(fail)?;
        }
        folder.is_direct = folder.probe_direct();
        Ok(folder)
    }

    /// The directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cipher of an encrypted directory.
    pub(super) fn cipher(&self) -> Option<KvCipher> {
        self.cipher.clone()
    }

    /// Sizes of the segments.
    pub(super) fn geometry(&self) -> Geometry {
        self.header.geometry()
    }

    /// Segments that may be on disk.
    pub(super) fn segments_max(&self) -> u32 {
        self.segments_max
    }

    /// The first epoch whose blocks count.
    pub(super) fn first_epoch(&self) -> u64 {
        self.header.first_epoch
    }

    /// Whether files are read and written past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Acts as on a file system without direct I/O.
    #[cfg(test)]
    pub(super) fn use_page_cache(&mut self) {
        self.is_direct = false;
    }

    /// Blocks before `epoch` no longer count, also after a restart.
    ///
    /// The header is written in place: a full disk has room for it, and a torn header makes the
    /// directory start empty, which is what is wanted.
    pub(super) fn set_first_epoch(&mut self, epoch: u64) -> io::Result<()> {
        self.header.first_epoch = epoch;
        self.write_header()
    }

    /// The files of the segments that exist, by number. Files behind the last one that may exist
    /// are removed.
    pub(super) fn existing(&self, device: &mut dyn Device) -> io::Result<Vec<Arc<File>>> {
        let mut count = 0;
        for number in self.segment_numbers()? {
            if number < self.segments_max {
                count = count.max(number + 1);
            } else {
                unlinkat(&self.handle, segment_name(number), AtFlags::empty())?;
            }
        }
        // A gap is filled with an empty file. Where that fails, the segments end.
        let opened = (0..count).map_while(|number| match self.segment(number, device) {
            Ok(file) => Some(file),
            Err(error) => {
                tracing::warn!(%error, number, dir = %self.dir.display(), "a disk segment is lost");
                None
            }
        });
        Ok(opened.collect())
    }

    /// Opens a segment's file, makes it if there is none, and gives it all its room.
    pub(super) fn segment(&self, number: u32, device: &mut dyn Device) -> io::Result<Arc<File>> {
        let name = segment_name(number);
        let direct = if self.is_direct { system::direct_flag() } else { OFlags::empty() };
        let file = open_file(&self.handle, &name, OFlags::CREATE | direct)?;
        let (has, wants) = (file.metadata()?.len(), self.geometry().segment_bytes());
        if has != wants
            && let Err(error) = device.allocate(&file, wants)
        {
            // What a full disk gave so far is given back. A file with blocks stays.
            if has == 0 {
                unlinkat(&self.handle, &name, AtFlags::empty())?;
            }
            return Err(error);
        }
        Ok(Arc::new(file))
    }

    fn start_empty(&mut self, had_header: bool) -> io::Result<()> {
        let numbers = self.segment_numbers()?;
        if had_header || !numbers.is_empty() {
            let dir = self.dir.display();
            tracing::warn!(%dir, segments = numbers.len(), "the disk tier starts empty: its header is damaged, or of segments that no longer fit");
        }
        for number in numbers {
            unlinkat(&self.handle, segment_name(number), AtFlags::empty())?;
        }
        self.write_header()
    }

    fn write_header(&self) -> io::Result<()> {
        self.header_file.write_all_at(&self.header.encode(), 0)?;
        self.header_file.sync_data()
    }

    fn segment_numbers(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(SEGMENT));
            numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
        }
        Ok(numbers)
    }

    /// Whether the file system reads and writes past the page cache, in pages of ours.
    fn probe_direct(&self) -> bool {
        let probed = open_file(&self.handle, PROBE, OFlags::CREATE | system::direct_flag())
            .and_then(|file| system::check_direct(&file));
        // It may be there already, and a probe that stays does no harm.
        let _ = unlinkat(&self.handle, PROBE, AtFlags::empty());
        if let Err(error) = &probed {
            let dir = self.dir.display();
            tracing::warn!(%dir, %error, "the disk tier goes through the page cache: no direct I/O here");
        }
        probed.is_ok()
    }
}

/// The name of a form's directory, which other forms and versions do not have.
pub(super) fn folder_name(form: &BlockForm) -> String {
    let hex: String = form.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("v{VERSION}-{hex}")
}

fn segment_name(number: u32) -> String {
    format!("{SEGMENT}{number:05}")
}

/// The header, if the directory has one of this form. `Err` says what else the directory is.
fn known_header(found: HeaderRead, form: &BlockForm) -> Result<Option<Header>, String> {
    match found {
        HeaderRead::Damaged => Ok(None),
        HeaderRead::Foreign => Err("its header is not that of a disk tier".into()),
        HeaderRead::OtherVersion(version) => {
            Err(format!("it has version {version} of the format, this agent has {VERSION}"))
        }
        HeaderRead::Whole(header) if header.form == *form => Ok(Some(header)),
        HeaderRead::Whole(Header { form: other, .. }) => Err(format!(
            "it holds another form of KV (blocks of {} bytes instead of {})",
            other.block_bytes, form.block_bytes
        )),
    }
}

/// The cipher of a directory that exists. `Err` says why the key is not the directory's.
fn known_key(header: &Header, key: Option<&KvKey>) -> Result<Option<KvCipher>, &'static str> {
    match (header.seal, key) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err("is not encrypted; clear it, choose another directory, or give no key")
        }
        (Some(_), None) => Err("is encrypted, and there is no key"),
        (Some(HeaderSeal { salt, check }), Some(key)) => {
            let cipher = KvCipher::new(key, &salt);
            let is_own = cipher.check() == check;
            is_own.then_some(Some(cipher)).ok_or("is encrypted with another key")
        }
    }
}

/// The cipher of a new directory, and what its header says of it.
fn new_key(key: &KvKey) -> (HeaderSeal, KvCipher) {
    let salt = rand::random();
    let cipher = KvCipher::new(key, &salt);
    (HeaderSeal { salt, check: cipher.check() }, cipher)
}

fn fits(old: &Header, bytes: u64, wanted: Geometry) -> bool {
    old.geometry() == wanted || bytes / old.geometry().segment_bytes() >= 2
}

/// Names the directories in `base` that this tier does not use, so that nobody wonders about them.
fn log_others(base: &Path, ours: &Path) {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    for other in entries.map(|entry| entry.path()).filter(|path| path != ours && path.is_dir()) {
        let other = other.display();
        tracing::info!(%other, "left alone: KV of another form or version, or something else");
    }
}

/// Opens a directory that only we can enter, and makes it if need be.
fn open_private(dir: &Path) -> io::Result<File> {
    match rustix::fs::mkdir(dir, PRIVATE_FOLDER) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let handle = File::from(open(dir, flags, Mode::empty())?);
    fchmod(&handle, PRIVATE_FOLDER)?;
    Ok(handle)
}

fn open_file(folder: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(folder, name, flags, PRIVATE_FILE)?))
}

fn lock(handle: &File, dir: &Path) -> Result<File, OpenError> {
    let fail = |error| OpenError::Io { dir: dir.into(), error };
    let file = open_file(handle, LOCK, OFlags::CREATE).map_err(fail)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut holder = [0; 64];
            let bytes = file.read_at(&mut holder, 0).unwrap_or(0);
            let holder = String::from_utf8_lossy(&holder[..bytes]).trim().to_owned();
            return Err(OpenError::InUse { dir: dir.into(), holder });
        }
        Err(error) => return Err(fail(error.into())),
    }
    let holder = format!("process {}\n", std::process::id());
    file.set_len(0).and_then(|()| file.write_all_at(holder.as_bytes(), 0)).map_err(fail)?;
    Ok(file)
}
