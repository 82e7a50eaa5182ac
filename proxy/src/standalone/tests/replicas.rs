//! Two processes that place requests on the same workers.

use super::scripted::{LIFE, Scripted, serve};
use super::*;
use stator_peers::{PeersSettings, Seat};
use stator_placement::{Affinity, InFlight, PlacementSettings, SessionSettings};
use stator_protos::discovery::{ApiRecord, ProfileRecord, WorkerRecord};
use stator_protos::{WorkerId, WorkerRank};
use std::net::SocketAddr;

const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: 0 };

/// A replica that others may join.
struct Joined {
    pool: Arc<Pool>,
    address: SocketAddr,
    _fleet: Fleet,
}

impl Joined {
    /// One that listens to `peer` and has found so many workers.
    async fn start(dir: &Path, peer: SocketAddr, workers: usize) -> Self {
        let settings = PeersSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            peers: vec![peer.to_string()],
            ..PeersSettings::default()
        };
        let seat = Seat::take(settings, "test", &Metrics::default()).await.unwrap();
        let address = seat.address().unwrap();
        let poll = Duration::from_millis(5);
        let sessions = SessionSettings::new(Affinity::Hard, Duration::from_secs(600), 100);
        let placement =
            PlacementSettings { sessions: Some(sessions), ..PlacementSettings::default() };
        let settings = FleetSettings { poll, ..FleetSettings::new(dir.into()) };
        let pools = PoolSettings { placement, ..PoolSettings::default() };
        let pools = ModelPools::new(pools, Some(seat));
        let (fleet, mut events) = Fleet::start(settings, FleetMetrics::default(), pools);
        let pool = model_up(&mut events).await;
        until("the workers", || pool.accepting() == workers).await;
        Self { pool, address, _fleet: fleet }
    }

    fn place(&self, sequence: &[SequenceHash]) -> Place {
        let prompt_tokens = sequence.len() as u32 * 16;
        let request = PlacementRequest { sequence, prompt_tokens, ..PlacementRequest::default() };
        self.pool.place(&request).unwrap()
    }

    /// Where a request of a session goes, whose prompt nobody has.
    fn place_of(&self, session: u64) -> Place {
        let request = PlacementRequest {
            session: Some(session),
            prompt_tokens: 16,
            ..PlacementRequest::default()
        };
        self.pool.place(&request).unwrap()
    }

    fn sessions(&self) -> usize {
        self.pool.workers().sessions(0, 100).unwrap_or_default().len()
    }

    fn in_flight(&self) -> InFlight {
        self.pool.workers().state.lock().placement.in_flight(WORKER)
    }
}

/// Workers whose engine says nothing of its blocks.
fn put_workers(dir: &tempfile::TempDir, workers: u64) {
    let nobody = |name| format!("ipc://{}", dir.path().join(name).display());
    let url = "http://127.0.0.1:1".into();
    let api = ApiRecord { url, model: "m".into(), takes_cache_salt: false };
    let model = ModelRecord { vocab_size: 0, ..loaded(Duration::ZERO).model };
    let worker = |number| WorkerRank { worker: WorkerId(number), rank: 0 };
    let worker =
        |number| WorkerRecord { worker: worker(number), generation: LIFE, total_blocks: 100 };
    let record = AgentRecord {
        agent_id: "agent".into(),
        endpoint: serve(&Scripted::default()),
        serves_events: false,
        events_endpoint: nobody("events"),
        replay_endpoint: nobody("replay"),
        model,
        workers: (1..=workers).map(worker).collect(),
        profile: ProfileRecord { api: Some(api), ..ProfileRecord::default() },
        accepting: true,
        lease_ms: u64::MAX,
        lease_expires_unix_ms: u64::MAX,
    };
    put(dir, &record);
}

#[tokio::test]
async fn what_one_replica_sends_counts_for_the_other_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    put_workers(&dir, 1);
    let nobody = ([127, 0, 0, 1], 1).into();
    let one = Joined::start(dir.path(), nobody, 1).await;
    let early = one.place(&sequence(&prompt(160)));

    let other = Joined::start(dir.path(), one.address, 1).await;
    assert_eq!(other.pool.overlap(WORKER, &sequence(&prompt(160))), 10, "it starts warm");
    let booked =
        |requests| InFlight { requests, prefill_tokens: 160 * requests, blocks: 10 * requests };
    until("what was sent before", || other.in_flight() == booked(1)).await;

    let ids: Vec<u32> = (500..660).collect();
    let late = one.place(&sequence(&ids));
    until("what is sent now", || other.in_flight() == booked(2)).await;
    assert_eq!(other.pool.overlap(WORKER, &sequence(&ids)), 10, "both are told at once");
    late.prefill_done(None);
    until("a prompt that is computed", || other.in_flight().prefill_tokens == 160).await;
    drop((early, late));
    until("the ends", || other.in_flight() == InFlight::default()).await;
    assert_eq!(one.in_flight(), InFlight::default(), "nobody tells it what it did itself");
}

#[tokio::test]
async fn sessions_stay_where_another_replica_sent_them() {
    let dir = tempfile::tempdir().unwrap();
    put_workers(&dir, 8);
    let one = Joined::start(dir.path(), ([127, 0, 0, 1], 1).into(), 8).await;
    let mut homes: Vec<_> = (0..8).map(|session| one.place_of(session)).collect();

    let other = Joined::start(dir.path(), one.address, 8).await;
    assert_eq!(other.sessions(), 8, "it starts with them");
    until("it listens", || other.in_flight().requests > 0).await;
    homes.extend((8..16).map(|session| one.place_of(session)));
    until("it is told", || other.sessions() == 16).await;
    for (session, home) in homes.iter().enumerate() {
        assert_eq!(other.place_of(session as u64).worker(), home.worker(), "{session}");
    }
}
