//! Whatever a client sends is parsed or refused with a 4xx that is well-formed JSON.

use stator_api::openai::ApiError;
use stator_api::{Api, FieldNotes, Input, Prompt, UnknownFields, read};

/// Runs the target.
pub(crate) fn run(body: &[u8]) {
    for api in [Api::ChatCompletions, Api::Completions, Api::Messages, Api::CountTokens] {
        match read(api, body, &FieldNotes::default()) {
            Ok(request) => {
                check_input(&request.input);
                // Whoever is lenient takes what the strict take.
                let lenient = read(api, body, &FieldNotes::new(UnknownFields::Ignore));
                lenient.expect("it was taken");
            }
            Err(error) => check(&error),
        }
    }
}

fn check(error: &ApiError) {
    assert!(error.status.is_client_error());
    let json: serde_json::Value =
        serde_json::from_slice(&error.to_json()).expect("an error is JSON");
    assert!(json["error"]["message"].is_string());
}

/// There is something to answer.
fn check_input(input: &Input<'_>) {
    match input {
        Input::Conversation(conversation) => assert!(!conversation.messages.is_empty()),
        Input::Prompts { prompts, .. } => {
            let is_empty =
                |prompt: &Prompt<'_>| matches!(prompt, Prompt::Tokens(ids) if ids.is_empty());
            assert!(!prompts.is_empty() && !prompts.iter().any(is_empty));
        }
    }
}
