//! The event plane against a scripted agent that loses what the test wants lost.

use super::scripted::{LIFE, Script, Scripted, serve};
use super::*;
use bytes::Bytes;
use stator_protos::discovery::{ProfileRecord, WorkerRecord};
use stator_protos::kv_event::{self, KvEvent, Medium, Stored};
use stator_protos::load::Load;
use stator_protos::topic::{Topic, TopicKind};
use stator_protos::worker::EventMessage;
use stator_protos::{Generation, WorkerId, WorkerRank};
use stator_zmtp::{Publisher, Router};

const WORKER: WorkerRank = WorkerRank { worker: WorkerId(7), rank: 0 };

struct Bed {
    script: Scripted,
    publisher: Publisher,
    pool: Arc<Pool>,
    record: AgentRecord,
    _fleet: Fleet,
    dir: tempfile::TempDir,
}

/// The plane on which the fleet hears the agent's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Zmq,
    RequestPlane,
}

const BOTH: [Over; 2] = [Over::Zmq, Over::RequestPlane];

impl Bed {
    async fn start(over: Over) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = Scripted::default();
        let endpoint = serve(&script);
        let publisher = Publisher::bind("tcp://127.0.0.1:0").await.unwrap();
        let events_endpoint = publisher.endpoint().to_owned();
        let router = Router::bind("tcp://127.0.0.1:0").await.unwrap();
        let replay_endpoint = router.endpoint().to_owned();
        tokio::spawn(serve_replays(router, script.clone()));
        let zmq = |endpoint| if over == Over::Zmq { endpoint } else { String::new() };
        let record = AgentRecord {
            agent_id: "scripted".into(),
            endpoint,
            serves_events: over == Over::RequestPlane,
            events_endpoint: zmq(events_endpoint),
            replay_endpoint: zmq(replay_endpoint),
            model: loaded(Duration::ZERO).model,
            workers: vec![WorkerRecord { worker: WORKER, generation: LIFE, total_blocks: 100 }],
            accepting: true,
            profile: ProfileRecord::default(),
            lease_ms: u64::MAX,
            lease_expires_unix_ms: u64::MAX,
        };
        put(&dir, &record);
        let settings = FleetSettings::new(dir.path().into());
        let (fleet, mut events) =
            Fleet::start(settings, FleetMetrics::default(), pools(PoolSettings::default()));
        let pool = model_up(&mut events).await;
        until("the worker accepts", || pool.accepting() == 1).await;
        let mut bed = Self { script, publisher, pool, record, _fleet: fleet, dir };
        bed.until_followed().await;
        bed
    }

    /// Until the subscription stands and the snapshot is in: a first batch must arrive, and may
    /// be lost before.
    async fn until_followed(&mut self) {
        self.script.0.lock().unwrap().snapshot = (vec![], 1);
        let begin = std::time::Instant::now();
        // A publisher that never pauses never sees who subscribed.
        let mut steps = tokio::time::interval(Duration::from_millis(1));
        while self.overlap() != 1 {
            assert!(begin.elapsed() < DEADLINE, "the first batch never arrives");
            let payload = payload(1);
            self.script.0.lock().unwrap().log = vec![(1, payload)];
            self.publish(1);
            steps.tick().await;
        }
    }

    fn publish(&self, number: u64) {
        self.send(TopicKind::KvEvents, LIFE, number, payload(number));
    }

    fn send(&self, kind: TopicKind, generation: Generation, number: u64, payload: Bytes) {
        let topic = Bytes::from(Topic { kind, worker: WORKER, generation }.to_string());
        let message = EventMessage { topic: topic.clone(), number, payload: payload.clone() };
        self.script(|script| script.publish(&message));
        let number = Bytes::copy_from_slice(&number.to_be_bytes());
        self.publisher.publish(&[topic, number, payload]);
    }

    fn overlap(&self) -> u32 {
        self.pool.overlap(WORKER, &chain())
    }

    fn script<T>(&self, see: impl FnOnce(&mut Script) -> T) -> T {
        see(&mut self.script.0.lock().unwrap())
    }
}

/// Twenty blocks, each after the one before it.
fn chain() -> Vec<SequenceHash> {
    sequence(&prompt(320))
}

/// Batch number n stores block n - 1 of the chain.
fn payload(number: u64) -> Bytes {
    let chain = chain();
    let place = number as usize - 1;
    let stored = Stored {
        hashes: vec![chain[place].0],
        parent: place.checked_sub(1).map(|before| chain[before].0),
        tokens: prompt(320)[place * 16..][..16].to_vec(),
        block_size: 16,
        medium: Medium::Device,
        lora_name: None,
    };
    let events = vec![KvEvent::Stored(stored)];
    let mut payload = Vec::new();
    kv_event::encode(0.0, &events, Some(0), &mut payload);
    payload.into()
}

async fn serve_replays(mut router: Router, script: Scripted) {
    loop {
        let request = router.recv().await;
        let start = u64::from_be_bytes(request.frames[1].as_ref().try_into().unwrap());
        let log = {
            let mut script = script.0.lock().unwrap();
            script.replays.push(start);
            script.log.clone()
        };
        let end = (Bytes::new(), u64::MAX, Bytes::new());
        let batches = log.into_iter().filter(|(number, _)| *number >= start);
        let answers = batches.map(|(number, payload)| (request.frames[2].clone(), number, payload));
        for (topic, number, payload) in answers.chain([end]) {
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            request.reply.send(&[Bytes::new(), topic, number, payload]).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_is_filled_by_replay() {
    for over in BOTH {
        let bed = Bed::start(over).await;
        let snapshots = bed.script(|script| {
            script.log = (1..=4).map(|number| (number, payload(number))).collect();
            script.snapshots
        });
        bed.publish(4);
        until("the hole is filled", || bed.overlap() == 4).await;
        assert_eq!(bed.script(|script| script.replays.last().copied()), Some(2));
        assert_eq!(bed.script(|script| script.snapshots), snapshots);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_log_has_forgotten_is_taken_from_a_snapshot() {
    for over in BOTH {
        let bed = Bed::start(over).await;
        bed.script(|script| {
            script.log = vec![(5, payload(5))];
            script.snapshot = (chain()[..5].to_vec(), 6);
            script.in_host_memory = 2;
        });
        bed.publish(5);
        until("the snapshot is in", || bed.overlap() == 5).await;
        let hosted =
            bed.pool.held(WORKER).into_iter().filter(|(_, medium)| *medium == Medium::Host);
        let mut hosted: Vec<_> = hosted.map(|(block, _)| block).collect();
        hosted.sort_by_key(|block| chain().iter().position(|known| known == block));
        assert_eq!(hosted, chain()[3..5]);
        bed.publish(6);
        until("live events follow it", || bed.overlap() == 6).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_are_skipped_and_the_rest_goes_on() {
    let bed = Bed::start(Over::Zmq).await;
    let topic = Topic { kind: TopicKind::KvEvents, worker: WORKER, generation: LIFE }.to_string();
    let ours = Bytes::from(topic);
    let number = Bytes::copy_from_slice(&2u64.to_be_bytes());
    let foreign = Bytes::from_static(b"kv-events");
    for frames in [
        vec![ours.clone()],
        vec![ours.clone(), Bytes::from_static(b"short"), Bytes::new()],
        vec![foreign, number.clone(), Bytes::new()],
        vec![ours.clone(), number.clone(), Bytes::new(), Bytes::new()],
    ] {
        bed.publisher.publish(&frames);
    }
    // A batch that cannot be read is as good as lost; the log has it whole.
    bed.script(|script| script.log = vec![(2, payload(2))]);
    let torn = vec![ours, number, payload(2).slice(..20)];
    bed.publisher.publish(&torn);
    until("the replay brought it", || bed.overlap() == 2).await;
    bed.publish(3);
    until("live events follow", || bed.overlap() == 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_before_a_silence_is_noticed_by_the_next_load_report() {
    for over in BOTH {
        let bed = Bed::start(over).await;
        bed.script(|script| script.log = vec![(2, payload(2)), (3, payload(3))]);
        let mut load = Vec::new();
        Load { running: 1, ..Load::default() }.encode(&mut load);
        bed.send(TopicKind::Load, LIFE, 4, load.into());
        until("the replay is in", || bed.overlap() == 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_life_has_no_block_of_the_old_one_and_its_numbers_count_anew() {
    for over in BOTH {
        let bed = Bed::start(over).await;
        let second = Generation(LIFE.0 + 1);
        bed.script(|script| {
            script.later_life = 1;
            script.snapshot = (vec![], 1);
            script.log = vec![];
        });
        // What the old life still says counts for nothing, though its number would fit.
        let mut record = bed.record.clone();
        record.workers[0].generation = second;
        put(&bed.dir, &record);
        until("the old blocks are gone", || bed.overlap() == 0).await;
        let snapshots = bed.script(|script| script.snapshots);
        bed.publish(2);
        bed.script(|script| script.log = vec![(1, payload(1))]);
        bed.send(TopicKind::KvEvents, second, 1, payload(1));
        until("the new life is followed", || bed.overlap() == 1).await;
        bed.publish(2);
        bed.send(TopicKind::KvEvents, second, 2, payload(2));
        until("and goes on", || bed.overlap() == 2).await;
        assert!(bed.script(|script| script.snapshots) <= snapshots + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_breaks_is_made_anew_and_what_was_missed_is_replayed() {
    let bed = Bed::start(Over::RequestPlane).await;
    let snapshots = bed.script(|script| {
        script.subscribers.clear();
        script.log = (2..=4).map(|number| (number, payload(number))).collect();
        script.snapshots
    });
    until("it subscribes again", || bed.script(|script| script.subscribers.len()) == 1).await;
    bed.publish(4);
    until("the hole is filled", || bed.overlap() == 4).await;
    assert_eq!(bed.script(|script| script.snapshots), snapshots);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_breaks_off_is_no_answer() {
    let bed = Bed::start(Over::RequestPlane).await;
    bed.script(|script| {
        script.log = vec![(2, payload(2))];
        script.replays_break = true;
        script.snapshot = (chain()[..7].to_vec(), 8);
    });
    bed.publish(4);
    until("the snapshot is in", || bed.overlap() == 7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_of_the_request_plane_are_skipped() {
    let bed = Bed::start(Over::RequestPlane).await;
    let ours = Topic { kind: TopicKind::KvEvents, worker: WORKER, generation: LIFE }.to_string();
    bed.script(|script| {
        script.log = vec![(2, payload(2))];
        for (topic, payload) in [("kv-events", Bytes::new()), (&ours, payload(2).slice(..20))] {
            let topic = Bytes::copy_from_slice(topic.as_bytes());
            script.publish(&EventMessage { topic, number: 2, payload });
        }
    });
    until("the replay brought it", || bed.overlap() == 2).await;
    bed.publish(3);
    until("live events follow", || bed.overlap() == 3).await;
}
