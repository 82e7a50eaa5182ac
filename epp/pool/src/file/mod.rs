//! Endpoints from a file: no cluster needed.
//!
//! The file is YAML or JSON, as the llm-d router's `file-discovery` reads it, with a few more
//! keys of ours:
//!
//! ```yaml
//! endpoints:
//! - {name: a, namespace: default, address: 10.0.0.7, port: 8000, labels: {zone: north}}
//! - {name: b, address: 10.0.0.8, ports: [8000, 8001]}   # one rank per port
//! objectives: {batch: -1}                               # priority by name
//! rewrites:
//! - name: canary
//!   rules:
//!   - models: [food-review]                             # none: any model
//!     targets: [{model: food-review-v1, weight: 90}, {model: food-review-v2, weight: 10}]
//! appProtocol: http                                     # or kubernetes.io/h2c
//! ```

mod decode;
mod node;
#[cfg(test)]
mod tests;

pub(crate) use decode::view;

use crate::{PoolView, PoolWatch};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Time between two looks at the file, unless configured.
pub const POLL_DEFAULT: Duration = Duration::from_millis(500);

/// Reason for which a file gives no view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's message.
        reason: String,
    },
    /// The file is wrong, in all of these places.
    #[error("{path}: {}", .faults.join("; "))]
    Invalid {
        /// The file.
        path: String,
        /// A line per fault, each with where it is.
        faults: Vec<String>,
    },
}

/// Reads a file once.
///
/// # Errors
///
/// [`FileError`] with everything that is wrong with it.
pub async fn load(path: &Path) -> Result<PoolView, FileError> {
    decode(path, &read(path).await?)
}

/// Follows a file from now on, looking at its content every `poll`; `None` reads it once it can
/// be read, and no more. A file that is missing or wrong leaves what was there.
///
/// Must be called within a Tokio runtime.
pub fn follow(path: &Path, poll: Option<Duration>) -> PoolWatch {
    let (sender, view) = watch::channel(Arc::new(PoolView::default()));
    PoolWatch { view, task: tokio::spawn(run(path.to_owned(), poll, sender)) }
}

async fn run(path: PathBuf, poll: Option<Duration>, view: watch::Sender<Arc<PoolView>>) {
    // What the file last was: content that was judged, or why there was none.
    let mut last = None;
    loop {
        let found = read(&path).await;
        if last.as_ref() != Some(&found) {
            let judged = match &found {
                Ok(content) => decode(&path, content),
                Err(error) => Err(error.clone()),
            };
            let accepted = take(judged, &view);
            if accepted && poll.is_none() {
                return;
            }
            last = Some(found);
        }
        tokio::time::sleep(poll.unwrap_or(POLL_DEFAULT)).await;
    }
}

/// Publishes what a file says, or that it says nothing; whether it was good.
fn take(judged: Result<PoolView, FileError>, view: &watch::Sender<Arc<PoolView>>) -> bool {
    match judged {
        Ok(new) => {
            tracing::info!(endpoints = new.endpoints.len(), "endpoints file read");
            view.send_modify(|known| *known = Arc::new(keeping(new, known)));
            true
        }
        Err(error) => {
            tracing::error!(%error, "endpoints file not read, keeping what is known");
            view.send_modify(|known| {
                let stale_since = known.stale_since.or_else(|| Some(Instant::now()));
                *known = Arc::new(PoolView { stale_since, ..(**known).clone() });
            });
            false
        }
    }
}

/// The new view, with the very same endpoints where they did not change.
fn keeping(mut new: PoolView, known: &PoolView) -> PoolView {
    for endpoint in &mut new.endpoints {
        let at = known.endpoints.binary_search_by_key(&endpoint.worker, |known| known.worker);
        if let Ok(at) = at
            && known.endpoints[at] == *endpoint
        {
            *endpoint = known.endpoints[at].clone();
        }
    }
    new
}

fn decode(path: &Path, content: &[u8]) -> Result<PoolView, FileError> {
    let path = path.display().to_string();
    decode::view(content).map_err(|faults| FileError::Invalid { path, faults })
}

async fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let fault = |reason: String| FileError::Unreadable { path: path.display().to_string(), reason };
    let from = path.to_owned();
    // In one piece: every step of an asynchronous file is a turn of another thread.
    let read = tokio::task::spawn_blocking(move || {
        let mut content = Vec::new();
        // One more byte than allowed tells a file that is too large from one that just fits.
        File::open(from)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map(|_| content)
    });
    let read = read.await.map_err(io::Error::other).flatten();
    let content = read.map_err(|error| fault(error.to_string()))?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(fault(format!("more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(content)
}
