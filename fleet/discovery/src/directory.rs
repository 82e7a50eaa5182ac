//! A directory with one file per agent.
//!
//! Records are replaced, not changed, so that nobody reads half of one; each carries its lease. Only
//! where there is no room for another file is a record written over itself.

use crate::agents::unix_ms;
use crate::record::{AGENTS_MAX, RECORD_BYTES_MAX, decode};
use crate::roster::{Read, Sight, Sighting};
use crate::{DiscoveryError, Registry, Watch};
use stator_protos::discovery::AgentRecord;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind::QuotaExceeded, ErrorKind::StorageFull};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Interval, MissedTickBehavior};

/// Blanks at the end of a record.
const SPARE: usize = 256;

/// One agent's file.
#[derive(Debug)]
pub(crate) struct Entry {
    dir: PathBuf,
    lease: Duration,
    record: Option<AgentRecord>,
}

impl Entry {
    /// An entry in `dir`, which is made where it is missing, for this user alone.
    pub(crate) fn new(dir: PathBuf, lease: Duration) -> Result<Self, DiscoveryError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|error| {
            let dir = dir.display();
            DiscoveryError::Unconfigured(format!("cannot make the directory {dir}: {error}"))
        })?;
        Ok(Self { dir, lease, record: None })
    }
}

#[async_trait::async_trait]
impl Registry for Entry {
    async fn previous(&mut self, agent_id: &str) -> Result<Option<AgentRecord>, DiscoveryError> {
        Ok(previous(&self.dir, agent_id))
    }

    async fn publish(&mut self, record: &AgentRecord) -> Result<(), DiscoveryError> {
        self.record = Some(record.clone());
        self.renew().await
    }

    async fn renew(&mut self) -> Result<(), DiscoveryError> {
        let Some(record) = &self.record else { return Ok(()) };
        Ok(write(&self.dir, record, self.lease, SystemTime::now())?)
    }

    async fn withdraw(&mut self) -> Result<(), DiscoveryError> {
        let Some(record) = self.record.take() else { return Ok(()) };
        Ok(std::fs::remove_file(path(&self.dir, &record.agent_id))?)
    }
}

/// The last record of this agent that lies in the directory, if any.
fn previous(dir: &Path, agent_id: &str) -> Option<AgentRecord> {
    serde_json::from_slice(&std::fs::read(path(dir, agent_id)).ok()?).ok()
}

/// Writes the record beside its place and moves it there.
fn write(dir: &Path, record: &AgentRecord, lease: Duration, now: SystemTime) -> io::Result<()> {
    let record = AgentRecord { lease_expires_unix_ms: unix_ms(now + lease), ..record.clone() };
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
pub(crate) struct Watcher {
    directory: Directory,
    poll: Interval,
}

impl Watcher {
    pub(crate) fn new(path: PathBuf, poll: Duration) -> Self {
        Self { directory: Directory::new(path), poll: interval(poll) }
    }
}

/// Looks at a regular pace, and later where one took long.
pub(crate) fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

#[async_trait::async_trait]
impl Watch for Watcher {
    async fn next(&mut self) -> Sighting {
        self.poll.tick().await;
        let empty = Directory::new(self.directory.path.clone());
        let mut directory = std::mem::replace(&mut self.directory, empty);
        let scanning = tokio::task::spawn_blocking(move || {
            let seen = directory.scan();
            (directory, seen)
        });
        match scanning.await {
            Ok((directory, seen)) => {
                self.directory = directory;
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
    files: BTreeMap<String, (Stamp, Read)>,
    sight: Sight,
}

/// Tells whether a file is the one that was read before.
pub(crate) type Stamp = (u64, u64, i64, i64);

/// The stamp of a file.
pub(crate) fn stamp(metadata: &std::fs::Metadata) -> Stamp {
    (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec())
}

impl Directory {
    fn new(path: PathBuf) -> Self {
        Self { path, files: BTreeMap::new(), sight: Sight::default() }
    }

    /// Reads what is new.
    fn scan(&mut self) -> Sighting {
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
            let stamp = stamp(&metadata);
            let known = self.files.remove(agent).filter(|(known, _)| *known == stamp);
            let read = match known {
                Some((_, read)) => read,
                None => read(&entry.path(), agent, metadata.size()),
            };
            files.insert(agent.to_owned(), (stamp, read));
        }
        self.files = files;
        let reads = self.files.iter().map(|(agent, (_, read))| (agent.as_str(), read));
        Sighting { complete, stale: !complete, ..self.sight.of(reads) }
    }
}

/// The agent whose record a file is; `None` for files on their way and for anything else.
fn agent_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|agent| !agent.is_empty() && !agent.starts_with('.'))
}

fn read(path: &Path, agent: &str, size: u64) -> Read {
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
    use crate::source::Source;
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
        let expected = AgentRecord { lease_expires_unix_ms: 1_006_000, ..draining };
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
        let source = Source::Directory(dir.clone());
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
        let seen = directory.scan();
        assert!(seen.complete && !seen.stale);
        assert_eq!(seen.records.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(seen.malformed, ["b".to_owned(), "c".to_owned()].into());
        assert_eq!(seen.newly_malformed.len(), 2);
        let again = directory.scan();
        assert_eq!((again.records.len(), again.malformed.len()), (1, 2));
        assert_eq!(again.newly_malformed, []);
        assert!(Arc::ptr_eq(&again.records["a"], &seen.records["a"]));

        let missing = Directory::new(dir.path().join("missing")).scan();
        assert_eq!(missing, Sighting { stale: true, ..Sighting::default() });
    }
}
