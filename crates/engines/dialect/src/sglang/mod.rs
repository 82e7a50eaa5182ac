//! SGLang: token ids in and out over `POST /generate`.
//!
//! Source: SGLang 0.5.23, recorded from a running server. It should run with
//! `--incremental-streaming-output`: without, every event repeats all tokens so far, and the work
//! of reading an answer grows with the square of its length.

mod decode;
mod describe;
mod encode;
mod operate;
mod pairing;
pub(crate) mod pooled;

use crate::answer::{Streamed, Whole};
use crate::connector::Names;
use crate::http::{self, Client};
use crate::pooled::is_pooled;
use crate::{
    Answer, Ask, Connector, Description, Dialect, Fault, Manner, Operation, Pooling, SharedRequest,
    trace,
};
use async_trait::async_trait;
use parking_lot::RwLock;
use serde_json::value::RawValue;

pub(crate) use decode::Decode;

/// One SGLang server.
#[derive(Debug)]
pub(crate) struct Sglang {
    client: Client,
    /// Connector as configured, until the engine describes itself.
    given: Option<Connector>,
    facts: RwLock<EngineFacts>,
    names: Names,
}

/// Results of the engine's latest self-description.
#[derive(Clone, Debug, Default)]
struct EngineFacts {
    /// Transfer backend and role, where the engine is half of a pair.
    connector: Option<Connector>,
    /// Whether small priorities are urgent, unlike the default.
    low_priority_first: bool,
    /// Whether weights survive the release of their memory.
    keeps_weights: bool,
    salt: SaltField,
    /// Values that the server makes of prompts, if it answers none.
    pooling: Option<Pooling>,
}

/// The request field that separates prefixes. A version silently ignores a field that it does not
/// know, and would share what should be separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SaltField {
    /// `cache_salt`, which KV events carry; also assumed where the server does not describe itself.
    #[default]
    CacheSalt,
    /// `extra_key`, the field of older versions.
    ExtraKey,
    /// The server has neither field.
    Missing,
}

impl Sglang {
    pub(crate) fn new(client: Client, given: Option<Connector>) -> Self {
        let facts = EngineFacts { connector: given.clone(), ..EngineFacts::default() };
        Self { client, given, facts: RwLock::new(facts), names: Names::new() }
    }

    fn encode(&self, ask: &Ask, stream: bool) -> Result<Vec<u8>, Fault> {
        let facts = self.facts.read();
        let bootstrap = pairing::bootstrap(&ask.hand, facts.connector.as_ref())?;
        encode::body(ask, bootstrap.as_ref(), &facts, stream)
    }
}

#[async_trait]
impl Dialect for Sglang {
    async fn healthy(&self) -> Result<(), Fault> {
        // `/health` has it compute a token, which takes a second at least and never ends while it is
        // paused. `/ping` asks nothing of the scheduler, and older versions have none; it says no
        // for ever where somebody else's check failed once, until one succeeds.
        match self.client.healthy("/ping").await {
            Ok(()) => Ok(()),
            Err(_) => self.client.healthy("/health").await,
        }
    }

    fn forgets(&self, operation: &Operation) -> bool {
        // What it pauses stays as it is.
        *operation != Operation::Pause && operation.forgets()
    }

    async fn describe(&self) -> Result<Description, Fault> {
        let (description, facts) = describe::describe(&self.client, self.given.as_ref()).await?;
        *self.facts.write() = facts;
        Ok(description)
    }

    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault> {
        let (pooling, body) = {
            let facts = self.facts.read();
            (facts.pooling, is_pooled(&ask, facts.pooling)?.then(|| pooled::body(&ask, &facts)))
        };
        if let (Some(pooling), Some(body)) = (pooling, body) {
            let body = self.client.ask(pooled::PATH, body?, trace::headers(&ask)?).await?;
            let delta = pooled::decode(&http::collect(body).await?, pooling)?;
            return Ok(Box::new(Whole(Some(delta))));
        }
        let stream = encode::streams(&ask);
        let body = self.encode(&ask, stream)?;
        let body = self.client.ask("/generate", body, trace::headers(&ask)?).await?;
        let decode = Decode::new(&ask);
        if stream {
            return Ok(Box::new(Streamed::new(body, decode)));
        }
        let delta = decode.whole(&http::collect(body).await?)?;
        Ok(Box::new(Whole(Some(delta))))
    }

    async fn operate(&self, operation: &Operation) -> Result<(), Fault> {
        let keeps_weights = self.facts.read().keeps_weights;
        operate::operate(&self.client, operation, keeps_weights).await
    }

    fn pair(&self, shared: &SharedRequest, prefill: &RawValue) -> Result<Manner, Fault> {
        let (request, facts) = (self.names.of(shared.request), self.facts.read());
        pairing::pair(request, prefill, shared.rank, facts.connector.as_ref())
    }
}

#[cfg(test)]
mod tests;
