//! From a tree of values to a [`Document`]: every key of `EndpointPickerConfig`, and no other.
//!
//! Source: the configuration API of the llm-d router; its `v1` names are read as well.

use crate::decode_flow;
use crate::document::{
    DataLayerEntry, Document, GateEntry, PluginEntry, ProfileEntry, ProfilePlugin, Reference,
    Setting, SourceEntry,
};
use crate::fields::{At, MappingFields, refer};
use crate::findings::Findings;
use crate::suggest::did_you_mean;
use crate::tree::Tree;
use serde_json::Value;

const KIND: &str = "EndpointPickerConfig";
/// Current name, the next one, and the one of old.
const API_VERSIONS: [&str; 3] =
    ["llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"];
/// The gate that lets replicas which do not lead know nothing.
const STANDBYS: &str = "haPopulateNonLeaderDatastore";
/// Feature gates and whether they are on where nobody says so.
pub(crate) const GATES: [(&str, bool); 2] = [("flowControl", false), (STANDBYS, true)];
/// Gates of what has since become a matter of course.
const RETIRED_GATES: [&str; 3] = ["dataLayer", "prepareDataPlugins", "enableLegacyMetrics"];
/// Longest name of a plug-in or a profile, in bytes.
const NAME_MAX: usize = 253;

/// Reads the document; what cannot be read is noted and left out.
pub(crate) fn document(tree: &Tree, findings: &Findings) -> Document {
    let root = At { path: String::new(), value: tree };
    let Some(fields) = MappingFields::open(root, findings) else { return Document::default() };
    head(&fields, findings);
    let document = Document {
        gates: gates(&fields, findings),
        plugins: plugins(&fields, findings),
        profiles: profiles(&fields, findings),
        data_layer: data_layer(&fields, findings),
        flow_control: decode_flow::flow_control(&fields, findings),
        parsers: parsers(&fields, findings),
    };
    fields.close();
    document
}

/// `apiVersion` and `kind`.
fn head(fields: &MappingFields<'_>, findings: &Findings) {
    if let Some(At { path, value }) = fields.required("apiVersion") {
        match API_VERSIONS.iter().position(|known| *known == value) {
            Some(0 | 1) => {}
            Some(_) => findings.warn(path, format!("{value} is deprecated: use llm-d.ai/v1alpha1")),
            None => findings.fault(path, format!("{value:?} is not llm-d.ai/v1alpha1")),
        }
    }
    if let Some(At { path, value }) = fields.required("kind")
        && value != KIND
    {
        findings.fault(path, format!("{value:?} is not {KIND}"));
    }
}

/// All gates, in the order in which they are known.
fn gates(fields: &MappingFields<'_>, findings: &Findings) -> Vec<GateEntry> {
    let default = |(name, on)| GateEntry { name, on, why: Some("default".to_owned()) };
    let mut gates: Vec<GateEntry> = GATES.into_iter().map(default).collect();
    for At { path, value } in fields.list("featureGates") {
        let Tree::Text(text) = value else {
            findings.fault(path, format!("expected a text, got {}", value.kind()));
            continue;
        };
        let (name, on) = text.split_once('=').unwrap_or((text, "true"));
        let on = match on.trim().to_ascii_lowercase().as_str() {
            "1" | "t" | "true" => true,
            "0" | "f" | "false" => false,
            _ => {
                findings.fault(path, format!("{on:?} is not true or false"));
                continue;
            }
        };
        match gates.iter_mut().find(|gate| gate.name == name) {
            // A gate without a reason was written before.
            Some(gate) if gate.why.is_none() => {
                findings.fault(path, format!("the gate {name} is there twice"));
            }
            Some(gate) => {
                if name == STANDBYS && !on {
                    findings.warn(path, "has no effect here: every replica knows its endpoints");
                }
                (gate.on, gate.why) = (on, None);
            }
            None if RETIRED_GATES.contains(&name) => {
                findings.warn(path, format!("the gate {name} has no effect any more: remove it"));
            }
            None => {
                let suggestion = did_you_mean(name, GATES.map(|(name, _)| name));
                findings.unknown(path, format!("no gate is called {name:?}{suggestion}"));
            }
        }
    }
    gates
}

fn plugins(fields: &MappingFields<'_>, findings: &Findings) -> Vec<PluginEntry> {
    let mut plugins: Vec<PluginEntry> = Vec::new();
    for at in fields.list("plugins") {
        let path = at.path.clone();
        let Some(entry) = MappingFields::open(at, findings) else { continue };
        let type_name = entry.required("type");
        let name = entry.text("name");
        let parameters = entry.tree("parameters");
        entry.close();
        // Wrong parameters count as none, so that reading goes on and finds further faults.
        let parameters = match parameters.map(|at| (at.value, at.path)) {
            None => no_parameters(),
            Some((map @ Tree::Map(_), _)) => map.to_json(),
            Some((other, path)) => {
                findings.fault(path, format!("expected a mapping, got {}", other.kind()));
                no_parameters()
            }
        };
        let Some(type_name) = type_name else { continue };
        let name = name.unwrap_or_else(|| type_name.clone());
        check_name(&name, findings);
        match plugins.iter().find(|earlier| earlier.name == name.value) {
            Some(earlier) => {
                let message = format!("{:?} is also the name of {}", name.value, earlier.path);
                findings.fault(name.path, message);
            }
            None => plugins.push(PluginEntry {
                path,
                name: name.value,
                type_name: type_name.value,
                parameters,
                why: None,
            }),
        }
    }
    plugins
}

fn profiles(fields: &MappingFields<'_>, findings: &Findings) -> Vec<ProfileEntry> {
    let mut profiles: Vec<ProfileEntry> = Vec::new();
    for at in fields.list("schedulingProfiles") {
        let path = at.path.clone();
        let Some(entry) = MappingFields::open(at, findings) else { continue };
        let name = entry.required("name");
        let members = entry.list("plugins").into_iter();
        let plugins = members.filter_map(|at| profile_plugin(at, findings)).collect();
        entry.close();
        let Some(name) = name else { continue };
        check_name(&name, findings);
        if let Some(earlier) = profiles.iter().find(|earlier| earlier.name == name.value) {
            let message = format!("{:?} is also the name of {}", name.value, earlier.path);
            findings.fault(name.path, message);
            continue;
        }
        profiles.push(ProfileEntry { path, name: name.value, plugins, why: None });
    }
    profiles
}

fn profile_plugin(at: At<&Tree>, findings: &Findings) -> Option<ProfilePlugin> {
    let entry = MappingFields::open(at, findings)?;
    let reference = reference(&entry);
    let weight = entry.number("weight");
    entry.close();
    let weight = weight.map(|At { path, value }| {
        if value < 0.0 {
            findings.fault(path, format!("{value} is less than 0"));
        }
        Setting { value, why: None }
    });
    Some(ProfilePlugin { reference: reference?, weight })
}

fn data_layer(fields: &MappingFields<'_>, findings: &Findings) -> DataLayerEntry {
    let Some(entry) = fields.fields("dataLayer") else { return DataLayerEntry::default() };
    let (mut peer_discovery, mut discovery) = (referred(entry.fields("peerDiscovery")), None);
    if let Some(inner) = entry.fields("discovery") {
        // `v1` has both kinds of discovery here, each under a name of its own.
        let endpoints = referred(inner.fields("endpoints"));
        peer_discovery = peer_discovery.or(referred(inner.fields("peers")));
        let direct = inner.text("pluginRef").map(refer);
        if endpoints.is_none() && direct.is_none() && peer_discovery.is_none() {
            findings.fault(inner.path("pluginRef"), "is missing");
        }
        discovery = direct.or(endpoints);
        inner.close();
    }
    let mut syncer = entry.text("crossReplicaSyncerPluginRef").map(refer);
    let mut sync_interval = entry.duration("crossReplicaSyncInterval");
    if let Some(inner) = entry.fields("crossReplica") {
        syncer = syncer.or(inner.text("syncerPluginRef").map(refer));
        sync_interval = sync_interval.or(inner.duration("syncInterval"));
        inner.close();
    }
    let sources = entry.list("sources").into_iter();
    let data_layer = DataLayerEntry {
        inject_defaults: Setting::or_default(entry.boolean("injectDefaults"), true),
        sources: sources.filter_map(|at| source(at, findings)).collect(),
        discovery,
        peer_discovery,
        syncer,
        sync_interval,
    };
    entry.close();
    data_layer
}

fn source(at: At<&Tree>, findings: &Findings) -> Option<SourceEntry> {
    let entry = MappingFields::open(at, findings)?;
    let reference = reference(&entry);
    let extractors = entry.list("extractors").into_iter();
    let extractors =
        extractors.filter_map(|at| referred(MappingFields::open(at, findings))).collect();
    entry.close();
    Some(SourceEntry { reference: reference?, extractors })
}

/// `requestHandler.parsers`, or else the `parser` of old.
fn parsers(fields: &MappingFields<'_>, findings: &Findings) -> Vec<Reference> {
    let mut parsers: Vec<Reference> = Vec::new();
    if let Some(handler) = fields.fields("requestHandler") {
        let list = handler.list("parsers").into_iter();
        parsers.extend(list.filter_map(|at| referred(MappingFields::open(at, findings))));
        handler.close();
    }
    if let Some(old) = fields.fields("parser") {
        findings.warn("parser", "is deprecated: use requestHandler.parsers");
        let old = referred(Some(old));
        if parsers.is_empty() {
            parsers.extend(old);
        }
    }
    parsers
}

/// The parameters of a plug-in that has none.
pub(crate) fn no_parameters() -> Value {
    Value::Object(serde_json::Map::new())
}

/// The `pluginRef` of a mapping that has nothing else.
pub(crate) fn referred(fields: Option<MappingFields<'_>>) -> Option<Reference> {
    let fields = fields?;
    let reference = reference(&fields);
    fields.close();
    reference
}

fn reference(fields: &MappingFields<'_>) -> Option<Reference> {
    fields.required("pluginRef").map(refer)
}

fn check_name(name: &At<String>, findings: &Findings) {
    let At { path, value } = name;
    if value.len() > NAME_MAX {
        findings.fault(path, format!("has {} bytes, more than {NAME_MAX}", value.len()));
    }
    if value.chars().any(char::is_control) {
        findings.fault(path, format!("{value:?} has a control character"));
    }
}
