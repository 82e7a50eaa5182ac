//! Agents for which discovery does not vouch any more: each is asked itself whether it lives.
//!
//! A lease that ends proves little. The agent may be dead, or the directory read-only, the disk
//! full, the cluster's control plane away. The agent's own word decides: one that answers to its
//! name is used on as a suspect, one that does not is gone, and is asked on for a while.

use crate::client::{AgentClient, LINK_WAIT};
use crate::settings::ClientSettings;
use stator_discovery::AGENTS_MAX;
use stator_protos::discovery::AgentRecord;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Longest wait for an agent to say who it is.
const ANSWER: Duration = Duration::from_secs(5);
/// Wait between two questions to an agent that is gone, which doubles, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Time after which an agent that does not answer is asked no more.
const PATIENCE: Duration = Duration::from_secs(600);
/// Agents that are asked at once, so that a directory full of the dead costs little.
const QUESTIONS_MAX: usize = 32;

/// The agents in doubt, and who asks them. Dropping it ends that.
#[derive(Debug)]
pub(super) struct Doubts {
    settings: ClientSettings,
    tasks: JoinSet<Verdict>,
    agents: BTreeMap<String, AbortHandle>,
    turns: Arc<Semaphore>,
    /// Held by whoever was not asked once yet.
    unasked: Arc<()>,
}

/// The finding about an agent in doubt.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// The agent lives; this is its record.
    Lives(AgentRecord),
    /// The agent does not answer under its name.
    Silent(AgentRecord),
    /// The agent has been silent for too long.
    Forgotten,
}

impl Doubts {
    /// Nobody is in doubt. Agents are reached as the settings say.
    pub(super) fn new(settings: ClientSettings) -> Self {
        let turns = Arc::new(Semaphore::new(QUESTIONS_MAX));
        let (tasks, agents, unasked) = Default::default();
        Self { settings, tasks, agents, turns, unasked }
    }

    /// Asks an agent that is not followed until it answers, or patience ends.
    pub(super) fn ask(&mut self, record: AgentRecord) {
        if self.agents.len() >= AGENTS_MAX {
            return;
        }
        let (agent, settings) = (record.agent_id.clone(), self.settings.clone());
        let (turns, unasked) = (self.turns.clone(), self.unasked.clone());
        self.replace(agent, async move {
            let asking = until_it_answers(record, settings, turns, unasked);
            tokio::time::timeout(PATIENCE, asking).await.map_or(Verdict::Forgotten, Verdict::Lives)
        });
    }

    /// Watches an agent that is followed: whether it answers, and its connection stays.
    pub(super) fn watch(&mut self, record: AgentRecord, client: Arc<AgentClient>) {
        self.replace(record.agent_id.clone(), while_it_answers(record, client));
    }

    /// Whether somebody was not asked once yet.
    pub(super) fn are_pending(&self) -> bool {
        Arc::strong_count(&self.unasked) > 1
    }

    /// Discovery vouches for an agent again, or took it away.
    pub(super) fn settle(&mut self, agent: &str) {
        if let Some(task) = self.agents.remove(agent) {
            task.abort();
        }
    }

    /// The next verdict; the agent is in doubt no more. Waits for ever where nobody is in doubt.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Verdict {
        loop {
            let Some(ended) = self.tasks.join_next_with_id().await else {
                return std::future::pending().await;
            };
            // What an aborted task found is old news, and a panic has told of itself.
            let Ok((id, verdict)) = ended else { continue };
            let known = self.agents.iter().find(|(_, task)| task.id() == id);
            if let Some(agent) = known.map(|(agent, _)| agent.clone()) {
                self.agents.remove(&agent);
                return verdict;
            }
        }
    }

    fn replace(&mut self, agent: String, task: impl Future<Output = Verdict> + Send + 'static) {
        self.settle(&agent);
        self.agents.insert(agent, self.tasks.spawn(task));
    }
}

async fn until_it_answers(
    record: AgentRecord,
    settings: ClientSettings,
    turns: Arc<Semaphore>,
    unasked: Arc<()>,
) -> AgentRecord {
    let mut unasked = Some(unasked);
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).clamp(PAUSE.0, PAUSE.1);
        // The semaphore is never closed.
        let _turn = turns.acquire().await;
        // A connection of its own each time: one that stayed would try again by itself.
        if let Ok(client) = AgentClient::connect(&record.endpoint, &settings)
            && let Some(said) = asked(&record, &client).await
        {
            return said;
        }
        drop(unasked.take());
    }
}

/// Ends when the agent does not answer to its name, or says something else than is known.
async fn while_it_answers(record: AgentRecord, client: Arc<AgentClient>) -> Verdict {
    let mut links = client.links_up();
    let mut told = false;
    loop {
        match asked(&record, &client).await {
            Some(said) if said == record => {}
            Some(said) => return Verdict::Lives(said),
            None => return Verdict::Silent(record),
        }
        if !std::mem::replace(&mut told, true) {
            let agent = &record.agent_id;
            tracing::warn!(
                agent,
                "an agent whose lease has ended answers: it is used where no other is"
            );
        }
        // It answers, so its link is up or about to be. Whoever is there after a link has gone may
        // be another.
        let _ = tokio::time::timeout(LINK_WAIT, links.wait_for(|up| *up > 0)).await;
        let begun = Instant::now();
        let _ = links.wait_for(|up| *up == 0).await;
        if begun.elapsed() < PAUSE.0 {
            // A link that never comes up, of an agent that answers, is no reason to ask all the
            // time.
            tokio::time::sleep(PAUSE.0).await;
        }
    }
}

/// The record that the agent at a record's address gives of itself, in the same shape; `None` if
/// nobody answers, or another agent.
async fn asked(record: &AgentRecord, client: &AgentClient) -> Option<AgentRecord> {
    let answer = tokio::time::timeout(ANSWER, client.describe()).await.ok()?;
    let said = answer.ok().filter(|said| said.agent_id == record.agent_id)?;
    // The address is the one that works from here; leases are discovery's.
    Some(AgentRecord {
        endpoint: record.endpoint.clone(),
        lease_ms: record.lease_ms,
        lease_expires_unix_ms: record.lease_expires_unix_ms,
        ..said
    })
}
