//! Requests for vectors of texts, and for scores that are made of vectors: OpenAI's embeddings, and
//! the rankings, scores and pooling of vLLM, Jina and Cohere.
//!
//! Each API reads into one [`PooledRequest`]: inputs, of each of which a worker makes a vector, and the
//! [`PooledForm`] of the answer that is made of the vectors. Start reading at [`read`].

pub mod answer;
pub mod body;
#[cfg(test)]
mod tests;

use crate::field_notes::FieldNotes;
use crate::json::{Json, Text};
use crate::openai::ApiError;
use crate::openai::body::{EXTENSION_SALT, parse_as};
use crate::openai::fields::OneOrMany;
use crate::openai::options::{check_cache_salt, integer};
use crate::request::Prompt;
use body::{PooledExtensions, RankingBody, ScoreBody, VectorBody};
use stator_body::Api;
use std::borrow::Cow;

/// Most inputs of one request, as in the official API.
pub const INPUTS_MAX: usize = 2048;
/// Most values that a request may ask of a vector.
const DIMENSIONS_MAX: i64 = 1 << 20;

/// A request whose inputs become vectors, whichever API it came by.
#[derive(Debug, PartialEq)]
pub struct PooledRequest<'a> {
    /// The model; none means the only one.
    pub model: Option<Cow<'a, str>>,
    /// The inputs, 1 to [`INPUTS_MAX`].
    pub inputs: Vec<PooledInput<'a>>,
    /// The field that the inputs come from, in the words of error messages.
    pub input_field: &'static str,
    /// Whether the tokenizer adds its special tokens to those of a text.
    pub add_special_tokens: bool,
    /// Requests with different salts share no cached prefix.
    pub cache_salt: Option<String>,
    /// NVIDIA Dynamo's `nvext.cache_salt`, with the same meaning; never empty.
    pub extension_salt: Option<String>,
    /// The answer that is made of the vectors.
    pub form: PooledForm,
}

/// One input.
#[derive(Debug, PartialEq)]
pub struct PooledInput<'a> {
    /// The text or the tokens.
    pub prompt: Prompt<'a>,
    /// Leading tokens that count; the others are left out.
    pub tokens_max: Option<u32>,
}

/// The answer that is made of the vectors of a request.
#[derive(Debug, PartialEq)]
pub enum PooledForm {
    /// The vectors themselves: of texts with unit length, of classes as they are.
    Vectors(VectorForm),
    /// The cosine similarity of pairs of inputs.
    Scores {
        /// Numbers of the inputs of each pair.
        pairs: Vec<(usize, usize)>,
    },
    /// The inputs behind the first, in the order of their similarity to it.
    Ranking(RankingForm),
    /// Classes, which need a model with a head for them.
    Classes {
        /// Names of the classes, in the model's order; where there are none, classes have no name.
        labels: Vec<String>,
    },
}

/// Values that an engine is to make of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingTask {
    /// A vector.
    Embed,
    /// The probability of each class.
    Classify,
}

/// The form of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorForm {
    /// Kind of the values; none where the request leaves that to the model.
    pub task: Option<PoolingTask>,
    /// The API whose shape the answer has: embeddings or pooling.
    pub api: Api,
    /// Whether vectors are written as base64 of their bytes, little end first.
    pub is_base64: bool,
    /// Leading values of each vector that are wanted.
    pub dimensions: Option<u32>,
}

/// The form of a ranking.
#[derive(Debug, PartialEq)]
pub struct RankingForm {
    /// Documents in the answer at most.
    pub top_n: Option<usize>,
    /// The documents' texts, where the answer repeats them.
    pub documents: Option<Vec<String>>,
}

/// Reads and checks a body. `path` is the path that it came on, which decides a default; `notes` say
/// what becomes of fields that nobody reads.
///
/// # Errors
///
/// 400 for what is not JSON, of the wrong type, out of range or not supported; 404 for an API that asks
/// for no vectors.
pub fn read<'a>(
    api: Api,
    path: &str,
    body: &'a [u8],
    notes: &FieldNotes,
) -> Result<PooledRequest<'a>, ApiError> {
    match api {
        Api::Embeddings | Api::Pooling | Api::Classify => read_vectors(api, body, notes),
        Api::Rerank => read_ranking(path, body, notes),
        Api::Score => read_scores(body, notes),
        other => Err(ApiError::unknown_route("POST", other.path())),
    }
}

fn read_vectors<'a>(
    api: Api,
    body: &'a [u8],
    notes: &FieldNotes,
) -> Result<PooledRequest<'a>, ApiError> {
    let body: VectorBody<'_> = parse_as(body)?;
    notes.settle(api, "", &body.strangers, VectorBody::FIELDS)?;
    let salts = Salts::read(api, body.cache_salt, body.nvext, notes)?;
    let task = match body.task.as_ref().map(|task| &*task.0) {
        Some("classify") if api == Api::Pooling => Some(PoolingTask::Classify),
        None if api == Api::Pooling => None,
        None | Some("embed") => Some(PoolingTask::Embed),
        Some(other) => {
            let message = format!("the task {other:?} is not supported, \"embed\" is");
            return Err(ApiError::unsupported("task", message));
        }
    };
    let is_base64 = match body.encoding_format.as_ref().map(|format| &*format.0) {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding_format is {other:?}, it must be float or base64");
            return Err(ApiError::invalid("encoding_format", message));
        }
    };
    settled("use_activation", body.use_activation)?;
    settled("normalize", body.normalize)?;
    settled("normalized", body.normalized)?;
    let dimensions = integer("dimensions", body.dimensions, 1..=DIMENSIONS_MAX)?;
    let raw = body.input.ok_or_else(|| ApiError::missing("input"))?;
    let prompts = raw.prompts("input")?;
    let input = |prompt| PooledInput { prompt, tokens_max: None };
    let form = match api {
        Api::Classify => PooledForm::Classes { labels: Vec::new() },
        api => PooledForm::Vectors(VectorForm { task, api, is_base64, dimensions }),
    };
    let add_special_tokens = body.add_special_tokens.unwrap_or(true);
    salts.request(body.model, prompts.into_iter().map(input), "input", add_special_tokens, form)
}

/// Checks a switch that is always on: vectors have unit length, scores are their cosines, and classes
/// have probabilities.
fn settled(name: &str, value: Option<bool>) -> Result<(), ApiError> {
    if value == Some(false) {
        let message = format!("{name} cannot be false: values are normalized here");
        return Err(ApiError::unsupported(name, message));
    }
    Ok(())
}

fn read_ranking<'a>(
    path: &str,
    body: &'a [u8],
    notes: &FieldNotes,
) -> Result<PooledRequest<'a>, ApiError> {
    let body: RankingBody<'_> = parse_as(body)?;
    notes.settle(Api::Rerank, "", &body.strangers, RankingBody::FIELDS)?;
    let salts = Salts::read(Api::Rerank, body.cache_salt, body.nvext, notes)?;
    settled("use_activation", body.use_activation)?;
    let query_max = limit("max_tokens_per_query", body.max_tokens_per_query)?;
    let document_max = limit("max_tokens_per_doc", body.max_tokens_per_doc)?;
    let top_n = integer("top_n", body.top_n, 0..=i64::from(u32::MAX))?;
    let Text(query) = body.query.ok_or_else(|| ApiError::missing("query"))?;
    let documents = body.documents.ok_or_else(|| ApiError::missing("documents"))?;
    let read = |(at, given)| document(at, given);
    let documents: Vec<Cow<'_, str>> =
        documents.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    if documents.is_empty() {
        return Err(ApiError::invalid("documents", "documents must not be an empty list"));
    }
    // Cohere's clients have their documents and do not read them back.
    let repeats = body.return_documents.unwrap_or(!path.starts_with("/v2/"));
    let texts = || documents.iter().map(|text| text.clone().into_owned()).collect();
    let form = RankingForm {
        // vLLM's clients send 0 for all.
        top_n: top_n.filter(|top_n| *top_n > 0).map(|top_n| top_n as usize),
        documents: repeats.then(texts),
    };
    let query = PooledInput { prompt: Prompt::Text(query), tokens_max: query_max };
    let document = |text| PooledInput { prompt: Prompt::Text(text), tokens_max: document_max };
    let inputs = std::iter::once(query).chain(documents.into_iter().map(document));
    salts.request(body.model, inputs, "documents", true, PooledForm::Ranking(form))
}

/// Leading tokens of a text that count; 0 counts all, as vLLM's clients send it.
fn limit(name: &str, value: Option<i64>) -> Result<Option<u32>, ApiError> {
    let value = integer(name, value, 0..=i64::from(u32::MAX))?;
    Ok(value.filter(|tokens| *tokens > 0))
}

fn document(at: usize, document: Json<'_>) -> Result<Cow<'_, str>, ApiError> {
    let text = match document {
        Json::Str(text) => Some(text),
        Json::Object(members) => {
            let text = members.into_iter().rev().find(|(name, _)| name == "text");
            text.and_then(|(_, text)| if let Json::Str(text) = text { Some(text) } else { None })
        }
        _ => None,
    };
    text.ok_or_else(|| {
        let path = format!("documents[{at}]");
        let message = format!("{path} must be a text, or an object whose `text` is one");
        ApiError::invalid(&path, message)
    })
}

fn read_scores<'a>(body: &'a [u8], notes: &FieldNotes) -> Result<PooledRequest<'a>, ApiError> {
    let body: ScoreBody<'_> = parse_as(body)?;
    notes.settle(Api::Score, "", &body.strangers, ScoreBody::FIELDS)?;
    let salts = Salts::read(Api::Score, body.cache_salt, body.nvext, notes)?;
    settled("use_activation", body.use_activation)?;
    let query_max = limit("max_tokens_per_query", body.max_tokens_per_query)?;
    let document_max = limit("max_tokens_per_doc", body.max_tokens_per_doc)?;
    let sides = [
        ("text_1", body.text_1, "text_2", body.text_2),
        ("queries", body.queries, "documents", body.documents),
        ("data_1", body.data_1, "data_2", body.data_2),
    ];
    let (mut found, mut items) = (None, body.items);
    for (left, lefts, right, rights) in sides {
        // SGLang calls the documents items.
        let (right, rights) = match (left, rights) {
            ("queries", None) if items.is_some() => ("items", items.take()),
            (_, rights) => (right, rights),
        };
        match (lefts, rights) {
            (None, None) => {}
            (Some(_), _) | (_, Some(_)) if found.is_some() => {
                let message = format!("{left} and {right} are beside other texts: one pair may be");
                return Err(ApiError::impossible(left, message));
            }
            (Some(OneOrMany(lefts)), Some(OneOrMany(rights))) => {
                found = Some((lefts, right, rights));
            }
            (None, Some(_)) => return Err(ApiError::missing(left)),
            (Some(_), None) => return Err(ApiError::missing(right)),
        }
    }
    let (lefts, right, rights) = found.ok_or_else(|| ApiError::missing("text_1"))?;
    let (ones, others) = (lefts.len(), rights.len());
    if ones == 0 || others == 0 || (ones != 1 && ones != others) {
        let message =
            format!("{ones} texts and {others} {right} make no pairs: 1 and n, or n and n");
        return Err(ApiError::invalid(right, message));
    }
    let pairs = (0..others).map(|at| (if ones == 1 { 0 } else { at }, ones + at)).collect();
    let input =
        |tokens_max| move |Text(text)| PooledInput { prompt: Prompt::Text(text), tokens_max };
    let inputs = lefts.into_iter().map(input(query_max));
    let inputs = inputs.chain(rights.into_iter().map(input(document_max)));
    salts.request(body.model, inputs, right, true, PooledForm::Scores { pairs })
}

/// The salts of a request.
struct Salts {
    own: Option<String>,
    extension: Option<String>,
}

impl Salts {
    fn read(
        api: Api,
        own: Option<Text<'_>>,
        extensions: Option<PooledExtensions<'_>>,
        notes: &FieldNotes,
    ) -> Result<Self, ApiError> {
        if let Some(extensions) = &extensions {
            notes.settle(api, "nvext.", &extensions.strangers, PooledExtensions::FIELDS)?;
            if let Some(hints) = &extensions.agent_hints {
                hints.settle(api, notes)?;
            }
        }
        let extension = extensions.and_then(|extensions| extensions.cache_salt);
        let extension = extension.filter(|salt| !salt.0.is_empty());
        own.iter().try_for_each(|salt| check_cache_salt("cache_salt", &salt.0))?;
        extension.iter().try_for_each(|salt| check_cache_salt(EXTENSION_SALT, &salt.0))?;
        let owned = |salt: Option<Text<'_>>| salt.map(|salt| salt.0.into_owned());
        Ok(Self { own: owned(own), extension: owned(extension) })
    }

    /// The request with these salts, if its inputs are not too many.
    fn request<'a>(
        self,
        model: Option<Text<'a>>,
        inputs: impl Iterator<Item = PooledInput<'a>>,
        input_field: &'static str,
        add_special_tokens: bool,
        form: PooledForm,
    ) -> Result<PooledRequest<'a>, ApiError> {
        let inputs: Vec<_> = inputs.collect();
        if inputs.len() > INPUTS_MAX {
            let message =
                format!("{input_field} makes {} inputs, the limit is {INPUTS_MAX}", inputs.len());
            return Err(ApiError::invalid(input_field, message));
        }
        Ok(PooledRequest {
            model: model.map(|model| model.0),
            inputs,
            input_field,
            add_special_tokens,
            cache_salt: self.own,
            extension_salt: self.extension,
            form,
        })
    }
}
