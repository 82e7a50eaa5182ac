//! Sources of signals: the agents of the fleet, and the metrics pages of proxies and pickers.

mod agents;
mod histogram;
mod page;
mod traffic;

pub(crate) use agents::AgentPools;
pub(crate) use traffic::TrafficReader;
