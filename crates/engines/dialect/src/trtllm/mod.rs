//! TensorRT-LLM: token ids in and out over its OpenAI completions.
//!
//! Source: the public repository of TensorRT-LLM around version 1.2. Nothing of this was run
//! against a real engine, which needs a GPU; the answers that its tests read were written from the
//! documented schemas. The server rejects fields that it does not know, and versions differ, so a
//! request carries only the fields that it needs.
//!
//! Two servers work in turn, the context server first (`schedule_style` 0). They are asked at once
//! (`schedule_style` 1) where both describe the fields for it, the context server reports its
//! transceiver (`GET /server_info`), and [`Options::together`](crate::Options) is set. The option
//! is off by default, because versions that cannot do it look the same: early in 2026 a dropped
//! request could not be cancelled on its way, and on a server with `enable_attention_dp` rank 0 was
//! asked for the KV whichever rank computed it.
//!
//! A server with `internal_request_auth_key` wants the hand-over to decode signed.
//!
//! The agent treats a server as one rank. With `enable_attention_dp` the server chooses the rank of
//! each request itself; prefixes are then known of its rank 0 alone, and events of other ranks are
//! skipped.
//!
//! A context server that was asked first keeps its KV for a generation server that never asks until
//! its own timeout (`cache_transceiver_config.kv_transfer_timeout_ms`): no request frees it. Where
//! both are asked at once the context server computes nothing before it is asked for the KV, and an
//! abandoned half ends within a second.

mod api;
mod decode;
mod encode;
mod operate;
mod page;
mod pairing;
mod sign;

use crate::answer::{Streamed, Whole};
use crate::connector::Names;
use crate::http::{self, Client};
use crate::pooled::is_pooled;
use crate::{
    Answer, ApiKey, Ask, Connector, Description, Dialect, Fault, Hand, Manner, Operation,
    SharedRequest, trace,
};
use api::Api;
use async_trait::async_trait;
use pairing::Place;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sign::Signer;

pub(crate) use decode::Decode;

/// One TensorRT-LLM server.
#[derive(Debug)]
pub(crate) struct Trtllm {
    client: Client,
    /// Connector as configured; the engine does not report its role.
    connector: Option<Connector>,
    /// Signer of hand-overs, where the server wants them signed.
    signer: Option<Signer>,
    /// The model's name, which every request must carry.
    model: RwLock<Option<String>>,
    api: RwLock<Api>,
    names: Names,
    /// Whether two servers may be asked at once.
    together: bool,
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

impl Trtllm {
    pub(crate) fn new(
        client: Client,
        connector: Option<Connector>,
        handover_key: Option<&ApiKey>,
        together: bool,
    ) -> Self {
        let (signer, model) = (handover_key.map(Signer::new), RwLock::new(None));
        let (api, names) = (RwLock::default(), Names::new());
        Self { client, connector, signer, model, api, names, together }
    }

    /// Address under which generation servers find this one in advance, if it reports one.
    async fn place(&self) -> Option<Place> {
        self.connector.as_ref().filter(|own| own.role.prefills())?;
        let info = self.client.query_json::<Value>("/server_info").await;
        info.ok().and_then(|info| Place::of(&info))
    }

    /// Tokens per KV block and number of blocks, where a metrics page reports them.
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
            Hand::Prefill(_) => role.is_some_and(|role| role.prefills()),
            Hand::Decode(_) => role.is_some_and(|role| role.decodes()),
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
        let api = async { Ok(Api::of(&self.client.schema().await)) };
        let place = async { Ok(self.place().await) };
        let cache = async { Ok(self.cache().await) };
        let (version, model, api, place, (block_size, total_blocks)) =
            tokio::try_join!(version, self.model(), api, place, cache)?;
        *self.api.write() = api;
        let handover = pairing::advert(self.connector.as_ref(), place.filter(|_| api.schedule));
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
        is_pooled(&ask, None)?;
        let stream = !matches!(ask.hand, Hand::Prefill(_));
        let api = *self.api.read();
        let body = encode::body(&ask, &self.model().await?, api, stream)?;
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

    fn pair(&self, shared: &SharedRequest, prefill: &RawValue) -> Result<Manner, Fault> {
        let shared = SharedRequest { request: self.names.of(shared.request), ..*shared };
        let together = self.together && self.api.read().decodes_together();
        pairing::pair(&shared, prefill, self.connector.as_ref(), together)
    }
}

#[cfg(test)]
mod tests;
