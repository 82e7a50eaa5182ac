//! Forms of vLLM other than the usual: several ranks, several groups of KV.

use crate::agents::{Agent, answer, completion, tokens};
use crate::vllm_tiers::{
    ANSWER, LONG, asked, attached, finds_again, forget, hits_below, holds, start_with_tiers,
    stored, whole_blocks,
};
use serde_json::json;
use stator_tests::http::Client;
use stator_tests::soon;
use stator_tests::stock::{Bed, Engine, Role};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A layer that sees 64 tokens, and a layer that sees all.
const TWO_GROUPS: &str = r#"--hf-overrides={"architectures": ["LlamaForCausalLM"], "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"]}"#;

/// vLLM keeps windows where a prompt ends, and so after every 96 tokens too.
const RETAINED: &str = "--prefix-cache-retention-interval=96";

fn flags<const N: usize>(flags: [&str; N]) -> Vec<String> {
    flags.map(str::to_owned).to_vec()
}

#[tokio::test]
async fn ranks_agree_on_prefix() {
    let Some(bed) =
        Bed::find_among_all(Engine::Vllm, "a vLLM of two tensor-parallel ranks with tiers")
    else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let ranks = flags(["--tensor-parallel-size=2", "--distributed-executor-backend=mp"]);
    let server = start_with_tiers(&bed, &home.path().join("kv"), &ranks).await;
    let disk = format!("--kv-disk-dir={}", home.path().join("disk").display());
    let prompt = tokens(5, LONG);
    let (expected, _) = asked(&server.client(), &prompt).await;
    // Each rank maps the memory of each agent, and has its half of each block there.
    for _ in 0..2 {
        let mut agent = attached(&bed, &server, home.path(), &[&disk, "--kv-disk-gb=0.2"]).await;
        finds_again(&agent.engine, &prompt, &expected).await;
        agent.process.kill().await;
    }
}

/// Each data-parallel rank is an engine of its own for the agent, and finds what the other has computed.
#[tokio::test]
async fn data_parallel_ranks_share_the_tiers() {
    let Some(bed) =
        Bed::find_among_all(Engine::Vllm, "a vLLM of two data-parallel ranks with tiers")
    else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let ranks = (&["--kv-host-gb=0.02"][..], 2);
    let process = Agent::start_with(&bed, home.path(), ("ranks", Role::Aggregated), ranks);
    let agent = Agent::ready(Engine::Vllm, process).await;
    let [first, second] =
        ["0", "1"].map(|rank| agent.engine.clone().with_header("x-data-parallel-rank", rank));
    let prompt = tokens(5, LONG);
    let (expected, _) = asked(&first, &prompt).await;
    finds_again(&first, &prompt, &expected).await;
    let filled = stored(&agent).await;
    finds_again(&second, &prompt, &expected).await;
    assert_eq!(stored(&agent).await, filled, "the second rank stored something");
}

/// A model with two groups of KV keeps both: equal tokens when its device has forgotten a prompt, in
/// whole or in part, when the prompt begins like another, and after restarts of the engine and of all.
#[tokio::test]
async fn hybrid_model_evicts_and_resumes() {
    let Some(bed) = Bed::find_among_all(
        Engine::Vllm,
        "a vLLM with sliding windows beside full attention, with tiers",
    ) else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let bed = bed.with_model(model_of_two_groups(&bed, home.path()));
    let disk = format!("--kv-disk-dir={}", home.path().join("disk").display());
    let start = || {
        let mut own = Engine::Vllm.flags(Role::Aggregated, 1);
        own.extend(flags([TWO_GROUPS, RETAINED]));
        let flags = ["--kv-host-gb=0.04", "--kv-disk-gb=0.2", &disk, "--"];
        let flags: Vec<_> = flags.into_iter().chain(own.iter().map(String::as_str)).collect();
        Agent::start_as(&bed, home.path(), ("aggregated", Role::Aggregated), (&flags, 1))
    };
    let mut agent = Agent::ready(Engine::Vllm, start()).await;
    let prompts: Vec<_> = (0..16).map(|seed| tokens(300 + seed, LONG)).collect();
    let mut expected = Vec::new();
    for prompt in &prompts {
        expected.push(computed(&agent.engine, prompt).await);
        assert_eq!(asked(&agent.engine, prompt).await.0, expected[expected.len() - 1]);
    }
    for (prompt, expected) in prompts.iter().zip(&expected) {
        finds_again(&agent.engine, prompt, expected).await;
    }
    // The engine has room for fewer than half of them, and loads those that it evicted.
    let loaded = received(&agent).await;
    for (prompt, expected) in prompts.iter().zip(&expected) {
        assert_eq!(asked(&agent.engine, prompt).await.0, *expected);
    }
    assert!(received(&agent).await >= loaded + whole_blocks(LONG) as f64);
    let together = prompts.iter().map(|prompt| asked(&agent.engine, prompt));
    let answers = futures::future::join_all(together).await;
    assert_eq!(answers.into_iter().map(|(tokens, _)| tokens).collect::<Vec<_>>(), expected);

    begins_like_another(&agent.engine, &prompts[3]).await;
    // A conversation goes on where its last prompt ended.
    let next = [&prompts[6][..], &expected[6], &tokens(500, 40)].concat();
    let (fresh, _) = (computed(&agent.engine, &next).await, forget(&agent.engine).await);
    assert_eq!(asked(&agent.engine, &next).await.0, fresh);

    agent.kill_engine().await;
    agent.recovers().await;
    finds_again(&agent.engine, &prompts[5], &expected[5]).await;
    holds(&agent, "disk", 1).await;
    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());
    let agent = Agent::ready(Engine::Vllm, start()).await;
    finds_again(&agent.engine, &prompts[15], &expected[15]).await;
    assert!(hits_below(&agent).await > 0.0, "nothing came from the disk");
}

/// Of what is kept of another prompt the windows lie at every third block: the first 24 of 25 blocks
/// are loaded. An agent that has little of the processor may answer too late: then a further prompt
/// begins so.
async fn begins_like_another(engine: &Client, prompt: &[u32]) {
    soon("a prompt that begins like another", async {
        for seed in 400.. {
            let other = [&prompt[..800], &tokens(seed, 500)].concat();
            let fresh = computed(engine, &other).await;
            forget(engine).await;
            let (tokens, cached) = asked(engine, &other).await;
            assert_eq!(tokens, fresh);
            if cached == 768 {
                break;
            }
            assert_eq!(cached, 0);
        }
    })
    .await;
}

/// Prompt tokens that an engine got from outside.
async fn received(agent: &Agent) -> f64 {
    agent.says("vllm:prompt_tokens_by_source_total", "external").await
}

/// An answer that an engine computed from the first token on: nobody else has this salt.
async fn computed(engine: &Client, prompt: &[u32]) -> Vec<u32> {
    let mut body = completion(prompt, ANSWER);
    body["cache_salt"] = json!(format!("alone {}", prompt[prompt.len() - 1]));
    let reply = engine.post("/v1/completions", &body).await;
    assert!(reply.status.is_success(), "{}", reply.status);
    let (tokens, cached) = answer(&reply.json());
    assert_eq!(cached, 0);
    tokens
}

/// Makes a model that [`TWO_GROUPS`] fits, of the same weights.
fn model_of_two_groups(bed: &Bed, home: &Path) -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/engines/two_groups.py");
    let model = home.join("model");
    let mut python = Command::new(bed.program().with_file_name("python"));
    let made = python.arg(script).args([bed.model(), &model]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    model
}
