//! Whatever a client sends is parsed or refused with a 4xx that is well-formed JSON.

use stator_api::openai::{ApiError, ChatRequest, CompletionRequest};

/// Runs the target.
pub(crate) fn run(body: &[u8]) {
    match ChatRequest::parse(body) {
        Ok(request) => check_tokens(request.token_data.as_deref()),
        Err(error) => check(&error),
    }
    match CompletionRequest::parse(body) {
        Ok(request) => {
            check_tokens(request.token_data.as_deref());
            assert!(!request.prompts.is_empty());
        }
        Err(error) => check(&error),
    }
}

fn check(error: &ApiError) {
    assert!(error.status.is_client_error());
    let json: serde_json::Value =
        serde_json::from_slice(&error.to_json()).expect("an error is JSON");
    assert!(json["error"]["message"].is_string());
}

/// An empty list is as none.
fn check_tokens(ids: Option<&[u32]>) {
    assert!(ids.is_none_or(|ids| !ids.is_empty()));
}
