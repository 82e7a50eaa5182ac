use super::*;
use bytes::Bytes;
use stator_api::{Api, openai};
use stator_protos::worker::guide::Form;
use std::path::Path;

/// A model that thinks and calls tools, by its template.
fn model() -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-agent/tiny-model");
    let tokenizer = std::fs::read(dir.join("tokenizer.json")).expect("the bundled model");
    let template = "{{ messages }} <think></think> <tool_call>";
    let files = [
        ("tokenizer.json".to_owned(), Bytes::from(tokenizer)),
        ("chat_template.jinja".to_owned(), Bytes::from(template)),
    ];
    Model::load("m", &files).expect("its files are sound")
}

/// Reads `text`, token by token, as the answer to a chat with these members. What the client gets:
/// thoughts, text, calls as `name{arguments}`, and the choice.
fn read(members: &str, prompt_end: &str, text: &str) -> (String, String, Vec<String>, Choice) {
    let model = model();
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],{members}}}"#);
    let mut request = openai::chat::read(body.as_bytes()).expect("a sound body");
    let prompt = model.encode_prompt(prompt_end, false).expect("tokens");
    let options = &mut request.options;
    let reading = AnswerReading::new(Api::ChatCompletions, &model, request.tools, options, &prompt)
        .expect("one form");
    let mut choice = Choice::new(&model, options, reading.as_ref(), String::new());
    for id in model.encode_prompt(text, false).expect("tokens") {
        let logprobs = TokenLogprobs { token_id: id, ..TokenLogprobs::default() };
        let ends = choice.push(&model, id, Some(&logprobs));
        if ends.is_some() {
            choice.finish = ends;
            break;
        }
    }
    if choice.finish.is_none() {
        choice.end(FinishReason::Stop);
    }
    let (mut reasoning, mut said) = (String::new(), String::new());
    let mut calls: Vec<String> = Vec::new();
    for segment in choice.segments.all() {
        reasoning.push_str(&segment.reasoning);
        said.push_str(&segment.text);
        for call in segment.calls() {
            if let Some(start) = call.start {
                assert!(start.id.starts_with("call_") && start.id.len() == 29, "{}", start.id);
                calls.push(start.name.to_owned());
            }
            calls.last_mut().expect("a call has begun").push_str(call.arguments);
        }
    }
    (reasoning, said, calls, choice)
}

const TOOLS: &str = r#""tools":[{"type":"function","function":{"name":"f"}}]"#;
const CALLS: &str = "So.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\\ny\"}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

#[test]
fn calls_and_thoughts_are_told_apart_from_text() {
    let (reasoning, text, calls, choice) = read(TOOLS, "", &format!("<think>Hm.</think>{CALLS}"));
    assert_eq!((reasoning.as_str(), text.as_str()), ("Hm.", "So.\n"));
    assert_eq!(calls, [r#"f{"a": "x\ny"}"#, "f{}"]);
    assert_eq!(choice.finish, Some(FinishReason::ToolCalls));
    assert!(choice.reasoning_tokens > 0 && choice.reasoning_tokens < choice.tokens);
    // Tokens of text alone have logprobs in the answer.
    let noted: String = choice.logprobs.iter().map(|it| it.chosen.token.as_str()).collect();
    assert_eq!(noted.trim_end(), "So.");
}

#[test]
fn thoughts_may_begin_in_the_prompt() {
    let (reasoning, text, ..) = read(TOOLS, "assistant\n<think>\n", "Hm.</think>\n\nYes.");
    assert_eq!((reasoning.as_str(), text.as_str()), ("Hm.", "Yes."));
    let (reasoning, text, ..) = read(TOOLS, "<think>\n\n</think>\n\n", "Yes.");
    assert_eq!((reasoning.as_str(), text.as_str()), ("", "Yes."));
    let hidden = format!("{TOOLS},\"include_reasoning\":false");
    let (reasoning, text, _, choice) = read(&hidden, "<think>", "Hm.</think>Yes.");
    assert_eq!((reasoning.as_str(), text.as_str()), ("", "Yes."));
    assert!(choice.reasoning_tokens > 0);
}

#[test]
fn the_choice_says_what_becomes_of_calls() {
    let single = format!("{TOOLS},\"parallel_tool_calls\":false");
    let (_, _, calls, choice) = read(&single, "", CALLS);
    assert_eq!((calls.len(), choice.finish), (1, Some(FinishReason::ToolCalls)));
    let none = format!("{TOOLS},\"tool_choice\":\"none\"");
    let (_, text, calls, choice) = read(&none, "", CALLS);
    assert_eq!((text.as_str(), calls.len()), ("So.\n", 0));
    assert_eq!(choice.finish, Some(FinishReason::Stop));
    // Without tools nothing is a call.
    let (_, text, calls, _) = read("\"n\":1", "", CALLS);
    assert_eq!((text.as_str(), calls.len()), (CALLS, 0));
}

#[test]
fn stop_strings_end_text_and_not_calls() {
    let stop = format!("{TOOLS},\"stop\":[\"y\",\"Never\"]");
    let text = CALLS.replace("So.", "<think>why</think>No.") + "Never mind";
    let (reasoning, text, calls, choice) = read(&stop, "", &text);
    assert_eq!((reasoning.as_str(), text.as_str(), calls.len()), ("why", "No.\n", 2));
    assert_eq!((choice.finish, choice.stop_string()), (Some(FinishReason::Stop), Some("Never")));
}

#[test]
fn answers_of_models_without_markup_are_text() {
    let model = Model::load(
        "m",
        &[("tokenizer.json".to_owned(), {
            Bytes::from(r#"{"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#)
        })],
    )
    .expect("a tokenizer of one word");
    let body = br#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
    let mut options = openai::chat::read(body).expect("a sound body").options;
    let reading = AnswerReading::new(Api::ChatCompletions, &model, None, &mut options, &[0])
        .expect("no form");
    assert!(reading.is_none());
}

#[test]
fn a_forced_call_gives_the_answer_its_form() {
    let model = model();
    let prompt = model.encode_prompt("<think></think>", false).expect("tokens");
    let read = |members: &str| {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],{TOOLS},{members}}}"#
        );
        let mut request = openai::chat::read(body.as_bytes()).expect("a sound body");
        let read = AnswerReading::new(
            Api::ChatCompletions,
            &model,
            request.tools,
            &mut request.options,
            &prompt,
        );
        read.map(|_| (request.options.guide_field, request.options.sampling))
    };
    let (field, sampling) = read(r#""tool_choice":"required""#).expect("one form");
    assert_eq!(field, Some("tool_choice"));
    assert!(
        matches!(sampling.form(), Some(Form::StructuralTag(tag)) if tag.contains("<tool_call>"))
    );
    let both = r#""tool_choice":"required","guided_regex":"a""#;
    let error = read(both).expect_err("two forms");
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (422, Some("tool_choice")));
    // The form of text gives way to calls that are forced, and has them as its alternative else.
    let text = r#""response_format":{"type":"json_object"}"#;
    let form = |choice: &str| {
        let read = read(&format!(r#""tool_choice":"{choice}",{text}"#)).expect("one form");
        match read.1.form() {
            Some(Form::StructuralTag(tag)) => tag.contains(r#""type":"or""#).to_string(),
            other => format!("{other:?}"),
        }
    };
    assert_eq!([form("required"), form("auto")], ["false", "true"]);
    assert_eq!(form("none"), "Some(JsonObject(JsonObject))");
    let (field, sampling) = read(r#""tool_choice":"auto""#).expect("no form");
    assert_eq!((field, sampling.form()), (None, None));
}

/// The form of the answer to a prompt that ends so, as JSON; none where the answer has its own.
fn formed(members: &str, prompt_end: &str) -> Option<serde_json::Value> {
    let model = model();
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],{members}}}"#);
    let mut request = openai::chat::read(body.as_bytes()).expect("a sound body");
    let prompt = model.encode_prompt(prompt_end, false).expect("tokens");
    let (tools, options) = (request.tools, &mut request.options);
    AnswerReading::new(Api::ChatCompletions, &model, tools, options, &prompt).expect("one form");
    match options.sampling.form() {
        Some(Form::StructuralTag(tag)) => Some(serde_json::from_str(tag).expect("JSON")),
        _ => None,
    }
}

#[test]
fn every_form_leaves_room_for_thoughts_that_may_come() {
    let forms = [
        (r#""response_format":{"type":"json_object"}"#, "json_schema"),
        (
            r#""response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}}"#,
            "json_schema",
        ),
        (r#""structured_outputs":{"regex":"a"}"#, "regex"),
        (r#""structured_outputs":{"choice":["a","b"]}"#, "or"),
        (r#""structured_outputs":{"grammar":"root ::= \"a\""}"#, "grammar"),
        (r#""guided_grammar":"start: \"a\"""#, "grammar"),
        (r#""ebnf":"root ::= \"a\"""#, "grammar"),
        (
            r#""tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}]"#,
            "tags_with_separator",
        ),
    ];
    for (members, own) in forms {
        let open = formed(members, "<think>").expect(members);
        assert_eq!(open["format"]["elements"][0]["end"], "</think>", "{open}");
        assert_eq!(open["format"]["elements"][2]["type"], own, "{open}");
        let ahead = formed(members, "Hello").expect(members);
        assert_eq!(ahead["format"]["elements"][1]["type"], own, "{ahead}");
        assert_eq!(ahead["format"]["elements"][0]["elements"][0]["begin"], "<think>", "{ahead}");
        let behind = formed(members, "<think></think>");
        let own = behind.map(|tag| tag["format"]["type"].clone());
        assert_eq!(own.is_some(), members.contains("required"), "{own:?}");
    }
}
