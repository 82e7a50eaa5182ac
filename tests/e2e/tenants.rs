//! Tenants: which of them share cached prefixes, and which may ask at all.

use crate::support::{MODEL, Up, chat, up};
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::http::Client;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// A prompt of several blocks; its chat ends in a block that is not complete.
fn question() -> Value {
    chat(&"The garden was quiet in the evening. ".repeat(20), 2)
}

/// A client with this key, and with this tenant where there is one.
fn client(up: &Up, key: &str, tenant: Option<&str>) -> Client {
    let client = up.client.clone().with_header("authorization", &format!("Bearer {key}"));
    match tenant {
        Some(tenant) => client.with_header("x-tenant-id", tenant),
        None => client,
    }
}

/// Cached tokens of the prompt, as the client is told.
async fn cached(client: &Client, body: &Value) -> u64 {
    let reply = client.post("/v1/chat/completions", body).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    let usage = &reply.json()["usage"];
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
}

/// Asks twice: the first time nothing is cached, the second time all complete blocks are.
async fn is_apart(client: &Client, body: &Value) -> bool {
    let first = cached(client, body).await;
    let second = cached(client, body).await;
    assert!(second >= 64, "the same client's own prompt is cached: {second}");
    first == 0
}

#[tokio::test]
async fn the_cache_of_one_key_tells_another_nothing() {
    let up = up(&["--workers=1", "--api-key=alpha-key,beta-key"]).await;
    let body = question();
    assert!(is_apart(&client(&up, "alpha-key", None), &body).await);
    assert!(is_apart(&client(&up, "beta-key", None), &body).await);

    // The same tenant or the same salt of two keys is not the same, and a tenant can be none of
    // another key's.
    assert!(is_apart(&client(&up, "alpha-key", Some("t")), &body).await);
    assert!(is_apart(&client(&up, "beta-key", Some("t")), &body).await);
    let mut salted = body.clone();
    salted["cache_salt"] = json!("s");
    assert!(is_apart(&client(&up, "alpha-key", None), &salted).await);
    assert!(is_apart(&client(&up, "beta-key", None), &salted).await);
    assert!(!is_apart(&client(&up, "alpha-key", None), &body).await);
    for secret in ["alpha-key", "beta-key"] {
        assert!(!up.process.log().contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn keys_of_one_owner_share_and_tenants_do_not() {
    let up = up(&["--workers=1", "--api-key=alpha-key,beta-key", "--shared-prefixes"]).await;
    let body = question();
    assert!(is_apart(&client(&up, "alpha-key", None), &body).await);
    assert!(!is_apart(&client(&up, "beta-key", None), &body).await);
    assert!(is_apart(&client(&up, "beta-key", Some("t")), &body).await);
    assert!(!is_apart(&client(&up, "alpha-key", Some("t")), &body).await);
    assert!(is_apart(&client(&up, "alpha-key", Some("other")), &body).await);
}

#[tokio::test]
async fn without_keys_all_share_but_who_asks_not_to() {
    let up = up(&["--workers=1"]).await;
    let body = question();
    assert!(is_apart(&up.client, &body).await);
    assert!(!is_apart(&up.client, &body).await);
    let mut salted = body.clone();
    salted["cache_salt"] = json!("s");
    assert!(is_apart(&up.client, &salted).await);
    let mut extended = body.clone();
    extended["nvext"] = json!({"cache_salt": "s"});
    assert!(is_apart(&up.client, &extended).await);
    assert!(is_apart(&up.client.clone().with_header("x-tenant-id", "s"), &body).await);
}

#[tokio::test]
async fn a_salt_is_refused_by_the_api_and_not_by_an_agent() {
    let up = up(&["--workers=1"]).await;
    let with = |bytes: usize| {
        let salt = "s".repeat(bytes);
        json!({"model": MODEL, "prompt": "x", "max_tokens": 1, "cache_salt": salt})
    };
    assert_eq!(up.client.post("/v1/completions", &with(256)).await.status, 200);
    let reply = up.client.post("/v1/completions", &with(257)).await;
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!(error["param"], "cache_salt");
    assert_eq!(error["message"], "cache_salt has 257 bytes, it must have 1 to 256");
}

#[tokio::test]
async fn keys_come_from_a_file_that_may_change() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, "# clients\nalpha-of-the-file\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let flag = format!("--api-keys-file={}", file.display());
    let mut up = up(&["--workers=1", &flag]).await;
    let status = async |up: &Up, key: &str| client(up, key, None).get("/v1/models").await.status;
    assert_eq!(up.client.get("/v1/models").await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&up, "alpha-of-the-file").await, 200);
    assert_eq!(status(&up, "# clients").await, 401);
    let warning = "every user of this machine can use the file of API keys";
    assert_eq!(up.process.event(warning).await["mode"], "644");

    std::fs::write(&file, "beta-of-the-file\n").unwrap();
    assert_eq!(up.process.event("API keys reloaded").await["keys"], 1);
    assert_eq!(status(&up, "beta-of-the-file").await, 200);
    assert_eq!(status(&up, "alpha-of-the-file").await, 401);
    assert!(!up.process.log().contains("of-the-file"));
}

/// Cached prompt tokens of vectors that the proxy has counted so far: their answers do not tell.
async fn cached_so_far(up: &Up) -> u64 {
    let page = up.client.get("/metrics").await;
    let page = String::from_utf8(page.body.to_vec()).expect("text");
    let name = "stator_proxy_cached_prompt_tokens_total ";
    let count = page.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    count.expect("a count")
}

#[tokio::test]
async fn no_cached_token_crosses_on_any_surface() {
    let text = "The garden was quiet in the evening. ".repeat(20);
    let turn = json!([{"role": "user", "content": text}]);
    let surfaces = [
        (
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 1}),
            Some("/usage/prompt_tokens_details/cached_tokens"),
        ),
        (
            "/v1/responses",
            json!({"input": text, "max_output_tokens": 1}),
            Some("/usage/input_tokens_details/cached_tokens"),
        ),
        (
            "/v1/messages",
            json!({"messages": turn, "max_tokens": 1}),
            Some("/usage/cache_read_input_tokens"),
        ),
        ("/v1/embeddings", json!({"input": text}), None),
    ];
    for (path, mut body, count) in surfaces {
        body["model"] = json!(MODEL);
        let up = up(&["--workers=1", "--api-key=alpha-key,beta-key"]).await;
        let asked = async |key: &str, tenant: Option<&str>| {
            let before = cached_so_far(&up).await;
            let reply = client(&up, key, tenant).post(path, &body).await;
            assert_eq!(reply.status, 200, "{path}: {:?}", reply.body);
            match count {
                Some(count) => {
                    reply.json().pointer(count).and_then(Value::as_u64).expect("a count")
                }
                None => cached_so_far(&up).await - before,
            }
        };
        for (key, tenant) in [("alpha-key", None), ("beta-key", None), ("alpha-key", Some("t"))] {
            assert_eq!(asked(key, tenant).await, 0, "{path}: {key} {tenant:?}");
            let again = asked(key, tenant).await;
            assert!(again >= 64, "{path}: the client's own prompt is cached: {again}");
        }
    }
}
