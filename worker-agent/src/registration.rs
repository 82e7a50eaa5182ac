//! Registration: keeps the agent's discovery record on disk, renewed while the agent lives.

use stator_protos::discovery::AgentRecord;
use stator_runtime::Shutdown;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Renewals per lease.
const RENEWALS: u32 = 3;

/// The agent's entry in the discovery directory.
#[derive(Debug)]
pub(crate) struct Registration {
    dir: PathBuf,
    lease: Duration,
    record: watch::Receiver<AgentRecord>,
}

impl Registration {
    /// An entry in `dir`, which is made where it is missing, for this user alone.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made.
    pub(crate) fn new(
        dir: PathBuf,
        lease: Duration,
        record: watch::Receiver<AgentRecord>,
    ) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir, lease, record })
    }

    /// Writes the record now and at every change and renewal until `stop`, then removes it.
    ///
    /// A write that fails is logged and tried again at the next renewal: the agent serves on.
    pub(crate) async fn run(mut self, stop: Shutdown) {
        let mut renewal = tokio::time::interval(self.lease / RENEWALS);
        renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut changing = true;
        loop {
            tokio::select! {
                _ = renewal.tick() => {}
                changed = self.record.changed(), if changing => changing = changed.is_ok(),
                () = stop.wait() => break,
            }
            let record = self.record.borrow_and_update().clone();
            if let Err(error) = write(&self.dir, record, self.lease, SystemTime::now()) {
                tracing::error!(%error, dir = %self.dir.display(), "cannot write the registration");
            }
        }
        let path = path(&self.dir, &self.record.borrow().agent_id);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove the registration");
        }
    }
}

/// The last record of this agent that lies in the directory, if any.
pub(crate) fn previous(dir: &Path, agent_id: &str) -> Option<AgentRecord> {
    serde_json::from_slice(&std::fs::read(path(dir, agent_id)).ok()?).ok()
}

/// Writes the record beside its place and moves it there, so that nobody reads half of it.
fn write(dir: &Path, mut record: AgentRecord, lease: Duration, now: SystemTime) -> io::Result<()> {
    let expires = now.duration_since(UNIX_EPOCH).unwrap_or_default() + lease;
    record.lease_expires_unix_ms = u64::try_from(expires.as_millis()).unwrap_or(u64::MAX);
    let temporary = dir.join(format!(".{}.tmp", record.agent_id));
    std::fs::write(&temporary, serde_json::to_vec_pretty(&record)?)?;
    std::fs::rename(&temporary, path(dir, &record.agent_id))
}

fn path(dir: &Path, agent_id: &str) -> PathBuf {
    dir.join(format!("{agent_id}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::discovery::ModelRecord;
    use std::os::unix::fs::PermissionsExt;

    fn record() -> AgentRecord {
        AgentRecord {
            agent_id: "node-1".into(),
            endpoint: "http://127.0.0.1:7000".into(),
            events_endpoint: "tcp://127.0.0.1:5557".into(),
            replay_endpoint: "tcp://127.0.0.1:5558".into(),
            model: ModelRecord {
                name: "m".into(),
                context_length: 64,
                block_size: 16,
                vocab_size: 10,
            },
            workers: vec![],
            accepting: true,
            lease_expires_unix_ms: 0,
        }
    }

    #[test]
    fn a_record_is_replaced_whole_and_carries_its_lease() {
        let dir = tempfile::tempdir().unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        write(dir.path(), record(), Duration::from_secs(6), now).unwrap();
        let draining = AgentRecord { accepting: false, ..record() };
        write(dir.path(), draining.clone(), Duration::from_secs(6), now).unwrap();
        let expected = AgentRecord { lease_expires_unix_ms: 1_006_000, ..draining };
        assert_eq!(previous(dir.path(), "node-1"), Some(expected));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_record_follows_changes_and_goes_with_the_agent() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        let (sender, receiver) = watch::channel(record());
        let lease = Duration::from_secs(6);
        let registration = Registration::new(dir.clone(), lease, receiver).unwrap();
        let mode = std::fs::metadata(&dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);

        let (trigger, stop) = Shutdown::new();
        let task = tokio::spawn(registration.run(stop));
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
}
