//! What can be done to a TensorRT-LLM as a whole: its memory and its weights, where the server was
//! made to offer that (its `sleep_config`).
//!
//! Without tags a server takes those that it knows: `model` and `kv_cache` in version 1.2, all of
//! them later. Whether weights survive is for its `sleep_config` to say, which keeps them in host
//! memory where it says nothing. Later versions want requests signed, and refuse these.

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
