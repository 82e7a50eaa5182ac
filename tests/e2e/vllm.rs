//! Agents that run a real vLLM, spoken to through the proxy.

use crate::agents::{
    Agent, Part, answer, completed, completion, is_gone, proxy, refused, stream, streamed, tokens,
};
use crate::contract::answers_have_the_form_that_is_asked_for;
use crate::direct::vllm::a_sidecar_has_prompts_computed_by_another_vllm;
use crate::stages::{DEATHS, Ended, Stage, Three, a_process_of_each_half_dies};
use crate::suite::{
    a_client_that_hangs_up_stops_the_engine, a_reset_cache_is_known_to_be_empty,
    an_engine_that_dies_ends_its_requests_and_comes_back, greedy_answers_are_the_engines_own,
    what_is_cached_is_known_through_eviction, what_the_engines_page_says_is_on_the_agents,
};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::stock::{Bed, Engine, MODEL, Role, all_engines};
use std::path::Path;
use tempfile::TempDir;

/// Markers of thoughts, as vLLM is told of them.
const THOUGHTS: &str = r#"{"reasoning_start_str":"<think>","reasoning_end_str":"</think>"}"#;
/// Longest wait for a prefill worker: longer than the first hand-over takes, shorter than the
/// deadline.
const PREFILL_TIMEOUT: &str = "--prefill-timeout-ms=15000";
/// Longest wait of an agent that drains for requests that run: the one here stands still.
const DRAIN_TIMEOUT: &str = "--drain-timeout-s=1";
/// Rows of [`DEATHS`] that are not only for those who ask for all: with the server that dies before
/// them they have each part.
const DEATHS_ALWAYS: usize = 2;

#[tokio::test]
async fn an_agents_vllm_is_known_by_its_events_and_comes_back_when_it_dies() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let role = ("aggregated", Role::Aggregated);
    let own = Engine::Vllm.flags(Role::Aggregated, 1);
    let flags = ["--", "--reasoning-config", THOUGHTS].into_iter();
    let flags: Vec<_> = flags.chain(own.iter().map(String::as_str)).collect();
    let started = Agent::start_as(&bed, home.path(), role, (&flags, 1));
    let mut agent = Agent::ready(Engine::Vllm, started).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    thoughts_have_a_bound_and_forms_come_behind_them(home.path()).await;
    greedy_answers_are_the_engines_own(&client, &agent).await;
    answers_have_the_form_that_is_asked_for(&client, &agent).await;
    what_is_cached_is_known_through_eviction(&client, &mut agent).await;
    what_the_engines_page_says_is_on_the_agents(&agent).await;
    a_client_that_hangs_up_stops_the_engine(&client, &agent).await;
    a_reset_cache_is_known_to_be_empty(&client, &mut agent).await;
    what_is_aborted_is_the_request_whose_connection_closed(&client, &agent).await;
    an_engine_that_dies_ends_its_requests_and_comes_back(&client, &mut agent).await;
    an_agent_that_drains_answers_what_runs_and_ends_its_engine_then(&client, agent).await;
}

/// Of a model whose template knows no thoughts, where the conversation opens them.
async fn thoughts_have_a_bound_and_forms_come_behind_them(home: &Path) {
    let (_proxy, client) = proxy(home, &["--reasoning-parser=qwen3"]).await;
    let mut body = json!({
        "model": MODEL, "max_tokens": 200, "temperature": 0, "structured_outputs": {"choice": ["yes", "no"]},
        "add_generation_prompt": false, "continue_final_message": true, "thinking_token_budget": 6,
        "messages": [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": "<think>"}],
    });
    let answer = client.post("/v1/chat/completions", &body).await.json();
    let message = &answer["choices"][0]["message"];
    assert!(["yes", "no"].contains(&message["content"].as_str().unwrap_or_default()), "{answer}");
    // The engine counts from within a marker of several tokens.
    let thoughts = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert!((1..=12).contains(&thoughts.as_u64().unwrap_or_default()), "{answer}");
    assert!(message["reasoning_content"].is_string(), "{answer}");
    // Without thoughts the form begins at once.
    body["messages"][1]["content"] = json!("<think></think>");
    let answer = client.post("/v1/chat/completions", &body).await.json();
    let message = &answer["choices"][0]["message"];
    assert!(["yes", "no"].contains(&message["content"].as_str().unwrap_or_default()), "{answer}");
}

/// The id that vLLM aborts by is one that it makes of the one that it is sent, another one for each
/// of its endpoints, and it says nothing where there is no such request. So the connection is
/// closed, and ids that clients send abort nothing of anybody else's.
async fn what_is_aborted_is_the_request_whose_connection_closed(client: &Client, agent: &Agent) {
    let alike = client.clone().with_header("x-request-id", "the-same");
    let generated = async || agent.says("vllm:generation_tokens_total", "").await;
    let before = generated().await;
    let [prompt, other] = [8, 9].map(|seed| tokens(seed, 64));
    let stays = stream(&alike, &prompt, 1000).await;
    let leaves = stream(&alike, &other, 1900).await;
    agent.runs(2.0).await;
    drop(leaves);
    agent.runs(1.0).await;
    assert_eq!(streamed(stays).await, agent.answers(&prompt, 1000).await);
    agent.has_released_all().await;
    // Of the one that left not all.
    assert!(generated().await - before < 1000.0 + 1000.0 + 1900.0);
}

/// It takes nothing new meanwhile.
async fn an_agent_that_drains_answers_what_runs_and_ends_its_engine_then(
    client: &Client,
    mut agent: Agent,
) {
    let prompt = tokens(10, 64);
    let expected = agent.answers(&prompt, 600).await;
    let server = agent.engine_process(1).await;
    let begun = stream(client, &prompt, 600).await;
    let core = agent.core();
    signal(core, "STOP");
    agent.process.terminate();
    agent.process.event("agent drains").await;
    let refused = refused(client, &prompt).await;
    assert!(refused.headers.contains_key("retry-after"), "{:?}", refused.headers);
    assert_eq!(agent.engine.get("/health").await.status, 200);
    signal(core, "CONT");
    assert_eq!(streamed(begun).await, expected);
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
    assert!(!agent.process.log().contains("draining took too long"));
    is_gone(server).await;
    is_gone(core).await;
}

#[tokio::test]
async fn vllms_share_requests_and_lose_none_whichever_process_dies() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let start = |name: &'static str, role| {
        // Both workers of a request must have the labels that it asks for.
        let labels = match role {
            Role::Prefill => "--labels=agent=decode,agent=alone".to_owned(),
            _ => format!("--labels=agent={name}"),
        };
        let flags = [PREFILL_TIMEOUT, DRAIN_TIMEOUT, &labels];
        Agent::start_with(&bed, home.path(), (name, role), (&flags, 1))
    };
    let [prefill, decode, alone] =
        [("prefill", Role::Prefill), ("decode", Role::Decode), ("alone", Role::Decode)]
            .map(|(name, role)| start(name, role));
    let ready = |process| Agent::ready(Engine::Vllm, process);
    let (prefill, decode, alone) = (ready(prefill).await, ready(decode).await, ready(alone).await);
    // Its engine stands still while an agent drains: nobody else gives it up before.
    let flags = ["--router-split=always", "--agent-silence-ms=60000"];
    let (proxy, client) = proxy(home.path(), &flags).await;
    let mut three = Three { client, proxy, prefill, decode, alone };

    two_share_a_request(&three).await;
    a_sidecar_has_prompts_computed_by_another_vllm(&three.prefill, &three.decode).await;
    what_outlasts_a_drain_goes_on_elsewhere(&mut three).await;
    let decode = (Role::Decode, Some(start("decode", Role::Decode)));
    three.loses(Role::Prefill, Stage::Coming, Part::Server).await;
    let halves = vec![decode, (Role::Prefill, None)];
    let mut ended = Ended { halves, part: Part::Server };
    let all = all_engines("all deaths of vLLMs that share requests");
    for row in DEATHS.into_iter().take(if all { DEATHS.len() } else { DEATHS_ALWAYS }) {
        ended.come_back(&mut three).await;
        ended = a_process_of_each_half_dies(&mut three, row, &start).await;
    }
}

#[tokio::test]
async fn a_vllm_writes_kv_to_the_one_that_waits_for_it() {
    let Some((bed, home)) = other_connector("NixlPushConnector") else { return };
    let two = Two::start(&bed, home.path(), &["--connector=NixlPushConnector"], &[]).await;
    two.share_prompts(200.0).await;
    let Two { client, prefill, decode, .. } = &two;
    a_client_that_hangs_up_frees_both_engines(client, prefill, decode).await;
    let (halves, early) = ((prefill, decode), false);
    a_client_that_hangs_up_before_decode_begins_frees_both_engines(client, halves, early).await;
    half_a_pair_is_given_up_in_time(client, prefill, decode).await;
}

#[tokio::test]
async fn vllms_that_see_one_storage_share_requests() {
    let Some((bed, home)) = other_connector("ExampleConnector") else { return };
    let path = home.path().join("storage").display().to_string();
    let storage = ["--kv-transfer-config.kv_connector_extra_config.shared_storage_path", &path];
    let two = Two::start(&bed, home.path(), &["--connector=ExampleConnector"], &storage).await;
    // Whole blocks, of which the last token is computed anyway.
    two.share_prompts(192.0).await;
}

/// What a pair over another than the usual connector needs, where all engines are asked for.
fn other_connector(name: &str) -> Option<(Bed, TempDir)> {
    let what = format!("vLLMs that share requests over {name}");
    let bed = Bed::find_among_all(Engine::Vllm, &what)?;
    Some((bed, tempfile::tempdir().unwrap()))
}

/// A prefill and a decode worker.
struct Two {
    client: Client,
    prefill: Agent,
    decode: Agent,
    _proxy: Process,
}

impl Two {
    /// With flags of agents and of engines.
    async fn start(bed: &Bed, home: &Path, agents: &[&str], engines: &[&str]) -> Self {
        let start = |role: Role| {
            let own = Engine::Vllm.flags(role, 1);
            let own = own.iter().map(String::as_str).chain(engines.iter().copied());
            let flags = agents.iter().copied().chain([PREFILL_TIMEOUT, DRAIN_TIMEOUT, "--"]);
            let flags: Vec<_> = flags.chain(own).collect();
            Agent::start_as(bed, home, (role.name(), role), (&flags, 1))
        };
        let [prefill, decode] = [Role::Prefill, Role::Decode].map(start);
        let ready = |process| Agent::ready(Engine::Vllm, process);
        let (prefill, decode) = (ready(prefill).await, ready(decode).await);
        let (_proxy, client) = proxy(home, &["--router-split=always"]).await;
        Self { client, prefill, decode, _proxy }
    }

    /// Of each prompt of 200 tokens so many are moved, and the answers are those of one engine.
    async fn share_prompts(&self, moved: f64) {
        let Self { client, prefill, decode, .. } = self;
        for n in 1..=3 {
            let prompt = tokens(80 + n, 200);
            let reply = client.post("/v1/completions", &completion(&prompt, 16)).await.json();
            let n = f64::from(n);
            assert_eq!(decode.prefills("prefill_worker").await, n, "{}", decode.process.log());
            let series = ("vllm:prompt_tokens_by_source_total", "external_kv_transfer");
            assert_eq!(decode.says(series.0, series.1).await, n * moved);
            assert_eq!(answer(&reply).0, prefill.answers(&prompt, 16).await);
            prefill.has_released_all().await;
            decode.has_released_all().await;
        }
    }
}

/// What happens between a prefill and a decode worker.
async fn two_share_a_request(three: &Three) {
    let Three { prefill, decode, .. } = three;
    let client = &three.client.clone().with_header("x-stator-labels", "agent=decode");
    let prompt = tokens(11, 200);
    let expected = prefill.answers(&prompt, 16).await;
    let reply = client.post("/v1/completions", &completion(&prompt, 16)).await.json();
    assert_eq!(answer(&reply).0, expected, "{}", decode.process.log());
    assert_eq!(decode.prefills("prefill_worker").await, 1.0, "{}", decode.process.log());
    let moved = ("vllm:prompt_tokens_by_source_total", "external_kv_transfer");
    // And the token that prefill computed, which decode was told of as if it were of the prompt.
    assert_eq!(decode.says(moved.0, moved.1).await, 201.0);
    a_first_token_is_drawn_again_only_for_who_asked_for_a_seed(client, decode).await;
    a_hand_over_is_used_once(client, prefill, decode).await;
    a_client_that_hangs_up_frees_both_engines(client, prefill, decode).await;
    let (halves, early) = ((prefill, decode), true);
    a_client_that_hangs_up_before_decode_begins_frees_both_engines(client, halves, early).await;
    half_a_pair_is_given_up_in_time(client, prefill, decode).await;
    kv_transfer_params_of_clients_never_reach_an_engine(client, prefill, decode).await;
}

/// Decode draws the first token itself where its draws depend on how many came before, and computes
/// the prompt's last position for it.
async fn a_first_token_is_drawn_again_only_for_who_asked_for_a_seed(
    client: &Client,
    decode: &Agent,
) {
    let moved =
        async || decode.says("vllm:prompt_tokens_by_source_total", "external_kv_transfer").await;
    // With prefill's token, which decode is told of as if it were of the prompt, or without.
    for (prompt, seed, told) in [(74, json!(null), 201.0), (75, json!(5), 200.0)] {
        let (before, shared) = (moved().await, decode.prefills("prefill_worker").await);
        let mut body = completion(&tokens(prompt, 200), 16);
        body["temperature"] = json!(1);
        body["seed"] = seed.clone();
        let reply = client.post("/v1/completions", &body).await.json();
        assert_eq!(answer(&reply).0.len(), 16);
        assert_eq!(decode.prefills("prefill_worker").await, shared + 1.0);
        assert_eq!(moved().await - before, told, "seed {seed}");
    }
}

/// One malformed set kills an engine.
async fn kv_transfer_params_of_clients_never_reach_an_engine(
    client: &Client,
    prefill: &Agent,
    decode: &Agent,
) {
    let prompt = tokens(12, 70);
    let expected = decode.answers(&prompt, 2).await;
    for params in [
        json!({ "do_remote_prefill": true }),
        json!({ "do_remote_decode": true }),
        json!({ "do_remote_prefill": true, "remote_block_ids": [[1, 2]] }),
        json!({ "do_remote_prefill": true, "transfer_id": "another's" }),
        json!("nothing of the kind"),
    ] {
        for (field, value) in [
            ("kv_transfer_params", params.clone()),
            ("vllm_xargs", json!({ "kv_transfer_params": params })),
        ] {
            let mut hostile = completion(&prompt, 2);
            hostile[field] = value;
            let reply = client.post("/v1/completions", &hostile).await;
            match reply.status.as_u16() {
                200 => assert_eq!(answer(&reply.json()).0, expected, "{hostile}"),
                status => assert_eq!(status, 400, "{hostile}"),
            }
        }
    }
    for agent in [prefill, decode] {
        agent.has_released_all().await;
        assert_eq!(agent.engine.get("/health").await.status, 200);
        assert_eq!(agent.metric("stator_agent_engine_lives_total").await, 1.0);
    }
}

/// What is left of a hand-over that was used are blocks that hold anything by now.
async fn a_hand_over_is_used_once(client: &Client, prefill: &Agent, decode: &Agent) {
    let prompt = tokens(14, 100);
    let expected = prefill.answers(&prompt, 8).await;
    let before = decode.prefills("prefill_worker").await;
    for n in 1..=3 {
        let reply = client.post("/v1/completions", &completion(&prompt, 8)).await.json();
        assert_eq!(answer(&reply).0, expected, "request {n}");
        assert_eq!(decode.prefills("prefill_worker").await, before + f64::from(n));
    }
    // Choices of one request would share it: they are computed in one place.
    let mut body = completion(&prompt, 8);
    body["n"] = json!(2);
    let reply = client.post("/v1/completions", &body).await.json();
    let tokens =
        |n: usize| serde_json::from_value::<Vec<u32>>(reply["choices"][n]["token_ids"].clone());
    assert_eq!([0, 1].map(|n| tokens(n).unwrap()), [expected.clone(), expected]);
    assert_eq!(decode.prefills("prefill_worker").await, before + 3.0);
    prefill.has_released_all().await;
    let late = "vllm:nixl_num_notifications_after_expiry_total";
    assert_eq!(prefill.says(late, "").await, 0.0);
}

async fn a_client_that_hangs_up_frees_both_engines(
    client: &Client,
    prefill: &Agent,
    decode: &Agent,
) {
    for seed in 15..18 {
        let before = decode.prefills("prefill_worker").await;
        let mut body = completion(&tokens(seed, 1000), 900);
        body["stream"] = json!(true);
        let mut stream = client.stream("/v1/completions", &body).await;
        stream.next().await;
        assert_eq!(decode.prefills("prefill_worker").await, before + 1.0);
        drop(stream);
        decode.has_released_all().await;
        prefill.has_released_all().await;
    }
}

/// Before the first token, and between the end of prefill and the start of decode: an engine stands
/// still there, and finds that nobody waits any more. The token that prefill has may be `early`.
async fn a_client_that_hangs_up_before_decode_begins_frees_both_engines(
    client: &Client,
    (prefill, decode): (&Agent, &Agent),
    early: bool,
) {
    for (held, seed, begins) in [(prefill, 70, false), (decode, 71, early)] {
        let core = held.core();
        signal(core, "STOP");
        let (client, prompt) = (client.clone(), tokens(seed, 1000));
        let asked = tokio::spawn(async move { stream(&client, &prompt, 900).await });
        held.has_requests().await;
        if !begins {
            asked.abort();
        }
        // The first token comes with the end of prefill.
        assert_eq!(asked.await.is_ok(), begins);
        held.has_no_requests().await;
        signal(core, "CONT");
        // Behind it in the engine's queue: whatever came before was begun.
        held.answers(&tokens(seed, 40), 1).await;
        prefill.has_released_all().await;
        decode.has_released_all().await;
    }
    // At once, and not when leases end.
    assert_eq!(prefill.says("vllm:nixl_num_kv_expired_reqs_total", "").await, 0.0);
}

/// The prefill worker takes a prompt and says nothing more.
async fn half_a_pair_is_given_up_in_time(client: &Client, prefill: &Agent, decode: &Agent) {
    let prompt = tokens(19, 300);
    let core = prefill.core();
    signal(core, "STOP");
    let reply = client.post("/v1/completions", &completion(&prompt, 8)).await.json();
    signal(core, "CONT");
    assert_eq!(answer(&reply).0, decode.answers(&prompt, 8).await);
    assert_eq!(decode.prefills("itself_timeout").await, 1.0, "{}", decode.process.log());
    // What it was asked was taken back, so it holds nothing for anybody.
    prefill.has_released_all().await;
}

/// It takes nothing new meanwhile, and ends its engine when it has waited.
async fn what_outlasts_a_drain_goes_on_elsewhere(three: &mut Three) {
    let client = three.preferring(&three.decode);
    let Three { decode, alone, .. } = three;
    let prompt = tokens(72, 64);
    let begun = stream(&client, &prompt, 600).await;
    decode.has_requests().await;
    let core = decode.core();
    signal(core, "STOP");
    decode.process.terminate();
    decode.process.event("agent drains").await;
    let other = tokens(73, 64);
    let (got, _) = answer(&completed(&client, MODEL, &other, 8).await);
    assert_eq!(got, alone.answers(&other, 8).await);
    decode.process.event("draining took too long; requests are cut off").await;
    signal(core, "CONT");
    assert_eq!(streamed(begun).await, alone.answers(&prompt, 600).await);
    assert!(decode.process.ended().await.success(), "{}", decode.process.log());
    is_gone(core).await;
}
