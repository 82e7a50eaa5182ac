//! The ext-proc messages in protobuf, read and written by hand.
//!
//! Generated types would copy every body into a `Vec<u8>` and out again. Here a body is a slice
//! of the frame that brought it, and goes out as it is. The metadata that a data plane sends is
//! small and rare, and left to the generated types.
//!
//! Source: `envoy/service/ext_proc/v3/external_processor.proto`; the tests compare both ways
//! with the types generated from it.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub(crate) use decode::decode;
pub(crate) use encode::{Sink, encode};
