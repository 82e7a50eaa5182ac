//! A model's files, and reading them from a folder.

use bytes::Bytes;
use stator_http::{HttpError, TlsError, UrlError};
use stator_model::ModelError;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// Files by their names.
pub(super) type Files = Vec<(String, Bytes)>;

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
