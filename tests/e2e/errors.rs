//! Every way to be refused, in the shape that the official clients expect.

use crate::support::{MODEL, chat, up};
use hyper::Method;
use serde_json::{Value, json};
use stator_tests::http::{Client, Reply};
use stator_tests::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Checks status and body, and returns the error.
fn check(reply: &Reply, status: u16) -> Value {
    assert_eq!(reply.status, status, "{:?}", reply.body);
    let error = reply.json()["error"].clone();
    for member in ["message", "type", "param", "code"] {
        assert!(error.get(member).is_some(), "{member} is missing in {error}");
    }
    assert!(!error["message"].as_str().unwrap().is_empty());
    error
}

/// Checks that an answer says when to come back.
fn says_when(reply: &Reply) {
    let after = reply.headers.get("retry-after").and_then(|value| value.to_str().ok());
    let seconds: Option<u64> = after.and_then(|text| text.parse().ok());
    // Official clients do not come back at all after a longer wait.
    assert!(seconds.is_some_and(|seconds| (1..=120).contains(&seconds)), "{after:?}");
}

#[tokio::test]
async fn errors_name_the_field_the_value_and_the_limit() {
    let up = up(&["--max-body-bytes=20000", "--max-header-bytes=2000"]).await;
    let post = async |body: Value| up.client.post("/v1/chat/completions", &body).await;
    let with = |field: &str, value: Value| {
        let mut body = chat("Hello", 4);
        body[field] = value;
        body
    };

    let error = check(&post(with("temperature", json!(2.5))).await, 400);
    assert_eq!(error["param"], "temperature");
    assert!(error["message"].as_str().unwrap().contains("2.5"), "{error}");
    let error = check(&post(with("model", json!("other"))).await, 404);
    assert_eq!(error["code"], "model_not_found");
    check(&post(with("messages", json!([]))).await, 400);
    check(&post(with("logit_bias", json!({"99999999": 1}))).await, 400);
    check(&post(with("min_tokens", json!(9))).await, 422);
    let error = check(&post(with("max_tokens", json!(1_000_000))).await, 400);
    assert_eq!(error["code"], "context_length_exceeded");

    let client = &up.client;
    check(&client.send(Method::POST, "/v1/chat/completions", "{\"model\":").await, 400);
    let plain = client.clone().with_header("content-type", "text/plain");
    check(&plain.send(Method::POST, "/v1/completions", "{}").await, 415);
    check(&client.get("/v1/nothing").await, 404);
    check(&client.get("/v1/models/other").await, 404);
    let reply = client.get("/v1/completions").await;
    check(&reply, 405);
    assert_eq!(reply.headers["allow"], "POST");
    check(&client.send(Method::POST, "/v1/completions", vec![b' '; 20_001]).await, 413);
    check(&client.clone().with_header("x-long", &"x".repeat(2000)).get("/live").await, 431);
    let ids = json!({"model": MODEL, "prompt": [1, 2, 4_000_000], "max_tokens": 2});
    let error = check(&client.post("/v1/completions", &ids).await, 400);
    assert!(error["message"].as_str().unwrap().contains("4000000"), "{error}");
}

#[tokio::test]
async fn media_are_refused_by_type_and_place_in_every_api() {
    let up = up(&["--engine=sim", "--workers=1"]).await;
    let turns = |part: Value| json!([{"role": "user", "content": "a"}, {"role": "user", "content": [part]}]);
    let image = turns(json!({"type": "image_url", "image_url": {"url": "http://a/1.png"}}));
    let sound =
        turns(json!({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}));
    let file = turns(json!({"type": "input_file", "file_data": "AA", "filename": "n"}));
    let block = turns(json!({"type": "image", "source": {"type": "url", "url": "http://a/1.png"}}));
    for (path, body, part, kind) in [
        ("/v1/chat/completions", json!({"messages": image}), "messages[1].content[0]", "image_url"),
        ("/tokenize", json!({"messages": sound}), "messages[1].content[0]", "input_audio"),
        ("/v1/responses", json!({"input": file}), "input[1].content[0]", "input_file"),
        (
            "/v1/messages",
            json!({"messages": block, "max_tokens": 1}),
            "messages[1].content[0]",
            "image",
        ),
    ] {
        let mut body = body;
        body["model"] = json!(MODEL);
        let reply = up.client.post(path, &body).await;
        assert_eq!(reply.status, 400, "{path}: {:?}", reply.body);
        let error = &reply.json()["error"];
        let expected = format!("{part} is a part of type {kind:?}, which is not supported here");
        let message = error["message"].as_str().expect("a text");
        assert!(message.starts_with(&expected), "{path}: {error}");
        // Errors of Messages have no such member.
        if path != "/v1/messages" {
            assert_eq!(error["param"], part, "{path}");
        }
    }
}

#[tokio::test]
async fn a_misspelt_field_is_refused_or_named_as_the_operator_wants_it() {
    let mut body = chat("Hello", 1);
    body["temprature"] = json!(0);
    let strict = up(&["--engine=sim", "--workers=1"]).await;
    let error = check(&strict.client.post("/v1/chat/completions", &body).await, 400);
    assert_eq!(error["param"], "temprature");
    assert!(error["message"].as_str().expect("text").ends_with("did you mean temperature?"));
    let lenient = up(&["--engine=sim", "--workers=1", "--unknown-fields=ignore"]).await;
    let answer = lenient.client.post("/v1/chat/completions", &body).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["x-stator-ignored"]),
        (200, &"temprature".parse().expect("text"))
    );
    // Workers are chosen by the proxy, and a client that chose one hears that.
    let choosing = lenient.client.clone().with_header("x-dp-rank", "0");
    let answer = choosing.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.headers["x-stator-ignored"], "x-dp-rank, temprature");
    // A part of the API that would change the answer is refused all the same.
    body["audio"] = json!({"format": "wav", "voice": "v"});
    let error = check(&lenient.client.post("/v1/chat/completions", &body).await, 400);
    assert_eq!(error["param"], "audio");
}

#[tokio::test]
async fn keys_are_asked_for_where_there_are_any() {
    let up = up(&["--api-key=alpha,beta"]).await;
    let with = |key: &str| up.client.clone().with_header("authorization", key);
    let reply = up.client.get("/v1/models").await;
    assert_eq!(check(&reply, 401)["code"], "invalid_api_key");
    check(&with("Bearer gamma").get("/v1/models").await, 401);
    check(&with("alpha").get("/v1/models").await, 401);
    assert_eq!(with("Bearer beta").get("/v1/models").await.status, 200);
    assert_eq!(up.client.get("/health").await.status, 200, "probes carry no key");
    assert!(!up.process.log().contains("gamma") && !up.process.log().contains("beta"));
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let up = up(&["--body-timeout-ms=50"]).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{\"model\"";
    let answer = raw(&up.client, head).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"code\":\"request_timeout\""), "{answer}");
}

#[tokio::test]
async fn bytes_that_are_not_http_get_a_400() {
    let up = up(&[]).await;
    let answer = raw(&up.client, "NOT HTTP AT ALL\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("\"code\":\"malformed_http\""), "{answer}");
    assert_eq!(up.client.get("/live").await.status, 200);
}

#[tokio::test]
async fn too_many_requests_at_once_are_told_to_come_back() {
    let up = up(&["--engine=sim", "--sim-step-ms=20", "--max-concurrent-requests=1"]).await;
    let mut body = chat("Hello", 2000);
    body["stream"] = json!(true);
    let mut first = up.client.stream("/v1/chat/completions", &body).await;
    first.next().await;
    let reply = up.client.post("/v1/chat/completions", &chat("Hello", 2)).await;
    check(&reply, 429);
    assert!(reply.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(up.client.get("/live").await.status, 200, "probes are not counted");
    let health = up.client.get("/health").await;
    assert_eq!((health.status.as_u16(), &health.json()["of"]), (503, &json!("requests")));
    let message = json!({"model": MODEL, "max_tokens": 2,
        "messages": [{"role": "user", "content": "Hello"}]});
    let refusals = [
        ("/v1/completions", 429, json!({"model": MODEL, "prompt": "Hello"})),
        ("/v1/responses", 429, json!({"model": MODEL, "input": "Hello"})),
        ("/v1/embeddings", 429, json!({"model": MODEL, "input": "Hello"})),
        ("/v1/messages", 429, message),
        ("/tokenize", 429, json!({"model": MODEL, "prompt": "Hello"})),
    ];
    for (path, status, body) in refusals {
        let reply = up.client.post(path, &body).await;
        assert_eq!(reply.status, status, "{path}: {:?}", reply.body);
        says_when(&reply);
    }
    says_when(&health);
}

#[tokio::test]
async fn a_first_token_that_does_not_come_is_a_504_and_a_stall_an_error_event() {
    let slow = ["--engine=sim", "--sim-step-ms=60000", "--first-token-timeout-ms=50"];
    let up_slow = up(&slow).await;
    let reply = up_slow.client.post("/v1/chat/completions", &chat("Hello", 2)).await;
    check(&reply, 504);

    let stalls = ["--engine=sim", "--sim-step-ms=2000", "--idle-timeout-ms=50"];
    let up_stalls = up(&stalls).await;
    let mut body = chat("Hello", 20);
    body["stream"] = json!(true);
    let events = up_stalls.client.stream("/v1/chat/completions", &body).await.rest().await;
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], "timeout", "{events:?}");
}

/// Sends bytes and reads until the server closes.
async fn raw(client: &Client, bytes: &str) -> String {
    let mut socket = TcpStream::connect(client.address()).await.unwrap();
    socket.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon("the server answers and closes", socket.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}
