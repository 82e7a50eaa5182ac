//! OpenAI's text APIs: chats and completions.
//!
//! [`chat::read`] turns a body into a checked request, [`response`] writes answers without building a tree,
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
pub(crate) mod messages;
pub mod models;
pub(crate) mod nested;
pub mod openapi;
pub mod options;
pub mod response;
pub mod tools;

pub use error::ApiError;
