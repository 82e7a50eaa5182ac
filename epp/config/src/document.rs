//! A configuration as it was written and completed, before anything is built from it.

use serde_json::Value;
use std::time::Duration;

/// Reason for an entry that nobody wrote; `None` for a written one.
pub(crate) type Why = Option<String>;

/// A whole configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Document {
    pub(crate) gates: Vec<GateEntry>,
    pub(crate) plugins: Vec<PluginEntry>,
    pub(crate) profiles: Vec<ProfileEntry>,
    pub(crate) data_layer: DataLayerEntry,
    pub(crate) flow_control: FlowControlEntry,
    pub(crate) parsers: Vec<Reference>,
}

/// A setting, and why it has its value.
#[derive(Clone, Debug)]
pub(crate) struct Setting<T> {
    pub(crate) value: T,
    pub(crate) why: Why,
}

impl<T> Setting<T> {
    /// The written value, or else the default.
    pub(crate) fn or_default(written: Option<T>, default: T) -> Self {
        Self::or(written, default, "default")
    }

    /// The written value, or else `other` for the reason `why`.
    pub(crate) fn or(written: Option<T>, other: T, why: &str) -> Self {
        match written {
            Some(value) => Self { value, why: None },
            None => Self { value: other, why: Some(why.to_owned()) },
        }
    }
}

/// The name of a plug-in at a place that refers to it.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) why: Why,
}

impl Reference {
    /// A reference that nobody wrote.
    pub(crate) fn added(path: String, name: &str, why: &str) -> Self {
        Self { path, name: name.to_owned(), why: Some(why.to_owned()) }
    }
}

/// A feature gate.
#[derive(Clone, Debug)]
pub(crate) struct GateEntry {
    pub(crate) name: &'static str,
    pub(crate) on: bool,
    pub(crate) why: Why,
}

/// An entry of `plugins`.
#[derive(Clone, Debug)]
pub(crate) struct PluginEntry {
    pub(crate) path: String,
    pub(crate) name: String,
    /// The canonical name of its type, once that is known.
    pub(crate) type_name: String,
    pub(crate) parameters: Value,
    pub(crate) why: Why,
}

/// An entry of `schedulingProfiles`.
#[derive(Clone, Debug)]
pub(crate) struct ProfileEntry {
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) plugins: Vec<ProfilePlugin>,
    pub(crate) why: Why,
}

/// A plug-in of a profile.
#[derive(Clone, Debug)]
pub(crate) struct ProfilePlugin {
    pub(crate) reference: Reference,
    pub(crate) weight: Option<Setting<f64>>,
}

/// `dataLayer`.
#[derive(Clone, Debug)]
pub(crate) struct DataLayerEntry {
    pub(crate) inject_defaults: Setting<bool>,
    pub(crate) sources: Vec<SourceEntry>,
    pub(crate) discovery: Option<Reference>,
    pub(crate) peer_discovery: Option<Reference>,
    pub(crate) syncer: Option<Reference>,
    pub(crate) sync_interval: Option<Duration>,
}

impl Default for DataLayerEntry {
    fn default() -> Self {
        Self {
            inject_defaults: Setting::or_default(None, true),
            sources: Vec::new(),
            discovery: None,
            peer_discovery: None,
            syncer: None,
            sync_interval: None,
        }
    }
}

/// A source of data with those that read it.
#[derive(Clone, Debug)]
pub(crate) struct SourceEntry {
    pub(crate) reference: Reference,
    pub(crate) extractors: Vec<Reference>,
}

/// `flowControl`.
#[derive(Clone, Debug)]
pub(crate) struct FlowControlEntry {
    /// 0 is unlimited.
    pub(crate) max_bytes: Setting<u64>,
    /// 0 is unlimited.
    pub(crate) max_requests: Setting<u64>,
    /// 0 is unlimited.
    pub(crate) max_tokens: u64,
    /// Zero is without end.
    pub(crate) default_request_ttl: Setting<Duration>,
    /// Zero is without end.
    pub(crate) no_endpoint_request_ttl: Setting<Duration>,
    pub(crate) default_band: BandEntry,
    pub(crate) default_negative_band: BandEntry,
    pub(crate) bands: Vec<BandEntry>,
    pub(crate) usage_limit: Reference,
    pub(crate) saturation_detector: Reference,
    pub(crate) enable_eviction: Setting<bool>,
}

/// A priority band, or the template of further ones.
#[derive(Clone, Debug)]
pub(crate) struct BandEntry {
    pub(crate) priority: i32,
    pub(crate) max_bytes: Setting<u64>,
    pub(crate) max_requests: Setting<u64>,
    /// 0 is unlimited.
    pub(crate) max_tokens: u64,
    /// `None` takes the one of all bands; zero is without end.
    pub(crate) default_request_ttl: Option<Duration>,
    pub(crate) fairness: Reference,
    pub(crate) ordering: Reference,
    pub(crate) why: Why,
}
