//! Replicas in one process, over real sockets on free ports.

mod faults;
mod secure;
mod start;

use super::*;
use crate::hub::FeedSubscription;
use parking_lot::Mutex;
use stator_placement::{PeerLoad, WorkerHoldings};
use stator_protos::hash::SequenceHash;
use stator_protos::{WorkerId, WorkerRank};
use stator_runtime::shutdown::Trigger;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

const POOL: PoolId = PoolId(0);

/// Waits until `done`, which must come true by itself.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waiting = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
        panic!("waited in vain: {what}");
    }
}

fn worker(number: u64) -> WorkerRank {
    WorkerRank { worker: WorkerId(number), rank: 0 }
}

fn requests(requests: u64) -> PeerLoad {
    PeerLoad { requests, tokens: 10 * requests, blocks: requests, ..PeerLoad::default() }
}

fn sequence(from: u64, blocks: u64) -> Vec<SequenceHash> {
    (from..from + blocks).map(SequenceHash).collect()
}

type ByWorker<T> = BTreeMap<(PoolId, WorkerRank), T>;

/// Pools that remember what they are told.
#[derive(Default)]
struct Fake {
    /// Where its changes are told.
    outbox: OnceLock<Outbox>,
    own: Mutex<ByWorker<PeerLoad>>,
    own_version: AtomicU64,
    others: Mutex<ByWorker<PeerLoad>>,
    sent: Mutex<ByWorker<Vec<SequenceHash>>>,
    held: Mutex<ByWorker<WorkerHoldings>>,
    predicted: Mutex<Vec<(WorkerRank, SequenceHash)>>,
}

impl Fake {
    /// So many requests are in flight from here at a worker.
    fn has(&self, number: u64, count: u64) {
        self.own.lock().insert((POOL, worker(number)), requests(count));
        self.own_version.fetch_add(1, Ordering::Relaxed);
        if let Some(outbox) = self.outbox.get() {
            outbox.stir();
        }
    }

    /// Requests that others have, by worker.
    fn hears(&self) -> Vec<(u64, u64)> {
        let others = self.others.lock();
        let heard = others.iter().filter(|(_, value)| value.requests > 0);
        heard.map(|((_, rank), value)| (rank.worker.0, value.requests)).collect()
    }

    fn was_sent(&self, number: u64) -> Vec<SequenceHash> {
        self.sent.lock().get(&(POOL, worker(number))).cloned().unwrap_or_default()
    }
}

impl Replica for Fake {
    fn pools(&self) -> Vec<String> {
        vec!["default/llama".into(), "default/qwen".into()]
    }

    fn own(&self, pool: PoolId, seen: &mut u64, out: &mut Vec<(WorkerRank, PeerLoad)>) -> bool {
        let version = self.own_version.load(Ordering::Relaxed);
        if std::mem::replace(seen, version) == version {
            return false;
        }
        let own = self.own.lock();
        out.extend(own.iter().filter(|(key, _)| key.0 == pool).map(|(key, value)| (key.1, *value)));
        true
    }

    fn set_others(&self, pool: PoolId, others: &[(WorkerRank, PeerLoad)]) {
        self.others.lock().extend(others.iter().map(|&(worker, value)| ((pool, worker), value)));
    }

    fn may_have_room(&self, _: PoolId) {}

    fn sent(&self, pool: PoolId, worker: WorkerRank, sequence: &[SequenceHash]) {
        self.sent.lock().entry((pool, worker)).or_default().extend(sequence);
    }
}

impl Blocks for Fake {
    fn workers(&self, pool: PoolId) -> Vec<WorkerRank> {
        self.held.lock().keys().filter(|key| key.0 == pool).map(|key| key.1).collect()
    }

    fn held(&self, pool: PoolId, workers: &[WorkerRank]) -> Vec<(WorkerRank, WorkerHoldings)> {
        let held = self.held.lock();
        workers.iter().filter_map(|rank| Some((*rank, held.get(&(pool, *rank))?.clone()))).collect()
    }

    fn predicted(
        &self,
        pool: PoolId,
        from: usize,
        most: usize,
    ) -> Option<Vec<(WorkerRank, SequenceHash)>> {
        let predicted = self.predicted.lock();
        let rest = predicted.get(from..).filter(|rest| pool == POOL && !rest.is_empty())?;
        Some(rest.iter().take(most).copied().collect())
    }

    /// Worker 0 has an event feed that knows better.
    fn restore(&self, pool: PoolId, rank: WorkerRank, held: WorkerHoldings) -> bool {
        let taken = rank != worker(0);
        if taken {
            self.held.lock().insert((pool, rank), held);
        }
        taken
    }
}

/// A replica that runs until it is dropped.
struct Member {
    fake: Arc<Fake>,
    peers: Peers,
    metrics: PeersMetrics,
    address: SocketAddr,
    shutdown: Trigger,
    running: JoinSet<Result<(), tonic::transport::Error>>,
}

impl Member {
    fn start(listener: Listener, settings: PeersSettings) -> Self {
        let (fake, metrics) = (Arc::new(Fake::default()), PeersMetrics::default());
        let peers = Peers::new(settings, fake.clone(), metrics.clone());
        fake.outbox.set(peers.outbox()).expect("it is new");
        let address = listener.address().expect("it is bound");
        let (shutdown, stop) = Shutdown::new();
        let mut running = JoinSet::new();
        running.spawn(peers.clone().run(listener, stop));
        Self { fake, peers, metrics, address, shutdown, running }
    }
}

async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("there is a free port")
}

/// Addresses of sockets that wait for their members.
fn addresses(listeners: &[TcpListener]) -> Vec<String> {
    let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
    listeners.iter().map(address).collect()
}

/// Settings with these peers, and waits that suit a test.
fn settings(peers: Vec<String>) -> PeersSettings {
    let (interval, resolve) = (Duration::from_millis(2), Duration::from_millis(50));
    PeersSettings { peers, interval, resolve, ..PeersSettings::default() }
}

/// So many replicas; each is told of all, itself among them.
async fn group(count: usize) -> Vec<Member> {
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(bind().await);
    }
    let settings = settings(addresses(&listeners));
    let start = |tcp| Member::start(Listener::plain(tcp), settings.clone());
    let members: Vec<_> = listeners.into_iter().map(start).collect();
    for member in &members {
        let others = count as i64 - 1;
        let connected = || member.metrics.connected.get() == others;
        until("everybody hears everybody", connected).await;
        until("and is heard", || member.metrics.listeners.get() >= others).await;
    }
    members
}

#[tokio::test]
async fn what_each_has_in_flight_counts_for_all() {
    let members = group(3).await;
    for (member, count) in members.iter().zip([1, 2, 4]) {
        member.fake.has(7, count);
    }
    members[0].fake.has(8, 5);
    let hear = [vec![(7, 6)], vec![(7, 5), (8, 5)], vec![(7, 3), (8, 5)]];
    for (member, expected) in members.iter().zip(hear) {
        until("sums of the others", || member.fake.hears() == expected).await;
    }
    members[0].fake.own.lock().remove(&(POOL, worker(8)));
    members[0].fake.has(7, 0);
    members[1].fake.has(7, 9);
    for (member, expected) in members.iter().zip([13, 4, 9]) {
        until("sums that changed", || member.fake.hears() == [(7, expected)]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_changes_is_told_at_once_where_nothing_was_told_just_before() {
    let (fake, settings) = (Arc::new(Fake::default()), settings(Vec::new()));
    let hub = Arc::new(Hub::new(&settings, fake.clone(), PeersMetrics::default()));
    fake.outbox.set(hub.outbox.clone()).expect("it is new");
    tokio::spawn(hub::speak(hub.clone(), settings.interval));
    let (mut subscription, _) = FeedSubscription::new(&hub).expect("there is room");
    let mut told = async |count| {
        let changed = Instant::now();
        fake.has(7, count);
        let frame = subscription.next(DEADLINE).await;
        assert_eq!(frame.gauges, [((POOL, worker(7)), requests(count))]);
        changed.elapsed()
    };
    assert_eq!(told(1).await, Duration::ZERO);
    assert_eq!(told(2).await, settings.interval);
    tokio::time::sleep(settings.interval).await;
    assert_eq!(told(3).await, Duration::ZERO);
}

#[tokio::test]
async fn a_prompt_that_one_sent_is_known_to_all() {
    let members = group(3).await;
    let prompt = sequence(1, 50);
    let outbox = members[0].peers.outbox();
    outbox.sent(POOL, worker(7), &prompt);
    outbox.stir();
    for member in &members[1..] {
        until("the prompt", || member.fake.was_sent(7) == prompt).await;
    }
    assert_eq!(members[0].fake.was_sent(7), [], "nobody tells us what we did");
    assert_eq!(members[0].metrics.queue_dropped.get(), 0);
}

#[tokio::test]
async fn a_pool_that_comes_later_is_shared_by_its_name() {
    let members = group(2).await;
    let [one, other] = &members[..] else { panic!("there are two") };
    let other_first = other.peers.share("other").expect("there is room");
    let here = one.peers.share("later").expect("there is room");
    one.fake.own.lock().insert((here, worker(7)), requests(3));
    one.fake.has(8, 1);
    let there = other.peers.share("later").expect("there is room");
    assert_ne!(other_first, there);
    let heard = || other.fake.others.lock().get(&(there, worker(7))).copied();
    until("it is heard under the number that it has there", || heard() == Some(requests(3))).await;
}

#[tokio::test]
async fn a_worker_that_comes_later_is_told_too() {
    let members = group(2).await;
    members[0].fake.has(7, 3);
    let other = &members[1].fake;
    until("the first telling", || other.hears() == [(7, 3)]).await;
    other.others.lock().clear();
    until("it is told again", || other.hears() == [(7, 3)]).await;
}

#[tokio::test]
async fn a_replica_alone_hears_nobody_and_not_itself() {
    let listener = bind().await;
    let port = listener.local_addr().expect("it is bound").port();
    let peers = vec![format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let member = Member::start(Listener::plain(listener), settings(peers));
    member.fake.has(7, 3);
    until("it found itself", || member.metrics.aliases.get() > 1).await;
    assert_eq!(member.metrics.connected.get(), 0);
    assert_eq!(member.fake.hears(), []);
}

#[tokio::test]
async fn a_peer_is_heard_once_however_many_addresses_it_has() {
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let many = Member::start(Listener::plain(listener), settings(Vec::new()));
    let peers = (1..4).map(|n| format!("127.0.0.{n}:{port}")).collect();
    let hearing = Member::start(Listener::plain(bind().await), settings(peers));
    many.fake.has(7, 3);
    until("all addresses were tried", || hearing.metrics.aliases.get() > 1).await;
    until("it is heard", || hearing.fake.hears() == [(7, 3)]).await;
    assert_eq!(hearing.metrics.connected.get(), 1);
}
