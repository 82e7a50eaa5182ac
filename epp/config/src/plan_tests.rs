//! What a plan says of a configuration.

use crate::{LoadOptions, ParserKind, Plan, ResponsePath, load};
use stator_epp_plugins::settings::{Fairness, Ordering, Tokens};
use std::time::Duration;

/// The plan of a configuration whose first two lines are left out here.
fn plan(text: &str) -> Plan {
    let text = format!("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{text}");
    let options = LoadOptions { allow_experimental: true, lenient: false };
    match load(&text, options) {
        Ok(loaded) => loaded.plan,
        Err(refused) => panic!("refused:\n{text}\n{refused}"),
    }
}

#[test]
fn bands_take_after_the_default_one_and_are_sorted() {
    let plan = plan(
        "featureGates: [flowControl]
plugins: [{type: round-robin-fairness-policy}]
flowControl:
  maxRequests: 1k
  defaultRequestTTL: 30s
  noEndpointRequestTTL: 0s
  defaultPriorityBand: {maxRequests: 7, fairnessPolicyRef: round-robin-fairness-policy}
  priorityBands:
  - {priority: -5, maxBytes: 1Mi, defaultRequestTTL: 1s}
  - {priority: 9, orderingPolicyRef: edf-ordering-policy}
",
    );
    let flow = &plan.flow_control;
    assert!(plan.features.flow_control);
    assert_eq!((flow.max_bytes, flow.max_requests), (None, Some(1_000)));
    assert_eq!(flow.no_endpoint_ttl, None);
    let bands: Vec<_> =
        flow.bands.iter().map(|b| (b.priority, b.max_bytes, b.max_requests)).collect();
    assert_eq!(bands, [(9, 1_000_000_000, 5_000), (0, 1_000_000_000, 7), (-5, 1 << 20, 5_000)]);
    let policies: Vec<_> = flow.bands.iter().map(|b| (b.fairness, b.ordering)).collect();
    assert_eq!(
        policies,
        [
            (Fairness::GlobalStrict, Ordering::EarliestDeadline),
            (Fairness::RoundRobin, Ordering::FirstCome),
            (Fairness::GlobalStrict, Ordering::FirstCome),
        ]
    );
    let ttls: Vec<_> = flow.bands.iter().map(|band| band.ttl).collect();
    let (all, low) = (Duration::from_secs(30), Duration::from_secs(1));
    assert_eq!(ttls, [Some(all), Some(all), Some(low)]);
    assert_eq!(flow.default_negative_band.max_requests, 7);
}

#[test]
fn parsers_keep_their_order() {
    let some =
        "requestHandler: {parsers: [{pluginRef: sglanghttp-parser}, {pluginRef: openai-parser}]}\n";
    assert_eq!(plan(some).parsers, [ParserKind::SglangHttp, ParserKind::OpenAi]);
    let default =
        [ParserKind::OpenAi, ParserKind::Anthropic, ParserKind::VllmHttp, ParserKind::Passthrough];
    assert_eq!(plan("").parsers, default);
}

#[test]
fn answers_are_seen_as_far_as_plug_ins_look() {
    let check = |type_name: &str, expected: ResponsePath| {
        let plan = plan(&format!("plugins: [{{type: {type_name}}}]\n"));
        assert_eq!(plan.response_path, expected, "{type_name}");
    };
    check("queue-scorer", ResponsePath::Nothing);
    check("session-affinity-scorer", ResponsePath::Headers);
    check("active-request-scorer", ResponsePath::Body);
    check("kv-aware", ResponsePath::Nothing);
}

#[test]
fn missing_producers_are_made_before_those_that_need_them() {
    let plan = plan("plugins: [{type: prefix-cache-scorer}]\n");
    let producers: Vec<_> = plan.program.producers.iter().map(|p| &*p.name).collect();
    assert_eq!(producers, ["approx-prefix-cache-producer"]);
    assert!(matches!(plan.tokens, Some(Tokens::Estimate(_))));
    assert!(plan.precise.is_none() && plan.kv_cost.is_none() && !plan.program.uses_kv);
}

#[test]
fn endpoints_come_from_a_file_if_one_is_named() {
    let plan = plan(
        "plugins: [{type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}]
dataLayer: {discovery: {pluginRef: file-discovery}, injectDefaults: false}
",
    );
    let file = plan.discovery.expect("a file is named");
    assert_eq!((file.path.as_str(), file.watch), ("endpoints.yaml", true));
    assert!(plan.metrics.is_none());
}
