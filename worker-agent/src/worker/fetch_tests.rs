use super::fake_engine::PAIRED;
use super::tests::{Harness, room};
use super::*;
use crate::config::KvTrust;
use crate::kv::offer::{HandoverTicket, KeepOrder, KvOffer};
use crate::kv::transfer_room::TransferRoom;
use crate::metrics::PairMetrics;
use crate::prefill::agents::tests::prefill_agents;
use crate::prefill::registered::tests::{listing as listing_of, record};
use crate::prefill::registered::{Listing, RegisteredAgents};
use crate::request_plane::metadata::{PrefillWorker, RequestMetadata};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, Empty, Stream};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::value::RawValue;
use stator_kv::SlotId;
use stator_kv::arena::Arena;
use stator_kv::transfer::{
    FleetKey, Lender, LendingStore, LendingStores, LentBlock, LentBlocks, LoanWish, ReaderPurpose,
    TransferServer,
};
use stator_protos::name::BlockName;
use stator_protos::worker::worker_server::{Worker, WorkerServer};
use stator_protos::worker::{
    AgentDescription, DescribeRequest, GenerateFrame, GenerateInput, ModelFilesRequest,
    ModelFilesResponse, PrefillRequest, PrefillResponse, SnapshotChunk, SnapshotRequest,
};
use stator_protos::{WorkerId, WorkerRank};
use std::pin::Pin;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request as Asked, Response, Status as Refused, Streaming};

/// Longest wait for what must come.
const DEADLINE: Duration = Duration::from_secs(20);

fn fleet_key() -> FleetKey {
    FleetKey::of_secret(b"correct-horse-battery")
}

/// Conduct of the transfer of an agent that prefills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    /// It lends so many leading blocks at once at most, of those that there are.
    Lends { at_once: usize, blocks: u128 },
    /// It lends both, and the second is damaged.
    Damages,
    /// It knows another secret.
    IsForeign,
    /// It has KV of another form.
    IsUnlike,
    /// It is not there.
    IsGone,
}

/// Both blocks, as an agent should lend them.
const WHOLE: Conduct = Conduct::Lends { at_once: 2, blocks: 2 };

/// The transfer of an agent that prefills.
struct Transfer {
    arena: Arc<Arena>,
    conduct: Conduct,
    /// The ticket of the prompt that was asked for last.
    ticket: Mutex<Option<HandoverTicket>>,
    /// Told of each reader that has proved itself, and of the names that it asks for.
    asks: mpsc::Sender<Vec<BlockName>>,
}

/// A store for one reader.
struct Script(Arc<Transfer>);

impl LendingStores for Script {
    fn find(&self, purpose: ReaderPurpose, instance: [u8; 16]) -> Option<LendingStore> {
        let ticket = (*self.0.ticket.lock())?;
        let is_reader = purpose == ReaderPurpose::Handover && instance == ticket.handle;
        let fleet = match self.0.conduct {
            Conduct::IsForeign => FleetKey::default(),
            _ => fleet_key(),
        };
        let mut form = room().form;
        form.fingerprint[0] ^= u8::from(self.0.conduct == Conduct::IsUnlike);
        is_reader.then(|| LendingStore {
            arena: self.0.arena.clone(),
            lender: Arc::new(Script(self.0.clone())),
            form,
            key: ticket.reader(&fleet).key,
            direct: None,
        })
    }
}

impl Lender for Script {
    fn welcome(&self) {
        self.0.asks.try_send(Vec::new()).unwrap();
    }

    fn lend(&self, _: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let names = wish.names;
        self.0.asks.try_send(names.clone()).unwrap();
        let (at_once, blocks) = match self.0.conduct {
            Conduct::Lends { at_once, blocks } => (at_once, blocks),
            _ => (2, 2),
        };
        let names = names.into_iter().take_while(|name| name.0 < blocks).take(at_once);
        let lent = names.map(|name| {
            let slot = SlotId(name.0 as u32);
            let mut checksum = self.0.arena.checksum(slot, name);
            checksum.0 ^= u64::from(self.0.conduct == Conduct::Damages && name.0 == 1);
            LentBlock { slot, checksum }
        });
        Box::pin(ready(lent.collect::<Vec<_>>().into()))
    }

    fn release(&self, _: u64) {}
}

/// A message about a prompt.
type Said = Result<PrefillResponse, Refused>;

/// An agent that prefills as it is told to, and tells what it is asked for.
struct Scripted {
    /// The agent's answer, once the prompt is computed; `None` if the test says more.
    kept: Option<&'static str>,
    /// Messages of the test.
    says: Mutex<Option<mpsc::Receiver<Said>>>,
    transfer: Arc<Transfer>,
    /// The name that it gives itself.
    agent_id: &'static str,
    /// The description of its KV.
    handover: String,
    prefills: mpsc::Sender<PrefillRequest>,
}

#[tonic::async_trait]
impl Worker for Scripted {
    type DescribeStream = stream::Iter<std::array::IntoIter<Result<AgentDescription, Refused>, 1>>;
    type GenerateStream = Empty<Result<GenerateFrame, Refused>>;
    type PrefillStream = Pin<Box<dyn Stream<Item = Said> + Send>>;
    type SnapshotStream = Empty<Result<SnapshotChunk, Refused>>;

    async fn describe(
        &self,
        _: Asked<DescribeRequest>,
    ) -> Result<Response<Self::DescribeStream>, Refused> {
        let said = record(self.agent_id, "http://[::]:1", &self.handover);
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
    ) -> Result<Response<Self::PrefillStream>, Refused> {
        let asked = asked.into_inner();
        let order: KeepOrder = serde_json::from_str(&asked.handover_json).unwrap();
        *self.transfer.ticket.lock() = Some(order.ticket);
        self.prefills.try_send(asked).unwrap();
        let Some(kept) = self.kept else {
            let says = self.says.lock().take().expect("a test asks once");
            return Ok(Response::new(Box::pin(ReceiverStream::new(says))));
        };
        Ok(Response::new(Box::pin(stream::iter([Ok(computed(kept))]))))
    }
}

/// The answer about a prompt that is kept as this says.
fn computed(kept: &str) -> PrefillResponse {
    let handover_json = kept.into();
    PrefillResponse { handover_json, cached_tokens: 3, ..PrefillResponse::default() }
}

/// A driver, and an agent that computes prompts for it.
struct Pair {
    harness: Harness,
    peer: PrefillWorker,
    prefills: mpsc::Receiver<PrefillRequest>,
    /// Messages of the agent about a prompt, if it has no answer of its own.
    say: mpsc::Sender<Said>,
    /// Names that the transfer was asked for; none for each connection.
    asks: mpsc::Receiver<Vec<BlockName>>,
    registry: Registry,
    /// The agents that discovery lists.
    listing: watch::Sender<Listing>,
    _server: JoinSet<()>,
}

impl Pair {
    async fn start(kept: Option<&'static str>, conduct: Conduct) -> Self {
        Self::start_with("prefill", kept, conduct).await
    }

    /// A pair whose agent for prompts calls itself `agent_id`; `prefill` is listed in its place.
    async fn start_with(
        agent_id: &'static str,
        kept: Option<&'static str>,
        conduct: Conduct,
    ) -> Self {
        let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (listener, transfer_listener) = (bind().await, bind().await);
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let at = transfer_listener.local_addr().unwrap().to_string();
        let handover = serde_json::to_string(&KvOffer { form: 1, transfer: at }).unwrap();
        let ((asked, prefills), (wanted, asks)) = (mpsc::channel(4), mpsc::channel(16));
        let arena = Arc::new(Arena::new(2, 1).unwrap());
        (0..2).for_each(|block| arena.write(SlotId(block), &[block as u8]));
        let transfer =
            Arc::new(Transfer { arena, conduct, ticket: Mutex::default(), asks: wanted });
        let (say, says) = mpsc::channel(4);
        let scripted = Scripted {
            kept,
            says: Mutex::new(Some(says)),
            transfer: transfer.clone(),
            agent_id,
            handover: handover.clone(),
            prefills: asked,
        };
        let router = tonic::transport::Server::builder().add_service(WorkerServer::new(scripted));
        let mut server = JoinSet::new();
        let incoming = TcpIncoming::from(listener);
        server.spawn(async move { router.serve_with_incoming(incoming).await.unwrap() });
        if conduct != Conduct::IsGone {
            let transfers = TransferServer::new(Arc::new(Script(transfer)));
            server.spawn(transfers.run(transfer_listener));
        }
        let (metrics, mut registry) = (PairMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        let (listing, registered) = RegisteredAgents::listed();
        let pairing = Pairing {
            handovers: None,
            prefill_agents: Arc::new(prefill_agents(registered)),
            room: Some(TransferRoom { key: fleet_key(), ..room() }),
            trust: KvTrust { fleet_key: fleet_key(), ..KvTrust::default() },
            timeout: DEADLINE,
            silence: DEADLINE,
            metrics,
        };
        let harness = Harness::start_with(Duration::from_millis(1), pairing);
        let listed = record("prefill", &endpoint, &handover);
        listing.send_replace(listing_of(listed));
        let handover = RawValue::from_string(handover).unwrap();
        let worker = WorkerRank { worker: WorkerId(9), rank: 0 };
        let peer = PrefillWorker { endpoint, worker, handover };
        Self { harness, peer, prefills, say, asks, registry, listing, _server: server }
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
        for line in lines {
            assert!(self.has_counted(line), "no {line} in\n{}", self.counters());
        }
    }

    fn has_counted(&self, line: &str) -> bool {
        self.counters().contains(&format!("stator_agent_{line}\n"))
    }

    fn counters(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// Waits until a block has come before its prompt was computed.
    async fn has_an_early_block(&self) {
        let early = async {
            while !self.has_counted("kv_blocks_early_total 1") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, early).await.expect("the block comes");
    }
}

#[tokio::test]
async fn kv_that_comes_whole_is_taken_in_and_told_with_its_way() {
    // At once, and where the agent has room for one block at a time.
    for at_once in [2, 1] {
        let conduct = Conduct::Lends { at_once, blocks: 2 };
        let mut pair = Pair::start(Some("{\"blocks\":2}"), conduct).await;
        pair.submit(7).await;
        let first = pair.first(7).await;
        assert!(first.transfer_us > 0 && !first.prefill_failed, "{first:?}");
        assert_eq!(pair.asks.recv().await.unwrap(), [], "a reader comes");
        assert_eq!(pair.asks.recv().await.unwrap(), [BlockName(0), BlockName(1)]);
        if at_once == 1 {
            assert_eq!(pair.asks.recv().await.unwrap(), [BlockName(1)]);
        }
        let by = "prefills_total{by=\"prefill_worker\"} 1";
        pair.counted(&[by, "kv_blocks_fetched_total 2", "kv_blocks_missed_total 0"]);
    }
}

#[tokio::test]
async fn blocks_come_while_their_prompt_is_computed() {
    let mut pair = Pair::start(None, WHOLE).await;
    pair.submit(7).await;
    let order = pair.prefills.recv().await.unwrap().handover_json;
    let order: KeepOrder = serde_json::from_str(&order).unwrap();
    assert_eq!(order.push_from, Some(0));
    let ready = PrefillResponse { ready_blocks: 1, ..PrefillResponse::default() };
    pair.say.send(Ok(ready)).await.unwrap();
    assert_eq!(pair.asks.recv().await.unwrap(), [], "a reader comes");
    assert_eq!(pair.asks.recv().await.unwrap(), [BlockName(0)]);
    pair.has_an_early_block().await;
    pair.say.send(Ok(computed("{\"blocks\":2}"))).await.unwrap();
    assert_eq!(pair.asks.recv().await.unwrap(), [BlockName(1)]);
    let first = pair.first(7).await;
    assert!(first.transfer_us > 0 && !first.prefill_failed, "{first:?}");
    let by = "prefills_total{by=\"prefill_worker\"} 1";
    pair.counted(&[by, "kv_blocks_fetched_total 2", "kv_blocks_early_total 1"]);
}

#[tokio::test]
async fn a_prompt_whose_agent_fails_in_the_middle_is_computed_here_from_there_on() {
    for conduct in [WHOLE, Conduct::Damages] {
        let mut pair = Pair::start(None, conduct).await;
        pair.submit(7).await;
        let ready_blocks = if conduct == WHOLE { 1 } else { 2 };
        let ready = PrefillResponse { ready_blocks, ..PrefillResponse::default() };
        pair.say.send(Ok(ready)).await.unwrap();
        while pair.asks.recv().await.unwrap().is_empty() {}
        if conduct == WHOLE {
            pair.has_an_early_block().await;
            pair.say.send(Err(Refused::unavailable("it dies"))).await.unwrap();
        }
        let first = pair.first(7).await;
        assert!(first.prefill_failed && first.token_ids == [1], "{conduct:?}: {first:?}");
        let forged = format!("kv_blocks_forged_total {}", u8::from(conduct != WHOLE));
        let by = "prefills_total{by=\"itself_prefill_failed\"} 1";
        pair.counted(&[by, "kv_blocks_fetched_total 1", "kv_blocks_missed_total 1", &forged]);
    }
}

#[tokio::test]
async fn whatever_is_wrong_with_it_is_a_miss_that_is_counted() {
    let kept = Some("{\"blocks\":2}");
    let lends = |blocks| Conduct::Lends { at_once: 2, blocks };
    let cases: [(Option<&'static str>, Conduct, u32, bool); 7] = [
        // It has no room, or is gone once the prompt is computed, or keeps less than it was asked for.
        (Some(""), WHOLE, 0, false),
        (kept, Conduct::IsGone, 0, false),
        (kept, lends(0), 0, false),
        (kept, lends(1), 1, false),
        // KV of another model, damaged KV, KV of a stranger.
        (kept, Conduct::IsUnlike, 0, false),
        (kept, Conduct::Damages, 1, true),
        (kept, Conduct::IsForeign, 0, true),
    ];
    for (kept, conduct, fetched, is_false) in cases {
        let shown = format!("{kept:?} {conduct:?}");
        let pair = Pair::start(kept, conduct).await;
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
    let mut pair = Pair::start(None, WHOLE).await;
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
        let pair = Pair::start_with(agent_id, Some("{\"blocks\":2}"), WHOLE).await;
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
    let mut pair = Pair::start(None, WHOLE).await;
    pair.peer.endpoint = "http://10.0.0.1:7000".into();
    pair.submit(7).await;
    assert_eq!(pair.first(7).await.token_ids, [1]);
    pair.counted(&["prefills_total{by=\"itself_untrusted\"} 1"]);
}

#[tokio::test]
async fn a_client_that_hangs_up_has_the_prompt_given_up() {
    let mut pair = Pair::start(None, WHOLE).await;
    pair.submit(7).await;
    let asked = pair.prefills.recv().await.unwrap();
    pair.harness.commands.send(Command::Cancel(vec![RequestKey(7)])).await.unwrap();
    assert_eq!(pair.first(7).await.finish.unwrap().reason(), worker::FinishReason::Cancelled);
    pair.harness.in_flight.none().await;
    // The reader comes and asks for nothing.
    let given_up = tokio::time::timeout(DEADLINE, pair.asks.recv()).await;
    assert_eq!(given_up.expect("it is given up").unwrap(), []);
    drop(asked);
}

#[tokio::test]
async fn kv_of_another_form_is_not_asked_for() {
    let mut pair = Pair::start(None, WHOLE).await;
    pair.peer.handover =
        RawValue::from_string("{\"form\":2,\"transfer\":\"127.0.0.1:1\"}".into()).unwrap();
    pair.submit(7).await;
    assert_eq!(pair.first(7).await.token_ids, [1]);
    pair.counted(&["prefills_total{by=\"itself_unlike\"} 1", "kv_blocks_missed_total 0"]);
}
