//! Any server of the OpenAI API, asked only for what all such servers have.
//!
//! The server takes no token ids: proxies forward requests to it unchanged, and the agent only
//! finds out what it serves and whether it is healthy.
//!
//! Source: the public API reference of OpenAI; `parent` and `max_model_len` are vLLM's. vLLM and
//! SGLang own their models by name and take `cache_salt`; others may refuse a field that they do
//! not know.

mod models;

use crate::answer::Whole;
use crate::http::{self, Client};
use crate::{
    Answer, Ask, Delta, Description, Dialect, Fault, Finish, Hand, Manner, Operation, SharedRequest,
};
use async_trait::async_trait;
use models::Models;
use parking_lot::RwLock;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The list of models, which every such server has.
const MODELS: &str = "/v1/models";

/// One such server.
#[derive(Debug)]
pub(crate) struct Openai {
    client: Client,
    /// Model to use, where the server has several.
    wanted: Option<String>,
    /// Name of the served model, once the server has reported it.
    model: RwLock<Option<String>>,
}

impl Openai {
    pub(crate) fn new(client: Client, wanted: Option<String>) -> Self {
        Self { client, wanted, model: RwLock::new(None) }
    }

    /// Has the engine produce a token. A server that refuses both questions serves something else,
    /// for example embeddings, and passes.
    async fn prove(&self) -> Result<(), Fault> {
        let model = self.model.read().clone();
        let model = model.ok_or_else(|| Fault::Failed("it has not said what it serves".into()))?;
        let completion = json!({ "model": model, "prompt": "1", "max_tokens": 1 });
        match self.asked("/v1/completions", &completion).await {
            Err(Fault::Invalid(_) | Fault::Unsupported(_)) => {}
            answered => return answered,
        }
        let messages = [json!({ "role": "user", "content": "1" })];
        let chat = json!({ "model": model, "messages": messages, "max_tokens": 1 });
        match self.asked("/v1/chat/completions", &chat).await {
            Err(Fault::Invalid(_) | Fault::Unsupported(_)) => Ok(()),
            answered => answered,
        }
    }

    async fn asked(&self, path: &str, question: &Value) -> Result<(), Fault> {
        let answer = self.client.ask(path, question.to_string().into_bytes(), Vec::new()).await?;
        http::collect(answer).await.map(drop)
    }
}

#[async_trait]
impl Dialect for Openai {
    async fn healthy(&self) -> Result<(), Fault> {
        match self.client.query("/health").await {
            // Not every server has a health check.
            Err(Fault::Invalid(_) | Fault::Unsupported(_)) => {
                self.client.query(MODELS).await.map(drop)
            }
            answered => answered.map(drop),
        }
    }

    async fn describe(&self) -> Result<Description, Fault> {
        let models: Models = self.client.query_json(MODELS).await?;
        let (model, adapters) = models.choose(self.wanted.as_deref()).map_err(Fault::Failed)?;
        *self.model.write() = Some(model.id.clone());
        Ok(Description {
            version: format!("OpenAI API of {}", model.owned_by.as_deref().unwrap_or("nobody")),
            model: model.id.clone(),
            context_length: model.max_model_len,
            ranks: 1,
            adapters,
            takes_cache_salt: model.takes_cache_salt(),
            ..Description::default()
        })
    }

    async fn generate(&self, ask: Ask) -> Result<Box<dyn Answer>, Fault> {
        if !matches!(ask.hand, Hand::Canary) {
            let why = "this engine takes no token ids: it is asked over its own API";
            return Err(Fault::Unsupported(why.into()));
        }
        self.prove().await?;
        // Which token it was is not told, and nobody needs it.
        let finish = Some(Finish::Length);
        Ok(Box::new(Whole(Some(Delta { tokens: vec![0], finish, ..Delta::default() }))))
    }

    async fn operate(&self, operation: &Operation) -> Result<(), Fault> {
        Err(Fault::Unsupported(format!("{operation:?}: the OpenAI API has no such operation")))
    }

    fn pair(&self, _: &SharedRequest, _: &RawValue) -> Result<Manner, Fault> {
        Err(Fault::Unsupported("the OpenAI API has no hand-over of KV".into()))
    }
}

#[cfg(test)]
mod tests;
