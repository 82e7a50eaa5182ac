//! TensorRT-LLM: token ids in and out over its OpenAI completions.
//!
//! Source: the public repository of TensorRT-LLM around version 1.2. Nothing of this was run
//! against a real engine, which needs a GPU; the answers that its tests read were written from the
//! documented schemas. The server rejects fields that it does not know, and versions know
//! different ones, so only what is asked for is said.
//!
//! Two servers work in turn, the context server first (`schedule_style` 0). To have generation begin
//! first it would have to know the other's `ctx_info_endpoint` and the layout of its ranks, which
//! versions tell differently; what it saves is a handshake. So no layer is on its way before the
//! prompt is computed.
//!
//! A server is taken for one rank: with `enable_attention_dp` it chooses the rank of each request
//! itself, so that prefixes are known of its rank 0 alone, and events of the others are passed over.
//!
//! What a context server holds for a generation server that never asks, it holds until its own
//! time is over (`cache_transceiver_config.kv_transfer_timeout_ms`): there is no request that frees
//! it.

mod decode;
mod encode;
mod operate;
mod page;
mod sign;

use crate::answer::{Streamed, Whole};
use crate::http::{self, Client};
use crate::{
    Answer, ApiKey, Ask, Connector, Description, Dialect, Fault, First, Hand, Manner, Operation,
    json, trace,
};
use async_trait::async_trait;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sign::Signer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use decode::Decode;

/// Longest wait for the server's description of its API, which it makes when it is first asked.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(10);

/// One TensorRT-LLM server.
#[derive(Debug)]
pub(crate) struct Trtllm {
    client: Client,
    /// The engine does not say what it does of a request.
    connector: Option<Connector>,
    /// Where hand-overs are to be signed.
    signer: Option<Signer>,
    /// The model's name, which every request must have.
    model: RwLock<Option<String>>,
    /// Whether its completions have a priority, as those of version 1.2 do not.
    takes_priority: AtomicBool,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

/// What an engine that prefills says of itself to those that decode.
#[derive(Deserialize, Serialize)]
struct Advert {
    engine: Engine,
    connector: String,
}

/// Keeps adverts of other engines out.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Engine {
    Trtllm,
}

impl Trtllm {
    pub(crate) fn new(
        client: Client,
        connector: Option<Connector>,
        handover_key: Option<&ApiKey>,
    ) -> Self {
        let (signer, model) = (handover_key.map(Signer::new), RwLock::new(None));
        Self { client, connector, signer, model, takes_priority: AtomicBool::new(false) }
    }

    /// Whether the server describes a priority of completions; no where its description is not to be
    /// had.
    async fn describes_priority(&self) -> bool {
        const PRIORITY: &str = "/components/schemas/CompletionRequest/properties/priority";
        let described = self.client.query_within(SCHEMA_TIMEOUT, "/openapi.json").await;
        let api = described.ok().and_then(|answer| serde_json::from_slice::<Value>(&answer).ok());
        api.is_some_and(|api| api.pointer(PRIORITY).is_some())
    }

    /// Tokens per KV block and blocks, as far as there is a metrics page that says so.
    async fn cache(&self) -> (Option<u32>, Option<u32>) {
        let page = self.client.query("/prometheus/metrics").await;
        page.map_or((None, None), |page| page::cache(&String::from_utf8_lossy(&page)))
    }

    async fn model(&self) -> Result<String, Fault> {
        if let Some(model) = self.model.read().clone() {
            return Ok(model);
        }
        let models: Models = self.client.query_json("/v1/models").await?;
        let model = models.data.into_iter().next();
        let model = model.ok_or_else(|| Fault::Failed("/v1/models: no model is served".into()))?;
        *self.model.write() = Some(model.id.clone());
        Ok(model.id)
    }

    fn check_hand(&self, hand: &Hand) -> Result<(), Fault> {
        let role = self.connector.as_ref().map(|connector| connector.role);
        let able = match hand {
            Hand::Whole | Hand::Canary => true,
            Hand::Prefill(None) => role.is_some_and(|role| role.prefills()),
            Hand::Decode(_) => role.is_some_and(|role| role.decodes()),
            Hand::Prefill(Some(_)) => {
                let why = "prefill is asked first, and says what decode is told";
                return Err(Fault::Invalid(format!("handover: {why}")));
            }
        };
        if able { Ok(()) } else { Err(Fault::Unsupported("the engine has no such role".into())) }
    }
}

#[async_trait]
impl Dialect for Trtllm {
    async fn healthy(&self) -> Result<(), Fault> {
        self.client.healthy("/health").await
    }

    async fn describe(&self) -> Result<Description, Fault> {
        // Another model may be served since.
        *self.model.write() = None;
        let version = self.client.query_json::<Version>("/version");
        let priority = async { Ok(self.describes_priority().await) };
        let cache = async { Ok(self.cache().await) };
        let (version, model, priority, (block_size, total_blocks)) =
            tokio::try_join!(version, self.model(), priority, cache)?;
        self.takes_priority.store(priority, Ordering::Relaxed);
        let prefills = self.connector.as_ref().filter(|own| own.role.prefills());
        let handover = prefills
            .map(|own| json::raw(&Advert { engine: Engine::Trtllm, connector: own.name.clone() }));
        Ok(Description {
            version: format!("tensorrt-llm {}", version.version),
            model,
            block_size,
            total_blocks,
            ranks: 1,
            handover,
            ..Description::default()
        })
    }

    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault> {
        self.check_hand(&ask.hand)?;
        let stream = !matches!(ask.hand, Hand::Prefill(_));
        let takes_priority = self.takes_priority.load(Ordering::Relaxed);
        let body = encode::body(&ask, (&self.model().await?, takes_priority), stream)?;
        let mut headers = trace::headers(&ask)?;
        if let (Some(signer), Hand::Decode(told)) = (&self.signer, &ask.hand) {
            signer.sign(told, &mut headers)?;
        }
        let body = self.client.ask("/v1/completions", body, headers).await?;
        let decode = Decode::new(&ask);
        if stream {
            return Ok(Box::new(Streamed::new(body, decode)));
        }
        let delta = decode.whole(&http::collect(body).await?)?;
        Ok(Box::new(Whole(Some(delta))))
    }

    async fn operate(&self, operation: &Operation) -> Result<(), Fault> {
        operate::operate(&self.client, operation).await
    }

    fn pair(&self, _: u64, prefill: &RawValue, _: u16) -> Result<Manner, Fault> {
        let theirs: Advert = serde_json::from_str(prefill.get())
            .map_err(|error| Fault::Unsupported(format!("the prefill's handover: {error}")))?;
        let own = self.connector.as_ref().filter(|own| own.role.decodes());
        let own = own.ok_or_else(|| Fault::Unsupported("this engine does not decode".into()))?;
        if own.name != theirs.connector {
            let (own, theirs) = (&own.name, &theirs.connector);
            return Err(Fault::Unsupported(format!("backends: {theirs} there, {own} here")));
        }
        // It is among what prefill hands over.
        Ok(Manner::InTurn(First::Passed))
    }
}

#[cfg(test)]
mod tests;
