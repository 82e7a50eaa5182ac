//! The effective configuration as YAML: what was written, and what was filled in with the reason.

use crate::document::{
    BandEntry, DataLayerEntry, Document, FlowControlEntry, PluginEntry, ProfileEntry, Reference,
    Setting,
};
use crate::units::format_duration;
use serde_json::Value;
use stator_epp_plugins::KvCost;
use std::fmt::Display;

/// The text. It parses to the same plan, and explains to itself save for the reasons.
pub(crate) fn explain(document: &Document, kv_cost: Option<&KvCost>) -> String {
    let mut page = Page::default();
    page.line(
        0,
        "# The effective configuration. Comments say why there is what nobody wrote.",
        None,
    );
    page.prefixes(kv_cost);
    // In the order of the API, so that the page can be compared with what was written.
    page.line(0, "apiVersion: llm-d.ai/v1alpha1", None);
    page.line(0, "kind: EndpointPickerConfig", None);
    page.line(0, "featureGates:", None);
    for gate in &document.gates {
        page.line(0, format!("- {}={}", gate.name, gate.on), gate.why.as_deref());
    }
    page.line(0, "plugins:", None);
    for plugin in &document.plugins {
        page.plugin(plugin);
    }
    page.line(0, "schedulingProfiles:", None);
    for profile in &document.profiles {
        page.profile(profile);
    }
    page.data_layer(&document.data_layer);
    page.flow_control(&document.flow_control);
    page.line(0, "requestHandler:", None);
    page.line(1, "parsers:", None);
    for parser in &document.parsers {
        page.reference(1, "- pluginRef", parser);
    }
    page.text
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// A line with the reason behind it.
    fn line(&mut self, depth: usize, line: impl Display, why: Option<&str>) {
        let indent = "  ".repeat(depth);
        let why = why.map(|why| format!(" # {why}")).unwrap_or_default();
        self.text.push_str(&format!("{indent}{line}{why}\n"));
    }

    /// The places that the prefix of a prompt may come from.
    fn prefixes(&mut self, kv_cost: Option<&KvCost>) {
        let Some(cost) = kv_cost else {
            let text = "# Nothing here weighs where the prefix of a prompt would come from.";
            return self.line(0, text, None);
        };
        let weights = cost.weights.settings();
        for text in [
            "# The prefix of a prompt comes from the endpoint's device, host memory, disk or object store",
            "# (remote), or from the host memory of another agent (peer), where that is faster than to",
            "# compute it; the rest is computed. Agents measure the times. A block of unknown time counts",
            "# as a part of a computed one:",
        ] {
            self.line(0, text, None);
        }
        let parts = [
            ("device", 1.0),
            ("host", weights.host_cache_hit_weight),
            ("disk", weights.disk_cache_hit_weight),
            ("remote and peer", weights.shared_cache_multiplier),
        ];
        let parts = parts.map(|(place, part)| format!("{place} {part}"));
        self.line(0, format!("# {}.", parts.join(", ")), None);
    }

    fn given<T>(
        &mut self,
        depth: usize,
        name: &str,
        given: &Setting<T>,
        show: impl Fn(&T) -> String,
    ) {
        self.line(depth, format!("{name}: {}", show(&given.value)), given.why.as_deref());
    }

    fn reference(&mut self, depth: usize, name: &str, reference: &Reference) {
        let line = format!("{name}: {}", scalar(&reference.name));
        self.line(depth, line, reference.why.as_deref());
    }

    fn plugin(&mut self, plugin: &PluginEntry) {
        self.line(0, format!("- name: {}", scalar(&plugin.name)), plugin.why.as_deref());
        self.line(1, format!("type: {}", plugin.type_name), None);
        if plugin.parameters.as_object().is_some_and(|map| !map.is_empty()) {
            self.value(1, "parameters:", &plugin.parameters);
        }
    }

    /// A value behind its key: mappings and lists in lines of their own.
    fn value(&mut self, depth: usize, key: &str, value: &Value) {
        match value {
            Value::Object(entries) if !entries.is_empty() => {
                self.line(depth, key, None);
                for (key, value) in entries {
                    self.value(depth + 1, &format!("{}:", scalar(key)), value);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                self.line(depth, key, None);
                for item in items {
                    // JSON is YAML, and items are short.
                    self.line(depth, format!("- {}", json(item)), None);
                }
            }
            Value::String(text) => self.line(depth, format!("{key} {}", scalar(text)), None),
            other => self.line(depth, format!("{key} {}", json(other)), None),
        }
    }

    fn profile(&mut self, profile: &ProfileEntry) {
        self.line(0, format!("- name: {}", scalar(&profile.name)), profile.why.as_deref());
        self.line(1, "plugins:", None);
        for member in &profile.plugins {
            self.reference(1, "- pluginRef", &member.reference);
            if let Some(weight) = &member.weight {
                self.given(2, "weight", weight, f64::to_string);
            }
        }
    }

    fn data_layer(&mut self, layer: &DataLayerEntry) {
        self.line(0, "dataLayer:", None);
        self.given(1, "injectDefaults", &layer.inject_defaults, bool::to_string);
        if !layer.sources.is_empty() {
            self.line(1, "sources:", None);
        }
        for source in &layer.sources {
            self.reference(1, "- pluginRef", &source.reference);
            self.line(
                2,
                if source.extractors.is_empty() { "extractors: []" } else { "extractors:" },
                None,
            );
            for extractor in &source.extractors {
                self.reference(2, "- pluginRef", extractor);
            }
        }
        // Defaults of these are absence, and absent keys are not written.
        let discoveries =
            [("discovery", &layer.discovery), ("peerDiscovery", &layer.peer_discovery)];
        for (name, discovery) in discoveries {
            if let Some(reference) = discovery {
                self.line(1, format!("{name}:"), None);
                self.reference(2, "pluginRef", reference);
            }
        }
        if let Some(syncer) = &layer.syncer {
            self.reference(1, "crossReplicaSyncerPluginRef", syncer);
        }
        if let Some(interval) = layer.sync_interval {
            let line = format!("crossReplicaSyncInterval: {}", format_duration(interval));
            self.line(1, line, None);
        }
    }

    fn flow_control(&mut self, flow: &FlowControlEntry) {
        let duration = |duration: &_| format_duration(*duration);
        self.line(0, "flowControl:", None);
        self.given(1, "maxBytes", &flow.max_bytes, u64::to_string);
        self.given(1, "maxRequests", &flow.max_requests, u64::to_string);
        self.tokens(1, flow.max_tokens);
        self.given(1, "defaultRequestTTL", &flow.default_request_ttl, duration);
        self.given(1, "noEndpointRequestTTL", &flow.no_endpoint_request_ttl, duration);
        self.line(1, "defaultPriorityBand:", flow.default_band.why.as_deref());
        self.band(2, &flow.default_band);
        let negative = &flow.default_negative_band;
        self.line(1, "defaultNegativePriorityBand:", negative.why.as_deref());
        self.band(2, negative);
        self.line(1, "priorityBands:", None);
        for band in &flow.bands {
            self.line(1, format!("- priority: {}", band.priority), band.why.as_deref());
            self.band(2, band);
        }
        self.reference(1, "usageLimitPolicyPluginRef", &flow.usage_limit);
        self.line(1, "saturationDetector:", None);
        self.reference(2, "pluginRef", &flow.saturation_detector);
        self.given(1, "enableEviction", &flow.enable_eviction, bool::to_string);
    }

    /// The bound in tokens, which the llm-d router does not have, where there is one.
    fn tokens(&mut self, depth: usize, max_tokens: u64) {
        if max_tokens > 0 {
            self.line(depth, format!("maxTokens: {max_tokens}"), None);
        }
    }

    fn band(&mut self, depth: usize, band: &BandEntry) {
        self.given(depth, "maxBytes", &band.max_bytes, u64::to_string);
        self.given(depth, "maxRequests", &band.max_requests, u64::to_string);
        self.tokens(depth, band.max_tokens);
        if let Some(ttl) = band.default_request_ttl {
            self.line(depth, format!("defaultRequestTTL: {}", format_duration(ttl)), None);
        }
        self.reference(depth, "fairnessPolicyRef", &band.fairness);
        self.reference(depth, "orderingPolicyRef", &band.ordering);
    }
}

/// A text as it stands behind a key: bare if it can, else quoted.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let bare = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(plain)
        && !word.contains(&text.to_ascii_lowercase().as_str());
    if bare { text.to_owned() } else { json(&Value::from(text)) }
}

/// JSON on one line that YAML reads alike: what is not printable ASCII or a letter is escaped.
fn json(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        if c.is_ascii() && !c.is_control() || c.is_alphanumeric() {
            text.push(c);
        } else {
            text.push_str(&format!("\\U{:08x}", u32::from(c)));
        }
    }
    text
}
