//! OpenAI's Responses API, as its clients see it.

use crate::support::{MODEL, Up, official_client, up};
use hyper::Method;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

fn response(input: &str) -> Value {
    json!({"model": MODEL, "input": input, "max_output_tokens": 4, "temperature": 0})
}

/// A request that goes on with the first item of a response, by its id.
fn referring(made: &Value) -> Value {
    let said = json!({"type": "item_reference", "id": made["output"][0]["id"]});
    let mut next = response("");
    next["input"] = json!([said, {"role": "user", "content": "And then?"}]);
    next
}

#[tokio::test]
async fn the_official_client_is_content_with_responses() {
    let up = up(&["--workers=1"]).await;
    official_client("responses_client.py", &up).await;
}

#[tokio::test]
async fn a_response_is_its_tenants_own() {
    let up = up(&["--api-key=one,two"]).await;
    let client =
        |key: &str| up.client.clone().with_header("authorization", &format!("Bearer {key}"));
    let made = client("one").post("/v1/responses", &response("Hello")).await.json();
    let path = format!("/v1/responses/{}", made["id"].as_str().expect("an id"));
    assert_eq!(client("one").get(&path).await.json(), made);
    assert_eq!(client("two").get(&path).await.status, 404);
    assert_eq!(up.client.get(&path).await.status, 401);
    assert_eq!(client("one").with_header("x-tenant-id", "t").get(&path).await.status, 404);
    assert_eq!(client("two").send(Method::DELETE, &path, "").await.status, 404);
    let mut next = response("And then?");
    next["previous_response_id"] = made["id"].clone();
    let refused = client("two").post("/v1/responses", &next).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["code"]),
        (400, &json!("previous_response_not_found"))
    );
    assert_eq!(client("one").post("/v1/responses", &next).await.status, 200);
    let refused = client("two").post("/v1/responses", &referring(&made)).await.json();
    assert_eq!(refused["error"]["code"], "item_not_found", "{refused}");
    let message = refused["error"]["message"].as_str().expect("a text");
    assert!(message.contains(made["output"][0]["id"].as_str().expect("an id")), "{message}");
    let said = client("one").post("/v1/responses", &referring(&made)).await.json();
    let alone = client("one").post("/v1/responses", &response("And then?")).await.json();
    let tokens = |made: &Value| made["usage"]["input_tokens"].as_u64().expect("a count");
    assert!(tokens(&said) > tokens(&alone), "{said} {alone}");
    let counted = client("one").post("/v1/responses/input_tokens", &referring(&made)).await.json();
    assert_eq!(counted["input_tokens"].as_u64(), Some(tokens(&said)), "{counted}");
}

#[tokio::test]
async fn a_database_keeps_responses_over_a_restart() {
    let home = tempfile::tempdir().expect("a folder");
    let place = format!("--responses-store=sqlite:{}", home.path().join("responses").display());
    let flags = ["--engine=sim", "--workers=1", "--api-key=one,two", &place];
    let client = |up: &Up, key: &str| {
        up.client.clone().with_header("authorization", &format!("Bearer {key}"))
    };
    let mut first = up(&flags).await;
    let made = client(&first, "one").post("/v1/responses", &response("Hello")).await.json();
    let gone = client(&first, "one").post("/v1/responses", &response("Hello")).await.json();
    let path = |made: &Value| format!("/v1/responses/{}", made["id"].as_str().expect("an id"));
    client(&first, "one").send(Method::DELETE, &path(&gone), "").await;
    for file in std::fs::read_dir(home.path()).expect("the folder").flatten() {
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.path().display());
    }
    first.process.terminate();
    assert!(first.process.ended().await.success(), "{}", first.process.log());

    let second = up(&flags).await;
    assert_eq!(client(&second, "one").get(&path(&made)).await.json(), made);
    assert_eq!(client(&second, "one").get(&path(&gone)).await.status, 404);
    assert_eq!(client(&second, "two").get(&path(&made)).await.status, 404);
    let mut next = response("And then?");
    next["previous_response_id"] = made["id"].clone();
    let next = client(&second, "one").post("/v1/responses", &next).await.json();
    let (before, after) = (&made["usage"]["input_tokens"], &next["usage"]["input_tokens"]);
    assert!(after.as_u64() > before.as_u64(), "{next}");
    let listed = client(&second, "one").get(&format!("{}/input_items", path(&next))).await.json();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(3), "{listed}");
    let next = client(&second, "one").post("/v1/responses", &referring(&made)).await.json();
    let listed = client(&second, "one").get(&format!("{}/input_items", path(&next))).await.json();
    assert_eq!(listed["data"][1], made["output"][0], "{listed}");
}

#[tokio::test]
async fn a_conversation_stays_with_its_worker() {
    let up = up(&[
        "--engine=sim",
        "--workers=4",
        "--router-mode=random",
        "--router-session-affinity-ttl-s=60",
    ])
    .await;
    let ask = async |input: &str, previous: Option<&str>| {
        let mut body = response(input);
        body["stream"] = json!(true);
        if let Some(previous) = previous {
            body["previous_response_id"] = json!(previous);
        }
        let reply = up.client.post("/v1/responses", &body).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        let worker = reply.headers["x-stator-worker-id"].to_str().expect("text").to_owned();
        let events = String::from_utf8_lossy(&reply.body).into_owned();
        let id = events.split('"').find(|text| text.starts_with("resp_")).expect("an id");
        (worker, id.to_owned())
    };
    let (worker, mut last) = ask("Hello", None).await;
    for turn in 0..12 {
        let (same, next) = ask("And then?", Some(&last)).await;
        assert_eq!(same, worker, "turn {turn}");
        last = next;
    }
    let mut others = std::collections::HashSet::new();
    for _ in 0..32 {
        others.insert(ask("Hello", None).await.0);
    }
    assert!(others.len() > 1, "other conversations go elsewhere");
}

#[tokio::test]
async fn nothing_is_kept_without_a_store() {
    let up = up(&["--responses-max-bytes=0"]).await;
    let made = up.client.post("/v1/responses", &response("Hello")).await.json();
    assert_eq!((&made["store"], &made["object"]), (&json!(false), &json!("response")));
    let path = format!("/v1/responses/{}", made["id"].as_str().expect("an id"));
    assert_eq!(up.client.get(&path).await.status, 404);
    let mut background = response("Hello");
    background["background"] = json!(true);
    let refused = up.client.post("/v1/responses", &background).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (422, &json!("background"))
    );
}

#[tokio::test]
async fn http_is_spoken_as_clients_speak_it() {
    let up = up(&["--cors-origins=https://page.example"]).await;
    official_client("http_client.py", &up).await;
    let page = up.client.get("/").await;
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let text = String::from_utf8(page.body.to_vec()).expect("text");
    assert!(text.contains("/v1/chat/completions") && !text.contains("https://"), "{text}");
}

#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let up =
        up(&["--engine=sim", "--workers=1", "--sim-step-ms=300", "--stream-comment-ms=20"]).await;
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
    body["stream"] = json!(true);
    let mut chat = up.client.begin(Method::POST, "/v1/chat/completions", body.to_string()).await;
    let text = String::from_utf8(chat.end().await.expect("an end").to_vec()).expect("text");
    assert!(text.starts_with(": waiting\n\n") && text.ends_with("data: [DONE]\n\n"), "{text}");
    let mut message = up.client.begin(Method::POST, "/v1/messages", body.to_string()).await;
    let text = String::from_utf8(message.end().await.expect("an end").to_vec()).expect("text");
    assert!(text.starts_with("event: ping\n") && text.contains("event: message_stop"), "{text}");
}
