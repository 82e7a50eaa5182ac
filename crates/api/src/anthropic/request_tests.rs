use super::*;
use crate::conversation::Conversation;
use serde_json::{Value, json};

/// The conversation of a body with these members beside the required ones.
fn read_members(members: &str) -> Result<GenerateRequest<'static>, ApiError> {
    let body = format!(r#"{{"model":"m","max_tokens":9{members}}}"#);
    // The tests' bodies may live on: there are few.
    read(String::leak(body).as_bytes(), &FieldNotes::default())
}

fn conversation(members: &str) -> Conversation<'static> {
    let request = read_members(members).unwrap_or_else(|error| panic!("{members}: {error}"));
    match request.input {
        crate::Input::Conversation(conversation) => conversation,
        other => panic!("{other:?}"),
    }
}

/// Messages as a chat's client would have written them.
fn messages(members: &str) -> Value {
    let content = |content: &Content<'_>| match content {
        Content::Null => Value::Null,
        Content::Text(text) => json!(text),
        parts => parts.texts().collect(),
    };
    let message = |message: &Message<'_>| {
        let mut value =
            json!({"role": message.role.as_str(), "content": content(&message.content)});
        for (name, member) in &message.extra {
            value[&**name] = serde_json::to_value(member).expect("JSON");
        }
        value
    };
    conversation(members).messages.iter().map(message).collect()
}

#[test]
fn integers_of_a_call_keep_their_digits() {
    let messages = conversation(
        r#","top_k":1,"messages":[{"role":"user","content":"-12"},{"role":"assistant","content":[
        {"type":"tool_use","id":"i","name":"f","input":{"wei":340282366920938463463374607431768211456,
        "low":-9223372036854775809,"n":1e20}}]}]"#,
    )
    .messages;
    let calls = serde_json::to_string(&messages[1].extra[0].1).expect("JSON");
    let expected =
        r#"{"wei":340282366920938463463374607431768211456,"low":-9223372036854775809,"n":1e+20}"#;
    assert!(calls.contains(expected), "{calls}");
}

#[test]
fn a_conversation_with_tools_becomes_a_chat() {
    let found = messages(
        r#","system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],"messages":[
        {"role":"user","content":"a"},
        {"role":"user","content":[{"type":"text","text":"b"}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"x"},
            {"type":"text","text":"c","citations":null},
            {"type":"tool_use","id":"i","name":"f","input":{"z":1,"a":2}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"i","is_error":true,
            "content":[{"type":"text","text":"r"}]},{"type":"text","text":"d"}]}]"#,
    );
    let call = json!({"id": "i", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}});
    let expected = json!([
        {"role": "system", "content": "S"},
        {"role": "user", "content": ["a", "b"]},
        {"role": "assistant", "content": "c", "reasoning_content": "t", "tool_calls": [call]},
        {"role": "tool", "content": ["r"], "tool_call_id": "i"},
        {"role": "user", "content": "d"},
    ]);
    assert_eq!(found, expected);
}

#[test]
fn a_deferred_tool_is_shown_where_a_result_refers_to_it() {
    let tool = |name: &str, more: &str| {
        format!(r#"{{"name":"{name}","input_schema":{{"type":"object"}}{more}}}"#)
    };
    let deferred = r#","defer_loading":true"#;
    let members = |more: &str| {
        format!(
            r#","tools":[{},{},{}],"messages":[{{"role":"user","content":[{{"type":"tool_result",
            "tool_use_id":"i","content":[{{"type":"tool_reference","tool_name":"b"}},
            {{"type":"tool_reference","tool_name":"c"}}]}}]}}]"#,
            tool("a", more),
            tool("b", deferred),
            tool("c", more)
        )
    };
    let found = conversation(&members(""));
    let shown = |conversation: &Conversation<'_>| -> Vec<String> {
        let names = conversation.tools.iter().flatten().filter_map(tools::function_name);
        names.map(str::to_owned).collect()
    };
    assert_eq!(shown(&found), ["a", "c"]);
    let definition =
        r#"{"type":"function","function":{"name":"b","parameters":{"type":"object"}}}"#;
    assert_eq!(messages(&members(""))[0]["content"], json!([definition, "c"]));
    let functions = read_members(&members("")).expect("a request").tools.expect("tools").functions;
    assert_eq!(functions.len(), 3, "the model may call it");
    assert_eq!(shown(&conversation(&members(deferred))), ["a", "b", "c"], "nothing is left");
}

#[test]
fn the_changing_line_of_claude_code_is_no_part_of_the_prompt() {
    let with = |system: &str| {
        messages(&format!(r#","system":{system},"messages":[{{"role":"user","content":"a"}}]"#))
    };
    let line = "x-anthropic-billing-header: cc_version=2.1; cch=9f;";
    let alone =
        with(&format!(r#"[{{"type":"text","text":"{line}"}},{{"type":"text","text":"S"}}]"#));
    assert_eq!(alone[0], json!({"role": "system", "content": "S"}));
    assert_eq!(with(&format!(r#""{line}\nS""#)), alone);
    assert_eq!(with(&format!(r#""{line}""#))[0]["role"], "user");
    let later = format!(r#"S\n{line}"#);
    assert!(with(&format!(r#""{later}""#))[0]["content"].as_str().expect("text").contains("cch"));
}

#[test]
fn a_last_turn_of_the_assistant_is_continued() {
    let end = r#""messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
    let continued = conversation(&format!(",{end}"));
    assert!(continued.continue_final_message && !continued.add_generation_prompt);
    assert!(conversation(r#","messages":[{"role":"user","content":"a"}]"#).add_generation_prompt);
}

#[test]
fn options_are_those_of_a_chat() {
    let request = read_members(
        r#","messages":[{"role":"user","content":"a"}],"stop_sequences":["x"],"top_k":5,
        "temperature":0.5,"stream":true,"metadata":{"user_id":"u"},"service_tier":"auto",
        "thinking":{"type":"disabled"},"output_config":{"effort":"low",
            "format":{"type":"json_schema","schema":{"type":"object"}}},
        "tools":[{"name":"f","input_schema":{"type":"object"},"description":"d"}],
        "tool_choice":{"type":"auto"}"#,
    );
    let request = request.expect("it is a request");
    let options = request.options;
    assert_eq!((options.stop, options.stream), (vec!["x".to_owned()], true));
    assert_eq!((options.open.max_tokens, options.open.top_k), (Some(9), Some(5)));
    assert!(options.sampling.guide.is_some());
    let crate::Input::Conversation(chat) = request.input else { panic!("it is a chat") };
    assert_eq!(chat.thinking, Some(false));
    let kwargs = [("reasoning_effort", json!("low"))];
    let found = chat.template_kwargs.iter().map(|(name, value)| (&**name, json!(value)));
    assert_eq!(found.collect::<Vec<_>>(), kwargs);
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(json!(chat.tools), json!([{"type": "function", "function": function}]));
}

#[test]
fn examples_of_a_tools_input_are_shown_and_a_tool_for_code_alone_is_refused() {
    let tool = |more: &str| {
        read_members(&format!(
            r#","messages":[{{"role":"user","content":"a"}}],
            "tools":[{{"name":"f","input_schema":{{"type":"object"}}{more}}}]"#
        ))
    };
    let request = tool(r#","input_examples":[{"n":1}],"allowed_callers":["direct","code"]"#);
    let crate::Input::Conversation(chat) = request.expect("it is a request").input else {
        panic!("it is a chat")
    };
    let parameters = json!({"type": "object", "examples": [{"n": 1}]});
    assert_eq!(json!(chat.tools)[0]["function"]["parameters"], parameters);
    for (more, param) in [
        (r#","input_examples":{}"#, "tools[0].input_examples"),
        (r#","allowed_callers":["code_execution_20250825"]"#, "tools[0].allowed_callers"),
    ] {
        assert_eq!(tool(more).expect_err(more).param.as_deref(), Some(param));
    }
}

#[test]
fn thoughts_of_earlier_turns_are_left_out_where_the_client_says_so() {
    let with = |edits: &str| {
        let chat = conversation(&format!(
            r#","messages":[{{"role":"user","content":"a"}},
            {{"role":"assistant","content":[{{"type":"thinking","thinking":"hm","signature":""}},
                {{"type":"text","text":"b"}}]}},{{"role":"user","content":"c"}},
            {{"role":"assistant","content":[{{"type":"thinking","thinking":"so","signature":""}},
                {{"type":"text","text":"d"}}]}},{{"role":"user","content":"e"}}]{edits}"#
        ));
        let thinks = |message: &crate::conversation::Message<'_>| !message.extra.is_empty();
        [1, 3].map(|at| thinks(&chat.messages[at]))
    };
    let edits = |keep: &str| {
        let edit = format!(r#"{{"type":"clear_thinking_20251015"{keep}}}"#);
        with(&format!(r#","context_management":{{"edits":[{edit}]}}"#))
    };
    assert_eq!(with(""), [true, true]);
    assert_eq!(edits(r#","keep":"all""#), [true, true]);
    assert_eq!(edits(""), [false, true]);
}

#[test]
fn harmless_fields_are_named() {
    let notes = FieldNotes::default();
    let body = br#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}],
        "metadata":{"user_id":"u"},"cache_control":{"type":"ephemeral"},"diagnostics":null,
        "thinking":{"type":"enabled","budget_tokens":2000}}"#;
    let request = read(body, &notes).expect("it is a request");
    assert_eq!(notes.ignored().as_deref(), Some("metadata"));
    assert_eq!(request.options.thought_budget.map(|budget| budget.tokens), Some(2000));
}

#[test]
fn a_fault_is_named_in_the_words_of_the_api() {
    let turn = r#","messages":[{"role":"user","content":"a"}]"#;
    for (members, param, message) in [
        ("", "messages", "missing required parameter: messages"),
        (r#","messages":[]"#, "messages", "must have at least one message"),
        (r#","messages":{}"#, "messages", "must be a list, not an object"),
        (r#","messages":[{"role":"user"}]"#, "messages[0].content", "missing required"),
        (r#","messages":[{"role":"bot","content":"a"}]"#, "messages[0].role", "\"bot\""),
        (
            r#","messages":[{"role":"user","content":[["text"]]}]"#,
            "messages[0].content[0]",
            "must be an object, not a list",
        ),
        (
            r#","messages":[{"role":"user","content":[{"type":"search_result","source":"x"}]}]"#,
            "messages[0].content[0]",
            "a block of type \"search_result\", which is not supported here",
        ),
        (
            r#","messages":[{"role":"user","content":[{"type":"text","txet":"a"}]}]"#,
            "messages[0].content[0].text",
            "missing required",
        ),
        (
            r#","messages":[{"role":"user","content":"a","contnet":1}]"#,
            "messages[0].contnet",
            "did you mean content?",
        ),
    ] {
        let error = read_members(members).expect_err(members);
        assert_eq!(error.param.as_deref(), Some(param), "{members}: {error}");
        assert!(error.message.contains(message), "{members}: {error}");
        assert_eq!(error.status.as_u16(), 400);
    }
    for (members, param, message) in [
        (r#","temprature":1"#, "temprature", "did you mean temperature?"),
        (r#","temperature":3"#, "temperature", "must be in 0..=2"),
        (r#","temperature":"hot""#, "temperature", "temperature"),
        (r#","stop_sequences":[""]"#, "stop_sequences", "stop_sequences[0] is empty"),
        (r#","container":"c""#, "container", "container is not supported"),
        (r#","tools":[{"type":"bash_20250124","name":"bash"}]"#, "tools[0].type", "bash_20250124"),
        (r#","tool_choice":{"type":"all"}"#, "tool_choice.type", "\"all\""),
        (r#","service_tier":"flex""#, "service_tier", "\"flex\""),
        (
            r#","output_config":{"format":{"type":"json_schema","schema":[]}}"#,
            "output_config.format.schema",
            "must be an object",
        ),
    ] {
        let error = read_members(&format!("{turn}{members}")).expect_err(members);
        assert_eq!(error.param.as_deref(), Some(param), "{members}: {error}");
        assert!(error.message.contains(message), "{members}: {error}");
    }
    let no_limit = read(br#"{"model":"m"}"#, &FieldNotes::default()).expect_err("no limit");
    assert_eq!(no_limit.param.as_deref(), Some("max_tokens"));
    let list = read(br#"["m",9]"#, &FieldNotes::default()).expect_err("a list");
    assert_eq!(list.status.as_u16(), 400);
}
