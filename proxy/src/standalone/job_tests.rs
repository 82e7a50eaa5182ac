use super::*;
use bytes::Bytes;

/// A model whose only token is `a`, without a template: it cannot tokenize a chat.
fn model() -> Model {
    let tokenizer = r#"{"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#;
    let files = [("tokenizer.json".to_owned(), Bytes::from(tokenizer))];
    Model::load("m", &files).expect("a tokenizer of one word")
}

fn record() -> ModelRecord {
    ModelRecord { name: "m".into(), context_length: 8, block_size: 4, vocab_size: 10 }
}

/// Prompts of a body, checked against [`record`]; or the error's status, field and text.
fn prompts(api: Api, members: &str) -> Result<Vec<Vec<u32>>, (u16, String, String)> {
    let body = format!("{{\"model\":\"m\",{members}}}");
    checked(api, body.as_bytes()).map_err(|error| {
        (error.status.as_u16(), error.param.clone().unwrap_or_default(), error.message.clone())
    })
}

fn checked(api: Api, body: &[u8]) -> Result<Vec<Vec<u32>>, ApiError> {
    let (model, record) = (model(), record());
    let request = stator_api::read(api, body, &FieldNotes::default())?;
    let prompts = tokens(&model, &request.input)?;
    check_prompts(&record, request.prompt_field, &prompts)?;
    sampling(&record, &request.options, &prompts, false)?;
    Ok(prompts.iter().map(|prompt| prompt.to_vec()).collect())
}

const CHAT: &str = r#""messages":[{"role":"user","content":"a"}],"max_tokens":1"#;
const COMPLETION: &str = r#""prompt":"a","max_tokens":1"#;

#[track_caller]
fn check(nvext: &str, expected: &[u32]) {
    for (api, members) in [(Api::ChatCompletions, CHAT), (Api::Completions, COMPLETION)] {
        let found = prompts(api, &format!("{members},\"nvext\":{nvext}"));
        assert_eq!(found, Ok(vec![expected.to_vec()]), "{api:?}");
    }
}

#[track_caller]
fn check_refused(nvext: &str, param: &str, message: &str) {
    for (api, members) in [(Api::ChatCompletions, CHAT), (Api::Completions, COMPLETION)] {
        let refused = prompts(api, &format!("{members},\"nvext\":{nvext}"));
        let (status, at, text) = refused.expect_err(nvext);
        assert_eq!((status, at.as_str()), (400, param), "{api:?}: {text}");
        assert!(text.contains(message), "{api:?}: {text}");
    }
}

#[test]
fn tokens_of_a_router_are_the_prompt() {
    check(r#"{"token_data":[3,1,9]}"#, &[3, 1, 9]);
    check(r#"{"annotations":[],"token_data":[7]}"#, &[7]);
}

#[test]
fn without_tokens_the_text_is_the_prompt() {
    for nvext in ["null", "{}", r#"{"token_data":[]}"#, r#"{"token_data":null}"#] {
        let members = format!("{COMPLETION},\"nvext\":{nvext}");
        assert_eq!(prompts(Api::Completions, &members), Ok(vec![vec![0]]), "{nvext}");
        // This model has no template, so that a chat shows that it would have been rendered.
        let refused = prompts(Api::ChatCompletions, &format!("{CHAT},\"nvext\":{nvext}"));
        assert_eq!(refused.expect_err(nvext).1, "model", "{nvext}");
    }
}

#[test]
fn tokens_of_a_router_are_held_to_the_models_limits() {
    let vocabulary = "has the token id 10, the vocabulary has 10 tokens";
    check_refused(r#"{"token_data":[3,10]}"#, "nvext.token_data", vocabulary);
    check(r#"{"token_data":[1,2,3,4,5,6,7]}"#, &[1, 2, 3, 4, 5, 6, 7]);
    let (status, _, message) = prompts(
        Api::ChatCompletions,
        &format!("{CHAT},\"nvext\":{{\"token_data\":[1,2,3,4,5,6,7,8]}}"),
    )
    .expect_err("eight tokens and one of an answer are nine");
    assert_eq!(status, 400, "{message}");
    assert!(message.contains('8'), "{message}");
}

#[test]
fn who_asks_for_no_seed_gets_one_that_is_drawn() {
    let told = |seed: &str| {
        let body = format!("{{\"model\":\"m\",{COMPLETION}{seed}}}");
        let request = stator_api::openai::completion::read(body.as_bytes()).expect("a request");
        sampling(&record(), &request.options, &[[0].into()], false).expect("within the limits")
    };
    let asked = told(",\"seed\":7");
    assert_eq!((asked.seed, asked.seed_is_drawn), (7, false));
    let drawn = [told(""), told("")];
    assert!(drawn.iter().all(|told| told.seed_is_drawn));
    assert_ne!(drawn[0].seed, drawn[1].seed);
}
