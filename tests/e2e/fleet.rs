//! Several workers: where requests go, and what happens when a worker dies.

use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::support::{MODEL, chat, joined, ready, text, up};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use tokio::task::JoinSet;

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
    for (others, topic) in ["the sea", "the wood", "the town", "the road"].iter().enumerate() {
        let prompt = format!("Tell me about {topic}. ").repeat(30);
        let first = worker_of(&up.client, &prompt).await;
        let blocks = 4.0 * (others + 1) as f64;
        gauge_becomes_at_least(&up.client, "stator_proxy_kv_index_blocks", blocks).await;
        let question = format!("{prompt} And then?");
        assert_eq!(worker_of(&up.client, &question).await, first, "{topic}");
    }
}

#[tokio::test]
async fn in_round_robin_mode_every_worker_has_its_turn() {
    let up = up(&["--workers=4", "--router-mode=round-robin"]).await;
    // The first of them makes it ready.
    gauge_becomes(&up.client, "stator_proxy_workers", 4.0).await;
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
async fn agents_that_are_killed_under_up_come_back_and_no_client_notices() {
    let mut up = up(&["--workers=2", "--engine=sim", "--sim-step-ms=20"]).await;
    let mut agents = Vec::new();
    for n in 0..2 {
        let serving = up.process.nth_event("serving", n).await;
        agents.push(serving["pid"].as_u64().expect("the agent's process id") as u32);
    }
    gauge_becomes(&up.client, "stator_proxy_workers", 2.0).await;
    let mut body = chat("Once upon a time", 250);
    let undisturbed = text(&up.client.post("/v1/chat/completions", &body).await.json());
    body["stream"] = json!(true);
    let mut stream = up.client.stream("/v1/chat/completions", &body).await;
    stream.until("data: ").await;
    agents.iter().for_each(|agent| signal(*agent, "KILL"));
    up.process.nth_event("agent ended; starting it again", 1).await;
    let reply = up.client.post("/v1/chat/completions", &chat("Hello", 2)).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    assert_eq!(joined(&stream.rest().await), undisturbed);
}

/// Nobody fails who waits, and what streams goes on with the tokens that it would have had.
#[tokio::test]
async fn while_all_agents_restart_requests_wait() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let start = async || {
        let flags = ["--engine=sim", "--sim-step-ms=20", "--workers=1"];
        let mut agents = [agent(&dir, &flags), agent(&dir, &flags)];
        for agent in &mut agents {
            agent.event("serving").await;
        }
        agents
    };
    let mut agents = start().await;
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
    let mut body = chat("Once upon a time", 250);
    let undisturbed = text(&client.post("/v1/chat/completions", &body).await.json());
    body["stream"] = json!(true);
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = client.stream("/v1/chat/completions", &body).await;
        stream.until("data: ").await;
        streams.push(stream);
    }

    for agent in &mut agents {
        agent.kill().await;
    }
    gauge_becomes(&client, "stator_proxy_workers", 0.0).await;
    let ask = |client: Client| async move {
        client.post("/v1/chat/completions", &chat("Hello", 4)).await.status
    };
    let mut asked: JoinSet<_> = (0..4).map(|_| ask(client.clone())).collect();
    gauge_becomes(&client, "stator_proxy_requests_waiting", 10.0).await;
    assert_eq!(client.get("/v1/models").await.json()["data"][0]["id"], MODEL);

    let _agents = start().await;
    for stream in &mut streams {
        assert_eq!(joined(&stream.rest().await), undisturbed);
    }
    while let Some(status) = asked.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
}

#[tokio::test]
async fn a_stream_of_an_agent_that_hangs_goes_on_elsewhere() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let flags = ["--engine=sim", "--sim-step-ms=20", "--workers=1", "--lease-ms=60000"];
    let start = async || {
        let mut agent = agent(&dir, &flags);
        let metrics = agent.event("side server listening").await;
        let metrics = Client::new(metrics["address"].as_str().unwrap().parse().unwrap());
        let workers = agent.event("serving").await["workers"].as_str().unwrap().to_owned();
        (agent, workers, metrics)
    };
    let agents = [start().await, start().await];
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let client = Client::new(ready(&mut proxy).await);
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
    let mut body = chat("Once upon a time", 250);
    let undisturbed = text(&client.post("/v1/chat/completions", &body).await.json());

    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/chat/completions", &body).await;
    let worker = stream.response.headers()["x-stator-worker-id"].to_str().unwrap().to_owned();
    stream.until("data: ").await;
    let of_agents = agents.iter().find(|(_, workers, _)| workers.contains(&worker));
    let (hung, _, metrics) = of_agents.expect("one of the agents has it");
    signal(hung.id(), "STOP");
    proxy.event("an agent is silent").await;
    assert_eq!(joined(&stream.rest().await), undisturbed);
    assert_eq!(gauge(&client, "stator_proxy_migrations_total").await, Some(1.0));
    gauge_becomes(&client, "stator_proxy_workers", 1.0).await;

    // It comes back, and does not go on with what runs elsewhere.
    signal(hung.id(), "CONT");
    gauge_becomes(metrics, "stator_agent_requests_running", 0.0).await;
    gauge_becomes(&client, "stator_proxy_workers", 2.0).await;
}

#[tokio::test]
async fn a_long_step_is_no_hang() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let _agent = agent(&dir, &["--engine=sim", "--sim-step-ms=3000", "--workers=1"]);
    let flags = ["proxy", "--http-port=0", "--metrics-port=0", "--agent-silence-ms=1000", &dir];
    let mut proxy = Process::start(&flags);
    let client = Client::new(ready(&mut proxy).await);
    assert_eq!(client.post("/v1/chat/completions", &chat("Hello", 1)).await.status, 200);
    assert_eq!(gauge(&client, "stator_proxy_migrations_total").await, Some(0.0));
}

#[tokio::test]
async fn a_proxy_that_has_just_started_says_of_no_model_that_it_does_not_exist() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let mut agent = agent(&dir, &["--engine=sim", "--workers=1"]);
    agent.event("serving").await;
    let mut proxy = Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &dir]);
    let listening = proxy.event("listening").await;
    let client = Client::new(listening["address"].as_str().unwrap().parse().unwrap());
    let mut unknown = chat("Hello", 2);
    unknown["model"] = json!("unknown");
    stator_tests::soon("the fleet is known", async {
        loop {
            let listed = client.get("/v1/models").await;
            let known = client.post("/v1/chat/completions", &chat("Hello", 2)).await;
            let other = client.post("/v1/chat/completions", &unknown).await;
            for reply in [&listed, &known, &other].into_iter().filter(|it| it.status == 503) {
                assert!(reply.headers.contains_key("retry-after"));
            }
            assert!([200, 503].contains(&known.status.as_u16()), "{:?}", known.body);
            if other.status == 404 {
                return;
            }
            assert_eq!(other.status, 503);
        }
    })
    .await;
    assert_eq!(client.get("/health").await.status, 200);
    assert_eq!(client.get("/v1/models").await.json()["data"][0]["id"], MODEL);
}

#[tokio::test]
async fn without_workers_requests_are_told_to_come_back() {
    let home = tempfile::tempdir().unwrap();
    let dir = format!("--discovery-dir={}", home.path().display());
    let flags = ["proxy", "--http-port=0", "--metrics-port=0", "--worker-wait-ms=10", &dir];
    let mut proxy = Process::start(&flags);
    let listening = proxy.event("listening").await;
    let client = Client::new(listening["address"].as_str().unwrap().parse().unwrap());
    assert_eq!(client.get("/live").await.status, 200);
    let paths = ["/health", "/v1/models", "/v1/models/m", "/v1/models/m/ready"];
    for path in paths {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 503, "{path}: {:?}", reply.body);
        assert!(reply.headers.contains_key("retry-after"), "{path}");
    }
    let message = json!({"model": MODEL, "max_tokens": 2,
        "messages": [{"role": "user", "content": "Hello"}]});
    let bodies = [
        ("/v1/chat/completions", 503, chat("Hello", 2)),
        ("/v1/messages", 529, message),
        ("/v1/responses", 503, json!({"model": MODEL, "input": "Hello"})),
        ("/v1/embeddings", 503, json!({"model": MODEL, "input": "Hello"})),
    ];
    for (path, status, body) in bodies {
        let reply = client.post(path, &body).await;
        assert_eq!(reply.status, status, "nobody knows yet which models there will be: {path}");
        assert!(reply.headers.contains_key("retry-after"), "{path}");
    }

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
