//! Counts what the house rules limit: arrows between rooms, circles between files, lengths, shared
//! names and headless doc lines. It parses the workspace's own production code, runs none of it, and
//! knows no other crate. Start reading at [`source`]; `tests/tidy.rs` holds the limits.

pub mod circles;
pub mod rooms;
pub mod sizes;
pub mod source;
pub mod words;
