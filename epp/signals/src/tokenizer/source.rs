//! Sources of a model's files.

use super::hub::HubSource;
use bytes::Bytes;
use stator_fleet::{AgentClient, ClientSettings};
use stator_http::{HttpError, TlsError, UrlError};
use stator_model::ModelError;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;

/// The files that say how a model's text becomes tokens.
pub(super) const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
];
/// Largest of them, in bytes.
pub(super) const FILE_BYTES_MAX: usize = 256 << 20;
/// Longest wait for an agent's answer.
const AGENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Files by their names.
pub(super) type Files = Vec<(String, Bytes)>;

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

/// Reason for which there is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file that cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file that is larger than such files are.
    #[error("{path}: {size} bytes, limit {limit}")]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The hub's cache has not the model, and no hub may be asked.
    #[error("{folder} has no tokenizer of {repo:?}, and no hub endpoint is configured")]
    NotCached {
        /// The model on the hub.
        repo: String,
        /// The cache.
        folder: String,
    },
    /// A hub's address or TLS configuration that cannot be used.
    #[error("{0}")]
    Address(String),
    /// The hub did not give a file.
    #[error("{url}: {reason}")]
    Hub {
        /// The file's address.
        url: String,
        /// The reason.
        reason: String,
    },
    /// No agent is there, or none gave the files.
    #[error("no agent gave the model's files: {0}")]
    Agents(String),
    /// The files are not a tokenizer.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Loading them panicked.
    #[error("loading the tokenizer failed: {0}")]
    Crashed(String),
}

impl From<UrlError> for SourceError {
    fn from(error: UrlError) -> Self {
        Self::Address(error.to_string())
    }
}

impl From<TlsError> for SourceError {
    fn from(error: TlsError) -> Self {
        Self::Address(error.to_string())
    }
}

impl SourceError {
    pub(super) fn hub(url: &str, error: &HttpError) -> Self {
        Self::Hub { url: url.into(), reason: error.to_string() }
    }
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

/// Does what reads files where waiting for them delays nobody.
pub(super) async fn blocking<T: Send + 'static>(
    folder: PathBuf,
    work: impl FnOnce(&Path) -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    let done = tokio::task::spawn_blocking(move || work(&folder)).await;
    done.map_err(|error| SourceError::Crashed(error.to_string()))?
}

/// Names, sizes and ages of a folder's files. What cannot be read is as if it were not there:
/// reading it will tell.
pub(super) fn folder_stamp(folder: &Path) -> Result<String, SourceError> {
    let mut stamp = String::new();
    for name in FILES {
        // Follows links, of which caches and mounted volumes are made.
        if let Ok(file) = std::fs::metadata(folder.join(name)) {
            let (ino, size, mtime) = (file.ino(), file.size(), (file.mtime(), file.mtime_nsec()));
            stamp.push_str(&format!("{name} {ino} {size} {mtime:?}\n"));
        }
    }
    Ok(stamp)
}

pub(super) fn read_folder(folder: &Path) -> Result<Files, SourceError> {
    let mut files = Vec::new();
    for name in FILES {
        let path = folder.join(name);
        let fault = |source| SourceError::Io { path: path.display().to_string(), source };
        let size = match std::fs::metadata(&path) {
            Ok(file) => file.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound && name != FILES[0] => continue,
            Err(error) => return Err(fault(error)),
        };
        let limit = FILE_BYTES_MAX as u64;
        if size > limit {
            return Err(SourceError::TooLarge { path: path.display().to_string(), size, limit });
        }
        files.push((name.to_owned(), std::fs::read(&path).map_err(fault)?.into()));
    }
    Ok(files)
}
