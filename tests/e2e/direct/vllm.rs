//! The sidecar's work between real engines: two vLLMs that agents run already.

use super::testbed::{PARAMETERS, Sidecar};
use crate::agents::{Agent, completion, stream, streamed, tokens};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::signal;

const COMPLETIONS: &str = "/v1/completions";
/// Longest wait for a prompt: longer than the first hand-over takes.
const PREFILL_TIMEOUT: &str = "--prefill-timeout-ms=15000";
const RUNNING: &str = "stator_direct_requests_running";
const PREFILLED: &str = "stator_direct_prefill_duration_seconds_count";

/// What comes of requests that a picker would send, with a prefill engine named for each.
pub(crate) async fn a_sidecar_has_prompts_computed_by_another_vllm(
    prefill: &Agent,
    decode: &Agent,
) {
    let [prefiller, engine] = [prefill, decode].map(|agent| agent.engine.address());
    let allow = format!("--prefill-allow={prefiller}");
    let sidecar = Sidecar::start(engine, &[&allow, PREFILL_TIMEOUT]).await;
    let client = sidecar.client_of(prefiller);

    answers_are_those_of_one_engine(&client, &sidecar, (prefill, decode)).await;
    what_clients_say_of_hand_overs_reaches_nobody(&client, (prefill, decode)).await;
    who_hangs_up_frees_both_engines(&client, &sidecar, (prefill, decode)).await;
    a_prefill_that_stands_still_costs_no_answer(&client, &sidecar, (prefill, decode)).await;
}

fn ids(reply: &Value) -> Vec<u32> {
    let ids = serde_json::from_value(reply["choices"][0]["token_ids"].clone());
    ids.unwrap_or_else(|error| panic!("{error}: {reply}"))
}

async fn answers_are_those_of_one_engine(
    client: &Client,
    sidecar: &Sidecar,
    (prefill, decode): (&Agent, &Agent),
) {
    let moved =
        async || decode.says("vllm:prompt_tokens_by_source_total", "external_kv_transfer").await;
    for (seed, streams) in [(80, false), (81, true)] {
        let prompt = tokens(seed, 200);
        let (expected, before) = (prefill.answers(&prompt, 16).await, moved().await);
        let found = match streams {
            false => ids(&client.post(COMPLETIONS, &completion(&prompt, 16)).await.json()),
            true => streamed(stream(client, &prompt, 16).await).await,
        };
        assert_eq!(found, expected, "{}", sidecar.process.log());
        assert_eq!(moved().await - before, 200.0, "{}", sidecar.process.log());
    }
    sidecar.counts("stator_direct_requests_total", &["way=\"handed_over\""], 2.0).await;
}

/// One malformed set kills an engine.
async fn what_clients_say_of_hand_overs_reaches_nobody(
    client: &Client,
    (prefill, decode): (&Agent, &Agent),
) {
    let (prompt, param) = (tokens(82, 70), json!(PARAMETERS));
    for params in [
        json!({ "do_remote_prefill": true }),
        json!({ "do_remote_prefill": true, "remote_block_ids": [[1, 2]] }),
        json!("nothing of the kind"),
    ] {
        let mut hostile = completion(&prompt, 2);
        hostile[PARAMETERS] = params;
        let reply = client.post(COMPLETIONS, &hostile).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &param));
    }
    for agent in [prefill, decode] {
        assert_eq!(agent.engine.get("/health").await.status, 200);
    }
}

/// Whenever that is: in the answer, while an engine stands still before it, and where the prompt has
/// been computed and decode does not know yet.
async fn who_hangs_up_frees_both_engines(
    client: &Client,
    sidecar: &Sidecar,
    (prefill, decode): (&Agent, &Agent),
) {
    let expired = async || prefill.says("vllm:nixl_num_kv_expired_reqs_total", "").await;
    let before = expired().await;
    drop(stream(client, &tokens(83, 1000), 900).await);
    decode.has_released_all().await;
    prefill.has_released_all().await;
    sidecar.counts(RUNNING, &[], 0.0).await;
    for (held, seed, counted) in [(prefill, 84, RUNNING), (decode, 85, PREFILLED)] {
        let count = sidecar.metric(counted, &[]).await;
        let core = held.core();
        signal(core, "STOP");
        let (client, prompt) = (client.clone(), tokens(seed, 1000));
        let asked = tokio::spawn(async move { stream(&client, &prompt, 900).await });
        sidecar.counts(counted, &[], count + 1.0).await;
        asked.abort();
        assert!(asked.await.is_err_and(|error| error.is_cancelled()));
        sidecar.counts(RUNNING, &[], 0.0).await;
        signal(core, "CONT");
        // Behind it in the engine's queue: whatever came before was begun.
        held.answers(&tokens(seed, 40), 1).await;
        prefill.has_released_all().await;
        decode.has_released_all().await;
    }
    // At once, and not when leases end.
    assert_eq!(expired().await, before);
}

async fn a_prefill_that_stands_still_costs_no_answer(
    client: &Client,
    sidecar: &Sidecar,
    (prefill, decode): (&Agent, &Agent),
) {
    let prompt = tokens(86, 300);
    let core = prefill.core();
    signal(core, "STOP");
    let reply = client.post(COMPLETIONS, &completion(&prompt, 8)).await.json();
    signal(core, "CONT");
    assert_eq!(ids(&reply), decode.answers(&prompt, 8).await, "{}", sidecar.process.log());
    sidecar.counts("stator_direct_fallbacks_total", &["prefill_"], 1.0).await;
    prefill.has_released_all().await;
}
