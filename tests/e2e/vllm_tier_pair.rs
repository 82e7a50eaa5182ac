//! A prefill and a decode vLLM that hand KV over to one another and keep it in their agents' tiers.

use crate::agents::{Agent, answer, completed, proxy, tokens};
use crate::vllm_tiers::{ANSWER, LONG, asked, forget, holds, whole_blocks};
use stator_tests::http::Client;
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role};
use stator_tests::vllm::serve;

/// Prompt tokens that an engine got from outside: its peer, or its agent's tiers.
async fn received(agent: &Agent) -> f64 {
    agent.says("vllm:prompt_tokens_by_source_total", "external").await
}

/// A prefill and a decode worker, and the prompts that they share.
struct TierPair {
    client: Client,
    prefill: Agent,
    decode: Agent,
    prompts: Vec<Vec<u32>>,
    /// Answers of an engine without tiers.
    expected: Vec<Vec<u32>>,
}

impl TierPair {
    /// Has a prompt answered by both.
    async fn ask(&self, at: usize) {
        let decode = &self.decode;
        let shared = decode.prefills("prefill_worker").await;
        let before = received(decode).await;
        let reply = completed(&self.client, MODEL, &self.prompts[at], ANSWER).await;
        assert_eq!(answer(&reply).0, self.expected[at], "{}", decode.process.log());
        let prefills = decode.prefills("prefill_worker").await;
        assert_eq!(prefills, shared + 1.0, "{}", decode.process.log());
        // Decode got all of the prompt, and the token that prefill drew.
        assert_eq!(received(decode).await - before, (LONG + 1) as f64);
    }

    /// Waits until prefill has a prompt from its tier. It computes one that its agent, with too little
    /// of the processor, does not find in time.
    async fn finds_again(&self, at: usize) {
        soon("a prompt from prefill's tier", async {
            loop {
                forget_both(&self.prefill, &self.decode).await;
                let before = received(&self.prefill).await;
                self.ask(at).await;
                if received(&self.prefill).await - before == whole_blocks(LONG) as f64 {
                    return;
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn vllms_that_share_requests_keep_kv_in_tiers() {
    let Some(bed) = Bed::find_among_all(Engine::Vllm, "vLLMs that share requests, with tiers")
    else {
        return;
    };
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
    let prefill = Agent::ready(Engine::Vllm, prefill).await;
    let decode = Agent::ready(Engine::Vllm, decode).await;
    let (_proxy, client) = proxy(home.path(), &["--router-split=always"]).await;
    let mut pair = TierPair { client, prefill, decode, prompts, expected };

    let all = pair.prompts.len();
    for at in 0..all {
        pair.ask(at).await;
    }
    holds(&pair.prefill, "host", all * (LONG / BLOCK_SIZE)).await;
    for at in 0..all {
        pair.finds_again(at).await;
    }
    // And after a new life of its engine.
    pair.prefill.kill_engine().await;
    pair.prefill.recovers().await;
    pair.finds_again(0).await;
}

/// Has both engines forget, when nothing that they hand over is held any more.
async fn forget_both(prefill: &Agent, decode: &Agent) {
    for agent in [prefill, decode] {
        agent.has_released_all().await;
        forget(&agent.engine).await;
    }
}
