//! Two replicas over real sockets, with a configuration whose prefixes are those that were sent.

use super::*;
use crate::director::tests::{Bench, Engine, bench, head};
use crate::exchange::{AnswerBody, RequestHead};
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

/// Costs of the placement core, which is what decides where nothing is configured.
const DEFAULT: &str = "";

/// Prompts with beginnings of their own, each of several blocks.
fn prompts(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("Document {n} of those that are asked about. ").repeat(60)).collect()
}

/// Counts the homes that stayed, of those that `counts` takes.
fn stayed(
    before: &[SocketAddr],
    after: &[SocketAddr],
    counts: impl Fn(&SocketAddr) -> bool,
) -> (usize, usize) {
    let pairs = || before.iter().zip(after).filter(|(home, _)| counts(home));
    (pairs().filter(|(home, now)| home == now).count(), pairs().count())
}

impl Joined {
    /// All that this replica believes endpoints to hold, whoever sent it.
    fn believed(&self) -> FxHashSet<(WorkerRank, SequenceHash)> {
        let plugins = self.bench.pool.with(|scheduler, _| {
            let shared = scheduler.program().shared.iter();
            let all = shared.filter_map(|index| index.plugin.predictions(0, usize::MAX));
            all.flatten().collect::<Vec<_>>()
        });
        let core = self.bench.pool.predictions(0, usize::MAX).unwrap_or_default();
        plugins.into_iter().chain(core).collect()
    }

    /// Sends a prompt whose answer ends at once; where it went.
    async fn ask(&self, text: &str) -> SocketAddr {
        let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
        let passes = RequestHead { answer: AnswerBody::Passes, ..head(&[]) };
        self.bench.ask(passes, &body).await.expect("it is routed").endpoints[0]
    }

    /// Requests that this replica takes to be in flight, whoever sent them.
    fn in_flight(&self) -> u64 {
        self.bench.pool.with(|scheduler, _| {
            scheduler.endpoints().map(|(.., in_flight)| in_flight.requests).sum()
        })
    }

    /// Waits until what this replica sends reaches another.
    async fn reaches(&self, other: &Joined) {
        let (mut sent, mut asked) = (Vec::new(), 0);
        until("a replica is told", async || {
            let before = self.believed();
            asked += 1;
            self.ask(&format!("{asked} reaches {}. ", other.address).repeat(100)).await;
            let news: Vec<_> = self.believed().difference(&before).copied().collect();
            sent.push(news);
            let told = other.believed();
            sent.iter().any(|news| !news.is_empty() && news.iter().all(|one| told.contains(one)))
        })
        .await;
    }
}

/// Three replicas: the second joined the first, and the third both. Who was joined tells what it
/// sends.
async fn three(config: &str) -> [Joined; 3] {
    let first = Joined::start(config, &[]).await;
    let second = Joined::start(config, &[first.address]).await;
    let third = Joined::start(config, &[first.address, second.address]).await;
    let all = [first, second, third];
    for (from, to) in [(0, 1), (0, 2), (1, 2)] {
        all[from].reaches(&all[to]).await;
    }
    all
}

/// One of three replicas dies after it and another have sent prompts in turn, while answers that it
/// follows are on their way. The prompts' next turns go where the first ones went, whichever of the
/// others they come to.
async fn check_a_death(config: &str) {
    let all = three(config).await;
    let before = all.each_ref().map(Joined::believed);
    let (prompts, mut homes) = (prompts(300), Vec::new());
    for (n, prompt) in prompts.iter().enumerate() {
        homes.push(all[n % 2].ask(prompt).await);
    }
    until("all know all", async || {
        let known = all.each_ref().map(Joined::believed);
        let new = |n: usize| known[n].difference(&before[n]).copied().collect::<Vec<_>>();
        let heard = |n: usize, one: &_| known[n + 1..].iter().all(|known| known.contains(one));
        (0..2).all(|n| new(n).iter().all(|one| heard(n, one)))
    })
    .await;
    let [dead, one, other] = all;
    let mut running = Vec::new();
    for n in 0..6 {
        let text = format!("{n} is on its way. ").repeat(100);
        let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
        let passes = RequestHead { answer: AnswerBody::Passes, ..head(&[]) };
        running.push(dead.bench.ask(passes, &body).await.expect("it is routed"));
    }
    drop(dead);
    let mut after = Vec::new();
    for (n, prompt) in prompts.iter().enumerate() {
        let survivor = if n % 2 == 0 { &one } else { &other };
        // First the load of the dead is forgotten, then that of the other survivor's last request:
        // an endpoint that is busier than another may lose a prompt to it.
        until("nothing is in flight", async || survivor.in_flight() == 0).await;
        after.push(survivor.ask(&format!("{prompt} And then?")).await);
    }
    let (same, of) = stayed(&homes, &after, |_| true);
    assert!(same * 100 >= of * 99, "{same} of {of} prompts stayed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_stay_where_they_were_when_one_of_three_replicas_dies() {
    check_a_death(DEFAULT).await;
    check_a_death(CONFIG).await;
}

/// One of three endpoints leaves: the prompts of the others stay.
async fn check_a_loss(config: &str) {
    let engines = [0, 1, 2].map(|number| Engine(number, 0, 0.0, &[]));
    let bench = bench(config, &engines);
    let replica = async |text: &str| {
        let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
        let passes = RequestHead { answer: AnswerBody::Passes, ..head(&[]) };
        bench.ask(passes, &body).await.expect("it is routed").endpoints[0]
    };
    let (prompts, mut homes) = (prompts(300), Vec::new());
    for prompt in &prompts {
        homes.push(replica(prompt).await);
    }
    let lost = homes[0];
    bench.views.send_modify(|view| {
        Arc::make_mut(view).endpoints.retain(|endpoint| endpoint.address != lost);
    });
    bench.pool.follow_view();
    let mut after = Vec::new();
    for prompt in &prompts {
        after.push(replica(&format!("{prompt} And then?")).await);
    }
    let (same, of) = stayed(&homes, &after, |home| *home != lost);
    assert!(of >= 100, "only {of} prompts were elsewhere");
    assert!(same * 100 >= of * 99, "{same} of {of} prompts stayed");
    assert!(!after.contains(&lost));
}

#[tokio::test]
async fn prompts_stay_where_they_were_when_one_of_three_endpoints_dies() {
    check_a_loss(DEFAULT).await;
    check_a_loss(CONFIG).await;
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

/// Lets the placement core bind sessions.
const BOUND: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: kv-aware, parameters: {sessionTtlSeconds: 60}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_share_the_sessions_that_the_placement_core_binds() {
    let send = async |replica: &Joined, name: &'static str| {
        let head = head(&[("x-dynamo-session-id", name)]);
        replica.bench.ask(head, r#"{"model":"m","prompt":"Hello"}"#).await.expect("it is routed");
    };
    let sessions = |replica: &Joined| replica.bench.pool.sessions(0, usize::MAX >> 1);
    let first = Joined::start(BOUND, &[]).await;
    send(&first, "a").await;
    let second = Joined::start(BOUND, &[first.address]).await;
    assert_eq!(sessions(&second), sessions(&first));
    assert_eq!(sessions(&second).map(|sessions| sessions.len()), Some(1));
    until("it is told", async || {
        // Until the second listens, it is told of nothing.
        send(&first, "b").await;
        sessions(&second).is_some_and(|sessions| sessions.len() == 2)
    })
    .await;
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
