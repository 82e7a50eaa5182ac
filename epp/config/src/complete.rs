//! Completes a configuration: what nobody wrote but something needs is added, with the reason.

use crate::decode::no_parameters;
use crate::decode_flow::{DEFAULT_FAIRNESS, DEFAULT_ORDERING, like};
use crate::document::{
    Document, PluginEntry, ProfileEntry, ProfilePlugin, Reference, Setting, SourceEntry,
};
use crate::findings::Findings;
use stator_epp_plugins::{PluginPlace, find, needs};

const SINGLE_HANDLER: &str = "single-profile-handler";
const DEFAULT_PICKER: &str = "max-score-picker";
const METRICS_SOURCE: &str = "metrics-data-source";
const METRICS_EXTRACTOR: &str = "core-metrics-extractor";
/// The source of metrics where endpoints are clusters.
const CLUSTER_METRICS_SOURCE: &str = "multicluster-metrics-data-source";
const DEFAULT_PARSERS: [&str; 4] =
    ["openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"];
/// Producers that there can be several of: those who name none take the one named as its type.
const NAMED_PRODUCERS: [&str; 1] = ["approx-prefix-cache-producer"];

/// Adds everything that is missing. Types of plug-ins are known and canonical by now.
pub(crate) fn complete(document: &mut Document, findings: &Findings) {
    profiles(document);
    handler(document, findings);
    for position in 0..document.profiles.len() {
        pickers_and_weights(document, position, findings);
    }
    unused(document, findings);
    parsers(document, findings);
    flow_control(document, findings);
    data_layer(document, findings);
    producers(document, findings);
}

/// Whether plug-ins of this type can be that.
pub(crate) fn can_be(type_name: &str, place: PluginPlace) -> bool {
    find(type_name).is_some_and(|kind| kind.places.contains(&place))
}

impl Document {
    /// The plug-in of a name.
    pub(crate) fn plugin(&self, name: &str) -> Option<&PluginEntry> {
        self.plugins.iter().find(|plugin| plugin.name == name)
    }

    /// The first plug-in of a type.
    fn of_type(&self, type_name: &str) -> Option<&PluginEntry> {
        self.plugins.iter().find(|plugin| plugin.type_name == type_name)
    }

    /// Adds a plug-in that has its type as name, unless there is one of that name.
    fn add(&mut self, type_name: &str, why: String, findings: &Findings) {
        match self.plugin(type_name) {
            Some(other) if other.type_name == type_name => {}
            Some(other) => {
                let message = format!("{type_name:?} is the name of what is needed here: {why}");
                findings.fault(format!("{}.name", other.path), message);
            }
            None => self.plugins.push(PluginEntry {
                path: format!("plugins[{}]", self.plugins.len()),
                name: type_name.to_owned(),
                type_name: type_name.to_owned(),
                parameters: no_parameters(),
                why: Some(why),
            }),
        }
    }
}

/// Without profiles there is one of all filters, scorers and pickers.
fn profiles(document: &mut Document) {
    if !document.profiles.is_empty() {
        return;
    }
    let path = "schedulingProfiles[0]".to_owned();
    let members = document.plugins.iter().filter(|plugin| is_member(plugin)).enumerate();
    let plugins = members.map(|(n, plugin)| {
        let path = format!("{path}.plugins[{n}].pluginRef");
        let reference = Reference::added(path, &plugin.name, "every filter, scorer and picker");
        ProfilePlugin { reference, weight: None }
    });
    document.profiles = vec![ProfileEntry {
        plugins: plugins.collect(),
        path,
        name: "default".to_owned(),
        why: Some("default: no profile is written".to_owned()),
    }];
}

/// Whether a profile can make use of a plug-in.
fn is_member(plugin: &PluginEntry) -> bool {
    let places = [PluginPlace::Filter, PluginPlace::Scorer, PluginPlace::Picker];
    places.iter().any(|place| can_be(&plugin.type_name, *place))
}

/// Tells of plug-ins that could be in a profile and nowhere else, and are in none.
fn unused(document: &Document, findings: &Findings) {
    let members = || document.profiles.iter().flat_map(|profile| &profile.plugins);
    for plugin in &document.plugins {
        let elsewhere = find(&plugin.type_name).is_some_and(|kind| {
            let places = [PluginPlace::Filter, PluginPlace::Scorer, PluginPlace::Picker];
            kind.places.iter().any(|place| !places.contains(place))
        });
        let used = members().any(|member| member.reference.name == plugin.name);
        if is_member(plugin) && !elsewhere && !used {
            findings.warn(&plugin.path, format!("no profile uses {:?}", plugin.name));
        }
    }
}

/// One profile needs no handler; several do. There is exactly one.
fn handler(document: &mut Document, findings: &Findings) {
    let is_handler = |plugin: &&PluginEntry| can_be(&plugin.type_name, PluginPlace::ProfileHandler);
    let handlers: Vec<&PluginEntry> = document.plugins.iter().filter(is_handler).collect();
    let profiles = document.profiles.len();
    match handlers.as_slice() {
        [] if profiles == 1 => {
            let why = "default: there is one profile and no handler".to_owned();
            document.add(SINGLE_HANDLER, why, findings);
        }
        [] => {
            let message = format!("no profile handler for {profiles} schedulingProfiles");
            findings.fault("plugins", message);
        }
        [_] => {}
        [first, others @ ..] => {
            for other in others {
                let message = format!("{} is a profile handler already", first.path);
                findings.fault(format!("{}.type", other.path), message);
            }
        }
    }
}

/// A profile ends with a picker, and its scorers have weights.
fn pickers_and_weights(document: &mut Document, position: usize, findings: &Findings) {
    // A copy, because the document is asked for plug-ins and gets new ones meanwhile.
    let mut profile = document.profiles[position].clone();
    let mut picker: Option<String> = None;
    for ProfilePlugin { reference, weight } in &mut profile.plugins {
        let Some(plugin) = document.plugin(&reference.name) else { continue };
        if !is_member(plugin) {
            let message = format!("{:?} has no effect in a profile", reference.name);
            findings.warn(&reference.path, message);
        }
        if can_be(&plugin.type_name, PluginPlace::Scorer) {
            weight.get_or_insert_with(|| Setting::or_default(None, 1.0));
        } else if weight.take().is_some() {
            let message = format!("a weight has no effect: {:?} is no scorer", reference.name);
            findings.warn(&reference.path, message);
        }
        if can_be(&plugin.type_name, PluginPlace::Picker) {
            if let Some(first) = &picker {
                let message = format!("{first:?} is the picker of this profile already");
                findings.fault(&reference.path, message);
            }
            picker = Some(reference.name.clone());
        }
    }
    if picker.is_none() {
        let path = format!("{}.plugins[{}].pluginRef", profile.path, profile.plugins.len());
        let reference = Reference::added(path, DEFAULT_PICKER, "default: no picker is written");
        profile.plugins.push(ProfilePlugin { reference, weight: None });
        let why = format!("picker of profile {:?}", profile.name);
        document.add(DEFAULT_PICKER, why, findings);
    }
    document.profiles[position] = profile;
}

fn parsers(document: &mut Document, findings: &Findings) {
    if document.parsers.is_empty() {
        for (n, parser) in DEFAULT_PARSERS.into_iter().enumerate() {
            let path = format!("requestHandler.parsers[{n}].pluginRef");
            document.parsers.push(Reference::added(path, parser, "default"));
            document.add(parser, "default parser".to_owned(), findings);
        }
    }
}

/// The policies and the detector that are named by default, and the band of priority 0.
fn flow_control(document: &mut Document, findings: &Findings) {
    let flow = &mut document.flow_control;
    let gated = document.gates.iter().any(|gate| gate.name == "flowControl" && !gate.on);
    if gated && flow.bands.iter().any(|band| band.priority != 0) {
        let message = "have no effect without the feature gate flowControl";
        findings.warn("flowControl.priorityBands", message);
    }
    if gated && flow.enable_eviction.value {
        let message = "has no effect without the feature gate flowControl";
        findings.warn("flowControl.enableEviction", message);
    }
    if !flow.bands.iter().any(|band| band.priority == 0) {
        let mut band = like(&flow.default_band, 0);
        band.why = Some("default: requests without an objective, as defaultPriorityBand".into());
        flow.bands.push(band);
    }
    flow.bands.sort_by_key(|band| std::cmp::Reverse(band.priority));
    let mut wanted = vec![DEFAULT_ORDERING.to_owned(), DEFAULT_FAIRNESS.to_owned()];
    let named = [&flow.usage_limit, &flow.saturation_detector];
    wanted.extend(named.iter().filter(|r| r.why.is_some()).map(|r| r.name.clone()));
    for type_name in wanted {
        document.add(&type_name, "default of flowControl".to_owned(), findings);
    }
}

/// Endpoints are asked for their metrics, unless that is refused or written otherwise.
fn data_layer(document: &mut Document, findings: &Findings) {
    let layer = &document.data_layer;
    let is_metrics = |source: &SourceEntry| {
        let plugin = document.plugin(&source.reference.name);
        plugin.is_some_and(|p| [METRICS_SOURCE, CLUSTER_METRICS_SOURCE].contains(&&*p.type_name))
    };
    if !layer.inject_defaults.value || layer.sources.iter().any(is_metrics) {
        return;
    }
    let path = format!("dataLayer.sources[{}]", layer.sources.len());
    // A plug-in of the type that is written already is used, whatever its name.
    let mut named = |type_name: &str| {
        let why = "default of dataLayer.injectDefaults";
        match document.of_type(type_name).map(|plugin| plugin.name.clone()) {
            Some(name) => name,
            None => {
                document.add(type_name, why.to_owned(), findings);
                type_name.to_owned()
            }
        }
    };
    let (source, extractor) = (named(METRICS_SOURCE), named(METRICS_EXTRACTOR));
    let why = "default of injectDefaults";
    let extractor_path = format!("{path}.extractors[0].pluginRef");
    document.data_layer.sources.push(SourceEntry {
        reference: Reference::added(format!("{path}.pluginRef"), &source, why),
        extractors: vec![Reference::added(extractor_path, &extractor, why)],
    });
}

/// The producers that plug-ins depend on, and those that these depend on.
fn producers(document: &mut Document, findings: &Findings) {
    let mut position = 0;
    while let Some(plugin) = document.plugins.get(position) {
        let why = format!("{:?} needs it", plugin.name);
        for producer in needs(&plugin.type_name, &plugin.parameters) {
            if producer_of(document, producer).is_none() {
                document.add(producer, why.clone(), findings);
            }
        }
        position += 1;
    }
}

/// The plug-in that a need for a producer is met by.
pub(crate) fn producer_of<'d>(document: &'d Document, producer: &str) -> Option<&'d PluginEntry> {
    match NAMED_PRODUCERS.contains(&producer) {
        true => document.plugin(producer).filter(|plugin| plugin.type_name == producer),
        false => document.of_type(producer),
    }
}
