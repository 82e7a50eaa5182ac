//! Two replicas over real sockets, with a configuration whose prefixes are those that were sent.

use super::*;
use crate::director::tests::{Bench, Engine, bench, head};
use rustc_hash::FxHashSet;
use stator_peers::PeersSettings;
use stator_runtime::metrics::Metrics;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;

/// How endpoints are chosen.
const CONFIG: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../manifests/epp/configs/llm-d-default.yaml"
));

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

/// A replica, and where others join it.
struct Joined {
    bench: Bench,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Joined {
    /// A replica that joins `peers` and has taken over what they know.
    async fn start(config: &str, peers: &[SocketAddr]) -> Self {
        let engines: Vec<_> = (0..8).map(|number| Engine(number, 0, 0.0, &[])).collect();
        let bench = bench(config, &engines);
        let settings = PeersSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            peers: peers.iter().map(SocketAddr::to_string).collect(),
            ..PeersSettings::default()
        };
        let seat = Seat::take(settings, "stator_epp", &Metrics::default()).await;
        let seat = seat.expect("there is a free port");
        let address = seat.address().expect("it is bound");
        let (warm, mut warmed) = watch::channel(false);
        let (never, ended) = Shutdown::new();
        let mut tasks = JoinSet::new();
        let pools = vec![bench.pool.clone()];
        tasks.spawn(async move {
            let _never = never;
            join(seat, pools, false, warm, ended).await;
        });
        let warm = tokio::time::timeout(DEADLINE, warmed.wait_for(|warm| *warm)).await;
        assert!(*warm.expect("it starts in time").expect("it runs on"));
        Self { bench, address, _tasks: tasks }
    }

    /// What its index knows, or its memory of sessions.
    fn known(&self) -> FxHashSet<(WorkerRank, SequenceHash)> {
        let known = self
            .bench
            .pool
            .with(|scheduler, _| scheduler.program().shared[0].plugin.predictions(0, usize::MAX));
        known.unwrap_or_default().into_iter().collect()
    }

    /// Where a prompt goes, of which a part must be known.
    async fn follow(&self, text: &str) -> SocketAddr {
        let body = format!(r#"{{"model":"m","prompt":"{text} And then?"}}"#);
        let cached = head(&[("prefer", "if-available")]);
        self.bench.ask(cached, &body).await.expect("its beginning is known").endpoints[0]
    }

    /// Where a prompt goes.
    async fn send(&self, text: &str) -> SocketAddr {
        let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
        self.bench.ask(head(&[]), &body).await.expect("it is routed").endpoints[0]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_sends_is_known_to_one_that_starts_and_to_one_that_runs() {
    let first = Joined::start(CONFIG, &[]).await;
    let before = "What was asked before the other started. ".repeat(200);
    let home = first.send(&before).await;

    let second = Joined::start(CONFIG, &[first.address]).await;
    assert!(!second.known().is_empty());
    assert_eq!(second.known(), first.known());
    assert_eq!(second.follow(&before).await, home);

    // Until the second listens, it is told of nothing.
    let known = second.known().len();
    let mut asked = 0;
    until("it listens", async || {
        asked += 1;
        first.send(&format!("{asked} is a number. ").repeat(100)).await;
        second.known().len() > known
    })
    .await;
    let (after, known) = ("What is asked while both of them run. ".repeat(200), first.known());
    let home = first.send(&after).await;
    let news: Vec<_> = first.known().difference(&known).copied().collect();
    assert!(!news.is_empty());
    until("it is told", async || {
        let known = second.known();
        news.iter().all(|block| known.contains(block))
    })
    .await;
    assert_eq!(second.follow(&after).await, home);
}

/// Keeps sessions where they were.
const SESSIONS: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: session-affinity-filter, parameters: {strategy: session_id}}
- {type: random-picker}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: session-affinity-filter}, {pluginRef: random-picker}]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_stays_where_another_replica_sent_it() {
    const NAMES: [&str; 16] =
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
    let send = async |replica: &Joined, name: &'static str| {
        let body = r#"{"model":"m","prompt":"Hello"}"#;
        let head = head(&[("x-session-id", name)]);
        replica.bench.ask(head, body).await.expect("it is routed").endpoints[0]
    };
    let first = Joined::start(SESSIONS, &[]).await;
    let mut homes = Vec::new();
    for name in &NAMES[..8] {
        homes.push(send(&first, name).await);
    }
    let second = Joined::start(SESSIONS, &[first.address]).await;
    assert_eq!(second.known(), first.known());
    for name in &NAMES[8..] {
        homes.push(send(&first, name).await);
    }
    until("it is told", async || {
        // Until the second listens, it is told of nothing.
        for name in &NAMES[8..] {
            send(&first, name).await;
        }
        second.known() == first.known()
    })
    .await;
    for (name, home) in NAMES.into_iter().zip(homes) {
        assert_eq!(send(&second, name).await, home, "{name}");
    }
}

/// Waits until `done`, which must come true by itself.
async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
        panic!("waited in vain: {what}");
    }
}

/// What a replica tells of what it has in flight, and what it takes others' word for.
async fn load_told_and_taken(apart: bool) -> (bool, u64) {
    let bench = bench(CONFIG, &[Engine(0, 0, 0.0, &[])]);
    let body = r#"{"model":"m","prompt":"hello"}"#;
    bench.ask(head(&[]), body).await.expect("it is routed");
    let shared = Shared::new(std::slice::from_ref(&bench.pool), apart);
    let (mut seen, mut own) = (0, Vec::new());
    let told = shared.own(PoolId(0), &mut seen, &mut own);
    assert_eq!(own.len(), usize::from(told));
    let worker = bench.pool.with(|scheduler, _| {
        let (endpoint, ..) = scheduler.endpoints().next().expect("there is one");
        endpoint.worker
    });
    shared.set_others(PoolId(0), &[(worker, PeerLoad { requests: 7, ..PeerLoad::default() })]);
    let in_flight = bench
        .pool
        .with(|scheduler, _| scheduler.endpoints().map(|(.., in_flight)| in_flight.requests).sum());
    (told, in_flight)
}

#[tokio::test]
async fn replicas_go_by_what_all_have_in_flight_unless_they_are_to_keep_apart() {
    assert_eq!(load_told_and_taken(false).await, (true, 8));
    assert_eq!(load_told_and_taken(true).await, (false, 1));
}
