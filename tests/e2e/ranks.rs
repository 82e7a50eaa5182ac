//! Real engines of several data-parallel ranks: each is a worker of its own.

use crate::agents::{Agent, answer, completed, proxy, tokens};
use crate::suite::Tested;
use stator_protos::discovery::WorkerRecord;
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, Bed, Engine, MODEL, Role, TOTAL_BLOCKS};

#[tokio::test]
async fn data_parallel_ranks_of_vllm_have_requests_events_and_blocks_of_their_own() {
    ranks_are_workers(Engine::Vllm).await;
}

#[tokio::test]
async fn data_parallel_ranks_of_sglang_have_requests_events_and_blocks_of_their_own() {
    ranks_are_workers(Engine::Sglang).await;
}

async fn ranks_are_workers(kind: Engine) {
    let Some(bed) =
        Bed::find_among_all(kind, &format!("two data-parallel ranks of {}", kind.name()))
    else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let process = Agent::start_with(&bed, home.path(), ("ranks", Role::Aggregated), (&[], 2));
    let mut agent = Agent::ready(kind, process).await;
    let (_proxy, client) = proxy(home.path(), &[]).await;
    let workers = agent.record().await.workers;
    let ranks: Vec<_> = workers.iter().map(|rank| (rank.worker.rank, rank.total_blocks)).collect();
    assert_eq!(ranks, [(0, TOTAL_BLOCKS as u32), (1, TOTAL_BLOCKS as u32)]);

    // Prompts go to either rank, whose events alone tell of them.
    let mut seen = [0; 2];
    for seed in 100.. {
        let prompt = tokens(seed, 100);
        let first = answer(&completed(&client, MODEL, &prompt, 4).await);
        let rank = holder(&mut agent, &workers, &prompt).await;
        // Who has the prompt gets it again.
        assert_eq!(answer(&completed(&client, MODEL, &prompt, 4).await), (first.0, 96));
        seen[rank] += 1;
        assert!(seed < 150, "all prompts went to one rank: {seen:?}");
        if seed >= 108 && seen.iter().all(|prompts| *prompts > 0) {
            break;
        }
    }
    for (rank, prompts) in seen.iter().enumerate() {
        // What the agent asks for itself has no whole block.
        let (name, labels) = kind.hits(rank);
        let hits = agent.says(name, &labels).await;
        assert_eq!(hits, f64::from(prompts * 96), "rank {rank}");
    }
}

/// Decode looks for the KV at the rank that a request's room names, and waits for ever where it is at
/// another.
#[tokio::test]
async fn either_rank_of_an_sglang_that_prefills_hands_its_kv_over() {
    let Some(bed) =
        Bed::find_among_all(Engine::Sglang, "two data-parallel ranks of an SGLang that prefills")
    else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let start =
        |role: Role, ranks| Agent::start_with(&bed, home.path(), (role.name(), role), (&[], ranks));
    let (prefill, decode) = (start(Role::Prefill, 2), start(Role::Decode, 1));
    let ready = |process| Agent::ready(Engine::Sglang, process);
    let (mut prefill, decode) = (ready(prefill).await, ready(decode).await);
    let flags = ["--router-split=always", "--router-mode=round-robin"];
    let (_proxy, client) = proxy(home.path(), &flags).await;
    let workers = prefill.record().await.workers;

    let mut seen = [0; 2];
    for (n, seed) in (1..=6).zip(200..) {
        let prompt = tokens(seed, 100);
        completed(&client, MODEL, &prompt, 4).await;
        assert_eq!(decode.prefills("prefill_worker").await, f64::from(n), "{seen:?}");
        seen[holder(&mut prefill, &workers, &prompt).await] += 1;
    }
    assert_eq!(seen, [3, 3]);
}

/// The one rank that says that it holds a prompt.
async fn holder(agent: &mut Agent, workers: &[WorkerRecord], prompt: &[u32]) -> usize {
    soon("the engine's events", async {
        loop {
            let mut holders = Vec::new();
            for (rank, record) in workers.iter().enumerate() {
                agent.worker = record.worker;
                if agent.holds(prompt).await == prompt.len() / BLOCK_SIZE * BLOCK_SIZE {
                    holders.push(rank);
                }
            }
            assert!(holders.len() < 2, "{holders:?}");
            if let [rank] = holders[..] {
                return rank;
            }
        }
    })
    .await
}
