use super::super::host::Host;
use super::super::metrics::StockMetrics;
use super::super::place::EnginePlace;
use super::super::testkit::*;
use super::*;
use crate::availability::Availability;
use crate::events::Feeds;
use crate::events::queue::Queue;
use crate::metrics::AgentMetrics;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use stator_dialect::EventSource;
use stator_protos::discovery::{AgentRecord, ModelRecord, ProfileRecord};
use stator_runtime::admin::Readiness;
use stator_zmtp::Publisher;

/// A keeper, and the host that tells it of its engine.
struct Bed {
    keeper: Keeper,
    news: mpsc::Sender<News>,
    engine: Arc<Scripted>,
    record: Arc<watch::Sender<AgentRecord>>,
    readiness: Readiness,
    availability: Availability,
    life: watch::Receiver<Life>,
    registry: Registry,
}

fn record() -> AgentRecord {
    let worker = WorkerRecord { worker: WORKER, generation: Generation(7), total_blocks: 100 };
    AgentRecord {
        agent_id: "a".into(),
        endpoint: String::new(),
        serves_events: false,
        events_endpoint: String::new(),
        replay_endpoint: String::new(),
        model: ModelRecord {
            name: "m".into(),
            context_length: 100,
            block_size: 16,
            vocab_size: 100,
        },
        workers: vec![worker],
        profile: ProfileRecord::default(),
        accepting: true,
        lease_ms: 0,
        lease_expires_unix_ms: 0,
    }
}

impl Bed {
    fn start() -> Self {
        Self::publishing(Vec::new())
    }

    /// With an engine that publishes its KV events there.
    fn publishing(events: Vec<EventSource>) -> Self {
        let (scripted, metrics) = (Scripted::new([]), AgentMetrics::default());
        scripted.description.lock().events = events;
        let (record, readiness) = (Arc::new(watch::Sender::new(record())), Readiness::default());
        let availability = Availability::new(record.clone(), readiness.clone());
        let reports = Reports {
            feeds: Arc::new(Feeds::new(1 << 20, Arc::new(Queue::default()), metrics.clone())),
            load_interval: Duration::from_millis(50),
            metrics,
            record: record.clone(),
            availability: availability.clone(),
        };
        let (stock, mut registry) = (StockMetrics::default(), Registry::default());
        stock.register(&mut registry);
        let (news, host) = Host::scripted();
        let description = scripted.description.lock().clone();
        let engine = StockEngine {
            settings: stock_settings(&[
                "--engine=vllm",
                "--model=/m",
                "--attach=http://127.0.0.1:1",
            ]),
            probe: Arc::new(scripted.probe(None)),
            host,
            // Nobody reads its metrics there.
            place: Arc::new(EnginePlace::new("", scripted.clone())),
            description,
            block_size: 16,
            total_blocks: 100,
            metrics: stock,
            tiers: None,
            peers: None,
        };
        let (life, lives) = watch::channel(Life::Down("it starts".into()));
        let rank = RankState {
            record: record.borrow().workers[0],
            tally: Arc::default(),
            cache: Arc::default(),
            life,
        };
        let keeper = Keeper::start(engine, vec![rank], reports);
        Self {
            keeper,
            news,
            engine: scripted,
            record,
            readiness,
            availability,
            life: lives,
            registry,
        }
    }

    async fn up(&self) {
        let description = self.engine.description.lock().clone();
        self.news.send(News::Up(Box::new(description))).await.unwrap();
    }

    async fn down(&self) {
        let end = End { cause: "exit", why: "it crashed".into() };
        self.news.send(News::Down(end)).await.unwrap();
        self.news.send(News::Ended("exit")).await.unwrap();
    }

    async fn lives(&mut self, up: bool) {
        self.life.wait_for(|life| matches!(life, Life::Up(_)) == up).await.unwrap();
    }

    /// Waits until the record is so.
    async fn told(&self, so: impl FnMut(&AgentRecord) -> bool) {
        self.record.subscribe().wait_for(so).await.unwrap();
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    async fn order(&self, operation: Operation) -> oneshot::Receiver<Result<(), Fault>> {
        let (answer, answered) = oneshot::channel();
        self.keeper.orders().send(OperationOrder { operation, answer }).await.unwrap();
        answered
    }
}

#[tokio::test(start_paused = true)]
async fn lives_follow_each_other_with_growing_numbers_and_pickers_see_none_in_between() {
    let mut bed = Bed::start();
    bed.lives(true).await;
    bed.told(|record| record.workers[0].generation == Generation(7)).await;
    assert!(bed.readiness.get());
    bed.down().await;
    bed.lives(false).await;
    bed.told(|record| record.workers.is_empty()).await;
    assert!(!bed.readiness.get());
    bed.news.send(News::Ended("out_of_memory")).await.unwrap();
    bed.up().await;
    bed.lives(true).await;
    bed.told(|record| record.workers.iter().any(|w| w.generation > Generation(7))).await;
    assert!(bed.readiness.get());
    let text = bed.metrics();
    for line in [
        "stator_agent_engine_lives_total 2",
        "stator_agent_engine_ends_total{cause=\"exit\"} 1",
        "stator_agent_engine_ends_total{cause=\"out_of_memory\"} 1",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_life_that_ends_is_told_of_while_an_operation_is_on_its_way() {
    let mut bed = Bed::start();
    bed.engine.operates.send_replace(false);
    let answered = bed.order(Operation::ResetCache).await;
    bed.engine.operated.subscribe().wait_for(|done| done.len() == 1).await.unwrap();
    bed.down().await;
    bed.lives(false).await;
    assert!(bed.record.borrow().workers.is_empty());
    // The end of the agent does not wait for it either.
    let stopped = tokio::time::timeout(Duration::from_secs(1), bed.keeper.stop());
    assert!(stopped.await.is_ok());
    assert!(answered.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_paused_engine_takes_no_requests_until_it_is_resumed_or_lives_anew() {
    let mut bed = Bed::start();
    bed.lives(true).await;
    assert_eq!(bed.order(Operation::Pause).await.await, Ok(Ok(())));
    assert!(!bed.record.borrow().accepting && !bed.readiness.get());
    assert_eq!(bed.order(Operation::Resume).await.await, Ok(Ok(())));
    assert!(bed.record.borrow().accepting && bed.readiness.get());
    assert_eq!(bed.order(Operation::Sleep { level: 1 }).await.await, Ok(Ok(())));
    assert!(!bed.record.borrow().accepting);
    bed.down().await;
    bed.lives(false).await;
    bed.up().await;
    bed.told(|record| record.accepting && !record.workers.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_done_to_an_earlier_life_is_nothing_to_the_next() {
    let mut bed = Bed::start();
    bed.lives(true).await;
    bed.engine.operates.send_replace(false);
    let answered = bed.order(Operation::Sleep { level: 1 }).await;
    bed.engine.operated.subscribe().wait_for(|done| done.len() == 1).await.unwrap();
    bed.down().await;
    bed.lives(false).await;
    bed.up().await;
    bed.told(|record| record.accepting && !record.workers.is_empty()).await;
    bed.engine.operates.send_replace(true);
    assert_eq!(answered.await, Ok(Ok(())));
    assert!(bed.record.borrow().accepting);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_drains_is_not_made_to_accept() {
    let mut bed = Bed::start();
    bed.lives(true).await;
    bed.availability.drain();
    assert_eq!(bed.order(Operation::Resume).await.await, Ok(Ok(())));
    assert!(!bed.record.borrow().accepting && !bed.readiness.get());
    bed.down().await;
    bed.lives(false).await;
    bed.up().await;
    bed.told(|record| !record.workers.is_empty()).await;
    assert_eq!(bed.order(Operation::Resume).await.await, Ok(Ok(())));
    assert!(!bed.record.borrow().accepting && !bed.readiness.get());
}

#[tokio::test(start_paused = true)]
async fn an_adapter_that_was_loaded_is_in_the_record_before_the_answer() {
    let bed = Bed::start();
    bed.engine.description.lock().adapters = vec!["style".into()];
    let load = Operation::LoadAdapter { name: "style".into(), path: "/style".into() };
    assert_eq!(bed.order(load).await.await, Ok(Ok(())));
    assert_eq!(bed.record.borrow().profile.adapters, ["style"]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_comes_back_as_another_is_given_up() {
    let mut bed = Bed::start();
    bed.lives(true).await;
    bed.down().await;
    bed.engine.description.lock().block_size = Some(32);
    bed.up().await;
    let error = gave_up(&mut Some(bed.keeper)).await.to_string();
    assert!(error.contains("the engine came back as another"), "{error}");
    assert!(bed.record.borrow().workers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_engine_is_given_up_where_nobody_drives_it() {
    let mut bed = Bed::start();
    bed.lives(true).await;
    drop(bed.life);
    let error = gave_up(&mut Some(bed.keeper)).await.to_string();
    assert!(error.starts_with("the task of worker ") && error.ends_with("has ended"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_read_of_an_engines_events_is_counted() {
    let publisher = Publisher::bind("tcp://127.0.0.1:0").await.unwrap();
    let endpoint = publisher.endpoint().to_owned();
    let source = EventSource { endpoint, topic: "kv".into(), replay: None };
    let bed = Bed::publishing(vec![source]);
    // `[1.0, [{"type": "AllBlocksCleared", "new": 1}]]`, and what is no MessagePack of ours.
    let mut newer = vec![0x92, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x91, 0x82];
    newer.extend(b"\xa4type\xb0AllBlocksCleared\xa3new\x01");
    let payloads = [Bytes::from(newer), Bytes::from_static(b"?")];
    let counted = ["fields_skipped", "messages_malformed"]
        .map(|name| format!("stator_agent_kv_feed_{name}_total 0\n"));
    let mut numbers = 0_u64..;
    let both = async {
        let mut steps = tokio::time::interval(Duration::from_millis(1));
        // What is published before the agent has subscribed is lost.
        while counted.iter().any(|none| bed.metrics().contains(none)) {
            for (payload, number) in payloads.iter().zip(&mut numbers) {
                let number = Bytes::copy_from_slice(&number.to_be_bytes());
                publisher.publish(&[Bytes::from_static(b"kv"), number, payload.clone()]);
            }
            steps.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), both).await.expect("counted in time");
    assert!(bed.metrics().contains("stator_agent_kv_feed_engine_lives_total "));
}
