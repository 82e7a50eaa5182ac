use super::tests::{Harness, PAIRED};
use super::*;
use crate::config::KvTrust;
use crate::metrics::PairMetrics;
use crate::prefill::agents::tests::prefill_agents;
use crate::prefill::registered::tests::{listing as listing_of, record};
use crate::prefill::registered::{Listing, RegisteredAgents};
use crate::request_plane::metadata::{PrefillWorker, RequestMetadata};
use futures::FutureExt;
use futures::stream::{self, Empty};
use prometheus_client::registry::Registry;
use serde_json::value::RawValue;
use stator_engine::transfer::{KvForm, Seal, TransferKey};
use stator_protos::name::BlockName;
use stator_protos::worker::transfers_server::{self, TransfersServer};
use stator_protos::worker::worker_server::{Worker, WorkerServer};
use stator_protos::worker::{
    AgentDescription, DescribeRequest, FetchChunk, FetchRequest, GenerateFrame, GenerateInput,
    ModelFilesRequest, ModelFilesResponse, PrefillRequest, PrefillResponse, SnapshotChunk,
    SnapshotRequest,
};
use stator_protos::{WorkerId, WorkerRank};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::{Request as Asked, Response, Status as Refused, Streaming};

/// Longest wait for what must come.
const DEADLINE: Duration = Duration::from_secs(20);

/// The description of its KV by the agent that prefills.
const HANDOVER: &str = "{\"kv\":1}";

fn fleet_key() -> TransferKey {
    TransferKey::of_secret(b"correct-horse-battery")
}

type Pieces = Vec<Result<Piece, Refused>>;

/// A piece of a block.
#[derive(Clone, Debug)]
struct Piece {
    block: u32,
    kv: &'static [u8],
    sealed: Sealed,
}

/// The seal of a piece.
#[derive(Clone, Copy, Debug)]
enum Sealed {
    /// None: the piece is not the last of its block.
    Not,
    /// The fleet's key made the seal.
    Genuinely,
    /// The key of others made the seal.
    Falsely,
}

impl Piece {
    fn chunk(&self, handle: u64) -> FetchChunk {
        let &Self { block, kv, sealed } = self;
        let seal = |key| {
            let form = KvForm { fingerprint: 1, block_bytes: 1 };
            Seal::new(&key, form, handle).of(block, BlockName(block.into()), kv).to_vec()
        };
        let mac = match sealed {
            Sealed::Not => None,
            Sealed::Genuinely => Some(seal(fleet_key())),
            Sealed::Falsely => Some(seal(TransferKey::default())),
        };
        FetchChunk { block, kv: kv.into(), mac }
    }
}

/// An agent that prefills as it is told to, and tells what it is asked for.
struct Scripted {
    /// Nothing where it never answers.
    kept: Option<&'static str>,
    pieces: Pieces,
    /// The name that it gives itself.
    agent_id: &'static str,
    prefills: mpsc::Sender<PrefillRequest>,
    fetches: mpsc::Sender<FetchRequest>,
}

#[tonic::async_trait]
impl Worker for Scripted {
    type DescribeStream = stream::Iter<std::array::IntoIter<Result<AgentDescription, Refused>, 1>>;
    type GenerateStream = Empty<Result<GenerateFrame, Refused>>;
    type SnapshotStream = Empty<Result<SnapshotChunk, Refused>>;

    async fn describe(
        &self,
        _: Asked<DescribeRequest>,
    ) -> Result<Response<Self::DescribeStream>, Refused> {
        let said = record(self.agent_id, "http://[::]:1", HANDOVER);
        let record_json = serde_json::to_string(&said).unwrap();
        let said = AgentDescription { record_json, ..AgentDescription::default() };
        Ok(Response::new(stream::iter([Ok(said)])))
    }

    async fn model_files(
        &self,
        _: Asked<ModelFilesRequest>,
    ) -> Result<Response<ModelFilesResponse>, Refused> {
        Err(Refused::unimplemented("model_files"))
    }

    async fn generate(
        &self,
        _: Asked<Streaming<GenerateInput>>,
    ) -> Result<Response<Self::GenerateStream>, Refused> {
        Err(Refused::unimplemented("generate"))
    }

    async fn snapshot(
        &self,
        _: Asked<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Refused> {
        Err(Refused::unimplemented("snapshot"))
    }

    async fn prefill(
        &self,
        asked: Asked<PrefillRequest>,
    ) -> Result<Response<PrefillResponse>, Refused> {
        self.prefills.try_send(asked.into_inner()).unwrap();
        let Some(kept) = self.kept else { return std::future::pending().await };
        let handover_json = kept.into();
        Ok(Response::new(PrefillResponse { handover_json, cached_tokens: 3, first: None }))
    }
}

#[tonic::async_trait]
impl transfers_server::Transfers for Scripted {
    type FetchStream = stream::Iter<std::vec::IntoIter<Result<FetchChunk, Refused>>>;

    async fn fetch(
        &self,
        asked: Asked<FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Refused> {
        let asked = asked.into_inner();
        self.fetches.try_send(asked).unwrap();
        if self.pieces.is_empty() {
            return Err(Refused::not_found("nothing is kept under this handle"));
        }
        let chunk = |piece: Result<Piece, Refused>| piece.map(|piece| piece.chunk(asked.handle));
        let chunks: Vec<_> = self.pieces.iter().cloned().map(chunk).collect();
        Ok(Response::new(stream::iter(chunks)))
    }
}

/// A driver, and an agent that computes prompts for it.
struct Pair {
    harness: Harness,
    peer: PrefillWorker,
    prefills: mpsc::Receiver<PrefillRequest>,
    fetches: mpsc::Receiver<FetchRequest>,
    registry: Registry,
    /// The agents that discovery lists.
    listing: watch::Sender<Listing>,
    _server: JoinSet<()>,
}

impl Pair {
    async fn start(kept: Option<&'static str>, pieces: Pieces) -> Self {
        Self::start_with("prefill", kept, pieces).await
    }

    /// A pair whose agent for prompts calls itself `agent_id`; `prefill` is listed in its place.
    async fn start_with(
        agent_id: &'static str,
        kept: Option<&'static str>,
        pieces: Pieces,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let ((asked, prefills), (fetched, fetches)) = (mpsc::channel(1), mpsc::channel(4));
        let scripted = Scripted { kept, pieces, agent_id, prefills: asked, fetches: fetched };
        let scripted = Arc::new(scripted);
        let router = tonic::transport::Server::builder()
            .add_service(WorkerServer::from_arc(scripted.clone()))
            .add_service(TransfersServer::from_arc(scripted));
        let mut server = JoinSet::new();
        let incoming = TcpIncoming::from(listener);
        server.spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        let (metrics, mut registry) = (PairMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        let (listing, registered) = RegisteredAgents::listed();
        let pairing = Pairing {
            hands_over: false,
            prefill_agents: Arc::new(prefill_agents(registered)),
            trust: KvTrust { transfer_key: fleet_key(), ..KvTrust::default() },
            timeout: DEADLINE,
            metrics,
        };
        let harness = Harness::start_with(Duration::from_millis(1), pairing);
        let listed = record("prefill", &endpoint, HANDOVER);
        listing.send_replace(listing_of(listed));
        let handover = RawValue::from_string(HANDOVER.into()).unwrap();
        let worker = WorkerRank { worker: WorkerId(9), rank: 0 };
        let peer = PrefillWorker { endpoint, worker, handover };
        Self { harness, peer, prefills, fetches, registry, listing, _server: server }
    }

    /// Sends a request whose prompt the other is to compute.
    async fn submit(&self, id: u64) {
        let metadata =
            RequestMetadata { prefill: Some(self.peer.clone()), ..RequestMetadata::default() };
        self.harness.submit_with(id, (PAIRED, 1, 2), metadata).await;
    }

    /// The first output of a request.
    async fn first(&self, id: u64) -> worker::Output {
        loop {
            let mut outputs = self.harness.frame().await.into_iter();
            if let Some(output) = outputs.find(|output| output.request_id == id) {
                return output;
            }
        }
    }

    #[track_caller]
    fn counted(&self, lines: &[&str]) {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        for line in lines {
            assert!(text.contains(&format!("stator_agent_{line}\n")), "no {line} in\n{text}");
        }
    }
}

fn piece(block: u32, kv: &'static [u8], sealed: Sealed) -> Result<Piece, Refused> {
    Ok(Piece { block, kv, sealed })
}

#[tokio::test]
async fn kv_that_comes_whole_is_taken_in_and_told_with_its_way() {
    let pieces = vec![piece(0, b"a", Sealed::Genuinely), piece(1, b"b", Sealed::Genuinely)];
    let mut pair = Pair::start(Some("{\"blocks\":2}"), pieces).await;
    pair.submit(7).await;
    let first = pair.first(7).await;
    assert!(first.transfer_us > 0 && !first.prefill_failed, "{first:?}");
    let asked = pair.fetches.recv().await.unwrap();
    assert_eq!((asked.worker_id, asked.first_block, asked.blocks), (9, 0, 2));
    let by = "prefills_total{by=\"prefill_worker\"} 1";
    pair.counted(&[by, "kv_blocks_fetched_total 2", "kv_blocks_missed_total 0"]);
}

#[tokio::test]
async fn whatever_is_wrong_with_it_is_a_miss_that_is_counted() {
    let whole = || piece(0, b"a", Sealed::Genuinely);
    let cut = || Err(Refused::unavailable("it has ended"));
    let kept = Some("{\"blocks\":2}");
    let cases: [(Option<&'static str>, Pieces, u32, bool); 9] = [
        // It has no room, or is gone once the prompt is computed, or between two blocks.
        (Some(""), vec![], 0, false),
        (kept, vec![], 0, false),
        (kept, vec![whole()], 1, false),
        (kept, vec![whole(), cut()], 1, false),
        // Another block, a longer one, half of one, one without an end, one of a stranger.
        (kept, vec![whole(), piece(2, b"b", Sealed::Genuinely)], 1, true),
        (kept, vec![piece(0, b"ab", Sealed::Genuinely)], 0, true),
        (kept, vec![piece(0, b"", Sealed::Genuinely), whole()], 0, true),
        (kept, vec![whole(), piece(1, b"b", Sealed::Not)], 1, false),
        (kept, vec![whole(), piece(1, b"b", Sealed::Falsely)], 1, true),
    ];
    for (kept, pieces, fetched, is_false) in cases {
        let shown = format!("{kept:?} {pieces:?}");
        let pair = Pair::start(kept, pieces).await;
        pair.submit(7).await;
        let first = pair.first(7).await;
        assert!(first.prefill_failed && first.token_ids == [1], "{shown}: {first:?}");
        let forged = u64::from(is_false);
        pair.counted(&[
            "prefills_total{by=\"itself_prefill_failed\"} 1",
            &format!("kv_blocks_fetched_total {fetched}"),
            &format!("kv_blocks_missed_total {}", 2 - fetched),
            &format!("kv_blocks_forged_total {forged}"),
        ]);
        // Whoever sent what is not genuine is not asked again; others are.
        pair.submit(8).await;
        assert_eq!(pair.first(8).await.token_ids, [1]);
        let again = match is_false {
            true => "prefills_total{by=\"itself_shunned\"} 1",
            false => "prefills_total{by=\"itself_prefill_failed\"} 2",
        };
        pair.counted(&[again]);
    }
}

#[tokio::test]
async fn an_agent_that_nobody_registered_is_not_connected_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut pair = Pair::start(None, vec![]).await;
    // As where discovery lists nobody and never will.
    pair.listing = watch::channel(Listing::new()).0;
    pair.peer.endpoint = format!("http://{}", listener.local_addr().unwrap());
    pair.submit(7).await;
    assert_eq!(pair.first(7).await.token_ids, [1]);
    pair.counted(&["prefills_total{by=\"itself_unregistered\"} 1"]);
    assert!(listener.accept().now_or_never().is_none(), "nobody has connected");
}

#[tokio::test]
async fn an_agent_whose_lease_has_ended_is_asked_for_prompts_if_it_is_the_one_that_was_listed() {
    let cases = [
        ("prefill", "prefills_total{by=\"prefill_worker\"} 1"),
        ("another", "prefills_total{by=\"itself_unregistered\"} 1"),
    ];
    for (agent_id, counted) in cases {
        let pieces = [(0, b"a"), (1, b"b")].map(|(n, kv)| piece(n, kv, Sealed::Genuinely));
        let pair = Pair::start_with(agent_id, Some("{\"blocks\":2}"), pieces.into()).await;
        pair.listing.send_modify(|listing| {
            listing.values_mut().for_each(|agent| agent.lapsed_at = Some(Instant::now()));
        });
        pair.submit(7).await;
        pair.first(7).await;
        pair.counted(&[counted]);
    }
}

#[tokio::test]
async fn without_a_secret_no_agent_of_another_machine_is_asked() {
    let mut pair = Pair::start(None, vec![]).await;
    pair.peer.endpoint = "http://10.0.0.1:7000".into();
    pair.submit(7).await;
    assert_eq!(pair.first(7).await.token_ids, [1]);
    pair.counted(&["prefills_total{by=\"itself_untrusted\"} 1"]);
}

#[tokio::test]
async fn a_client_that_hangs_up_has_the_prompt_given_up() {
    let mut pair = Pair::start(None, vec![]).await;
    pair.submit(7).await;
    let asked = pair.prefills.recv().await.unwrap();
    pair.harness.commands.send(Command::Cancel(vec![RequestKey(7)])).await.unwrap();
    assert_eq!(pair.first(7).await.finish.unwrap().reason(), worker::FinishReason::Cancelled);
    pair.harness.in_flight.none().await;
    let given_up = tokio::time::timeout(DEADLINE, pair.fetches.recv()).await;
    let given_up = given_up.expect("it is given up").unwrap();
    assert_eq!((given_up.worker_id, given_up.blocks), (9, 0));
    assert_eq!(asked.handover_json, format!("{{\"handle\":{}}}", given_up.handle));
}

#[tokio::test]
async fn kv_of_another_form_is_not_asked_for() {
    let mut pair = Pair::start(None, vec![]).await;
    pair.peer.handover = RawValue::from_string("{\"kv\":2}".into()).unwrap();
    pair.submit(7).await;
    assert_eq!(pair.first(7).await.token_ids, [1]);
    pair.counted(&["prefills_total{by=\"itself_unlike\"} 1", "kv_blocks_missed_total 0"]);
}
