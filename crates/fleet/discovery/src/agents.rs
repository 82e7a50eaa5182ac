//! Follows the agents of a back-end.

use crate::metrics::DiscoveryMetrics;
use crate::roster::{AgentChange, Roster};
use crate::source::DiscoverySource;
use crate::{DiscoveryError, Watch, directory, etcd, kubernetes, list};
use stator_runtime::dial::Dial;
use std::time::Duration;
use tokio::time::Instant;

/// The agents of a back-end, followed from now on.
pub struct Agents {
    watch: Box<dyn Watch>,
    roster: Roster,
    /// The start of following, from which the roster counts.
    start: Instant,
    metrics: DiscoveryMetrics,
}

/// News of agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// Agents that came, changed or left.
    pub changes: Vec<AgentChange>,
    /// Agents whose records have become unreadable, and why; each fault is told once.
    pub malformed: Vec<(String, String)>,
    /// Whether everything was seen: the back-end is in reach, and whoever it names has said who it
    /// is.
    pub looked: bool,
}

impl Agents {
    /// Begins to follow. Files are looked at every `poll`; others tell by themselves. The agents of
    /// a list are asked by `dial`.
    ///
    /// # Errors
    ///
    /// When the back-end is not configured as it should be. One that is out of reach is waited
    /// for.
    pub async fn follow(
        source: &DiscoverySource,
        poll: Duration,
        dial: &Dial,
        metrics: DiscoveryMetrics,
    ) -> Result<Self, DiscoveryError> {
        let watch: Box<dyn Watch> = match source {
            DiscoverySource::Directory(path) => {
                Box::new(directory::DirectoryWatcher::new(path.clone(), poll))
            }
            DiscoverySource::Static(path) => {
                Box::new(list::ListWatcher::new(path.clone(), poll, dial.clone()))
            }
            DiscoverySource::Kubernetes(source) => {
                Box::new(kubernetes::KubernetesWatcher::open(source).await?)
            }
            DiscoverySource::Etcd(source) => Box::new(etcd::EtcdWatcher::open(source).await?),
        };
        Ok(Self { watch, roster: Roster::default(), start: Instant::now(), metrics })
    }

    /// Changes, as soon as there may be some; an empty update is a look that found nothing new.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Update {
        let seen = self.watch.next().await;
        self.metrics.set_out_of_reach(seen.stale);
        let changes = self.roster.update(&seen, self.start.elapsed());
        let looked = seen.complete && !seen.stale && !seen.pending;
        Update { changes, malformed: seen.newly_malformed, looked }
    }
}
