//! Operations on a vLLM as a whole.

use crate::http::Client;
use crate::{Fault, Operation, json};
use serde::Deserialize;
use serde_json::json;

pub(super) async fn operate(client: &Client, operation: &Operation) -> Result<(), Fault> {
    let (path, body) = request(operation);
    let answer = client.operate(&path, body).await?;
    if *operation == Operation::ResetCache {
        return reset(&answer);
    }
    Ok(())
}

/// Path and body of an operation.
fn request(operation: &Operation) -> (String, Option<Vec<u8>>) {
    let body = |value: serde_json::Value| Some(json::raw(&value).get().as_bytes().to_vec());
    match operation {
        Operation::ResetCache => ("/reset_prefix_cache".into(), None),
        // The default mode aborts what runs.
        Operation::Pause => ("/pause?mode=keep".into(), None),
        Operation::Resume => ("/resume".into(), None),
        Operation::Sleep { level } => (format!("/sleep?level={level}"), None),
        Operation::Wake => ("/wake_up".into(), None),
        Operation::LoadAdapter { name, path } => {
            ("/v1/load_lora_adapter".into(), body(json!({ "lora_name": name, "lora_path": path })))
        }
        Operation::UnloadAdapter { name } => {
            ("/v1/unload_lora_adapter".into(), body(json!({ "lora_name": name })))
        }
        Operation::StartProfile => ("/start_profile".into(), None),
        Operation::StopProfile => ("/stop_profile".into(), None),
        Operation::UpdateWeights { request } => {
            ("/update_weights".into(), Some(request.as_bytes().to_vec()))
        }
    }
}

/// Reads the answer to a reset, which fails while requests hold blocks; older versions answer
/// nothing.
fn reset(answer: &[u8]) -> Result<(), Fault> {
    #[derive(Deserialize)]
    struct Reset {
        success: bool,
    }
    match serde_json::from_slice(answer) {
        Ok(Reset { success: false }) => {
            Err(Fault::Overloaded("the cache cannot be reset while requests hold blocks".into()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_that_did_nothing_is_no_success() {
        assert_eq!(reset(br#"{"success":true}"#), Ok(()));
        assert_eq!(reset(b""), Ok(()));
        assert!(matches!(reset(br#"{"success":false}"#), Err(Fault::Overloaded(_))));
    }
}
