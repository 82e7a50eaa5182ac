//! Operations on a TensorRT-LLM as a whole: its memory and its weights, where the server offers
//! them (its `sleep_config`).
//!
//! A request without tags applies to the tags that the server knows: `model` and `kv_cache` in
//! version 1.2, all later. The server's `sleep_config` decides whether weights survive; by default
//! it keeps them in host memory. Later versions want requests signed, and refuse these.

use crate::http::Client;
use crate::{Fault, Operation};

pub(super) async fn operate(client: &Client, operation: &Operation) -> Result<(), Fault> {
    let (path, body) = request(operation)?;
    client.operate(path, Some(body)).await.map(drop)
}

/// Path and body of an operation.
fn request(operation: &Operation) -> Result<(&'static str, Vec<u8>), Fault> {
    let defaults = || b"{}".to_vec();
    match operation {
        Operation::Sleep { level: 0 } => {
            Err(Fault::Unsupported("level: 0 is a pause, which TensorRT-LLM has not".into()))
        }
        Operation::Sleep { .. } => Ok(("/release_memory", defaults())),
        Operation::Wake => Ok(("/resume_memory", defaults())),
        Operation::UpdateWeights { request } => {
            Ok(("/update_weights", request.as_bytes().to_vec()))
        }
        _ => Err(Fault::Unsupported(format!("{operation:?}: TensorRT-LLM has no such operation"))),
    }
}
