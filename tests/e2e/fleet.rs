//! Several workers: where requests go, and what happens when a worker dies.

use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::support::{MODEL, chat, joined, ready, text, up};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};

/// The worker that served a streamed request.
async fn worker_of(client: &Client, prompt: &str) -> String {
    let mut body = chat(prompt, 2);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/chat/completions", &body).await;
    let worker = stream.response.headers()["x-stator-worker-id"].to_str().unwrap().to_owned();
    stream.rest().await;
    worker
}

#[tokio::test]
async fn in_kv_mode_a_prefix_goes_back_to_the_worker_that_holds_it() {
    let up = up(&["--workers=4", "--router-mode=kv"]).await;
    for topic in ["the sea", "the wood", "the town", "the road"] {
        let prompt = format!("Tell me about {topic}. ").repeat(30);
        let first = worker_of(&up.client, &prompt).await;
        gauge_becomes_at_least(&up.client, "stator_proxy_kv_index_blocks", 4.0).await;
        let question = format!("{prompt} And then?");
        assert_eq!(worker_of(&up.client, &question).await, first, "{topic}");
    }
}

#[tokio::test]
async fn in_round_robin_mode_every_worker_has_its_turn() {
    let up = up(&["--workers=4", "--router-mode=round-robin"]).await;
    let mut workers = Vec::new();
    for _ in 0..8 {
        workers.push(worker_of(&up.client, "The same every time.").await);
    }
    workers.sort();
    workers.dedup();
    assert_eq!(workers.len(), 4, "{workers:?}");
}

#[tokio::test]
async fn a_stream_goes_on_elsewhere_when_its_worker_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let start = async || {
        let mut agent = agent(&dir, &["--lease-ms=60000"]);
        let workers = agent.event("serving").await["workers"].as_str().unwrap().to_owned();
        (agent, workers)
    };
    let mut agents = [start().await, start().await];
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);
    let mut body = chat("Once upon a time", 600);
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
    let undisturbed = text(&client.post("/v1/chat/completions", &body).await.json());

    body["stream"] = json!(true);
    // An answer may end before its worker does; then another worker has to.
    while gauge(&client, "stator_proxy_migrations_total").await != Some(1.0) {
        gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
        let mut stream = client.stream("/v1/chat/completions", &body).await;
        let worker = stream.response.headers()["x-stator-worker-id"].to_str().unwrap().to_owned();
        stream.until("data: ").await;
        let mut of_agents = agents.iter_mut();
        let victim = of_agents.find(|(_, workers)| workers.contains(&worker));
        let victim = victim.expect("one of the agents has it");
        signal(victim.0.id(), "KILL");
        assert_eq!(joined(&stream.rest().await), undisturbed);
        *victim = start().await;
    }
}

/// Without peers, too: each proxy hears from the agents what all of them sent.
#[tokio::test]
async fn what_one_proxy_sends_fills_the_worker_for_another() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let _agent = agent(&dir, &["--engine=sim", "--sim-step-ms=20", "--workers=1"]);
    let flags = ["proxy", "--http-port=0", "--metrics-port=0", "--active-requests-threshold=1"];
    let [mut one, mut other] = [(); 2].map(|()| Process::start(&[&flags[..], &[&dir]].concat()));
    let one = Client::new(ready(&mut one).await);
    let other = Client::new(ready(&mut other).await);

    let mut body = chat("Once upon a time", 4000);
    body["stream"] = json!(true);
    let mut long = one.stream("/v1/chat/completions", &body).await;
    long.next().await;

    // Its KV events come in order with the reports of its load.
    gauge_becomes_at_least(&other, "stator_fleet_batches_total", 2.0).await;
    let short = chat("Hello", 2);
    let mut waiting = Box::pin(other.post("/v1/chat/completions", &short));
    tokio::select! {
        _ = &mut waiting => panic!("the worker was full"),
        () = gauge_becomes(&other, "stator_proxy_requests_waiting", 1.0) => {}
    }
    drop(long);
    assert_eq!(waiting.await.status, 200, "it is answered when the other proxy's has ended");
}

#[tokio::test]
async fn an_agent_that_is_killed_under_up_comes_back() {
    let mut up = up(&["--workers=1"]).await;
    let serving = up.process.event("serving").await;
    let agent = serving["pid"].as_u64().expect("the agent's process id");
    signal(agent as u32, "KILL");
    up.process.event("agent ended; starting it again").await;
    up.process.nth_event("serving", 1).await;
    stator_tests::soon("an answer from the new worker", async {
        while up.client.post("/v1/chat/completions", &chat("Hello", 2)).await.status != 200 {}
    })
    .await;
}

#[tokio::test]
async fn without_workers_requests_are_told_to_come_back() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let listening = proxy.event("listening").await;
    let client = Client::new(listening["address"].as_str().unwrap().parse().unwrap());
    assert_eq!(client.get("/health").await.status, 503);
    assert_eq!(client.get("/live").await.status, 200);
    assert_eq!(client.post("/v1/chat/completions", &chat("Hello", 2)).await.status, 404);

    let mut agent = agent(&dir, &["--workers=1"]);
    proxy.event("serving a model").await;
    assert_eq!(client.post("/v1/chat/completions", &chat("Hello", 2)).await.status, 200);
    agent.terminate();
    assert!(agent.ended().await.success());
    gauge_becomes(&client, "stator_proxy_workers", 0.0).await;
    let reply = client.post("/v1/chat/completions", &chat("Hello", 2)).await;
    assert_eq!(reply.status, 503);
    assert!(reply.headers.contains_key("retry-after"));
    assert_eq!(client.get("/v1/models").await.json()["data"][0]["id"], MODEL);
}

async fn gauge_becomes_at_least(metrics: &Client, name: &str, value: f64) {
    let enough = async { while gauge(metrics, name).await.is_none_or(|now| now < value) {} };
    stator_tests::soon(name, enough).await;
}
