//! A request as the picker sees it.

use super::ParseError;
use crate::api::Api;
use crate::cursor::find_member;
use crate::editor::Editor;
use crate::fields::{Field, Fields, whole_number};
use crate::scan::scan;
use crate::span::Span;
use crate::strings::unquote;
use crate::text::prompt_bytes;
use crate::tokens::read_token_ids;
use std::borrow::Cow;

/// A parsed request. Positions are those of the body that it was read from.
#[derive(Clone, Debug)]
pub struct ParsedBody {
    /// The API; none for a body that nobody has read.
    pub api: Option<Api>,
    /// The model, or the LoRA adapter, as the client names it; empty where the API names none.
    pub model: String,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Tokens that the answer may have, where the request says so.
    pub max_output_tokens: Option<u32>,
    /// Salt that keeps the caches of different tenants apart; never empty.
    pub cache_salt: Option<String>,
    /// The prompt, and where it stands.
    pub input: Input,
}

/// Position of a request's input.
#[derive(Clone, Debug)]
pub enum Input {
    /// In the fields of a JSON object, which is all of an HTTP body or a part of a gRPC one.
    Json {
        /// The JSON text within the body.
        at: Span,
        /// Its fields, with positions within that text.
        fields: Fields,
    },
    /// Text as it is.
    Text(Span),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Unread.
    Opaque,
}

impl ParsedBody {
    /// A request about which nothing is known.
    pub(super) fn opaque() -> Self {
        Self {
            api: None,
            model: String::new(),
            stream: false,
            max_output_tokens: None,
            cache_salt: None,
            input: Input::Opaque,
        }
    }

    /// Reads what the JSON APIs have in common; a missing model is left empty.
    pub(super) fn from_json(api: Api, body: &[u8], at: Span) -> Result<Self, ParseError> {
        let text = at.of(body);
        let fields = scan(text)?;
        let model = fields.raw(text, Field::Model).and_then(unquote).unwrap_or_default();
        Ok(Self {
            api: Some(api),
            model: model.into_owned(),
            stream: fields.flag(text, Field::Stream) == Some(true),
            max_output_tokens: max_output_tokens(text, &fields),
            cache_salt: cache_salt(text, &fields),
            input: Input::Json { at, fields },
        })
    }

    /// The same request, which has to name a model.
    pub(super) fn with_model(self) -> Result<Self, ParseError> {
        if self.model.is_empty() { Err(ParseError::NoModel) } else { Ok(self) }
    }

    /// The JSON text and its fields, where the input is JSON.
    pub fn json<'a>(&self, body: &'a [u8]) -> Option<(&'a [u8], &Fields)> {
        match &self.input {
            Input::Json { at, fields } => Some((at.of(body), fields)),
            _ => None,
        }
    }

    /// An editor of `body`, where that is JSON as a whole. Nothing can change within a gRPC
    /// message, whose lengths would no longer be right.
    pub fn editor<'a>(&'a self, body: &'a [u8]) -> Option<Editor<'a>> {
        match &self.input {
            Input::Json { at, fields } if at.len() == body.len() => Some(Editor::new(body, fields)),
            _ => None,
        }
    }

    /// The input bytes in the order of the prompt; see [`prompt_bytes`]. Input that came as token
    /// ids of a gRPC message has none.
    pub fn prompt_bytes<'a>(&self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let text = match self.input {
            Input::Text(span) => Some(span.of(body)),
            _ => None,
        };
        let json = self.json(body).map(|(text, fields)| prompt_bytes(text, fields));
        json.into_iter().flatten().chain(text)
    }

    /// The prompt's token ids, where the request brings one list of them: as its prompt, or beside
    /// it as Dynamo's `nvext.token_data`.
    pub fn token_ids(&self, body: &[u8]) -> Option<Vec<u32>> {
        if let Input::Tokens(ids) = &self.input {
            return Some(ids.clone());
        }
        let (text, fields) = self.json(body)?;
        let prompt = match self.api? {
            Api::Completions => fields.get(Field::Prompt),
            Api::Embeddings => fields.get(Field::Input),
            Api::VllmGenerate => fields.get(Field::TokenIds),
            Api::SglangGenerate => fields.get(Field::InputIds),
            _ => None,
        };
        let list = extension(text, fields, "token_data").or(prompt)?;
        read_token_ids(list.of(text)).filter(|ids| !ids.is_empty())
    }
}

/// Limit on the answer's tokens: the newer name goes before the older one.
fn max_output_tokens(text: &[u8], fields: &Fields) -> Option<u32> {
    [Field::MaxCompletionTokens, Field::MaxOutputTokens, Field::MaxTokens]
        .into_iter()
        .find_map(|field| fields.number(text, field))
        .or_else(|| {
            let params = fields.get(Field::SamplingParams)?;
            ["max_tokens", "max_new_tokens"]
                .into_iter()
                .find_map(|name| whole_number(find_member(text, params, name)?.value.of(text)))
        })
}

/// Dynamo's `nvext.cache_salt` goes before vLLM's `cache_salt` and SGLang's `extra_key`.
fn cache_salt(text: &[u8], fields: &Fields) -> Option<String> {
    [
        extension(text, fields, "cache_salt"),
        fields.get(Field::CacheSalt),
        fields.get(Field::ExtraKey),
    ]
    .into_iter()
    .flatten()
    .filter_map(|span| unquote(span.of(text)))
    .find(|salt| !salt.is_empty())
    .map(|salt| salt.into_owned())
}

/// The raw value of Dynamo's `nvext.cache_salt`, a string with its quotes.
pub fn extension_salt<'a>(text: &'a [u8], fields: &Fields) -> Option<&'a [u8]> {
    extension(text, fields, "cache_salt").map(|span| span.of(text))
}

/// The session that a body names for its request: by `prompt_cache_key`, or by the response that it
/// continues. What is empty, or no text, names none.
pub fn session_name<'a>(text: &'a [u8], fields: &Fields) -> Option<Cow<'a, str>> {
    let names = [Field::PromptCacheKey, Field::PreviousResponseId].into_iter();
    names.filter_map(|field| unquote(fields.raw(text, field)?)).find(|name| !name.is_empty())
}

/// A member of Dynamo's `nvext`.
fn extension(text: &[u8], fields: &Fields, name: &str) -> Option<Span> {
    find_member(text, fields.get(Field::Nvext)?, name).map(|member| member.value)
}
