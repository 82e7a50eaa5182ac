//! Tools, reasoning and forms of answers, as clients of the OpenAI API see them.

use crate::support::{MODEL, chat, official_client, up};
use serde_json::{Value, json};

fn tools() -> Value {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["n"],
        "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}});
    json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])
}

#[tokio::test]
async fn the_official_client_gets_calls_thoughts_and_forms_of_the_built_in_engine() {
    let up = up(&["--workers=1"]).await;
    official_client("openai_tools.py", &up).await;
}

#[tokio::test]
async fn a_call_is_streamed_as_clients_put_it_together() {
    let up = up(&["--workers=1"]).await;
    let mut body = chat("Hello", 200);
    body["tools"] = tools();
    body["tool_choice"] = json!("required");
    body["parallel_tool_calls"] = json!(false);
    let whole = up.client.post("/v1/chat/completions", &body).await.json();
    let message = &whole["choices"][0]["message"];
    body["stream"] = json!(true);
    let events = up.client.stream("/v1/chat/completions", &body).await.rest().await;
    let deltas: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0].get("delta")).collect();
    let calls: Vec<&Value> =
        deltas.iter().filter_map(|delta| delta.get("tool_calls")).map(|calls| &calls[0]).collect();
    // The identity comes once, and the index always: clients add everything up.
    assert!(calls[0]["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{events:?}");
    assert_eq!(
        (&calls[0]["type"], &calls[0]["function"]["name"]),
        (&json!("function"), &json!("f"))
    );
    for later in &calls[1..] {
        assert_eq!(
            (later.get("id"), later.get("type"), later["function"].get("name")),
            (None, None, None)
        );
        assert_eq!(later["index"], 0);
    }
    let arguments: String =
        calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(json!(arguments), message["tool_calls"][0]["function"]["arguments"]);
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!((text.as_str(), &message["content"]), ("", &Value::Null));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn an_engine_without_guided_decoding_refuses_to_force_a_call() {
    let up = up(&["--engine=sim", "--workers=1"]).await;
    let mut body = chat("Hello", 4);
    body["tools"] = tools();
    assert_eq!(up.client.post("/v1/chat/completions", &body).await.status, 200);
    body["tool_choice"] = json!("required");
    let refused = up.client.post("/v1/chat/completions", &body).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "tool_choice");
    assert_eq!(body["model"], MODEL);
}
