use super::super::chat;
use crate::FieldNotes;
use crate::json::Json;
use serde_json::{Value, json};

/// The ignored members of a chat with these, as the template gets it; or the error's field and text.
fn settled(members: &Value, notes: &FieldNotes) -> Result<(Vec<Json<'static>>, String), String> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
    for (name, value) in members.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let body = body.to_string();
    let request = chat::read_noting(body.as_bytes(), notes);
    let request = request.map_err(|error| format!("{:?}: {}", error.param, error.message))?;
    let conversation = request.input.conversation().expect("a conversation");
    let shown = conversation.messages.iter().flat_map(|message| message.extra.clone());
    let shown = shown.map(|(_, value)| value).chain(conversation.tools.iter().flatten().cloned());
    let shown = shown.map(Json::into_owned).collect();
    Ok((shown, notes.ignored().unwrap_or_default()))
}

fn message(role: &str, more: &Value) -> Value {
    let mut message = json!({"role": role, "content": "b"});
    for (name, value) in more.as_object().expect("an object") {
        message[name] = value.clone();
    }
    json!({"messages": [message]})
}

fn function(more: &Value) -> Value {
    let mut function = json!({"name": "f"});
    for (name, value) in more.as_object().expect("an object") {
        function[name] = value.clone();
    }
    json!({"tools": [{"type": "function", "function": function}]})
}

fn chosen(choice: &Value) -> Value {
    let mut members = function(&json!({}));
    members["tool_choice"] = choice.clone();
    members
}

fn formed(format: &Value) -> Value {
    json!({"response_format": format})
}

/// Chats with one member that no object has, its place, and the name that is meant.
fn slips() -> Vec<(Value, &'static str, &'static str)> {
    let call = |call: Value| message("assistant", &json!({"tool_calls": [call]}));
    let custom = |custom: Value| json!({"tools": [{"type": "custom", "custom": custom}]});
    let named = json!({"name": "f"});
    vec![
        (message("user", &json!({"nmae": "x"})), "messages[0].nmae", "name"),
        (message("tool", &json!({"tool_callid": "x"})), "messages[0].tool_callid", "tool_call_id"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "txt": 1}]}]}),
            "messages[0].content[0].txt",
            "text",
        ),
        (
            call(json!({"id": "c", "type": "function", "function": named, "idd": 1})),
            "messages[0].tool_calls[0].idd",
            "id",
        ),
        (
            call(json!({"type": "function", "function": {"name": "f", "argument": "{}"}})),
            "messages[0].tool_calls[0].function.argument",
            "arguments",
        ),
        (function(&json!({"strcit": true})), "tools[0].function.strcit", "strict"),
        (
            json!({"tools": [{"type": "function", "function": named, "tpye": "x"}]}),
            "tools[0].tpye",
            "type",
        ),
        (custom(json!({"name": "f", "fromat": {}})), "tools[0].custom.fromat", "format"),
        (
            custom(json!({"name": "f", "format": {"type": "grammar", "grammar":
                {"syntax": "regex", "definition": "a", "sytnax": 1}}})),
            "tools[0].custom.format.grammar.sytnax",
            "syntax",
        ),
        (
            chosen(&json!({"type": "function", "function": {"name": "f", "nam": 1}})),
            "tool_choice.function.nam",
            "name",
        ),
        (
            chosen(&json!({"type": "allowed_tools", "allowed_tools": {"mdoe": "required",
                "tools": [{"type": "function", "function": {"name": "f"}}]}})),
            "tool_choice.allowed_tools.mdoe",
            "mode",
        ),
        (
            formed(&json!({"type": "json_schema", "json_schema":
                {"name": "n", "schema": {}, "strcit": true}})),
            "response_format.json_schema.strcit",
            "strict",
        ),
        (
            formed(&json!({"type": "json_object", "json_schem": {}})),
            "response_format.json_schem",
            "json_schema",
        ),
    ]
}

#[test]
fn a_misspelt_member_is_refused_with_its_place_or_named_and_not_shown() {
    for (members, place, meant) in slips() {
        let refused = settled(&members, &FieldNotes::default()).expect_err(place);
        let expected = format!("{place} is not a field of this API; did you mean {meant}?");
        assert_eq!(refused, format!("Some({place:?}): {expected}"));
        let (shown, ignored) = settled(&members, &FieldNotes::lenient()).expect(place);
        assert_eq!(ignored, place);
        let shown = serde_json::to_string(&shown).expect("JSON");
        let slip = place.rsplit('.').next().expect("a name");
        assert!(!shown.contains(&format!("\"{slip}\"")), "{shown}");
    }
}

#[test]
fn members_that_templates_read_are_shown() {
    let more = json!({"name": "n", "reasoning_content": "r", "thinking": "t",
        "tool_calls": [{"id": "c", "type": "function", "index": 0,
            "function": {"name": "f", "arguments": "{}"}}]});
    let mut members = message("assistant", &more);
    let shown_function = json!({"description": "d", "parameters": {"any": 1}, "strict": true,
        "return": {"type": "string"}});
    members["tools"] = function(&shown_function)["tools"].clone();
    let (shown, ignored) = settled(&members, &FieldNotes::default()).expect("a chat");
    assert_eq!((shown.len(), ignored.as_str()), (5, ""));
    let tool = serde_json::to_value(&shown[4]).expect("JSON");
    assert_eq!(tool, members["tools"][0]);
}

#[test]
fn absent_members_ask_for_nothing_and_others_are_named_or_refused() {
    let settle = |more: Value| settled(&message("assistant", &more), &FieldNotes::default());
    let dumped = json!({"refusal": null, "annotations": [], "audio": null, "function_call": null,
        "tool_calls": null, "nmae": null});
    assert_eq!(settle(dumped).expect("a chat").1, "");
    let named = settle(json!({"annotations": [{"type": "url_citation"}], "phase": "commentary"}));
    assert_eq!(named.expect("a chat").1, "messages[0].annotations, messages[0].phase");
    // As the official client hands back what it parsed.
    let parsed = settle(json!({"parsed": {"a": 1}, "tool_calls": [{"id": "a", "type": "function",
        "function": {"name": "f", "arguments": "{}", "parsed_arguments": {"a": 1}}}]}));
    let places = "messages[0].parsed, messages[0].tool_calls[0].function.parsed_arguments";
    assert_eq!(parsed.expect("a chat").1, places);
    for (more, said) in [
        (json!({"audio": {"id": "a"}}), "messages[0].audio is not supported: prompts are text"),
        (
            json!({"function_call": {"name": "f", "arguments": "{}"}}),
            "messages[0].function_call is not supported: the member is called tool_calls",
        ),
        (json!({"prefix": true}), "the field is called continue_final_message"),
    ] {
        let refused = settle(more).expect_err(said);
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn a_refusal_is_what_the_assistant_said() {
    let read = |message: Value| {
        let body = json!({"model": "m", "messages": [message]}).to_string();
        let notes = FieldNotes::default();
        let request = chat::read_noting(body.as_bytes(), &notes).map_err(|error| error.message)?;
        let conversation = request.input.conversation().expect("a conversation");
        let content = format!("{:?}", conversation.messages[0].content);
        Ok::<_, String>((content, notes.ignored()))
    };
    let (content, ignored) = read(json!({"role": "assistant", "refusal": "No."})).expect("a chat");
    assert_eq!((content.as_str(), ignored), ("Text(\"No.\")", None));
    let both = json!({"role": "assistant", "content": "a", "refusal": "No."});
    let (content, ignored) = read(both).expect("a chat");
    assert_eq!(
        (content.as_str(), ignored.as_deref()),
        ("Text(\"a\")", Some("messages[0].refusal"))
    );
    let users = read(json!({"role": "user", "refusal": "No."})).expect_err("no content");
    assert!(users.contains("content is required"), "{users}");
    let wrong = read(json!({"role": "assistant", "refusal": 7})).expect_err("no text");
    assert!(wrong.contains("messages[0].refusal must be"), "{wrong}");
}
