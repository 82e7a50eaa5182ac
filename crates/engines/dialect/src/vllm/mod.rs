//! vLLM: token ids in and out over `POST /inference/v1/generate` (`--enable-scale-out`), or over
//! `/v1/completions` where that is off.
//!
//! Source: vLLM 0.32.0, recorded from a running server and read in its source. Cached-token counts
//! need `--enable-prompt-tokens-details`; operations on the engine as a whole need its development
//! mode.
//!
//! Closing a request's connection aborts it; the engine notices within 70 ms. An abort by name
//! would need the engine's own name, which differs from ours by endpoint and version; the engine
//! answers 200 to unknown names too, so that a failed abort would go unnoticed.

mod decode;
mod describe;
mod encode;
mod family;
mod fields;
mod handover;
mod kept;
mod moriio;
mod operate;
pub(crate) mod pooled;
mod usual;

use crate::answer::{Streamed, Whole};
use crate::connector::Names;
use crate::http::{self, Client, Headers};
use crate::pooled::is_pooled;
use crate::{
    Answer, Ask, Connector, Delta, Description, Dialect, Fault, Hand, Manner, Operation, Pooling,
    SharedRequest, trace,
};
use ::http::{HeaderName, HeaderValue};
use async_trait::async_trait;
use parking_lot::RwLock;
use serde_json::value::RawValue;

pub(crate) use decode::Decode;

/// Endpoint for token requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Endpoint {
    /// `/inference/v1/generate`.
    #[default]
    Generate,
    /// `/v1/completions`.
    Completions,
}

impl Endpoint {
    fn path(self) -> &'static str {
        match self {
            Self::Generate => "/inference/v1/generate",
            Self::Completions => "/v1/completions",
        }
    }

    /// Our name of a request, from the engine's `own`: the engine adds a prefix and eight random
    /// digits.
    fn name_of(self, own: &str) -> Option<&str> {
        let (before, behind) = match self {
            Self::Generate => ("generate-tokens-", ""),
            Self::Completions => ("cmpl-", "-0"),
        };
        let is_random = |end: &str| end.len() == 8 && end.bytes().all(|b| b.is_ascii_hexdigit());
        let known =
            own.rsplit_once('-').filter(|(_, end)| is_random(end)).map_or(own, |(id, _)| id);
        known.strip_prefix(before)?.strip_suffix(behind)
    }
}

/// Dialect of one server's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Target {
    endpoint: Endpoint,
    /// Most alternatives per token, if the engine reports it.
    max_logprobs: Option<u32>,
    /// Whether the server lacks today's fields for the form of an answer.
    unguided: bool,
    /// Whether the server is known to know the markers of the model's thoughts.
    bounds_thoughts: bool,
}

/// One vLLM server.
#[derive(Debug)]
pub(crate) struct Vllm {
    client: Client,
    /// Connector as configured, for an engine that does not report one.
    given: Option<Connector>,
    facts: RwLock<EngineFacts>,
    names: Names,
}

/// Results of the engine's latest self-description.
#[derive(Clone, Debug, Default)]
struct EngineFacts {
    target: Target,
    connector: Option<Connector>,
    version: Option<String>,
    /// Tokens per KV block.
    block_size: Option<u32>,
    /// MoRI-IO setup, if that is the connector.
    moriio: Option<moriio::MoriioSetup>,
    /// Values that the server makes of prompts, if it answers none (`--runner pooling`).
    pooling: Option<Pooling>,
}

impl Vllm {
    pub(crate) fn new(client: Client, given: Option<Connector>) -> Self {
        let facts = EngineFacts { connector: given.clone(), ..EngineFacts::default() };
        Self { client, given, facts: RwLock::new(facts), names: Names::new() }
    }
}

#[async_trait]
impl Dialect for Vllm {
    async fn healthy(&self) -> Result<(), Fault> {
        self.client.healthy("/health").await
    }

    fn forgets(&self, operation: &Operation) -> bool {
        // At level 0 it only schedules nothing.
        *operation != Operation::Sleep { level: 0 } && operation.forgets()
    }

    async fn describe(&self) -> Result<Description, Fault> {
        let (description, facts) = describe::describe(&self.client, self.given.as_ref()).await?;
        *self.facts.write() = facts;
        Ok(description)
    }

    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault> {
        let pooling = self.facts.read().pooling;
        if is_pooled(&ask, pooling)? {
            let body = pooled::body(&ask);
            let body = self.client.ask(pooled::PATH, body, headers(&ask)?).await?;
            let delta = pooled::decode(&http::collect(body).await?)?;
            return Ok(Box::new(Whole(Some(delta))));
        }
        let (target, told, (ask, handover)) = {
            let facts = self.facts.read();
            handover::check(&ask.hand, &facts)?;
            let host = self.client.host();
            kept::check_prompt(facts.connector.as_ref(), &ask.tokens)?;
            // What others tell prefill is all that they need.
            let told = facts.moriio.is_some() && matches!(ask.hand, Hand::Prefill(_));
            let ask = handover::in_name_of(&facts, ask)?;
            let ask = moriio::in_words_of(facts.moriio.as_ref(), ask);
            let worded = kept::in_words_of(facts.connector.as_ref(), ask, host);
            (facts.target, told, worded)
        };
        // Who hands something over does so with its last word.
        let stream = encode::streams(&ask) && handover.is_none();
        let body = encode::body(&ask, target, stream)?;
        let body = self.client.ask(target.endpoint.path(), body, headers(&ask)?).await?;
        let mut decode = Decode::new(&ask);
        decode.hands_over |= told;
        if stream {
            return Ok(Box::new(Streamed::new(body, decode)));
        }
        let delta = decode.whole(&http::collect(body).await?)?;
        let handover = handover.or(delta.handover);
        Ok(Box::new(Whole(Some(Delta { handover, ..delta }))))
    }

    async fn operate(&self, operation: &Operation) -> Result<(), Fault> {
        operate::operate(&self.client, operation).await
    }

    fn pair(&self, shared: &SharedRequest, prefill: &RawValue) -> Result<Manner, Fault> {
        let facts = self.facts.read();
        let request = self.names.of(shared.request);
        handover::pair(request, prefill, shared.rank, &facts)
    }
}

fn headers(ask: &Ask) -> Result<Headers, Fault> {
    // Some connectors read their peers' addresses from a request's name: it is not for clients to
    // say where KV goes, and one that is no address ends the engine.
    let id = HeaderValue::try_from(ask.id.replace("_addr_", "-addr-"))
        .map_err(|_| Fault::Invalid(format!("id: {:?} cannot stand in a header", ask.id)))?;
    let mut headers = trace::headers(ask)?;
    headers.push((HeaderName::from_static("x-request-id"), id));
    if let Some(rank) = ask.rank {
        headers.push((HeaderName::from_static("x-data-parallel-rank"), rank.into()));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests;
