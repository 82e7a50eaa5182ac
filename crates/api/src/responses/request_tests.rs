use super::*;
use crate::conversation::{Content, Message};
use serde_json::{Value, json};

const PLACE: ResponsePlace<'static> = ResponsePlace { id: "r", keeps: true, seal: None };

fn read_after(body: &str, history: &[&str]) -> Result<CheckedResponse<'static>, ApiError> {
    // The tests' bodies may live on: there are few.
    let body = String::leak(body.to_owned()).as_bytes();
    let history: Vec<Arc<str>> = history.iter().map(|item| (*item).into()).collect();
    let notes = FieldNotes::default();
    check(parse(body, &notes)?, Vec::leak(history), PLACE, &notes)
}

fn read(members: &str) -> Result<CheckedResponse<'static>, ApiError> {
    read_after(&format!(r#"{{"model":"m"{members}}}"#), &[])
}

/// Messages as a chat's client would have written them.
fn messages(checked: &CheckedResponse<'_>) -> Value {
    let crate::Input::Conversation(conversation) = &checked.request.input else {
        panic!("it is a chat")
    };
    let message = |message: &Message<'_>| {
        let content = match &message.content {
            Content::Null => Value::Null,
            Content::Text(text) => json!(text),
            parts => parts.texts().collect(),
        };
        let mut value = json!({"role": message.role.as_str(), "content": content});
        for (name, member) in &message.extra {
            value[&**name] = serde_json::to_value(member).expect("JSON");
        }
        value
    };
    conversation.messages.iter().map(message).collect()
}

#[test]
fn items_become_the_turns_of_a_chat() {
    let checked = read(
        r#","instructions":"S","input":[{"role":"user","content":"a"},
        {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
        {"type":"message","role":"assistant","id":"x","status":"completed",
            "content":[{"type":"output_text","text":"b","annotations":[]}]},
        {"type":"function_call","call_id":"c","name":"f","arguments":"{\"z\": 1}"},
        {"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"o"}]},
        {"role":"developer","content":"d"}]"#,
    );
    let checked = checked.expect("a request");
    let call = json!({"id": "c", "type": "function",
        "function": {"name": "f", "arguments": "{\"z\": 1}"}});
    let expected = json!([
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [call]},
        {"role": "tool", "content": "o", "tool_call_id": "c"},
        {"role": "developer", "content": "d"},
    ]);
    assert_eq!(messages(&checked), expected);
    let first: Value = serde_json::from_str(&checked.form.input[0]).expect("JSON");
    let part = json!({"type": "input_text", "text": "a"});
    let kept = json!({"type": "message", "id": "item_r_0", "role": "user", "content": [part]});
    assert_eq!(first, kept);
}

#[test]
fn earlier_items_come_before_the_new_ones_and_are_not_kept_again() {
    let earlier =
        r#"{"type":"message","id":"i","role":"user","content":[{"type":"input_text","text":"a"}]}"#;
    let body = r#"{"model":"m","input":"b","previous_response_id":"resp_x","instructions":"S"}"#;
    let checked = read_after(body, &[earlier]).expect("a request");
    let expected = json!([
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]);
    assert_eq!(messages(&checked), expected);
    assert_eq!(checked.form.input.len(), 1);
}

#[test]
fn options_are_those_of_a_chat_and_are_repeated() {
    let checked = read(
        r#","input":"a","max_output_tokens":9,"temperature":0,"stream":true,"store":false,
        "include":["message.output_text.logprobs"],"top_logprobs":2,"truncation":"auto",
        "reasoning":{"effort":"low"},"text":{"format":{"type":"json_schema","name":"n",
            "schema":{"type":"object"},"strict":true}},
        "tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],
        "tool_choice":{"type":"function","name":"f"},"metadata":{"k":"v"}"#,
    );
    let CheckedResponse { request, form } = checked.expect("a request");
    assert_eq!(request.options.open.max_tokens, Some(9));
    assert_eq!(request.options.sampling.logprobs, Some(2));
    assert!(request.options.stream && request.options.sampling.guide.is_some());
    assert!(request.tools.is_some_and(|tools| tools.is_forced()));
    assert!(form.truncates && !form.store && !form.background);
    let echo = format!("{{\"a\":0{}}}", String::from_utf8_lossy(&form.echo.members));
    let echo: Value = serde_json::from_str(&echo).expect("JSON");
    assert_eq!(echo["tools"][0]["strict"], Value::Null);
    assert_eq!(echo["temperature"], json!(0.0));
    assert_eq!(echo["metadata"], json!({"k": "v"}));
    assert_eq!((&echo["store"], &echo["truncation"]), (&json!(false), &json!("auto")));
    assert_eq!(echo["top_p"], json!(1.0));
}

#[test]
fn a_fault_is_named_in_the_words_of_the_api() {
    for (members, param, message) in [
        ("", "input", "missing required parameter: input"),
        (r#","input":7"#, "input", "must be a string or a list of items"),
        (r#","input":[{"type":"compaction","id":"x"}]"#, "input[0]", "compaction"),
        (
            r#","input":[{"role":"user","content":[{"type":"computer_screenshot"}]}]"#,
            "input[0].content[0]",
            "a part of type \"computer_screenshot\"",
        ),
        (r#","input":"a","max_output_tokens":0"#, "max_output_tokens", "max_output_tokens is 0"),
        (
            r#","input":"a","max_ouput_tokens":1"#,
            "max_ouput_tokens",
            "did you mean max_output_tokens?",
        ),
        (r#","input":"a","conversation":"c""#, "conversation", "conversation is not supported"),
        (r#","input":"a","tools":[{"type":"web_search"}]"#, "tools[0].type", "web_search"),
        (
            r#","input":"a","tools":[{"type":"custom","name":"f","format":{"type":"grammar",
                "syntax":"ebnf","definition":"start: x"}}]"#,
            "tools[0].format.syntax",
            "\"ebnf\"",
        ),
        (
            r#","input":"a","tools":[{"type":"custom","name":"f","format":{"type":"grammar",
                "syntax":"lark","definition":"start: x"}}]"#,
            "tools[0].format.definition",
            "tools[0].format.definition: line 1, column 8: nothing defines x",
        ),
        (
            r#","input":"a","tools":[{"type":"namespace","name":"n","tools":[{"type":"custom"}]}]"#,
            "tools[0].tools[0].type",
            "functions only",
        ),
        (r#","input":"a","truncation":"some""#, "truncation", "\"some\""),
        (r#","input":"a","background":true,"store":false"#, "background", "needs store"),
        (
            r#","input":"a","text":{"format":{"type":"json_schema","name":"n"}}"#,
            "text.format.schema",
            "missing",
        ),
        (r#","input":"a","text":{"verbosity":"low"}"#, "text.verbosity", "not supported"),
    ] {
        let error = read(members).expect_err(members);
        assert_eq!(error.param.as_deref(), Some(param), "{members}: {error}");
        assert!(error.message.contains(message), "{members}: {error}");
    }
}

#[test]
fn hints_are_named_and_other_callers_are_refused() {
    let settled = |members: &str| {
        let notes = FieldNotes::default();
        let body = format!(r#"{{"model":"m"{members}}}"#);
        check(parse(body.as_bytes(), &notes)?, &[], PLACE, &notes)?;
        Ok::<_, ApiError>(notes.ignored().unwrap_or_default())
    };
    let items = |call: &str, output: &str| {
        format!(
            r#","input":[{{"role":"user","content":[{{"type":"input_text","text":"a",
                "prompt_cache_breakpoint":{{"mode":"explicit"}}}}]}},
            {{"type":"custom_tool_call","call_id":"c","name":"p","input":"x","async":true,{call}}},
            {{"type":"function_call_output","call_id":"c","output":"o","name":"p","namespace":"n",
                {output}}}]"#
        )
    };
    let direct = r#""caller":{"type":"direct"}"#;
    let program = r#""caller":{"type":"program","caller_id":"x"}"#;
    let named = "input[0].content[0].prompt_cache_breakpoint, input[1].async, input[2].name, \
        input[2].namespace";
    assert_eq!(settled(&items(direct, direct)).expect("a request"), named);
    for (members, param) in [
        (items(program, direct), "input[1].caller"),
        (items(direct, program), "input[2].caller"),
        (
            r#","input":"a","tools":[{"type":"function","name":"f",
                "allowed_callers":["programmatic"]}]"#
                .to_owned(),
            "tools[0].allowed_callers",
        ),
    ] {
        let error = settled(&members).expect_err(param);
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert!(error.message.contains("only the model calls tools here"), "{error}");
    }
    let tools = r#","input":"a","tools":[{"type":"custom","name":"f","async":true,
        "allowed_callers":["direct","programmatic"]}]"#;
    assert_eq!(settled(tools).expect("a request"), "tools[0].async");
    let named = read(
        r#","input":[{"role":"user","content":"a"},
        {"type":"custom_tool_call","call_id":"c","namespace":"n","name":"p","input":"x"}]"#,
    );
    let called = &messages(&named.expect("a request"))[1]["tool_calls"][0];
    assert_eq!(called["function"]["name"], "n__p");
}

#[test]
fn custom_tools_and_namespaces_are_functions_to_the_model() {
    let checked = read(
        r#","input":[{"role":"user","content":"a"},
        {"type":"custom_tool_call","call_id":"c","name":"patch","input":"x\ny"},
        {"type":"custom_tool_call_output","call_id":"c","output":"o"},
        {"type":"function_call","call_id":"d","namespace":"team","name":"spawn","arguments":"{}"},
        {"type":"function_call_output","call_id":"d","output":"p"}],
        "tools":[{"type":"namespace","name":"team","description":"d",
            "tools":[{"type":"function","name":"spawn","parameters":{"type":"object"}}]},
        {"type":"custom","name":"patch","format":{"type":"grammar","syntax":"regex",
            "definition":"a+"}}],
        "tool_choice":{"type":"custom","name":"patch"}"#,
    );
    let checked = checked.expect("a request");
    let messages = messages(&checked);
    let called = |at: usize| &messages[at]["tool_calls"][0]["function"];
    assert_eq!(*called(1), json!({"name": "patch", "arguments": r#"{"input":"x\ny"}"#}));
    assert_eq!(*called(3), json!({"name": "team__spawn", "arguments": "{}"}));
    assert_eq!(messages[2], json!({"role": "tool", "content": "o", "tool_call_id": "c"}));
    let tools = checked.request.tools.expect("tools");
    assert_eq!(tools.choice, crate::ToolChoice::Named("patch".into()));
    let [spawn, patch] = &tools.functions[..] else { panic!("two functions") };
    assert_eq!((&*spawn.name, spawn.strict), ("team__spawn", false));
    assert_eq!((&*patch.name, patch.strict), ("patch", true));
    let ebnf = "root ::= r0\nr0 ::= (\"a\")+\n".to_owned();
    assert_eq!(patch.custom, Some(crate::tools::CustomInput::Grammar(ebnf)));
    let echo = format!("{{\"a\":0{}}}", String::from_utf8_lossy(&checked.form.echo.members));
    let echo: Value = serde_json::from_str(&echo).expect("JSON");
    assert_eq!(echo["tools"][1].get("parameters"), None, "a custom tool has none");
}
