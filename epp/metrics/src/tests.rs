//! What a reader of the metrics sees.

use crate::*;
use prometheus_client::encoding::text::encode_registry;
use stator_body::Usage;
use stator_epp_scheduler::plugin::{LatencyOutcome, RequestLatencies};
use stator_epp_scheduler::{Endpoint, InFlight, MultimodalItem};
use stator_protos::{WorkerId, WorkerRank};
use std::time::Duration;

mod values;

/// A picker's metrics and how they read.
struct Page {
    metrics: Arc<EppMetrics>,
    registry: Registry,
}

impl Page {
    fn new() -> Self {
        let mut registry = Registry::default();
        let build = Build { commit: "c0ffee".into(), build_ref: "main".into() };
        Self { metrics: EppMetrics::register(build, &mut registry), registry }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }

    /// The series whose names begin so, without the lines about them.
    fn series(&self, prefix: &str) -> Vec<String> {
        let text = self.text();
        text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
    }

    fn request(&self, model: &str, fairness_id: &str, priority: i32) -> RequestMetrics {
        let labels = RequestLabels { model, target_model: "t", fairness_id, priority };
        self.metrics.requests.of(&labels)
    }
}

fn endpoint(number: u8) -> Endpoint {
    Endpoint {
        worker: WorkerRank { worker: WorkerId(number.into()), rank: 0 },
        uid: "1".into(),
        name: format!("pod{number}-rank-0").into(),
        pod: format!("pod{number}").into(),
        namespace: "default".into(),
        address: ([10, 0, 0, number], 8000).into(),
        labels: Arc::default(),
        roles: Default::default(),
    }
}

/// A page without buckets, which other tests look at.
fn without_buckets(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains("_bucket{"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn one_request_reads_like_this() {
    let page = Page::new();
    let request = page.request("m", "f", 2);
    let running = request.received();
    request.sized(100);
    let took = Duration::from_micros(500);
    page.metrics.decisions.decided(&request, took, Some(&endpoint(1)));
    page.metrics.decisions.rewritten(&request, "rule");
    let handler = PluginName { type_name: "disagg-profile-handler", name: "handler" };
    page.metrics.decisions.disaggregated(&request, handler, Disaggregation::of(false, true));
    request.first_token(Duration::from_millis(500), true);
    request.chunk(Duration::from_millis(20));
    let usage = Usage { prompt_tokens: 7, completion_tokens: 11, ..Usage::default() };
    request.finished(&FinishedRequest {
        duration: Duration::from_millis(2750),
        first_token: Some(Duration::from_millis(250)),
        streaming: true,
        usage: Some(Usage { cached_tokens: Some(4), ..usage }),
        response_bytes: 1000,
    });
    drop(running);
    page.metrics.process.picks("pool").honoured();
    page.metrics.process.tokenized(Tokenization::Exact);
    let golden = include_str!("golden/one_request.txt");
    assert_eq!(without_buckets(&page.text()), golden);
}

#[test]
fn a_refused_request_reads_like_this() {
    let page = Page::new();
    let request = page.request("m", "", 0);
    drop(request.received());
    page.metrics.decisions.decided(&request, Duration::ZERO, None);
    request.failed(ErrorCode::of_status(429));
    let errors = [
        "llm_d_epp_request_error_total{model_name=\"m\",target_model_name=\"t\",fairness_id=\"\",\
            priority=\"0\",error_code=\"ResourceExhausted\"} 1",
    ];
    assert_eq!(page.series("llm_d_epp_request_error"), errors);
    let attempts =
        ["llm_d_epp_scheduler_attempts_total{status=\"failure\",target_model_name=\"t\",\
            endpoint_name=\"\",namespace=\"\",port=\"\"} 1"];
    assert_eq!(page.series("llm_d_epp_scheduler_attempts"), attempts);
    assert_eq!(page.series("llm_d_epp_request_duration"), [""; 0]);
}

struct Pool(&'static str);

impl PoolView for Pool {
    fn name(&self) -> &str {
        self.0
    }

    fn snapshot(&self) -> PoolSnapshot {
        let endpoint = |number: u8, load, flows, others| EndpointSnapshot {
            name: format!("pod{number}-rank-0").into(),
            namespace: "default".into(),
            load,
            flows,
            others: in_flight(others),
        };
        let load = |waiting, kv_usage| Some(LoadSnapshot { waiting, running: 2.0, kv_usage });
        PoolSnapshot {
            saturation: 0.5,
            stage_saturation: [None, Some(0.25)],
            detector: "utilization-detector",
            ready_endpoints: 2,
            stale_endpoints: 1,
            index_admissions: 9,
            index_evictions: 3,
            sources: vec![SourceSnapshot {
                source_type: "metrics-data-source",
                extractor_type: "core-metrics-extractor",
                failed: 2,
                incomplete: 1,
            }],
            feeds: Some(feeds()),
            flow: Some(FlowSnapshot {
                bands: vec![BandSnapshot {
                    priority: "-1".into(),
                    used: Use { requests: Some(0.5), bytes: None },
                }],
                global: Use { requests: None, bytes: Some(0.25) },
            }),
            endpoints: vec![
                endpoint(1, load(1.0, 0.25), vec![flow("f", "0", 2), flow("g", "-1", 1)], 0),
                endpoint(2, load(3.0, 0.75), vec![flow("f", "0", 1)], 3),
                endpoint(3, None, Vec::new(), 0),
            ],
        }
    }
}

fn in_flight(requests: u64) -> InFlight {
    InFlight { requests, tokens: 10 * requests }
}

fn flow(fairness_id: &str, priority: &str, requests: u64) -> FlowInFlight {
    let in_flight = in_flight(requests);
    FlowInFlight { fairness_id: fairness_id.into(), priority: priority.into(), in_flight }
}

fn feeds() -> FeedsSnapshot {
    let feed = |pod: &str, messages| FeedSnapshot {
        pod: pod.into(),
        messages,
        waiting: 2,
        reconnections: 1,
        receive_errors: 3,
        replay_errors: 0,
    };
    let reason = "unsupported_cache_kind";
    let skipped = |count| vec![SkippedEvents { cache_kind: "sliding_window", reason, count }];
    FeedsSnapshot {
        engines: vec![feed("default/pod1-rank-0", 7), feed("default/pod2-rank-0", 0)],
        capacity: 2048,
        removals_suppressed: 1,
        removals_forwarded: 4,
        stores_skipped: skipped(5),
        removals_skipped: skipped(6),
    }
}

#[test]
fn a_pool_reads_like_this() {
    let page = Page::new();
    let pool: Arc<dyn PoolView> = Arc::new(Pool("pool"));
    page.metrics.pools.add(&pool);
    assert_eq!(page.text(), include_str!("golden/one_pool.txt"));
    drop(pool);
    assert_eq!(page.series("llm_d_epp_ready_endpoints"), [""; 0]);
}

#[test]
fn pools_are_told_apart_and_shared_endpoints_are_summed() {
    let page = Page::new();
    let pools: [Arc<dyn PoolView>; 2] = [Arc::new(Pool("a")), Arc::new(Pool("b"))];
    pools.iter().for_each(|pool| page.metrics.pools.add(pool));
    let ready =
        ["llm_d_epp_ready_endpoints{name=\"a\"} 2.0", "llm_d_epp_ready_endpoints{name=\"b\"} 2.0"];
    assert_eq!(page.series("llm_d_epp_ready_endpoints"), ready);
    let flow = "llm_d_epp_inflight_requests{endpoint_name=\"pod1-rank-0\",namespace=\"default\",\
        producer_name=\"inflight-load-producer\",fairness_id=\"f\",priority=\"0\"}";
    assert_eq!(page.series(flow), [format!("{flow} 4.0")]);
    assert_eq!(page.series("llm_d_epp_inflight_requests").len(), 5);
    let stale = "llm_d_epp_flow_control_stale_endpoints{detector=\"utilization-detector\"} 2.0";
    assert_eq!(page.series("llm_d_epp_flow_control_stale_endpoints"), [stale]);
}

#[test]
fn a_thousand_names_of_a_client_are_few_series() {
    let page = Page::new();
    page.metrics.requests.keep_model("loaded");
    let asked = |model: &str, fairness_id: &str| {
        let labels =
            RequestLabels { model, target_model: model, fairness_id, ..RequestLabels::default() };
        let request = page.metrics.requests.of(&labels);
        let running = request.received();
        request.sized(100);
        page.metrics.decisions.decided(&request, Duration::from_micros(5), Some(&endpoint(1)));
        request.first_token(Duration::from_millis(5), true);
        request.chunk(Duration::from_millis(2));
        let usage = Usage { prompt_tokens: 7, completion_tokens: 11, ..Usage::default() };
        request.finished(&FinishedRequest {
            duration: Duration::from_millis(27),
            first_token: Some(Duration::from_millis(5)),
            streaming: true,
            usage: Some(usage),
            response_bytes: 1000,
        });
        drop(running);
    };
    for number in 0..1000 {
        asked(&format!("m{number}"), "f");
        asked("m", &format!("f{number}"));
    }
    asked("loaded", "f");
    let series = page.text().lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 90_000, "{series} series");
    let received = page.series("llm_d_epp_request_total{");
    let of = |model: &str| {
        let label = format!("model_name=\"{model}\"");
        received.iter().filter(|row| row.contains(&label)).count()
    };
    assert_eq!((of("m0"), of("m999"), of("other"), of("loaded")), (1, 0, 1, 1), "{received:?}");
}

/// A pool whose flows are as many as clients think of.
struct Crowded;

impl PoolView for Crowded {
    fn name(&self) -> &str {
        "crowded"
    }

    fn snapshot(&self) -> PoolSnapshot {
        let flows = || (0..1010).map(|number| flow(&format!("f{number}"), "0", 1)).collect();
        let endpoint = |number: usize| EndpointSnapshot {
            name: format!("pod{number}").into(),
            namespace: "default".into(),
            load: None,
            flows: flows(),
            others: InFlight::default(),
        };
        PoolSnapshot { endpoints: (0..20).map(endpoint).collect(), ..PoolSnapshot::default() }
    }
}

#[test]
fn flows_in_flight_without_end_fold_into_one() {
    let page = Page::new();
    let pool: Arc<dyn PoolView> = Arc::new(Crowded);
    page.metrics.pools.add(&pool);
    let rows = page.series("llm_d_epp_inflight_requests{");
    let level = |row: &String| row.rsplit(' ').next().and_then(|level| level.parse::<f64>().ok());
    let levels: Vec<_> = rows.iter().filter_map(level).collect();
    // Nothing is lost, 100 names are kept, and so many rows are looked at one by one.
    assert_eq!(levels.iter().sum::<f64>(), 20.0 * 1010.0);
    let at = |pod: &str| rows.iter().filter(|row| row.contains(pod)).count();
    assert_eq!((at("\"pod0\""), at("\"pod19\"")), (101, 1));
    let names = page.request("m", "f0", 0);
    assert_eq!((names.fairness_id(), page.request("m", "f1005", 0).fairness_id()), ("f0", "other"));
}

#[test]
fn a_stream_counts_under_the_code_it_ended_with() {
    let page = Page::new();
    assert_eq!(page.series("llm_d_epp_extproc"), [""; 0]);
    let streams = &page.metrics.streams;
    let open = streams.opened();
    streams.opened().ended(0);
    streams.opened().ended(13);
    streams.opened().ended(99);
    drop(streams.opened());
    let ended = |code| format!("llm_d_epp_extproc_streams_total{{code=\"{code}\"}} 1");
    let expected = ["OK", "Canceled", "Unknown", "Internal"].map(ended);
    assert_eq!(page.series("llm_d_epp_extproc_streams_total"), expected);
    let inflight = "llm_d_epp_extproc_streams_inflight 1.0";
    assert_eq!(page.series("llm_d_epp_extproc_streams_inflight"), [inflight]);
    let counted = "llm_d_epp_extproc_stream_duration_seconds_count 4";
    assert_eq!(page.series("llm_d_epp_extproc_stream_duration_seconds_count"), [counted]);
    drop(open);
}

#[test]
fn what_plug_ins_and_indices_tell_reads_like_this() {
    let page = Page::new();
    let plugins = &page.metrics.plugins;
    let queue = PluginName { type_name: "queue-scorer", name: "queue" };
    plugins.timer("Scorer", queue).took(Duration::from_micros(250));
    let prefix = PluginName { type_name: "approx-prefix-cache-producer", name: "prefix" };
    let indexer = plugins.prefix_indexer(prefix);
    indexer.resized(9);
    indexer.found(16, 64);
    indexer.found(0, 0);
    plugins.looked_up(5, Duration::from_micros(250));
    plugins.looked_up(0, Duration::from_micros(250));
    let encoder = PluginName { type_name: "mm-embeddings-cache-producer", name: "encoder" };
    let encoder = plugins.encoder_cache(encoder);
    let items = [(1, "image"), (2, "audio")];
    let items = items.map(|(hash, modality)| MultimodalItem { hash, modality, size_bytes: 1 });
    encoder.sought(&items);
    encoder.found(&endpoint(1), &items[..1], 2);
    encoder.found(&endpoint(2), &[], 2);
    let latency = PluginName { type_name: "predicted-latency-producer", name: "latency" };
    let latency = plugins.latency(latency);
    latency.predicted_in("m", "t", Duration::from_micros(250));
    let timing = |measured_ms, predicted_ms, objective_ms| LatencyOutcome {
        measured_ms,
        predicted_ms: Some(predicted_ms),
        objective_ms: Some(objective_ms),
    };
    let (ttft, tpot) = (timing(500.0, 750.0, 250.0), Some(timing(20.0, 30.0, 25.0)));
    latency.fared(&RequestLatencies { asked_model: "m", model: "t", ttft, tpot });
    let ttft = LatencyOutcome { measured_ms: 500.0, predicted_ms: None, objective_ms: None };
    latency.fared(&RequestLatencies { asked_model: "n", model: "n", ttft, tpot: None });
    assert_eq!(without_buckets(&page.text()), include_str!("golden/plugins.txt"));
}

#[test]
fn a_request_that_waited_reads_like_this() {
    let page = Page::new();
    let (flow, request) = (&page.metrics.flow, page.request("m", "f", 1));
    flow.enqueued(&request, None, Duration::from_micros(250));
    let gone = flow.waits(&request, "pool", 10);
    let _stays = flow.waits(&request, "pool", 100);
    flow.cycled(Duration::from_micros(250));
    drop(gone);
    flow.left(&request, "pool", FlowOutcome::Dispatched, Duration::from_millis(250));
    let text = without_buckets(&page.text());
    let ours = text.lines().filter(|line| line.contains("flow_control"));
    let ours: String = ours.map(|line| format!("{line}\n")).collect();
    assert_eq!(ours, include_str!("golden/flow.txt"));
}

#[test]
fn what_programs_got_reads_like_this() {
    let page = Page::new();
    assert_eq!(page.series("llm_d_epp_program_aware"), [""; 0]);
    for (id, waited_ms, tokens) in [("a", 30, 7.0), ("a", 10, 5.0), ("b", 60, 3.0)] {
        let request = page.request("m", id, 0);
        let program = page.metrics.programs.of(&request, Duration::from_secs(86_400));
        program.dispatched(Duration::from_millis(waited_ms));
        program.served(tokens);
    }
    let of = |name: &str, level: [f64; 2]| {
        let rows = ["a", "b"].into_iter().zip(level);
        let row = |(id, level)| {
            format!("llm_d_epp_program_aware_{name}{{program_id=\"{id}\"}} {level:.1}")
        };
        rows.map(row).collect::<Vec<_>>()
    };
    // (20 + 60)^2 / 2 (20^2 + 60^2)
    let mut expected = vec!["llm_d_epp_program_aware_jains_fairness_index 0.8".to_owned()];
    expected.extend(of("avg_wait_time_milliseconds", [20.0, 60.0]));
    expected.extend(of("attained_service_tokens", [12.0, 3.0]));
    assert_eq!(page.series("llm_d_epp_program_aware"), expected);
}

#[test]
fn decisions_of_the_old_handler_have_their_own_metric() {
    let page = Page::new();
    let request = page.metrics.requests.of(&RequestLabels::default());
    let handler = PluginName { type_name: "pd-profile-handler", name: "pd" };
    page.metrics.decisions.disaggregated(&request, handler, Disaggregation::of(false, false));
    let counted = "llm_d_inference_scheduler_pd_decision_total{model_name=\"unknown\",\
        decision_type=\"decode-only\"} 1";
    assert_eq!(page.series("llm_d_inference_scheduler"), [counted]);
}

#[test]
fn a_client_cannot_break_the_page() {
    let page = Page::new();
    drop(page.request("a\"b\\c\nd", "", 0).received());
    let total = "llm_d_epp_request_total{model_name=\"a\\\"b\\\\c\\nd\",target_model_name=\"t\",\
        fairness_id=\"\",priority=\"0\"} 1";
    assert_eq!(page.series("llm_d_epp_request_total"), [total]);
}

#[test]
fn buckets_read_like_this() {
    let page = Page::new();
    let request = page.request("m", "", 0);
    page.metrics.decisions.decided(&request, Duration::from_micros(500), None);
    page.metrics.decisions.decided(&request, Duration::from_millis(1), None);
    page.metrics.decisions.decided(&request, Duration::from_secs(1), None);
    let name = "llm_d_epp_scheduler_e2e_duration_seconds_bucket";
    let bounds = "0.0001 0.0002 0.0005 0.001 0.002 0.005 0.01 0.02 0.05 0.1 +Inf";
    let counts = [0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 3];
    let lines = bounds.split(' ').zip(counts);
    let lines = lines.map(|(bound, count)| format!("{name}{{le=\"{bound}\"}} {count}"));
    assert_eq!(page.series(name), lines.collect::<Vec<_>>());
    request.finished(&FinishedRequest {
        usage: Some(Usage { prompt_tokens: 32_770, ..Usage::default() }),
        ..FinishedRequest::default()
    });
    let bound = "le=\"32778.0\",model_name=\"m\",target_model_name=\"t\"";
    let line = format!("inference_objective_input_tokens_bucket{{{bound}}} 1");
    assert_eq!(page.series(&line), [line]);
}
