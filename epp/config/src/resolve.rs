//! Finds out what the names of a configuration mean: types of plug-ins, and references to them.

use crate::complete::can_be;
use crate::document::{Document, PluginEntry, Reference};
use crate::findings::Findings;
use crate::suggest::did_you_mean;
use stator_epp_plugins::{PluginPlace, Stability, find, kinds, references, why_missing};

/// Makes the types of plug-ins canonical and leaves out the plug-ins that cannot be built.
/// Returns the names of those.
pub(crate) fn types(
    document: &mut Document,
    allow_experimental: bool,
    findings: &Findings,
) -> Vec<String> {
    let mut left_out = Vec::new();
    document.plugins.retain_mut(|plugin| {
        let keep = usable(plugin, allow_experimental, findings);
        if !keep {
            left_out.push(plugin.name.clone());
        }
        keep
    });
    left_out
}

fn usable(plugin: &mut PluginEntry, allow_experimental: bool, findings: &Findings) -> bool {
    let path = format!("{}.type", plugin.path);
    let type_name = plugin.type_name.clone();
    let Some(kind) = find(&type_name) else {
        let known = kinds().iter().map(|kind| kind.type_name);
        let suggestion = did_you_mean(&type_name, known);
        findings.unknown(path, format!("no plug-in type is called {type_name:?}{suggestion}"));
        return false;
    };
    plugin.type_name = kind.type_name.to_owned();
    match kind.stability {
        Stability::Stable => true,
        Stability::Alpha if allow_experimental => true,
        Stability::Alpha => {
            let message = "is experimental: allow it with --allow-experimental-plugins";
            findings.fault(path, format!("{type_name:?} {message}"));
            // The rest is checked as if it were allowed.
            true
        }
        Stability::Deprecated => {
            findings.warn(path, format!("{type_name:?} is deprecated"));
            true
        }
        Stability::Missing => {
            let why = why_missing(&type_name);
            findings.unknown(path, format!("{type_name:?} is not part of this program: {why}"));
            false
        }
    }
}

/// Checks every reference and leaves out those that lead nowhere. A plug-in around the decision
/// (a parser, a policy, a source) need not be listed: the name of its type will do.
pub(crate) fn resolve(document: &mut Document, left_out: &[String], findings: &Findings) {
    let mut resolver = Resolver { plugins: &mut document.plugins, left_out, findings };
    for profile in &mut document.profiles {
        profile.plugins.retain(|member| resolver.listed(&member.reference));
    }
    document.parsers.retain(|parser| resolver.leads_to(parser, &[PluginPlace::Parser]));

    let layer = &mut document.data_layer;
    layer.sources.retain(|source| resolver.leads_to(&source.reference, &[PluginPlace::DataSource]));
    for source in &mut layer.sources {
        // Producers listen to the comings and goings of endpoints as extractors do.
        let places = [PluginPlace::Extractor, PluginPlace::Producer, PluginPlace::Scorer];
        source.extractors.retain(|extractor| resolver.leads_to(extractor, &places));
    }
    resolver.optional(&mut layer.discovery, &[PluginPlace::Discovery]);
    resolver.optional(&mut layer.peer_discovery, &[PluginPlace::Discovery, PluginPlace::Syncer]);
    resolver.optional(&mut layer.syncer, &[PluginPlace::Syncer]);

    let flow = &document.flow_control;
    resolver.leads_to(&flow.usage_limit, &[PluginPlace::UsageLimitPolicy]);
    resolver.leads_to(&flow.saturation_detector, &[PluginPlace::SaturationDetector]);
    let templates = [&flow.default_band, &flow.default_negative_band].into_iter();
    for band in templates.chain(&flow.bands).filter(|band| band.why.is_none()) {
        resolver.leads_to(&band.fairness, &[PluginPlace::FairnessPolicy]);
        resolver.leads_to(&band.ordering, &[PluginPlace::OrderingPolicy]);
    }
    resolver.parameters();
}

struct Resolver<'d> {
    plugins: &'d mut Vec<PluginEntry>,
    left_out: &'d [String],
    findings: &'d Findings,
}

impl Resolver<'_> {
    fn plugin(&self, name: &str) -> Option<&PluginEntry> {
        self.plugins.iter().find(|plugin| plugin.name == name)
    }

    /// Whether a reference leads to a plug-in that is listed.
    fn listed(&self, reference: &Reference) -> bool {
        let found = self.plugin(&reference.name).is_some();
        if !found {
            self.lost(&reference.path, &reference.name, &[]);
        }
        found
    }

    /// Whether a reference leads to a plug-in that can be one of `places`. References that were
    /// filled in are left to who filled them in.
    fn leads_to(&mut self, reference: &Reference, places: &[PluginPlace]) -> bool {
        let Reference { path, name, why } = reference;
        if why.is_some() {
            return true;
        }
        let fits = |type_name: &str| places.iter().any(|place| can_be(type_name, *place));
        let Some(plugin) = self.plugin(name) else {
            let implied = fits(name) && self.implied(name);
            if !implied {
                self.lost(path, name, places);
            }
            return implied;
        };
        let found = fits(&plugin.type_name);
        if !found {
            let expected = places.first().map_or("", |place| word(*place));
            let message = format!("{name:?} is a {}, not {expected}", plugin.type_name);
            self.findings.fault(path, message);
        }
        found
    }

    /// Adds the plug-in that a reference to the name of a type implies.
    fn implied(&mut self, type_name: &str) -> bool {
        let usable = find(type_name).is_some_and(|kind| kind.stability == Stability::Stable);
        if usable && !self.left_out.iter().any(|name| name == type_name) {
            let path = format!("plugins[{}]", self.plugins.len());
            self.plugins.push(PluginEntry {
                path,
                name: type_name.to_owned(),
                type_name: type_name.to_owned(),
                parameters: crate::decode::no_parameters(),
                why: Some("referred to by the name of its type".to_owned()),
            });
            return true;
        }
        false
    }

    fn optional(&mut self, reference: &mut Option<Reference>, places: &[PluginPlace]) {
        if let Some(found) = reference
            && !self.leads_to(found, places)
        {
            *reference = None;
        }
    }

    /// Checks the references within parameters.
    fn parameters(&self) {
        for plugin in self.plugins.iter() {
            for reference in references(&plugin.parameters) {
                if self.plugin(&reference.name).is_none() {
                    let path = format!("{}.parameters.{}", plugin.path, reference.path);
                    self.lost(&path, &reference.name, &[]);
                }
            }
        }
    }

    /// Tells of a reference that leads nowhere, unless it is known why. The name of a type that
    /// can be one of `places` would do.
    fn lost(&self, path: &str, name: &str, places: &[PluginPlace]) {
        match self.left_out.iter().any(|left_out| left_out == name) {
            true if self.findings.lenient() => {
                self.findings.warn(path, format!("ignored: {name:?} is ignored"));
            }
            true => {}
            false => {
                let names = self.plugins.iter().map(|plugin| plugin.name.as_str());
                let fits = |place: &PluginPlace| places.contains(place);
                let types = kinds().iter().filter(|kind| kind.places.iter().any(fits));
                let suggestion = did_you_mean(name, names.chain(types.map(|kind| kind.type_name)));
                self.findings.fault(path, format!("no plugin is called {name:?}{suggestion}"));
            }
        }
    }
}

/// Name of a place, with its article.
fn word(place: PluginPlace) -> &'static str {
    match place {
        PluginPlace::Parser => "a parser",
        PluginPlace::DataSource => "a data source",
        PluginPlace::Extractor => "an extractor",
        PluginPlace::Discovery => "an endpoint discovery",
        PluginPlace::Syncer => "a syncer",
        PluginPlace::UsageLimitPolicy => "a usage limit policy",
        PluginPlace::SaturationDetector => "a saturation detector",
        PluginPlace::FairnessPolicy => "a fairness policy",
        PluginPlace::OrderingPolicy => "an ordering policy",
        _ => "what belongs here",
    }
}
