//! The agents that discovery lists: the only ones that this agent asks for prompts and KV.
//!
//! A request names the agent that computes its prompt, and a request may come from anybody who
//! reaches the request plane. Discovery is what the operator controls.

use stator_discovery::{Agents, Change, DiscoveryMetrics, Source};
use stator_protos::discovery::AgentRecord;
use stator_runtime::dial::Dial;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often a directory or a list of agents is looked at. Other back-ends tell by themselves.
const POLL: Duration = Duration::from_millis(250);
/// Pause before discovery that cannot be followed is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Longest wait for an agent to be listed: whoever sent the request may know it for a moment longer
/// than this agent.
const PATIENCE: Duration = Duration::from_secs(1);

/// Agents by the endpoints of their request planes.
pub(crate) type Listing = BTreeMap<String, Arc<AgentRecord>>;

/// The listed agents, as discovery tells. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredAgents(watch::Receiver<Listing>);

impl Default for RegisteredAgents {
    /// No agents, for agents that ask no other.
    fn default() -> Self {
        Self(watch::channel(Listing::new()).1)
    }
}

impl RegisteredAgents {
    /// The agents of a back-end, followed by a task that has no end of its own.
    pub(crate) fn follow(
        source: &Source,
        dial: &Dial,
        metrics: DiscoveryMetrics,
    ) -> (Self, JoinHandle<()>) {
        let (listing, receiver) = watch::channel(Listing::new());
        let (source, dial) = (source.clone(), dial.clone());
        let following = tokio::spawn(async move {
            let mut agents = loop {
                match Agents::follow(&source, POLL, &dial, metrics.clone()).await {
                    Ok(agents) => break agents,
                    Err(error) => tracing::error!(%error, "cannot look for other agents"),
                }
                tokio::time::sleep(RETRY).await;
            };
            loop {
                let changes = agents.next().await.changes;
                if !changes.is_empty() {
                    listing.send_modify(|listing| {
                        changes.into_iter().for_each(|it| apply(listing, it))
                    });
                }
            }
        });
        (Self(receiver), following)
    }

    /// As a test lists them.
    #[cfg(test)]
    pub(crate) fn listed() -> (watch::Sender<Listing>, Self) {
        let (listing, receiver) = watch::channel(Listing::new());
        (listing, Self(receiver))
    }

    /// Whether an agent with this endpoint is registered, and its record is as it is meant to be.
    /// Waits a moment for one that is not.
    pub(crate) async fn has(
        &self,
        endpoint: &str,
        is_meant: impl Fn(&AgentRecord) -> bool,
    ) -> bool {
        let mut listing = self.0.clone();
        let found = listing.wait_for(|agents| agents.get(endpoint).is_some_and(|it| is_meant(it)));
        matches!(tokio::time::timeout(PATIENCE, found).await, Ok(Ok(_)))
    }
}

fn apply(listing: &mut Listing, change: Change) {
    let id = match &change {
        // One for which discovery does not vouch any more is a stranger, until it does again.
        Change::Up(record) | Change::Lapsed(record) => &record.agent_id,
        Change::Down(id) => id,
    };
    // An agent may have moved, and another may have taken its place.
    listing.retain(|_, record| record.agent_id != *id);
    if let Change::Up(record) = change {
        listing.insert(record.endpoint.clone(), record);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use stator_protos::discovery::{ModelRecord, ProfileRecord, Role};

    /// An agent of model `m` that prefills.
    pub(crate) fn record(agent_id: &str, endpoint: &str, handover: &str) -> AgentRecord {
        AgentRecord {
            agent_id: agent_id.into(),
            endpoint: endpoint.into(),
            events_endpoint: String::new(),
            replay_endpoint: String::new(),
            model: ModelRecord {
                name: "m".into(),
                context_length: 100,
                block_size: 16,
                vocab_size: 100,
            },
            workers: vec![],
            profile: ProfileRecord {
                role: Role::Prefill,
                handover: Some(handover.into()),
                ..ProfileRecord::default()
            },
            accepting: true,
            lease_ms: u64::MAX,
            lease_expires_unix_ms: u64::MAX,
        }
    }

    fn up(agent_id: &str, endpoint: &str) -> Change {
        Change::Up(Arc::new(record(agent_id, endpoint, "{}")))
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_is_listed_late_is_waited_for_and_a_stranger_a_moment() {
        let (listing, agents) = RegisteredAgents::listed();
        assert!(!agents.has("http://a:1", |_| true).await);
        let (found, ()) = tokio::join!(agents.has("http://a:1", |_| true), async {
            listing.send_modify(|listing| apply(listing, up("a", "http://a:1")));
        });
        assert!(found);
        assert!(!agents.has("http://a:1", |record| record.agent_id == "b").await);
    }

    #[test]
    fn an_agent_has_the_place_that_it_told_last() {
        let mut listing = Listing::new();
        let mut after = |change| {
            apply(&mut listing, change);
            listing.iter().map(|(at, it)| format!("{at} {}", it.agent_id)).collect::<Vec<_>>()
        };
        assert_eq!(after(up("a", "1")), ["1 a"]);
        assert_eq!(after(up("a", "2")), ["2 a"]);
        // Its successor under another name comes before it is known to be gone.
        assert_eq!(after(up("b", "2")), ["2 b"]);
        assert_eq!(after(Change::Down("a".into())), ["2 b"]);
        assert_eq!(after(Change::Down("b".into())), [""; 0]);
    }
}
