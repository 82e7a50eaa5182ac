//! The form that an answer must have: `response_format`, and what engines call it.
//!
//! Source: the "Structured outputs" guide of the OpenAI API; vLLM's `structured_outputs` and the
//! `guided_…` fields before it; SGLang's `json_schema`, `regex`, `ebnf` and `structural_tag`.

use super::body::Body;
use super::error::ApiError;
use crate::json::Json;
use stator_protos::worker::guide::Form;
use std::borrow::Cow;

/// Longest schema, expression, grammar or tag, and longest choices together, in bytes.
pub const GUIDE_MAX_BYTES: usize = 64 << 10;
/// Most choices.
pub const GUIDE_CHOICES_MAX: usize = 1024;
/// Deepest nesting of a schema or a tag.
pub const GUIDE_DEPTH_MAX: usize = 64;

/// The form of an answer, and the field that asks for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GuideField {
    /// In the words of the request.
    pub field: &'static str,
    /// The form that the answer must have.
    pub form: Form,
}

/// Reads the form that one field asks for.
type Kind = fn(&str, &Json<'_>) -> Result<Option<Form>, ApiError>;

/// The form that a request asks for, if any.
///
/// # Errors
///
/// 400 for a form that is none or past the limits, 422 where several are asked for.
pub(crate) fn guided(body: &Body<'_>) -> Result<Option<GuideField>, ApiError> {
    let fields: [(&'static str, &Option<Json<'_>>, Kind); 10] = [
        ("response_format", &body.response_format, response_format),
        ("structured_outputs", &body.structured_outputs, structured_outputs),
        ("guided_json", &body.guided_json, json_schema),
        ("guided_regex", &body.guided_regex, regex),
        ("guided_choice", &body.guided_choice, choices),
        ("guided_grammar", &body.guided_grammar, grammar),
        ("json_schema", &body.json_schema, json_schema),
        ("regex", &body.regex, regex),
        ("ebnf", &body.ebnf, grammar),
        ("structural_tag", &body.structural_tag, structural_tag),
    ];
    let mut found: Option<GuideField> = None;
    for (field, value, kind) in fields {
        let Some(value) = value else { continue };
        let Some(form) = kind(field, value)? else { continue };
        // An engine takes one form, and nobody can tell which of two the client meant.
        if let Some(GuideField { field: other, .. }) = found {
            let message = format!("{other} and {field} each give the answer a form: one may");
            return Err(ApiError::impossible(field, message));
        }
        found = Some(GuideField { field, form });
    }
    Ok(found)
}

fn response_format(field: &str, format: &Json<'_>) -> Result<Option<Form>, ApiError> {
    if matches!(format, Json::Null) {
        return Ok(None);
    }
    match format.get("type").and_then(Json::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Form::any_object())),
        Some("json_schema") => {
            let path = "response_format.json_schema.schema";
            let schema = format.get("json_schema").and_then(|schema| schema.get("schema"));
            let schema = schema.map(|schema| json_schema(path, schema)).transpose()?.flatten();
            schema.map(Some).ok_or_else(|| ApiError::missing(path))
        }
        Some("structural_tag") => structural_tag(field, format),
        kind => {
            let message = format!(
                "response_format of type {:?} is not supported, only text, json_object, \
                 json_schema and structural_tag",
                kind.unwrap_or("null")
            );
            Err(ApiError::unsupported(field, message))
        }
    }
}

/// vLLM's object, of which one member says the form and the others how it is to be taken.
fn structured_outputs(field: &str, outputs: &Json<'_>) -> Result<Option<Form>, ApiError> {
    let members = match outputs {
        Json::Null => return Ok(None),
        Json::Object(members) => members,
        _ => return Err(ApiError::invalid(field, format!("{field} must be an object"))),
    };
    let mut found: Option<Form> = None;
    for (name, value) in members {
        let path = format!("{field}.{name}");
        let form = match &**name {
            "json" => json_schema(&path, value)?,
            "regex" => regex(&path, value)?,
            "choice" => choices(&path, value)?,
            "grammar" => grammar(&path, value)?,
            "structural_tag" => structural_tag(&path, value)?,
            "json_object" => match value {
                Json::Null | Json::Bool(false) => None,
                Json::Bool(true) => Some(Form::any_object()),
                _ => return Err(ApiError::invalid(&path, format!("{path} must be a boolean"))),
            },
            _ if matches!(value, Json::Null | Json::Bool(false)) => None,
            _ => return Err(ApiError::unsupported(&path, format!("{path} is not supported"))),
        };
        // Engines would take one of several, and not the same one.
        if form.is_some() && found.is_some() {
            let message = format!("{field} has several forms, it must have one");
            return Err(ApiError::impossible(field, message));
        }
        found = form.or(found);
    }
    Ok(found)
}

fn json_schema(path: &str, value: &Json<'_>) -> Result<Option<Form>, ApiError> {
    Ok(object(path, value)?.map(Form::JsonSchema))
}

fn structural_tag(path: &str, value: &Json<'_>) -> Result<Option<Form>, ApiError> {
    Ok(object(path, value)?.map(Form::StructuralTag))
}

fn regex(path: &str, value: &Json<'_>) -> Result<Option<Form>, ApiError> {
    Ok(text(path, value)?.map(Form::Regex))
}

fn grammar(path: &str, value: &Json<'_>) -> Result<Option<Form>, ApiError> {
    Ok(text(path, value)?.map(Form::Grammar))
}

fn choices(path: &str, value: &Json<'_>) -> Result<Option<Form>, ApiError> {
    let invalid = |message: String| ApiError::invalid(path, message);
    let items = match value {
        Json::Null => return Ok(None),
        Json::Array(items) if items.is_empty() => return Ok(None),
        Json::Array(items) => items,
        _ => return Err(invalid(format!("{path} must be a list of strings"))),
    };
    if items.len() > GUIDE_CHOICES_MAX {
        let count = items.len();
        return Err(invalid(format!("{path} has {count} texts, the limit is {GUIDE_CHOICES_MAX}")));
    }
    let texts = items.iter().enumerate().map(|(at, item)| match item.as_str() {
        Some("") => Err(invalid(format!("{path}[{at}] is empty"))),
        Some(text) => Ok(text.to_owned()),
        None => Err(invalid(format!("{path}[{at}] must be a string"))),
    });
    let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    check_size(path, texts.iter().map(String::len).sum())?;
    Ok(Some(Form::one_of(texts)))
}

/// A text that is not empty.
fn text(path: &str, value: &Json<'_>) -> Result<Option<String>, ApiError> {
    match value {
        Json::Null => Ok(None),
        Json::Str(text) if text.is_empty() => Ok(None),
        Json::Str(text) => {
            check_size(path, text.len())?;
            Ok(Some(text.clone().into_owned()))
        }
        _ => Err(ApiError::invalid(path, format!("{path} must be a string"))),
    }
}

/// An object, or the text of one, as text.
fn object(path: &str, value: &Json<'_>) -> Result<Option<String>, ApiError> {
    let (text, parsed) = match value {
        Json::Null => return Ok(None),
        Json::Str(text) if text.is_empty() => return Ok(None),
        Json::Str(text) => {
            // Before it is parsed: the limit is on the work, too.
            check_size(path, text.len())?;
            let parsed: Json<'_> = serde_json::from_str(text).map_err(|error| {
                ApiError::invalid(path, format!("{path} is not valid JSON: {error}"))
            })?;
            (text.clone(), Cow::Owned(parsed))
        }
        value => {
            let text = serde_json::to_string(value).expect("JSON that was read can be written");
            (text.into(), Cow::Borrowed(value))
        }
    };
    if !matches!(*parsed, Json::Object(_)) {
        return Err(ApiError::invalid(path, format!("{path} must be an object")));
    }
    check_size(path, text.len())?;
    if parsed.depth() > GUIDE_DEPTH_MAX {
        let depth = parsed.depth();
        let message = format!("{path} nests {depth} levels deep, the limit is {GUIDE_DEPTH_MAX}");
        return Err(ApiError::invalid(path, message));
    }
    Ok(Some(text.into_owned()))
}

fn check_size(path: &str, bytes: usize) -> Result<(), ApiError> {
    if bytes <= GUIDE_MAX_BYTES {
        return Ok(());
    }
    let message = format!("{path} has {bytes} bytes, the limit is {GUIDE_MAX_BYTES}");
    Err(ApiError::invalid(path, message))
}

#[cfg(test)]
#[path = "guide_tests.rs"]
mod tests;
