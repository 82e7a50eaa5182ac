//! Requests whose prompt one worker computes and another answers.

use super::scripted::{LIFE, Scripted, serve};
use super::*;
use crate::standalone::no_split::NoSplitReason;
use stator_placement::Split;
use stator_protos::discovery::{ProfileRecord, Role, WorkerRecord};
use stator_protos::worker::PrefillPeer;
use stator_protos::{WorkerId, WorkerRank};

const HANDOVER: &str = r#"{"connector":"NixlConnector"}"#;
const PREFILL: u64 = 1;
const DECODE: u64 = 2;

/// A pool of scripted agents, one worker each.
struct Bed {
    pool: Arc<Pool>,
    decode: Scripted,
    /// Of the agent that computes prompts.
    record: AgentRecord,
    _fleet: Fleet,
    dir: tempfile::TempDir,
}

fn record(dir: &tempfile::TempDir, worker: u64, role: Role, endpoint: String) -> AgentRecord {
    let nobody = |name| format!("ipc://{}", dir.path().join(name).display());
    let worker = WorkerRank { worker: WorkerId(worker), rank: 0 };
    let handover = (role == Role::Prefill).then(|| HANDOVER.to_owned());
    AgentRecord {
        agent_id: format!("agent-{}", worker.worker),
        endpoint,
        serves_events: false,
        events_endpoint: nobody("events"),
        replay_endpoint: nobody("replay"),
        model: loaded(Duration::ZERO).model,
        workers: vec![WorkerRecord { worker, generation: LIFE, total_blocks: 100 }],
        profile: ProfileRecord { role, handover, ..ProfileRecord::default() },
        accepting: true,
        lease_ms: u64::MAX,
        lease_expires_unix_ms: u64::MAX,
    }
}

impl Bed {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let decode = Scripted::default();
        let prefill = record(&dir, PREFILL, Role::Prefill, serve(&Scripted::default()));
        put(&dir, &prefill);
        put(&dir, &record(&dir, DECODE, Role::Decode, serve(&decode)));
        let (split, min_samples) = (Split::Always, 1);
        let placement =
            stator_placement::PlacementSettings { split, min_samples, ..Default::default() };
        let poll = Duration::from_millis(5);
        let settings = FleetSettings { poll, ..FleetSettings::new(dir.path().into()) };
        let pools = pools(PoolSettings { placement, ..PoolSettings::default() });
        let (fleet, mut events) = Fleet::start(settings, FleetMetrics::default(), pools);
        let pool = model_up(&mut events).await;
        let bed = Self { pool, decode, record: prefill, _fleet: fleet, dir };
        bed.until_accepting(2).await;
        bed
    }

    async fn until_accepting(&self, workers: usize) {
        until("workers as wanted", || self.pool.accepting() == workers).await;
    }

    /// A request of 40 tokens, sent to the agent.
    fn submit(&self) -> (Place, TokenStream) {
        submit(&self.pool, &prompt(40), |_| ())
    }

    fn bookings(&self) -> usize {
        self.pool.stats().bookings
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_told_who_computes_the_prompt() {
    let bed = Bed::start().await;
    let (place, _) = bed.submit();
    let peer = PrefillPeer {
        endpoint: bed.record.endpoint.clone(),
        worker_id: PREFILL,
        rank: 0,
        handover_json: HANDOVER.into(),
    };
    assert_eq!((place.worker().worker.0, place.no_split()), (DECODE, None));
    assert_eq!(place.prefill_peer(), Some(peer.clone()));
    let told = Submit { worker_id: DECODE, prefill: Some(peer.clone()), ..Submit::default() };
    let _stream = place.client().submit(told);
    let heard = || {
        let script = bed.decode.0.lock().unwrap();
        script.submits.iter().any(|submit| submit.prefill.as_ref() == Some(&peer))
    };
    until("the agent is asked", heard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_places_are_given_back_whichever_way_a_request_goes() {
    let bed = Bed::start().await;
    let (place, stream) = bed.submit();
    assert_eq!(bed.bookings(), 2);
    place.prefill_done(None);
    assert_eq!(bed.bookings(), 1, "the worker for prompts is done with the first token");
    place.prefill_done(None);
    drop((place, stream));
    assert_eq!(bed.bookings(), 0);
    // Nobody waits for the first token.
    drop(bed.submit());
    assert_eq!(bed.bookings(), 0);
    // The worker for prompts is gone before it has answered.
    let (place, _stream) = bed.submit();
    std::fs::remove_file(bed.dir.path().join(format!("{}.json", bed.record.agent_id))).unwrap();
    bed.until_accepting(1).await;
    assert_eq!(bed.bookings(), 1);
    place.prefill_done(None);
    drop(place);
    assert_eq!(bed.bookings(), 0);
    assert_eq!(bed.submit().0.no_split(), Some(NoSplitReason::NoPrefillWorker));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_of_the_kv_is_part_of_what_is_predicted() {
    let bed = Bed::start().await;
    let minute = Duration::from_secs(60);
    for _ in 0..2 {
        let (place, _) = bed.submit();
        place.prefill_done(None);
        place.output_block();
        // A worker that takes longer for a block than there is time since has a pace of its own.
        assert!(place.handed_over(minute).is_some_and(|way| way <= minute));
    }
    let (place, _) = bed.submit();
    let predicted = place.decision().predicted.expect("it has seen enough");
    assert!(predicted.ttft_ms > 5_000.0, "{predicted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_newly_says_of_its_kv_is_what_others_are_told() {
    let bed = Bed::start().await;
    let mut record = bed.record.clone();
    record.profile.handover = None;
    put(&bed.dir, &record);
    bed.until_accepting(1).await;
    let (place, _) = bed.submit();
    assert_eq!((place.prefill_peer(), place.no_split()), (None, Some(NoSplitReason::NoHandover)));
    record.profile.handover = Some("{}".into());
    put(&bed.dir, &record);
    bed.until_accepting(2).await;
    let (place, _) = bed.submit();
    assert_eq!(place.prefill_peer().map(|peer| peer.handover_json), Some("{}".into()));
}
