//! Buckets and twins.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Buckets of a metric as they are written.
fn check_buckets(page: &Page, name: &str, bounds: &str) {
    let lines = page.series(&format!("{name}_bucket{{"));
    let bound = |line: &String| {
        let (_, rest) = line.split_once("le=\"").expect("a bucket has a bound");
        rest.split_once('"').map(|(bound, _)| bound.to_owned()).expect("it is quoted")
    };
    let written: Vec<f64> = (lines.iter().map(bound))
        .map(|bound| bound.parse().expect("a bound is a number"))
        .collect();
    let mut expected: Vec<f64> =
        bounds.split(' ').map(|bound| bound.parse().expect("a number")).collect();
    expected.push(f64::INFINITY);
    assert_eq!(written, expected, "{name}");
}

#[test]
fn buckets_are_those_of_the_router() {
    let page = Page::new();
    record_everything(&page);
    let long = ".005 .025 .05 .1 .2 .4 .6 .8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 120 180 \
        240 300 360 480 600 900 1200 1800 2700 3600";
    let ttft = ".005 .025 .05 .1 .2 .4 .6 .8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60 120";
    let tpot = ".0005 .00205 .005 .01 .02 .04 .06 .08 .1 .125 .15 .2 .3 .4 .5 .6 .8 1 2";
    let predicted_tpot = ".0005 .00205 .005 .01 .02 .04 .06 .08 .1 .125 .15 .2 .3 .4 .5 .6 .8 1 \
        1.5 2 3 4.5 6 12 18 24 30 36 48 60 90 120 180 270 360";
    let prediction = ".0001 .0005 .001 .002 .005 .01 .02 .05 .1 .2 .5 1 2 5";
    let itl = ".001 .005 .01 .02 .04 .06 .08 .1 .15 .2 .3 .5 .75 1 2";
    let ntpot = ".001 .002 .005 .01 .02 .05 .1 .2 .5 1 2 5 10";
    let short = ".0001 .0002 .0005 .001 .002 .005 .01 .02 .05 .1";
    let requests = ".0005 .001 .002 .005 .01 .015 .025 .04 .06 .1 .25 .5 1 2.5 5 10";
    let responses = ".0001 .00025 .0005 .001 .0025 .005 .01 .025 .05 .1 .25 .5 1 2.5 5";
    let sizes = (6..=30).map(|power| (1_u64 << power).to_string()).collect::<Vec<_>>().join(" ");
    let output = "1 8 16 32 64 128 256 512 1024 2048 4096 8192";
    let input = &format!("{output} 16384 32778 65536 131072 262144 524288 1048576");
    let answers = &format!("{output} 16384 32778 65536");
    let all = [
        ("request_duration_seconds", long),
        ("request_ttft_seconds", ttft),
        ("request_streaming_tpot_seconds", tpot),
        ("request_streaming_itl_seconds", itl),
        ("request_ntpot_seconds", ntpot),
        ("request_size_bytes", &sizes),
        ("response_size_bytes", answers),
        ("request_input_tokens", input),
        ("request_cached_tokens", input),
        ("request_output_tokens", output),
        ("scheduler_e2e_duration_seconds", short),
        ("plugin_duration_seconds", short),
        ("request_processing_duration_seconds", requests),
        ("response_processing_duration_seconds", responses),
        ("extproc_stream_duration_seconds", ".001 .005 .01 .05 .1 .5 1 5 10 30 60 120 300 600"),
        ("prefix_indexer_hit_ratio", "0 .1 .2 .3 .4 .5 .6 .7 .8 .9 1"),
        (
            "prefix_indexer_hit_bytes",
            "0 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768 65536",
        ),
        (
            "flow_control_request_queue_duration_seconds",
            ".0001 .0005 .001 .005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 30 60",
        ),
        ("flow_control_request_enqueue_duration_seconds", short),
        ("flow_control_dispatch_cycle_duration_seconds", short),
        ("encoder_cache_hit_ratio", "0 .1 .2 .3 .4 .5 .6 .7 .8 .9 1"),
        ("request_predicted_ttft_seconds", long),
        ("request_predicted_tpot_seconds", predicted_tpot),
        ("request_ttft_prediction_duration_seconds", prediction),
        ("request_tpot_prediction_duration_seconds", prediction),
        ("kv_cache_index_lookup_latency_seconds", ".005 .01 .025 .05 .1 .25 .5 1 2.5 5 10"),
    ];
    for (name, bounds) in all {
        check_buckets(&page, &format!("llm_d_epp_{name}"), bounds);
    }
    let histograms = page.text().matches(" histogram\n").count();
    let twins = 19;
    assert_eq!(histograms, all.len() + twins);
}

/// Puts one value into every histogram.
fn record_everything(page: &Page) {
    let tick = Duration::from_millis(3);
    let request = page.request("m", "f", 0);
    drop(request.received());
    request.sized(1);
    request.first_token(tick, true);
    request.chunk(tick);
    let usage = Usage {
        prompt_tokens: 3,
        completion_tokens: 2,
        cached_tokens: Some(1),
        ..Usage::default()
    };
    request.finished(&FinishedRequest {
        duration: tick,
        first_token: Some(tick),
        streaming: true,
        usage: Some(usage),
        response_bytes: 1,
    });
    page.metrics.decisions.decided(&request, tick, None);
    let plugin = PluginName { type_name: "t", name: "n" };
    page.metrics.plugins.timer("Filter", plugin).took(tick);
    page.metrics.plugins.prefix_indexer(plugin).found(1, 2);
    page.metrics.plugins.looked_up(1, tick);
    page.metrics.plugins.encoder_cache(plugin).found(&endpoint(1), &[], 1);
    let latency = page.metrics.plugins.latency(plugin);
    latency.predicted_in("m", "t", tick);
    let timing = LatencyOutcome { measured_ms: 3.0, predicted_ms: Some(3.0), objective_ms: None };
    latency.fared(&RequestLatencies {
        asked_model: "m",
        model: "t",
        ttft: timing,
        tpot: Some(timing),
    });
    page.metrics.flow.enqueued(&request, None, tick);
    page.metrics.flow.left(&request, "pool", FlowOutcome::EvictedTtl, tick);
    page.metrics.flow.cycled(tick);
    page.metrics.process.request_processed(tick);
    page.metrics.process.response_processed(tick);
    page.metrics.streams.opened().ended(0);
}

/// The values of a metric on a page, summed by the labels named.
fn sums(text: &str, name: &str, labels: &[&str]) -> BTreeMap<Vec<String>, f64> {
    let mut sums = BTreeMap::new();
    let begin = format!("{name}{{");
    for line in text.lines().filter(|line| line.starts_with(&begin)) {
        let (series, value) = line.rsplit_once(' ').expect("a series has a value");
        let label = |label: &&str| {
            let (_, rest) = series.split_once(&format!("{label}=\"")).expect("it has the label");
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        let value: f64 = value.parse().expect("a value is a number");
        *sums.entry(labels.iter().map(label).collect()).or_default() += value;
    }
    sums
}

proptest! {
    // A case writes and reads a page of some thousand lines.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever is recorded, a twin has the sums of the metric that it stands for.
    #[test]
    fn twins_carry_the_same_values(
        requests in vec(("[ab]", "[xy]", 0_i32..2, 0_u32..5, 0_usize..9), 1..20),
    ) {
        let (page, mut running) = (Page::new(), Vec::new());
        for (model, fairness_id, priority, tokens, error) in &requests {
            let request = page.request(model, fairness_id, *priority);
            running.push(request.received());
            request.sized((*tokens).into());
            request.failed(ErrorCode::ALL[*error]);
            let usage = Usage { prompt_tokens: *tokens, ..Usage::default() };
            request.finished(&FinishedRequest { usage: Some(usage), ..FinishedRequest::default() });
        }
        let (models, with) = (["model_name", "target_model_name"], |label| {
            ["model_name", "target_model_name", label]
        });
        let pairs: [(&str, &str, &[&str]); 8] = [
            ("request_total", "request_total", &with("priority")),
            ("request_error_total", "request_error_total", &with("error_code")),
            ("request_running", "running_requests", &["model_name"]),
            ("request_size_bytes_sum", "request_sizes_sum", &models),
            ("request_size_bytes_bucket", "request_sizes_bucket", &with("le")),
            ("request_input_tokens_sum", "input_tokens_sum", &models),
            ("request_input_tokens_count", "input_tokens_count", &models),
            ("response_size_bytes_count", "response_sizes_count", &models),
        ];
        let text = page.text();
        for (name, twin, labels) in pairs {
            let twin = format!("inference_objective_{twin}");
            let expected = sums(&text, &format!("llm_d_epp_{name}"), labels);
            prop_assert_eq!(&sums(&text, &twin, labels), &expected);
            // And it has a series for each of these, not several that add up.
            let begin = format!("\n{twin}{{");
            prop_assert_eq!(text.matches(&begin).count(), expected.len());
        }
    }
}
