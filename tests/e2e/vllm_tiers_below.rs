//! KV that a vLLM's agent keeps on a disk and in an object store.

use crate::agents::{Agent, operate, tokens};
use crate::kv_tiers::damage;
use crate::vllm_tiers::{
    HITS_BELOW, LONG, asked, attached, attached_in, finds_again, forget, holds, whole_blocks,
};
use stator_tests::http::Client;
use stator_tests::s3::S3Server;
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed};
use stator_tests::vllm::VllmServer;
use std::path::Path;

/// A read that fails is never loaded, and the disk gets the block again. What the first engine has
/// computed, the second reads from the disk.
pub(crate) async fn damaged_blocks_of_a_disk_are_computed(
    bed: &Bed,
    [server, reader]: [&VllmServer; 2],
    home: &Path,
    (prompt, expected): (&[u32], &[u32]),
) {
    let disk = format!("--kv-disk-dir={}", home.join("disk").display());
    let mut agent = attached(bed, server, home, &[&disk, "--kv-disk-gb=0.2"]).await;
    finds_again(&agent.engine, prompt, expected).await;
    holds(&agent, "disk", whole_blocks(LONG) / BLOCK_SIZE).await;
    agent.process.kill().await;

    agent = attached(bed, server, home, &[&disk, "--kv-disk-gb=0.2"]).await;
    asked_until(&mut agent, &reader.client(), (prompt, expected), HITS_BELOW).await;
    finds_again(&reader.client(), prompt, expected).await;
    agent.process.kill().await;

    damage(&home.join("disk"));
    agent = attached(bed, server, home, &[&disk, "--kv-disk-gb=0.2"]).await;
    let failed = "stator_kv_tier_operations_total{tier=\"disk\",way=\"read\",outcome=\"corrupt\"}";
    asked_until(&mut agent, &server.client(), (prompt, expected), failed).await;
    finds_again(&agent.engine, prompt, expected).await;
    agent.process.kill().await;
}

pub(crate) async fn a_second_agent_finds_what_the_first_left_in_an_object_store(
    bed: &Bed,
    server: &VllmServer,
    home: &Path,
) {
    let Some(s3) = S3Server::start("blocks").await else { return };
    let environment = s3.environment();
    let start =
        || attached_in(bed, server, home, &["--kv-object=s3://blocks/of/vllm"], &environment);
    let mut agent = start().await;
    let prompt = tokens(6, LONG);
    forget(&agent.engine).await;
    let (expected, _) = asked(&agent.engine, &prompt).await;
    finds_again(&agent.engine, &prompt, &expected).await;
    // An agent that ends writes what it has gathered for an object.
    holds(&agent, "remote", whole_blocks(LONG) / BLOCK_SIZE).await;
    agent.process.terminate();
    assert!(agent.process.ended().await.success(), "{}", agent.process.log());

    let mut second = start().await;
    // Its catalogue of the store is read after the engine has joined.
    holds(&second, "remote", whole_blocks(LONG) / BLOCK_SIZE).await;
    asked_until(&mut second, &server.client(), (&prompt, &expected), HITS_BELOW).await;
    finds_again(&second.engine, &prompt, &expected).await;
}

/// Asks until a counter of the agent has moved. Host memory is cleared before each question: of a read
/// that came too late or that the engine had joined too late for, the blocks were computed, and are there.
async fn asked_until(
    agent: &mut Agent,
    engine: &Client,
    (prompt, expected): (&[u32], &[u32]),
    counter: &str,
) {
    soon(counter, async {
        while agent.metric(counter).await == 0.0 {
            let (done, log) = operate(&mut agent.process, &["kv-clear", "--tier=host"]).await;
            assert!(done || log.contains("no engine has joined"), "{log}");
            forget(engine).await;
            assert_eq!(asked(engine, prompt).await.0, expected);
        }
    })
    .await;
}
