//! Operations on an SGLang as a whole.

use crate::http::Client;
use crate::{Fault, Operation, json};
use serde_json::json;

pub(super) async fn operate(
    client: &Client,
    operation: &Operation,
    keeps_weights: bool,
) -> Result<(), Fault> {
    let (path, body) = request(operation, keeps_weights)?;
    match client.operate(path, Some(body)).await {
        Ok(_) => Ok(()),
        // It says so with the status of a bad request.
        Err(Fault::Invalid(why)) if *operation == Operation::ResetCache => {
            Err(Fault::Overloaded(why))
        }
        Err(fault) => Err(fault),
    }
}

/// Path and body of an operation.
fn request(operation: &Operation, keeps_weights: bool) -> Result<(&'static str, Vec<u8>), Fault> {
    let (path, body) = match operation {
        Operation::ResetCache => ("/flush_cache", json!({})),
        // The default mode aborts what runs.
        Operation::Pause => ("/pause_generation", json!({ "mode": "in_place" })),
        Operation::Resume => ("/continue_generation", json!({})),
        Operation::Sleep { level } => {
            sleep(*level, keeps_weights)?;
            ("/release_memory_occupation", json!({}))
        }
        Operation::Wake => ("/resume_memory_occupation", json!({})),
        Operation::LoadAdapter { name, path } => {
            ("/load_lora_adapter", json!({ "lora_name": name, "lora_path": path }))
        }
        Operation::UnloadAdapter { name } => ("/unload_lora_adapter", json!({ "lora_name": name })),
        Operation::StartProfile => ("/start_profile", json!({})),
        Operation::StopProfile => ("/stop_profile", json!({})),
        Operation::UpdateWeights { request } => {
            return Ok(("/update_weights_from_disk", request.as_bytes().to_vec()));
        }
    };
    Ok((path, json::raw(&body).get().as_bytes().to_vec()))
}

/// Checks a sleep level. The engine releases memory in one way; its configuration decides whether
/// the weights survive.
fn sleep(level: u8, keeps_weights: bool) -> Result<(), Fault> {
    match (level, keeps_weights) {
        (0, _) => Err(Fault::Unsupported("level: 0 is a pause here".into())),
        (1, false) => {
            let why = "it runs without --enable-weights-cpu-backup and would drop the weights";
            Err(Fault::Unsupported(format!("level: 1 is not to be had, {why}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_never_drops_weights_that_were_to_be_kept() {
        let check = |level, keeps| request(&Operation::Sleep { level }, keeps).is_ok();
        assert_eq!([check(0, true), check(1, true), check(2, true)], [false, true, true]);
        assert_eq!([check(0, false), check(1, false), check(2, false)], [false, false, true]);
    }
}
