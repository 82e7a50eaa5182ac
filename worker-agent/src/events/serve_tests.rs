//! The service without a network: what its streams give, and when they end.

use super::*;
use crate::events::queue::Queue;
use stator_protos::kv_event::KvEvent;
use stator_protos::load::Load;
use stator_protos::{Generation, WorkerId, WorkerRank};
use stator_runtime::shutdown::Trigger;
use tokio::time::timeout;
use tonic::Code;

const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: 0 };
const TOPIC: &str = "kv-events/0000000000000001/0/0000000000000001";

struct Bed {
    service: Service,
    queue: Arc<Queue>,
    feeds: Arc<Feeds>,
    subscribers: Arc<Subscribers>,
    end: Trigger,
}

impl Bed {
    fn start() -> Self {
        let (metrics, queue) = (AgentMetrics::default(), Arc::new(Queue::default()));
        let feeds = Arc::new(Feeds::new(1 << 30, queue.clone(), metrics.clone()));
        let subscribers = Arc::new(Subscribers::new(metrics.clone()));
        let (end, ended) = Shutdown::new();
        let service = Service::new(feeds.clone(), subscribers.clone(), metrics, ended);
        Self { service, queue, feeds, subscribers, end }
    }

    /// Does the publisher's work.
    async fn publish(&self) {
        for message in self.queue.take().await {
            self.subscribers.publish(&message);
        }
    }

    async fn subscribe(&self, prefixes: &[&str]) -> Result<Frames, Status> {
        let prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        let frames = self.service.subscribe(Request::new(SubscribeRequest { prefixes })).await;
        Ok(frames?.into_inner())
    }

    async fn replay(&self, topic: &str, start: u64) -> Result<Frames, Status> {
        let mut request = Request::new(ReplayRequest { topic: topic.into(), start });
        let address = Some("10.0.0.1:1".parse().unwrap());
        request.extensions_mut().insert(TlsPeer { address, certificate: None });
        Ok(self.service.replay(request).await?.into_inner())
    }
}

/// Numbers of a stream's messages until it ends, and how it ended.
async fn numbers(mut frames: Frames) -> (Vec<u64>, Option<Code>) {
    let mut numbers = Vec::new();
    while let Some(frame) = frames.next().await {
        match frame {
            Ok(frame) => numbers.extend(frame.messages.iter().map(|message| message.number)),
            Err(status) => return (numbers, Some(status.code())),
        }
    }
    (numbers, None)
}

#[tokio::test]
async fn a_subscription_begins_with_an_empty_frame_and_a_step_is_one_frame() {
    let bed = Bed::start();
    let mut feed = bed.feeds.open(WORKER, Generation(1));
    let mut frames = bed.subscribe(&["kv-events", "load"]).await.unwrap();
    assert_eq!(frames.next().await.unwrap().unwrap(), EventsFrame::default());
    feed.events(&[KvEvent::Cleared]);
    feed.events(&[KvEvent::Cleared]);
    feed.load(Load::default());
    bed.publish().await;
    let frame = frames.next().await.unwrap().unwrap();
    let found = frame.messages.iter().map(|message| (&message.topic[..], message.number));
    let load = TOPIC.replace("kv-events", "load");
    let (events, load) = (TOPIC.as_bytes(), load.as_bytes());
    assert_eq!(found.collect::<Vec<_>>(), [(events, 0), (events, 1), (load, 2)]);
    assert!(timeout(Duration::from_millis(1), frames.next()).await.is_err());
    bed.end.set();
    assert!(frames.next().await.is_none(), "it ends with the agent");
}

#[tokio::test]
async fn what_nobody_could_want_is_refused() {
    let bed = Bed::start();
    let long = "x".repeat(PREFIX_BYTES_MAX + 1);
    for prefixes in [&[][..], &["a"; PREFIXES_MAX + 1], &[&long]] {
        let status = bed.subscribe(prefixes).await.err().unwrap();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    assert!(bed.subscribe(&[""; PREFIXES_MAX]).await.is_ok());
}

#[tokio::test]
async fn a_replay_has_the_log_in_frames_of_some_size() {
    let bed = Bed::start();
    let mut feed = bed.feeds.open(WORKER, Generation(1));
    for _ in 0..1000 {
        feed.events(&[KvEvent::Cleared]);
    }
    let found = async |topic: &str, start| numbers(bed.replay(topic, start).await.unwrap()).await;
    assert_eq!(found("", 3).await, ((3..1000).collect(), None));
    assert_eq!(found(TOPIC, 990).await, ((990..1000).collect(), None));
    assert_eq!(found("kv-events/nobody", 0).await, (vec![], None));
    assert_eq!(found("", u64::MAX).await, (vec![], None));
    let frames = bed.replay("", 0).await.unwrap().count().await;
    assert!((2..10).contains(&frames), "{frames} frames");
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_nobody_reads_loses_its_place_and_is_told_for_a_part() {
    let bed = Bed::start();
    let mut feed = bed.feeds.open(WORKER, Generation(1));
    for _ in 0..1000 {
        feed.events(&[KvEvent::Cleared]);
    }
    let mut unread = Vec::new();
    for _ in 0..REPLAYS_PER_ADDRESS {
        unread.push(bed.replay("", 0).await.unwrap());
    }
    let refused = bed.replay("", 0).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    // The clock goes on where nothing else does.
    while bed.service.replays.held() > 0 {
        tokio::time::sleep(SEND_TIMEOUT / 10).await;
    }
    assert_eq!(numbers(bed.replay("", 0).await.unwrap()).await, ((0..1000).collect(), None));
    let (some, end) = numbers(unread.pop().unwrap()).await;
    assert!(some.len() < 1000);
    assert_eq!(end, Some(Code::Aborted));
}

#[tokio::test]
async fn a_replay_whose_rest_is_forgotten_ends_with_an_error() {
    let bed = Bed::start();
    let feeds = Feeds::new(100 << 10, bed.queue.clone(), AgentMetrics::default());
    let feed = feeds.open(WORKER, Generation(1));
    let append = |count: usize| {
        let log = feed.log();
        let mut log = log.log.lock();
        for _ in 0..count {
            log.append(Bytes::from_static(&[0; 36]));
        }
    };
    append(1000);
    let reader = Reader::new(feeds.logs(), &ReplayRange { start: 0, topic: None });
    let place = bed.service.replays.hold(None);
    let mut frames = replayed(reader, place);
    assert!(frames.next().await.unwrap().is_ok());
    append(1000);
    assert_eq!(numbers(frames).await.1, Some(Code::DataLoss));
}

#[tokio::test]
async fn a_subscriber_that_lost_its_place_is_told() {
    let bed = Bed::start();
    let mut frames = bed.subscribe(&["kv"]).await.unwrap();
    assert!(frames.next().await.unwrap().is_ok());
    bed.subscribers.clear();
    let status = frames.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(frames.next().await.is_none());
}
