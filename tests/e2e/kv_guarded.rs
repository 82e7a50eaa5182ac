//! KV tiers that are guarded: encrypted on disk and in a shared directory, and divided among tenants.

use crate::agents::{accepted, answer, completion, proxy};
use crate::kv_operate::status;
use crate::kv_tiers::{BLOCKS, CACHED, PROMPT, Tiered};
use crate::lifecycle::agent;
use crate::suite::tokens;
use stator_tests::http::Client;
use stator_tests::soon;
use std::path::{Path, PathBuf};

/// All bytes of the files below a folder.
fn bytes_below(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => bytes.extend(bytes_below(&path)),
            false => bytes.extend(std::fs::read(&path).unwrap()),
        }
    }
    bytes
}

/// Whether most pages of these bytes with anything in them look random: KV in plain has many equal
/// bytes, at the least its exponents.
fn looks_random(bytes: &[u8]) -> bool {
    let pages =
        bytes.chunks(4096).filter(|page| page.iter().filter(|byte| **byte != 0).count() > 64);
    let random = |page: &&[u8]| {
        let mut counts = [0; 256];
        page.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        *counts.iter().max().unwrap() < page.len() / 32
    };
    let (all, random) = (pages.clone().count(), pages.filter(random).count());
    all > 0 && random * 10 > all * 8
}

fn key(home: &Path, name: &str) -> PathBuf {
    let file = home.join(name);
    std::fs::write(&file, format!("the-secret-of-{name}\n")).unwrap();
    file
}

#[tokio::test]
async fn encrypted_kv_comes_back_with_its_key_and_is_refused_without() {
    let home = tempfile::tempdir().unwrap();
    let shared = home.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let disk = format!("--kv-disk-dir={}", home.path().join("kv").display());
    let object = format!("--kv-object=file://{}", shared.display());
    let flag = |name: &str| format!("--kv-key-file={}", key(home.path(), name).display());
    let (own, other) = (flag("own"), flag("other"));
    let both = [&disk[..], "--kv-disk-gb=0.2", &object, &own];
    let agent_of = Tiered::above(home.path(), &both).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let prompt = tokens(21, PROMPT);
    let (expected, cached) = answer(&accepted(&client, &prompt).await);
    assert_eq!(cached, 0);
    agent_of.holds("disk", BLOCKS).await;
    agent_of.holds("remote", BLOCKS).await;
    agent_of.ends().await;
    assert!(looks_random(&bytes_below(&home.path().join("kv"))));
    assert!(looks_random(&bytes_below(&shared)));

    // From the disk, and where the disk is empty from the shared directory.
    let agent_of = Tiered::above(home.path(), &both).await;
    agent_of.holds("disk", BLOCKS).await;
    assert_eq!(answer(&accepted(&client, &prompt).await), (expected.clone(), CACHED));
    agent_of.ends().await;
    let agent_of = Tiered::above(home.path(), &[&object, &own]).await;
    agent_of.holds("remote", BLOCKS).await;
    assert_eq!(answer(&accepted(&client, &prompt).await), (expected, CACHED));
    agent_of.ends().await;

    let dir = format!("--discovery-dir={}", home.path().join("others").display());
    let own_disk = [&disk[..], "--kv-host-gb=0.05", "--kv-disk-gb=0.2", "--block-size=16"];
    for (flags, words) in [
        (&[&other[..]][..], "is encrypted with another key"),
        (&[], "is encrypted, and there is no key"),
    ] {
        let mut refused = agent(&dir, &[&own_disk[..], flags].concat());
        assert!(!refused.ended().await.success());
        assert!(refused.log().contains(words), "{}", refused.log());
    }
}

/// How many tokens of a prompt under a salt were cached.
pub(crate) async fn cached_of(client: &Client, prompt: &[u32], salt: &str) -> usize {
    let mut body = completion(prompt, 8);
    body["cache_salt"] = salt.into();
    soon("an answer", async {
        loop {
            let reply = client.post("/v1/completions", &body).await;
            if reply.status.is_success() {
                return answer(&reply.json()).1;
            }
        }
    })
    .await
}

#[tokio::test]
async fn one_tenants_flood_leaves_anothers_prompt_in_host_memory() {
    for (percent, is_kept) in [(50, true), (100, false)] {
        let home = tempfile::tempdir().unwrap();
        let share = format!("--kv-tenant-share-percent={percent}");
        let mut agent = Tiered::above(home.path(), &[&share]).await;
        let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
        let seen = status(&mut agent.process).await;
        let slot_bytes = seen["block_bytes"].as_u64().unwrap().next_multiple_of(4096);
        let slots = seen["tiers"][0]["capacity_bytes"].as_u64().unwrap() / slot_bytes;
        let quiet = tokens(31, PROMPT);
        assert_eq!(cached_of(&client, &quiet, "quiet").await, 0);
        for number in 0..slots as u32 / BLOCKS as u32 + 2 {
            cached_of(&client, &tokens(100 + number, PROMPT), "flood").await;
        }
        let cached = cached_of(&client, &quiet, "quiet").await;
        assert_eq!(cached == CACHED, is_kept, "{percent} %: {cached} of {CACHED}, {slots} slots");
        agent.ends().await;
    }
}
