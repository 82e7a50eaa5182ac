//! A request's fields that decide where it goes; and the request, as it goes on.

use super::kept_responses::{KeptResponses, ResponseHome};
use crate::exchange::Exchange;
use crate::standalone::catalog::Catalog;
use crate::standalone::client::Client;
use crate::standalone::config::ProxySettings;
use crate::standalone::job::payer;
use crate::standalone::{Pool, Prompt};
use crate::upstream::headers;
use crate::upstream::passage::{Losses, RemovedFields};
use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::RequestHeader;
use stator_api::openai::ApiError;
use stator_api::openai::body::EXTENSION_SALT;
use stator_api::passed_fields::PassingEdge;
use stator_api::salts;
use stator_api::space::{Account, PrefixSpace};
use stator_api::steering::{Pins, Steering, SteeringHeaders};
use stator_body::{
    Api, Field, Fields, Object, Span, extension_salt, form_field, is_form, prompt_bytes, scan,
    session_name, unquote,
};
use stator_placement::Adapter;
use stator_protos::WorkerRank;
use stator_protos::discovery::ApiRecord;
use stator_protos::hash::{SequenceHash, name_hash};
use stator_protos::text::{estimated_tokens, text_hashes, text_seed};
use stator_queue::{FlowId, QueueEntry};
use std::borrow::Cow;
use std::sync::Arc;

/// Fields that engines do not get, because they are obeyed here.
const OBEYED: [&str; 4] =
    ["priority", "nvext.agent_hints", "nvext.routing_constraints", EXTENSION_SALT];

/// The state of the proxy by which requests that pass are read.
#[derive(Clone, Copy)]
pub(crate) struct PassContext<'a> {
    pub catalog: &'a Catalog,
    pub settings: &'a ProxySettings,
    /// Counts of fields that bodies lost.
    pub removed: &'a RemovedFields,
    /// Responses that engines keep.
    pub kept: &'a KeptResponses,
}

/// A request for a model whose engines take requests as they came.
pub(crate) struct PassedRequest {
    pub pool: Arc<Pool>,
    /// Head to send on, without the engine's own name of the model.
    head: RequestHeader,
    body: Bytes,
    /// Position of the model's name, if the body is a form.
    model_at: Option<Span>,
    /// Whether something was cut out that a client may not say.
    pub stripped: bool,
    /// Names of fields that changed nothing, for the client.
    pub ignored: Option<String>,
    /// The LoRA adapter that it is for.
    pub adapter: Option<String>,
    pub steering: Steering,
    flow: FlowId,
    session: Option<u64>,
    /// The salt of its prefix space.
    cache_salt: Option<String>,
    /// Whether the client names a salt itself, so that it knows its engine to take one.
    names_salt: bool,
    prompt: Text,
    /// The response that it is about, or continues, where one engine keeps that.
    pub kept: Option<String>,
    /// The tenant of a new response, whose engine is to be remembered.
    pub tenant: Option<PrefixSpace>,
}

/// A body that is a form.
struct UploadedForm<'a> {
    bytes: &'a Bytes,
    content_type: &'a str,
}

/// The cache salts of a body.
#[derive(Default)]
struct Salts<'a> {
    own: Option<Cow<'a, str>>,
    extension: Option<Cow<'a, str>>,
}

impl<'a> Salts<'a> {
    /// Reads and checks them; an empty extension counts as none.
    fn read(body: &'a [u8], fields: &Fields) -> Result<Self, ApiError> {
        let own = fields.raw(body, Field::CacheSalt);
        let own = own.map(|raw| salts::own(Field::CacheSalt, raw)).transpose()?.flatten();
        let extension = extension_salt(body, fields).map(salts::extension).transpose()?.flatten();
        Ok(Self { own, extension })
    }
}

/// A prompt, measured in text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Text {
    /// Blocks of text that it is made of, in order.
    sequence: Vec<SequenceHash>,
    /// About how many tokens these are.
    tokens: u32,
    max_output_tokens: Option<u32>,
}

impl PassedRequest {
    /// Reads a request; nothing where its model is not of this kind, or where nobody can say what
    /// it asks for.
    ///
    /// # Errors
    ///
    /// 4xx, with the field at fault, where it may not go on.
    pub(crate) fn read(
        exchange: &Exchange,
        account: Account,
        body: &Bytes,
        context: PassContext<'_>,
    ) -> Result<Option<Self>, ApiError> {
        let PassContext { catalog, settings, removed, kept } = context;
        let client = exchange.as_client(account);
        if !catalog.passes() {
            return Ok(None);
        }
        if let Some(kind) = exchange.header("content-type").filter(|kind| is_form(kind)) {
            let form = UploadedForm { bytes: body, content_type: kind };
            return Self::read_form(exchange, client, form, context);
        }
        // Whoever answers the request instead names the fault of a body that cannot be read.
        let Ok(fields) = scan(body) else { return Ok(None) };
        let Some(model) = fields.raw(body, Field::Model).and_then(unquote) else { return Ok(None) };
        let Some(pool) = catalog.passed(&model) else { return Ok(None) };
        headers::check_encoding(exchange.request())?;
        let adapter = (*model != pool.record().name).then(|| model.clone().into_owned());
        let salts = Salts::read(body, &fields)?;
        let space = client.space(salts.own.as_deref(), salts.extension.as_deref())?;
        let seed = text_seed(adapter.as_deref(), space.salt().as_deref());
        let prompt = measure(body, &fields, pool.block_size().get(), seed);
        let said = SteeringHeaders::of(|name| exchange.header(name));
        let mut steering = Steering {
            pins: Pins::of_whole(|name| exchange.header_bytes(name), settings.pins)?,
            ..Steering::read(body, said, settings.priority_max)?
        };
        let api = Api::find(exchange.method(), exchange.path());
        let tenant = (api == Some(Api::Responses)).then(|| client.space(None, None)).transpose()?;
        let before = tenant.and_then(|tenant| continued(body, &fields, kept, tenant));
        let before = before.filter(|(_, home)| *home.model == *pool.record().name);
        if let Some((_, home)) = &before {
            steering.pins.worker.get_or_insert(home.worker);
        }
        let session = said.session().map(Cow::Borrowed).or_else(|| session_name(body, &fields));
        let passage = &settings.passage;
        let edge = PassingEdge { api, obeyed: &OBEYED, from_proxy: false };
        let losses = Losses::new(edge, settings.unknown_fields, removed);
        let cleaned = passage.screen(body.clone(), &losses)?;
        let stripped = cleaned.len() != body.len();
        let identity = exchange.identity();
        let head = headers::onward(exchange.request(), passage, &identity, Some(&cleaned));
        Ok(Some(Self {
            pool,
            head,
            body: cleaned,
            model_at: None,
            stripped,
            ignored: losses.notes.ignored(),
            adapter,
            steering,
            flow: FlowId(payer(client.head).map_or(0, name_hash)),
            session: session.map(|name| space.session(&name)),
            cache_salt: space.salt(),
            names_salt: salts.own.is_some(),
            prompt,
            kept: before.map(|(id, _)| id),
            tenant,
        }))
    }

    /// Reads a request whose body is a form, which says nothing of a prompt or of a salt.
    fn read_form(
        exchange: &Exchange,
        client: Client<'_>,
        form: UploadedForm<'_>,
        context: PassContext<'_>,
    ) -> Result<Option<Self>, ApiError> {
        let PassContext { catalog, settings, removed, .. } = context;
        let UploadedForm { bytes: body, content_type: kind } = form;
        headers::check_encoding(exchange.request())?;
        let passage = &settings.passage;
        let losses = Losses::new(PassingEdge::default(), settings.unknown_fields, removed);
        let cleaned = passage.screen_form(body, kind, &losses)?;
        let Some(model_at) = form_field(&cleaned, kind, "model") else { return Ok(None) };
        let Ok(model) = str::from_utf8(model_at.of(&cleaned)) else { return Ok(None) };
        let Some(pool) = catalog.passed(model) else { return Ok(None) };
        let adapter = (*model != pool.record().name).then(|| model.to_owned());
        let said = SteeringHeaders::of(|name| exchange.header(name));
        let steering = Steering {
            pins: Pins::of_whole(|name| exchange.header_bytes(name), settings.pins)?,
            ..Steering::read(b"{}", said, settings.priority_max)?
        };
        let space = client.space(None, None)?;
        let head =
            headers::onward(exchange.request(), passage, &exchange.identity(), Some(&cleaned));
        Ok(Some(Self {
            pool,
            head,
            stripped: cleaned.len() != body.len(),
            ignored: losses.notes.ignored(),
            body: cleaned,
            model_at: Some(model_at),
            adapter,
            steering,
            flow: FlowId(payer(client.head).map_or(0, name_hash)),
            session: said.session().map(|text| space.session(text)),
            // Uploads have no prefix that another request could find.
            cache_salt: None,
            names_salt: false,
            prompt: Text::default(),
            kept: None,
            tenant: None,
        }))
    }

    /// Reads a request about the response `id`; nothing where no engine is known to keep that.
    ///
    /// # Errors
    ///
    /// 400 for a tenant that cannot be meant.
    pub(crate) fn about(
        exchange: &Exchange,
        account: Account,
        id: &str,
        context: PassContext<'_>,
    ) -> Result<Option<Self>, ApiError> {
        let PassContext { catalog, settings, kept, .. } = context;
        let client = exchange.as_client(account);
        let home = kept.find(id, client.space(None, None)?);
        let Some(home) = home else { return Ok(None) };
        let Some(pool) = catalog.passed(&home.model) else { return Ok(None) };
        let (identity, body) = (exchange.identity(), Bytes::new());
        let head = headers::onward(exchange.request(), &settings.passage, &identity, Some(&body));
        let pins = Pins { worker: Some(home.worker), prefill: None };
        Ok(Some(Self {
            pool,
            head,
            body,
            model_at: None,
            stripped: false,
            ignored: None,
            adapter: None,
            steering: Steering { pins, ..Steering::default() },
            flow: FlowId(payer(client.head).map_or(0, name_hash)),
            session: None,
            cache_salt: None,
            names_salt: false,
            prompt: Text::default(),
            kept: Some(id.to_owned()),
            tenant: None,
        }))
    }

    /// The request's entry in the pool's queue.
    pub(crate) fn entry(&self, excluded: &[WorkerRank]) -> QueueEntry<Prompt> {
        let Text { sequence, tokens, max_output_tokens } = &self.prompt;
        QueueEntry {
            priority: self.steering.priority,
            jump: self.steering.jump_s,
            flow: self.flow,
            tokens: *tokens,
            bytes: self.body.len() as u64,
            deadline: self.steering.ttl.map(|ttl| self.pool.deadline(ttl)),
            objective: self.steering.objective,
            payload: Prompt {
                sequence: sequence.clone(),
                tokens: *tokens,
                max_output_tokens: *max_output_tokens,
                expected_output_tokens: self.steering.expected_tokens,
                excluded: excluded.to_vec(),
                session: self.session,
                needs: self.steering.needs.clone(),
                pinned: self.steering.pins.worker,
                adapter: self.adapter.as_deref().map(Adapter::new),
                ..Prompt::default()
            },
        }
    }

    /// Whether the request has a prefix space that an engine is not known to keep apart from others.
    pub(crate) fn is_unseparated(&self, api: &ApiRecord) -> bool {
        self.cache_salt.is_some() && !api.takes_cache_salt && !self.names_salt
    }

    /// The request as it goes to an engine that is known to clients by `host`: the bytes that
    /// came, unless the engine has another name for the model, or has to keep prefixes apart.
    pub(crate) fn onward(&self, api: &ApiRecord, host: HeaderValue) -> (RequestHeader, Bytes) {
        let is_renamed = self.adapter.is_none() && api.model != self.pool.record().name;
        let model = is_renamed.then_some(&*api.model);
        let salt = self.cache_salt.as_deref().filter(|_| !self.is_unseparated(api));
        let body = match self.model_at {
            Some(at) => addressed_form(&self.body, model, at),
            None => addressed(&self.body, model, salt),
        };
        let mut head = headers::for_body(&self.head, &body);
        headers::insert(&mut head, header::HOST, host);
        (head, body)
    }
}

/// The response that a body continues, and the engine that keeps that.
fn continued(
    body: &[u8],
    fields: &Fields,
    kept: &KeptResponses,
    tenant: PrefixSpace,
) -> Option<(String, ResponseHome)> {
    let id = unquote(fields.raw(body, Field::PreviousResponseId)?)?;
    let home = kept.find(&id, tenant)?;
    Some((id.into_owned(), home))
}

/// Names a prompt by the blocks of its text.
fn measure(body: &[u8], fields: &Fields, block_size: u32, seed: u64) -> Text {
    let mut sequence = Vec::new();
    let bytes = text_hashes(prompt_bytes(body, fields), block_size, seed, &mut sequence);
    let limits = [Field::MaxCompletionTokens, Field::MaxTokens, Field::MaxOutputTokens];
    let max_output_tokens = limits.into_iter().find_map(|field| fields.number(body, field));
    Text { sequence, tokens: estimated_tokens(bytes), max_output_tokens }
}

/// The body for an engine that calls the model `model`, and keeps prefixes apart by `salt`; the
/// one that came where neither is to be changed.
fn addressed(body: &Bytes, model: Option<&str>, salt: Option<&str>) -> Bytes {
    let members = [("model", model), ("cache_salt", salt)];
    if members.iter().all(|(_, text)| text.is_none()) {
        return body.clone();
    }
    // It was scanned, and is an object therefore.
    let Ok(object) = Object::parse(body) else { return body.clone() };
    let mut edit = object.edit();
    for (name, text) in members {
        if let Some(text) = text {
            edit = edit.set(name, serde_json::to_vec(text).unwrap_or_default());
        }
    }
    edit.finish().into()
}

/// The form for an engine that calls the model `model`, whose name stands at `at`.
fn addressed_form(form: &Bytes, model: Option<&str>, at: Span) -> Bytes {
    match model {
        Some(model) => [&form[..at.start], model.as_bytes(), &form[at.end..]].concat().into(),
        None => form.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: &str, seed: u64) -> Text {
        let fields = scan(body.as_bytes()).expect("a sound body");
        measure(body.as_bytes(), &fields, 2, seed)
    }

    #[test]
    fn prompts_that_begin_alike_share_their_blocks() {
        let chat = |content: &str| {
            let messages = format!(r#"[{{"role":"user","content":"{content}"}}]"#);
            text(&format!(r#"{{"model":"m","max_tokens":7,"messages":{messages}}}"#), 0)
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
        let seeds = [(None, None), (Some("a"), None), (None, Some("s"))];
        let all = seeds.map(|(adapter, salt)| text(plain, text_seed(adapter, salt)));
        let first: std::collections::HashSet<_> = all.iter().map(|text| text.sequence[0]).collect();
        assert_eq!(first.len(), 3);
    }

    #[test]
    fn an_engine_is_told_its_own_name_of_the_model() {
        let body = Bytes::from_static(br#"{"model": "m" ,"prompt":"m"}"#);
        let renamed = addressed(&body, Some("a\"b"), None);
        assert_eq!(renamed, r#"{"model": "a\"b" ,"prompt":"m"}"#);
        assert_eq!(addressed(&body, None, None), body);
    }

    #[test]
    fn an_engine_is_told_the_space_in_the_place_of_a_salt() {
        let body = Bytes::from_static(br#"{"model":"m","cache_salt":"s","prompt":"m"}"#);
        let salted = addressed(&body, None, Some("0a"));
        assert_eq!(salted, r#"{"model":"m","cache_salt":"0a","prompt":"m"}"#);
        let body = Bytes::from_static(br#"{"model":"m"}"#);
        assert_eq!(addressed(&body, Some("n"), Some("0a")), r#"{"model":"n","cache_salt":"0a"}"#);
    }

    #[test]
    fn salts_are_read_where_each_api_has_them() {
        let read = |body: &str| {
            let fields = scan(body.as_bytes()).expect("a sound body");
            let salts = Salts::read(body.as_bytes(), &fields).map_err(|error| error.message)?;
            Ok::<_, String>([salts.own, salts.extension].map(|salt| salt.map(Cow::into_owned)))
        };
        let both = r#"{"cache_salt":"s","nvext":{"cache_salt":"\u006e"}}"#;
        assert_eq!(read(both), Ok([Some("s".into()), Some("n".into())]));
        for none in ["{}", r#"{"cache_salt":null,"nvext":{"cache_salt":""}}"#, r#"{"nvext":7}"#] {
            assert_eq!(read(none), Ok([None, None]), "{none}");
        }
        let long = format!(r#"{{"cache_salt":"{}"}}"#, "x".repeat(257));
        let refused = "cache_salt has 257 bytes, it must have 1 to 256";
        assert_eq!(read(&long), Err(refused.into()));
        let wrong = r#"{"nvext":{"cache_salt":[1]}}"#;
        assert_eq!(read(wrong), Err("nvext.cache_salt must be a string".into()));
    }
}
