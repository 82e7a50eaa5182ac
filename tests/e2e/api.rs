//! The OpenAI API, as a client sees it.

use crate::support::{MODEL, chat, joined, official_client, text, up};
use serde_json::json;

#[tokio::test]
async fn the_official_client_is_content() {
    official_client("openai_client.py", &up(&[]).await).await;
}

#[tokio::test]
async fn every_field_of_the_official_client_is_read_or_named() {
    official_client("openai_fields.py", &up(&["--workers=1"]).await).await;
}

#[tokio::test]
async fn a_stream_says_the_same_as_a_whole_answer_and_the_second_time_reuses_the_prefix() {
    let up = up(&["--workers=1"]).await;
    let question = chat(&"The garden was quiet in the evening. ".repeat(20), 24);
    let first = up.client.post("/v1/chat/completions", &question).await.json();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(first["usage"]["completion_tokens"], 24);

    let mut streamed = question.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let chunks = up.client.stream("/v1/chat/completions", &streamed).await.rest().await;
    assert_eq!(joined(&chunks), text(&first));
    let usage = &chunks.last().unwrap()["usage"];
    assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 64, "{usage}");
    assert_eq!(usage["prompt_tokens"], first["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn every_documented_route_answers() {
    let up = up(&[]).await;
    let models = up.client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], MODEL);
    let one = up.client.get(&format!("/v1/models/{MODEL}")).await;
    assert_eq!(one.json()["object"], "model");
    for path in ["/health", "/live"] {
        assert_eq!(up.client.get(path).await.status, 200, "{path}");
    }
    let document = up.client.get("/openapi.json").await.json();
    for path in document["paths"].as_object().unwrap().keys().filter(|path| !path.contains('{')) {
        assert_ne!(up.client.get(path).await.status, 404, "{path}");
    }
    up.client.post("/v1/chat/completions", &chat("Hello", 2)).await;
    let metrics = String::from_utf8(up.client.get("/metrics").await.body.to_vec()).unwrap();
    for name in ["stator_proxy_requests_total", "stator_proxy_time_to_first_token_seconds_bucket"] {
        assert!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
}

#[tokio::test]
async fn a_request_id_is_kept_or_made_and_returned() {
    let up = up(&[]).await;
    let kept = up.client.clone().with_header("x-request-id", "mine-1").get("/v1/models").await;
    assert_eq!(kept.headers["x-request-id"], "mine-1");
    let made = up.client.get("/v1/models").await;
    assert!(made.headers["x-request-id"].len() >= 16);
    let odd = up.client.clone().with_header("x-request-id", &"x".repeat(500)).get("/live").await;
    assert!(odd.headers["x-request-id"].len() < 200);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_answer_and_another_seed_another() {
    let up = up(&[]).await;
    let ask = async |seed: u32| {
        let mut body = chat("Tell me a story.", 32);
        body["temperature"] = json!(1.0);
        body["seed"] = json!(seed);
        text(&up.client.post("/v1/chat/completions", &body).await.json())
    };
    let first = ask(1).await;
    assert_eq!(ask(1).await, first);
    assert_ne!(ask(2).await, first);
}
