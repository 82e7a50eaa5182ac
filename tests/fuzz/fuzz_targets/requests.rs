//! Whatever a client sends is parsed or refused with a 4xx that is well-formed JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stator_model::openai::{ApiError, ChatRequest, CompletionRequest};

fuzz_target!(|body: &[u8]| {
    check(ChatRequest::parse(body).err());
    check(CompletionRequest::parse(body).err());
});

fn check(error: Option<ApiError>) {
    if let Some(error) = error {
        assert!(error.status.is_client_error());
        assert!(error.to_json().starts_with(b"{\"error\":{"));
    }
}
