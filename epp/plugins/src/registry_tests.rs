use super::*;
use crate::PluginPlace;
use crate::table::why_missing;
use proptest::prelude::*;
use serde_json::json;

/// Every type that a configuration of the llm-d router can name, and our own.
const TYPES: &str = "
    single-profile-handler disagg-profile-handler pd-profile-handler
    data-parallel-profile-handler header-profile-handler always-disagg-pd-decider
    prefix-based-pd-decider always-disagg-multimodal-decider disagg-headers-handler
    prefill-header-handler label-selector-filter by-label by-label-selector decode-filter
    prefill-filter encode-filter prefix-cache-affinity-filter slo-headroom-tier-filter
    session-affinity-filter endpoint-attribute-filter topology-affinity-filter
    utilization-filter multicluster-session-affinity-filter header-based-testing-filter
    queue-scorer running-requests-size-scorer kv-cache-utilization-scorer load-aware-scorer
    active-request-scorer token-load-scorer prefix-cache-scorer precise-prefix-cache-scorer
    lora-affinity-scorer no-hit-lru-scorer context-length-aware session-affinity-scorer
    header-label-affinity-scorer endpoint-attribute-scorer topology-affinity-scorer
    mm-embeddings-cache-scorer latency-scorer multicluster-queue-scorer
    multicluster-kv-cache-utilization-scorer multicluster-prefix-cache-scorer max-score-picker
    random-picker weighted-random-picker approx-prefix-cache-producer
    precise-prefix-cache-producer burst-prefix-cache-producer token-producer tokenizer
    inflight-load-producer predicted-latency-producer mm-embeddings-cache-producer
    session-id-producer p2p-source-producer agent-identity latency-slo-admitter
    probabilistic-admitter request-attribute-reporter disaggregatedset-rollout-screener
    destination-endpoint-served-verifier openai-parser anthropic-parser vllmhttp-parser
    sglanghttp-parser vllmgrpc-parser vertexai-parser passthrough-parser metrics-data-source
    models-data-source dcgm-data-source k8s-notification-source endpoint-notification-source
    core-metrics-extractor models-data-extractor topology-extractor dcgm-extractor
    multicluster-metrics-data-source multicluster-metrics-extractor multicluster-file-discovery
    multicluster-approx-prefix-cache-producer local-syncer file-discovery fcfs-ordering-policy
    edf-ordering-policy slo-deadline-ordering-policy global-strict-fairness-policy
    round-robin-fairness-policy program-aware-fairness static-usage-limit-policy
    priority-holdback-policy soft-reflective-ceiling-policy sheddable-eviction-filter
    priority-then-time-eviction-order-policy utilization-detector concurrency-detector kv-aware
    deficit-round-robin-fairness-policy virtual-token-fairness-policy
    shortest-prompt-ordering-policy label-filter dyn-decode-scorer dyn-prefill-scorer
    lmetric-scorer latency-observer-producer-hub latency-observation-scorer-hub peer-label-filter
";

fn context() -> BuildContext {
    BuildContext::new(vec!["decode".to_owned()])
}

/// Parameters without which a type cannot be built.
fn least_parameters(type_name: &str) -> Value {
    match type_name {
        "by-label" => json!({"label": "a", "validValues": ["b"]}),
        "disaggregatedset-rollout-screener" => json!({
            "scope": {"labelSelector": "a=b"}, "revisionGating": {"mode": "disabled"}
        }),
        "file-discovery" | "multicluster-file-discovery" => json!({"path": "/endpoints.yaml"}),
        "header-label-affinity-scorer" => json!({"headerName": "a", "labelKey": "b"}),
        "peer-label-filter" => json!({"label": "a"}),
        "priority-holdback-policy" => json!({"minCeiling": 0.5}),
        "request-attribute-reporter" => {
            json!({"attributes": [{"key": {"name": "a"}, "expression": "1"}]})
        }
        "utilization-filter" => {
            json!({"conditions": [{"metric": "waiting-queue", "maxValue": 1}]})
        }
        _ => Value::Null,
    }
}

#[test]
fn every_type_is_known_and_none_else() {
    let wanted: Vec<_> = TYPES.split_whitespace().collect();
    for type_name in &wanted {
        assert!(find(type_name).is_some(), "{type_name}");
    }
    let known: usize = kinds().iter().map(|kind| 1 + kind.aliases.len()).sum();
    assert_eq!(known, wanted.len());
    let names: Vec<_> = kinds().iter().map(|kind| kind.type_name).collect();
    assert!(names.is_sorted(), "{names:?}");
}

#[test]
fn every_type_that_is_not_missing_can_be_built() {
    for kind in kinds().iter().filter(|kind| kind.type_name != "pd-profile-handler") {
        let parameters = least_parameters(kind.type_name);
        let built = build(kind.type_name, "name", &parameters, &mut context());
        assert_eq!(built.is_ok(), kind.stability != Stability::Missing, "{}", kind.type_name);
    }
}

#[test]
fn a_type_takes_the_places_that_it_says() {
    for kind in kinds().iter().filter(|kind| kind.stability != Stability::Missing) {
        let parameters = least_parameters(kind.type_name);
        let Ok(built) = build(kind.type_name, "name", &parameters, &mut context()) else {
            continue;
        };
        let taken = [
            (PluginPlace::Filter, built.filter.is_some()),
            (PluginPlace::Scorer, built.scorer.is_some()),
            (PluginPlace::Picker, built.picker.is_some()),
            (PluginPlace::ProfileHandler, built.handler.is_some()),
            (PluginPlace::Decider, built.decider.is_some()),
            (PluginPlace::Admitter, built.admitter.is_some()),
            (PluginPlace::Screener, built.screener.is_some()),
        ];
        for (place, taken) in taken {
            assert_eq!(kind.places.contains(&place), taken, "{} {place:?}", kind.type_name);
        }
    }
}

#[test]
fn needs_are_producers_that_can_be_built_without_parameters() {
    for need in kinds().iter().flat_map(|kind| kind.needs) {
        let kind = find(need.producer).expect("a needed producer is known");
        assert!(kind.places.contains(&PluginPlace::Producer), "{}", need.producer);
        let built = build(need.producer, "name", &Value::Null, &mut context());
        assert!(built.is_ok(), "{}", need.producer);
    }
}

#[test]
fn needs_depend_on_parameters() {
    let check = |type_name, parameters: Value, wanted: &[&str]| {
        assert_eq!(needs(type_name, &parameters), wanted);
    };
    let (prefix, load) = ("approx-prefix-cache-producer", "inflight-load-producer");
    check("prefix-cache-scorer", Value::Null, &[prefix]);
    check("prefix-cache-scorer", json!({"prefixMatchInfoProducerName": "x"}), &[]);
    check("prefix-cache-affinity-filter", Value::Null, &[prefix, load]);
    let predicted = json!({"ttftSource": "latencyPredictor"});
    let latency = "predicted-latency-producer";
    check("prefix-cache-affinity-filter", predicted, &[prefix, load, latency]);
    let encodes = |on: bool| json!({"useEncoderCacheFeatures": on});
    check(latency, encodes(true), &["mm-embeddings-cache-producer"]);
    check(latency, encodes(false), &[]);
    check("no-such-type", Value::Null, &[]);
}

#[test]
fn references_name_what_must_be_built_before() {
    let parameters = json!({
        "deciders": {"prefill": "a", "encode": ""},
        "prefixMatchInfoProducerName": "b",
        "sessionIdConfig": {"sources": [{"header": "h"}, {"attribute": "c"},
            {"attribute": "session-id", "producer": "d"}]},
    });
    let references = references(&parameters);
    let named: Vec<_> = references.iter().map(|r| (r.path.as_str(), r.name.as_str())).collect();
    let wanted = [
        ("deciders.prefill", "a"),
        ("prefixMatchInfoProducerName", "b"),
        ("sessionIdConfig.sources[1].attribute", "c"),
        ("sessionIdConfig.sources[2].producer", "d"),
    ];
    assert_eq!(named, wanted);
}

/// Parameters that are accepted and have no effect, whatever they are.
const IGNORED: [&str; 3] = ["requestTimeout", "prefixPluginType", "prefixPluginName"];

/// Names of the parameters of a type, from the error about one that it does not have.
fn parameters_of(kind: &PluginKind) -> Vec<String> {
    let mut parameters = match least_parameters(kind.type_name) {
        Value::Object(parameters) => parameters,
        _ => serde_json::Map::new(),
    };
    parameters.insert("?".to_owned(), json!(1));
    let built = build(kind.type_name, "name", &parameters.into(), &mut context());
    let errors = built.err().unwrap_or_default();
    let known = errors.iter().find_map(|error| error.strip_prefix("?: unknown parameter, "));
    let known = known.expect("an unknown parameter is refused");
    let names = known.strip_prefix("known are ").map(|names| names.split(", "));
    names.into_iter().flatten().map(str::to_owned).collect()
}

#[test]
fn every_parameter_of_every_type_is_checked() {
    for kind in kinds().iter().filter(|kind| kind.stability != Stability::Missing) {
        for name in parameters_of(kind).iter().filter(|name| !IGNORED.contains(&name.as_str())) {
            // What no parameter can be.
            let parameters = json!({name: [[]]});
            let errors = build(kind.type_name, "name", &parameters, &mut context()).err();
            let about = |error: &String| {
                error.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with([':', '[']))
            };
            let found = errors.is_some_and(|errors| errors.iter().any(about));
            assert!(found, "{} {name}", kind.type_name);
        }
    }
}

#[test]
fn what_there_may_be_one_of_is_refused_twice() {
    for type_name in ["predicted-latency-producer", "topology-extractor"] {
        let mut context = context();
        build(type_name, "one", &Value::Null, &mut context).expect("there is none yet");
        let built = build(type_name, "two", &Value::Null, &mut context);
        let wanted = format!("type: {type_name} may be there only once");
        assert_eq!(built.err(), Some(vec![wanted]));
    }
}

#[test]
fn each_type_that_is_missing_has_a_reason_of_its_kind() {
    let missing = kinds().iter().filter(|kind| kind.stability == Stability::Missing);
    let rest =
        missing.map(|kind| kind.type_name).filter(|name| why_missing(name).contains("clusters"));
    assert!(
        rest.clone().all(|name| name.starts_with("multicluster-")),
        "{:?}",
        rest.collect::<Vec<_>>()
    );
}

#[test]
fn what_failed_can_be_tried_again() {
    for kind in kinds().iter().filter(|kind| kind.stability != Stability::Missing) {
        let (mut context, mut fresh) = (context(), context());
        let mut wrong = least_parameters(kind.type_name);
        if !wrong.is_object() {
            wrong = json!({});
        }
        wrong["?"] = json!(1);
        let failed = build(kind.type_name, "name", &wrong, &mut context);
        assert!(failed.is_err(), "{}", kind.type_name);
        let parameters = least_parameters(kind.type_name);
        let again = build(kind.type_name, "name", &parameters, &mut context);
        let wanted = build(kind.type_name, "name", &parameters, &mut fresh);
        assert_eq!(again.err(), wanted.err(), "{}", kind.type_name);
    }
}

proptest! {
    /// Whatever the parameters of a type are, it is built or says why not.
    #[test]
    fn any_parameters_are_taken_or_refused(
        kind in 0..KINDS.len(),
        values in prop::collection::vec(any_value(), 1..30),
    ) {
        let kind = &KINDS[kind];
        if kind.stability != Stability::Missing {
            let names = parameters_of(kind).into_iter();
            let parameters: serde_json::Map<_, _> = names.zip(values).collect();
            let built = build(kind.type_name, "name", &parameters.into(), &mut context());
            prop_assert!(built.err().is_none_or(|errors| !errors.is_empty()));
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..100u8).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9.-]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z]{1,6}", inner, 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

#[test]
fn types_that_are_not_there_cannot_be_built() {
    for type_name in ["no-such-type", "dcgm-extractor"] {
        let built = build(type_name, "name", &Value::Null, &mut context());
        let wanted = format!("type: {type_name:?} is not available");
        assert_eq!(built.err(), Some(vec![wanted]));
    }
}

#[test]
fn what_is_built_is_found_by_its_name() {
    let mut context = context();
    build("queue-scorer", "mine", &Value::Null, &mut context).expect("it has no parameters");
    assert!(context.built.get("mine").is_some_and(|built| built.scorer.is_some()));
}
