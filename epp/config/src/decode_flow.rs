//! The `flowControl` part of a configuration, with the defaults of its values.

use crate::document::{BandEntry, FlowControlEntry, Reference, Setting};
use crate::fields::{At, MappingFields, refer};
use crate::findings::Findings;
use crate::tree::Tree;
use std::time::Duration;

/// Type, and name, of the policy that orders bands where none is named.
pub(crate) const DEFAULT_ORDERING: &str = "fcfs-ordering-policy";
/// Type, and name, of the policy that chooses among flows where none is named.
pub(crate) const DEFAULT_FAIRNESS: &str = "global-strict-fairness-policy";
const DEFAULT_USAGE_LIMIT: &str = "static-usage-limit-policy";
const DEFAULT_DETECTOR: &str = "utilization-detector";
const DEFAULT_TTL: Duration = Duration::from_secs(60);
/// Bytes that a band holds where nobody says so.
const BAND_MAX_BYTES: u64 = 1_000_000_000;
/// Requests that a band holds where nobody says so.
const BAND_MAX_REQUESTS: u64 = 5_000;

impl Default for FlowControlEntry {
    fn default() -> Self {
        let default_band = BandEntry { why: Some("default".to_owned()), ..band(0, None) };
        Self {
            max_bytes: Setting::or(None, 0, "default: unlimited"),
            max_requests: Setting::or(None, 0, "default: unlimited"),
            max_tokens: 0,
            default_request_ttl: Setting::or_default(None, DEFAULT_TTL),
            no_endpoint_request_ttl: Setting::or(None, DEFAULT_TTL, "as defaultRequestTTL"),
            default_negative_band: like(&default_band, 0),
            default_band,
            bands: Vec::new(),
            usage_limit: unnamed("flowControl.usageLimitPolicyPluginRef", DEFAULT_USAGE_LIMIT),
            saturation_detector: unnamed("flowControl.saturationDetector", DEFAULT_DETECTOR),
            enable_eviction: Setting::or_default(None, false),
        }
    }
}

/// Reads `flowControl`, and the `saturationDetector` of old beside it.
pub(crate) fn flow_control(root: &MappingFields<'_>, findings: &Findings) -> FlowControlEntry {
    let mut flow = FlowControlEntry::default();
    let mut detector = None;
    if let Some(fields) = root.fields("flowControl") {
        limits(&mut flow, &fields);
        bands(&mut flow, &fields, findings);
        if let Some(policy) = fields.text("usageLimitPolicyPluginRef") {
            flow.usage_limit = refer(policy);
        }
        detector = fields.fields("saturationDetector").map(optional);
        fields.close();
    }
    if let Some(old) = root.fields("saturationDetector") {
        findings.warn("saturationDetector", "is deprecated: use flowControl.saturationDetector");
        detector = detector.or(Some(optional(old)));
    }
    if let Some(Some(detector)) = detector {
        flow.saturation_detector = detector;
    }
    flow
}

fn limits(flow: &mut FlowControlEntry, fields: &MappingFields<'_>) {
    let unlimited = "default: unlimited";
    flow.max_bytes = Setting::or(fields.quantity("maxBytes"), 0, unlimited);
    flow.max_requests = Setting::or(fields.quantity("maxRequests"), 0, unlimited);
    flow.max_tokens = fields.quantity("maxTokens").unwrap_or(0);
    flow.default_request_ttl =
        Setting::or_default(fields.duration("defaultRequestTTL"), DEFAULT_TTL);
    flow.no_endpoint_request_ttl = Setting::or(
        fields.duration("noEndpointRequestTTL"),
        flow.default_request_ttl.value,
        "as defaultRequestTTL",
    );
    flow.enable_eviction = Setting::or_default(fields.boolean("enableEviction"), false);
}

/// The bands that are named, and what others are made like.
fn bands(flow: &mut FlowControlEntry, fields: &MappingFields<'_>, findings: &Findings) {
    if let Some(template) = fields.fields("defaultPriorityBand") {
        flow.default_band = read_band(&template).1;
        template.close();
        flow.default_negative_band = like(&flow.default_band, 0);
    }
    if let Some(template) = fields.fields("defaultNegativePriorityBand") {
        flow.default_negative_band = read_band(&template).1;
        template.close();
    }
    for at in fields.list("priorityBands") {
        if let Some(band) = listed_band(at, &flow.bands, findings) {
            flow.bands.push(band);
        }
    }
}

fn listed_band(at: At<&Tree>, earlier: &[BandEntry], findings: &Findings) -> Option<BandEntry> {
    let fields = MappingFields::open(at, findings)?;
    let (priority, band) = read_band(&fields);
    let path = fields.path("priority");
    fields.close();
    if findings.faulty(&path) {
        return None;
    }
    if earlier.iter().any(|other| other.priority == band.priority) {
        findings.fault(path, format!("there are two bands of priority {}", band.priority));
        return None;
    }
    // Without a priority it is the band of 0, as an integer that is left out is in Go.
    if !priority {
        findings.warn(path, "is missing: taken as 0");
    }
    Some(band)
}

/// A band, and whether its priority was there.
fn read_band(fields: &MappingFields<'_>) -> (bool, BandEntry) {
    let priority = fields.integer("priority");
    let given = priority.is_some();
    let read = band(priority.map_or(0, |at| at.value), Some(fields));
    (given, read)
}

/// A band as written, or a default one. A limit of 0 is none: the default counts.
fn band(priority: i32, fields: Option<&MappingFields<'_>>) -> BandEntry {
    let limit = |name| fields.and_then(|f| f.quantity(name)).filter(|limit| *limit > 0);
    let policy = |name, default| match fields.and_then(|f| f.text(name)) {
        Some(written) => refer(written),
        None => unnamed(&fields.map_or_else(String::new, |f| f.path(name)), default),
    };
    BandEntry {
        priority,
        max_bytes: Setting::or_default(limit("maxBytes"), BAND_MAX_BYTES),
        max_requests: Setting::or_default(limit("maxRequests"), BAND_MAX_REQUESTS),
        max_tokens: limit("maxTokens").unwrap_or(0),
        default_request_ttl: fields.and_then(|f| f.duration("defaultRequestTTL")),
        fairness: policy("fairnessPolicyRef", DEFAULT_FAIRNESS),
        ordering: policy("orderingPolicyRef", DEFAULT_ORDERING),
        why: None,
    }
}

/// A band that takes after the default one.
pub(crate) fn like(template: &BandEntry, priority: i32) -> BandEntry {
    BandEntry { priority, why: Some("as defaultPriorityBand".to_owned()), ..template.clone() }
}

/// A `pluginRef` that may be missing, for which there is a default.
fn optional(fields: MappingFields<'_>) -> Option<Reference> {
    match fields.text("pluginRef") {
        Some(written) => {
            fields.close();
            Some(refer(written))
        }
        None => {
            fields.close();
            None
        }
    }
}

fn unnamed(path: &str, name: &str) -> Reference {
    Reference::added(path.to_owned(), name, "default")
}
