//! Settings around the decision: each part comes from the plug-in that asks for it.

use crate::document::{BandEntry, Document, PluginEntry, Reference, Setting};
use crate::findings::Findings;
use crate::plan::{Band, FlowControl, MetricsSettings};
use stator_epp_plugins::settings::{
    Detector, FileDiscovery, InFlightLoad, PluginSettings, Precise, Tokens,
};
use stator_epp_plugins::{AttributeReporter, BuildContext};
use std::time::Duration;

/// A configuration whose plug-ins are built.
pub(crate) struct Surroundings<'d> {
    pub(crate) document: &'d Document,
    pub(crate) context: &'d BuildContext,
    pub(crate) findings: &'d Findings,
}

impl Surroundings<'_> {
    /// The settings of the plug-in that is referred to.
    fn settings(&self, reference: &Reference) -> Option<&PluginSettings> {
        self.context.settings.get(&reference.name)
    }

    /// Settings of one kind, with the plug-ins that they belong to.
    fn every<T>(&self, pick: impl Fn(&PluginSettings) -> Option<T>) -> Vec<(&PluginEntry, T)> {
        let plugins = self.document.plugins.iter();
        let found = plugins.filter_map(|plugin| {
            let settings = self.context.settings.get(&plugin.name)?;
            Some((plugin, pick(settings)?))
        });
        found.collect()
    }

    /// Settings of which there can be one; each further one is a fault.
    pub(crate) fn only<T>(&self, pick: impl Fn(&PluginSettings) -> Option<T>) -> Option<T> {
        let mut found = self.every(pick).into_iter();
        let (first, settings) = found.next()?;
        for (other, _) in found {
            let message = format!("{} does the same already, and only one can", first.path);
            self.findings.fault(&other.path, message);
        }
        Some(settings)
    }

    pub(crate) fn tokens(&self) -> Option<Tokens> {
        self.only(|settings| match settings {
            PluginSettings::Tokens(tokens) => Some(tokens.clone()),
            _ => None,
        })
    }

    pub(crate) fn precise(&self) -> Option<Precise> {
        self.only(|settings| match settings {
            PluginSettings::Precise(precise) => Some(precise.clone()),
            _ => None,
        })
    }

    pub(crate) fn in_flight(&self) -> InFlightLoad {
        let in_flight = self.only(|settings| match settings {
            PluginSettings::InFlightLoad(in_flight) => Some(*in_flight),
            _ => None,
        });
        in_flight.unwrap_or_default()
    }

    pub(crate) fn reporters(&self) -> Vec<AttributeReporter> {
        let reporters = self.every(|settings| match settings {
            PluginSettings::AttributeReporter(reporter) => Some(reporter.clone()),
            _ => None,
        });
        reporters.into_iter().map(|(_, reporter)| reporter).collect()
    }

    pub(crate) fn detector(&self) -> Option<Detector> {
        match self.settings(&self.document.flow_control.saturation_detector)? {
            PluginSettings::Detector(detector) => Some(*detector),
            _ => None,
        }
    }

    /// The one source of metrics, with what it means.
    pub(crate) fn metrics(&self) -> Option<MetricsSettings> {
        let sources = self.document.data_layer.sources.iter();
        let mut sources = sources.filter_map(|source| match self.settings(&source.reference)? {
            PluginSettings::MetricsSource(http) => Some((source, http)),
            _ => None,
        });
        let (source, http) = sources.next()?;
        let path = &source.reference.path;
        for (other, _) in sources {
            let message = format!("{path} reads metrics already, and only one can");
            self.findings.fault(&other.reference.path, message);
        }
        let extractor = |extractor: &Reference| match self.settings(extractor)? {
            PluginSettings::MetricsExtractor(extractor) => Some(extractor.clone()),
            _ => None,
        };
        let extractor = source.extractors.iter().find_map(extractor);
        // Where there is a fault already, the extractor may be what it is about.
        if extractor.is_none() && self.findings.faults() == 0 {
            self.findings.fault(path, "has no core-metrics-extractor among its extractors");
        }
        Some(MetricsSettings { source: http.clone(), extractor: extractor? })
    }

    /// Warns of configured plug-ins that have no effect here.
    pub(crate) fn warn_idle(&self) {
        let layer = &self.document.data_layer;
        for source in &layer.sources {
            if let Some(PluginSettings::ModelsSource) = self.settings(&source.reference) {
                self.findings.warn(&source.reference.path, "has no effect here");
            }
        }
        for reference in [&layer.peer_discovery, &layer.syncer].into_iter().flatten() {
            if self.document.plugin(&reference.name).is_some() {
                let message = "has no effect here: replicas with --peers share what they know";
                self.findings.warn(&reference.path, message);
            }
        }
    }

    pub(crate) fn discovery(&self) -> Option<FileDiscovery> {
        match self.settings(self.document.data_layer.discovery.as_ref()?)? {
            PluginSettings::FileDiscovery(file) => Some(file.clone()),
            _ => None,
        }
    }

    /// Settings of the waiting queues; `None` if a policy was not built.
    pub(crate) fn flow_control(&self) -> Option<FlowControl> {
        let flow = &self.document.flow_control;
        let limit = |limit: &Setting<u64>| (limit.value > 0).then_some(limit.value);
        let PluginSettings::UsageLimit(usage_limit) = self.settings(&flow.usage_limit)? else {
            return None;
        };
        let bands = flow.bands.iter().map(|band| self.band(band));
        Some(FlowControl {
            max_bytes: limit(&flow.max_bytes),
            max_requests: limit(&flow.max_requests),
            max_tokens: Some(flow.max_tokens).filter(|tokens| *tokens > 0),
            no_endpoint_ttl: ending(flow.no_endpoint_request_ttl.value),
            bands: bands.collect::<Option<Vec<_>>>()?,
            default_band: self.band(&flow.default_band)?,
            default_negative_band: self.band(&flow.default_negative_band)?,
            usage_limit: *usage_limit,
            eviction: flow.enable_eviction.value,
        })
    }

    fn band(&self, band: &BandEntry) -> Option<Band> {
        let default_ttl = self.document.flow_control.default_request_ttl.value;
        let PluginSettings::Fairness(fairness) = self.settings(&band.fairness)? else {
            return None;
        };
        let PluginSettings::Ordering(ordering) = self.settings(&band.ordering)? else {
            return None;
        };
        Some(Band {
            priority: band.priority,
            max_bytes: band.max_bytes.value,
            max_requests: band.max_requests.value,
            max_tokens: Some(band.max_tokens).filter(|tokens| *tokens > 0),
            ttl: ending(band.default_request_ttl.unwrap_or(default_ttl)),
            fairness: *fairness,
            ordering: *ordering,
        })
    }
}

/// A time to live; zero is none.
fn ending(ttl: Duration) -> Option<Duration> {
    (!ttl.is_zero()).then_some(ttl)
}
