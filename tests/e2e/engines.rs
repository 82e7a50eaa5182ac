//! More of what agents do with a real vLLM: one that somebody else runs, its adapters, its rests,
//! and engines that stand still.

use crate::agents::{
    Agent, PLANES, accepted, answer, completed, completion, completion_by, ends_with_an_error,
    hashes, proxy, refused, tokens,
};
use crate::suite::Tested;
use hyper::Method;
use serde_json::{Value, json};
use stator_protos::hash::{HashSeed, SequenceHash, sequence_hashes};
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role, START_DEADLINE};
use stator_tests::vllm::{self, VllmServer};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::Command;

/// How long an engine may stand still here: longer than any step that it takes, and shorter than
/// it takes to be given up for not saying how it is.
const HANG_TIMEOUT: &str = "--engine-hang-timeout-s=6";
const ADAPTER: &str = "style";

/// Starts an agent for an engine that runs already.
fn attach(bed: &Bed, server: &VllmServer, home: &Path, flag: &str) -> Process {
    let dir = format!("--discovery-dir={}", home.display());
    let (url, model) = (server.url(), format!("--model={}", bed.model().display()));
    let mut args = vec!["agent", "--engine=vllm", "--attach", &url, &model, &dir, flag];
    args.extend(["--agent-id=attached", "--serve-adapters"]);
    args.extend(PLANES);
    Process::start(&args)
}

/// The hashes of a prompt's blocks, computed by the adapter.
fn adapted(prompt: &[u32]) -> Vec<SequenceHash> {
    let mut hashes = Vec::new();
    let block_size = NonZeroU32::new(BLOCK_SIZE as u32).unwrap();
    sequence_hashes(prompt, block_size, HashSeed::new(Some(ADAPTER), None), &mut hashes);
    hashes
}

#[tokio::test]
async fn a_vllm_that_runs_already_is_served_with_its_adapters_and_its_rests() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let lora = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"];
    let server = vllm::serve(&bed, Role::Aggregated, &lora).await;
    an_engine_that_idles_is_asked_for_a_token(&bed, &server).await;
    let home = tempfile::tempdir().unwrap();
    let agent = attach(&bed, &server, home.path(), HANG_TIMEOUT);
    let mut agent = Agent::found(Engine::Vllm, agent).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    an_adapter_is_a_model_of_its_own(&bed, &server, &client, &mut agent).await;
    an_engine_that_rests_takes_nothing_new(&server, &client, &mut agent).await;
    a_core_that_stands_still_ends_a_life_and_begins_another(&server, &client, &mut agent).await;

    // Who started it ends it.
    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
    assert_eq!(server.client().get("/health").await.status, 200);
}

/// And again while it idles on; whoever began before this asked once, to know that it serves.
async fn an_engine_that_idles_is_asked_for_a_token(bed: &Bed, server: &VllmServer) {
    let home = tempfile::tempdir().unwrap();
    let agent = attach(bed, server, home.path(), "--canary-idle-s=1");
    let mut agent = Agent::found(Engine::Vllm, agent).await;
    let generated = async || server.metric("vllm:generation_tokens_total", "").await;
    let before = generated().await;
    soon("two tokens that no client asked for", async {
        while generated().await < before + 2.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(agent.metric("stator_agent_engine_lives_total").await, 1.0);
    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
}

async fn an_adapter_is_a_model_of_its_own(
    bed: &Bed,
    server: &VllmServer,
    client: &Client,
    agent: &mut Agent,
) {
    let prompt = tokens(21, 200);
    let base = server.generate(&prompt, 8).await.0;
    assert_eq!(answer(&completed(client, MODEL, &prompt, 8).await), (base.clone(), 192));
    agent.hears_of(&prompt).await;
    assert_eq!(
        client.post("/v1/completions", &completion_by(ADAPTER, &prompt, 8)).await.status,
        404
    );

    let path = bed.adapter().display().to_string();
    let (done, log) = agent.operate(&["load-adapter", ADAPTER, "/nowhere"]).await;
    assert!(!done && log.contains(ADAPTER), "{log}");
    let (done, log) = agent.operate(&["load-adapter", ADAPTER, &path]).await;
    assert!(done, "{log}");
    assert_eq!(agent.record().await.profile.adapters, [ADAPTER]);
    let listed = listed_adapters(client, |adapters| !adapters.is_empty()).await;
    assert_eq!(listed, [(ADAPTER.to_owned(), MODEL.to_owned())]);

    // The engine has the prompt of the model and nothing of it for the adapter, and says so.
    let device = agent.blocks().await;
    assert!(hashes(&prompt).iter().all(|hash| device.contains(hash)));
    assert!(!adapted(&prompt).iter().any(|hash| device.contains(hash)));
    let (adapter, cached) = answer(&completed(client, ADAPTER, &prompt, 8).await);
    assert_ne!(adapter, base);
    assert_eq!((adapter.clone(), cached), (server.generate_as(ADAPTER, &prompt, 8).await.0, 0));
    soon("the adapter's blocks", async {
        loop {
            let device = agent.blocks().await;
            if adapted(&prompt).iter().all(|hash| device.contains(hash)) {
                break;
            }
        }
    })
    .await;
    assert_eq!(answer(&completed(client, ADAPTER, &prompt, 8).await), (adapter, 192));
    assert_eq!(answer(&completed(client, MODEL, &prompt, 8).await), (base, 192));

    an_adapter_answers_on_every_surface(client).await;

    let (done, log) = agent.operate(&["unload-adapter", ADAPTER]).await;
    assert!(done, "{log}");
    assert_eq!(agent.record().await.profile.adapters, Vec::<String>::new());

    // Operators of clusters ask over HTTP, and again whenever they look.
    let request = json!({ "lora_name": ADAPTER, "source": { "uri": format!("file://{path}") } });
    for _ in 0..2 {
        let reply = agent.metrics.post("/v1/loras", &request).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
    }
    let listed = agent.metrics.get("/v1/loras").await.json();
    assert_eq!(listed["loras"], json!([ADAPTER]));
    assert_eq!(agent.record().await.profile.adapters, [ADAPTER]);
    let reply = agent.metrics.send(Method::DELETE, &format!("/v1/loras/{ADAPTER}"), "").await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    assert_eq!(agent.record().await.profile.adapters, Vec::<String>::new());
    assert_eq!(listed_adapters(client, Vec::is_empty).await, []);
    assert_eq!(
        client.post("/v1/completions", &completion_by(ADAPTER, &prompt, 8)).await.status,
        404
    );
}

/// Chats, responses and messages that name an adapter are answered by it, whole and streamed.
async fn an_adapter_answers_on_every_surface(client: &Client) {
    const QUESTION: &str = "Tell me about the ship that never came back to the harbour.";
    let turns = json!([{"role": "user", "content": QUESTION}]);
    let surfaces = [
        ("/v1/chat/completions", json!({"max_tokens": 8, "messages": turns})),
        ("/v1/responses", json!({"max_output_tokens": 8, "input": QUESTION, "store": false})),
        ("/v1/messages", json!({"max_tokens": 8, "messages": turns})),
    ];
    let mut all = Vec::new();
    for (path, body) in surfaces {
        let mut body = body;
        body["temperature"] = json!(0);
        let mut ask = async |model: &str, streams: bool| {
            body["model"] = json!(model);
            body["stream"] = json!(streams);
            let reply = client.post(path, &body).await;
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            assert_eq!(reply.status, 200, "{path}: {text}");
            text
        };
        let whole: Value = serde_json::from_str(&ask(ADAPTER, false).await).unwrap();
        assert_eq!(whole["model"], ADAPTER, "{path}");
        let said = said(&whole);
        assert_eq!(said_in_pieces(&ask(ADAPTER, true).await), said.0, "{path}");
        let by_model: Value = serde_json::from_str(&ask(MODEL, false).await).unwrap();
        assert_ne!(said_by(&by_model), said.0, "{path}: the adapter has no part in it");
        all.push(said);
    }
    assert!(all[0].1 > 8 && (1..=8).contains(&all[0].2), "{all:?}");
    assert!(all.iter().all(|said| *said == all[0]), "{all:?}");
    // Anthropic's clients have a list of their own.
    let client = client.clone().with_header("anthropic-version", "2023-06-01");
    let listed = client.get("/v1/models").await.json();
    let listed = listed["data"].as_array().unwrap().iter();
    assert!(listed.clone().any(|model| model["id"] == ADAPTER && model["type"] == "model"));
}

/// The text of an answer in any of the APIs, and the tokens of prompt and answer.
fn said(answer: &Value) -> (String, u64, u64) {
    let usage = &answer["usage"];
    let sum = |names: &[&str]| names.iter().filter_map(|name| usage[name].as_u64()).sum();
    // Messages count cached tokens apart.
    let apart = ["cache_read_input_tokens", "cache_creation_input_tokens"];
    let asked = sum(&[&["prompt_tokens", "input_tokens"][..], &apart].concat());
    (said_by(answer), asked, sum(&["completion_tokens", "output_tokens"]))
}

fn said_by(answer: &Value) -> String {
    let places = ["/choices/0/message/content", "/output/0/content/0/text", "/content/0/text"];
    let text = places.iter().find_map(|place| answer.pointer(place)?.as_str());
    text.unwrap_or_else(|| panic!("no text in {answer}")).to_owned()
}

/// The text of an answer that came as events of any of the APIs.
fn said_in_pieces(events: &str) -> String {
    let data = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let piece = |event: Value| {
        let places = ["/choices/0/delta/content", "/delta/text", "/delta"];
        Some(places.iter().find_map(|place| event.pointer(place)?.as_str())?.to_owned())
    };
    events.filter_map(piece).collect()
}

/// What the proxy lists with a parent, once it is as wanted: name and parent.
async fn listed_adapters(
    client: &Client,
    wanted: impl Fn(&Vec<(String, String)>) -> bool,
) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    soon("the list of models", async {
        loop {
            let list = client.get("/v1/models").await.json();
            let models = list["data"].as_array().unwrap().iter();
            let adapters = models.filter(|model| model["parent"].is_string());
            let adapters = adapters.map(|model| (text(&model["id"]), text(&model["parent"])));
            let adapters = adapters.collect();
            if wanted(&adapters) {
                return adapters;
            }
        }
    })
    .await
}

async fn an_engine_that_rests_takes_nothing_new(
    server: &VllmServer,
    client: &Client,
    agent: &mut Agent,
) {
    let prompt = tokens(22, 200);
    let expected = answer(&completed(client, MODEL, &prompt, 8).await).0;
    for (rest, resume) in [(["pause"].as_slice(), "resume"), (&["sleep", "1"], "wake")] {
        agent.hears_of(&prompt).await;
        // What runs is held by a pause, and goes on afterwards.
        let mut body = completion(&tokens(23, 64), 1000);
        body["stream"] = json!(true);
        let mut stream = client.stream("/v1/completions", &body).await;
        stream.next().await;

        let (done, log) = agent.operate(rest).await;
        assert!(done, "{log}");
        assert_eq!(agent.holds(&prompt).await, 0, "{rest:?}: it forgot what it held");
        let refused = refused(client, &prompt).await;
        assert!(refused.headers.contains_key("retry-after"), "{:?}", refused.headers);
        assert_eq!(refused.json()["error"]["code"], "service_unavailable");

        let (done, log) = agent.operate(&[resume]).await;
        assert!(done, "{log}");
        if resume == "resume" {
            let chunks = stream.rest().await;
            let mut finishes = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]);
            assert!(finishes.any(|finish| finish == "length"), "{chunks:?}");
        } else {
            // Its KV is gone, and there is nobody else who could go on.
            ends_with_an_error(stream).await;
        }
        let reply = accepted(client, &prompt).await;
        assert_eq!(answer(&reply), (expected.clone(), 0), "{rest:?}");
    }
    assert_eq!(server.metric("vllm:num_requests_running", "").await, 0.0);
}

async fn a_core_that_stands_still_ends_a_life_and_begins_another(
    server: &VllmServer,
    client: &Client,
    agent: &mut Agent,
) {
    let prompt = tokens(24, 200);
    let expected = answer(&completed(client, MODEL, &prompt, 8).await).0;
    let mut body = completion(&tokens(25, 64), 1900);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &body).await;
    stream.next().await;
    // The other process goes on to say that all is well.
    signal(server.core(), "STOP");
    let ended = agent.process.event("the engine's life ended").await;
    assert_eq!(ended["cause"], "hung", "{ended}");
    assert_eq!(server.client().get("/health").await.status, 200);
    ends_with_an_error(stream).await;
    refused(client, &prompt).await;

    signal(server.core(), "CONT");
    agent.process.nth_event("the engine serves", 1).await;
    // The process is the same, and what it held is known again.
    agent.hears_of(&prompt).await;
    assert_eq!(answer(&accepted(client, &prompt).await), (expected, 192));
    assert_eq!(agent.metric("stator_agent_engine_lives_total").await, 2.0);
}

#[tokio::test]
async fn an_engine_that_stands_still_is_killed_and_started_again() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let who = ("hanging", Role::Aggregated);
    let process = Agent::start_with(&bed, home.path(), who, (&[HANG_TIMEOUT], 1));
    let mut agent = Agent::ready(Engine::Vllm, process).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    let prompt = tokens(31, 100);
    let expected = answer(&completed(&client, MODEL, &prompt, 8).await).0;
    agent.hears_of(&prompt).await;
    let mut body = completion(&tokens(32, 64), 1900);
    body["stream"] = json!(true);
    let mut stream = client.stream("/v1/completions", &body).await;
    stream.next().await;
    // All of its processes, as where a device does not answer any more.
    signal_group(agent.engine_process(0).await, "STOP");
    let ended = agent.process.event("the engine's life ended").await;
    assert_eq!(ended["cause"], "hung", "{ended}");
    ends_with_an_error(stream).await;
    refused(&client, &prompt).await;

    agent.comes_back(1).await;
    let reply = accepted(&client, &prompt).await;
    // Another process, which holds nothing of what the first one did.
    assert_eq!(answer(&reply), (expected.clone(), 0));
    agent.hears_of(&prompt).await;
    assert_eq!(ends(&agent, "hung").await, 1.0);

    half_of_it_is_dead(&client, &mut agent, (&prompt, &expected)).await;
}

/// What computes has died, and the process that serves HTTP neither ends nor answers.
async fn half_of_it_is_dead(
    client: &Client,
    agent: &mut Agent,
    (prompt, expected): (&[u32], &[u32]),
) {
    let core = agent.core();
    signal(agent.engine_process(1).await, "STOP");
    signal(core, "KILL");
    agent.process.nth_event("the engine's life ended", 1).await;
    refused(client, prompt).await;
    agent.comes_back(2).await;
    assert_eq!(answer(&accepted(client, prompt).await), (expected.to_vec(), 0));
    assert_eq!(ends(agent, "half_dead").await, 1.0, "{}", agent.process.log());
}

/// It says so itself, and then ends as it does for any other error.
#[tokio::test]
async fn an_engine_that_asks_for_more_memory_than_there_is_is_known_by_its_words() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let mut flags = Engine::Vllm.flags(Role::Aggregated, 1);
    let memory = flags.iter().position(|flag| flag == "--kv-cache-memory-bytes").unwrap();
    flags[memory + 1] = (1_u64 << 50).to_string();
    let flags: Vec<_> = ["--"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    let who = ("greedy", Role::Aggregated);
    let mut agent = Agent::start_as(&bed, home.path(), who, (&flags, 1));
    agent.nth_line_within(START_DEADLINE, "Starting to load model", 0).await;
    let ended = agent.event("engine ended; starting again").await;
    let cause = ended["cause"].as_str().unwrap();
    assert!(cause.starts_with("out of memory: "), "{cause}");
    assert!(cause.contains("--kv-cache-memory-bytes"), "{cause}");
    agent.terminate();
    assert!(agent.ended().await.success(), "{}", agent.log());
}

/// Lives of the engine that ended for a cause.
async fn ends(agent: &Agent, cause: &str) -> f64 {
    agent.metric(&format!("stator_agent_engine_ends_total{{cause=\"{cause}\"}}")).await
}

/// Sends a signal to all processes of a group.
fn signal_group(group: u32, name: &str) {
    let group = format!("-{group}");
    let sent = Command::new("kill").args(["-s", name, "--", &group]).status().unwrap();
    assert!(sent.success(), "group {group} could not be signalled");
}
