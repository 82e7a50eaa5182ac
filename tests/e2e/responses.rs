//! OpenAI's Responses API, as its clients see it.

use crate::support::{MODEL, official_client, up};
use hyper::Method;
use serde_json::{Value, json};

fn response(input: &str) -> Value {
    json!({"model": MODEL, "input": input, "max_output_tokens": 4, "temperature": 0})
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
