//! Small configurations with the fields that the guides and samples of llm-d use.

use crate::{LoadOptions, load};
use stator_epp_plugins::why_missing;

/// Loads a configuration whose first two lines are left out here.
pub(crate) fn check(text: &str) {
    check_all(&format!("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{text}"));
}

fn check_all(text: &str) {
    let options = LoadOptions { allow_experimental: true, lenient: false };
    if let Err(refused) = load(text, options) {
        panic!("refused:\n{text}\n{refused}");
    }
}

/// The types that a configuration of plug-ins needs and that are not there: each is named, and
/// nothing else is wrong.
fn check_missing(text: &str, missing: &[(usize, &str)]) {
    let text = format!("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{text}");
    let options = LoadOptions { allow_experimental: true, lenient: false };
    let refused = load(&text, options).err().expect("it is refused");
    let found: Vec<_> = refused.0.iter().map(ToString::to_string).collect();
    let wanted = missing.iter().map(|(at, type_name)| {
        let why = why_missing(type_name);
        format!("plugins[{at}].type: {type_name:?} is not part of this program: {why}")
    });
    assert_eq!(found, wanted.collect::<Vec<_>>(), "of:\n{text}");
}

#[test]
fn samples_with_parts_that_are_missing_are_refused_with_their_list() {
    // As `sim-epp-gpu-config` has it.
    check_missing(
        "plugins:
- {type: dcgm-data-source, name: gpus, parameters: {port: 9400, interval: 1s}}
- {type: dcgm-extractor}
- type: endpoint-attribute-filter
  name: busy
  parameters: {attribute: GPUUtilization/dcgm-extractor, onMissing: Pass, fallbackOnEmpty: true,
    algorithm: {threshold: {operator: LessThanOrEqual, value: 0.9}}}
- type: endpoint-attribute-scorer
  name: idle
  parameters: {attributeKey: GPUUtilization/dcgm-extractor}
- type: kv-cache-utilization-scorer
dataLayer: {sources: [{pluginRef: gpus, extractors: [{pluginRef: dcgm-extractor}]}]}
schedulingProfiles: [{name: default, plugins: [{pluginRef: busy}, {pluginRef: idle, weight: 2},
  {pluginRef: kv-cache-utilization-scorer}]}]
",
        &[
            (0, "dcgm-data-source"),
            (1, "dcgm-extractor"),
            (2, "endpoint-attribute-filter"),
            (3, "endpoint-attribute-scorer"),
        ],
    );
}

#[test]
fn bursts_of_equal_prompts_load() {
    check(
        "plugins:
- {type: token-producer, parameters: {modelName: m, vllm: {url: 'http://localhost:8000'}}}
- type: burst-prefix-cache-producer
  parameters: {windowDurationMs: 100, maxPerReplica: -1, minColocateBlocks: 0}
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}
- type: load-aware-scorer
- type: max-score-picker
schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer, weight: 2},
  {pluginRef: load-aware-scorer}, {pluginRef: max-score-picker}]}]
",
    );
}

#[test]
fn prefixes_that_come_with_the_request_load() {
    check(
        "plugins:
- type: approx-prefix-cache-producer
  parameters: {prefixHashSource: metadata, maxPrefixBlocksToMatch: 256, lruCapacityPerServer: 31250}
- {type: prefix-cache-scorer}
- {type: decode-filter}
",
    );
}

#[test]
fn sessions_by_depth_and_eviction_load() {
    let text = "apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: program-aware-fairness, parameters: {strategy: turn-priority}}
- {type: agent-identity}
- {type: queue-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 32}}
- {type: sheddable-eviction-filter}
- {type: priority-then-time-eviction-order-policy}
flowControl:
  enableEviction: true
  saturationDetector: {pluginRef: concurrency-detector}
  priorityBands:
  - {priority: -1, defaultRequestTTL: 9000s, fairnessPolicyRef: program-aware-fairness}
  - {priority: 0}
";
    let options = LoadOptions { allow_experimental: true, lenient: false };
    let loaded = load(text, options).expect("it is sound");
    assert!(loaded.plan.flow_control.eviction);
    assert_eq!(loaded.warnings, []);
    assert!(loaded.explanation.contains("  enableEviction: true\n"), "{}", loaded.explanation);
    // Where nothing waits nothing gives way, which is told.
    let without = load(&text.replace("featureGates: [flowControl]\n", ""), options);
    let warnings = without.expect("it is sound").warnings;
    let told =
        warnings.iter().any(|found| found.to_string().starts_with("flowControl.enableEviction"));
    assert!(told, "{warnings:?}");
}

#[test]
fn the_decay_of_old_configurations_loads() {
    check(
        "featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- type: program-aware-fairness
  parameters: {strategy: las, lasWeightService: 0.8, lasDecayFactor: 0.99997}
flowControl: {defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}}
",
    );
}

#[test]
fn the_product_of_prefix_and_load_loads() {
    check(
        "plugins:
- {type: token-producer, parameters: {modelName: m, vllm: {url: 'http://render:8000'}}}
- {type: endpoint-notification-source}
- type: inflight-load-producer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSizeTokens: 64}
    speculativeIndexing: true
    indexerConfig: {kvBlockIndexConfig: {enableMetrics: true}}
    kvEventsConfig: {topicFilter: 'kv@', concurrency: 8, discoverPods: true,
      podDiscoveryConfig: {socketPort: 5556}}
- type: lmetric-scorer
  parameters:
    prefixMatchInfoProducerName: precise-prefix-cache-producer
    inFlightLoadProducerName: inflight-load-producer
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: lmetric-scorer, weight: 1.0}]}
",
    );
}

const HUB: &str = "- type: multicluster-file-discovery
  name: discovery
  parameters: {path: /etc/epp/clusters/clusters.yaml, watchFile: true}
- {type: max-score-picker, name: picker}
- {type: single-profile-handler, name: profile-handler}
";

#[test]
fn hubs_that_go_by_latency_load() {
    check(&format!(
        "plugins:
{HUB}- type: latency-observer-producer-hub
  name: ttft-observer
  parameters: {{intervalDuration: 1s, windowSize: 500, maxObservationAge: 2m, maxRequests: 50,
    minRequests: 3, lowPercentile: 25, typicalPercentile: 50, bucketDuration: 5s,
    bucketHistorySize: 4}}
- type: latency-observation-scorer-hub
  name: ttft
  parameters: {{explorationRate: 0.1, minInflightGap: 1, ttftPercentilesProducerName: ttft-observer}}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: ttft}}, {{pluginRef: picker}}]}}]
dataLayer:
  discovery: {{endpoints: {{pluginRef: discovery}}}}
  sources: [{{pluginRef: ttft-observer}}]
"
    ));
}

#[test]
fn hubs_that_go_by_load_read_the_averages_of_clusters() {
    let text = format!(
        "apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
{HUB}- {{type: multicluster-metrics-data-source, name: metrics-source, parameters: {{scheme: http}}}}
- {{type: multicluster-metrics-extractor, name: metrics-extractor}}
- {{type: multicluster-kv-cache-utilization-scorer, name: kv-cache}}
- {{type: multicluster-queue-scorer, name: queue}}
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: kv-cache, weight: 1}}, {{pluginRef: queue, weight: 1}}, {{pluginRef: picker}}]
dataLayer:
  discovery: {{endpoints: {{pluginRef: discovery}}}}
  sources: [{{pluginRef: metrics-source, extractors: [{{pluginRef: metrics-extractor}}]}}]
"
    );
    let options = LoadOptions { allow_experimental: true, lenient: false };
    let plan = load(&text, options).expect("it is sound").plan;
    let metrics = plan.metrics.expect("pages are read");
    assert!(metrics.source.by_labels);
    let engine = &metrics.extractor.engines[0];
    assert_eq!(engine.kv_usage.as_deref(), Some("llm_d_epp_average_kv_cache_utilization"));
    assert_eq!(engine.waiting.as_deref(), Some("llm_d_epp_average_queue_size"));
}

#[test]
fn the_plug_ins_of_dynamo_load() {
    check(
        "plugins:
- {type: disagg-profile-handler}
- name: decode-filter
  type: label-filter
  parameters: {label: nvidia.com/dynamo-component-type, validValues: [decode], allowsNoLabel: true}
- {name: picker, type: max-score-picker}
- {name: dyn-decode, type: dyn-decode-scorer}
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter, weight: 1}, {pluginRef: dyn-decode, weight: 1},
    {pluginRef: picker, weight: 1}]
",
    );
    check(
        "plugins:
- {type: disagg-profile-handler}
- name: prefill-filter
  type: label-filter
  parameters: {label: nvidia.com/dynamo-component-type, validValues: [prefill]}
- name: decode-filter
  type: label-filter
  parameters: {label: nvidia.com/dynamo-component-type, validValues: [decode], allowsNoLabel: true}
- {name: picker, type: max-score-picker}
- {name: dyn-prefill, type: dyn-prefill-scorer}
- {name: dyn-decode, type: dyn-decode-scorer}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: dyn-prefill}, {pluginRef: picker}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: dyn-decode}, {pluginRef: picker}]
",
    );
}

#[test]
fn stickiness_until_so_many_tokens_loads() {
    check(
        "plugins:
- {type: token-load-scorer}
- {type: inflight-load-producer}
- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 40960}}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.8, maxTokensInFlightPenalty: 286720, maxTTFTPenaltyMs: 0}
",
    );
}

#[test]
fn caches_outside_the_engines_load() {
    check(
        "plugins:
- {type: approx-prefix-cache-producer, name: mooncake-producer}
- type: prefix-cache-scorer
  name: mooncake-scorer
  parameters: {prefixMatchInfoProducerName: mooncake-producer}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- type: no-hit-lru-scorer
  name: mooncake-lru
  parameters: {prefixPluginType: prefix-cache-scorer, prefixPluginName: mooncake-scorer}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: kv-cache-utilization-scorer},
    {pluginRef: mooncake-scorer}, {pluginRef: mooncake-lru}]
",
    );
}

#[test]
fn profiles_by_header_load() {
    check(
        "plugins:
- {type: encode-filter}
- {type: prefill-filter}
- {type: decode-filter}
- {type: header-profile-handler}
- {type: approx-prefix-cache-producer}
- {type: inflight-load-producer}
- {type: prefix-cache-affinity-filter}
- {type: token-load-scorer}
- {type: active-request-scorer}
- {type: max-score-picker}
schedulingProfiles:
- {name: encode, plugins: [{pluginRef: encode-filter}, {pluginRef: active-request-scorer},
    {pluginRef: max-score-picker}]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-affinity-filter},
    {pluginRef: token-load-scorer}, {pluginRef: max-score-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer},
    {pluginRef: max-score-picker}]}
",
    );
}

#[test]
fn images_are_generated_without_metrics() {
    check(
        "plugins:
- {name: activeRequest, type: active-request-scorer}
- {name: maxScore, type: max-score-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: activeRequest}, {pluginRef: maxScore}]}
dataLayer: {injectDefaults: false}
",
    );
}

#[test]
fn every_version_of_the_api_loads() {
    for version in ["llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"] {
        check_all(&format!("apiVersion: {version}\nkind: EndpointPickerConfig\n"));
    }
}

#[test]
fn json_loads() {
    check_all(
        r#"{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig",
            "plugins": [{"type": "queue-scorer", "name": null, "parameters": null}]}"#,
    );
}

#[test]
fn token_producers_load() {
    check(
        "plugins:
- type: token-producer
  parameters:
    estimate:
      image:
        mode: dynamic
        defaultResolution: {width: 1280, height: 720}
        dynamic: {factor: 1024}
      video:
        tokensPerFrame: {mode: dynamic, dynamic: {factor: 1024}}
        frames: {mode: sampled, minFrames: 4, maxFrames: 768, sampled: {sampleFPS: 2,
          temporalPatchSize: 2}}
        defaultResolution: {width: 640, height: 360}
        defaultDuration: 10
        maxVideoTokens: 0
- type: queue-scorer
",
    );
    check(
        "plugins:
- type: tokenizer
  parameters: {backend: vllm, modelName: m, vllm: {url: 'http://render:8000', timeout: 5s}}
- type: queue-scorer
",
    );
}

#[test]
fn precise_prefix_caches_load() {
    check(
        "plugins:
- type: token-producer
  parameters: {modelName: m, vllm: {url: 'http://render:8000'}}
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSize: 16, hashSeed: '42'}
    kvEventsConfig: {zmqEndpoint: 'tcp://0.0.0.0:5557'}
    indexerConfig:
      kvBlockIndexConfig:
        inMemoryConfig: {podCacheSize: 128}
        enableMetrics: false
        metricsLoggingInterval: 60000000000
      kvCacheBackendConfigs:
      - {name: gpu, weight: 1.0}
      - {name: cpu, weight: 0.4}
- type: inflight-load-producer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: prefix-cache-affinity-filter
  parameters:
    prefixMatchInfoProducerName: precise-prefix-cache-producer
    inFlightLoadProducerName: inflight-load-producer
    peakPrefillThroughput: 3585
- type: token-load-scorer
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
",
    );
}

#[test]
fn the_precise_scorer_of_old_loads() {
    check(
        "plugins:
- type: tokenizer
  parameters:
    modelName: m
    udsTokenizerConfig: {socketFile: /tmp/tokenizer/tokenizer-uds.socket}
- type: precise-prefix-cache-scorer
  parameters:
    tokenProcessorConfig: {blockSize: 64}
    speculativeIndexing: true
    indexerConfig:
      tokenizersPoolConfig:
        modelName: m
        workersCount: 24
        uds: {socketFile: /tmp/tokenizer/tokenizer-uds.socket}
      kvBlockIndexConfig: {enableMetrics: true}
    kvEventsConfig:
      topicFilter: 'kv@'
      concurrency: 8
      discoverPods: true
      podDiscoveryConfig: {socketPort: 5556}
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-scorer}]
",
    );
}

#[test]
fn predicted_latencies_load() {
    check(
        "plugins:
- {type: predicted-latency-producer, parameters: {streamingMode: true}}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.8, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
- {type: latency-scorer, name: ttft-scorer, parameters: {ttftWeight: 1, tpotWeight: 0}}
- {type: latency-scorer, name: tpot-scorer, parameters: {ttftWeight: 0, tpotWeight: 1}}
- {type: weighted-random-picker}
",
    );
}

#[test]
fn fairness_among_programs_loads() {
    check(
        "featureGates: [flowControl]
plugins:
- {type: agent-identity}
- {type: queue-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 133}}
- {type: program-aware-fairness}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
",
    );
}

#[test]
fn caches_of_peers_load() {
    check(
        "plugins:
- type: precise-prefix-cache-producer
  parameters: {indexerConfig: {kvBlockIndexConfig: {maxPrefixTokensToMatch: 131072}}}
- type: p2p-source-producer
  parameters:
    prefixMatchInfoProducerName: precise-prefix-cache-producer
    prefillProfileName: default
    minCachedTokenDelta: 2048
- {type: queue-scorer}
",
    );
}

#[test]
fn discovery_from_a_file_loads_in_either_form() {
    let plugin = "plugins:
- {type: file-discovery, parameters: {path: /etc/stator/endpoints.yaml, watchFile: true}}
";
    check(&format!("{plugin}dataLayer: {{discovery: {{pluginRef: file-discovery}}}}\n"));
    check(&format!(
        "{plugin}dataLayer: {{discovery: {{endpoints: {{pluginRef: file-discovery}}}}}}\n"
    ));
}

#[test]
fn metrics_of_other_engines_load() {
    check(
        "plugins:
- type: metrics-data-source
  parameters: {scheme: https, path: /metrics, insecureSkipVerify: true}
- type: core-metrics-extractor
  parameters:
    engineLabelKey: llm-d.ai/engine-type
    defaultEngine: sglang
    engineConfigs:
    - name: sglang
      queuedRequestsSpec: 'sglang:num_queue_reqs'
      runningRequestsSpec: 'sglang:num_running_reqs'
      kvUsageSpec: 'sglang:token_usage'
dataLayer:
  injectDefaults: false
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
",
    );
}
