//! Registration and discovery of agents, in a directory of files, a static list, a Kubernetes
//! cluster or etcd.
//!
//! A back-end has two directions: a [`Registry`] for the agent, a [`Watch`] for a follower of
//! agents. It translates and decides little: [`Roster`] decides which agents there are. A back-end
//! that is out of reach takes no agent away, and neither does one that can be read but not written:
//! a lease that ends or a record that disappears makes an agent [`AgentChange::Lapsed`], and the
//! follower asks the agent itself whether it lives. Leases are measured on the reader's clock
//! alone. Start reading at [`DiscoverySource`], which names a back-end, and at [`Agents`], which follows
//! one.

mod agents;
mod args;
mod directory;
mod etcd;
pub mod fuzz;
mod known;
mod kubernetes;
mod list;
mod look;
mod metrics;
mod record;
mod registration;
mod roster;
mod source;

pub use agents::{Agents, Update};
pub use args::DiscoveryArgs;
pub use metrics::DiscoveryMetrics;
pub use record::{AGENTS_MAX, RECORD_BYTES_MAX};
pub use registration::Registration;
pub use roster::{Absence, AgentChange, Roster, Sighting};
pub use source::{DiscoverySource, EtcdSource, EtcdTls, KubernetesSource, Readiness, SourceError};

use stator_protos::discovery::AgentRecord;

/// Makes one agent known.
#[async_trait::async_trait]
pub trait Registry: Send {
    /// The last record of this agent that is there, if any.
    ///
    /// # Errors
    ///
    /// [`DiscoveryError`] when the back-end does not say.
    async fn previous(&mut self, agent_id: &str) -> Result<Option<AgentRecord>, DiscoveryError>;

    /// Makes the record known in place of the last one, for the length of the lease.
    ///
    /// # Errors
    ///
    /// [`DiscoveryError`] when it is not known; it is to be published again.
    async fn publish(&mut self, record: &AgentRecord) -> Result<(), DiscoveryError>;

    /// Keeps what was published known for another lease, or makes it known again where the
    /// back-end has forgotten it.
    ///
    /// # Errors
    ///
    /// [`DiscoveryError`] when that is not certain; it is to be renewed again soon.
    async fn renew(&mut self) -> Result<(), DiscoveryError>;

    /// Takes the record away.
    ///
    /// # Errors
    ///
    /// [`DiscoveryError`] when it may still be there, until its lease ends.
    async fn withdraw(&mut self) -> Result<(), DiscoveryError>;
}

/// Looks at all agents that a back-end knows.
#[async_trait::async_trait]
pub trait Watch: Send {
    /// The present sighting, as soon as it may have changed. The first look may find nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    async fn next(&mut self) -> Sighting;
}

/// Why a back-end did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The back-end is not configured as it should be: waiting changes nothing.
    #[error("{0}")]
    Unconfigured(String),
    /// The back-end is out of reach, or slow.
    #[error("out of reach: {0}")]
    Unreachable(String),
    /// It refused.
    #[error("refused: {0}")]
    Refused(String),
}

impl From<std::io::Error> for DiscoveryError {
    fn from(error: std::io::Error) -> Self {
        Self::Refused(error.to_string())
    }
}
