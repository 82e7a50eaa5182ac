//! The source of one agent's events: its request plane, or ZMQ.

use super::client::AgentClient;
use super::events;
use bytes::Bytes;
use stator_events::subscribe::{self, AGENT_SILENCE, News, Subscription};
use stator_protos::discovery::AgentRecord;
use stator_protos::topic;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The feed of an agent's workers, and their replays.
#[derive(Clone, Debug)]
pub(super) enum EventSource {
    /// The request plane, where the agent's record offers it.
    RequestPlane(Arc<AgentClient>),
    /// ZMQ, of an agent of an earlier version.
    Zmq {
        /// ZMQ endpoint of the live feed.
        events: String,
        /// ZMQ endpoint of replays.
        replay: String,
    },
}

impl EventSource {
    /// The source that the agent's record offers.
    pub(super) fn of(record: &AgentRecord, client: &Arc<AgentClient>) -> Self {
        if record.serves_events {
            return Self::RequestPlane(client.clone());
        }
        let (events, replay) = (record.events_endpoint.clone(), record.replay_endpoint.clone());
        Self::Zmq { events, replay }
    }

    /// Follows the agent's events and load until the receiver is gone.
    pub(super) async fn follow(self, news: mpsc::Sender<News>) {
        let prefixes = vec![topic::KV_EVENTS.into(), topic::LOAD.into()];
        match self {
            Self::RequestPlane(client) => {
                events::follow(&client, prefixes, AGENT_SILENCE, news).await;
            }
            Self::Zmq { events: endpoint, .. } => {
                let silence = Some(AGENT_SILENCE);
                subscribe::follow(Subscription { endpoint, prefixes, silence }, news).await;
            }
        }
    }

    /// The batches of a topic from `start` on.
    ///
    /// # Errors
    ///
    /// A reason, for a log line.
    pub(super) async fn replay(
        &self,
        topic: &str,
        start: u64,
    ) -> Result<Vec<(u64, Bytes)>, String> {
        match self {
            Self::RequestPlane(client) => events::replay(client, topic, start).await,
            Self::Zmq { replay, .. } => subscribe::replay(replay, Some(topic), start).await,
        }
    }
}
