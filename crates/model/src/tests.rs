use super::*;
use serde_json::{Value, json};
use stator_api::openai::chat;
use stator_protos::sampling::Number;
use std::time::UNIX_EPOCH;

fn file(name: &str) -> Bytes {
    let path = format!("{}/fixtures/tokenizers/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).expect(&path).into()
}

/// A model with the Llama-style test tokenizer and further files.
fn load(files: &[(&str, Value)]) -> Result<Model, ModelError> {
    let mut all = vec![("tokenizer.json".to_owned(), file("llama3.json"))];
    all.extend(
        files.iter().map(|(name, json)| ((*name).to_owned(), Bytes::from(json.to_string()))),
    );
    Model::load("m", &all)
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

#[test]
fn a_chat_is_rendered_and_encoded_without_a_second_start_token() {
    let template = "{{ bos_token }}{{ messages[0].content }}<|end|>";
    let model = load(&[(
        "tokenizer_config.json",
        json!({"chat_template": template, "bos_token": "<|start|>"}),
    )])
    .unwrap();
    let request = chat::read(CHAT.as_bytes()).unwrap();
    let conversation = request.input.conversation().unwrap();
    assert_eq!(model.render_chat(conversation, UNIX_EPOCH).unwrap(), "<|start|>hi<|end|>");
    let ids = model.encode_chat(conversation, UNIX_EPOCH).unwrap();
    let id = |token| model.tokenizer().token_to_id(token).unwrap();
    assert_eq!((ids[0], ids[ids.len() - 1]), (id("<|start|>"), id("<|end|>")));
    assert_eq!(ids.iter().filter(|token| **token == ids[0]).count(), 1);
    assert_eq!(model.encode_prompt("hi<|end|>", true).unwrap(), ids);
    assert_eq!(model.encode_prompt("hi<|end|>", false).unwrap(), ids[1..]);
}

#[test]
fn a_model_without_a_template_refuses_chats() {
    let model = load(&[]).unwrap();
    let request = chat::read(CHAT.as_bytes()).unwrap();
    let conversation = request.input.conversation().unwrap();
    let error = model.render_chat(conversation, UNIX_EPOCH).unwrap_err();
    assert_eq!(error, PromptError::NoTemplate { model: model.name().into() });
}

#[test]
fn media_are_refused_where_a_conversation_becomes_tokens() {
    let files = [("tokenizer_config.json", json!({"chat_template": "{{ messages[0].content }}"}))];
    let model = load(&files).unwrap();
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":[
        {"type":"text","text":"b"},{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
    let request = chat::read(body.as_bytes()).unwrap();
    let error = model.encode_chat(request.input.conversation().unwrap(), UNIX_EPOCH).unwrap_err();
    let path = "messages[1].content[1]".into();
    assert_eq!(error, PromptError::Media { path, part_type: "image_url" });
    assert_eq!(
        error.to_string(),
        "messages[1].content[1] is a part of type \"image_url\", which is not supported here: the \
         model reads text alone"
    );
}

#[test]
fn end_tokens_are_collected_from_all_files() {
    let model = load(&[
        ("generation_config.json", json!({"eos_token_id": [9, 3], "temperature": 0.5})),
        (
            "config.json",
            json!({"eos_token_id": 9, "max_position_embeddings": 77, "vocab_size": 1000}),
        ),
        ("tokenizer_config.json", json!({"eos_token": "<|end|>"})),
    ])
    .unwrap();
    let end = model.tokenizer().token_to_id("<|end|>").unwrap();
    let mut expected = vec![3, 9, end];
    expected.sort_unstable();
    assert_eq!(model.eos_ids(), expected);
    assert_eq!((model.context_length(), model.vocabulary_size()), (Some(77), 1000));
}

#[test]
fn the_request_counts_before_the_models_defaults() {
    let model =
        load(&[("generation_config.json", json!({"temperature": 0.5, "top_k": 7}))]).unwrap();
    let body = r#"{"model":"m","temperature":1.5,"messages":[{"role":"user","content":"hi"}]}"#;
    let request = chat::read(body.as_bytes()).unwrap().options.open;
    let open = request.or(model.sampling_defaults());
    assert_eq!((open.numbers.get(Number::Temperature), open.top_k), (Some(1.5), Some(7)));
    assert_eq!(open.numbers.get(Number::TopP), None);
}

#[test]
fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let model = load(&[("config.json", json!({"max_position_embeddings": 100}))]).unwrap();
    let error = model.encode_prompt(&"word ".repeat(100_000), true).unwrap_err();
    assert!(matches!(error, PromptError::TooLong { bytes: 500_000, context: 100, .. }), "{error}");
    // What may fit by its bytes is counted, by whoever knows how long the answer is to be.
    assert!(model.encode_prompt(&"word ".repeat(200), true).unwrap().len() > 100);
}

#[test]
fn unusable_files_are_named() {
    let message = |files: &[(&str, Value)]| load(files).unwrap_err().to_string();
    assert_eq!(Model::load("m", &[]).unwrap_err().to_string(), "the model has no tokenizer.json");
    let broken = [("tokenizer.json".to_owned(), Bytes::from("{}"))];
    assert!(Model::load("m", &broken).unwrap_err().to_string().starts_with("tokenizer.json: "));
    assert!(
        message(&[("tokenizer_config.json", json!({"chat_template": "{% if"}))])
            .contains("chat template")
    );
    let files = [
        ("tokenizer.json".to_owned(), file("llama3.json")),
        ("config.json".to_owned(), Bytes::from("{")),
    ];
    assert!(Model::load("m", &files).unwrap_err().to_string().starts_with("config.json: "));
}

#[test]
fn thoughts_have_room_where_the_prompt_or_the_model_may_open_them() {
    const TURN: &str = "{% for message in messages %}{{ message.content }}{% endfor %}assistant\n";
    // As Qwen's templates and as DeepSeek's do it: the model opens thoughts, or the template does.
    let open_by_model =
        format!("{TURN}{{% if enable_thinking is false %}}<think></think>{{% endif %}}");
    let open_by_template = format!("{TURN}{{% if thinking %}}<think>{{% endif %}}{{# </think> #}}");
    for (template, prompt, expected) in [
        (&open_by_model, "assistant\n", "ahead"),
        (&open_by_model, "assistant\n<think></think>", "none"),
        (&open_by_template, "assistant\n", "none"),
        (&open_by_template, "assistant\n<think>", "open"),
    ] {
        let config = json!({"chat_template": template});
        let model = load(&[("tokenizer_config.json", config)]).unwrap();
        let tokens = model.encode_prompt(prompt, false).unwrap();
        let room = match model.thought_room(&tokens) {
            ThoughtRoom::None => "none",
            ThoughtRoom::Open(_) => "open",
            ThoughtRoom::Ahead(_) => "ahead",
        };
        assert_eq!(room, expected, "{template} {prompt}");
    }
}
