//! The examples in `manifests`, the built-in configurations, and whatever else can be written.

use crate::{LoadOptions, LoadedConfig, Plan, built_in, load};
use proptest::prelude::*;
use serde_json::{Value, json};
use stator_epp_scheduler::{NamedPlugin, Profile};
use std::path::Path;

const ALL: LoadOptions = LoadOptions { allow_experimental: true, lenient: false };

/// The examples, by name.
fn examples() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/epp/configs");
    let entries = std::fs::read_dir(folder).expect("the examples are there");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("the example can be read"))
    };
    let mut examples: Vec<_> = entries.map(read).collect();
    // It puts one of them into the picker.
    examples.retain(|(name, _)| name != "kustomization");
    examples.sort();
    examples
}

fn loaded(name: &str, text: &str, options: LoadOptions) -> LoadedConfig {
    load(text, options).unwrap_or_else(|refused| panic!("{name} is refused:\n{refused}"))
}

/// What a plan is made of, without what cannot be compared.
fn outline(plan: &Plan) -> String {
    let Plan { program, parsers, tokens, precise, kv_cost, .. } = plan;
    let profiles: Vec<_> = program.profiles.iter().map(profile_outline).collect();
    let names = [
        names(std::slice::from_ref(&program.handler)),
        names(&program.screeners),
        names(&program.producers),
        names(&program.observers),
        names(&program.admitters),
        names(&program.route_headers),
        names(&program.response_headers),
    ];
    let placement = (program.uses_kv, program.saturation, kv_cost, &plan.in_flight);
    let edges = (plan.response_path, parsers, tokens, precise, &plan.metrics);
    let others = (&plan.discovery, &plan.agent_identity, &plan.reporters);
    let waiting = (plan.detector, &plan.flow_control, plan.features, plan.verifies_served);
    format!("{profiles:#?} {names:?} {placement:?} {edges:?} {others:?} {waiting:?}")
}

fn profile_outline(profile: &Profile) -> String {
    let scorers: Vec<_> = profile.scorers.iter().map(|(s, weight)| (&s.name, weight)).collect();
    let filters = names(&profile.filters);
    format!("{}: {filters:?} {scorers:?} {}", profile.name, profile.picker.name)
}

fn names<T: ?Sized>(plugins: &[NamedPlugin<T>]) -> Vec<&str> {
    plugins.iter().map(|plugin| &*plugin.name).collect()
}

/// The lines of a configuration without comments.
fn bare(text: &str) -> Vec<&str> {
    text.lines().skip(1).map(|line| line.split(" # ").next().unwrap_or_default()).collect()
}

/// Loads what a configuration explains to and compares.
fn check_explains_to_itself(name: &str, first: &LoadedConfig, options: LoadOptions) {
    let again = loaded(&format!("the explanation of {name}"), &first.explanation, options);
    assert_eq!(outline(&again.plan), outline(&first.plan), "{name}");
    assert_eq!(bare(&again.explanation), bare(&first.explanation), "{name}");
}

#[test]
fn every_example_loads_without_a_warning_and_explains_to_itself() {
    let examples = examples();
    assert!(examples.len() >= 12, "only {} examples", examples.len());
    for (name, text) in examples {
        // The one that needs it says so.
        let alpha = text.contains("agent-identity")
            || text.contains("multicluster-")
            || name == "payload-agnostic";
        let options = LoadOptions { allow_experimental: alpha, ..ALL };
        let example = loaded(&name, &text, options);
        assert_eq!(example.warnings, [], "{name}");
        check_explains_to_itself(&name, &example, options);
    }
}

#[test]
fn without_a_configuration_costs_of_the_placement_core_decide() {
    let default = loaded("nothing", "", LoadOptions::default());
    let named = built_in("kv-aware").expect("it is built in");
    let named = loaded("kv-aware", named, LoadOptions::default());
    assert_eq!(outline(&default.plan), outline(&named.plan));
    assert!(default.plan.program.uses_kv);
    let [profile] = default.plan.program.profiles.as_slice() else { panic!("one profile") };
    let scorers: Vec<_> = profile.scorers.iter().map(|(s, w)| (&*s.type_name, *w)).collect();
    assert_eq!(scorers, [("kv-aware", 1.0)]);
    assert_eq!(&*profile.picker.type_name, "max-score-picker");
    assert_eq!(&*default.plan.program.handler.type_name, "single-profile-handler");
    assert!(built_in("nonsense").is_none());
}

/// Words that mean something in a configuration.
const WORDS: &[&str] = &[
    "apiVersion",
    "kind",
    "featureGates",
    "plugins",
    "schedulingProfiles",
    "name",
    "type",
    "parameters",
    "pluginRef",
    "weight",
    "flowControl",
    "priorityBands",
    "priority",
    "maxBytes",
    "dataLayer",
    "sources",
    "extractors",
    "discovery",
    "requestHandler",
    "parsers",
    "defaultRequestTTL",
    "saturationDetector",
    "queue-scorer",
    "decode-filter",
    "prefix-cache-scorer",
    "max-score-picker",
    "disagg-profile-handler",
    "openai-parser",
    "metrics-data-source",
    "file-discovery",
    "flowControl=false",
    "1k",
    "60s",
    "a",
    "b",
    "blockSize",
    "prefixMatchInfoProducerName",
    "approx-prefix-cache-producer",
];

/// Mostly one of those words.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![9 => prop::sample::select(WORDS).prop_map(str::to_owned), 1 => "\\PC{0,6}"]
}

/// Any value, mostly of those words.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => word().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(|number| json!(number)),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((word(), inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// Plug-ins that mostly exist, in profiles that mostly refer to them.
fn any_configuration() -> impl Strategy<Value = Value> {
    let plugin = (word(), prop::option::of(word()), prop::option::of(any_value()));
    let plugin = plugin.prop_map(|(type_name, name, parameters)| {
        json!({"type": type_name, "name": name, "parameters": parameters})
    });
    let member = (word(), prop::option::of(any::<f64>()));
    let member = member.prop_map(|(name, weight)| json!({"pluginRef": name, "weight": weight}));
    let profile = (word(), prop::collection::vec(member, 0..4));
    let profile = profile.prop_map(|(name, plugins)| json!({"name": name, "plugins": plugins}));
    let parts = (
        prop::collection::vec(plugin, 0..6),
        prop::collection::vec(profile, 0..3),
        prop::option::of(any_value()),
        prop::option::of(any_value()),
    );
    parts.prop_map(|(plugins, profiles, data_layer, flow_control)| {
        json!({
            "apiVersion": "llm-d.ai/v1alpha1",
            "kind": "EndpointPickerConfig",
            "plugins": plugins,
            "schedulingProfiles": profiles,
            "dataLayer": data_layer,
            "flowControl": flow_control,
        })
    })
}

/// Loads whatever it is; what is accepted must explain to itself.
fn check_anything(text: &str) {
    for lenient in [false, true] {
        let options = LoadOptions { allow_experimental: true, lenient };
        match load(text, options) {
            Ok(accepted) => check_explains_to_itself(text, &accepted, ALL),
            Err(refused) => assert!(!refused.0.is_empty()),
        }
    }
}

/// Plug-ins that go together in any number.
const TYPES: &[&str] = &[
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "prefix-cache-scorer",
    "no-hit-lru-scorer",
    "active-request-scorer",
    "token-load-scorer",
    "latency-scorer",
    "kv-aware",
    "lora-affinity-scorer",
    "decode-filter",
    "prefix-cache-affinity-filter",
    "slo-headroom-tier-filter",
    "utilization-detector",
    "latency-slo-admitter",
    "precise-prefix-cache-producer",
    "approx-prefix-cache-producer",
    "weighted-random-picker",
    "file-discovery",
];

/// A configuration with nothing wrong.
fn any_valid_configuration() -> impl Strategy<Value = Value> {
    let plugins = prop::sample::subsequence(TYPES, 0..TYPES.len());
    let named = prop::collection::vec(any::<bool>(), TYPES.len());
    let weight = prop::option::of(0.0..1e12_f64);
    let flow = (any::<u32>(), 0..1_000_000_u64, prop::collection::btree_set(-9..9_i32, 0..4));
    (plugins, named, weight, flow, any::<[bool; 3]>()).prop_map(
        |(types, named, weight, (limit, ttl_ms, priorities), [gate, inject, profiles])| {
            let name = |n: usize, type_name: &str| match named[n] {
                true => format!("{type_name} / \"{n}\""),
                false => type_name.to_owned(),
            };
            let entry = |(n, &type_name): (usize, &&str)| {
                let parameters = (type_name == "file-discovery").then(|| json!({"path": "a: b"}));
                json!({"name": name(n, type_name), "type": type_name, "parameters": parameters})
            };
            let member = |(n, &type_name): (usize, &&str)| {
                json!({"pluginRef": name(n, type_name), "weight": weight})
            };
            let members: Vec<_> = types.iter().enumerate().map(member).collect();
            let profile = json!({"name": "yes", "plugins": members});
            let band = |priority| json!({"priority": priority, "maxRequests": limit});
            json!({
                "apiVersion": "llm-d.ai/v1alpha1",
                "kind": "EndpointPickerConfig",
                "featureGates": [format!("flowControl={gate}")],
                "plugins": types.iter().enumerate().map(entry).collect::<Vec<_>>(),
                "schedulingProfiles": profiles.then_some([profile]),
                "dataLayer": {"injectDefaults": inject},
                "flowControl": {
                    "maxBytes": format!("{limit}Ki"),
                    "defaultRequestTTL": format!("{ttl_ms}ms"),
                    "priorityBands": priorities.into_iter().map(band).collect::<Vec<_>>(),
                },
            })
        },
    )
}

proptest! {
    #[test]
    fn valid_configurations_load_and_explain_to_themselves(value in any_valid_configuration()) {
        let text = value.to_string();
        check_explains_to_itself(&text, &loaded("a valid configuration", &text, ALL), ALL);
    }

    #[test]
    fn no_tree_is_too_odd(value in any_value()) {
        check_anything(&value.to_string());
    }

    #[test]
    fn no_configuration_is_too_odd(configuration in any_configuration()) {
        check_anything(&configuration.to_string());
    }

    #[test]
    fn no_text_is_too_odd(text in "\\PC{0,64}") {
        check_anything(&text);
    }
}
