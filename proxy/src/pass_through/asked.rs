//! What a request says that decides where it goes; and the request, as it goes on.

use crate::catalog::Catalog;
use crate::config::ProxySettings;
use crate::direct::headers;
use crate::direct::object::Object;
use crate::direct::screen::screen;
use crate::exchange::Exchange;
use crate::job::{name, payer};
use crate::pins::Pins;
use crate::steering::{Said, Steering};
use bytes::Bytes;
use http::{HeaderValue, header};
use memchr::memmem;
use pingora::http::RequestHeader;
use stator_body::{Field, Fields, prompt_bytes, scan, unquote};
use stator_fleet::{Pool, Prompt};
use stator_model::openai::ApiError;
use stator_placement::Adapter;
use stator_protos::WorkerRank;
use stator_protos::discovery::ApiRecord;
use stator_protos::hash::SequenceHash;
use stator_protos::header::SESSION_ID;
use stator_protos::text::{estimated_tokens, text_hashes, text_seed};
use stator_queue::{Entry, FlowId};
use std::sync::Arc;

/// The member of a body that is meant for proxies and pickers alone.
const OURS: &str = "nvext";

/// A request for a model whose engines take requests as they came.
pub(crate) struct Asked {
    pub pool: Arc<Pool>,
    /// What goes on, but for the engine's own name of the model.
    head: RequestHeader,
    body: Bytes,
    /// Whether something was cut out that a client may not say.
    pub stripped: bool,
    /// The LoRA adapter that it is for.
    pub adapter: Option<String>,
    pub steering: Steering,
    flow: FlowId,
    session: Option<u64>,
    prompt: Text,
}

/// A prompt, measured in text.
#[derive(Debug, PartialEq, Eq)]
struct Text {
    /// Blocks of text that it is made of, in order.
    sequence: Vec<SequenceHash>,
    /// About how many tokens these are.
    tokens: u32,
    max_output_tokens: Option<u32>,
}

impl Asked {
    /// Reads a request; nothing where its model is not of this kind, or where nobody can say what
    /// it asks for.
    ///
    /// # Errors
    ///
    /// 4xx, with the field at fault, where it may not go on.
    pub(crate) fn read(
        exchange: &Exchange,
        body: &Bytes,
        catalog: &Catalog,
        settings: &ProxySettings,
    ) -> Result<Option<Self>, ApiError> {
        if !catalog.passes() {
            return Ok(None);
        }
        let Ok(fields) = scan(body) else { return Ok(None) };
        let Some(model) = fields.raw(body, Field::Model).and_then(unquote) else { return Ok(None) };
        let Some(pool) = catalog.passed(&model) else { return Ok(None) };
        headers::check_encoding(exchange.request())?;
        let adapter = (*model != pool.record().name).then(|| model.clone().into_owned());
        let prompt = measure(body, &fields, pool.block_size().get(), adapter.as_deref());
        let steering = Steering {
            pins: Pins::of_whole(exchange, settings.pins)?,
            ..Steering::read(body, Said::of(exchange), settings.priority_max)?
        };
        let cleaned = clean(body)?;
        let stripped = cleaned.len() != body.len();
        let mut head = headers::onward(exchange.request(), &exchange.identity(), Some(&cleaned));
        if !settings.api_keys.is_empty() {
            // It is this proxy's.
            head.remove_header(&header::AUTHORIZATION);
        }
        Ok(Some(Self {
            pool,
            head,
            body: cleaned,
            stripped,
            adapter,
            steering,
            flow: FlowId(payer(exchange).map_or(0, name)),
            session: exchange.header(SESSION_ID).map(name),
            prompt,
        }))
    }

    /// What the pool is asked: which of its workers should have it, and how soon.
    pub(crate) fn entry(&self, excluded: &[WorkerRank]) -> Entry<Prompt> {
        let Text { sequence, tokens, max_output_tokens } = &self.prompt;
        Entry {
            priority: self.steering.priority,
            flow: self.flow,
            tokens: *tokens,
            bytes: self.body.len() as u64,
            deadline: self.steering.ttl.map(|ttl| self.pool.deadline(ttl)),
            objective: self.steering.objective,
            payload: Prompt {
                sequence: sequence.clone(),
                tokens: *tokens,
                max_output_tokens: *max_output_tokens,
                excluded: excluded.to_vec(),
                session: self.session,
                needs: self.steering.needs.clone(),
                pinned: self.steering.pins.worker,
                adapter: self.adapter.as_deref().map(Adapter::new),
                ..Prompt::default()
            },
            ..Entry::default()
        }
    }

    /// The request as it goes to an engine that is known to clients by `host`: the bytes that
    /// came, unless the engine has another name for the model.
    pub(crate) fn onward(&self, api: &ApiRecord, host: HeaderValue) -> (RequestHeader, Bytes) {
        let body = match &self.adapter {
            None if api.model != self.pool.record().name => renamed(&self.body, &api.model),
            _ => self.body.clone(),
        };
        let mut head = headers::for_body(&self.head, &body);
        headers::insert(&mut head, header::HOST, host);
        (head, body)
    }
}

/// Names a prompt by the blocks of its text.
fn measure(body: &[u8], fields: &Fields, block_size: u32, adapter: Option<&str>) -> Text {
    let salt = fields.raw(body, Field::CacheSalt).and_then(unquote);
    let mut sequence = Vec::new();
    let seed = text_seed(adapter, salt.as_deref());
    let bytes = text_hashes(prompt_bytes(body, fields), block_size, seed, &mut sequence);
    let limits = [Field::MaxCompletionTokens, Field::MaxTokens, Field::MaxOutputTokens];
    let max_output_tokens = limits.into_iter().find_map(|field| fields.number(body, field));
    Text { sequence, tokens: estimated_tokens(bytes), max_output_tokens }
}

/// The body without what no client may say to an engine, and without what is meant for proxies.
/// It is the same one where it has nothing of this.
fn clean(body: &Bytes) -> Result<Bytes, ApiError> {
    let unreadable = |error: &dyn std::fmt::Display| ApiError::invalid_json(error.to_string());
    let screened = screen(body.clone()).map_err(|refusal| unreadable(&refusal))?.body;
    // An escape may stand for a letter of the name.
    let may_have = |part: &[u8]| memmem::find(&screened, part).is_some();
    if !may_have(OURS.as_bytes()) && !may_have(b"\\u00") {
        return Ok(screened);
    }
    let object = Object::parse(&screened).map_err(|error| unreadable(&error))?;
    let edit = object.edit().remove(|name| name == OURS);
    Ok(if edit.is_empty() { screened.clone() } else { edit.finish().into() })
}

/// The body for an engine that calls the model `name`.
fn renamed(body: &Bytes, name: &str) -> Bytes {
    // It was scanned, and is an object therefore.
    let Ok(object) = Object::parse(body) else { return body.clone() };
    let name = serde_json::to_vec(name).unwrap_or_default();
    object.edit().set("model", name).finish().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: &str, adapter: Option<&str>) -> Text {
        let fields = scan(body.as_bytes()).expect("a sound body");
        measure(body.as_bytes(), &fields, 2, adapter)
    }

    #[test]
    fn prompts_that_begin_alike_share_their_blocks() {
        let chat = |content: &str| {
            let messages = format!(r#"[{{"role":"user","content":"{content}"}}]"#);
            text(&format!(r#"{{"model":"m","max_tokens":7,"messages":{messages}}}"#), None)
        };
        let (short, long) = (chat("It was a dark and stormy night."), chat("It was a dark day."));
        // The role and the beginning are 21 bytes, in blocks of 8.
        assert_eq!(short.sequence[..2], long.sequence[..2]);
        assert_ne!(short.sequence[2], long.sequence[2]);
        assert_eq!(short.tokens, 10, "of 39 bytes");
        assert_eq!(short.max_output_tokens, Some(7));
    }

    #[test]
    fn adapters_and_salts_keep_prompts_apart() {
        let plain = r#"{"prompt":"It was a dark and stormy night."}"#;
        let salted = r#"{"prompt":"It was a dark and stormy night.","cache_salt":"s"}"#;
        let all = [text(plain, None), text(plain, Some("a")), text(salted, None)];
        let first: std::collections::HashSet<_> = all.iter().map(|text| text.sequence[0]).collect();
        assert_eq!(first.len(), 3);
    }

    #[track_caller]
    fn check_clean(body: &'static str, expected: &str) {
        let cleaned = clean(&Bytes::from_static(body.as_bytes())).expect("it can be cleaned");
        assert_eq!(cleaned, expected);
    }

    #[test]
    fn what_steers_does_not_go_on_and_all_else_does_byte_for_byte() {
        let plain = r#"{ "model" : "m","n":18446744073709551615,"x":"nvext", "temperature":1e0}"#;
        check_clean(plain, plain);
        check_clean(r#"{"nvext":{"agent_hints":{}}, "model":"m"}"#, r#"{ "model":"m"}"#);
        check_clean(r#"{"model":"m\u0041","nv\u0065xt":{}}"#, r#"{"model":"m\u0041"}"#);
        let both = r#"{"model":"m","nvext":{},"kv_transfer_params":{"a":1},"bootstrap_room":7}"#;
        check_clean(both, r#"{"model":"m"}"#);
    }

    #[test]
    fn an_engine_is_told_its_own_name_of_the_model() {
        let body = Bytes::from_static(br#"{"model": "m" ,"prompt":"m"}"#);
        assert_eq!(renamed(&body, "a\"b"), r#"{"model": "a\"b" ,"prompt":"m"}"#);
    }
}
