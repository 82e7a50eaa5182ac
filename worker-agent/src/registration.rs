//! Registration: keeps the agent's discovery record known while the agent lives.

use stator_discovery::DiscoveryError;
use stator_protos::discovery::AgentRecord;
use stator_runtime::Shutdown;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

pub(crate) use stator_discovery::previous;

/// The agent's entry in the discovery directory.
pub(crate) struct Registration {
    entry: stator_discovery::Registration,
    record: watch::Receiver<AgentRecord>,
}

impl Registration {
    /// An entry in `dir`, which is made where it is missing, for this user alone.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made.
    pub(crate) fn new(
        dir: PathBuf,
        lease: Duration,
        record: watch::Receiver<AgentRecord>,
    ) -> Result<Self, DiscoveryError> {
        let entry = stator_discovery::Registration::in_directory(dir, lease)?;
        Ok(Self { entry, record })
    }

    /// Writes the record now and at every change and renewal until `stop`, then removes it.
    pub(crate) async fn run(self, stop: Shutdown) {
        self.entry.run(self.record, stop).await;
    }
}
