//! A prefill and a decode vLLM that hand KV over to one another and keep it in their agents' tiers.

use crate::agents::{Agent, answer, completed, proxy, tokens};
use crate::vllm_tiers::{ANSWER, LONG, asked, forget, holds, whole_blocks};
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role, all_engines};
use stator_tests::vllm::serve;

/// Prompt tokens that an engine got from outside: its peer, or its agent's tiers.
async fn received(agent: &Agent) -> f64 {
    agent.says("vllm:prompt_tokens_by_source_total", "external").await
}

#[tokio::test]
async fn vllms_that_share_requests_keep_kv_in_tiers() {
    if !all_engines("vLLMs that share requests, with tiers") {
        return;
    }
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let prompts: Vec<_> = (0..3).map(|seed| tokens(200 + seed, LONG)).collect();
    let mut expected = Vec::new();
    {
        let plain = serve(&bed, Role::Aggregated, &[]).await;
        for prompt in &prompts {
            expected.push(asked(&plain.client(), prompt).await.0);
        }
    }
    let start = |role: Role| {
        let flags = (&["--kv-host-gb=0.02", "--prefill-timeout-ms=20000"][..], 1);
        Agent::start_with(&bed, home.path(), (role.name(), role), flags)
    };
    let [prefill, decode] = [Role::Prefill, Role::Decode].map(start);
    let mut prefill = Agent::ready(Engine::Vllm, prefill).await;
    let decode = Agent::ready(Engine::Vllm, decode).await;
    let (_proxy, client) = proxy(home.path(), &["--router-split=always"]).await;

    let ask = async |at: usize| {
        let shared = decode.prefills("prefill_worker").await;
        let before = received(&decode).await;
        let reply = completed(&client, MODEL, &prompts[at], ANSWER).await;
        assert_eq!(answer(&reply).0, expected[at], "{}", decode.process.log());
        assert_eq!(
            decode.prefills("prefill_worker").await,
            shared + 1.0,
            "{}",
            decode.process.log()
        );
        // Decode got all of the prompt, and the token that prefill drew.
        assert_eq!(received(&decode).await - before, (LONG + 1) as f64);
    };
    for at in 0..prompts.len() {
        ask(at).await;
    }
    holds(&prefill, "host", prompts.len() * (LONG / BLOCK_SIZE)).await;

    // Both engines forget, and prefill has the prompts in its tier.
    forget_both(&prefill, &decode).await;
    for at in 0..prompts.len() {
        let before = received(&prefill).await;
        ask(at).await;
        assert_eq!(received(&prefill).await - before, whole_blocks(LONG) as f64);
    }

    // And after a new life of its engine.
    prefill.kill_engine().await;
    prefill.recovers().await;
    forget_both(&prefill, &decode).await;
    ask(0).await;
    assert_eq!(received(&prefill).await, whole_blocks(LONG) as f64);
}

/// Has both engines forget, when nothing that they hand over is held any more.
async fn forget_both(prefill: &Agent, decode: &Agent) {
    for agent in [prefill, decode] {
        agent.has_released_all().await;
        forget(&agent.engine).await;
    }
}
