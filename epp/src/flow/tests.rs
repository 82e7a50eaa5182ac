//! Requests of a pool whose endpoints take one request each, so that all others wait.

use crate::director::tests::{Bench, Engine, Sent, bench, head, prompt};
use crate::exchange::{AnswerBody, Interest, Refusal, RequestHead, Watch};
use prometheus_client::encoding::text::encode;
use stator_epp_metrics::PoolView as _;
use stator_epp_signals::LoadSink;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins: [{type: queue-scorer}, {type: round-robin-fairness-policy},
  {type: concurrency-detector, parameters: {maxConcurrency: 1}}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 5s
  noEndpointRequestTTL: 1s
  priorityBands:
  - {priority: 0, maxRequests: 3, fairnessPolicyRef: round-robin-fairness-policy}
";

type Answer = Result<Sent, Refusal>;

fn full() -> Bench {
    bench(CONFIG, &[Engine(1, 0, 0.1, &[])])
}

/// Asks with these headers; the answer passes through the picker, which so learns of its end.
async fn ask(bench: &Bench, headers: &[(&str, &'static str)]) -> Answer {
    let head = RequestHead { answer: AnswerBody::Passes, ..head(headers) };
    bench.ask(head, &prompt("m")).await
}

async fn waits(request: &mut Pin<&mut impl Future<Output = Answer>>) -> bool {
    futures::poll!(request.as_mut()).is_pending()
}

#[track_caller]
fn check_dropped(answer: Answer, status: u16, reason: Option<&str>) {
    let refusal = answer.err().expect("it is refused");
    assert_eq!((refusal.status, refusal.reason), (status, reason), "{}", refusal.message);
}

fn metrics(bench: &Bench) -> String {
    let mut text = String::new();
    encode(&mut text, &bench.registry).expect("text takes all");
    text
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_another_ends() {
    let bench = full();
    let first = ask(&bench, &[]).await.expect("there is room");
    let mut second = pin!(ask(&bench, &[]));
    assert!(waits(&mut second).await);
    drop(first);
    assert!(second.await.is_ok());
    let text = metrics(&bench);
    let dispatched = r#"flow_control_requests_total{outcome="Dispatched",priority="0","#;
    let line = text.lines().find(|line| line.contains(dispatched)).unwrap_or_default();
    assert!(line.ends_with(" 2"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_that_come_at_once_do_not_share_a_place() {
    let (bench, running) = (Arc::new(full()), Arc::new(AtomicUsize::new(0)));
    let (mut clients, together) = (JoinSet::new(), Arc::new(Barrier::new(4)));
    for _ in 0..4 {
        let (bench, running, together) = (bench.clone(), running.clone(), together.clone());
        clients.spawn(async move {
            for _ in 0..1000 {
                // Nothing waits: all look for room at once.
                together.wait().await;
                let sent = ask(&bench, &[]).await.expect("its turn comes");
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "another has the place");
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                drop(sent);
            }
        });
    }
    clients.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn higher_priorities_go_first_and_none_is_shed() {
    let bench = full();
    let first = ask(&bench, &[]).await.expect("there is room");
    let objective = |name| [("x-llm-d-inference-objective", name)];
    let (low, high) = (objective("batch"), objective("critical"));
    let (mut low, mut high) = (pin!(ask(&bench, &low)), pin!(ask(&bench, &high)));
    assert!(waits(&mut low).await && waits(&mut high).await);
    drop(first);
    let high = high.await.expect("its turn has come");
    assert!(waits(&mut low).await);
    drop(high);
    assert!(low.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn flows_take_turns() {
    let bench = full();
    let first = ask(&bench, &[]).await.expect("there is room");
    let of = |name| [("x-llm-d-inference-fairness-id", name)];
    let (a, b) = (of("a"), of("b"));
    let (mut one, mut two) = (pin!(ask(&bench, &a)), pin!(ask(&bench, &a)));
    let mut other = pin!(ask(&bench, &b));
    assert!(waits(&mut one).await && waits(&mut two).await && waits(&mut other).await);
    drop(first);
    let one = one.await.expect("its turn has come");
    drop(one);
    let other = other.await.expect("the other flow's turn has come");
    assert!(waits(&mut two).await);
    drop(other);
    assert!(two.await.is_ok());
}

/// Whether another flow's request goes before an earlier one of the flow whose answer of ten tokens
/// has just ended, where flows share by `fairness`.
async fn another_goes_first(fairness: &str) -> bool {
    let config = CONFIG.replace("round-robin-fairness-policy", fairness);
    let bench = bench(&config, &[Engine(1, 0, 0.1, &[])]);
    let of = |name| [("x-llm-d-inference-fairness-id", name)];
    let (a, b) = (of("a"), of("b"));
    let mut first = ask(&bench, &a).await.expect("there is room");
    let (mut second, mut other) = (pin!(ask(&bench, &a)), pin!(ask(&bench, &b)));
    assert!(waits(&mut second).await && waits(&mut other).await);
    first.watch.headers(200, &crate::headers::Headers::default(), None);
    let answer = r#"{"usage":{"prompt_tokens":3,"completion_tokens":10,"total_tokens":13}}"#;
    first.watch.body(answer.into(), true, &mut Vec::new());
    first.watch.end();
    drop(first);
    // Both are kept, so that neither has the other's place.
    let answers = (futures::poll!(other.as_mut()), futures::poll!(second.as_mut()));
    assert_ne!(answers.0.is_ready(), answers.1.is_ready(), "there is room for one");
    answers.0.is_ready()
}

#[tokio::test(start_paused = true)]
async fn flows_share_by_the_tokens_of_answers_where_they_are_to() {
    assert!(another_goes_first("virtual-token-fairness-policy").await);
    assert!(!another_goes_first("deficit-round-robin-fairness-policy").await);
}

#[tokio::test(start_paused = true)]
async fn short_prompts_go_first_where_they_are_to() {
    let short = "{type: shortest-prompt-ordering-policy}, {type: queue-scorer}";
    let config = CONFIG.replacen("{type: queue-scorer}", short, 1);
    let ordered = "maxRequests: 3, orderingPolicyRef: shortest-prompt-ordering-policy,";
    let config = config.replace("maxRequests: 3,", ordered);
    let bench = bench(&config, &[Engine(1, 0, 0.1, &[])]);
    let first = ask(&bench, &[]).await.expect("there is room");
    let long = format!(r#"{{"model":"m","prompt":"{}"}}"#, "again and ".repeat(2000));
    let passes = || RequestHead { answer: AnswerBody::Passes, ..head(&[]) };
    let mut long = pin!(bench.ask(passes(), &long));
    let mut short = pin!(ask(&bench, &[]));
    assert!(waits(&mut long).await && waits(&mut short).await);
    drop(first);
    drop(short.await.expect("it is the shorter one's turn"));
    assert!(long.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_requests_wait_for_its_first_endpoint_is_ready() {
    let empty = bench(CONFIG, &[]);
    assert!(empty.pool.ready());
    empty.views.send_modify(|view| Arc::make_mut(view).synced = false);
    assert!(!empty.pool.ready(), "nobody knows of the pool");
    // Endpoints that take nothing are refused at once, and so is an empty pool where nobody waits.
    let full = full();
    full.pool.accepting(full.pool.view().endpoints[0].worker, false);
    assert!(!full.pool.ready());
    assert!(!bench("", &[]).pool.ready());
}

/// Asserts how a request that waits for a full endpoint ends, and after how long.
async fn check_wait(headers: &[(&str, &'static str)], ms: u64) {
    let bench = full();
    let _first = ask(&bench, &[]).await.expect("there is room");
    let start = Instant::now();
    check_dropped(ask(&bench, headers).await, 429, Some("rejected-ttl-expired"));
    assert_eq!(start.elapsed(), Duration::from_millis(ms));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_band_and_the_client_allow() {
    check_wait(&[], 5000).await;
    check_wait(&[("x-llm-d-inference-ttl", "150ms")], 150).await;
    check_wait(&[("x-llm-d-inference-ttl", "1h")], 5000).await;
    check_wait(&[("x-llm-d-inference-ttl", "soon")], 5000).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let bench = full();
    let _first = ask(&bench, &[]).await.expect("there is room");
    let (mut one, mut two, mut three) =
        (pin!(ask(&bench, &[])), pin!(ask(&bench, &[])), pin!(ask(&bench, &[])));
    assert!(waits(&mut one).await && waits(&mut two).await && waits(&mut three).await);
    let refusal = ask(&bench, &[]).await.err().expect("three wait already");
    assert_eq!((refusal.status, refusal.reason), (429, Some("rejected-saturated")));
    assert!(refusal.retry_after.is_some_and(|after| after >= Duration::from_secs(1)));
    let flow = bench.pool.snapshot().flow.expect("requests wait");
    let used: Vec<_> =
        flow.bands.iter().map(|band| (&*band.priority, band.used.requests)).collect();
    assert_eq!(used, [("0", Some(1.0))]);
    assert_eq!(flow.global.requests, None);
}

#[tokio::test(start_paused = true)]
async fn no_more_tokens_wait_than_may() {
    let config = CONFIG.replace("maxRequests: 3,", "maxTokens: 1000,");
    let bench = bench(&config, &[Engine(1, 0, 0.1, &[])]);
    let first = ask(&bench, &[]).await.expect("there is room");
    let long = format!(r#"{{"model":"m","prompt":"{}"}}"#, "again and ".repeat(2000));
    let passes = RequestHead { answer: AnswerBody::Passes, ..head(&[]) };
    check_dropped(bench.ask(passes, &long).await, 429, Some("rejected-saturated"));
    let mut short = pin!(ask(&bench, &[]));
    assert!(waits(&mut short).await);
    drop(first);
    assert!(short.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_empty_pool_is_worth_a_wait() {
    let bench = full();
    let all = bench.pool.view();
    let set = |endpoints| {
        bench
            .views
            .send_replace(Arc::new(stator_epp_pool::PoolView { endpoints, ..(*all).clone() }));
        bench.pool.follow_view();
    };
    set(Vec::new());
    let start = Instant::now();
    check_dropped(ask(&bench, &[]).await, 503, Some("rejected-no-endpoints"));
    assert_eq!(start.elapsed(), Duration::from_secs(1));

    let (mut one, mut two) = (pin!(ask(&bench, &[])), pin!(ask(&bench, &[])));
    assert!(waits(&mut one).await && waits(&mut two).await);
    tokio::time::advance(Duration::from_millis(900)).await;
    set(all.endpoints.clone());
    let _one = one.await.expect("there is an endpoint");
    // The endpoint is full now, for which one waits longer than for the first endpoint.
    let turned = Instant::now();
    check_dropped(two.await, 429, Some("rejected-ttl-expired"));
    assert_eq!(turned.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_waits_no_more_and_is_counted() {
    let bench = full();
    let first = ask(&bench, &[]).await.expect("there is room");
    {
        let mut gone = pin!(ask(&bench, &[]));
        assert!(waits(&mut gone).await);
    }
    let mut next = pin!(ask(&bench, &[]));
    assert!(waits(&mut next).await);
    drop(first);
    assert!(next.await.is_ok());
    assert!(metrics(&bench).contains(r#"{outcome="EvictedContextCancelled","#));
}

#[tokio::test(start_paused = true)]
async fn who_waits_when_the_picker_ends_is_told() {
    let bench = full();
    let _first = ask(&bench, &[]).await.expect("there is room");
    let mut one = pin!(ask(&bench, &[]));
    assert!(waits(&mut one).await);
    bench.flow.as_ref().expect("requests wait").close();
    check_dropped(one.await, 503, None);
    check_dropped(ask(&bench, &[]).await, 503, Some("rejected-shutting-down"));
}

/// What the metrics say of a series; `None` where it is not there.
fn level(bench: &Bench, series: &str) -> Option<f64> {
    let text = metrics(bench);
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next().and_then(|level| level.parse().ok())
}

#[tokio::test(start_paused = true)]
async fn what_programs_get_is_told_where_flows_share_by_it() {
    const SERVICE: &str = r#"llm_d_epp_program_aware_attained_service_tokens{program_id="a"}"#;
    const WAIT: &str = r#"llm_d_epp_program_aware_avg_wait_time_milliseconds{program_id="a"}"#;
    let of = [("x-llm-d-inference-fairness-id", "a")];
    let turns = full();
    ask(&turns, &of).await.expect("there is room");
    assert_eq!(level(&turns, "llm_d_epp_program_aware"), None);

    // So slow that nothing is forgotten within a test.
    let slow = "{type: program-aware-fairness, parameters: {lasHalfLifeSeconds: 86400}}";
    let config = CONFIG.replace("{type: round-robin-fairness-policy}", slow);
    let config = config.replace("round-robin-fairness-policy", "program-aware-fairness");
    let bench = bench(&config, &[Engine(1, 0, 0.1, &[])]);
    let mut watch = ask(&bench, &of).await.expect("there is room").watch;
    let prompt = level(&bench, SERVICE).expect("it is told");
    assert!(prompt > 0.0 && level(&bench, WAIT).is_some());
    watch.headers(200, &crate::headers::Headers::default(), None);
    let answer = r#"{"usage":{"prompt_tokens":3,"completion_tokens":10,"total_tokens":13}}"#;
    watch.body(answer.into(), true, &mut Vec::new());
    watch.end();
    assert_eq!(level(&bench, SERVICE), Some(prompt + 20.0));
    assert_eq!(level(&bench, "llm_d_epp_program_aware_jains_fairness_index"), Some(1.0));
}

/// A pool whose endpoint takes one request, where running ones give way.
fn evicting() -> Bench {
    let config =
        CONFIG.replace("defaultRequestTTL: 5s", "defaultRequestTTL: 5s\n  enableEviction: true");
    bench(&config, &[Engine(1, 0, 0.1, &[])])
}

const BATCH: [(&str, &str); 1] = [("x-llm-d-inference-objective", "batch")];

/// The refusal for the client of a running request, if the request was revoked.
async fn revoked(sent: &mut Sent) -> Option<Refusal> {
    let polled = std::future::poll_fn(|cx| Poll::Ready(sent.watch.poll_revoked(cx))).await;
    match polled {
        Poll::Ready(refusal) => Some(refusal),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_batch_request_gives_way_to_one_that_waits() {
    let bench = evicting();
    let mut batch = ask(&bench, &BATCH).await.expect("there is room");
    assert_eq!(revoked(&mut batch).await, None, "nobody waits");
    // One of its own kind waits as long as it takes.
    let mut other = pin!(ask(&bench, &BATCH));
    assert!(waits(&mut other).await);
    assert_eq!(revoked(&mut batch).await, None, "equals do not end each other");

    let mut urgent = pin!(ask(&bench, &[]));
    assert!(waits(&mut urgent).await);
    let refusal = revoked(&mut batch).await.expect("it gives way");
    assert_eq!((refusal.status, refusal.reason), (429, Some("evicted")));
    assert_eq!(refusal.message, "request evicted by flow control");
    drop(batch);
    let urgent = urgent.await.expect("the room is its own");
    assert!(waits(&mut other).await);
    let issued = r#"llm_d_epp_flow_control_revocations_issued_total{priority="-1","#;
    let confirmed = r#"llm_d_epp_flow_control_revocations_total{outcome="confirmed","#;
    assert_eq!((level(&bench, issued), level(&bench, confirmed)), (Some(1.0), Some(1.0)));
    assert_eq!(level(&bench, "llm_d_epp_flow_control_reclaim_target"), Some(0.0));
    // What runs now is too important to give way.
    drop(urgent);
    assert!(other.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn no_more_give_way_than_what_waits_needs() {
    let config = CONFIG.replace("maxConcurrency: 1", "maxConcurrency: 2");
    let config =
        config.replace("defaultRequestTTL: 5s", "defaultRequestTTL: 5s\n  enableEviction: true");
    let bench = bench(&config, &[Engine(1, 0, 0.1, &[])]);
    let mut older = ask(&bench, &BATCH).await.expect("there is room");
    let mut newer = ask(&bench, &BATCH).await.expect("there is room");
    let mut urgent = pin!(ask(&bench, &[]));
    assert!(waits(&mut urgent).await);
    bench.pool.kick();
    assert_eq!(revoked(&mut older).await, None, "the newer one lost less");
    assert!(revoked(&mut newer).await.is_some());
    drop(newer);
    let _urgent = urgent.await.expect("there is room");
    assert_eq!(revoked(&mut older).await, None);
    // The next is revoked once the saturation shows the first, without anything else happening.
    let mut another = pin!(ask(&bench, &[]));
    assert!(waits(&mut another).await);
    assert_eq!(revoked(&mut older).await, None);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(revoked(&mut older).await.is_some());
    drop(older);
    assert!(another.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn nothing_gives_way_unless_it_is_to() {
    let bench = full();
    let mut batch = ask(&bench, &BATCH).await.expect("there is room");
    let mut urgent = pin!(ask(&bench, &[]));
    assert!(waits(&mut urgent).await);
    assert_eq!(revoked(&mut batch).await, None);
    assert_eq!(level(&bench, "llm_d_epp_flow_control_reclaim_target"), None);
}

#[tokio::test(start_paused = true)]
async fn the_stream_of_a_request_that_may_give_way_stays_open() {
    let shown = |headers| RequestHead { answer: AnswerBody::Shown, ..head(headers) };
    let interest = async |bench: &Bench, headers| {
        bench.ask(shown(headers), &prompt("m")).await.expect("there is room").watch.interest()
    };
    assert_eq!(interest(&evicting(), &BATCH).await, Interest::Body);
    assert_eq!(interest(&evicting(), &[]).await, Interest::Nothing);
    assert_eq!(interest(&full(), &BATCH).await, Interest::Nothing);
}

#[tokio::test(start_paused = true)]
async fn a_session_of_many_turns_goes_first_where_depth_counts() {
    let turns = "{type: program-aware-fairness, parameters: {strategy: turn-priority}}";
    let config = CONFIG.replace("{type: round-robin-fairness-policy}", turns);
    let config = config.replace("round-robin-fairness-policy", "program-aware-fairness");
    let bench = bench(&config, &[Engine(1, 0, 0.1, &[])]);
    let of = |name| [("x-llm-d-inference-fairness-id", name)];
    let (deep, new) = (of("deep"), of("new"));
    for _ in 0..3 {
        drop(ask(&bench, &deep).await.expect("there is room"));
    }
    let first = ask(&bench, &new).await.expect("there is room");
    let (mut next, mut deeper) = (pin!(ask(&bench, &new)), pin!(ask(&bench, &deep)));
    assert!(waits(&mut next).await && waits(&mut deeper).await);
    drop(first);
    let deeper = deeper.await.expect("its session is the deepest");
    assert!(waits(&mut next).await);
    drop(deeper);
    assert!(next.await.is_ok());
}
