//! The request path without a server. What the hermetic tests of the llm-d router ask of a picker
//! is in `tests/ext_proc`.

use super::*;
use crate::exchange::{AnswerBody, Watch};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use stator_api::UnknownFields;
use stator_epp_config::LoadOptions;
use stator_epp_metrics::{Build, EppMetrics};
use stator_epp_plugins::settings::MediaEstimate;
use stator_epp_pool::PoolView;
use stator_epp_pool::{Pod, PoolSpec};
use stator_epp_pool::{Rewrite, RewriteRule, RewriteTarget, Rewrites, endpoints_of};
use stator_epp_scheduler::{EngineLoad, Equipment, Lora, Scheduler, SchedulerSettings};
use stator_epp_signals::LoadSink;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::subscriber::set_default;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// The scorers of those tests, all of weight 1.
pub(crate) const SCORERS: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer},
  {type: lora-affinity-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: kv-cache-utilization-scorer},
    {pluginRef: prefix-cache-scorer}, {pluginRef: lora-affinity-scorer}]
";

/// Time that the saturation takes to show that a request was revoked.
const GRACE: Duration = Duration::from_millis(10);

/// The same with one more plug-in.
fn with_plugin(plugin: &str) -> String {
    SCORERS.replacen("plugins: [", &format!("plugins: [{plugin}, "), 1)
}

/// A pod at `192.168.1.<number + 1>:8000` and what its engine reports.
pub(crate) struct Engine(
    pub(crate) u8,
    pub(crate) u32,
    pub(crate) f64,
    pub(crate) &'static [&'static str],
);

impl Engine {
    fn load(&self) -> EngineLoad {
        let running = self.3.iter().map(|name| (*name).to_owned()).collect();
        let lora = Some(Lora { max: 2, running, waiting: Vec::new() });
        EngineLoad { waiting: self.1, kv_usage: self.2, lora, ..EngineLoad::default() }
    }
}

fn address(number: u8) -> SocketAddr {
    ([192, 168, 1, number + 1], 8000).into()
}

pub(crate) struct Bench {
    pub(crate) pool: Arc<Pool>,
    pub(crate) director: PoolDirector,
    pub(crate) views: watch::Sender<Arc<PoolView>>,
    pub(crate) registry: Registry,
    pub(crate) flow: Option<Arc<Flow>>,
}

pub(crate) fn bench(config: &str, engines: &[Engine]) -> Bench {
    let options = LoadOptions { allow_experimental: true, ..LoadOptions::default() };
    let plan = stator_epp_config::load(config, options).expect("it is sound").plan;
    let spec = PoolSpec::standalone("app=model", &[8000]).expect("it is sound");
    let labels = Arc::new(BTreeMap::from([("app".to_owned(), "model".to_owned())]));
    let pod = |engine: &Engine| Pod {
        name: format!("pod{}", engine.0).into(),
        namespace: "default".into(),
        uid: "1".into(),
        labels: labels.clone(),
        node: None,
        active_ports: None,
        ip: Some(address(engine.0).ip()),
        ready: true,
        deleting: false,
    };
    let mut endpoints: Vec<_> =
        engines.iter().flat_map(|engine| endpoints_of(&pod(engine), &spec)).map(Arc::new).collect();
    endpoints.sort_by_key(|endpoint| endpoint.worker);
    let target = RewriteTarget { model: "rewritten-model".into(), weight: None };
    let rule = RewriteRule { models: Some(vec!["rewrite-me".into()]), targets: vec![target] };
    let rewrite = Rewrite { name: "rules".into(), rules: vec![rule], ..Rewrite::default() };
    let view = PoolView {
        endpoints: endpoints.clone(),
        synced: true,
        objectives: Arc::new(BTreeMap::from([("critical".into(), 2), ("batch".into(), -1)])),
        rewrites: Arc::new(Rewrites::compile([&rewrite])),
        ..PoolView::default()
    };
    let waits = plan.features.flow_control;
    let mut settings = SchedulerSettings { sheds: !waits, ..SchedulerSettings::default() };
    settings.placement.sessions = plan.kv_cost.and_then(|cost| cost.sessions);
    let scheduler = Scheduler::new(plan.program.clone(), settings);
    let (views, view) = watch::channel(Arc::new(view));
    let pool = Arc::new(Pool::new("default/pool".into(), view, scheduler, 7));
    pool.follow_view();
    for endpoint in &endpoints {
        let engine = engines.iter().find(|engine| address(engine.0) == endpoint.address);
        pool.load(endpoint.worker, &engine.expect("each is of one").load());
    }
    let mut registry = Registry::default();
    let metrics = EppMetrics::register(Build::default(), &mut registry);
    let settings = DirectorSettings {
        parsers: crate::plan::parsers(&plan),
        fields: stator_body::FieldRules::default().with_extensions(),
        unknown_fields: UnknownFields::Refuse,
        refuse_unscreened: false,
        interest: Interest::Nothing,
        leaves_early: false,
        scores: false,
        fallbacks: false,
        token_ids: true,
        in_flight: plan.in_flight,
        identities: plan.agent_identity.clone(),
        media: MediaEstimate::default(),
        renderer: None,
        verify_served: false,
        pins: true,
        reads_text: !plan.program.producers.is_empty(),
    };
    let observe = Observe::new(pool.name(), metrics.clone(), Vec::new(), None);
    let director = PoolDirector::new(pool.clone(), settings, observe);
    let (director, flow) = match waits {
        false => (director, None),
        true => {
            let waits = director.with_flow_control(&plan.flow_control, GRACE, metrics);
            let (director, flow) = waits.expect("the settings are sound");
            (director, Some(flow))
        }
    };
    Bench { pool, director, views, registry, flow }
}

pub(crate) fn head(headers: &[(&str, &'static str)]) -> RequestHead {
    RequestHead {
        method: "POST".into(),
        path: "/v1/completions".into(),
        headers: headers.iter().copied().collect(),
        ..RequestHead::default()
    }
}

pub(crate) fn prompt(model: &str) -> String {
    format!(r#"{{"max_tokens":100,"model":"{model}","prompt":"hello","temperature":0}}"#)
}

/// A request that goes to an endpoint.
pub(crate) type Sent = RoutedRequest<<PoolDirector as Director>::Watch>;

impl Bench {
    pub(crate) async fn ask(&self, head: RequestHead, body: &str) -> Result<Sent, Refusal> {
        let body = (!body.is_empty()).then(|| vec![Bytes::copy_from_slice(body.as_bytes())]);
        self.director.route(head, body).await
    }

    /// The pod that a request for a model goes to.
    async fn pick(&self, head: RequestHead, model: &str) -> SocketAddr {
        let routed = self.ask(head, &prompt(model)).await.expect("it is routed");
        assert_eq!(routed.endpoints.len(), 1);
        routed.endpoints[0]
    }

    async fn refusal(&self, head: RequestHead, body: &str) -> Refusal {
        self.ask(head, body).await.err().expect("it is refused")
    }
}

#[tokio::test]
async fn an_adapter_that_an_agent_tells_of_wins_too() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.2, &[]), Engine(1, 0, 0.2, &[])]);
    let workers: Vec<_> = bench
        .pool
        .with(|scheduler, _| scheduler.endpoints().map(|(known, ..)| known.worker).collect());
    for (worker, adapter) in workers.into_iter().zip(["foo", "sql-lora"]) {
        let lora = Lora { max: 0, running: vec![adapter.to_owned()], waiting: Vec::new() };
        bench.pool.agent_equipment(worker, Equipment { lora: Some(lora), ..Equipment::default() });
    }
    bench.pool.tick();
    assert!(bench.pool.is_adapter("sql-lora") && !bench.pool.is_adapter("my-model"));
    let home = |adapter| {
        bench.pool.with(|scheduler, _| {
            let mut all = scheduler.endpoints();
            let runs =
                |load: &EngineLoad| load.lora.as_ref().is_some_and(|l| l.running == [adapter]);
            all.find(|(_, load, _)| runs(load)).map(|(endpoint, ..)| endpoint.address)
        })
    };
    for adapter in ["sql-lora", "foo"] {
        assert_eq!(Some(bench.pick(head(&[]), adapter).await), home(adapter));
    }
}

#[test]
fn metrics_call_a_pool_by_its_name_alone_unless_two_have_it() {
    let plan = stator_epp_config::load("", LoadOptions::default()).expect("it is sound").plan;
    let scheduler = Scheduler::new(plan.program, SchedulerSettings::default());
    let (_views, view) = watch::channel(Arc::default());
    let pool = Pool::new("models/llama".into(), view, scheduler, 7);
    assert_eq!(pool.label(), "llama");
    assert_eq!(pool.by_whole_name().label(), "models/llama");
}

/// Longest wait for what must happen.
const DEADLINE: Duration = Duration::from_secs(20);

/// The ids of requests that spans tell.
#[derive(Clone, Default)]
struct Ids(Arc<Mutex<Vec<String>>>);

impl Visit for Ids {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "gen_ai.request.id" {
            self.0.lock().push(format!("{value:?}"));
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Ids {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        span.record(&mut self.clone());
    }
}

#[tokio::test]
async fn a_trace_has_the_id_that_a_request_goes_on_with() {
    let (ids, bench) = (Ids::default(), bench(SCORERS, &[Engine(0, 0, 0.2, &[])]));
    let _guard = set_default(tracing_subscriber::registry().with(ids.clone()));
    // A span that another test's thread makes for the first time just now may have missed this
    // subscriber.
    let deadline = Instant::now() + DEADLINE;
    while ids.0.lock().is_empty() && Instant::now() < deadline {
        tracing::callsite::rebuild_interest_cache();
        bench.pick(head(&[]), "my-model").await;
    }
    ids.0.lock().clear();
    let sent = bench.ask(head(&[]), &prompt("my-model")).await.expect("it is routed");
    let made = sent.set_headers.iter().find(|(name, _)| *name == header::REQUEST_ID);
    let (_, made) = made.expect("it came without one");
    bench.pick(head(&[(header::REQUEST_ID, "its-own")]), "my-model").await;
    assert_eq!(*ids.0.lock(), [format!("{made:?}"), "\"its-own\"".to_owned()]);
}

#[tokio::test]
async fn a_full_pool_sheds_what_its_objective_calls_sheddable() {
    let bench = bench(SCORERS, &[Engine(0, 9, 0.9, &[])]);
    for name in ["x-llm-d-inference-objective", "x-gateway-inference-objective"] {
        let refusal = bench.refusal(head(&[(name, "batch")]), &prompt("my-model")).await;
        assert_eq!(refusal.status, 429);
        assert_eq!(refusal.message, "system saturated, sheddable request dropped");
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
        bench.pick(head(&[(name, "critical")]), "my-model").await;
    }
}

#[tokio::test]
async fn fields_that_steer_engines_do_not_go_on() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    for (model, sent_as) in [("m", "m"), ("rewrite-me", "rewritten-model")] {
        let body = format!(
            r#"{{"kv_transfer_params":{{}},"model":"{model}","nvext":{{}}, "made_up":null,
            "bootstrap_host":"","prompt":"hello","sampling_params":{{"rid":1}}, "priority":0 }}"#
        );
        let routed = bench.ask(head(&[]), &body).await;
        let routed = routed.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        let sent = String::from_utf8(routed.body.concat()).expect("it is text");
        let expected = format!(
            r#"{{"model":"{sent_as}","nvext":{{}}, "prompt":"hello","sampling_params":{{}} }}"#
        );
        assert_eq!(sent, expected);
    }
    let deep = "{\"extra_args\":".repeat(9) + "{}" + &"}".repeat(9);
    let body = format!(r#"{{"model":"m","prompt":"hello","sampling_params":{deep}}}"#);
    let Err(refusal) = bench.ask(head(&[]), &body).await else { panic!("it is too deep") };
    assert_eq!(refusal.status, 400);
    assert!(refusal.message.contains("nested deeper than 4"), "{}", refusal.message);
}

#[tokio::test]
async fn a_rewrite_changes_the_models_name_alone_and_the_client_sees_its_own() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let body = r#"{"seed": 9007199254740993, "model" : "rewrite-me","prompt":"hello", "n":1}"#;
    let mut routed = bench.ask(head(&[]), body).await.expect("it is routed");
    let sent = String::from_utf8(routed.body.concat()).expect("it is text");
    assert_eq!(sent, body.replace("rewrite-me", "rewritten-model"));
    assert_eq!(routed.watch.interest(), Interest::Body);
    let mut answer = Vec::new();
    for (piece, end) in [(r#"{"model":"rewrit"#, false), (r#"ten-model","id":1}"#, true)] {
        routed.watch.body(Bytes::from_static(piece.as_bytes()), end, &mut answer);
    }
    assert_eq!(answer.concat(), br#"{"model":"rewrite-me","id":1}"#);
}

/// The series as the metrics tell it.
pub(crate) fn counted(bench: &Bench, series: &str) -> Option<f64> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &bench.registry).expect("it is text");
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next().and_then(|count| count.parse().ok())
}

#[tokio::test]
async fn a_model_is_rewritten_in_a_body_that_comes_after_the_decision() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let late = || RequestHead { body: RequestBody::Late, answer: AnswerBody::Shown, ..head(&[]) };
    let mut routed = bench.ask(late(), "").await.expect("it is routed");
    assert!(routed.watch.amends());
    assert_eq!(routed.watch.interest(), Interest::Body, "the answer is renamed");
    let body = routed.watch.amend(vec![prompt("rewrite-me").into()]);
    assert_eq!(body.expect("it is sound").concat(), prompt("rewritten-model").as_bytes());
    let mut answer = Vec::new();
    routed.watch.body(Bytes::from_static(br#"{"model":"rewritten-model"}"#), true, &mut answer);
    assert_eq!(answer.concat(), br#"{"model":"rewrite-me"}"#);

    let mut routed = bench.ask(late(), "").await.expect("it is routed");
    let other = routed.watch.amend(vec![prompt("another").into()]);
    assert_eq!(other.expect("it is sound").concat(), prompt("another").as_bytes());
    let without =
        |body| format!("stator_epp_requests_placed_without_body_total{{body=\"{body}\"}}");
    assert_eq!(counted(&bench, &without("late")), Some(2.0));
    assert_eq!(counted(&bench, "stator_epp_model_rewrites_lost_total"), Some(0.0));

    bench
        .ask(RequestHead { body: RequestBody::Unseen, ..head(&[]) }, "")
        .await
        .expect("it is routed");
    assert_eq!(counted(&bench, &without("unseen")), Some(1.0));
    assert_eq!(counted(&bench, "stator_epp_model_rewrites_lost_total"), Some(1.0));
}

#[tokio::test]
async fn the_answer_says_whether_its_first_token_is_one_of_a_stream() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let first = async |asked: bool, kind: &str| {
        let body = format!(r#"{{"model":"m","prompt":"hello","stream":{asked}}}"#);
        let passes = RequestHead { answer: AnswerBody::Passes, ..head(&[]) };
        let mut watch = bench.ask(passes, &body).await.expect("it is routed").watch;
        let headers = [("content-type", kind)].into_iter().filter(|(_, kind)| !kind.is_empty());
        watch.headers(200, &headers.collect(), None);
        watch.body(Bytes::from_static(b"{}"), true, &mut Vec::new());
        let of = |streaming: bool| {
            let text = format!("streaming=\"{streaming}\"}}");
            let mut page = String::new();
            prometheus_client::encoding::text::encode(&mut page, &bench.registry).expect("text");
            let counts = page.lines().filter(|line| {
                line.starts_with("llm_d_epp_request_ttft_seconds_count") && line.contains(&text)
            });
            counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
        };
        (of(false), of(true))
    };
    assert_eq!(first(false, "text/event-stream; charset=utf-8").await, (0.0, 1.0));
    assert_eq!(first(true, "application/json").await, (1.0, 1.0));
    // An answer that does not say is what was asked for.
    assert_eq!(first(true, "").await, (1.0, 2.0));
    assert_eq!(first(true, "application/grpc").await, (1.0, 3.0));
}

#[tokio::test]
async fn a_header_rewrites_before_the_pools_rules() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let head = head(&[("x-llm-d-model-name-rewrite", "by-header")]);
    let routed = bench.ask(head, &prompt("rewrite-me")).await.expect("it is routed");
    assert_eq!(routed.body.concat(), prompt("by-header").as_bytes());
}

#[tokio::test]
async fn a_request_without_an_identity_gets_one() {
    let bench = bench(SCORERS, &[Engine(0, 0, 0.0, &[])]);
    let set = |routed: Sent| routed.set_headers;
    let made = set(bench.ask(head(&[]), &prompt("m")).await.expect("it is routed"));
    assert_eq!(made.iter().filter(|(name, _)| *name == "x-request-id").count(), 1);
    let own = bench.ask(head(&[("x-request-id", "mine")]), &prompt("m")).await;
    assert_eq!(set(own.expect("it is routed")), []);
    // Plug-ins that choose by it see the same one.
    let id = |head: &RequestHead| {
        let source = RewriteSource { view: &bench.pool.view(), chance: bench.pool.chance() };
        let request = ParsedRequest::read(head, Bytes::new(), &bench.director.settings, source);
        let request = request.expect("there is nothing to read");
        request.for_scheduler(head, &MeasuredPrompt::nothing(), &[], &[]).id.to_owned()
    };
    assert_eq!(id(&head(&[("x-request-id", "mine")])), "mine");
    assert_ne!(id(&head(&[])), id(&head(&[])));
}

#[tokio::test]
async fn a_request_for_cached_prompts_alone_is_refused_where_nothing_is_cached() {
    check_if_available(SCORERS).await;
    check_if_available("").await;
}

/// What was refused was sent nowhere: it is refused as often as it comes, until another request
/// has taken the prompt to an endpoint.
async fn check_if_available(config: &str) {
    let bench = bench(config, &[Engine(0, 0, 0.0, &[])]);
    let long = format!(r#"{{"model":"m","prompt":"{}"}}"#, "many words ".repeat(400));
    let conditional = || head(&[("prefer", "if-available")]);
    for _ in 0..2 {
        let refusal = bench.refusal(conditional(), &long).await;
        let text = "no decode worker has the requested KV cache";
        assert_eq!((refusal.status, &*refusal.message), (412, text));
    }
    bench.pool.with(|scheduler, now| assert_eq!(scheduler.stats(now).in_flight, 0));
    bench.ask(head(&[]), &long).await.expect("it is routed");
    bench.ask(conditional(), &long).await.expect("now it is cached");
}

#[tokio::test]
async fn the_default_profile_keeps_a_conversation_where_its_beginning_is() {
    let engines = [Engine(0, 0, 0.0, &[]), Engine(1, 0, 0.0, &[]), Engine(2, 0, 0.0, &[])];
    let mut bench = bench("", &engines);
    // Each request is over before the next, so that load does not weigh against the cache.
    Arc::make_mut(&mut bench.director.settings).interest = Interest::Body;
    let text = |turns: usize| {
        let prompt = "a long story about cities ".repeat(40 * turns);
        format!(r#"{{"model":"m","prompt":"{prompt}"}}"#)
    };
    let to = |routed: Sent| routed.endpoints[0];
    let first = to(bench.ask(head(&[]), &text(1)).await.expect("it is routed"));
    for turns in 2..6 {
        assert_eq!(to(bench.ask(head(&[]), &text(turns)).await.expect("it is routed")), first);
    }
}

/// Answers to requests under `config` that endpoints gave as the data plane says, and how many
/// picks then count as honoured and as not honoured.
async fn check_served(config: &str, fallbacks: bool, served: &[&str], expected: [u64; 2]) {
    let mut bench = bench(config, &[Engine(0, 0, 0.0, &[]), Engine(1, 5, 0.5, &[])]);
    Arc::make_mut(&mut bench.director.settings).fallbacks = fallbacks;
    for served in served {
        let routed = bench.ask(head(&[]), &prompt("m")).await;
        let mut watch = routed.expect("it is routed").watch;
        watch.headers(200, &crate::headers::Headers::default(), Some(*served));
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &bench.registry).expect("it is text");
    let count = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect("the metric is there");
        line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")
    };
    let names = ["stator_epp_picks_honoured_total", "stator_epp_picks_not_honoured_total"];
    assert_eq!(names.map(count), expected, "{served:?}");
}

#[tokio::test]
async fn a_pick_is_honoured_where_the_data_plane_went_where_it_was_sent() {
    let (first, second) = ("192.168.1.1:8000", "192.168.1.2:8000");
    check_served(SCORERS, false, &[first, second], [1, 1]).await;
    let profile = "{pluginRef: lora-affinity-scorer}";
    let ranked = with_plugin("{type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}")
        .replace(profile, &format!("{profile}, {{pluginRef: max-score-picker}}"));
    check_served(&ranked, true, &[first, second, "192.168.1.3:8000"], [2, 1]).await;
    // A fallback that was not sent is as any other endpoint.
    check_served(&ranked, false, &[first, second], [1, 1]).await;
    let primary =
        with_plugin("{type: data-parallel-profile-handler, parameters: {primaryPort: 9000}}");
    check_served(&primary, false, &["192.168.1.1:9000", first], [1, 1]).await;
}

#[tokio::test]
async fn what_is_watched_depends_on_what_the_data_plane_shows() {
    use AnswerBody::{Hidden, Passes, Shown};
    use Interest::{Body, Headers, Nothing};
    let mut bench = bench("", &[Engine(0, 0, 0.0, &[])]);
    let mut check = async |wanted, leaves_early, answer, expected| {
        Arc::make_mut(&mut bench.director.settings).interest = wanted;
        Arc::make_mut(&mut bench.director.settings).leaves_early = leaves_early;
        let routed = bench.ask(RequestHead { answer, ..head(&[]) }, &prompt("m")).await;
        let watch = routed.expect("it is routed").watch;
        assert_eq!(watch.interest(), expected, "{wanted:?} {leaves_early} {answer:?}");
    };
    check(Nothing, false, Shown, Nothing).await;
    check(Headers, false, Shown, Headers).await;
    check(Nothing, false, Passes, Body).await;
    check(Nothing, true, Passes, Nothing).await;
    check(Headers, true, Passes, Body).await;
    check(Body, false, Hidden, Headers).await;
}
