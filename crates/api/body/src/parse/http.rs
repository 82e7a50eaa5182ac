//! The APIs over plain HTTP: OpenAI's, Anthropic's, vLLM's and SGLang's own, and any other.

use super::{ParseError, ParseOutcome, ParsedBody, Parser};
use crate::api::{Api, ApiFamily};
use crate::fields::Field;
use crate::span::Span;

/// OpenAI's API. A path that it does not know counts as completions.
pub(super) struct OpenAi;

impl Parser for OpenAi {
    fn name(&self) -> &'static str {
        "openai-parser"
    }

    fn families(&self) -> &'static [ApiFamily] {
        &[ApiFamily::OpenAi]
    }

    fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError> {
        let api = Api::by_ending(self.families(), path).map_or(Api::Completions, |known| known.api);
        let request = openai(api, body, whole(body))?;
        Ok(ParseOutcome::Request(match api {
            // These may leave the model out.
            Api::Pooling | Api::Classify | Api::Rerank | Api::Score => request,
            _ => request.with_model()?,
        }))
    }
}

/// Reads the OpenAI request that stands at `at`; it may lack a model.
pub(super) fn openai(api: Api, body: &[u8], at: Span) -> Result<ParsedBody, ParseError> {
    let (field, shape, request): (_, Shape, _) = match api {
        // Engines' own APIs, which have their texts under several names: the engine says what is missing.
        Api::Pooling | Api::Classify | Api::Rerank | Api::Score => {
            return ParsedBody::from_json(api, body, at);
        }
        Api::ChatCompletions => (Field::Messages, is_object_list, "chat completions"),
        Api::Responses => (Field::Input, is_something, "responses"),
        Api::Conversations => (Field::Items, is_list, "conversations"),
        Api::Embeddings => (Field::Input, is_text_or_list, "embeddings"),
        Api::Images => (Field::Prompt, is_text, "images generations"),
        Api::Speech => (Field::Input, is_text, "audio speech"),
        _ => (Field::Prompt, is_text_or_list, "completions"),
    };
    let problem = match field {
        Field::Messages => "must have valid messages field",
        Field::Input => "must have input field",
        Field::Items => "must have items field",
        _ => "must have prompt field",
    };
    let parsed = ParsedBody::from_json(api, body, at)?;
    if !has(&parsed, body, field, shape) {
        return Err(ParseError::Field { request, problem });
    }
    Ok(parsed)
}

/// Anthropic's messages.
pub(super) struct Anthropic;

impl Parser for Anthropic {
    fn name(&self) -> &'static str {
        "anthropic-parser"
    }

    fn families(&self) -> &'static [ApiFamily] {
        &[ApiFamily::Anthropic]
    }

    fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError> {
        let unknown = || ParseError::Path(path.to_owned());
        let api = Api::by_ending(self.families(), path).ok_or_else(unknown)?.api;
        let request = ParsedBody::from_json(api, body, whole(body))?;
        if api == Api::Messages && !has(&request, body, Field::Messages, is_object_list) {
            let problem = "must have at least one message";
            return Err(ParseError::Field { request: "messages", problem });
        }
        Ok(ParseOutcome::Request(request.with_model()?))
    }
}

/// vLLM's token-in, token-out API, and OpenAI's on every other path.
pub(super) struct VllmHttp;

impl Parser for VllmHttp {
    fn name(&self) -> &'static str {
        "vllmhttp-parser"
    }

    fn families(&self) -> &'static [ApiFamily] {
        &[ApiFamily::Vllm, ApiFamily::OpenAi]
    }

    fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError> {
        let known = Api::by_ending(self.families(), path);
        if known.is_none_or(|known| known.api != Api::VllmGenerate) {
            return OpenAi.parse(path, body);
        }
        let request = ParsedBody::from_json(Api::VllmGenerate, body, whole(body))?;
        if !has(&request, body, Field::TokenIds, is_list) {
            let problem = "must have non-empty token_ids field";
            return Err(ParseError::Field { request: "generate", problem });
        }
        Ok(ParseOutcome::Request(request.with_model()?))
    }
}

/// SGLang's own API, which names no model.
pub(super) struct SglangHttp;

impl Parser for SglangHttp {
    fn name(&self) -> &'static str {
        "sglanghttp-parser"
    }

    fn families(&self) -> &'static [ApiFamily] {
        &[ApiFamily::Sglang]
    }

    fn parse(&self, path: &str, body: &[u8]) -> Result<ParseOutcome, ParseError> {
        let unknown = || ParseError::Path(path.to_owned());
        let api = Api::by_ending(self.families(), path).ok_or_else(unknown)?.api;
        let request = ParsedBody::from_json(api, body, whole(body))?;
        let ids = has(&request, body, Field::InputIds, is_list);
        if !ids && !has(&request, body, Field::Text, is_text_or_list) {
            let problem = "must have input_ids or text field";
            return Err(ParseError::Field { request: "generate", problem });
        }
        Ok(ParseOutcome::Request(request))
    }
}

/// Bodies of any kind, which it does not read.
pub(super) struct Passthrough;

impl Parser for Passthrough {
    fn name(&self) -> &'static str {
        "passthrough-parser"
    }

    fn families(&self) -> &'static [ApiFamily] {
        &[]
    }

    fn parse(&self, _: &str, _: &[u8]) -> Result<ParseOutcome, ParseError> {
        Ok(ParseOutcome::Request(ParsedBody::opaque()))
    }
}

fn whole(body: &[u8]) -> Span {
    Span { start: 0, end: body.len() }
}

/// Whether a raw value has the shape that an API wants.
type Shape = fn(&[u8]) -> bool;

/// Whether a field is there and has this shape.
fn has(parsed: &ParsedBody, body: &[u8], field: Field, shape: Shape) -> bool {
    parsed.json(body).and_then(|(text, fields)| fields.raw(text, field)).is_some_and(shape)
}

fn is_something(raw: &[u8]) -> bool {
    raw != b"null"
}

/// A string with text in it.
fn is_text(raw: &[u8]) -> bool {
    raw.starts_with(b"\"") && raw.len() > 2
}

/// The first byte within a list; nothing where there is no list or nothing in it.
fn first_item(raw: &[u8]) -> Option<u8> {
    let items = raw.strip_prefix(b"[")?.trim_ascii_start();
    items.first().copied().filter(|&byte| byte != b']')
}

fn is_list(raw: &[u8]) -> bool {
    first_item(raw).is_some()
}

fn is_object_list(raw: &[u8]) -> bool {
    first_item(raw) == Some(b'{')
}

fn is_text_or_list(raw: &[u8]) -> bool {
    is_text(raw) || is_list(raw)
}
