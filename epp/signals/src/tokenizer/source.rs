//! Sources of a model's files.

use super::files::{Files, SourceError, blocking, folder_stamp, read_folder};
use super::hub::HubSource;
use stator_fleet::{AgentClient, ClientSettings};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// Longest wait for an agent's answer.
const AGENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Source of a model's files.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// A folder on this machine, or a mounted volume.
    Folder(PathBuf),
    /// A model hub's cache on this machine, or the hub itself.
    Hub(HubSource),
    /// One of the pool's agents, whichever answers first.
    Agents(AgentSource),
}

/// Agents that have the model.
#[derive(Clone, Debug)]
pub struct AgentSource {
    /// Addresses of the agents, as they come and go.
    pub addresses: watch::Receiver<Vec<SocketAddr>>,
    /// Settings for connecting to agents.
    pub client: ClientSettings,
}

impl TokenizerSource {
    /// Tells whether the source has changed: equal stamps, equal files.
    pub(super) async fn stamp(&self) -> Result<String, SourceError> {
        match self {
            Self::Folder(folder) => blocking(folder.clone(), folder_stamp).await,
            Self::Hub(hub) => {
                let hub = hub.clone();
                blocking(PathBuf::new(), move |_| Ok(hub.stamp())).await
            }
            Self::Agents(agents) => {
                let (_, record) = agents.first().await?;
                Ok(format!("{record:?}"))
            }
        }
    }

    /// The files; those that a model need not have may be missing.
    pub(super) async fn files(&self) -> Result<Files, SourceError> {
        match self {
            Self::Folder(folder) => blocking(folder.clone(), read_folder).await,
            Self::Hub(hub) => hub.files().await,
            Self::Agents(agents) => agents.files().await,
        }
    }
}

impl AgentSource {
    /// The first agent that says what it serves, and that.
    async fn first(
        &self,
    ) -> Result<(AgentClient, stator_protos::discovery::ModelRecord), SourceError> {
        let addresses = self.addresses.borrow().clone();
        let mut reason = "there are none".to_owned();
        for address in addresses {
            let endpoint = self.client.dial.endpoint(address);
            let client = AgentClient::connect(&endpoint, &self.client);
            let client = client.map_err(|error| SourceError::Agents(error.to_string()))?;
            match tokio::time::timeout(AGENT_TIMEOUT, client.describe()).await {
                Ok(Ok(record)) => return Ok((client, record.model)),
                Ok(Err(status)) => reason = format!("{address}: {status}"),
                Err(_) => reason = format!("{address}: no answer within {AGENT_TIMEOUT:?}"),
            }
        }
        Err(SourceError::Agents(reason))
    }

    async fn files(&self) -> Result<Files, SourceError> {
        let (client, record) = self.first().await?;
        let files = tokio::time::timeout(AGENT_TIMEOUT, client.model_files(&record.name)).await;
        let files = files
            .map_err(|_| SourceError::Agents(format!("no answer within {AGENT_TIMEOUT:?}")))?
            .map_err(|status| SourceError::Agents(status.to_string()))?;
        Ok(files.into_iter().map(|(name, content)| (name, content.into())).collect())
    }
}
