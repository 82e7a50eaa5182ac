//! Whole configurations: what is refused, in which words, and what is only warned of.

use crate::{LoadOptions, load};
use std::fmt::Display;

const HEAD: &str = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n";
const STRICT: LoadOptions = LoadOptions { allow_experimental: false, lenient: false };
const LENIENT: LoadOptions = LoadOptions { allow_experimental: false, lenient: true };

fn lines(findings: &[impl Display]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

/// The faults of a configuration, whose first two lines are left out here.
fn check(text: &str, faults: &[&str]) {
    match load(&format!("{HEAD}{text}"), STRICT) {
        Ok(_) => assert!(faults.is_empty(), "accepted:\n{text}"),
        Err(refused) => assert_eq!(lines(&refused.0), faults, "of:\n{text}"),
    }
}

#[test]
fn a_source_of_metrics_says_what_they_mean() {
    check(
        "plugins: [{type: queue-scorer}]
dataLayer: {sources: [{pluginRef: metrics-data-source}]}
",
        &["dataLayer.sources[0].pluginRef: has no core-metrics-extractor among its extractors"],
    );
}

/// The warnings of a configuration that is accepted.
fn check_warnings(text: &str, options: LoadOptions, warnings: &[&str]) {
    match load(&format!("{HEAD}{text}"), options) {
        Ok(loaded) => assert_eq!(lines(&loaded.warnings), warnings, "of:\n{text}"),
        Err(refused) => panic!("refused:\n{text}\n{refused}"),
    }
}

#[test]
fn a_document_of_another_kind_is_refused() {
    let check = |text: &str, faults: &[&str]| {
        let refused = load(text, STRICT).err().expect("it is no configuration");
        assert_eq!(lines(&refused.0), faults);
    };
    check("[]", &["expected a mapping, got a list"]);
    check("kind: EndpointPickerConfig", &["apiVersion: is missing"]);
    check(
        "{apiVersion: v1, kind: Pod}",
        &[
            "apiVersion: \"v1\" is not llm-d.ai/v1alpha1",
            "kind: \"Pod\" is not EndpointPickerConfig",
        ],
    );
    check("a: b: c", &["mapping values are not allowed in this context at line 1 column 5"]);
    check(&" ".repeat((1 << 20) + 1), &["has 1048577 bytes, more than 1048576"]);
}

#[test]
fn every_fault_of_the_shape_is_told_at_once() {
    check(
        "pluginz: []
plugins:
- type: queue-scorer
  wieght: 2
- name: nameless
- type: queue-scorer
- {type: 7}
- type: decode-filter
  parameters: [1]
- type: decode-filter
  name: \"a\\nb\"
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: heavy
  - weight: -1
  - queue-scorer
- name: default
- plugins: {}
requestHandler: {parsers: [{}], parser: x}
plugins: []
",
        &[
            "plugins: the key is there twice",
            "plugins[0].wieght: there is no such field",
            "plugins[1].type: is missing",
            "plugins[2].type: \"queue-scorer\" is also the name of plugins[0]",
            "plugins[3].type: expected a text, got a number",
            "plugins[4].parameters: expected a mapping, got a list",
            "plugins[5].name: \"a\\nb\" has a control character",
            "schedulingProfiles[0].plugins[0].weight: expected a number, got a text",
            "schedulingProfiles[0].plugins[1].pluginRef: is missing",
            "schedulingProfiles[0].plugins[1].weight: -1 is less than 0",
            "schedulingProfiles[0].plugins[2]: expected a mapping, got a text",
            "schedulingProfiles[1].name: \"default\" is also the name of schedulingProfiles[0]",
            "schedulingProfiles[2].name: is missing",
            "schedulingProfiles[2].plugins: expected a list, got a mapping",
            "requestHandler.parsers[0].pluginRef: is missing",
            "requestHandler.parser: there is no such field; did you mean \"parsers\"?",
            "pluginz: there is no such field; did you mean \"plugins\"?",
        ],
    );
}

#[test]
fn names_and_references_are_checked() {
    check(
        "featureGates: [flowControl, flowcontrol, haPopulateNonLeaderDatastore=maybe]
plugins:
- type: queue-scorer
- type: queue-scorrer
- type: kv-cache-utilization-scorer
  name: queue-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: quue-scorer
  - pluginRef: queue-scorrer
  - pluginRef: max-score-picker
requestHandler:
  parsers: [{pluginRef: queue-scorer}, {pluginRef: open-parser}]
dataLayer:
  sources:
  - pluginRef: core-metrics-extractor
  discovery: {pluginRef: metrics-data-source}
flowControl:
  usageLimitPolicyPluginRef: none
  priorityBands: [{priority: 1, fairnessPolicyRef: fcfs-ordering-policy}]
",
        &[
            "featureGates[1]: no gate is called \"flowcontrol\"; did you mean \"flowControl\"?",
            "featureGates[2]: \"maybe\" is not true or false",
            "plugins[2].name: \"queue-scorer\" is also the name of plugins[0]",
            "plugins[1].type: no plug-in type is called \"queue-scorrer\"; did you mean \"queue-scorer\"?",
            "schedulingProfiles[0].plugins[0].pluginRef: no plugin is called \"quue-scorer\"; did you mean \"queue-scorer\"?",
            "requestHandler.parsers[0].pluginRef: \"queue-scorer\" is a queue-scorer, not a parser",
            "requestHandler.parsers[1].pluginRef: no plugin is called \"open-parser\"; did you mean \"openai-parser\"?",
            "dataLayer.sources[0].pluginRef: no plugin is called \"core-metrics-extractor\"",
            "dataLayer.discovery.pluginRef: no plugin is called \"metrics-data-source\"",
            "flowControl.usageLimitPolicyPluginRef: no plugin is called \"none\"",
            "flowControl.priorityBands[0].fairnessPolicyRef: no plugin is called \"fcfs-ordering-policy\"",
        ],
    );
}

#[test]
fn plug_ins_that_cannot_be_used_are_all_named() {
    check(
        "plugins:
- type: session-affinity-scorer
- type: dcgm-extractor
- type: queue-scorer
- type: dcgm-data-source
  name: gpus
dataLayer:
  sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: dcgm-extractor}]}]
",
        &[
            "plugins[0].type: \"session-affinity-scorer\" is experimental: allow it with --allow-experimental-plugins",
            "plugins[1].type: \"dcgm-extractor\" is not part of this program: it reads pages of GPU metrics, and this program reads those of engines alone",
            "plugins[3].type: \"dcgm-data-source\" is not part of this program: it reads pages of GPU metrics, and this program reads those of engines alone",
        ],
    );
}

#[test]
fn there_is_exactly_one_profile_handler() {
    let profiles = "schedulingProfiles: [{name: a, plugins: []}, {name: b, plugins: []}]\n";
    check(profiles, &["plugins: no profile handler for 2 schedulingProfiles"]);
    check(
        &format!("plugins: [{{type: single-profile-handler}}]\n{profiles}"),
        &["plugins[0].type: is for one scheduling profile, there are 2"],
    );
    check(
        "plugins:
- type: single-profile-handler
- {type: single-profile-handler, name: again}
schedulingProfiles: [{name: a, plugins: []}]
",
        &["plugins[1].type: plugins[0] is a profile handler already"],
    );
}

#[test]
fn a_profile_has_one_picker() {
    check(
        "plugins: [{type: max-score-picker}, {type: random-picker}]
schedulingProfiles:
- name: a
  plugins: [{pluginRef: max-score-picker}, {pluginRef: random-picker}]
",
        &[
            "schedulingProfiles[0].plugins[1].pluginRef: \"max-score-picker\" is the picker of this profile already",
        ],
    );
}

#[test]
fn values_of_flow_control_are_checked() {
    check(
        "flowControl:
  maxBytes: lots
  maxRequests: -1
  maxTokens: x
  defaultRequestTTL: 60
  noEndpointRequestTTL: soon
  enableEviction: perhaps
  usageLimitPolicyRef: x
  priorityBands:
  - {priority: 5}
  - {priority: 5}
  - {priority: 1.5, maxBytes: [], maxRequest: 5}
  - {priority: 3000000000}
",
        &[
            "flowControl.maxBytes: \"lots\" is not a quantity such as 100, 1k, 512M or 10Gi",
            "flowControl.maxRequests: -1 is less than 0",
            "flowControl.maxTokens: \"x\" is not a quantity such as 100, 1k, 512M or 10Gi",
            "flowControl.defaultRequestTTL: expected a duration, got a number",
            "flowControl.noEndpointRequestTTL: \"soon\" is not a duration such as 200ms, 60s or 1m30s",
            "flowControl.enableEviction: expected true or false, got a text",
            "flowControl.priorityBands[1].priority: there are two bands of priority 5",
            "flowControl.priorityBands[2].priority: expected a whole number, got a number",
            "flowControl.priorityBands[2].maxBytes: expected a quantity, got a list",
            "flowControl.priorityBands[2].maxRequest: there is no such field; did you mean \"maxRequests\"?",
            "flowControl.priorityBands[3].priority: 3000000000 is not in -2147483648..=2147483647",
            "flowControl.usageLimitPolicyRef: there is no such field; did you mean \"usageLimitPolicyPluginRef\"?",
        ],
    );
}

#[test]
fn forms_of_old_are_accepted_with_a_warning() {
    check_warnings(
        "featureGates: [dataLayer, prepareDataPlugins]
plugins:
- {type: queue-scorer}
- {type: by-label, parameters: {label: role, validValues: [decode]}}
- {type: approx-prefix-cache-producer, parameters: {blockSize: 64}}
saturationDetector: {pluginRef: utilization-detector}
parser: {pluginRef: openai-parser}
",
        STRICT,
        &[
            "featureGates[0]: the gate dataLayer has no effect any more: remove it",
            "featureGates[1]: the gate prepareDataPlugins has no effect any more: remove it",
            "saturationDetector: is deprecated: use flowControl.saturationDetector",
            "parser: is deprecated: use requestHandler.parsers",
            "plugins[1].type: \"by-label\" is deprecated",
            "plugins[2].parameters.blockSize: is deprecated: use blockSizeTokens",
        ],
    );
}

#[test]
fn what_has_no_effect_is_warned_of() {
    check_warnings(
        "plugins: [{type: queue-scorer}, {type: decode-filter}, {type: inflight-load-producer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter, weight: 2}, {pluginRef: inflight-load-producer}]
flowControl: {priorityBands: [{priority: 7}]}
",
        STRICT,
        &[
            "schedulingProfiles[0].plugins[0].pluginRef: a weight has no effect: \"decode-filter\" is no scorer",
            "schedulingProfiles[0].plugins[1].pluginRef: \"inflight-load-producer\" has no effect in a profile",
            "plugins[0]: no profile uses \"queue-scorer\"",
            "flowControl.priorityBands: have no effect without the feature gate flowControl",
        ],
    );
}

#[test]
fn leniency_passes_over_what_is_unknown() {
    check_warnings(
        "future: {a: 1}
featureGates: [timeTravel]
plugins:
- {type: queue-scorer, parameters: {speed: 1}}
- {type: oracle}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}, {pluginRef: oracle, weight: 3}]
",
        LENIENT,
        &[
            "featureGates[0]: ignored: no gate is called \"timeTravel\"",
            "future: ignored: there is no such field",
            "plugins[1].type: ignored: no plug-in type is called \"oracle\"",
            "schedulingProfiles[0].plugins[1].pluginRef: ignored: \"oracle\" is ignored",
            "plugins[0].parameters.speed: ignored: unknown parameter, there are none",
        ],
    );
}

#[test]
fn parameters_are_checked_with_everything_else() {
    check(
        "plugins:
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 1.5, prefixMatchInfoProducerName: nobody, speed: 3}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: decide-for-me}, stageOrder: random}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 0}}
schedulingProfiles: [{name: decode, plugins: []}]
",
        &[
            "plugins[0].parameters.prefixMatchInfoProducerName: no plugin is called \"nobody\"",
            "plugins[1].parameters.deciders.prefill: no plugin is called \"decide-for-me\"",
            "plugins[0].parameters.affinityThreshold: 1.5 is not in 0..=1",
            "plugins[0].parameters.speed: unknown parameter, known are latencyPredictionInfoProducerName, inFlightLoadProducerName, peakPrefillThroughput, prefixMatchInfoProducerName, affinityThreshold, explorationProbability, maxTokensInFlightPenalty, maxTTFTPenaltyMs, ttftSource",
            "plugins[1].parameters.stageOrder: \"random\" is none of decode-first, prefill-first",
            "plugins[2].parameters.maxNumOfEndpoints: 0 is not in 1..=1000",
        ],
    );
}

#[test]
fn there_is_one_of_what_can_only_be_one() {
    check(
        "plugins:
- {type: queue-scorer}
- {type: token-producer}
- {type: tokenizer, name: again}
- {type: metrics-data-source, name: other-metrics}
dataLayer:
  sources:
  - {pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}
  - {pluginRef: other-metrics, extractors: [{pluginRef: core-metrics-extractor}]}
",
        &[
            "dataLayer.sources[1].pluginRef: dataLayer.sources[0].pluginRef reads metrics already, and only one can",
            "plugins[2]: plugins[1] does the same already, and only one can",
        ],
    );
}

#[test]
fn what_has_no_effect_is_told_at_its_place() {
    let none = "has no effect here";
    check_warnings(
        "featureGates: [haPopulateNonLeaderDatastore=false]
plugins:
- type: queue-scorer
- type: token-producer
- type: inflight-load-producer
- type: predicted-latency-producer
  parameters: {samplingMean: 10, maxDecodeTokenSamplesForPrediction: 2}
- type: models-data-source
- type: program-aware-fairness
  parameters: {lasWeightService: 0.5, evictionSweepSeconds: 9}
- type: precise-prefix-cache-producer
  parameters: {indexerConfig: {kvCacheBackendConfigs: [{name: tape, weight: 0.1}],
    kvBlockIndexConfig: {redisConfig: {address: 'redis://index:6379'}}}}
dataLayer: {sources: [{pluginRef: models-data-source}]}
flowControl: {enableEviction: true}
",
        STRICT,
        &[
            "featureGates[0]: has no effect here: every replica knows its endpoints",
            "flowControl.enableEviction: has no effect without the feature gate flowControl",
            &format!("plugins[3].parameters.samplingMean: {none}"),
            &format!("plugins[3].parameters.maxDecodeTokenSamplesForPrediction: {none}"),
            &format!("plugins[5].parameters.evictionSweepSeconds: {none}"),
            "plugins[6].parameters.indexerConfig.kvBlockIndexConfig.redisConfig: has no effect \
             here: replicas share the index with --peers",
            "plugins[6].parameters.indexerConfig.kvCacheBackendConfigs[0].name: no engine has a \
             tier \"tape\": its weight has no effect",
            &format!("dataLayer.sources[0].pluginRef: {none}"),
        ],
    );
}

#[test]
fn a_configuration_that_is_too_deep_is_refused() {
    let Err(refused) = load(&"[".repeat(100_000), STRICT) else { panic!("it is too deep") };
    assert!(refused.0[0].message.contains("recursion limit exceeded"), "{:?}", refused.0);
}
