use super::*;
use crate::director::tests::{Engine, bench};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use stator_epp_config::LoadOptions;
use stator_epp_metrics::{Build, EppMetrics};
use stator_epp_scheduler::{Call, MultimodalItem, Prompt, Scheduler, SchedulerSettings};
use std::time::Duration;

const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {name: encoder, type: mm-embeddings-cache-producer},
  {name: latency, type: predicted-latency-producer, parameters: {streamingMode: true}}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}]
";

/// Sends a request with one image, which has its first token after 200 ms and its last of 11
/// after 400 ms.
fn serve(scheduler: &mut Scheduler, start_ms: u64) {
    let items = [MultimodalItem { hash: 1, modality: "image", size_bytes: 1 }];
    let request = Request {
        asked_model: "m",
        model: "t",
        stream: true,
        slo_ttft: Some(Duration::from_millis(100)),
        slo_tpot: Some(Duration::from_millis(100)),
        prompt: Prompt { tokens: 100, multimodal: &items, ..Prompt::default() },
        ..Request::default()
    };
    let at = |ms| Time::from_millis(start_ms + ms);
    let call = Call { now: at(0), seed: 1, watched: true, scores: false };
    let ticket = scheduler.schedule(&request, call).expect("it is placed").ticket;
    let output_tokens = Some(11);
    let progress = RequestProgress {
        ticket,
        output_tokens,
        cached_tokens: None,
        answered: true,
        served: None,
    };
    scheduler.first_token(&progress, at(200));
    scheduler.ended(&progress, at(400));
}

#[test]
fn what_plug_ins_find_out_is_counted_for_all_pools() {
    let program =
        stator_epp_config::load(CONFIG, LoadOptions::default()).expect("sound").plan.program;
    let mut registry = Registry::default();
    let metrics = EppMetrics::register(Build::default(), &mut registry);
    let endpoints = bench("", &[Engine(0, 0, 0.0, &[])]).pool.view().endpoints.clone();
    let mut pools = [0, 1 << 48].map(|tickets_above| {
        let settings = SchedulerSettings { tickets_above, ..SchedulerSettings::default() };
        let mut scheduler = Scheduler::new(metered(&program, &metrics.plugins), settings);
        scheduler.set_endpoints(&endpoints);
        scheduler
    });
    // Nothing is predicted before twenty requests were seen to end.
    for number in 0..22 {
        serve(&mut pools[number % 2], 1000 * number as u64);
    }
    let mut text = String::new();
    encode(&mut text, &registry).expect("text takes all");
    let level = |name: &str, labels: &str| {
        let begin = format!("llm_d_epp_{name}{{");
        let found = text.lines().find(|line| line.starts_with(&begin) && line.contains(labels));
        let found = found.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        found.unwrap_or_else(|| panic!("{name} with {labels} is not in {text}"))
    };
    let item = r#"{plugin_type="mm-embeddings-cache-producer",plugin_name="encoder""#;
    let pod = r#"pod="default/pod0-rank-0",modality="image""#;
    assert_eq!(level("encoder_cache_queries_total", item), 22.0);
    assert_eq!(level("encoder_cache_hits_total", pod), 21.0);
    assert_eq!(level("encoder_cache_hit_ratio_sum", item), 21.0);
    assert_eq!(level("encoder_cache_hit_ratio_count", item), 22.0);

    let models = r#"{plugin_name="latency",plugin_type="predicted-latency-producer",model_name="m",target_model_name="t""#;
    let prediction = |name: &str| level(&format!("request_{name}_count"), models);
    assert_eq!(prediction("predicted_ttft_seconds"), 2.0);
    assert_eq!(prediction("predicted_tpot_seconds"), 2.0);
    assert_eq!(prediction("ttft_prediction_duration_seconds"), 2.0);
    assert_eq!(prediction("tpot_prediction_duration_seconds"), 2.0);
    let last =
        |type_name: &str| level("inference_request_metric", &format!("type=\"{type_name}\""));
    assert_eq!((last("ttft"), last("tpot")), (0.2, 0.02));
    assert!((last("predicted_ttft") - 0.2).abs() < 0.01);
    assert_eq!((last("ttft_slo_violation"), last("tpot_slo_violation")), (1.0, 0.0));
    assert_eq!(level("request_slo_violation_total", "type=\"ttft\""), 22.0);
    assert!(!text.contains("type=\"tpot\"} 22"), "no objective for it was missed");
}
