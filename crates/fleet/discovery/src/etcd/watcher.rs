//! The agents below a prefix: lists them, watches for changes, and lists again after a gap. On any
//! failure its earlier reports stand.

use super::client::{EtcdClient, below};
use super::directory;
use super::wire::event::EventType;
use crate::known::KnownObjects;
use crate::record::decode_unleased;
use crate::roster::{RecordResult, Sight, Sighting};
use crate::source::EtcdSource;
use crate::{DiscoveryError, Watch};
use rand::Rng as _;
use stator_kube::Report;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Reports that may wait; the watch is held up beyond them.
const REPORTS_MAX: usize = 256;
/// Wait after a first failure, which doubles with each further one, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Follows a prefix.
pub(crate) struct EtcdWatcher {
    reports: mpsc::Receiver<Report<RecordResult>>,
    known: KnownObjects<RecordResult>,
    sight: Sight,
    _task: JoinSet<()>,
}

impl EtcdWatcher {
    pub(crate) async fn open(source: &EtcdSource) -> Result<Self, DiscoveryError> {
        let (sender, reports) = mpsc::channel(REPORTS_MAX);
        let client = EtcdClient::open(source).await?;
        let follower = Follower { client, prefix: directory(source), reports: sender };
        let mut task = JoinSet::new();
        task.spawn(follower.run());
        Ok(Self { reports, known: KnownObjects::default(), sight: Sight::default(), _task: task })
    }
}

#[async_trait::async_trait]
impl Watch for EtcdWatcher {
    async fn next(&mut self) -> Sighting {
        match self.reports.recv().await {
            Some(report) => self.known.apply(report),
            // The follower ends when this does, or when it fails.
            None => {
                tracing::error!("the watch of etcd has ended");
                std::future::pending().await
            }
        }
        while let Ok(report) = self.reports.try_recv() {
            self.known.apply(report);
        }
        let KnownObjects { objects, listed, lost } = &self.known;
        let seen = self.sight.of(objects.iter().map(|(agent, read)| (agent.as_str(), read)));
        Sighting { complete: *listed, stale: *lost, ..seen }
    }
}

/// Tells of a prefix until nobody listens.
struct Follower {
    client: EtcdClient,
    prefix: String,
    reports: mpsc::Sender<Report<RecordResult>>,
}

/// Why following ended.
enum End {
    /// Nobody listens any more.
    Unheard,
    /// Changes were missed, or the member gave up on the watch: the agents are to be listed anew.
    Gap(String),
    /// No member answers.
    Lost(DiscoveryError),
}

impl From<DiscoveryError> for End {
    fn from(error: DiscoveryError) -> Self {
        Self::Lost(error)
    }
}

/// A follower's record of its own success.
#[derive(Default)]
struct Health {
    lost: bool,
    /// Failures since the last progress.
    failures: u32,
}

impl Follower {
    async fn run(mut self) {
        let mut health = Health::default();
        loop {
            match self.follow(&mut health).await {
                Ok(()) | Err(End::Unheard) => return,
                Err(End::Gap(reason)) => tracing::debug!(reason, "listing agents anew"),
                Err(End::Lost(error)) => {
                    if !health.lost {
                        tracing::warn!(%error, "etcd lost, keeping what is known");
                        health.lost = true;
                        if self.send(Report::Lost).await.is_err() {
                            return;
                        }
                    }
                    self.client.turn();
                }
            }
            let doubled = BACKOFF.0.saturating_mul(1 << health.failures.min(16)).min(BACKOFF.1);
            health.failures = health.failures.saturating_add(1);
            // From half of it to all of it, so that not all come back in step.
            let share = rand::rng().random_range(0.5..1.0);
            sleep(doubled.mul_f64(share)).await;
        }
    }

    /// Lists and watches until something fails; `Ok` never comes.
    async fn follow(&mut self, health: &mut Health) -> Result<(), End> {
        let (entries, revision) = self.client.list(&self.prefix).await?;
        // From the revision after the list, so that no change between the two is lost.
        let mut changes = self.client.watch(&self.prefix, revision + 1).await?;
        if std::mem::take(&mut health.lost) {
            tracing::info!("etcd is back");
            self.send(Report::Found).await?;
        }
        let agents = entries.into_iter().map(|(agent, value)| {
            let read = read(&agent, &value);
            (agent, read)
        });
        self.send(Report::Listed(agents.collect())).await?;
        loop {
            let answer = match changes.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err(lost("the watch has ended")),
                Err(status) => return Err(lost(status.message())),
            };
            if answer.canceled || answer.compact_revision != 0 {
                return Err(End::Gap(answer.cancel_reason));
            }
            health.failures = 0;
            for event in answer.events {
                let is_put = event.r#type() == EventType::Put;
                let Some(entry) = event.kv else { continue };
                if let Some(agent) = below(&self.prefix, &entry.key) {
                    let read = is_put.then(|| read(&agent, &entry.value));
                    self.send(Report::Set(agent, read)).await?;
                }
            }
        }
    }

    async fn send(&self, report: Report<RecordResult>) -> Result<(), End> {
        self.reports.send(report).await.map_err(|_| End::Unheard)
    }
}

fn lost(reason: &str) -> End {
    End::Lost(DiscoveryError::Unreachable(format!("etcd: {reason}")))
}

fn read(agent: &str, value: &[u8]) -> RecordResult {
    decode_unleased(value, agent).map(Arc::new)
}
