//! Servers of the OpenAI API behind agents that only watch them. `stator up` is one such server,
//! vLLM another.

use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::support::{MODEL, Up, chat, official_client, ready, up};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::stock::{self, Bed, Engine, Role};
use stator_tests::{soon, vllm};
use std::net::SocketAddr;
use std::path::Path;

const SIM: [&str; 2] = ["--engine=sim", "--workers=1"];

/// An agent that watches the server at `address`.
struct Watch {
    process: Process,
    /// Its side server.
    client: Client,
    worker: String,
}

impl Watch {
    async fn start(home: &Path, address: SocketAddr) -> Self {
        let dir = format!("--discovery-dir={}", home.display());
        let url = format!("--attach=http://{address}");
        let mut process = agent(&dir, &["--engine=openai", &url, "--block-size=4"]);
        let side = process.event("side server listening").await["address"].clone();
        let serving = process.event("serving").await;
        Self {
            client: Client::new(side.as_str().unwrap().parse().unwrap()),
            worker: serving["workers"].as_str().unwrap().split('/').next().unwrap().to_owned(),
            process,
        }
    }
}

/// A proxy that has found the agents of so many servers.
async fn front(home: &Path, servers: usize, flags: &[&str]) -> (Process, Client) {
    let dir = format!("--discovery-dir={}", home.display());
    let args = [&["proxy", "--http-port=0", "--metrics-port=0", &dir], flags].concat();
    let mut process = Process::start(&args);
    let client = Client::new(ready(&mut process).await);
    gauge_becomes(&client, "stator_proxy_workers", servers as f64).await;
    (process, client)
}

/// A body without what differs from one request to the next: the time, and an engine's own ids.
fn masked(body: &Bytes, members: &[&str]) -> String {
    let mut text = String::from_utf8(body.to_vec()).unwrap();
    for member in members {
        let key = format!("\"{member}\":");
        let mut from = 0;
        while let Some(at) = text[from..].find(&key) {
            let start = from + at + key.len();
            let end = start + text[start..].find([',', '}']).unwrap();
            text.replace_range(start..end, "_");
            from = start;
        }
    }
    text
}

/// Checks that the same request has the same answer from a server and through a proxy.
async fn check_alike(server: &Client, front: &Client, path: &str, body: &Value, masks: &[&str]) {
    let ask = async |client: &Client| {
        let client = client.clone().with_header("x-request-id", "same");
        let mut answer = client.begin(Method::POST, path, body.to_string()).await;
        let (status, kind) =
            (answer.response.status(), answer.response.headers().get("content-type").cloned());
        (status, kind, masked(&answer.end().await.unwrap(), masks))
    };
    // What is cached is in the answer too.
    ask(server).await;
    let (status, kind, answer) = ask(server).await;
    // Where KV is concerns engines alone: the proxy blanks it.
    let handover = ["kv_transfer_params", "ec_transfer_params"];
    let members = handover.map(|name| format!(",\"{name}\":null"));
    let answer =
        members.iter().fold(answer, |answer, it| answer.replace(it, &" ".repeat(it.len())));
    assert_eq!(ask(front).await, (status, kind, answer), "{path} {body}");
}

/// The same for a stream, which comes in more or fewer events as the server has time: what they
/// say all together, the counts at the end among it.
async fn check_streams_alike(server: &Client, front: &Client, path: &str, body: Value) {
    let body = streamed(body);
    let ask = async |client: &Client| {
        let events = client.stream(path, &body).await.rest().await;
        let choices = events.iter().map(|event| &event["choices"][0]);
        let said = |choice: &Value| {
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            text.unwrap_or_default().to_owned()
        };
        let text: String = choices.map(said).collect();
        assert!(events.len() > 1 && !text.is_empty(), "{events:?}");
        (text, events.last().unwrap()["usage"].clone())
    };
    ask(server).await;
    assert_eq!(ask(front).await, ask(server).await, "{path} {body}");
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    body
}

#[tokio::test]
async fn the_official_client_is_content_with_a_server_behind_the_proxy() {
    let home = tempfile::tempdir().unwrap();
    let server = up(&["--workers=1"]).await;
    let watch = Watch::start(home.path(), server.client.address()).await;
    let (process, client) = front(home.path(), 1, &[]).await;
    let proxy = Up { process, client };
    official_client("openai_client.py", &proxy).await;
    let client = proxy.client;

    let body = chat("Tell me about the garden.", 12);
    let completion = json!({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8,
        "temperature": 0, "logprobs": 2});
    for (path, body) in [("/v1/chat/completions", &body), ("/v1/completions", &completion)] {
        check_streams_alike(&server.client, &client, path, body.clone()).await;
    }
    for (path, body) in [
        ("/v1/chat/completions", body),
        ("/v1/completions", completion),
        ("/v1/completions", json!({"model": MODEL, "prompt": "a", "max_tokens": -1})),
        ("/v1/embeddings", json!({"model": MODEL, "input": "a"})),
    ] {
        check_alike(&server.client, &client, path, &body, &["created"]).await;
    }
    let listed = client.get("/v1/models").await.json();
    assert_eq!(listed["data"][0]["id"], MODEL);
    // No request was the agent's.
    assert_eq!(gauge(&watch.client, "stator_agent_requests_total").await.unwrap_or(0.0), 0.0);
}

/// The worker that answered.
async fn worker_of(client: &Client, body: &Value) -> String {
    let reply = client.post("/v1/chat/completions", body).await;
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    reply.headers["x-stator-worker-id"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn prompts_go_back_to_their_server_and_elsewhere_once_it_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let mut servers = [up(&SIM).await, up(&SIM).await];
    let mut watches = Vec::new();
    for server in &servers {
        watches.push(Watch::start(home.path(), server.client.address()).await);
    }
    let (_process, client) = front(home.path(), 2, &[]).await;
    let mut homes = Vec::new();
    for topic in ["Seas", "Woods", "Towns", "Roads", "Birds", "Stars"] {
        let story = format!("{topic} are what this is about. ").repeat(20);
        let first = worker_of(&client, &chat(&story, 2)).await;
        for turn in 1..4 {
            let longer = format!("{story}{}", "And then? ".repeat(turn));
            assert_eq!(worker_of(&client, &chat(&longer, 2)).await, first, "{topic}, turn {turn}");
        }
        homes.push((story, first));
    }

    let gone = homes[0].1.clone();
    let at = watches.iter().position(|watch| watch.worker == gone).expect("it is one of them");
    let address = servers[at].client.address();
    servers[at].process.kill().await;
    // Before anybody has noticed.
    for (story, _) in &homes {
        assert_eq!(worker_of(&client, &chat(story, 2)).await, watches[1 - at].worker);
    }
    soon("an agent that is not ready", async {
        while watches[at].client.get("/health").await.status != 503 {}
    })
    .await;
    gauge_becomes(&client, "stator_proxy_workers", 1.0).await;
    assert_eq!(watches[1 - at].client.get("/health").await.status, 200);

    // It comes back with another life, and with nothing of what it was sent before.
    let port = format!("--http-port={}", address.port());
    let mut process = Process::start(&[&["up", &port][..], &SIM].concat());
    ready(&mut process).await;
    servers[at] = Up { process, client: Client::new(address) };
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
    gauge_becomes(&watches[at].client, "stator_agent_engine_lives_total", 2.0).await;
    assert_eq!(worker_of(&client, &chat(&homes[0].0, 2)).await, watches[1 - at].worker);

    // An agent that ends takes its server from the proxies, and not from anybody else.
    watches[at].process.terminate();
    assert!(watches[at].process.ended().await.success(), "{}", watches[at].process.log());
    gauge_becomes(&client, "stator_proxy_workers", 1.0).await;
    assert_eq!(servers[at].client.get("/health").await.status, 200);
}

#[tokio::test]
async fn prompts_go_where_another_proxy_sent_their_beginnings() {
    let home = tempfile::tempdir().unwrap();
    let servers = [up(&SIM).await, up(&SIM).await];
    let mut watches = Vec::new();
    for server in &servers {
        watches.push(Watch::start(home.path(), server.client.address()).await);
    }
    let story = |topic| format!("{topic} are what this is about. ").repeat(20);
    let (before, after) =
        (["Seas", "Woods", "Towns", "Roads"], ["Birds", "Stars", "Ships", "Bells"]);
    let (mut process, one) =
        front(home.path(), 2, &["--peers=127.0.0.1:1", "--peers-port=0"]).await;
    let mut homes = Vec::new();
    for topic in before {
        homes.push((story(topic), worker_of(&one, &chat(&story(topic), 2)).await));
    }
    let first = process.event("listening for other replicas").await;
    let peers = format!("--peers={}", first["address"].as_str().expect("it has an address"));
    let (_process, other) = front(home.path(), 2, &[&peers, "--peers-port=0"]).await;
    for topic in after {
        homes.push((story(topic), worker_of(&one, &chat(&story(topic), 2)).await));
    }
    let told = after.len() as f64;
    gauge_becomes(&other, "stator_proxy_peers_prefixes_received_total", told).await;
    for (story, worker) in homes {
        let longer = format!("{story}And then?");
        assert_eq!(worker_of(&other, &chat(&longer, 2)).await, worker, "{story}");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_the_request_at_the_server() {
    let home = tempfile::tempdir().unwrap();
    let server = up(&["--engine=sim", "--workers=1", "--sim-step-ms=5"]).await;
    let _watch = Watch::start(home.path(), server.client.address()).await;
    let (_process, client) = front(home.path(), 1, &[]).await;
    let hang_ups = gauge(&server.client, "stator_proxy_hang_ups_total").await;
    let mut stream = client.stream("/v1/chat/completions", &streamed(chat("Hello", 900))).await;
    stream.next().await;
    drop(stream);
    let more = hang_ups.map(|count| count + 1.0).unwrap();
    gauge_becomes(&server.client, "stator_proxy_hang_ups_total", more).await;
}

#[tokio::test]
async fn a_server_without_the_model_that_is_meant_is_waited_for_with_the_reason() {
    let server = up(&SIM).await;
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let url = format!("--attach=http://{}", server.client.address());
    // The only model is meant whatever it is called.
    let mut named = agent(&dir, &["--engine=openai", &url, "--model-name=story-teller"]);
    named.event("serving").await;
    let (_process, client) = front(home.path(), 1, &[]).await;
    let mut body = chat("Hello", 2);
    body["model"] = json!("story-teller");
    let reply = client.post("/v1/chat/completions", &body).await;
    assert_eq!(reply.json()["model"], MODEL, "the server has its own name for it");
    assert_eq!(client.post("/v1/chat/completions", &chat("Hello", 2)).await.status, 404);

    // One that is not there yet.
    let nowhere = "--attach=http://127.0.0.1:1";
    let mut waiting = agent(&dir, &["--engine=openai", nowhere, "--engine-start-timeout-s=1"]);
    assert!(!waiting.ended().await.success(), "{}", waiting.log());
    assert!(waiting.log().contains("the engine does not serve after"), "{}", waiting.log());
}

#[tokio::test]
async fn a_vllm_answers_through_the_proxy_as_it_does_by_itself() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let server = vllm::serve(&bed, Role::Aggregated, &[]).await;
    let home = tempfile::tempdir().unwrap();
    let watch = Watch::start(home.path(), server.address()).await;
    let (_process, client) = front(home.path(), 1, &[]).await;
    let body = json!({"model": stock::MODEL, "prompt": "It was a dark and stormy night. ".repeat(9),
        "max_tokens": 16, "temperature": 0, "ignore_eos": true, "logprobs": 1});
    check_streams_alike(&server.client(), &client, "/v1/completions", body.clone()).await;
    check_alike(&server.client(), &client, "/v1/completions", &body, &["created", "id"]).await;
    let wrong = json!({"model": stock::MODEL, "prompt": "a", "max_tokens": -1});
    check_alike(&server.client(), &client, "/v1/completions", &wrong, &[]).await;

    // One malformed set of these would end it.
    let mut hostile = body;
    hostile["kv_transfer_params"] = json!({"do_remote_prefill": true});
    let refused = client.post("/v1/completions", &hostile).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["param"]),
        (400, &json!("kv_transfer_params"))
    );
    hostile["kv_transfer_params"] = json!(null);
    hostile["nvext"] = json!({"agent_hints": {"priority": 1}});
    assert_eq!(client.post("/v1/completions", &hostile).await.status, 200);
    assert_eq!(gauge(&client, "stator_proxy_passed_bodies_stripped_total").await, Some(1.0));

    // A client that leaves frees it.
    let mut long = json!({"model": stock::MODEL, "prompt": "Hello", "max_tokens": 1900,
        "ignore_eos": true});
    long["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &long).await;
    stream.next().await;
    drop(stream);
    soon("an idle engine", async {
        while server.metric("vllm:num_requests_running", "").await != 0.0 {}
    })
    .await;
    assert_eq!(watch.client.get("/health").await.status, 200);
}
