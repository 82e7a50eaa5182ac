//! Agents with the built-in engine that read KV from each other's host memory and disks: what one has computed
//! the other need not, and whatever becomes of the one, the other's answer is right.

use crate::agents::{accepted, answer, operate, proxy, record};
use crate::lifecycle::{agent, gauge, gauge_becomes};
use crate::suite::tokens;
use futures::StreamExt;
use stator_protos::WorkerRank;
use stator_protos::discovery::AgentRecord;
use stator_protos::kv_event::Medium;
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{
    GenerateInput, KvHolder, PrefillPeer, Sampling, SnapshotRequest, Submit,
};
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// Tokens of the prompts: 18 whole blocks of 16, and some more.
pub(crate) const PROMPT: usize = 300;
/// Whole blocks of the prompt, and the tokens in them.
pub(crate) const BLOCKS: u32 = 18;
const CACHED: u32 = 288;
/// Bytes from a holder after which a connection fails: some blocks of 32 KiB, and not all.
const MIDDLE: usize = 100_000;
/// Prompts within which NIXL has found the way.
const NIXL_ROUNDS_MAX: u32 = 60;

/// An agent with host memory for KV.
pub(crate) struct Peer {
    process: Process,
    client: WorkerClient<Channel>,
    metrics: Client,
    pub(crate) record: AgentRecord,
}

impl Peer {
    pub(crate) async fn begin(home: &Path, id: &str, further: &[&str]) -> Self {
        let dir = format!("--discovery-dir={}", home.join("agents").display());
        let id = format!("--agent-id={id}");
        let mut flags = vec![&*id, "--model-name=tiny", "--workers=1", "--block-size=16"];
        flags.extend(["--total-blocks=64", "--kv-host-gb=0.05"]);
        flags.extend(further);
        let mut process = agent(&dir, &flags);
        let side = process.event("side server listening").await;
        let endpoint = process.event("serving").await["endpoint"].as_str().unwrap().to_owned();
        let mut client = WorkerClient::connect(endpoint).await.unwrap();
        let record = record(&mut client).await;
        let metrics = Client::new(side["address"].as_str().unwrap().parse().unwrap());
        Self { process, client, metrics, record }
    }

    /// One that has computed a prompt and keeps it in host memory; returns its answer, too.
    pub(crate) async fn holding(
        home: &Path,
        id: &str,
        further: &[&str],
        prompt: &[u32],
    ) -> (Self, Vec<u32>) {
        let mut peer = Self::begin(home, id, further).await;
        let (answer, cached) = peer.ask(prompt, &[]).await;
        assert_eq!(cached, 0);
        // The answer's first tokens fill one block more.
        peer.holds("host", f64::from(BLOCKS + 1)).await;
        (peer, answer)
    }

    /// Address at which the agent lends its KV.
    pub(crate) fn address(&self) -> &str {
        self.record.profile.kv_transfer.as_deref().expect("it lends")
    }

    /// The greedy answer to a prompt that others are said to hold, and how much of the prompt was
    /// cached.
    pub(crate) async fn ask(&mut self, prompt: &[u32], holders: &[&str]) -> (Vec<u32>, u32) {
        let worker = self.record.workers[0].worker;
        let holders: Vec<_> = holders.iter().map(|address| (*address, BLOCKS)).collect();
        ask_near(&mut self.client, worker, (prompt, 8), &holders).await
    }

    /// As [`Peer::ask`] of a prompt that another worker is to compute.
    async fn ask_through(&mut self, prefill: &Self, prompt: &[u32], holder: &str) -> Vec<u32> {
        let AgentRecord { endpoint, workers, profile, .. } = &prefill.record;
        let peer = PrefillPeer {
            endpoint: endpoint.clone(),
            worker_id: workers[0].worker.worker.0,
            rank: 0,
            handover_json: profile.handover.clone().expect("it hands over"),
        };
        let worker = self.record.workers[0].worker;
        let submit = submission(worker, (prompt, 8), &[(holder, BLOCKS)]);
        let submit = Submit { prefill: Some(peer), ..submit };
        answered(&mut self.client, submit).await.0
    }

    /// Waits until a medium holds so many blocks.
    async fn holds(&self, medium: &str, blocks: f64) {
        let name = format!("stator_kv_blocks{{medium=\"{medium}\"}}");
        gauge_becomes(&self.metrics, &name, blocks).await;
    }

    /// Blocks that it wanted of other agents, by what became of them.
    async fn read(&self, outcome: &str) -> f64 {
        let labels = format!("tier=\"peer\",way=\"read\",outcome=\"{outcome}\"");
        let name = format!("stator_kv_tier_operations_total{{{labels}}}");
        gauge(&self.metrics, &name).await.unwrap_or(0.0)
    }

    /// The media on which it says that it holds blocks.
    async fn media(&mut self) -> Vec<Medium> {
        let worker = self.record.workers[0].worker;
        let request = SnapshotRequest { worker_id: worker.worker.0, rank: worker.rank.into() };
        let mut chunks = self.client.snapshot(request).await.unwrap().into_inner();
        let mut media = Vec::new();
        while let Some(chunk) = soon("a chunk", chunks.message()).await.unwrap() {
            let medium = Medium::from(chunk.medium());
            media.extend(chunk.sequence_hashes.iter().map(|_| medium));
        }
        media
    }
}

/// A worker's greedy answer of so many tokens to a prompt of which others are said to hold so many
/// blocks, and how much of the prompt was cached.
pub(crate) async fn ask_near(
    client: &mut WorkerClient<Channel>,
    worker: WorkerRank,
    (prompt, max_tokens): (&[u32], u32),
    holders: &[(&str, u32)],
) -> (Vec<u32>, u32) {
    answered(client, submission(worker, (prompt, max_tokens), holders)).await
}

fn submission(
    worker: WorkerRank,
    (prompt, max_tokens): (&[u32], u32),
    holders: &[(&str, u32)],
) -> Submit {
    let holder =
        |(address, blocks): &(&str, u32)| KvHolder { address: (*address).into(), blocks: *blocks };
    let sampling = Sampling { max_tokens, ignore_eos: true, ..Sampling::default() };
    Submit {
        worker_id: worker.worker.0,
        token_ids: prompt.to_vec(),
        sampling: Some(sampling),
        kv_holders: holders.iter().map(holder).collect(),
        ..Submit::default()
    }
}

/// The answer to a submission, and how much of its prompt was cached.
async fn answered(client: &mut WorkerClient<Channel>, submit: Submit) -> (Vec<u32>, u32) {
    let input = GenerateInput { input: Some(Input::Submit(submit)) };
    let inputs = futures::stream::iter([input]).chain(futures::stream::pending());
    let mut frames = client.generate(inputs).await.unwrap().into_inner();
    let mut answer = Vec::new();
    loop {
        let frame = soon("an answer", frames.message()).await.unwrap().unwrap();
        for output in frame.outputs {
            answer.extend(output.token_ids);
            if let Some(finish) = output.finish {
                let usage = finish.usage.unwrap_or_else(|| panic!("{finish:?}"));
                return (answer, usage.cached_tokens);
            }
        }
    }
}

/// A network between two agents that fails once a number of bytes have come from the holder.
struct Relay {
    address: String,
    /// Rung when the connection stalls.
    stalled: Arc<Notify>,
    _tasks: JoinSet<()>,
}

/// Fate of a connection.
#[derive(Clone, Copy)]
enum Fate {
    /// The connection stands still after so many bytes.
    Stall(usize),
    /// A bit of the byte at this place is another.
    Flip(usize),
}

impl Relay {
    async fn to(holder: &str, fate: Fate) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let holder: SocketAddr = holder.parse().unwrap();
        let stalled = Arc::new(Notify::new());
        let (told, mut tasks) = (stalled.clone(), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((reader, _)) = listener.accept().await {
                let told = told.clone();
                connections.spawn(async move {
                    let Ok(holder) = TcpStream::connect(holder).await else { return };
                    let (mut questions, mut to_reader) = reader.into_split();
                    let (mut answers, mut to_holder) = holder.into_split();
                    let forth = copy(&mut questions, &mut to_holder);
                    let back = async {
                        let (mut sent, mut buffer) = (0, vec![0; 4096]);
                        loop {
                            let read = answers.read(&mut buffer).await.unwrap_or(0);
                            if read == 0 {
                                return;
                            }
                            match fate {
                                Fate::Flip(at) if (sent..sent + read).contains(&at) => {
                                    buffer[at - sent] ^= 1;
                                }
                                Fate::Stall(at) if sent + read > at => {
                                    told.notify_one();
                                    continue;
                                }
                                _ => {}
                            }
                            sent += read;
                            if to_reader.write_all(&buffer[..read]).await.is_err() {
                                return;
                            }
                        }
                    };
                    tokio::select! { () = back => {}, _ = forth => {} }
                });
            }
        });
        Self { address, stalled, _tasks: tasks }
    }
}

/// A file with a secret.
fn secret(home: &Path, name: &str) -> String {
    let file = home.join(format!("{name}.secret"));
    std::fs::write(&file, format!("the-secret-of-{name}-agents\n")).unwrap();
    format!("--fleet-secret-file={}", file.display())
}

#[tokio::test]
async fn a_prompt_that_another_agent_has_computed_is_read_from_its_host_memory() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (secret, prompt) = (secret(home, "our"), tokens(1, PROMPT));
    let (first, expected) = Peer::holding(home, "first", &[&secret], &prompt).await;
    let mut second = Peer::begin(home, "second", &[&secret]).await;
    assert_eq!(second.ask(&prompt, &[first.address()]).await, (expected.clone(), CACHED));
    assert_eq!(second.read("done").await, f64::from(BLOCKS));
    let lent = gauge(&first.metrics, "stator_kv_lent_blocks_total").await;
    assert_eq!(lent, Some(f64::from(BLOCKS)));
    // Now it holds them itself, says so, and lends them too.
    second.holds("host", f64::from(BLOCKS + 1)).await;
    assert_eq!(second.media().await, [Medium::Device; BLOCKS as usize + 1]);
    let mut third = Peer::begin(home, "third", &[&secret]).await;
    assert_eq!(third.ask(&prompt, &[second.address()]).await, (expected, CACHED));
}

#[tokio::test]
async fn a_prompt_that_lies_on_the_disk_of_another_agent_alone_is_read_from_there() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompt = tokens(9, PROMPT);
    let disk = format!("--kv-disk-dir={}", home.join("kv").display());
    let flags = [&*disk, "--kv-disk-gb=0.2"];
    let (mut holder, expected) = Peer::holding(home, "holder", &flags, &prompt).await;
    holder.holds("disk", f64::from(BLOCKS + 1)).await;
    let (done, log) = operate(&mut holder.process, &["kv-clear", "--tier=host"]).await;
    assert!(done, "{log}");
    holder.holds("host", 0.0).await;
    let mut reader = Peer::begin(home, "reader", &[]).await;
    let answer = reader.ask(&prompt, &[holder.address()]).await;
    assert_eq!(answer, (expected, CACHED), "{}", holder.process.log());
    assert_eq!(reader.read("done").await, f64::from(BLOCKS));
    let read = "stator_kv_tier_operations_total{tier=\"disk\",way=\"read\",outcome=\"done\"}";
    assert_eq!(gauge(&holder.metrics, read).await, Some(f64::from(BLOCKS)));
}

#[tokio::test]
async fn a_prefill_worker_reads_the_prompt_that_another_agent_has_computed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompt = tokens(8, PROMPT);
    let (holder, expected) = Peer::holding(home, "holder", &[], &prompt).await;
    let prefill = Peer::begin(home, "prefill", &["--role=prefill"]).await;
    let mut decode = Peer::begin(home, "decode", &["--role=decode"]).await;
    let answer = decode.ask_through(&prefill, &prompt, holder.address()).await;
    assert_eq!(answer, expected, "{}", decode.process.log());
    assert_eq!(prefill.read("done").await, f64::from(BLOCKS), "{}", prefill.process.log());
    assert_eq!(decode.read("done").await, 0.0);
    let by = "stator_agent_prefills_total{by=\"prefill_worker\"}";
    assert_eq!(gauge(&decode.metrics, by).await, Some(1.0));
}

#[tokio::test]
async fn host_memory_of_another_agent_is_read_by_nixl() {
    let Some(library) = std::env::var_os("STATOR_TEST_NIXL") else {
        // Past the test harness, which hides what passing tests print.
        let why = "not run: host memory by NIXL: STATOR_TEST_NIXL names no library";
        let _ = writeln!(std::io::stderr().lock(), "{why}");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let nixl = format!("--kv-nixl={}", library.display());
    let secret = secret(home, "our");
    let flags = [&*secret, &*nixl];
    let mut holder = Peer::begin(home, "holder", &flags).await;
    let mut reader = Peer::begin(home, "reader", &flags).await;
    let bytes = async |peer: &Peer| gauge(&peer.metrics, "stator_kv_direct_bytes_total").await;
    // The first prompts come over TCP, while the reader gets to know the holder's memory.
    for round in 0..NIXL_ROUNDS_MAX {
        let prompt = tokens(100 + round, PROMPT);
        let (expected, _) = holder.ask(&prompt, &[]).await;
        let blocks = f64::from((BLOCKS + 1) * (round + 1));
        holder.holds("host", blocks).await;
        // How much of it is read is up to what reading and computing have cost so far.
        let (answer, _) = reader.ask(&prompt, &[holder.address()]).await;
        assert_eq!(answer, expected);
        if bytes(&reader).await > Some(0.0) {
            return;
        }
    }
    panic!("nothing was read by NIXL: {}", reader.process.log());
}

#[tokio::test]
async fn a_proxy_names_who_holds_a_prompt_to_the_worker_that_it_chooses() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (first, second) =
        (Peer::begin(home, "first", &[]).await, Peer::begin(home, "second", &[]).await);
    let (_proxy, client) = proxy(&home.join("agents"), &["--router-pins"]).await;
    let prompt = tokens(6, PROMPT);
    let ask = async |peer: &Peer| {
        let worker = peer.record.workers[0].worker.worker.to_string();
        let client = client.clone().with_header("x-stator-worker-id", &worker);
        answer(&accepted(&client, &prompt).await)
    };
    let (expected, cached) = ask(&first).await;
    assert_eq!(cached, 0);
    let blocks = f64::from(BLOCKS + 1);
    first.holds("host", blocks).await;
    gauge_becomes(&client, "stator_proxy_kv_index_blocks", blocks).await;
    assert_eq!(ask(&second).await, (expected, CACHED as usize));
    assert_eq!(second.read("done").await, f64::from(BLOCKS));
    gauge_becomes(&client, "stator_proxy_kv_index_blocks", 2.0 * blocks).await;
}

#[tokio::test]
async fn a_holder_that_does_not_hold_or_is_not_there_costs_no_answer() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompt = tokens(2, PROMPT);
    let (holder, expected) = Peer::holding(home, "holder", &[], &prompt).await;
    let other = Peer::begin(home, "other", &[]).await;
    // Nobody listens there, and nobody else gets the port.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = nobody.local_addr().unwrap().to_string();

    let mut reader = Peer::begin(home, "reader", &[]).await;
    assert_eq!(reader.ask(&prompt, &[other.address()]).await, (expected.clone(), 0));
    assert!(reader.read("missing").await >= 1.0);
    // What others are said to hold is not what this one holds.
    assert_eq!(reader.media().await, [Medium::Device; BLOCKS as usize + 1]);
    let mut reader = Peer::begin(home, "reader", &[]).await;
    assert_eq!(reader.ask(&prompt, &[&gone]).await, (expected.clone(), 0));
    assert_eq!(reader.read("failed").await, 1.0);
    // Nonsense is no reason to refuse a request, nor is a holder that is not the best.
    let mut reader = Peer::begin(home, "reader", &[]).await;
    let holders = [holder.address(), "", "no address", &gone, &gone];
    assert_eq!(reader.ask(&prompt, &holders).await, (expected, CACHED));
}

#[tokio::test]
async fn peer_sigstop_is_a_miss() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompt = tokens(3, PROMPT);
    let (holder, expected) = Peer::holding(home, "holder", &[], &prompt).await;
    let mut reader = Peer::begin(home, "reader", &[]).await;
    signal(holder.process.id(), "STOP");
    assert_eq!(reader.ask(&prompt, &[holder.address()]).await, (expected, 0));
    signal(holder.process.id(), "CONT");
}

#[tokio::test]
async fn a_holder_that_dies_in_the_middle_costs_no_answer() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompt = tokens(3, PROMPT);
    let (mut holder, expected) = Peer::holding(home, "holder", &[], &prompt).await;

    let relay = Relay::to(holder.address(), Fate::Stall(MIDDLE)).await;
    let mut reader = Peer::begin(home, "reader", &[]).await;
    let dies = async {
        soon("half of the prompt", relay.stalled.notified()).await;
        holder.process.kill().await;
    };
    let holders = [&*relay.address];
    let ((answer, cached), ()) = tokio::join!(reader.ask(&prompt, &holders), dies);
    assert_eq!(answer, expected);
    assert!(cached < CACHED, "{cached}");
    assert!(reader.read("failed").await >= 1.0);
    // No part of a block is left behind, and the answer that follows is right, too.
    assert_eq!(reader.ask(&prompt, &[]).await, (expected, CACHED));
}

#[tokio::test]
async fn bytes_that_change_on_the_way_are_not_used() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompt = tokens(4, PROMPT);
    for flag in [None, Some(secret(home, "our"))] {
        let flags: Vec<_> = flag.iter().map(String::as_str).collect();
        let (holder, expected) = Peer::holding(home, "holder", &flags, &prompt).await;
        let relay = Relay::to(holder.address(), Fate::Flip(MIDDLE)).await;
        let mut reader = Peer::begin(home, "reader", &flags).await;
        let (answer, cached) = reader.ask(&prompt, &[&relay.address]).await;
        assert_eq!(answer, expected);
        assert!(cached < CACHED, "{cached}");
        assert!(reader.read("corrupt").await >= 1.0, "{}", reader.process.log());
    }
}

#[tokio::test]
async fn who_does_not_know_the_secret_neither_reads_nor_is_read_from() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let prompt = tokens(5, PROMPT);
    let (ours, foreign) = (secret(home, "our"), secret(home, "foreign"));
    let (holder, expected) = Peer::holding(home, "holder", &[&ours], &prompt).await;
    for flags in [&[&*foreign][..], &[]] {
        let mut reader = Peer::begin(home, "reader", flags).await;
        assert_eq!(reader.ask(&prompt, &[holder.address()]).await, (expected.clone(), 0));
        assert_eq!(reader.read("done").await, 0.0);
    }
    assert_eq!(gauge(&holder.metrics, "stator_kv_lent_blocks_total").await, Some(0.0));
}

#[tokio::test]
async fn an_agent_lends_only_where_it_may() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let quiet = Peer::begin(home, "quiet", &["--kv-transfer-listen=off"]).await;
    assert_eq!(quiet.record.profile.kv_transfer, None);
    let dir = format!("--discovery-dir={}", home.display());
    let cases = [
        ("--kv-transfer-listen=0.0.0.0:0", "needs fleet-secret-file"),
        ("--kv-transfer-listen=here", "neither `address:port` nor `off`"),
        ("--kv-host-gb=0", "\"127.0.0.1:0\" needs kv-host-gb above 0"),
    ];
    for (flag, words) in cases {
        let listen = "--kv-transfer-listen=127.0.0.1:0";
        let flags = match flag.starts_with("--kv-host") {
            true => vec![flag, listen],
            false => vec![flag, "--kv-host-gb=0.05"],
        };
        let mut refused = agent(&dir, &flags);
        assert!(!refused.ended().await.success());
        assert!(refused.log().contains(words), "{}", refused.log());
    }
}
