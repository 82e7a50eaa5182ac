//! The discovery plane: watches a directory of agent records.
//!
//! Reading is separate from judging: [`Directory::scan`] reads what changed, [`Roster::update`] is
//! pure and decides who is there.

use serde::Deserialize as _;
use stator_protos::discovery::AgentRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Agents that are followed; the files of further ones are ignored.
pub(crate) const AGENTS_MAX: usize = 4096;
/// Largest record; one with 1024 workers has 130 KB.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// Most workers of one agent.
const WORKERS_MAX: usize = 65_536;

/// What a look into the directory found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scan {
    /// Whether the directory could be read. If not, nothing is known of who left.
    pub(crate) readable: bool,
    /// The records, by agent.
    pub(crate) records: BTreeMap<String, AgentRecord>,
    /// Agents whose files are there but cannot be understood.
    pub(crate) malformed: BTreeSet<String>,
    /// Of these, those that were not so at the last look, and what is wrong.
    pub(crate) newly_malformed: Vec<(String, String)>,
}

/// The directory, and what its files said at the last look.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    files: BTreeMap<String, (Stamp, Result<AgentRecord, String>)>,
}

/// Tells whether a file is the one that was read before: records are replaced, never changed.
type Stamp = (u64, u64, i64, i64);

impl Directory {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, files: BTreeMap::new() }
    }

    /// Reads what is new.
    pub(crate) fn scan(&mut self) -> Scan {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return Scan::default() };
        let mut scan = Scan { readable: true, ..Scan::default() };
        let mut files = BTreeMap::new();
        for entry in entries {
            let Ok(entry) = entry else {
                // A listing that broke off says nothing of who left.
                scan.readable = false;
                break;
            };
            let name = entry.file_name();
            let Some(agent) = name.to_str().and_then(agent_of) else { continue };
            let Ok(metadata) = entry.metadata() else { continue };
            if !metadata.is_file() || files.len() == AGENTS_MAX {
                continue;
            }
            let stamp = (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec());
            let known = self.files.remove(agent).filter(|(known, _)| *known == stamp);
            let (is_new, read) = match known {
                Some((_, read)) => (false, read),
                None => (true, read(&entry.path(), agent, metadata.size())),
            };
            match &read {
                Ok(record) => drop(scan.records.insert(agent.to_owned(), record.clone())),
                Err(fault) => {
                    scan.malformed.insert(agent.to_owned());
                    if is_new {
                        scan.newly_malformed.push((agent.to_owned(), fault.clone()));
                    }
                }
            }
            files.insert(agent.to_owned(), (stamp, read));
        }
        self.files = files;
        scan
    }
}

/// The agent whose record a file is; `None` for files on their way and for anything else.
fn agent_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|agent| !agent.is_empty() && !agent.starts_with('.'))
}

fn read(path: &Path, agent: &str, size: u64) -> Result<AgentRecord, String> {
    if size > RECORD_BYTES_MAX {
        return Err(format!("{size} bytes, limit {RECORD_BYTES_MAX}"));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut json = serde_json::Deserializer::from_slice(&bytes);
    let record = AgentRecord::deserialize(&mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    check(&record, agent)?;
    Ok(record)
}

fn check(record: &AgentRecord, agent: &str) -> Result<(), String> {
    let model = &record.model;
    if record.agent_id != agent {
        return Err(format!("agent_id: {:?} is not the file's name", record.agent_id));
    }
    if !(1..=65_536).contains(&model.block_size) {
        return Err(format!("model.block_size: {} is not in 1..=65536", model.block_size));
    }
    for (field, value) in
        [("context_length", model.context_length), ("vocab_size", model.vocab_size)]
    {
        if value == 0 {
            return Err(format!("model.{field}: 0 is below 1"));
        }
    }
    if record.workers.len() > WORKERS_MAX {
        return Err(format!("workers: {} entries, limit {WORKERS_MAX}", record.workers.len()));
    }
    Ok(())
}

/// A change of who is there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// An agent came, or its record says something new beside its lease.
    Up(AgentRecord),
    /// An agent left, or let its lease run out.
    Down(String),
}

/// The agents that are there.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    agents: BTreeMap<String, AgentRecord>,
}

impl Roster {
    /// Judges a scan at a time in milliseconds since the Unix epoch.
    ///
    /// An agent leaves when its file is gone from a directory that can be read, or when its lease
    /// has run out. A directory or file that cannot be read proves nothing before that.
    pub(crate) fn update(&mut self, scan: Scan, now_unix_ms: u64) -> Vec<Change> {
        let Scan { readable, records, malformed, .. } = scan;
        let mut changes = Vec::new();
        self.agents.retain(|agent, record| {
            if let Some(found) = records.get(agent) {
                record.lease_expires_unix_ms = found.lease_expires_unix_ms;
            }
            let gone = readable && !records.contains_key(agent) && !malformed.contains(agent);
            let stays = !gone && record.lease_expires_unix_ms > now_unix_ms;
            if !stays {
                changes.push(Change::Down(agent.clone()));
            }
            stays
        });
        for (agent, found) in records {
            if found.lease_expires_unix_ms > now_unix_ms && self.agents.get(&agent) != Some(&found)
            {
                self.agents.insert(agent, found.clone());
                changes.push(Change::Up(found));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::discovery::ModelRecord;

    fn record(agent: &str, lease: u64) -> AgentRecord {
        AgentRecord {
            agent_id: agent.into(),
            endpoint: "http://127.0.0.1:1".into(),
            events_endpoint: "tcp://127.0.0.1:2".into(),
            replay_endpoint: "tcp://127.0.0.1:3".into(),
            model: ModelRecord {
                name: "m".into(),
                context_length: 64,
                block_size: 16,
                vocab_size: 10,
            },
            workers: vec![],
            accepting: true,
            lease_expires_unix_ms: lease,
        }
    }

    fn found(records: &[AgentRecord]) -> Scan {
        let records = records.iter().map(|record| (record.agent_id.clone(), record.clone()));
        Scan { readable: true, records: records.collect(), ..Scan::default() }
    }

    fn down(agent: &str) -> Change {
        Change::Down(agent.into())
    }

    #[test]
    fn a_renewed_lease_is_no_change_and_another_word_is() {
        let mut roster = Roster::default();
        let first = record("a", 100);
        assert_eq!(roster.update(found(std::slice::from_ref(&first)), 0), [Change::Up(first)]);
        assert_eq!(roster.update(found(&[record("a", 200)]), 50), []);
        let draining = AgentRecord { accepting: false, ..record("a", 300) };
        assert_eq!(
            roster.update(found(std::slice::from_ref(&draining)), 150),
            [Change::Up(draining)]
        );
    }

    #[test]
    fn an_agent_leaves_with_its_file_or_its_lease() {
        let mut roster = Roster::default();
        roster.update(found(&[record("a", 100), record("b", 100)]), 0);
        assert_eq!(roster.update(found(&[record("a", 100)]), 1), [down("b")]);
        assert_eq!(roster.update(found(&[record("a", 100)]), 100), [down("a")]);
        assert_eq!(roster.update(found(&[record("a", 100)]), 101), []);
    }

    #[test]
    fn what_cannot_be_read_empties_nothing_before_leases_end() {
        let mut roster = Roster::default();
        roster.update(found(&[record("a", 100)]), 0);
        assert_eq!(roster.update(Scan::default(), 50), []);
        let malformed = Scan { malformed: ["a".into()].into(), ..found(&[]) };
        assert_eq!(roster.update(malformed.clone(), 60), []);
        assert_eq!(roster.update(malformed, 100), [down("a")]);
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
        let scan = directory.scan();
        assert_eq!(scan.records.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(scan.malformed, ["b".to_owned(), "c".to_owned()].into());
        assert_eq!(scan.newly_malformed.len(), 2);
        let again = directory.scan();
        assert_eq!((again.records.len(), again.malformed.len()), (1, 2));
        assert_eq!(again.newly_malformed, []);

        assert_eq!(Directory::new(dir.path().join("missing")).scan(), Scan::default());
    }

    #[test]
    fn absurd_records_are_refused() {
        let mut absurd = record("a", 1);
        absurd.model.block_size = 0;
        assert_eq!(check(&absurd, "a").unwrap_err(), "model.block_size: 0 is not in 1..=65536");
        assert_eq!(
            check(&record("a", 1), "b").unwrap_err(),
            "agent_id: \"a\" is not the file's name"
        );
    }
}
