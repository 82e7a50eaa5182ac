//! APIs of clients: request bodies in, response bytes out.
//!
//! A module for each API reads into one [`GenerateRequest`] and writes out of one [`Delta`], with
//! the API's own error shape; nothing behind it knows which API it was. Pure functions and types; no
//! sockets, no clock, no model. Bodies that pass through unread are `stator-body`'s, in
//! `crates/api/body`.
//!
//! Start reading at [`request`], then [`openai`].

pub mod conversation;
pub mod delta;
pub mod json;
pub mod openai;
pub mod request;
pub mod steering;
pub mod tools;

pub use conversation::Conversation;
pub use delta::Delta;
pub use request::{GenerateOptions, GenerateRequest, Input, Prompt};
pub use stator_body::Api;
pub use tools::{ToolChoice, ToolUse};
