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
mod messages;
pub mod models;
pub mod openapi;
pub mod options;
pub mod response;

pub use error::ApiError;
pub use response::TextApi;

use crate::request::GenerateRequest;

/// Reads and checks the body of a request to one of the two APIs.
///
/// # Errors
///
/// As [`chat::read`] and [`completion::read`].
pub fn read(api: TextApi, body: &[u8]) -> Result<GenerateRequest<'_>, ApiError> {
    match api {
        TextApi::Chat => chat::read(body),
        TextApi::Completion => completion::read(body),
    }
}
