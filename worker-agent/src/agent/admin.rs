//! The side server of an agent: metrics and health.

use crate::config::AgentSettings;
use crate::operations::adapters::AdapterDesk;
use anyhow::Context;
use stator_runtime::metrics::Metrics;
use stator_runtime::shutdown::Trigger;
use stator_runtime::{Shutdown, admin};

/// The server of metrics and health, which starts before the engines and ends after them.
pub(super) struct AdminServer {
    pub(super) metrics: Metrics,
    pub(super) readiness: admin::Readiness,
    pub(super) address: Option<std::net::SocketAddr>,
    /// Adapters, where the settings let clients of this server load them.
    pub(super) adapters: Option<AdapterDesk>,
    /// Ends the agent, after its drain.
    pub(super) end: Trigger,
    pub(super) ended: Shutdown,
}

impl AdminServer {
    /// Serves where the settings say; nowhere if they name no address.
    pub(super) async fn serve(settings: &AgentSettings, metrics: Metrics) -> anyhow::Result<Self> {
        let (end, ended) = Shutdown::new();
        let readiness = admin::Readiness::default();
        let adapters = settings.serves_adapters.then(AdapterDesk::default);
        let more = adapters.as_ref().map(AdapterDesk::routes).unwrap_or_default();
        let address = match settings.metrics_listen {
            None => None,
            Some(listen) => {
                let (metrics, readiness) = (metrics.clone(), readiness.clone());
                let shown = admin::AdminContent { metrics, readiness, gate: None };
                let served = admin::serve_with(listen, shown, more, ended.clone()).await;
                Some(served.with_context(|| format!("metrics-port: cannot bind {listen}"))?.0)
            }
        };
        Ok(Self { metrics, readiness, address, adapters, end, ended })
    }
}
