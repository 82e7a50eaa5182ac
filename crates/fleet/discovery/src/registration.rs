//! Registration: keeps an agent's record known while the agent lives.

use crate::source::DiscoverySource;
use crate::{DiscoveryError, Registry, directory, etcd, kubernetes, list};
use stator_protos::discovery::AgentRecord;
use stator_runtime::Shutdown;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// Renewals per lease.
const RENEWALS: u32 = 3;
/// Longest wait before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time for one attempt.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Longest time to learn of a former life, and to take the record away: neither holds up the agent
/// much where the back-end is away.
const COURTESY: Duration = Duration::from_secs(3);

/// An agent's entry in a back-end.
pub struct Registration {
    registry: Box<dyn Registry>,
    lease: Duration,
}

impl Registration {
    /// Prepares an entry in a back-end, whose leases last `lease`.
    ///
    /// # Errors
    ///
    /// When the back-end is not configured as it should be, or a directory cannot be made. One
    /// that is out of reach is waited for while the agent serves.
    pub async fn open(source: &DiscoverySource, lease: Duration) -> Result<Self, DiscoveryError> {
        let registry: Box<dyn Registry> = match source {
            DiscoverySource::Directory(path) => return Self::in_directory(path.clone(), lease),
            DiscoverySource::Static(_) => Box::new(list::Nowhere),
            DiscoverySource::Kubernetes(source) => {
                Box::new(kubernetes::KubernetesEntry::open(source).await?)
            }
            DiscoverySource::Etcd(source) => Box::new(etcd::EtcdEntry::open(source, lease).await?),
        };
        Ok(Self { registry, lease })
    }

    /// Prepares an entry in a directory, which is made where it is missing, for this user alone.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made.
    fn in_directory(dir: PathBuf, lease: Duration) -> Result<Self, DiscoveryError> {
        Ok(Self { registry: Box::new(directory::DirectoryEntry::new(dir, lease)?), lease })
    }

    /// The last record of this agent that is there. `None` as well when nobody answers in time.
    pub async fn previous(&mut self, agent_id: &str) -> Option<AgentRecord> {
        match bounded(COURTESY, self.registry.previous(agent_id)).await {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(%error, agent = agent_id, "cannot look for a former registration");
                None
            }
        }
    }

    /// Makes the record known now and at every change, and renews it, until `stop`; then takes it
    /// away.
    ///
    /// What fails is logged and tried again soon: the agent serves on.
    pub async fn run(mut self, mut record: watch::Receiver<AgentRecord>, stop: Shutdown) {
        let mut changing = true;
        let mut published = false;
        let mut failing = false;
        record.mark_changed();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = stop.wait() => break,
                changed = record.changed(), if changing => match changed {
                    Ok(()) => published = false,
                    Err(_) => changing = false,
                },
                () = sleep_until(next) => {}
            }
            let wanted = record.borrow_and_update().clone();
            let attempt = async {
                match published {
                    false => self.registry.publish(&wanted).await,
                    true => self.registry.renew().await,
                }
            };
            // Not cut off by `stop`: an attempt that half succeeded could not be taken away.
            let result = bounded(ATTEMPT, attempt).await;
            published |= result.is_ok();
            next = Instant::now() + self.pause(result.is_err());
            failing = told(result, failing);
        }
        if let Err(error) = bounded(COURTESY, self.registry.withdraw()).await {
            tracing::warn!(%error, "cannot remove the registration");
        }
    }

    fn pause(&self, failed: bool) -> Duration {
        let renewal = self.lease / RENEWALS;
        if failed { renewal.min(RETRY) } else { renewal }
    }
}

/// Logs where trouble begins and ends; returns whether there is some.
fn told(result: Result<(), DiscoveryError>, was_failing: bool) -> bool {
    match (&result, was_failing) {
        (Err(error), false) => tracing::error!(%error, "cannot register"),
        (Err(error), true) => tracing::debug!(%error, "still cannot register"),
        (Ok(()), true) => tracing::info!("registered again"),
        (Ok(()), false) => {}
    }
    result.is_err()
}

async fn bounded<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, DiscoveryError>>,
) -> Result<T, DiscoveryError> {
    let slow = |_| Err(DiscoveryError::Unreachable(format!("no answer within {limit:?}")));
    timeout(limit, attempt).await.unwrap_or_else(slow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Requests to a registry, which fails as often as it is told to.
    #[derive(Clone, Default)]
    struct Scripted {
        calls: Arc<Mutex<Vec<String>>>,
        failures: Arc<Mutex<usize>>,
    }

    impl Scripted {
        fn call(&self, call: &str) -> Result<(), DiscoveryError> {
            self.calls.lock().push(call.into());
            let mut failures = self.failures.lock();
            if *failures == 0 {
                return Ok(());
            }
            *failures -= 1;
            Err(DiscoveryError::Unreachable("by the test".into()))
        }

        async fn until(&self, expected: &[&str]) {
            while *self.calls.lock() != expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(self.calls.lock().len() <= expected.len(), "{:?}", self.calls.lock());
            }
        }
    }

    #[async_trait::async_trait]
    impl Registry for Scripted {
        async fn previous(&mut self, _: &str) -> Result<Option<AgentRecord>, DiscoveryError> {
            std::future::pending().await
        }
        async fn publish(&mut self, record: &AgentRecord) -> Result<(), DiscoveryError> {
            self.call(if record.accepting { "publish" } else { "publish draining" })
        }
        async fn renew(&mut self) -> Result<(), DiscoveryError> {
            self.call("renew")
        }
        async fn withdraw(&mut self) -> Result<(), DiscoveryError> {
            self.call("withdraw")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_published_renewed_changed_and_withdrawn() {
        let scripted = Scripted::default();
        *scripted.failures.lock() = 2;
        let lease = Duration::from_secs(6);
        let mut registration = Registration { registry: Box::new(scripted.clone()), lease };
        assert_eq!(registration.previous("a").await, None);
        let (sender, receiver) = watch::channel(sample("a", 0));
        let (trigger, stop) = Shutdown::new();
        let begun = Instant::now();
        let task = tokio::spawn(registration.run(receiver, stop));
        scripted.until(&["publish", "publish", "publish", "renew"]).await;
        // Two failures cost a second each, and a third of the lease passes before it is renewed.
        assert_eq!(begun.elapsed().as_secs(), 4);
        sender.send_modify(|record| record.accepting = false);
        let mut expected = vec!["publish", "publish", "publish", "renew", "publish draining"];
        scripted.until(&expected).await;
        // At once, and not when it is renewed next.
        assert_eq!(begun.elapsed().as_secs(), 4);
        trigger.set();
        task.await.unwrap();
        expected.push("withdraw");
        scripted.until(&expected).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_must_be_renewed_is_not_published_when_that_fails() {
        let scripted = Scripted::default();
        let lease = Duration::from_secs(6);
        let registration = Registration { registry: Box::new(scripted.clone()), lease };
        let (_sender, receiver) = watch::channel(sample("a", 0));
        let (_trigger, stop) = Shutdown::new();
        let _task = tokio::spawn(registration.run(receiver, stop));
        scripted.until(&["publish"]).await;
        *scripted.failures.lock() = 1;
        scripted.until(&["publish", "renew", "renew"]).await;
    }
}
