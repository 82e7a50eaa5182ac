//! Metrics of how well the back-end can be followed.

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether what is known of the fleet is fresh. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryMetrics {
    faults: Arc<Mutex<Faults>>,
    stale: Gauge,
    stale_since: Gauge,
    losses: Counter,
}

/// Reasons to take the known agents for an old state.
#[derive(Debug, Default)]
struct Faults {
    out_of_reach: bool,
    unrenewed: bool,
}

impl DiscoveryMetrics {
    /// Makes the metrics known to a registry, which carries their prefix.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("discovery");
        registry.register(
            "stale",
            "Whether the fleet is as discovery last said: it is out of reach, or takes no renewals \
             of agents that live",
            self.stale.clone(),
        );
        registry.register(
            "stale_since_seconds",
            "Unix time since which discovery is stale; 0 while it is not",
            self.stale_since.clone(),
        );
        registry.register("losses", "Times that discovery became stale", self.losses.clone());
    }

    /// Whether the back-end can be read.
    pub(crate) fn set_out_of_reach(&self, out_of_reach: bool) {
        self.change(|faults| faults.out_of_reach = out_of_reach, SystemTime::now());
    }

    /// Whether most agents live though their leases have ended: nobody can write the back-end.
    pub fn set_unrenewed(&self, unrenewed: bool) {
        self.change(|faults| faults.unrenewed = unrenewed, SystemTime::now());
    }

    fn change(&self, change: impl FnOnce(&mut Faults), now: SystemTime) {
        let mut faults = self.faults.lock();
        change(&mut faults);
        let stale = faults.out_of_reach || faults.unrenewed;
        let was = self.stale.set(i64::from(stale)) != 0;
        match (was, stale) {
            (false, true) => {
                self.losses.inc();
                let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                self.stale_since.set(i64::try_from(since).unwrap_or(i64::MAX));
            }
            (true, false) => drop(self.stale_since.set(0)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_loss_is_counted_once_and_its_beginning_stays() {
        let metrics = DiscoveryMetrics::default();
        let set = |seconds, out_of_reach, unrenewed| {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            metrics.change(|faults| *faults = Faults { out_of_reach, unrenewed }, at);
            (metrics.stale.get(), metrics.stale_since.get(), metrics.losses.get())
        };
        assert_eq!(set(1, false, false), (0, 0, 0));
        assert_eq!(set(2, true, false), (1, 2, 1));
        assert_eq!(set(3, true, true), (1, 2, 1));
        assert_eq!(set(4, false, true), (1, 2, 1), "it can be read and not be written");
        assert_eq!(set(5, false, false), (0, 0, 1));
        assert_eq!(set(6, false, true), (1, 6, 2));
    }
}
