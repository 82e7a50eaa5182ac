//! Models in the cache that hub clients keep on a machine, or on the hub itself.
//!
//! Source: the cache layout and the `resolve` addresses of Hugging Face Hub.

use super::files::{
    FILE_BYTES_MAX, FILES, Files, SourceError, blocking, folder_stamp, read_folder,
};
use stator_http::{Connection, TlsOptions, Url};
use std::path::PathBuf;
use std::time::Duration;

/// Redirections that are followed for one file.
const REDIRECTIONS_MAX: usize = 5;
/// Longest wait for one file.
const FILE_TIMEOUT: Duration = Duration::from_secs(120);

/// A model as a hub names it.
#[derive(Clone, Debug)]
pub struct HubSource {
    /// The cache: `$HF_HOME/hub`, which has folders like `models--org--name`.
    pub cache: PathBuf,
    /// The model, `org/name`.
    pub repo: String,
    /// Branch, tag or commit; `main` in most cases.
    pub revision: String,
    /// The hub to ask for what is not in the cache, like `https://hub.example`; `None` asks
    /// nobody. What it gives is kept in memory alone, and not asked for again.
    pub endpoint: Option<String>,
    /// Trusted authorities.
    pub tls: TlsOptions,
}

impl HubSource {
    /// The folder with the revision's files, if the cache has it.
    fn snapshot(&self) -> Option<PathBuf> {
        let inside = |part: &str| !part.split('/').any(|step| step.is_empty() || step == "..");
        if !inside(&self.repo) || !inside(&self.revision) {
            return None;
        }
        let model = self.cache.join(format!("models--{}", self.repo.replace('/', "--")));
        let commit = std::fs::read_to_string(model.join("refs").join(&self.revision));
        let commit = commit.map(|commit| commit.trim().to_owned());
        let commit = commit.ok().filter(|commit| inside(commit));
        let folder = model.join("snapshots").join(commit.as_ref().unwrap_or(&self.revision));
        folder.join(FILES[0]).exists().then_some(folder)
    }

    /// Changes with the cache. Reads files.
    pub(super) fn stamp(&self) -> String {
        match self.snapshot() {
            Some(folder) => {
                let stamp = folder_stamp(&folder).unwrap_or_default();
                format!("{}\n{stamp}", folder.display())
            }
            None => "not cached".into(),
        }
    }

    pub(super) async fn files(&self) -> Result<Files, SourceError> {
        let hub = self.clone();
        let cached = blocking(PathBuf::new(), move |_| Ok(hub.snapshot())).await?;
        match (cached, &self.endpoint) {
            (Some(folder), _) => blocking(folder, read_folder).await,
            (None, Some(endpoint)) => self.download(endpoint).await,
            (None, None) => Err(SourceError::NotCached {
                repo: self.repo.clone(),
                folder: self.cache.display().to_string(),
            }),
        }
    }

    async fn download(&self, endpoint: &str) -> Result<Files, SourceError> {
        let mut files = Vec::new();
        for name in FILES {
            let Self { repo, revision, .. } = self;
            let url =
                format!("{}/{repo}/resolve/{revision}/{name}", endpoint.trim_end_matches('/'));
            let file = match tokio::time::timeout(FILE_TIMEOUT, self.file(&url)).await {
                Ok(file) => file?,
                Err(_) => {
                    let reason = format!("not complete within {FILE_TIMEOUT:?}");
                    return Err(SourceError::Hub { url, reason });
                }
            };
            match file {
                Some(content) => files.push((name.to_owned(), content.into())),
                None if name == FILES[0] => {
                    return Err(SourceError::Hub { url, reason: "not there".into() });
                }
                None => {}
            }
        }
        Ok(files)
    }

    /// One file; `None` if there is none.
    async fn file(&self, address: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let mut url = Url::parse(address)?;
        for _ in 0..=REDIRECTIONS_MAX {
            let origin = url.origin(&self.tls)?;
            let request = stator_http::request("GET", &origin, &url.target, None, None);
            let mut connection = Connection::new(origin);
            let response = connection.exchange(&request, FILE_BYTES_MAX).await;
            let response = response.map_err(|error| SourceError::hub(address, &error))?;
            match (response.status, response.location) {
                (200, _) => return Ok(Some(response.body.to_vec())),
                (404, _) => return Ok(None),
                (301 | 302 | 303 | 307 | 308, Some(location)) => url = url.join(location)?,
                (status, _) => {
                    let reason = format!("status {status}");
                    return Err(SourceError::Hub { url: address.into(), reason });
                }
            }
        }
        let reason = format!("more than {REDIRECTIONS_MAX} redirections");
        Err(SourceError::Hub { url: address.into(), reason })
    }
}
