//! Agents that run a real vLLM, spoken to through the proxy.

use crate::agents::{Agent, answer, completion, proxy, tokens};
use crate::contract::answers_have_the_form_that_is_asked_for;
use crate::suite::{
    a_client_that_hangs_up_stops_the_engine, a_reset_cache_is_known_to_be_empty,
    an_engine_that_dies_ends_its_requests_and_comes_back, greedy_answers_are_the_engines_own,
    what_is_cached_is_known_through_eviction,
};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::process::signal;
use stator_tests::stock::{Bed, Engine, Role};
use stator_tests::vllm::core;

/// Longest wait for a prefill worker: longer than the first hand-over takes, shorter than the
/// deadline.
const PREFILL_TIMEOUT: &str = "--prefill-timeout-ms=15000";

#[tokio::test]
async fn an_agents_vllm_is_known_by_its_events_and_comes_back_when_it_dies() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let role = ("aggregated", Role::Aggregated);
    let mut agent = Agent::ready(Engine::Vllm, Agent::start(&bed, home.path(), role)).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    greedy_answers_are_the_engines_own(&client, &agent).await;
    answers_have_the_form_that_is_asked_for(&client, &agent).await;
    what_is_cached_is_known_through_eviction(&client, &mut agent).await;
    a_client_that_hangs_up_stops_the_engine(&client, &agent).await;
    a_reset_cache_is_known_to_be_empty(&client, &mut agent).await;
    an_engine_that_dies_ends_its_requests_and_comes_back(&client, &mut agent).await;

    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
}

#[tokio::test]
async fn two_vllms_share_a_request_and_one_does_without_the_other() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let start = |role| Agent::start_with(&bed, home.path(), role, (&[PREFILL_TIMEOUT], 1));
    let prefill = start(("prefill", Role::Prefill));
    let decode = start(("decode", Role::Decode));
    let (mut prefill, decode) =
        (Agent::ready(Engine::Vllm, prefill).await, Agent::ready(Engine::Vllm, decode).await);
    let (_proxy, client) = proxy(home.path(), &["--router-split=always"]).await;

    let prompt = tokens(11, 200);
    let expected = prefill.answers(&prompt, 16).await;
    let reply = client.post("/v1/completions", &completion(&prompt, 16)).await.json();
    assert_eq!(answer(&reply).0, expected, "{}", decode.process.log());
    assert_eq!(decode.prefills("prefill_worker").await, 1.0, "{}", decode.process.log());
    let moved = ("vllm:prompt_tokens_by_source_total", "external_kv_transfer");
    // And the token that prefill computed, which decode was told of as if it were of the prompt.
    assert_eq!(decode.says(moved.0, moved.1).await, 201.0);
    a_hand_over_is_used_once(&client, &prefill, &decode).await;
    a_client_that_hangs_up_frees_both_engines(&client, &prefill, &decode).await;
    half_a_pair_is_given_up_in_time(&client, &prefill, &decode).await;

    // What a client sends of the hand-over never reaches an engine: one malformed set kills it.
    let mut hostile = completion(&tokens(12, 70), 2);
    hostile["kv_transfer_params"] = json!({ "do_remote_prefill": true });
    hostile["bootstrap_room"] = json!(1);
    let reply = client.post("/v1/completions", &hostile).await;
    assert!(reply.status.is_success() || reply.status == 400, "{}", reply.status);
    assert_eq!(decode.engine.get("/health").await.status, 200);

    // Without its prefill worker the decode worker computes prompts itself.
    signal(prefill.engine_process(0).await, "KILL");
    let prompt = tokens(13, 150);
    let reply = client.post("/v1/completions", &completion(&prompt, 8)).await.json();
    assert_eq!(answer(&reply).0, decode.answers(&prompt, 8).await);
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

/// The prefill worker takes a prompt and says nothing more.
async fn half_a_pair_is_given_up_in_time(client: &Client, prefill: &Agent, decode: &Agent) {
    let prompt = tokens(19, 300);
    let core = core(&prefill.process.log());
    signal(core, "STOP");
    let reply = client.post("/v1/completions", &completion(&prompt, 8)).await.json();
    signal(core, "CONT");
    assert_eq!(answer(&reply).0, decode.answers(&prompt, 8).await);
    assert_eq!(decode.prefills("itself_timeout").await, 1.0, "{}", decode.process.log());
    // What it was asked was taken back, so it holds nothing for anybody.
    prefill.has_released_all().await;
}
