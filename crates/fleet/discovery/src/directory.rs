//! A directory with one file per agent.
//!
//! Records are replaced, not changed, so that nobody reads half of one; each carries its lease. Only
//! where there is no room for another file is a record written over itself. A record vouches for
//! its agent as long as it changes. An agent that leaves removes its record, but so may others
//! remove records or the whole directory by mistake: agents make them again.

use crate::look::{FileStamp, interval, stamp};
use crate::record::{AGENTS_MAX, RECORD_BYTES_MAX, decode, lease};
use crate::roster::{RecordResult, Sight, Sighting};
use crate::{DiscoveryError, Registry, Watch};
use stator_protos::discovery::AgentRecord;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind::NotFound, ErrorKind::QuotaExceeded, ErrorKind::StorageFull};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;
use tokio::time::Interval;

/// Blanks at the end of a record.
const SPARE: usize = 256;

/// One agent's file.
#[derive(Debug)]
pub(crate) struct DirectoryEntry {
    dir: PathBuf,
    lease: Duration,
    record: Option<AgentRecord>,
}

impl DirectoryEntry {
    /// An entry in `dir`, which is made where it is missing, for this user alone.
    pub(crate) fn new(dir: PathBuf, lease: Duration) -> Result<Self, DiscoveryError> {
        make(&dir).map_err(|error| {
            let dir = dir.display();
            DiscoveryError::Unconfigured(format!("cannot make the directory {dir}: {error}"))
        })?;
        Ok(Self { dir, lease, record: None })
    }
}

#[async_trait::async_trait]
impl Registry for DirectoryEntry {
    async fn previous(&mut self, agent_id: &str) -> Result<Option<AgentRecord>, DiscoveryError> {
        Ok(previous(&self.dir, agent_id))
    }

    async fn publish(&mut self, record: &AgentRecord) -> Result<(), DiscoveryError> {
        self.record = Some(record.clone());
        self.renew().await
    }

    async fn renew(&mut self) -> Result<(), DiscoveryError> {
        let Some(record) = &self.record else { return Ok(()) };
        let write = || write(&self.dir, record, self.lease, SystemTime::now());
        match write() {
            Err(error) if error.kind() == NotFound => {
                make(&self.dir)?;
                tracing::warn!(dir = %self.dir.display(), "made the discovery directory again");
                Ok(write()?)
            }
            written => Ok(written?),
        }
    }

    async fn withdraw(&mut self) -> Result<(), DiscoveryError> {
        let Some(record) = self.record.take() else { return Ok(()) };
        Ok(std::fs::remove_file(path(&self.dir, &record.agent_id))?)
    }
}

/// Makes a directory where it is missing, for this user alone.
fn make(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// The last record of this agent that lies in the directory, if any.
fn previous(dir: &Path, agent_id: &str) -> Option<AgentRecord> {
    serde_json::from_slice(&std::fs::read(path(dir, agent_id)).ok()?).ok()
}

/// Writes the record beside its place and moves it there.
fn write(dir: &Path, record: &AgentRecord, lease: Duration, now: SystemTime) -> io::Result<()> {
    let record = AgentRecord {
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        lease_expires_unix_ms: unix_ms(now + lease),
        ..record.clone()
    };
    let (place, mut text) = (path(dir, &record.agent_id), serde_json::to_vec_pretty(&record)?);
    // Blanks after a record say nothing; a longer one may have to take their room.
    text.resize(text.len() + SPARE, b' ');
    let temporary = dir.join(format!(".{}.tmp", record.agent_id));
    let moved = std::fs::write(&temporary, &text);
    let moved = moved.and_then(|()| std::fs::rename(&temporary, &place));
    match moved {
        // A full disk is no reason for a lease to end.
        Err(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
            write_over(&place, &text).map_err(|_| error)
        }
        moved => moved,
    }
}

/// A time in milliseconds since the Unix epoch.
fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Writes a record in the room of the one that is there, if it has as much.
fn write_over(place: &Path, text: &[u8]) -> io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(place)?;
    let room = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut text = text.trim_ascii_end().to_vec();
    if text.len() > room || room > RECORD_BYTES_MAX {
        return Err(StorageFull.into());
    }
    text.resize(room, b' ');
    file.write_all_at(&text, 0)
}

fn path(dir: &Path, agent_id: &str) -> PathBuf {
    dir.join(format!("{agent_id}.json"))
}

/// Looks into the directory at intervals.
pub(crate) struct DirectoryWatcher {
    poll: Interval,
    /// The directory, while nobody looks into it.
    idle: Directory,
    /// A look that has begun, and gives the directory back.
    look: Option<JoinHandle<(Directory, Sighting)>>,
}

impl DirectoryWatcher {
    pub(crate) fn new(path: PathBuf, poll: Duration) -> Self {
        Self { poll: interval(poll), idle: Directory::new(path), look: None }
    }

    /// Begins to look, on a thread that may wait for a slow file system.
    fn begin(&mut self) -> JoinHandle<(Directory, Sighting)> {
        let placeholder = Directory::new(self.idle.path.clone());
        let mut directory = std::mem::replace(&mut self.idle, placeholder);
        tokio::task::spawn_blocking(move || {
            let seen = directory.scan(SystemTime::now());
            (directory, seen)
        })
    }
}

#[async_trait::async_trait]
impl Watch for DirectoryWatcher {
    async fn next(&mut self) -> Sighting {
        if self.look.is_none() {
            self.poll.tick().await;
            self.look = Some(self.begin());
        }
        let look = self.look.as_mut().expect("it has just begun, or had before");
        let looked = look.await;
        self.look = None;
        match looked {
            Ok((directory, seen)) => {
                self.idle = directory;
                seen
            }
            Err(error) => {
                tracing::error!(%error, "looking for agents failed");
                Sighting { stale: true, ..Sighting::default() }
            }
        }
    }
}

/// The directory, and what its files said at the last look.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    files: BTreeMap<String, File>,
    /// Whether it has been looked through: from then on a file that is new was just written.
    looked: bool,
    sight: Sight,
}

/// A record's file.
#[derive(Debug)]
struct File {
    stamp: FileStamp,
    read: RecordResult,
    /// Whether it was old when it was first seen.
    left_over: bool,
}

impl Directory {
    fn new(path: PathBuf) -> Self {
        Self { path, files: BTreeMap::new(), looked: false, sight: Sight::default() }
    }

    /// Reads what is new.
    fn scan(&mut self, now: SystemTime) -> Sighting {
        let Ok(entries) = std::fs::read_dir(&self.path) else {
            return Sighting { stale: true, ..Sighting::default() };
        };
        let mut complete = true;
        let mut files = BTreeMap::new();
        for entry in entries {
            let Ok(entry) = entry else {
                // A listing that broke off says nothing of who left.
                complete = false;
                break;
            };
            let name = entry.file_name();
            let Some(agent) = name.to_str().and_then(agent_of) else { continue };
            let Ok(metadata) = entry.metadata() else { continue };
            if !metadata.is_file() || files.len() == AGENTS_MAX {
                continue;
            }
            let known = self.files.remove(agent);
            let known = known.filter(|known| known.stamp == stamp(&metadata));
            let file = known.unwrap_or_else(|| self.read(&entry.path(), agent, &metadata, now));
            files.insert(agent.to_owned(), file);
        }
        self.files = files;
        self.looked |= complete;
        let reads = self.files.iter().map(|(agent, file)| (agent.as_str(), &file.read));
        let doubted = self.files.iter().filter(|(_, file)| file.left_over);
        let doubted = doubted.map(|(agent, _)| agent.clone()).collect();
        Sighting { complete, stale: !complete, doubted, ..self.sight.of(reads) }
    }

    /// Reads a file. A file that was not written for a lease before the first look is doubted: its
    /// agent may be long dead. This compares two clocks of this machine, or its own and the file
    /// server's; if they differ, a live agent is only found by its next renewal.
    fn read(
        &self,
        path: &Path,
        agent: &str,
        metadata: &std::fs::Metadata,
        now: SystemTime,
    ) -> File {
        let read = read(path, agent, metadata.len());
        let age = metadata.modified().ok().and_then(|written| now.duration_since(written).ok());
        let is_old = |record: &Arc<AgentRecord>| age.is_some_and(|age| age >= lease(record));
        let left_over = !self.looked && read.as_ref().is_ok_and(is_old);
        File { stamp: stamp(metadata), read, left_over }
    }
}

/// The agent whose record a file is; `None` for files on their way and for anything else.
fn agent_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|agent| !agent.is_empty() && !agent.starts_with('.'))
}

fn read(path: &Path, agent: &str, size: u64) -> RecordResult {
    if size > RECORD_BYTES_MAX as u64 {
        return Err(format!("{size} bytes, limit {RECORD_BYTES_MAX}"));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    decode(&bytes, agent).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registration;
    use crate::record::sample as record;
    use crate::source::DiscoverySource;
    use stator_runtime::Shutdown;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::UNIX_EPOCH;
    use tokio::sync::watch;

    #[test]
    fn a_record_is_replaced_whole_and_carries_its_lease() {
        let dir = tempfile::tempdir().unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        write(dir.path(), &record("node-1", 0), Duration::from_secs(6), now).unwrap();
        let draining = AgentRecord { accepting: false, ..record("node-1", 0) };
        write(dir.path(), &draining, Duration::from_secs(6), now).unwrap();
        let expected = AgentRecord { lease_ms: 6000, lease_expires_unix_ms: 1_006_000, ..draining };
        assert_eq!(previous(dir.path(), "node-1"), Some(expected));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_record_takes_the_room_of_the_one_before_it_or_leaves_it_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (lease, now) = (Duration::from_secs(6), UNIX_EPOCH + Duration::from_secs(1000));
        write(dir.path(), &record("node-1", 0), lease, now).unwrap();
        let place = path(dir.path(), "node-1");
        let room = std::fs::metadata(&place).unwrap().len();
        for (accepting, lease_expires_unix_ms) in [(false, 2_000_000), (true, 3_000_000)] {
            let next = AgentRecord { accepting, lease_expires_unix_ms, ..record("node-1", 0) };
            write_over(&place, &serde_json::to_vec_pretty(&next).unwrap()).unwrap();
            assert_eq!(previous(dir.path(), "node-1"), Some(next));
            assert_eq!(std::fs::metadata(&place).unwrap().len(), room);
        }
        let kept = std::fs::read(&place).unwrap();
        let long = vec![b'x'; kept.len() + 1];
        assert_eq!(write_over(&place, &long).map_err(|error| error.kind()), Err(StorageFull));
        assert_eq!(std::fs::read(&place).unwrap(), kept);
        assert!(write_over(&path(dir.path(), "node-2"), b"{}").is_err(), "there is none yet");
    }

    #[tokio::test(start_paused = true)]
    async fn the_record_follows_changes_and_goes_with_the_agent() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        let (sender, receiver) = watch::channel(record("node-1", 0));
        let source = DiscoverySource::Directory(dir.clone());
        let registration = Registration::open(&source, Duration::from_secs(6)).await.unwrap();
        let mode = std::fs::metadata(&dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);

        let (trigger, stop) = Shutdown::new();
        let task = tokio::spawn(registration.run(receiver, stop));
        let accepting = |expected| {
            let dir = dir.clone();
            async move {
                while previous(&dir, "node-1").is_none_or(|r| r.accepting != expected) {
                    tokio::task::yield_now().await;
                }
            }
        };
        accepting(true).await;
        sender.send_modify(|record| record.accepting = false);
        accepting(false).await;
        trigger.set();
        task.await.unwrap();
        assert_eq!(previous(&dir, "node-1"), None);
    }

    #[test]
    fn a_directory_is_read_with_its_faults_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put("a.json", &serde_json::to_string(&record("a", 1)).unwrap());
        put("b.json", &serde_json::to_string(&record("a", 1)).unwrap());
        put("c.json", "{");
        put(".d.tmp", "half");
        put("notes.txt", "hello");
        let mut directory = Directory::new(dir.path().into());
        let seen = directory.scan(SystemTime::now());
        assert!(seen.complete && !seen.stale);
        assert_eq!(seen.records.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(seen.malformed, ["b".to_owned(), "c".to_owned()].into());
        assert_eq!(seen.newly_malformed.len(), 2);
        let again = directory.scan(SystemTime::now());
        assert_eq!((again.records.len(), again.malformed.len()), (1, 2));
        assert_eq!(again.newly_malformed, []);
        assert!(Arc::ptr_eq(&again.records["a"], &seen.records["a"]));

        let missing = Directory::new(dir.path().join("missing")).scan(UNIX_EPOCH);
        assert_eq!(missing, Sighting { stale: true, ..Sighting::default() });
    }

    #[test]
    fn a_file_that_was_old_at_the_first_look_is_doubted_until_it_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Duration::from_secs(6);
        let put = |agent: &str| write(dir.path(), &record(agent, 0), lease, SystemTime::now());
        put("a").unwrap();
        let (mut early, mut late) =
            (Directory::new(dir.path().into()), Directory::new(dir.path().into()));
        let in_time = early.scan(SystemTime::now() + lease / 2);
        assert_eq!((in_time.records.len(), in_time.doubted.len()), (1, 0));
        let much_later = SystemTime::now() + 10 * lease;
        let seen = late.scan(much_later);
        assert_eq!((seen.records.len(), seen.doubted), (1, ["a".to_owned()].into()));
        // What is written from now on is news, whatever a file server calls the hour.
        put("a").unwrap();
        put("b").unwrap();
        let seen = late.scan(much_later);
        assert_eq!((seen.records.len(), seen.doubted.len()), (2, 0));
    }

    #[tokio::test]
    async fn a_directory_that_was_removed_is_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        let mut entry = DirectoryEntry::new(dir.clone(), Duration::from_secs(6)).unwrap();
        entry.publish(&record("node-1", 0)).await.unwrap();
        std::fs::remove_dir_all(parent.path().join("a")).unwrap();
        entry.renew().await.unwrap();
        assert!(previous(&dir, "node-1").is_some());
        let mode = std::fs::metadata(&dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[tokio::test]
    async fn a_look_that_nobody_waits_for_any_more_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &record("a", 0), Duration::from_secs(6), UNIX_EPOCH).unwrap();
        let mut watcher = DirectoryWatcher::new(dir.path().into(), Duration::from_millis(1));
        let first = watcher.next().await;
        loop {
            tokio::select! {
                biased;
                again = watcher.next() => {
                    assert!(Arc::ptr_eq(&again.records["a"], &first.records["a"]));
                    break;
                }
                () = tokio::task::yield_now() => {}
            }
        }
    }
}
