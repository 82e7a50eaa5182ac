//! The agents whose engines compute prompts for the engine here.

use crate::extras::{self, Peer};
use crate::worker::Prefilled;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::value::RawValue;
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{PrefillRequest, Submit};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Agents that are remembered; beyond them all are forgotten and connected to again.
const PEERS_MAX: usize = 1024;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a silent connection is probed, and how long the probe may take.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Connections to other agents, made when first needed.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<FxHashMap<String, WorkerClient<Channel>>>);

impl Peers {
    /// Has a peer's engine compute a prompt, and says what its engine said.
    ///
    /// # Errors
    ///
    /// Why it did not, in words for a log.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the prefill.
    pub(crate) async fn prefill(
        &self,
        peer: &Peer,
        submit: Submit,
        told: Option<&RawValue>,
    ) -> Result<Prefilled, String> {
        let mut client = self.client(&peer.endpoint)?;
        let handover_json = told.map_or_else(String::new, |json| json.get().to_owned());
        let request = PrefillRequest { submit: Some(submit), handover_json };
        let answered = client.prefill(request).await;
        let answer = answered.map_err(|status| status.to_string())?.into_inner();
        let handover = Some(answer.handover_json).filter(|json| !json.is_empty());
        let handover = handover.map(|json| extras::handover("handover_json", json)).transpose()?;
        Ok(Prefilled { handover, cached_tokens: answer.cached_tokens })
    }

    fn client(&self, endpoint: &str) -> Result<WorkerClient<Channel>, String> {
        let mut clients = self.0.lock();
        if let Some(client) = clients.get(endpoint) {
            return Ok(client.clone());
        }
        let channel = Endpoint::from_shared(endpoint.to_owned())
            .map_err(|error| format!("{endpoint:?} is no endpoint: {error}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            // A host that vanished sends no FIN: without probes a prefill would hang there.
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .connect_lazy();
        if clients.len() >= PEERS_MAX {
            clients.clear();
        }
        let client = WorkerClient::new(channel);
        clients.insert(endpoint.to_owned(), client.clone());
        Ok(client)
    }
}
