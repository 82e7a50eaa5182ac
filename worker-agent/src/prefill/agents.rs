//! The agents whose engines compute prompts for the engine here.
//!
//! Only an [`AdmittedWorker`] is asked for anything: discovery lists it, and it has sent no forged KV of
//! late. A peer whose lease has ended must say itself that it is the agent that was listed.

use crate::kv::peers::KvHolder;
use crate::metrics::PrefilledBy;
use crate::prefill::registered::{ListedAgent, RegisteredAgents};
use crate::request_plane::metadata::{self, PrefillWorker, RequestMetadata};
use crate::request_plane::translate;
use crate::worker::PrefillResult;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::value::RawValue;
use stator_engine::Request as Prompt;
use stator_protos::discovery::{AgentRecord, Role};
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{DescribeRequest, PrefillRequest, Sampling, Submit};
use stator_runtime::dial::Dial;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Request;
use tonic::transport::Channel;

/// Agents that are remembered; beyond them all are forgotten and connected to again.
const PEERS_MAX: usize = 1024;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Extra time that a peer is given beyond our own wait.
const MARGIN: Duration = Duration::from_secs(1);
/// Longest wait for a peer whose lease has ended to say who it is.
const ANSWER: Duration = Duration::from_secs(1);
/// A peer is probed after this part of its longest silence: one fourth.
const PROBED_AFTER: u32 = 4;
/// Time for which an agent that sent forged or damaged KV is not asked again.
pub(crate) const SHUNNED_FOR: Duration = Duration::from_secs(60);

/// Connections to other agents, made when first needed.
#[derive(Debug)]
pub(crate) struct PrefillAgents {
    dial: Dial,
    registered: RegisteredAgents,
    /// The model that prompts are computed for.
    model: String,
    /// Longest silence of a peer that owes an answer.
    silence: Duration,
    channels: Mutex<FxHashMap<String, Channel>>,
    /// Endpoints of agents that sent forged KV, and until when they are not asked.
    shunned: Mutex<FxHashMap<String, Instant>>,
}

/// A peer that may be asked for prompts and KV.
#[derive(Clone, Debug)]
pub(crate) struct AdmittedWorker(PrefillWorker);

/// The reason for which a prompt did not come, for counters and for people.
pub(crate) type PrefillMiss = (PrefilledBy, String);

impl AdmittedWorker {
    /// The peer.
    pub(crate) fn peer(&self) -> &PrefillWorker {
        &self.0
    }
}

impl PrefillAgents {
    /// The registered agents of a model, reached as `dial` says. A peer that owes an answer and is
    /// silent for longer than `silence` has failed.
    pub(crate) fn new(
        dial: Dial,
        registered: RegisteredAgents,
        model: String,
        silence: Duration,
    ) -> Self {
        let (channels, shunned) = Default::default();
        Self { dial, registered, model, silence, channels, shunned }
    }

    /// Admits a peer that discovery lists as a prefill agent of this model, with this hand-over.
    ///
    /// # Errors
    ///
    /// The reason for which the peer may not be asked.
    pub(crate) async fn admit(&self, peer: &PrefillWorker) -> Result<AdmittedWorker, PrefillMiss> {
        let PrefillWorker { endpoint, handover, .. } = peer;
        if self.is_shunned(endpoint) {
            let why = format!("the agent at {endpoint:?} has sent KV that is not genuine");
            return Err((PrefilledBy::itself_shunned, why));
        }
        // The hand-over, too: it tells an engine where to fetch KV.
        let is_meant = |record: &AgentRecord| {
            let listed = record.profile.handover.as_deref().map(str::trim);
            record.model.name == self.model
                && record.profile.role == Role::Prefill
                && listed == Some(handover.get())
        };
        let model = &self.model;
        let why = match self.registered.find(endpoint, is_meant).await {
            Some(ListedAgent { lapsed_at: None, .. }) => return Ok(AdmittedWorker(peer.clone())),
            Some(listed) => match self.said_by(endpoint).await {
                Ok(said) if said.agent_id == listed.record.agent_id && is_meant(&said) => {
                    return Ok(AdmittedWorker(peer.clone()));
                }
                Ok(_) => format!(
                    "the lease of the agent at {endpoint:?} has ended, and another answers there"
                ),
                Err(why) => format!("the lease of the agent at {endpoint:?} has ended: {why}"),
            },
            None => {
                format!("no prefill agent of {model:?} is registered as it is said at {endpoint:?}")
            }
        };
        Err((PrefilledBy::itself_unregistered, why))
    }

    /// The record of the agent that answers at an endpoint.
    async fn said_by(&self, endpoint: &str) -> Result<AgentRecord, String> {
        let mut client = WorkerClient::new(self.channel(endpoint)?);
        let asked =
            async { client.describe(DescribeRequest {}).await?.into_inner().message().await };
        let said = tokio::time::timeout(ANSWER, asked).await;
        let said = said.map_err(|_| format!("no answer within {} ms", ANSWER.as_millis()))?;
        let said = said.map_err(|status| status.to_string())?.ok_or("it says nothing of itself")?;
        serde_json::from_str(&said.record_json).map_err(|error| format!("not a record: {error}"))
    }

    /// Asks a peer that sent forged or damaged KV no more for [`SHUNNED_FOR`].
    pub(crate) fn shun(&self, peer: &AdmittedWorker) {
        let (now, seconds) = (Instant::now(), SHUNNED_FOR.as_secs());
        tracing::warn!(
            endpoint = peer.0.endpoint,
            seconds,
            "an agent that sends false KV is shunned"
        );
        let mut shunned = self.shunned.lock();
        shunned.retain(|_, until| *until > now);
        shunned.insert(peer.0.endpoint.clone(), now + SHUNNED_FOR);
    }

    fn is_shunned(&self, endpoint: &str) -> bool {
        self.shunned.lock().get(endpoint).is_some_and(|until| *until > Instant::now())
    }

    /// Has a peer's engine compute a prompt, and returns the answer. Until then `ready` hears how many
    /// leading blocks can be read already. The peer learns its deadline: it ends the prefill by then,
    /// even if it does not hear that nobody waits any more.
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
        AdmittedWorker(peer): &AdmittedWorker,
        submit: Submit,
        told: Option<&RawValue>,
        within: Duration,
        ready: impl Fn(usize),
    ) -> Result<PrefillResult, String> {
        let mut client = WorkerClient::new(self.channel(&peer.endpoint)?);
        let handover_json = told.map_or_else(String::new, |json| json.get().to_owned());
        let mut request = Request::new(PrefillRequest { submit: Some(submit), handover_json });
        // Who waits here hangs up first, and knows why.
        request.set_timeout(within + MARGIN);
        let said = client.prefill(request).await;
        let mut messages = said.map_err(|status| status.to_string())?.into_inner();
        let answer = loop {
            let message = messages.message().await.map_err(|status| status.to_string())?;
            let message = message.ok_or("the call ended without an answer")?;
            match message.ready_blocks {
                0 => break message,
                blocks => ready(blocks as usize),
            }
        };
        let handover = Some(answer.handover_json).filter(|json| !json.is_empty());
        let handover =
            handover.map(|json| metadata::handover("handover_json", json)).transpose()?;
        let first = answer.first.map(translate::first_token);
        Ok(PrefillResult { handover, cached_tokens: answer.cached_tokens, first })
    }

    fn channel(&self, endpoint: &str) -> Result<Channel, String> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(endpoint) {
            return Ok(channel.clone());
        }
        let probe_after = self.silence / PROBED_AFTER;
        let target = self.dial.target(endpoint).map_err(|error| error.to_string())?;
        let target = target.with(|endpoint| {
            endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_nodelay(true)
                // A stopped process and a host that vanished send no FIN: without probes a prefill
                // would hang there. The agent answers probes beside its engine, which may compute
                // for long.
                .http2_keep_alive_interval(probe_after)
                .keep_alive_timeout(self.silence.saturating_sub(probe_after))
        });
        if channels.len() >= PEERS_MAX {
            channels.clear();
        }
        let channel = target.connect_lazy();
        channels.insert(endpoint.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// The request for a peer: its prompt, and the sampling of the first token.
pub(crate) fn prompt(
    peer: &PrefillWorker,
    request: &Prompt,
    metadata: &RequestMetadata,
    sampling: Sampling,
) -> Submit {
    Submit {
        worker_id: peer.worker.worker.0,
        rank: peer.worker.rank.into(),
        token_ids: request.tokens.clone(),
        choices: 1,
        sampling: Some(sampling),
        cache_salt: request.cache_salt.clone().unwrap_or_default(),
        lora_name: metadata.lora.clone().unwrap_or_default(),
        client_request_id: metadata.client_request_id.clone(),
        traceparent: metadata.traceparent.clone(),
        tracestate: metadata.tracestate.clone(),
        priority: metadata.priority,
        pin_seconds: metadata.pin.map_or(0, |pin| pin.as_secs() as u32),
        kv_holders: metadata.kv_holders.iter().map(KvHolder::told).collect(),
        ..Submit::default()
    }
}

/// The sampling of a prompt whose token nobody wants: whichever is most likely, and it ends nothing.
pub(crate) fn any_token() -> Sampling {
    Sampling { max_tokens: 1, min_tokens: 1, ignore_eos: true, ..Sampling::default() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::prefill::registered::tests::{listing as listing_of, record};
    use stator_protos::{WorkerId, WorkerRank};
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::task::{Context, Poll};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;
    use tonic::body::Body;
    use tonic::codegen::{Service, http};
    use tonic::server::NamedService;
    use tonic::transport::server::TcpIncoming;

    /// The peers of model `m` among these agents.
    pub(crate) fn prefill_agents(registered: RegisteredAgents) -> PrefillAgents {
        PrefillAgents::new(Dial::default(), registered, "m".into(), Duration::from_secs(2))
    }

    /// An agent that does nothing but pass on how long it was given.
    #[derive(Clone)]
    struct Asked(mpsc::Sender<Option<String>>);

    impl NamedService for Asked {
        const NAME: &'static str = "stator.worker.v1.Worker";
    }

    impl Service<http::Request<Body>> for Asked {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let given = request.headers().get("grpc-timeout");
            let given = given.map(|value| value.to_str().unwrap().to_owned());
            self.0.try_send(given).unwrap();
            ready(Ok(tonic::Status::unimplemented("it computes nothing").into_http()))
        }
    }

    #[tokio::test]
    async fn a_peer_is_told_how_long_it_has() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (asked, mut asks) = mpsc::channel(1);
        let router = tonic::transport::Server::builder().add_service(Asked(asked));
        let mut server = JoinSet::new();
        let incoming = TcpIncoming::from(listener);
        server.spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        let handover = RawValue::from_string("{}".into()).unwrap();
        let worker = WorkerRank { worker: WorkerId(1), rank: 0 };
        let peer = AdmittedWorker(PrefillWorker { endpoint, worker, handover });
        let within = Duration::from_secs(7);
        let error = prefill_agents(RegisteredAgents::default())
            .prefill(&peer, Submit::default(), None, within, |_| ())
            .await;
        let error = error.err().unwrap();
        assert!(error.contains("it computes nothing"), "{error}");
        assert_eq!(asks.recv().await, Some(Some("8000000u".into())));
    }

    fn peer(endpoint: &str, handover: &str) -> PrefillWorker {
        let worker = WorkerRank { worker: WorkerId(1), rank: 0 };
        let handover = RawValue::from_string(handover.into()).unwrap();
        PrefillWorker { endpoint: endpoint.into(), worker, handover }
    }

    #[tokio::test(start_paused = true)]
    async fn only_prefill_agents_of_the_model_that_are_registered_as_said_are_admitted() {
        let (listing, registered) = RegisteredAgents::listed();
        let prefill_agents = prefill_agents(registered);
        let admitted = async |change: fn(&mut AgentRecord), peer: PrefillWorker| {
            let mut record = record("a", "http://a:1", "{\"kv\":1}");
            change(&mut record);
            listing.send_replace(listing_of(record));
            prefill_agents.admit(&peer).await.map(drop).map_err(|(by, _)| by)
        };
        let meant = || peer("http://a:1", "{\"kv\":1}");
        assert_eq!(admitted(|_| (), meant()).await, Ok(()));
        let others: [fn(&mut AgentRecord); 3] = [
            |record| record.model.name = "n".into(),
            |record| record.profile.role = Role::Decode,
            |record| record.profile.handover = None,
        ];
        for change in others {
            assert_eq!(admitted(change, meant()).await, Err(PrefilledBy::itself_unregistered));
        }
        for stranger in [peer("http://b:1", "{\"kv\":1}"), peer("http://a:1", "{\"kv\":2}")] {
            assert_eq!(admitted(|_| (), stranger).await, Err(PrefilledBy::itself_unregistered));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_sent_false_kv_is_asked_again_after_a_minute() {
        let (listing, registered) = RegisteredAgents::listed();
        listing.send_replace(listing_of(record("a", "http://a:1", "{}")));
        let prefill_agents = prefill_agents(registered);
        let peer = peer("http://a:1", "{}");
        prefill_agents.shun(&prefill_agents.admit(&peer).await.unwrap());
        tokio::time::advance(SHUNNED_FOR - Duration::from_millis(1)).await;
        assert_eq!(prefill_agents.admit(&peer).await.unwrap_err().0, PrefilledBy::itself_shunned);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(prefill_agents.admit(&peer).await.is_ok());
    }
}
