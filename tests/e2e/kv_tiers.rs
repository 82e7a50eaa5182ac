//! KV tiers of the built-in engine: what its own memory has no room for comes back from host memory,
//! and from a disk after a restart, and no answer changes.

use crate::agents::{accepted, answer, operate, proxy, record};
use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::suite::tokens;
use crate::support::up;
use stator_events::subscribe::replay;
use stator_protos::discovery::AgentRecord;
use stator_protos::kv_event::{KvEvent, Medium, decode};
use stator_protos::topic::{Topic, TopicKind};
use stator_protos::worker::SnapshotRequest;
use stator_protos::worker::worker_client::WorkerClient;
use stator_tests::http::Client;
use stator_tests::process::{Process, binary};
use std::collections::BTreeMap;
use std::path::Path;
use tokio::process::Command;
use tonic::transport::Channel;

/// Tokens of the prompts: 18 whole blocks of 16, and some more.
pub(crate) const PROMPT: usize = 300;
/// Of these, the ones that are cached at most.
pub(crate) const CACHED: usize = 288;
/// Blocks of a prompt and eight tokens of its answer, the last of which is never computed.
pub(crate) const BLOCKS: usize = 19;

/// An agent whose engine has memory for one prompt, and tiers.
pub(crate) struct Tiered {
    pub(crate) process: Process,
    client: WorkerClient<Channel>,
    pub(crate) metrics: Client,
    record: AgentRecord,
}

impl Tiered {
    /// An agent with a disk tier.
    pub(crate) async fn begin(home: &Path) -> Self {
        let disk = format!("--kv-disk-dir={}", home.join("kv").display());
        Self::above(home, &[&disk, "--kv-disk-gb=0.2"]).await
    }

    /// An agent whose host memory has the tiers of these flags below it.
    pub(crate) async fn above(home: &Path, tiers: &[&str]) -> Self {
        let dir = format!("--discovery-dir={}", home.join("agents").display());
        let mut flags = vec!["--agent-id=tiered", "--model-name=tiny", "--workers=1"];
        flags.extend(["--block-size=16", "--total-blocks=32", "--kv-host-gb=0.05"]);
        flags.extend(tiers);
        Self::serves(agent(&dir, &flags)).await
    }

    /// Starts an agent as [`Tiered::above`] does, with this environment and behind this line of a shell.
    pub(crate) async fn within(
        home: &Path,
        tiers: &[&str],
        environment: &[(&str, &str)],
        shell: &str,
    ) -> Self {
        let dir = format!("--discovery-dir={}", home.join("agents").display());
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{shell} exec \"$0\" \"$@\"")).arg(binary());
        command.args(["agent", "--listen=127.0.0.1:0", "--events-listen=tcp://127.0.0.1:0"]);
        command.args(["--replay-listen=tcp://127.0.0.1:0", "--metrics-port=0", &dir]);
        command.args(["--agent-id=tiered", "--model-name=tiny", "--workers=1"]);
        command.args(["--block-size=16", "--total-blocks=32", "--kv-host-gb=0.05"]);
        command.args(tiers).envs(environment.iter().copied());
        Self::serves(Process::run(command)).await
    }

    /// An agent, once it serves.
    async fn serves(mut process: Process) -> Self {
        let side = process.event("side server listening").await;
        let endpoint = process.event("serving").await["endpoint"].as_str().unwrap().to_owned();
        let mut client = WorkerClient::connect(endpoint).await.unwrap();
        let record = record(&mut client).await;
        let metrics = Client::new(side["address"].as_str().unwrap().parse().unwrap());
        Self { process, client, metrics, record }
    }

    /// Blocks that requests found in a place.
    pub(crate) async fn hits(&self, place: &str) -> f64 {
        let name = format!("stator_kv_hit_blocks_total{{from=\"{place}\"}}");
        gauge(&self.metrics, &name).await.unwrap_or(0.0)
    }

    /// Waits until a medium holds so many blocks.
    pub(crate) async fn holds(&self, medium: &str, blocks: usize) {
        let name = format!("stator_kv_blocks{{medium=\"{medium}\"}}");
        gauge_becomes(&self.metrics, &name, blocks as f64).await;
    }

    pub(crate) async fn ends(mut self) {
        self.process.terminate();
        assert!(self.process.ended().await.success(), "{}", self.process.log());
    }

    /// The blocks of a snapshot and where each is, which events since the start tell as well.
    async fn published(&mut self) -> BTreeMap<u64, Medium> {
        let first = &self.record.workers[0];
        let (worker, generation) = (first.worker, first.generation);
        let request = SnapshotRequest { worker_id: worker.worker.0, rank: worker.rank.into() };
        let mut chunks = self.client.snapshot(request).await.unwrap().into_inner();
        let (mut held, mut next) = (BTreeMap::new(), 0);
        while let Some(chunk) = chunks.message().await.unwrap() {
            let medium = Medium::from(chunk.medium());
            held.extend(chunk.sequence_hashes.iter().map(|hash| (*hash, medium)));
            next = chunk.next_sequence;
        }
        let topic = Topic { kind: TopicKind::KvEvents, worker, generation }.to_string();
        let batches = replay(&self.record.replay_endpoint, Some(&topic), 0).await.unwrap();
        let mut told = BTreeMap::new();
        for (_, payload) in batches.into_iter().filter(|(number, _)| *number < next) {
            decode(&payload)
                .unwrap()
                .batch
                .events
                .into_iter()
                .for_each(|event| hear(&mut told, event));
        }
        assert_eq!(told, held, "events do not tell what is held");
        held
    }
}

/// Follows an event as the index does: a block that moves is told to be gone from its old medium.
fn hear(told: &mut BTreeMap<u64, Medium>, event: KvEvent) {
    match event {
        KvEvent::Stored(stored) => {
            told.extend(stored.hashes.into_iter().map(|hash| (hash, stored.medium)));
        }
        KvEvent::Removed(removed) => {
            for hash in removed.hashes {
                if told.get(&hash) == Some(&removed.medium) {
                    told.remove(&hash);
                }
            }
        }
        KvEvent::Cleared => told.clear(),
    }
}

/// Flips a bit in most pages of a disk tier, behind the tables at the start of its files.
pub(crate) fn damage(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            damage(&entry);
        } else if entry.file_name().unwrap().to_string_lossy().starts_with("segment") {
            let mut bytes = std::fs::read(&entry).unwrap();
            bytes.chunks_mut(4096).skip(64).for_each(|page| page[2000] ^= 1);
            std::fs::write(&entry, bytes).unwrap();
        }
    }
}

#[tokio::test]
async fn an_evicted_prompt_comes_back_from_host_memory_and_after_a_restart_from_the_disk() {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Tiered::begin(home.path()).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let (first, second) = (tokens(1, PROMPT), tokens(2, PROMPT));
    let ask = async |prompt: &[u32]| answer(&accepted(&client, prompt).await);

    let (expected, cached) = ask(&first).await;
    assert_eq!(cached, 0);
    let (other, cached) = ask(&second).await;
    assert_eq!(cached, 0);
    // The second has taken memory from the first.
    assert_eq!(ask(&first).await, (expected.clone(), CACHED));
    assert!(agent.hits("host").await > 0.0);
    agent.holds("host", 2 * BLOCKS).await;
    agent.holds("disk", 2 * BLOCKS).await;
    let held = agent.published().await;
    assert_eq!(held.len(), 2 * BLOCKS);
    let media: Vec<_> = held.values().collect();
    assert!(media.contains(&&Medium::Device) && media.contains(&&Medium::Host), "{held:?}");
    agent.ends().await;

    let mut agent = Tiered::begin(home.path()).await;
    agent.holds("disk", 2 * BLOCKS).await;
    assert_eq!(agent.published().await.into_values().collect::<Vec<_>>(), [Medium::Disk; 38]);
    assert_eq!(ask(&first).await, (expected.clone(), CACHED));
    assert_eq!(ask(&second).await, (other, CACHED));
    assert!(agent.hits("below").await >= CACHED as f64 / 16.0);
    agent.ends().await;

    damage(&home.path().join("kv"));
    let agent = Tiered::begin(home.path()).await;
    agent.holds("disk", 2 * BLOCKS).await;
    let (tokens, cached) = ask(&first).await;
    assert_eq!(tokens, expected);
    assert!(cached < CACHED, "{cached}");
    agent.ends().await;
}

#[tokio::test]
async fn a_prompt_comes_back_from_a_shared_directory_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let shared = home.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let object = format!("--kv-object=file://{}", shared.display());
    let agent = Tiered::above(home.path(), &[&object]).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let prompt = tokens(5, PROMPT);
    let (expected, cached) = answer(&accepted(&client, &prompt).await);
    assert_eq!(cached, 0);
    agent.holds("remote", BLOCKS).await;
    agent.ends().await;

    let agent = Tiered::above(home.path(), &[&object]).await;
    agent.holds("remote", BLOCKS).await;
    assert_eq!(answer(&accepted(&client, &prompt).await), (expected, CACHED));
    agent.ends().await;
}

/// Waits until the disk tier of an agent holds so many blocks.
async fn on_disk(process: &mut Process, blocks: usize) {
    let side = process.event("side server listening").await;
    let metrics = Client::new(side["address"].as_str().unwrap().parse().unwrap());
    gauge_becomes(&metrics, "stator_kv_blocks{medium=\"disk\"}", blocks as f64).await;
}

#[tokio::test]
async fn stator_up_keeps_kv_on_a_disk_from_one_run_to_the_next() {
    let home = tempfile::tempdir().unwrap();
    let disk = format!("--kv-disk-dir={}", home.path().join("kv").display());
    let mut flags = vec!["--workers=1", "--block-size=16", "--total-blocks=32", &disk];
    flags.extend(["--kv-host-gb=0.05", "--kv-disk-gb=0.2", "--model-name=tiny"]);
    let prompt = tokens(3, PROMPT);

    let mut first = up(&flags).await;
    let (expected, cached) = answer(&accepted(&first.client, &prompt).await);
    assert_eq!(cached, 0);
    on_disk(&mut first.process, BLOCKS).await;
    first.process.terminate();
    assert!(first.process.ended().await.success());

    let mut again = up(&flags).await;
    on_disk(&mut again.process, BLOCKS).await;
    assert_eq!(answer(&accepted(&again.client, &prompt).await), (expected, CACHED));
}

#[tokio::test]
async fn a_reset_forgets_the_tiers_too() {
    let home = tempfile::tempdir().unwrap();
    let mut agent = Tiered::begin(home.path()).await;
    let (_proxy, client) = proxy(&home.path().join("agents"), &[]).await;
    let prompt = tokens(4, PROMPT);
    let (expected, _) = answer(&accepted(&client, &prompt).await);
    agent.holds("disk", BLOCKS).await;
    let (done, log) = operate(&mut agent.process, &["reset-cache"]).await;
    assert!(done, "{log}");
    agent.holds("disk", 0).await;
    assert_eq!(answer(&accepted(&client, &prompt).await), (expected, 0));
}
