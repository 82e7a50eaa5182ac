//! The OpenAI API as values: request bodies in, response bytes out.
//!
//! Pure functions and types; no sockets, no clock, no model. [`ChatRequest::parse`] and
//! [`CompletionRequest::parse`] turn a body into checked values, [`response`] writes answers
//! without building a tree, and [`ApiError`] is every way in which a request can fail.
//!
//! Start reading at [`chat`], then [`response`].

pub mod body;
pub mod chat;
pub mod completion;
pub mod error;
pub mod escape;
pub mod fields;
pub mod guide;
pub mod json;
pub mod logprobs;
pub mod message;
pub mod models;
pub mod openapi;
pub mod request;
pub mod response;

pub use chat::ChatRequest;
pub use completion::{CompletionRequest, Prompt};
pub use error::ApiError;
pub use request::GenerateOptions;
