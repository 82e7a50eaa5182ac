//! Agents that run a real SGLang, spoken to through the proxy. Its pair works on a CPU too: its
//! default backend, Mooncake, moves KV over TCP.

use crate::agents::{
    Agent, accepted, answer, completed, completion, ends_with_an_error, proxy, stream, tokens,
};
use crate::contract::answers_have_the_form_that_is_asked_for;
use crate::stages::{
    DEATHS, Three, a_process_of_each_half_dies_in_turn, both_die_while_decode_streams,
    half_a_pair_is_given_up_in_time, one_dies_once_the_prompt_is_computed,
};
use crate::suite::{
    Tested, a_client_that_hangs_up_stops_the_engine, a_pause_holds_what_runs_and_forgets_nothing,
    a_reset_cache_is_known_to_be_empty, an_engine_that_dies_ends_its_requests_and_comes_back,
    greedy_answers_are_the_engines_own, what_is_cached_is_known_through_eviction,
    what_the_engines_page_says_is_on_the_agents,
};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::signal;
use stator_tests::stock::{Bed, Engine, MODEL, Role};
use std::path::Path;

/// How long an engine may stand still here: longer than any step that it takes, and shorter than
/// it takes to be given up for not saying how it is.
const HANG_TIMEOUT: &str = "--engine-hang-timeout-s=6";
/// Longest wait for a prefill worker: longer than the first hand-over takes, shorter than the
/// deadline and than an engine may stand still.
const PREFILL_TIMEOUT: &str = "--prefill-timeout-ms=15000";
/// Rows of [`DEATHS`] for a pair: they have each stage and each part. A row starts two engines again,
/// which takes minutes on two cores; pairs of vLLM go through all rows.
const DEATHS_HERE: usize = 4;

#[tokio::test]
async fn an_agents_sglang_is_known_by_its_events_and_comes_back_when_it_dies() {
    let Some(bed) = Bed::find_among_all(Engine::Sglang, "SGLang") else { return };
    let home = tempfile::tempdir().unwrap();
    let who = ("aggregated", Role::Aggregated);
    let process = Agent::start_with(&bed, home.path(), who, (&[HANG_TIMEOUT], 1));
    let mut agent = Agent::ready(Engine::Sglang, process).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;

    greedy_answers_are_the_engines_own(&client, &agent).await;
    answers_have_the_form_that_is_asked_for(&client, &agent).await;
    calls_are_forced(&client).await;
    thoughts_are_read_apart_and_a_form_comes_behind_them(home.path()).await;
    what_is_cached_is_known_through_eviction(&client, &mut agent).await;
    what_the_engines_page_says_is_on_the_agents(&agent).await;
    a_client_that_hangs_up_stops_the_engine(&client, &agent).await;
    a_reset_cache_is_known_to_be_empty(&client, &mut agent).await;
    a_pause_holds_what_runs_and_forgets_nothing(&client, &mut agent).await;
    a_sleep_that_would_lose_weights_is_refused(&client, &mut agent).await;
    what_clients_send_of_a_pair_and_of_ranks_never_reaches_an_engine(&client, &agent).await;
    an_engine_that_dies_ends_its_requests_and_comes_back(&client, &mut agent).await;
    a_scheduler_that_stands_still_is_killed(&client, &mut agent).await;

    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
}

/// A call is made where one is required, and by the function that is named, whole and streamed.
async fn calls_are_forced(client: &Client) {
    // Of other objects a model without sense would write white space alone.
    let places = json!([{"city": "Paris"}, {"city": "Rome"}]);
    let function = |name: &str| {
        let parameters = json!({"type": "object", "enum": places});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let named = json!({"type": "function", "function": {"name": "report"}});
    for (choice, names) in [(json!("required"), &["weather", "report"][..]), (named, &["report"])] {
        let mut body = json!({
            "model": MODEL, "max_tokens": 200, "temperature": 0, "tool_choice": choice,
            "messages": [{"role": "user", "content": "Well?"}], "parallel_tool_calls": false,
            "tools": [function("weather"), function("report")],
        });
        let answer = client.post("/v1/chat/completions", &body).await.json();
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
        let [call] = &calls.map_or(&[][..], Vec::as_slice) else { panic!("{answer}") };
        let called = call["function"]["name"].as_str().unwrap_or_default();
        assert!(names.contains(&called), "{answer}");
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let place: Value = serde_json::from_str(arguments).unwrap_or_default();
        assert!(places.as_array().unwrap().contains(&place), "{answer}");
        body["stream"] = json!(true);
        let chunks = client.stream("/v1/chat/completions", &body).await.rest().await;
        let parts = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]);
        let parts = parts.filter_map(|part| part["function"]["arguments"].as_str());
        assert_eq!(parts.collect::<String>(), arguments);
    }
}

/// Of a model whose template knows no thoughts, where the conversation opens them. The engine has no
/// bound for them, and a model without sense does not end them.
async fn thoughts_are_read_apart_and_a_form_comes_behind_them(home: &Path) {
    let (_proxy, client) = proxy(home, &["--reasoning-parser=qwen3"]).await;
    let mut body = json!({
        "model": MODEL, "max_tokens": 12, "temperature": 0, "ignore_eos": true,
        "add_generation_prompt": false, "continue_final_message": true,
        "messages": [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": "<think>"}],
    });
    let ask = async |body: &Value| client.post("/v1/chat/completions", body).await;
    let answer = ask(&body).await.json();
    let message = &answer["choices"][0]["message"];
    assert!(!message["reasoning_content"].as_str().unwrap_or_default().is_empty(), "{answer}");
    assert_eq!(message["content"].as_str().unwrap_or_default(), "", "{answer}");
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 12, "{answer}");
    body["thinking_token_budget"] = json!(6);
    let refused = ask(&body).await;
    let error = &refused.json()["error"];
    assert_eq!((refused.status.as_u16(), &error["param"]), (400, &json!("thinking_token_budget")));
    // Behind thoughts that are over the form begins at once.
    let body = json!({
        "model": MODEL, "max_tokens": 64, "temperature": 0, "structured_outputs": {"choice": ["yes", "no"]},
        "add_generation_prompt": false, "continue_final_message": true,
        "messages": [
            {"role": "user", "content": "Well?"}, {"role": "assistant", "content": "<think></think>"}],
    });
    let answer = ask(&body).await.json();
    let message = &answer["choices"][0]["message"];
    assert!(["yes", "no"].contains(&message["content"].as_str().unwrap_or_default()), "{answer}");
}

/// There is no memory to give back without a GPU, and weights would be lost.
async fn a_sleep_that_would_lose_weights_is_refused(client: &Client, agent: &mut Agent) {
    let (done, log) = agent.operate(&["sleep", "1"]).await;
    assert!(!done && log.contains("--enable-weights-cpu-backup"), "{log}");
    accepted(client, &tokens(41, 200)).await;
}

/// They would be believed: one would wait for a prefill that nobody does, another would name a rank
/// that there is not, or another request.
async fn what_clients_send_of_a_pair_and_of_ranks_never_reaches_an_engine(
    client: &Client,
    agent: &Agent,
) {
    let prompt = tokens(43, 70);
    let expected = agent.answers(&prompt, 4).await;
    for (field, value) in [
        ("bootstrap_host", json!("127.0.0.1")),
        ("bootstrap_port", json!(1)),
        ("bootstrap_room", json!(7)),
        ("routed_dp_rank", json!(3)),
        ("data_parallel_rank", json!(3)),
        ("disagg_prefill_dp_rank", json!(3)),
        ("rid", json!("another's")),
        ("kv_transfer_params", json!({ "do_remote_prefill": true })),
    ] {
        let mut hostile = completion(&prompt, 4);
        hostile[field] = value;
        let reply = client.post("/v1/completions", &hostile).await;
        match reply.status.as_u16() {
            200 => assert_eq!(answer(&reply.json()).0, expected, "{field}"),
            status => assert_eq!(status, 400, "{field}"),
        }
    }
    agent.has_released_all().await;
}

/// The process that serves HTTP goes on to say that all is well.
async fn a_scheduler_that_stands_still_is_killed(client: &Client, agent: &mut Agent) {
    let prompt = tokens(44, 200);
    let expected = answer(&accepted(client, &prompt).await).0;
    let (stream, _) = stream(client, &tokens(45, 64), 1900).await;
    signal(agent.core(), "STOP");
    assert_eq!(agent.engine.get("/ping").await.status, 200);
    let ended = agent.process.nth_event("the engine's life ended", 1).await;
    assert_eq!(ended["cause"], "hung", "{ended}");
    ends_with_an_error(stream).await;

    agent.comes_back(2).await;
    assert_eq!(answer(&accepted(client, &prompt).await), (expected, 0));
    assert_eq!(agent.metric("stator_agent_engine_ends_total{cause=\"hung\"}").await, 1.0);
}

#[tokio::test]
async fn two_sglangs_share_a_request_and_a_third_does_what_they_cannot() {
    let Some(bed) = Bed::find_among_all(Engine::Sglang, "three SGLangs, two of them a pair") else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let start = |role: Role| {
        // Both workers of a request must have the labels that it asks for.
        let label = if role == Role::Aggregated { "alone" } else { Role::Decode.name() };
        let label = format!("--labels=agent={label}");
        Agent::start_with(&bed, home.path(), (role.name(), role), (&[PREFILL_TIMEOUT, &label], 1))
    };
    let [prefill, decode, alone] = [Role::Prefill, Role::Decode, Role::Aggregated].map(start);
    let ready = |process| Agent::ready(Engine::Sglang, process);
    let (prefill, decode, alone) = (ready(prefill).await, ready(decode).await, ready(alone).await);
    let (proxy, client) = proxy(home.path(), &["--router-split=always"]).await;
    let mut three = Three { client, proxy, prefill, decode, alone };

    kv_is_moved_and_not_computed_again(&three).await;
    a_client_that_hangs_up_frees_both_engines(&three).await;
    what_one_worker_must_do_goes_to_one_that_can(&mut three).await;
    half_a_pair_is_given_up_in_time(&three).await;
    both_die_while_decode_streams(&mut three).await;
    one_dies_once_the_prompt_is_computed(&mut three).await;
    for row in DEATHS.into_iter().take(DEATHS_HERE) {
        a_process_of_each_half_dies_in_turn(&mut three, row, &start).await;
    }
}

async fn kv_is_moved_and_not_computed_again(three: &Three) {
    let Three { client, prefill, decode, alone, .. } = three;
    for (n, seed) in (1..).zip([51, 52, 52, 53]) {
        let prompt = tokens(seed, 200);
        let reply = completed(client, MODEL, &prompt, 16).await;
        assert_eq!(answer(&reply).0, alone.answers(&prompt, 16).await, "{}", decode.process.log());
        assert_eq!(decode.prefills("prefill_worker").await, f64::from(n));
    }
    let computed = ("sglang:realtime_tokens_total", "mode=\"prefill_compute\"");
    // Of the prompt that came twice only what fills no block.
    assert!(prefill.says(computed.0, computed.1).await >= 600.0);
    assert_eq!(decode.says(computed.0, computed.1).await, 0.0);
}

async fn a_client_that_hangs_up_frees_both_engines(three: &Three) {
    for seed in 54..57 {
        let before = three.decode.prefills("prefill_worker").await;
        let stream = stream(&three.client, &tokens(seed, 1000), 900).await;
        assert_eq!(three.decode.prefills("prefill_worker").await, before + 1.0);
        drop(stream);
        three.decode.has_released_all().await;
        three.prefill.has_released_all().await;
    }
}

/// Several choices share no hand-over, and half of a pair computes no prompt itself.
async fn what_one_worker_must_do_goes_to_one_that_can(three: &mut Three) {
    assert!(three.decode.record().await.profile.needs_prefill);
    assert!(!three.alone.record().await.profile.needs_prefill);
    let prompt = tokens(58, 100);
    let expected = three.alone.answers(&prompt, 8).await;
    for _ in 0..6 {
        let mut body = completion(&prompt, 8);
        body["n"] = json!(2);
        let reply = three.client.post("/v1/completions", &body).await.json();
        let tokens =
            |n: usize| serde_json::from_value::<Vec<u32>>(reply["choices"][n]["token_ids"].clone());
        assert_eq!([0, 1].map(|n| tokens(n).unwrap()), [expected.clone(), expected.clone()]);
    }
    three.decode.has_released_all().await;
}
