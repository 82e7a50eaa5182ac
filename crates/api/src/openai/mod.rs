//! OpenAI's text APIs: chats and completions.
//!
//! [`read`] turns a body into a checked request, [`response`] writes answers without building a tree,
//! and [`ApiError`] is every way in which a request can fail.
//!
//! Start reading at [`chat`], then [`response`].

pub mod body;
pub mod chat;
pub mod completion;
pub mod error;
pub mod escape;
pub mod fields;
pub mod guide;
pub mod logprobs;
mod message;
mod messages;
pub mod models;
pub mod openapi;
pub mod options;
pub mod response;
pub mod tools;

pub use error::ApiError;

use crate::request::GenerateRequest;
use stator_body::Api;

/// Reads and checks the body of a request to chats or completions.
///
/// # Errors
///
/// As [`chat::read`] and [`completion::read`]; 404 for any other API.
pub fn read(api: Api, body: &[u8]) -> Result<GenerateRequest<'_>, ApiError> {
    match api {
        Api::ChatCompletions => chat::read(body),
        Api::Completions => completion::read(body),
        other => Err(ApiError::unknown_route("POST", other.path())),
    }
}
