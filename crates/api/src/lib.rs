//! What clients speak: request bodies in, response bytes out.
//!
//! Pure functions and types; no sockets, no clock, no model. Bodies that pass through unread are
//! `stator-body`'s, in `crates/api/body`.
//!
//! Start reading at [`openai`].

pub mod openai;
