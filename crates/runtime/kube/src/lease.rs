//! Leader election: of several processes, the one that holds a lease leads.
//!
//! Source: the protocol of Kubernetes' own leader election. A holder renews the lease well before
//! it runs out; others take it when it has not changed for its whole duration by their own
//! clocks, so that clocks that disagree do no harm.

use crate::{Api, ApiError, Cluster, LEASES};
use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// A candidate for one lease.
pub struct Elector {
    api: Api,
    namespace: String,
    name: String,
    identity: String,
    pace: ElectionPace,
}

/// Timing of an election.
#[derive(Clone, Copy, Debug)]
pub struct ElectionPace {
    /// Time for which a lease is valid without being renewed.
    pub duration: Duration,
    /// Time without a renewal after which a leader stops leading; below `duration`.
    pub renew_deadline: Duration,
    /// Time between two looks.
    pub retry: Duration,
    /// Longest time for one look, and for giving the lease back.
    pub look_timeout: Duration,
}

impl Default for ElectionPace {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
            look_timeout: Duration::from_secs(5),
        }
    }
}

/// A candidate at work. Dropping it ends the work without giving the lease back.
#[derive(Debug)]
pub struct Election {
    leading: watch::Receiver<bool>,
    resign: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Election {
    /// Whether this process leads, now and later.
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.leading.clone()
    }

    /// Stops leading and gives the lease back, so that another need not wait for its end.
    /// Takes five seconds at most.
    pub async fn resign(mut self) {
        if let Some(resign) = self.resign.take() {
            // An error means that the task has ended already.
            let _ = resign.send(());
        }
        let _ = (&mut self.task).await;
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Content of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    holder: String,
    duration: Duration,
    version: String,
}

/// The lease as it was seen last, and when it was first seen so.
#[derive(Default)]
struct Seen(Option<(Record, Instant)>);

/// A candidate's step about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is its own.
    Renew,
    /// It is nobody's, or its holder is gone.
    Take,
    /// It is another's.
    Wait,
}

impl Elector {
    /// A candidate called `identity`, which no other candidate is called.
    pub fn new(cluster: &Cluster, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            api: cluster.api.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            pace: ElectionPace::default(),
        }
    }

    /// Takes part at another pace than the usual one.
    #[must_use]
    pub fn with_pace(self, pace: ElectionPace) -> Self {
        Self { pace, ..self }
    }

    /// Takes part from now on. Must be called within a Tokio runtime.
    pub fn start(self) -> Election {
        let (leading, receiver) = watch::channel(false);
        let (resign, resigned) = oneshot::channel();
        let task = tokio::spawn(self.run(leading, resigned));
        Election { leading: receiver, resign: Some(resign), task }
    }

    async fn run(self, leading: watch::Sender<bool>, mut resigned: oneshot::Receiver<()>) {
        let mut seen = Seen::default();
        let mut renewed = Instant::now();
        let mut wait = Duration::ZERO;
        let mut failing = false;
        loop {
            let is_leading = *leading.borrow();
            let turn = async {
                sleep(wait).await;
                let asked = Instant::now();
                let limit = self.pace.look_timeout;
                let outcome = timeout(limit, self.turn(&mut seen)).await;
                (asked, outcome.unwrap_or(Err(ApiError::TimedOut(limit))))
            };
            tokio::select! {
                _ = &mut resigned => break,
                () = sleep_until(renewed + self.pace.renew_deadline), if is_leading => {
                    tracing::warn!(lease = self.name, "lease not renewed in time, no longer leading");
                    leading.send_replace(false);
                }
                (asked, outcome) = turn => match outcome {
                    Ok(holds) => {
                        (renewed, failing) = (asked, false);
                        if leading.send_if_modified(|is| std::mem::replace(is, holds) != holds) {
                            tracing::info!(lease = self.name, leading = holds, "leadership changed");
                        }
                    }
                    // Told once, not every two seconds.
                    Err(error) if !std::mem::replace(&mut failing, true) => {
                        tracing::warn!(lease = self.name, %error, "lease out of reach");
                    }
                    Err(error) => tracing::debug!(lease = self.name, %error, "still out of reach"),
                }
            }
            wait = self.pace.retry;
        }
        if leading.send_replace(false) {
            self.give_back().await;
        }
    }

    /// One look at the lease, and what follows from it; whether the lease is held now.
    async fn turn(&self, seen: &mut Seen) -> Result<bool, ApiError> {
        let outcome = match self.read().await {
            Ok(lease) => {
                let record = Record::of(&lease);
                let unchanged_for = seen.note(&record, Instant::now());
                match step(&record, unchanged_for, &self.identity) {
                    Step::Wait => return Ok(false),
                    Step::Renew => self.write(self.held(lease, false)).await,
                    Step::Take => self.write(self.held(lease, true)).await,
                }
            }
            Err(ApiError::Absent(_)) => self.create().await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => Ok(true),
            // Another candidate was faster.
            Err(ApiError::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn read(&self) -> Result<Value, ApiError> {
        let path = LEASES.path_of(&self.namespace, &self.name);
        let answer = self.api.call(Method::GET, &path, Vec::new()).await?;
        serde_json::from_slice(&answer).map_err(|error| ApiError::Malformed(error.to_string()))
    }

    async fn create(&self) -> Result<(), ApiError> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {},
        });
        let lease = self.held(lease, true).to_string();
        let path = LEASES.path(Some(&self.namespace));
        self.api.call(Method::POST, &path, lease.into()).await.map(drop)
    }

    /// Replaces the lease, unless it has changed since it was read.
    async fn write(&self, lease: Value) -> Result<(), ApiError> {
        let path = LEASES.path_of(&self.namespace, &self.name);
        self.api.call(Method::PUT, &path, lease.to_string().into()).await.map(drop)
    }

    async fn give_back(&self) {
        let give = async {
            let mut lease = self.read().await?;
            if Record::of(&lease).holder == self.identity {
                lease["spec"]["holderIdentity"] = json!("");
                lease["spec"]["leaseDurationSeconds"] = json!(1);
                self.write(lease).await?;
            }
            Ok::<_, ApiError>(())
        };
        let given = timeout(self.pace.look_timeout, give).await;
        if !matches!(given, Ok(Ok(()))) {
            tracing::warn!(lease = self.name, "lease not given back, it runs out by itself");
        }
    }

    /// The lease as held by this candidate from now on.
    fn held(&self, mut lease: Value, newly: bool) -> Value {
        // The microseconds are part of the type.
        let now = json!(format!("{:.6}", Timestamp::now()));
        let spec = &mut lease["spec"];
        spec["holderIdentity"] = json!(self.identity);
        spec["leaseDurationSeconds"] = json!(self.pace.duration.as_secs().max(1));
        spec["renewTime"] = now.clone();
        if newly {
            spec["acquireTime"] = now;
            let before = spec["leaseTransitions"].as_u64();
            spec["leaseTransitions"] = json!(before.map_or(0, |n| n + 1));
        }
        lease
    }
}

impl Record {
    fn of(lease: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let seconds = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0);
        Self {
            holder: text(&lease["spec"]["holderIdentity"]),
            duration: Duration::from_secs(seconds),
            version: text(&lease["metadata"]["resourceVersion"]),
        }
    }
}

impl Seen {
    /// For how long the lease has been as it is.
    fn note(&mut self, record: &Record, now: Instant) -> Duration {
        match &self.0 {
            Some((known, since)) if known == record => now - *since,
            _ => {
                self.0 = Some((record.clone(), now));
                Duration::ZERO
            }
        }
    }
}

fn step(record: &Record, unchanged_for: Duration, identity: &str) -> Step {
    if record.holder == identity {
        Step::Renew
    } else if record.holder.is_empty() || unchanged_for >= record.duration {
        Step::Take
    } else {
        Step::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str) -> Record {
        let duration = Duration::from_secs(15);
        Record { holder: holder.into(), duration, version: "7".into() }
    }

    #[test]
    fn a_lease_is_taken_only_from_nobody_or_from_the_dead() {
        let check = |holder: &str, unchanged_s: u64, expected: Step| {
            assert_eq!(step(&record(holder), Duration::from_secs(unchanged_s), "me"), expected);
        };
        check("me", 0, Step::Renew);
        check("me", 60, Step::Renew);
        check("", 0, Step::Take);
        check("other", 14, Step::Wait);
        check("other", 15, Step::Take);
    }

    #[test]
    fn age_counts_from_when_the_lease_last_changed() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut seen = Seen::default();
        assert_eq!(seen.note(&record("a"), start), Duration::ZERO);
        assert_eq!(seen.note(&record("a"), start + second), second);
        let renewed = Record { version: "8".into(), ..record("a") };
        assert_eq!(seen.note(&renewed, start + second), Duration::ZERO);
        assert_eq!(seen.note(&renewed, start + 3 * second), 2 * second);
    }

    #[test]
    fn a_lease_is_read_whatever_it_lacks() {
        assert_eq!(Record::of(&json!({})), Record::default());
        let lease = json!({
            "metadata": {"resourceVersion": "7"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
        });
        assert_eq!(Record::of(&lease), record("a"));
    }
}
