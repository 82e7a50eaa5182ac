//! The agents that discovery lists: the only ones that this agent asks for prompts and KV.
//!
//! A request names the agent that computes its prompt, and a request may come from anybody who
//! reaches the request plane. Discovery is what the operator controls.
//!
//! A lease that ends takes no agent off the list, because the directory may be read-only or the
//! store full. Such an agent is marked as lapsed, and vouches for itself each time it is needed.

use stator_discovery::{AGENTS_MAX, AgentChange, Agents, DiscoveryMetrics, DiscoverySource};
use stator_protos::discovery::AgentRecord;
use stator_runtime::dial::Dial;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Pause between two looks at a directory or a list of agents. Other back-ends tell by themselves.
const POLL: Duration = Duration::from_millis(250);
/// Pause before discovery that cannot be followed is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Longest wait for an agent to be listed: whoever sent the request may know it for a moment longer
/// than this agent.
const PATIENCE: Duration = Duration::from_secs(1);

/// An agent that discovery lists.
#[derive(Clone, Debug)]
pub(crate) struct ListedAgent {
    pub(crate) record: Arc<AgentRecord>,
    /// The end of the agent's lease, if it was not renewed: only the agent itself can say whether it
    /// lives.
    pub(crate) lapsed_at: Option<Instant>,
}

/// Agents by the endpoints of their request planes.
pub(crate) type Listing = BTreeMap<String, ListedAgent>;

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
        source: &DiscoverySource,
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

    /// Agents that a test lists, and their sender.
    #[cfg(test)]
    pub(crate) fn listed() -> (watch::Sender<Listing>, Self) {
        let (listing, receiver) = watch::channel(Listing::new());
        (listing, Self(receiver))
    }

    /// The agent with this endpoint, if discovery lists it and its record is as it is meant to be.
    /// Waits a moment for an agent that is not there yet.
    pub(crate) async fn find(
        &self,
        endpoint: &str,
        is_meant: impl Fn(&AgentRecord) -> bool,
    ) -> Option<ListedAgent> {
        let meant = |agents: &Listing| {
            agents.get(endpoint).filter(|agent| is_meant(&agent.record)).cloned()
        };
        let mut listing = self.0.clone();
        let found = listing.wait_for(|agents| meant(agents).is_some());
        let agents = tokio::time::timeout(PATIENCE, found).await.ok()?.ok()?;
        meant(&agents)
    }
}

fn apply(listing: &mut Listing, change: AgentChange) {
    let (id, lapsed_at) = match &change {
        AgentChange::Up(record) => (&record.agent_id, None),
        AgentChange::Lapsed(record) => (&record.agent_id, Some(Instant::now())),
        AgentChange::Down(id) => (id, None),
    };
    // An agent may have moved, and another may have taken its place.
    listing.retain(|_, agent| agent.record.agent_id != *id);
    let (AgentChange::Up(record) | AgentChange::Lapsed(record)) = change else { return };
    if lapsed_at.is_some() && listing.get(&record.endpoint).is_some_and(|it| it.lapsed_at.is_none())
    {
        return;
    }
    listing.insert(record.endpoint.clone(), ListedAgent { record, lapsed_at });
    forget_oldest(listing);
}

/// Keeps the number of lapsed agents bounded: most back-ends never say that an agent is gone.
fn forget_oldest(listing: &mut Listing) {
    let lapsed = || listing.iter().filter_map(|(at, agent)| Some((agent.lapsed_at?, at)));
    if lapsed().count() > AGENTS_MAX
        && let Some(oldest) = lapsed().min().map(|(_, at)| at.clone())
    {
        listing.remove(&oldest);
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
            serves_events: false,
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

    /// The listing of one agent for which discovery vouches.
    pub(crate) fn listing(record: AgentRecord) -> Listing {
        let agent = ListedAgent { record: Arc::new(record), lapsed_at: None };
        [(agent.record.endpoint.clone(), agent)].into()
    }

    fn up(agent_id: &str, endpoint: &str) -> AgentChange {
        AgentChange::Up(Arc::new(record(agent_id, endpoint, "{}")))
    }

    fn lapsed(agent_id: &str, endpoint: &str) -> AgentChange {
        AgentChange::Lapsed(Arc::new(record(agent_id, endpoint, "{}")))
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_is_listed_late_is_waited_for_and_a_stranger_a_moment() {
        let (listing, agents) = RegisteredAgents::listed();
        assert!(agents.find("http://a:1", |_| true).await.is_none());
        let (found, ()) = tokio::join!(agents.find("http://a:1", |_| true), async {
            listing.send_modify(|listing| apply(listing, up("a", "http://a:1")));
        });
        assert!(found.is_some());
        assert!(agents.find("http://a:1", |record| record.agent_id == "b").await.is_none());
    }

    #[test]
    fn an_agent_has_the_place_that_it_told_last() {
        let mut listing = Listing::new();
        let mut after = |change| {
            apply(&mut listing, change);
            let shown = listing.iter().map(|(at, agent)| {
                let mark = if agent.lapsed_at.is_some() { "?" } else { "" };
                format!("{at} {}{mark}", agent.record.agent_id)
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(after(up("a", "1")), ["1 a"]);
        assert_eq!(after(up("a", "2")), ["2 a"]);
        // Its successor under another name comes before it is known to be gone.
        assert_eq!(after(up("b", "2")), ["2 b"]);
        assert_eq!(after(AgentChange::Down("a".into())), ["2 b"]);
        assert_eq!(after(AgentChange::Down("b".into())), [""; 0]);
    }
    #[test]
    fn an_agent_whose_lease_has_ended_is_listed_until_it_is_taken_away() {
        let mut listing = Listing::new();
        let mut after = |change| {
            apply(&mut listing, change);
            let shown = listing
                .values()
                .map(|agent| format!("{} {}", agent.record.agent_id, agent.lapsed_at.is_some()));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(after(up("a", "1")), ["a false"]);
        assert_eq!(after(lapsed("a", "1")), ["a true"]);
        assert_eq!(after(up("a", "1")), ["a false"]);
        // A lapsed agent never takes the place of one for which discovery vouches.
        assert_eq!(after(lapsed("b", "1")), ["a false"]);
        assert_eq!(after(lapsed("a", "1")), ["a true"]);
        assert_eq!(after(AgentChange::Down("a".into())), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_lapsed_agents_than_the_limit_are_listed() {
        let mut listing = Listing::new();
        apply(&mut listing, up("first", "up"));
        for n in 0..=AGENTS_MAX {
            apply(&mut listing, lapsed(&n.to_string(), &n.to_string()));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(listing.len(), 1 + AGENTS_MAX);
        assert!(listing.contains_key("up") && !listing.contains_key("0"));
    }
}
