//! Anthropic's Messages API.
//!
//! A request becomes the body of a chat, so that every rule and limit of chats holds, and every
//! engine serves it. An answer is written out of the deltas that chats are written out of.
//!
//! Start reading at [`request`], then [`events`].

mod blocks;
pub mod body;
mod context;
pub mod error;
pub mod events;
pub mod request;
mod tools;
