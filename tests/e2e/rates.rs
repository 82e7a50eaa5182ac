//! Limits of a client's requests and tokens in a minute, and the headers that tell of them.

use crate::support::{chat, up};
use hyper::Method;
use serde_json::{Value, json};
use stator_tests::http::Client;

/// The status and the headers of an answer.
async fn ask(client: &Client, path: &str, body: &Value) -> (u16, hyper::HeaderMap) {
    let mut answer = client.begin(Method::POST, path, body.to_string()).await;
    let (status, headers) = (answer.response.status(), answer.response.headers().clone());
    answer.end().await.expect("a whole answer");
    (status.as_u16(), headers)
}

fn header<'h>(headers: &'h hyper::HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().expect("text"))
}

#[tokio::test]
async fn requests_of_a_key_are_counted_and_told() {
    let flags = ["--engine=sim", "--workers=1", "--api-key=alpha,beta,gamma"];
    let up = up(&[&flags[..], &["--requests-per-minute=1"]].concat()).await;
    let key = |key: &str| up.client.clone().with_header("authorization", &format!("Bearer {key}"));
    let (alpha, body) = (key("alpha"), chat("Hello", 2));
    let (status, headers) = ask(&alpha, "/v1/chat/completions", &body).await;
    assert_eq!(status, 200);
    assert_eq!(header(&headers, "x-ratelimit-limit-requests"), Some("1"));
    assert_eq!(header(&headers, "x-ratelimit-remaining-requests"), Some("0"));
    assert!(header(&headers, "x-ratelimit-reset-requests").is_some_and(|it| it.ends_with('s')));
    assert_eq!(header(&headers, "x-ratelimit-limit-tokens"), None, "there is no such limit");
    let (status, headers) = ask(&alpha, "/v1/chat/completions", &body).await;
    let patience: u64 = header(&headers, "retry-after").expect("a time").parse().expect("seconds");
    assert!(status == 429 && (1..=60).contains(&patience), "{status} {headers:?}");
    assert_eq!(header(&headers, "x-ratelimit-remaining-requests"), Some("0"));
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (status, headers) = ask(&key("beta"), "/v1/chat/completions", &streamed).await;
    assert_eq!((status, header(&headers, "x-ratelimit-remaining-requests")), (200, Some("0")));
    // Anthropic's clients read other names, and dates.
    let (status, headers) = ask(&key("gamma"), "/v1/messages", &message()).await;
    assert_eq!(
        (status, header(&headers, "anthropic-ratelimit-requests-remaining")),
        (200, Some("0"))
    );
    assert!(
        header(&headers, "anthropic-ratelimit-requests-reset").is_some_and(|it| it.ends_with('Z'))
    );
    assert_eq!(header(&headers, "x-ratelimit-limit-requests"), None);
    let (status, _) = ask(&key("gamma"), "/v1/messages", &message()).await;
    assert_eq!(status, 429);
    // Lists of models are no work.
    assert_eq!(alpha.get("/v1/models").await.status, 200);
}

fn message() -> Value {
    json!({"model": crate::support::MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]})
}

#[tokio::test]
async fn tokens_of_prompts_and_answers_are_counted() {
    let up = up(&["--engine=sim", "--workers=1", "--tokens-per-minute=40"]).await;
    let (status, headers) = ask(&up.client, "/v1/chat/completions", &chat("Hello", 100)).await;
    assert_eq!((status, header(&headers, "x-ratelimit-limit-tokens")), (200, Some("40")));
    let (status, headers) = ask(&up.client, "/v1/chat/completions", &chat("Hello", 2)).await;
    assert_eq!((status, header(&headers, "x-ratelimit-remaining-tokens")), (429, Some("0")));
    assert_eq!(header(&headers, "x-ratelimit-limit-requests"), None, "there is no such limit");
    assert!(header(&headers, "retry-after").is_some());
}

#[tokio::test]
async fn a_page_of_another_origin_may_read_every_header_of_its_own() {
    let flags = ["--engine=sim", "--workers=1", "--cors-origins=https://page.example"];
    let limits = ["--requests-per-minute=1", "--api-key=alpha,beta"];
    let up = up(&[&flags[..], &limits[..]].concat()).await;
    for (key, path, body) in [
        ("alpha", "/v1/chat/completions", chat("Hello", 2)),
        ("alpha", "/v1/chat/completions", chat("Hello", 2)),
        ("beta", "/v1/messages", message()),
        ("beta", "/v1/messages", message()),
    ] {
        let mut body = body;
        body["metadata"] = json!({"user_id": "u"});
        let client = up.client.clone().with_header("authorization", &format!("Bearer {key}"));
        let client = client.with_header("origin", "https://page.example");
        let (status, headers) = ask(&client, path, &body).await;
        let exposed = header(&headers, "access-control-expose-headers").expect("some headers");
        let exposed: Vec<&str> = exposed.split(", ").collect();
        let plain =
            ["content-length", "content-type", "date", "vary", "cache-control", "connection"];
        let names = headers.keys().map(hyper::header::HeaderName::as_str);
        let is_own = |name: &&str| !name.starts_with("access-control-") && !plain.contains(name);
        let own: Vec<&str> = names.filter(is_own).collect();
        let hidden: Vec<_> = own.iter().filter(|name| !exposed.contains(name)).collect();
        assert!(hidden.is_empty(), "{hidden:?}");
        let limits = own.iter().filter(|name| name.contains("ratelimit")).count();
        let told = if status == 200 { "x-stator-ignored" } else { "retry-after" };
        assert!(limits == 3 && headers.contains_key(told), "{status} {headers:?}");
    }
}

#[tokio::test]
async fn without_limits_there_are_no_headers() {
    let up = up(&["--engine=sim", "--workers=1"]).await;
    let (status, headers) = ask(&up.client, "/v1/chat/completions", &chat("Hello", 2)).await;
    let told = headers.keys().any(|name| name.as_str().contains("ratelimit"));
    assert!(status == 200 && !told, "{headers:?}");
}
