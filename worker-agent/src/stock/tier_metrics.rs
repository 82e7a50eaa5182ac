//! Metrics of the engines that use the agent's tiers from other processes.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use stator_kv::connector::{ConnectorReport, ConnectorServer, SchedulerReport};
use std::fmt;
use std::sync::Weak;

/// Shows the present connections, and what the schedulers behind them said last.
#[derive(Debug)]
pub(super) struct ConnectorMetrics(pub(super) Weak<ConnectorServer>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EngineLabels {
    engine: String,
    what: &'static str,
}

impl Collector for ConnectorMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(server) = self.0.upgrade() else { return Ok(()) };
        encode(&server.report(), encoder)
    }
}

fn encode(report: &ConnectorReport, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let connections = ("connections", "Connections of engines", report.connections);
    let quarantined = "Lost connections whose slots wait for the end of their engine";
    for (name, help, count) in [connections, ("quarantined", quarantined, report.quarantined)] {
        let (name, gauge) = (format!("stator_kv_engine_{name}"), ConstGauge::new(count as i64));
        gauge.encode(encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?)?;
    }
    let help = "Blocks that engines copied to and from the tiers, since they connected";
    let blocks =
        encoder.encode_descriptor("stator_kv_engine_blocks", help, None, MetricType::Counter)?;
    counts(report, blocks, |of| [("loaded", of.pulse.loaded), ("stored", of.pulse.stored)])?;
    let help = "Requests of engines that did not wait any longer, and faults of their modules";
    let late =
        encoder.encode_descriptor("stator_kv_engine_troubles", help, None, MetricType::Counter)?;
    counts(report, late, |of| {
        let pulse = &of.pulse;
        [("ask_late", pulse.asks_late), ("load_late", pulse.loads_late), ("fault", pulse.faults)]
    })
}

/// Encodes counts of each engine.
fn counts<const N: usize>(
    report: &ConnectorReport,
    mut encoder: MetricEncoder<'_>,
    of: impl Fn(&SchedulerReport) -> [(&'static str, u64); N],
) -> Result<(), fmt::Error> {
    for scheduler in &report.schedulers {
        for (what, count) in of(scheduler) {
            let labels = EngineLabels { engine: scheduler.engine.clone(), what };
            ConstCounter::new(count).encode(encoder.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;
    use stator_kv::connector::wire::ShimPulse;

    #[derive(Debug)]
    struct Fixed(ConnectorReport);

    impl Collector for Fixed {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            encode(&self.0, encoder)
        }
    }

    #[test]
    fn engines_are_shown_with_their_last_words() {
        let pulse = ShimPulse { loaded: 7, asks_late: 2, ..ShimPulse::default() };
        let schedulers = vec![SchedulerReport { engine: "e1".into(), pulse }];
        let report = ConnectorReport { connections: 3, quarantined: 1, schedulers };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Fixed(report)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "stator_kv_engine_connections 3",
            "stator_kv_engine_quarantined 1",
            "stator_kv_engine_blocks_total{engine=\"e1\",what=\"loaded\"} 7",
            "stator_kv_engine_troubles_total{engine=\"e1\",what=\"ask_late\"} 2",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
