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
