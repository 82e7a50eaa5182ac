//! APIs of clients: request bodies in, response bytes out.
//!
//! A module for each API reads into one [`GenerateRequest`] and writes out of one [`Delta`], with
//! the API's own error shape; nothing behind it knows which API it was. Requests for vectors are
//! [`pooled`] ones. Pure functions and types; no
//! sockets, no clock, no model. Bodies that pass through unread are `stator-body`'s, in
//! `crates/api/body`.
//!
//! Start reading at [`read`], then [`request`] and [`openai`].

pub mod agent_headers;
pub mod anthropic;
mod cache_control;
pub mod conversation;
pub mod custom_tools;
pub mod delta;
pub mod field_notes;
#[cfg(test)]
mod field_pages;
pub mod field_rules;
pub mod json;
pub mod kserve;
pub mod media;
pub mod object;
pub mod openai;
pub mod partial_json;
pub mod passed_fields;
pub mod pooled;
pub mod request;
pub mod responses;
pub mod salts;
pub mod space;
pub mod steering;
pub mod stream;
mod thoughts;
pub mod tokenize;
pub mod tools;
mod tree;
mod wording;

pub use conversation::Conversation;
pub use delta::Delta;
pub use field_notes::{FieldNotes, UnknownFields};
pub use request::{GenerateOptions, GenerateRequest, Input, Prompt, PromptPin, ThoughtBudget};
pub use stator_body::Api;
pub use tools::{ToolChoice, ToolUse};

use openai::ApiError;

/// Reads and checks the body of a request for text; `notes` say what becomes of fields that nobody
/// reads, and keep their names.
///
/// # Errors
///
/// As the modules of the APIs; 404 for an API that asks for no text.
pub fn read<'a>(
    api: Api,
    body: &'a [u8],
    notes: &FieldNotes,
) -> Result<GenerateRequest<'a>, ApiError> {
    let mut request = match api {
        Api::Messages => anthropic::request::read(body, notes),
        Api::CountTokens => anthropic::request::read_count(body, notes),
        Api::ChatCompletions => openai::chat::read_noting(body, notes),
        Api::Completions => openai::completion::read_noting(body, notes),
        other => Err(ApiError::unknown_route("POST", other.path())),
    }?;
    request.options.pin = notes.pinned();
    Ok(request)
}
