//! Settings of a queue, for operators.

use crate::bounds::Bounds;
use crate::fairness::Fairness;
use crate::invalid::{InvalidSettings, LONGEST, MS, SECOND, SettingFindings};
use crate::ordering::Ordering;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

/// Most bands there can be.
const BANDS_MAX: u32 = 64;

/// Waiting policy for the requests of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandPolicy {
    /// Most that may wait at once. Default 5,000 requests and 1 GB.
    pub bounds: Bounds,
    /// Longest wait of a request that names no deadline, 1 ms to 24 h. Default 60 s.
    pub ttl: Duration,
    /// Choice of the next flow. Default [`Fairness::GlobalStrict`].
    pub fairness: Fairness,
    /// Order of a flow's requests. Default [`Ordering::Fcfs`].
    pub ordering: Ordering,
}

impl Default for BandPolicy {
    fn default() -> Self {
        Self {
            bounds: Bounds { requests: 5_000, bytes: Some(1_000_000_000), tokens: None },
            ttl: Duration::from_secs(60),
            fairness: Fairness::default(),
            ordering: Ordering::default(),
        }
    }
}

/// A band that is always there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandSettings {
    /// Its priority.
    pub priority: i32,
    /// Its waiting policy.
    pub policy: BandPolicy,
}

/// Effect of a request that cannot be placed now on the requests behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOfLine {
    /// They wait too: nothing of lower priority overtakes it, and nothing of another flow.
    Strict,
    /// Others are tried, past at most so many that cannot be placed; of one flow past eight.
    Skip {
        /// 1 to 10,000.
        tries: u32,
    },
}

impl HeadOfLine {
    /// Requests that may be passed over.
    pub(crate) fn tries(self) -> u32 {
        match self {
            Self::Strict => 0,
            Self::Skip { tries } => tries,
        }
    }
}

/// Settings of a queue, not checked yet.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// Bands that are always there, at least one, in any order, each priority once. Default: one
    /// of priority 0.
    pub bands: Vec<BandSettings>,
    /// Policy of the band of any other priority from 0 up.
    pub default_band: BandPolicy,
    /// Policy of the band of any other priority below 0.
    pub default_negative_band: BandPolicy,
    /// Most bands at once, 1 to 64, and at least as many as are always there; the requests of
    /// further priorities wait in the band of the nearest priority. Default 32.
    pub bands_max: u32,
    /// Most that may wait at once in all bands. Default 1,000,000 requests.
    pub total: Bounds,
    /// Effect of a request that cannot be placed now on the requests behind it. Default: 64 are
    /// passed over.
    pub head_of_line: HeadOfLine,
    /// Whether a request takes the room of waiting ones of lower bands, the lowest and newest
    /// first, when there is no more in total. Default no.
    pub displace: bool,
    /// Whether requests are refused, or sent away, that cannot be served before their deadlines at
    /// the rate at which the queue drains. Default no.
    pub evict_hopeless: bool,
    /// Longest wait whatever deadline a request names, 1 ms to 24 h. Default 1 h.
    pub ttl_max: Duration,
    /// Time for which an idle flow is remembered, 1 s to 24 h. Default 5 min.
    pub flow_idle: Duration,
    /// Most such flows per band, 1 to 1,000,000; the earliest are forgotten first. At most 500
    /// bytes each. Default 10,000.
    pub idle_flows_max: u32,
    /// Time for which an idle band stays, unless it is always there, 1 s to 24 h. Default 10 min.
    pub band_idle: Duration,
    /// Time over which the drain rate is measured, 100 ms to 1 h: what is older weighs less than
    /// a third. Default 10 s.
    pub drain_window: Duration,
    /// Shortest time after which a refused request is told to come back, 1 ms to 24 h. Default
    /// 1 s.
    pub retry_after_min: Duration,
    /// Longest such time, from `retry_after_min` to 24 h. Default 60 s.
    pub retry_after_max: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            bands: vec![BandSettings::default()],
            default_band: BandPolicy::default(),
            default_negative_band: BandPolicy::default(),
            bands_max: 32,
            total: Bounds::MAX,
            head_of_line: HeadOfLine::Skip { tries: 64 },
            displace: false,
            evict_hopeless: false,
            ttl_max: Duration::from_secs(3600),
            flow_idle: Duration::from_secs(300),
            idle_flows_max: 10_000,
            band_idle: Duration::from_secs(600),
            drain_window: Duration::from_secs(10),
            retry_after_min: Duration::from_secs(1),
            retry_after_max: Duration::from_secs(60),
        }
    }
}

impl QueueSettings {
    fn check(&self, findings: &mut SettingFindings) {
        if self.bands.is_empty() {
            findings.add("bands", 0, "at least 1");
        }
        let mut seen = BTreeSet::new();
        for BandSettings { priority, policy } in &self.bands {
            if !seen.insert(priority) {
                findings.add("bands.priority", priority, "there once");
            }
            policy.check(&format!("bands[{priority}]"), findings);
        }
        self.default_band.check("default_band", findings);
        self.default_negative_band.check("default_negative_band", findings);
        self.total.check("total", findings);
        // All faults are found at once: an operator mends them in one go.
        let bands = (self.bands.len() as u64).max(1);
        findings.range("bands_max", u64::from(self.bands_max), bands..=u64::from(BANDS_MAX));
        if let HeadOfLine::Skip { tries } = self.head_of_line {
            findings.range("head_of_line.tries", u64::from(tries), 1..=10_000);
        }
        findings.range("idle_flows_max", u64::from(self.idle_flows_max), 1..=1_000_000);
        findings.duration("ttl_max", self.ttl_max, MS..=LONGEST);
        findings.duration("flow_idle", self.flow_idle, SECOND..=LONGEST);
        findings.duration("band_idle", self.band_idle, SECOND..=LONGEST);
        findings.duration("drain_window", self.drain_window, 100 * MS..=3600 * SECOND);
        findings.duration("retry_after_min", self.retry_after_min, MS..=LONGEST);
        let least = self.retry_after_min.min(LONGEST);
        findings.duration("retry_after_max", self.retry_after_max, least..=LONGEST);
    }
}

impl BandPolicy {
    fn check(&self, name: &str, findings: &mut SettingFindings) {
        self.bounds.check(&format!("{name}.bounds"), findings);
        findings.duration(&format!("{name}.ttl"), self.ttl, MS..=LONGEST);
        self.fairness.check(&format!("{name}.fairness"), findings);
        self.ordering.check(&format!("{name}.ordering"), findings);
    }
}

/// Settings of one pool's queue. A value of this type is valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckedSettings(QueueSettings);

impl CheckedSettings {
    /// Checks everything.
    ///
    /// # Errors
    ///
    /// [`InvalidSettings`] names each setting that cannot be used, with its value and limit.
    pub fn new(settings: QueueSettings) -> Result<Self, InvalidSettings> {
        let mut findings = SettingFindings::default();
        settings.check(&mut findings);
        findings.into_result()?;
        Ok(Self(settings))
    }

    /// Whether a band counts the turns of flows, those that need not wait included.
    pub fn counts_turns(&self) -> bool {
        let listed = self.bands.iter().map(|band| band.policy);
        let mut all = listed.chain([self.default_band, self.default_negative_band]);
        all.any(|policy| policy.fairness.counts_turns())
    }

    /// Policy of the band of a priority that is not always there.
    pub(crate) fn policy(&self, priority: i32) -> BandPolicy {
        if priority < 0 { self.default_negative_band } else { self.default_band }
    }
}

impl Deref for CheckedSettings {
    type Target = QueueSettings;

    fn deref(&self) -> &QueueSettings {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        let settings = CheckedSettings::new(QueueSettings::default());
        assert_eq!(settings, Ok(CheckedSettings::default()));
    }

    #[test]
    fn every_wrong_setting_is_named_with_its_value_and_limit() {
        let bounds = Bounds { requests: 0, bytes: Some(0), tokens: Some(0) };
        let wrong = BandPolicy {
            bounds,
            ttl: Duration::ZERO,
            fairness: Fairness::Drr { quantum_tokens: 0 },
            ordering: Ordering::ShortestPrompt { ageing_tokens_per_s: 0 },
        };
        let vtc = Fairness::Vtc { input_weight: 0, output_weight: 1001 };
        let las = Fairness::Las {
            service_weight: 1_000_001,
            wait_weight: 0,
            half_life: Duration::ZERO,
            idle: Duration::ZERO,
        };
        let settings = QueueSettings {
            bands: vec![
                BandSettings { priority: 7, policy: wrong },
                BandSettings {
                    priority: 7,
                    policy: BandPolicy { fairness: vtc, ..BandPolicy::default() },
                },
                BandSettings {
                    priority: 8,
                    policy: BandPolicy { fairness: las, ..BandPolicy::default() },
                },
            ],
            bands_max: 1,
            total: Bounds { requests: 2_000_000, ..Bounds::MAX },
            head_of_line: HeadOfLine::Skip { tries: 0 },
            idle_flows_max: 0,
            ttl_max: Duration::from_secs(90_000),
            flow_idle: Duration::ZERO,
            band_idle: Duration::ZERO,
            drain_window: Duration::from_millis(99),
            retry_after_min: Duration::from_secs(2),
            retry_after_max: Duration::from_secs(1),
            ..QueueSettings::default()
        };
        let error = CheckedSettings::new(settings).expect_err("nearly all is wrong").to_string();
        let expected = "bands[7].bounds.requests: 0 is not in 1..=1000000; \
            bands[7].bounds.bytes: 0 is not in 1..=18446744073709551615; \
            bands[7].bounds.tokens: 0 is not in 1..=18446744073709551615; \
            bands[7].ttl: 0ns is not in 1ms..=86400s; \
            bands[7].fairness.quantum_tokens: 0 is not in 1..=4294967295; \
            bands[7].ordering.ageing_tokens_per_s: 0 is not in 1..=1000000000; \
            bands.priority: 7 is not there once; \
            bands[7].fairness.input_weight: 0 is not in 1..=1000; \
            bands[7].fairness.output_weight: 1001 is not in 0..=1000; \
            bands[8].fairness.service_weight: 1000001 is not in 0..=1000000; \
            bands[8].fairness.half_life: 0ns is not in 1ms..=86400s; \
            bands[8].fairness.idle: 0ns is not in 1s..=86400s; \
            total.requests: 2000000 is not in 1..=1000000; \
            bands_max: 1 is not in 3..=64; \
            head_of_line.tries: 0 is not in 1..=10000; \
            idle_flows_max: 0 is not in 1..=1000000; \
            ttl_max: 90000s is not in 1ms..=86400s; \
            flow_idle: 0ns is not in 1s..=86400s; \
            band_idle: 0ns is not in 1s..=86400s; \
            drain_window: 99ms is not in 100ms..=3600s; \
            retry_after_max: 1s is not in 2s..=86400s";
        assert_eq!(error, expected);
    }
}
