//! Small configurations with the fields that the guides and samples of llm-d use.

use crate::{Options, load};

/// Loads a configuration whose first two lines are left out here.
fn check(text: &str) {
    check_all(&format!("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{text}"));
}

fn check_all(text: &str) {
    let options = Options { allow_experimental: true, lenient: false };
    if let Err(refused) = load(text, options) {
        panic!("refused:\n{text}\n{refused}");
    }
}

/// The types that a configuration of plug-ins needs and that are not there: each is named, and
/// nothing else is wrong.
fn check_missing(text: &str, missing: &[(usize, &str)]) {
    let text = format!("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{text}");
    let options = Options { allow_experimental: true, lenient: false };
    let refused = load(&text, options).err().expect("it is refused");
    let found: Vec<_> = refused.0.iter().map(ToString::to_string).collect();
    let wanted = missing.iter().map(|(at, type_name)| {
        format!("plugins[{at}].type: {type_name:?} is not part of this program")
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
    // As `epp-burst-prefix-cache-config` has it.
    check_missing(
        "plugins:
- type: token-producer
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 100, maxPerReplica: -1}}
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}
- type: load-aware-scorer
schedulingProfiles: [{name: default, plugins: [{pluginRef: prefix-cache-scorer, weight: 2},
  {pluginRef: load-aware-scorer}]}]
",
        &[(1, "burst-prefix-cache-producer")],
    );
    // Nobody's request in flight gives way here.
    check_missing(
        "plugins: [{type: queue-scorer}, {type: sheddable-eviction-filter},
  {type: priority-then-time-eviction-order-policy}]
",
        &[(1, "sheddable-eviction-filter"), (2, "priority-then-time-eviction-order-policy")],
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
fn three_stages_load() {
    check(
        "plugins:
- type: always-disagg-multimodal-decider
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters:
    deciders: {encode: always-disagg-multimodal-decider, prefill: always-disagg-pd-decider}
- {type: encode-filter}
- {type: prefill-filter}
- {type: decode-filter}
- {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMB: 2048}}
- {type: mm-embeddings-cache-scorer}
- {type: active-request-scorer}
schedulingProfiles:
- name: encode
  plugins: [{pluginRef: encode-filter}, {pluginRef: mm-embeddings-cache-scorer, weight: 4}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]
",
    );
}

#[test]
fn the_handlers_of_old_load() {
    check(
        "plugins:
- {type: disagg-headers-handler}
- {type: always-disagg-pd-decider}
- type: disagg-profile-handler
  parameters: {deciderPluginName: always-disagg-pd-decider}
schedulingProfiles:
- {name: prefill, plugins: []}
- {name: decode, plugins: []}
",
    );
    check(
        "plugins:
- {type: prefill-header-handler}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 16}}
- {type: pd-profile-handler, parameters: {deciderPluginName: prefix-based-pd-decider}}
schedulingProfiles:
- {name: prefill, plugins: []}
- {name: decode, plugins: []}
",
    );
    check("plugins: [{type: data-parallel-profile-handler, parameters: {primaryPort: 8000}}]\n");
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
