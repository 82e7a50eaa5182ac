//! Forms of vLLM other than the usual: several ranks, several groups of KV.

use crate::agents::tokens;
use crate::vllm_tiers::{LONG, asked, attached, finds_again, start_with_tiers};
use stator_tests::stock::{Bed, Engine, all_engines};

/// Layers that see 64 tokens, and layers that see all, of a model whose weights do not matter.
const TWO_GROUPS: &str = r#"--hf-overrides={"architectures": ["LlamaForCausalLM"], "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"]}"#;

fn flags<const N: usize>(flags: [&str; N]) -> Vec<String> {
    flags.map(str::to_owned).to_vec()
}

#[tokio::test]
async fn ranks_agree_on_prefix() {
    if !all_engines("a vLLM of two tensor-parallel ranks with tiers") {
        return;
    }
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
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

#[tokio::test]
async fn a_vllm_with_several_groups_of_kv_is_refused_in_words_and_serves() {
    if !all_engines("a vLLM with sliding windows beside full attention, with tiers") {
        return;
    }
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let groups = flags(["--load-format=dummy", TWO_GROUPS]);
    let server = start_with_tiers(&bed, &home.path().join("kv"), &groups).await;
    let mut agent = attached(&bed, &server, home.path(), &[]).await;
    let refused = agent.process.event("engine refused").await;
    assert!(refused["text"].as_str().unwrap().contains("several groups of KV"), "{refused}");
    let prompt = tokens(5, LONG);
    assert_eq!(asked(&agent.engine, &prompt).await.1, 0);
    assert!(asked(&agent.engine, &prompt).await.1 > 0, "its own cache serves it");
}
