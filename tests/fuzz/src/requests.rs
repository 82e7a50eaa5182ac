//! Whatever a client sends is parsed or refused with a 4xx that is well-formed JSON.

use stator_api::delta::Identity;
use stator_api::kserve::json::{JsonCall, read_generate, read_infer};
use stator_api::openai::ApiError;
use stator_api::pooled;
use stator_api::pooled::answer::answer;
use stator_api::responses::ThoughtSeal;
use stator_api::responses::request::ResponsePlace;
use stator_api::responses::{MissingItem, named_responses, response_of};
use stator_api::tokenize::{read_detokenize, read_tokenize};
use stator_api::{Api, FieldNotes, Input, Prompt, UnknownFields, read, responses};
use std::sync::LazyLock;

/// Seals thoughts under the key of the seeds.
static SEAL: LazyLock<ThoughtSeal> = LazyLock::new(|| ThoughtSeal::new(&[7; 32]));

/// Runs the target.
pub(crate) fn run(body: &[u8]) {
    check_response(body);
    check_pooled(body);
    check_infer(body);
    for read in [
        |body: &[u8]| read_tokenize(body, &FieldNotes::default()).map(|_| ()),
        |body: &[u8]| read_detokenize(body, &FieldNotes::default()).map(|_| ()),
    ] {
        if let Err(error) = read(body) {
            check(&error);
        }
    }
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

/// What is asked for of vectors can be made of vectors.
fn check_pooled(body: &[u8]) {
    let apis = [Api::Embeddings, Api::Pooling, Api::Classify, Api::Rerank, Api::Score];
    for api in apis {
        let request = match pooled::read(api, api.path(), body, &FieldNotes::default()) {
            Ok(request) => request,
            Err(error) => {
                check(&error);
                continue;
            }
        };
        let inputs = request.inputs.len();
        assert!((1..=pooled::INPUTS_MAX).contains(&inputs));
        let identity = Identity { id: "r", created: 0, model: "m" };
        match answer(&request.form, &identity, vec![vec![1.0, -2.0]; inputs], 1) {
            Ok(answer) => {
                serde_json::from_slice::<serde_json::Value>(&answer).expect("an answer is JSON");
            }
            Err(error) => check(&error),
        }
    }
}

/// Tensors of bytes may follow the JSON, which ends with its last bracket here.
fn check_infer(body: &[u8]) {
    let json_bytes = body.iter().rposition(|byte| *byte == b'}').map(|at| at + 1);
    for call in
        [read_infer("m", body, None), read_infer("m", body, json_bytes), read_generate("m", body)]
    {
        match call {
            Ok(JsonCall { call, .. }) => {
                serde_json::from_slice::<serde_json::Value>(&call.body).expect("a body is JSON");
            }
            Err(error) => check(&error),
        }
    }
}

/// An item that references lead to.
const ITEM: &str = r#"{"id":"msg_a_0","type":"message","role":"assistant","content":"x"}"#;

/// The items of a response are read again as those of the next one. References are resolved, to items
/// that were looked up before.
fn check_response(body: &[u8]) {
    let notes = FieldNotes::default();
    let place = ResponsePlace { id: "r", keeps: true, seal: Some(&SEAL) };
    let named = named_responses(body);
    let parsed = || {
        let mut parsed = responses::parse(body, &notes)?;
        responses::resolve(&mut parsed, &notes, |id| {
            let (response, _) = response_of(id).ok_or(MissingItem::Unknown)?;
            assert!(named.contains(&format!("resp_{response}")), "{id} is looked up");
            Ok(ITEM.into())
        })?;
        Ok::<_, ApiError>(parsed)
    };
    match parsed().and_then(|parsed| responses::check(parsed, &[], place, &notes)) {
        Ok(first) => {
            check_input(&first.request.input);
            let parsed = parsed().expect("it was parsed");
            let again = responses::check(parsed, &first.form.input, place, &notes);
            again.expect("kept items are sound");
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
