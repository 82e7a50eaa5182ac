use super::fake_engine::{Fake, POISON};
use super::*;
use crate::config::KvTrust;
use crate::events::queue::{Message, Queue};
use crate::kv::handovers::Handovers;
use crate::kv::offer::KeepOrder;
use crate::kv::transfer_room::TransferRoom;
use crate::metrics::PairMetrics;
use crate::prefill::agents::tests::prefill_agents;
use crate::prefill::registered::RegisteredAgents;
use crate::request_plane::in_flight::InFlight;
use crate::request_plane::metadata::RequestMetadata;
use crate::request_plane::outbox::{Outbox, Route};
use serde_json::value::to_raw_value;
use stator_engine::transfer::KvForm;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::{self, KvEvent, Medium};
use stator_protos::load::Load;
use stator_protos::topic::{Topic, TopicKind};
use stator_protos::worker::FinishReason as Reason;
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::{oneshot, watch};

/// Room for the KV of two prompts.
pub(super) fn room() -> TransferRoom {
    let form = KvForm { fingerprint: 1, block_bytes: 1 };
    TransferRoom::new(form, 4 * 4096, KvTrust::default().fleet_key).unwrap()
}

/// One that prefills.
fn pairing() -> Pairing {
    let room = room();
    Pairing {
        handovers: Some(Handovers::new(room.clone())),
        prefill_agents: Arc::new(prefill_agents(RegisteredAgents::default())),
        room: Some(room),
        trust: KvTrust::default(),
        timeout: Duration::from_secs(1),
        silence: Duration::from_secs(1),
        metrics: PairMetrics::default(),
    }
}

/// The answer to an order for a prompt.
pub(super) type PrefillAnswer = oneshot::Receiver<Result<PrefillResult, (ErrorKind, String)>>;

/// An order for the prompt of a token, the blocks that can be read, and the answer.
pub(super) fn prefill_order(
    id: u64,
    token: u32,
    order: &KeepOrder,
    in_flight: &InFlight,
) -> (PrefillOrder, watch::Receiver<usize>, PrefillAnswer) {
    let ((ready, readable), (answer, answered)) = (watch::channel(0), oneshot::channel());
    let submit = worker::Submit {
        token_ids: vec![token],
        sampling: Some(worker::Sampling { max_tokens: 1, ..worker::Sampling::default() }),
        ..worker::Submit::default()
    };
    let order = PrefillOrder {
        request: translate::request(submit, RequestKey(id)).unwrap(),
        metadata: RequestMetadata::default(),
        handover: Some(to_raw_value(order).unwrap()),
        ready,
        answer,
        ticket: in_flight.enter(),
    };
    (order, readable, answered)
}

pub(super) struct Harness {
    pub(super) commands: mpsc::Sender<Command>,
    outbox: Arc<Outbox>,
    queue: Arc<Queue>,
    status: Arc<Status>,
    /// Prompts that are kept for others.
    pub(super) handovers: Option<Arc<Handovers>>,
    pub(super) in_flight: InFlight,
    /// Last blocks of prompts that come in blocks which are not computed for now.
    held_back: Arc<AtomicU32>,
    deaths: Arc<AtomicBool>,
}

impl Harness {
    pub(super) fn start(step_time: Duration) -> Self {
        Self::start_with(step_time, pairing())
    }

    pub(super) fn start_with(step_time: Duration, pairing: Pairing) -> Self {
        let queue = Arc::new(Queue::default());
        let metrics = AgentMetrics::default();
        let worker = WorkerRank { worker: WorkerId(1), rank: 0 };
        let (status, deaths) = (Arc::new(Status::default()), Arc::new(AtomicBool::new(false)));
        let life = crate::events::WorkerLife { worker, generation: Generation(1) };
        let reporting = Reporting {
            feed: WorkerFeed::new(life, 1 << 20, queue.clone(), metrics.clone()),
            load_interval: Duration::from_millis(50),
            gauges: metrics.worker(worker),
            metrics,
            status: status.clone(),
            on_death: Box::new({
                let deaths = deaths.clone();
                move || deaths.store(true, Ordering::Relaxed)
            }),
        };
        let handovers = pairing.handovers.clone();
        let held_back = Arc::<AtomicU32>::default();
        let engine = Fake::new(step_time, held_back.clone());
        let driver = Driver::new(Box::new(engine), reporting, pairing);
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        tokio::spawn(driver.run(inbox));
        let (outbox, in_flight) = (Arc::new(Outbox::new()), InFlight::new());
        Self { commands, outbox, queue, status, handovers, in_flight, held_back, deaths }
    }

    async fn submit(&self, id: u64, first_token: u32, choices: u32, max_tokens: u32) {
        self.submit_with(id, (first_token, choices, max_tokens), RequestMetadata::default()).await;
    }

    pub(super) async fn submit_with(
        &self,
        id: u64,
        (first_token, choices, max_tokens): (u32, u32, u32),
        metadata: RequestMetadata,
    ) {
        let submit = worker::Submit {
            token_ids: vec![first_token],
            choices,
            sampling: Some(worker::Sampling { max_tokens, ..worker::Sampling::default() }),
            ..worker::Submit::default()
        };
        let request = translate::request(submit, RequestKey(id)).unwrap();
        self.outbox.admit(id, Route { worker: 0, key: RequestKey(id) }, 100).unwrap();
        let submission = Submission {
            request,
            request_id: id,
            metadata,
            outbox: self.outbox.clone(),
            ticket: self.in_flight.enter(),
        };
        self.commands.send(Command::Submit(submission)).await.unwrap();
    }

    pub(super) async fn frame(&self) -> Vec<worker::Output> {
        self.outbox.next().await.unwrap()
    }

    /// All tokens of request `id` and how it ended.
    async fn answer(&self, id: u64) -> (Vec<u32>, worker::Finish) {
        let mut tokens = Vec::new();
        loop {
            for output in self.frame().await.into_iter().filter(|o| o.request_id == id) {
                tokens.extend(output.token_ids);
                if let Some(finish) = output.finish {
                    return (tokens, finish);
                }
            }
        }
    }

    /// Asks for the prompt of a token, as a decode worker with this order. Returns the blocks that it
    /// is told of, and the answer.
    pub(super) async fn prefill(
        &self,
        id: u64,
        token: u32,
        order: &KeepOrder,
    ) -> (watch::Receiver<usize>, PrefillAnswer) {
        let (order, readable, answered) = prefill_order(id, token, order, &self.in_flight);
        self.commands.send(Command::Prefill(order)).await.unwrap();
        (readable, answered)
    }

    /// Has the engine compute no further than this many blocks before the end of prompts that come in
    /// blocks.
    pub(super) async fn hold_back(&self, blocks: u32) {
        self.held_back.store(blocks, Ordering::Relaxed);
        // Wakes the driver.
        self.snapshot().await;
    }

    async fn snapshot(&self) -> Snapshot {
        let (sender, receiver) = oneshot::channel();
        self.commands.send(Command::Snapshot(sender)).await.unwrap();
        receiver.await.unwrap()
    }

    pub(super) async fn operate(&self, operation: Operation) -> Result<(), Fault> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Operate(OperationOrder { operation, answer })).await.unwrap();
        answered.await.unwrap()
    }

    async fn messages(&self, kind: TopicKind) -> Vec<Message> {
        let of_kind =
            |message: &Message| Topic::parse(&message.topic).is_some_and(|t| t.kind == kind);
        self.queue.take().await.into_iter().filter(of_kind).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_gets_its_tokens_and_its_end() {
    let harness = Harness::start(Duration::ZERO);
    harness.submit(7, 1, 1, 3).await;
    let (tokens, finish) = harness.answer(7).await;
    assert_eq!((tokens, finish.reason()), (vec![1, 2, 3], Reason::Length));
    assert_eq!(finish.usage.unwrap().completion_tokens, 3);
    harness.in_flight.none().await;
    assert_eq!(harness.outbox.route(7), None);
}

#[tokio::test(start_paused = true)]
async fn one_step_makes_one_frame_for_all_requests_and_choices_of_a_stream() {
    let harness = Harness::start(Duration::from_millis(10));
    harness.submit(1, 1, 2, 1).await;
    harness.submit(2, 1, 1, 1).await;
    let mut ids: Vec<_> = harness.frame().await.iter().map(|o| (o.request_id, o.choice)).collect();
    ids.sort();
    assert_eq!(ids, [(1, 0), (1, 1), (2, 0)]);
}

#[tokio::test(start_paused = true)]
async fn simulated_steps_take_their_time() {
    let harness = Harness::start(Duration::from_micros(12_300));
    let begin = tokio::time::Instant::now();
    harness.submit(1, 1, 1, 100).await;
    harness.answer(1).await;
    let passed = begin.elapsed();
    let expected = Duration::from_millis(1230);
    assert!(passed >= expected && passed <= expected + Duration::from_millis(2), "{passed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_ends_and_gets_no_further_token() {
    let harness = Harness::start(Duration::from_millis(10));
    harness.submit(1, 1, 1, 1000).await;
    harness.submit(2, 1, 1, 5).await;
    harness.frame().await;
    harness.commands.send(Command::Cancel(vec![RequestKey(1)])).await.unwrap();
    let (tokens, finish) = harness.answer(1).await;
    assert!(tokens.len() <= 1, "{tokens:?}");
    assert_eq!(finish.reason(), Reason::Cancelled);
    let (rest, _) = harness.answer(2).await;
    assert_eq!(rest.last(), Some(&5));
    harness.in_flight.none().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_engine_reaches_the_client() {
    let harness = Harness::start(Duration::ZERO);
    harness.submit(1, 0, 1, 1).await;
    let (_, finish) = harness.answer(1).await;
    assert_eq!(finish.error_kind(), ErrorKind::Overloaded);
    assert_eq!(finish.error_message, "queue is full: 1 requests waiting, limit 1");
}

#[tokio::test(start_paused = true)]
async fn a_failing_engine_ends_its_requests_and_takes_no_more() {
    let harness = Harness::start(Duration::from_millis(10));
    harness.submit(1, 1, 1, 1000).await;
    harness.frame().await;
    harness.submit(2, POISON, 1, 1).await;
    for id in [1, 2] {
        assert!(harness.outbox.route(id).is_some());
    }
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let frame = harness.frame().await;
        ends.extend(frame.into_iter().filter_map(|output| output.finish));
    }
    for finish in ends {
        assert_eq!(finish.error_kind(), ErrorKind::Internal);
        assert!(finish.error_message.contains("poisoned"), "{}", finish.error_message);
    }
    assert!(harness.status.is_dead() && harness.deaths.load(Ordering::Relaxed));
    harness.in_flight.none().await;
    harness.submit(3, 1, 1, 1).await;
    assert_eq!(harness.answer(3).await.1.error_kind(), ErrorKind::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_what_the_events_before_it_add_up_to() {
    let harness = Harness::start(Duration::from_millis(10));
    harness.submit(1, 1, 1, 20).await;
    harness.frame().await;
    harness.frame().await;
    let snapshot = harness.snapshot().await;
    assert!(snapshot.next_sequence >= 2);
    let mut blocks = Vec::new();
    for message in harness.messages(TopicKind::KvEvents).await {
        if message.number >= snapshot.next_sequence {
            break;
        }
        for event in kv_event::decode(&message.payload).unwrap().batch.events {
            let KvEvent::Stored(stored) = event else { panic!("{event:?}") };
            blocks.extend(stored.hashes.into_iter().map(SequenceHash));
        }
    }
    assert!(snapshot.blocks.iter().all(|(_, medium)| *medium == Medium::Device));
    let held: Vec<_> = snapshot.blocks.into_iter().map(|(block, _)| block).collect();
    assert_eq!(blocks, held);
}

#[tokio::test(start_paused = true)]
async fn load_is_reported_at_most_once_an_interval_and_at_once_when_idle() {
    let harness = Harness::start(Duration::from_millis(10));
    harness.submit(1, 1, 1, 20).await;
    harness.answer(1).await;
    harness.in_flight.none().await;
    // The driver reports idleness before it waits for the next command.
    let snapshot = harness.snapshot().await;
    let loads = harness.messages(TopicKind::Load).await;
    // 20 steps of 10 ms at one report in 50 ms, the one at the start, and the one for idleness.
    assert!((4..=7).contains(&loads.len()), "{}", loads.len());
    let last = loads.last().unwrap();
    assert_eq!(Load::decode(&last.payload).unwrap().running, 0);
    assert_eq!(last.number, snapshot.next_sequence);
}

#[tokio::test(start_paused = true)]
async fn what_runs_outlasts_a_pause_and_a_sleep_and_what_comes_meanwhile_is_refused() {
    let harness = Harness::start(Duration::from_millis(10));
    harness.submit(1, 1, 1, 6).await;
    harness.frame().await;
    let rests = [
        (Operation::Pause, Operation::Wake, Operation::Resume),
        (Operation::Sleep { level: 1 }, Operation::Resume, Operation::Wake),
    ];
    for (n, (rest, wrong, right)) in (2..).zip(rests) {
        assert_eq!(harness.operate(rest).await, Ok(()));
        harness.submit(n, 1, 1, 1).await;
        let (_, finish) = harness.answer(n).await;
        assert_eq!(finish.error_kind(), ErrorKind::Overloaded);
        assert_eq!(finish.error_message, "the engine is paused or asleep");
        assert!(matches!(harness.operate(wrong).await, Err(Fault::Invalid(_))));
        assert_eq!(harness.operate(right).await, Ok(()));
    }
    let (rest, finish) = harness.answer(1).await;
    assert_eq!((rest.last(), finish.reason()), (Some(&6), Reason::Length));
    let deep = harness.operate(Operation::Sleep { level: 2 }).await.unwrap_err();
    assert_eq!(deep, Fault::Unsupported("this engine has no Sleep { level: 2 }".into()));
}
