//! The live feed: a task that empties the queue of the drivers to the subscribers of the request
//! plane and into a PUB socket, where there is one.
//!
//! Behind the queue a bounded number of messages waits for each subscriber. A subscriber that is
//! slower than that loses some.

use super::queue::{Message, Queue};
use super::subscribers::Subscribers;
use crate::metrics::AgentMetrics;
use stator_runtime::shutdown::Shutdown;
use stator_zmtp::Publisher;
use std::sync::Arc;

/// Receivers of published messages: subscribers of the request plane, and a ZMQ socket if one is
/// open.
pub(crate) struct Outlets {
    pub(crate) subscribers: Arc<Subscribers>,
    pub(crate) publisher: Option<Publisher>,
}

impl Outlets {
    /// Sends a message to all; returns the number of copies dropped.
    fn publish(&self, message: Message) -> u64 {
        let mut dropped = self.subscribers.publish(&message);
        if let Some(publisher) = &self.publisher {
            dropped += publisher.publish(&message.frames()) as u64;
        }
        dropped
    }
}

/// Publishes the queue's messages until `ended`, and closes the socket.
pub(crate) async fn run(
    queue: Arc<Queue>,
    outlets: Outlets,
    metrics: AgentMetrics,
    ended: Shutdown,
) {
    loop {
        let messages = tokio::select! {
            messages = queue.take() => messages,
            () = ended.wait() => break,
        };
        for message in messages {
            metrics.messages_published.inc();
            metrics.messages_dropped.inc_by(outlets.publish(message));
            // Those who write need a turn too.
            tokio::task::coop::consume_budget().await;
        }
    }
    if let Some(publisher) = outlets.publisher {
        // Whoever comes back at this place may bind it at once.
        publisher.close().await;
    }
}
