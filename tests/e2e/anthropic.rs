//! Anthropic's Messages API, as its clients see it.

use crate::support::{MODEL, official_client, up};
use serde_json::{Value, json};

fn message(content: &str, max_tokens: u32) -> Value {
    json!({"model": MODEL, "max_tokens": max_tokens, "temperature": 0,
        "messages": [{"role": "user", "content": content}]})
}

#[tokio::test]
async fn the_official_anthropic_client_is_content() {
    let up = up(&["--workers=1"]).await;
    official_client("anthropic_client.py", &up).await;
}

#[tokio::test]
async fn every_field_of_the_official_anthropic_client_is_read_or_named() {
    official_client("anthropic_fields.py", &up(&["--workers=1"]).await).await;
}

#[tokio::test]
async fn a_key_comes_in_either_header_and_errors_have_the_apis_shape() {
    let up = up(&["--api-key=secret"]).await;
    let ask = async |header: &str, value: &str| {
        let client = up.client.clone().with_header(header, value);
        client.post("/v1/messages", &message("Hello", 2)).await
    };
    for (header, value) in [
        ("x-api-key", "secret"),
        ("authorization", "Bearer secret"),
        ("authorization", "bearer secret"),
        ("api-key", "secret"),
    ] {
        let answer = ask(header, value).await;
        assert_eq!(answer.status, 200, "{header}: {value}");
        assert_eq!(answer.headers["request-id"], answer.headers["x-request-id"]);
    }
    let refused = ask("x-api-key", "wrong").await;
    assert_eq!(refused.status, 401);
    let body = refused.json();
    assert_eq!(
        (&body["type"], &body["error"]["type"]),
        (&json!("error"), &json!("authentication_error"))
    );
    assert_eq!(body["request_id"], refused.headers["request-id"].to_str().expect("text"));
    let client = up.client.clone().with_header("x-api-key", "secret");
    for (path, kind) in
        [("/v1/messages/batches", "api_error"), ("/v1/messages/count_tokens", "not_found_error")]
    {
        assert_eq!(client.get(path).await.json()["error"]["type"], kind, "{path}");
    }
}

#[tokio::test]
async fn an_answer_names_fields_that_changed_nothing() {
    let up = up(&[]).await;
    let mut body = message("Hello", 2);
    body["metadata"] = json!({"user_id": "u"});
    let answer = up.client.post("/v1/messages", &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["x-stator-ignored"], "metadata");
    assert!(
        !up.client
            .post("/v1/messages", &message("Hello", 2))
            .await
            .headers
            .contains_key("x-stator-ignored")
    );
}

/// A request of Claude Code's, as far as its shape goes.
fn coding_request(line: &str, later: &[Value]) -> Value {
    let about = "Reads a file of this machine. ".repeat(20);
    let tool = |name: &str| {
        let schema = json!({"$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object", "properties": {"file_path": {"type": "string"}},
            "required": ["file_path"], "additionalProperties": false});
        json!({"name": name, "description": about, "input_schema": schema})
    };
    let mut deferred = tool("Grep");
    deferred["defer_loading"] = json!(true);
    let cached = json!({"type": "ephemeral"});
    let environment = "# Environment\nThe folder is /work. ".repeat(10);
    let mut messages = vec![
        json!({"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"},
            {"type": "text", "text": "Where is the garden?"}]}),
        json!({"role": "system", "content": [
            {"type": "text", "text": environment, "cache_control": cached}]}),
    ];
    messages.extend_from_slice(later);
    let tools = match later.is_empty() {
        true => json!([tool("Edit"), tool("Read")]),
        // A search has loaded one more, which the list has in the order of names.
        false => json!([tool("Edit"), deferred, tool("Read")]),
    };
    json!({"model": MODEL, "max_tokens": 4, "temperature": 0, "tools": tools, "messages": messages,
        "system": [{"type": "text", "text": line},
            {"type": "text", "text": "You are an agent.", "cache_control": cached},
            {"type": "text", "text": "You help with code. ".repeat(40), "cache_control": cached}],
        "metadata": {"user_id": "{\"session_id\":\"s\"}"}, "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"}})
}

#[tokio::test]
async fn a_coding_agents_changing_line_and_late_tools_leave_its_prefix_cached() {
    let up = up(&["--workers=1"]).await;
    let usage = async |line: &str, later: &[Value]| {
        let client = up.client.clone().with_header("x-claude-code-session-id", "s");
        let answer = client.post("/v1/messages?beta=true", &coding_request(line, later)).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let usage = &answer.json()["usage"];
        let tokens = |name: &str| usage[name].as_u64().expect("a number");
        // What is computed and pinned is counted apart.
        let computed = tokens("input_tokens") + tokens("cache_creation_input_tokens");
        (tokens("cache_read_input_tokens"), computed)
    };
    let line = |version: &str| {
        format!(
            "x-anthropic-billing-header: cc_version=2.1.{version}; cc_entrypoint=cli; cch=0{version};"
        )
    };
    let (_, whole) = usage(&line("1"), &[]).await;
    let (cached, rest) = usage(&line("2222"), &[]).await;
    assert!(cached + rest == whole && rest <= 64, "{cached} of {whole}");
    let found = json!({"type": "tool_reference", "tool_name": "Grep"});
    let later = [
        json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"query": "grep"}}]}),
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [found]}]}),
    ];
    let (cached, _) = usage(&line("33"), &later).await;
    assert!(cached >= whole - 64, "{cached} of {whole}");
}

#[tokio::test]
async fn a_context_that_is_longer_than_the_models_files_say_counts() {
    let up = up(&["--engine=sim", "--workers=1", "--context-length=131072"]).await;
    let answer = up.client.post("/v1/messages", &message(&"word ".repeat(80_000), 1)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let refused = up.client.post("/v1/messages", &message(&"word ".repeat(140_000), 1)).await;
    let message = &refused.json()["error"]["message"];
    assert!(
        message.as_str().is_some_and(|text| text.starts_with("prompt is too long: ")),
        "{message}"
    );
}

#[tokio::test]
async fn an_answer_ends_with_the_context_whatever_its_bound() {
    let up = up(&["--context-length=256"]).await;
    let mut body = message("Hello", 100_000);
    body["stop_sequences"] = json!(["no such text"]);
    let answer = up.client.post("/v1/messages", &body).await.json();
    let reason = answer["stop_reason"].as_str().expect("a reason");
    assert!(["model_context_window_exceeded", "end_turn"].contains(&reason), "{answer}");
    let tokens = answer["usage"]["output_tokens"].as_u64().expect("a number");
    assert!((1..256).contains(&tokens), "{answer}");
}
