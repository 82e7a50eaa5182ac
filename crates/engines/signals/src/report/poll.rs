//! Poller of an engine's metrics page.

use super::{Engine, EngineReport, read};
use stator_http::{Bearer, Connection, HttpError, Origin};
use std::time::Duration;

/// Settings for fetching pages.
#[derive(Clone, Debug)]
pub struct PollSettings {
    /// Longest wait for a page, 1 s by default.
    pub timeout: Duration,
    /// Largest page, in bytes; 8 MiB by default.
    pub page_bytes_max: usize,
    /// The engine's key; none by default.
    pub bearer: Option<Bearer>,
}

impl Default for PollSettings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(1), page_bytes_max: 8 << 20, bearer: None }
    }
}

/// Reason why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PollError {
    /// The request failed.
    #[error(transparent)]
    Fetch(#[from] HttpError),
    /// The answer has another status than 200.
    #[error("status {0}, not 200")]
    Status(u16),
    /// The answer did not come in time.
    #[error("no page within {0:?}")]
    Timeout(Duration),
}

/// Reads the pages of one engine, over one kept connection into one buffer.
pub struct Poller {
    engine: Engine,
    settings: PollSettings,
    connection: Connection,
    request: Vec<u8>,
    reports: Vec<EngineReport>,
}

/// A page, valid until the next poll.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Report of each rank.
    pub reports: &'a [EngineReport],
    /// The raw page, with the engine's own names.
    pub text: &'a [u8],
}

impl Poller {
    /// Makes a poller that has asked nothing yet; the page is at `target`, a path with its query.
    pub fn new(engine: Engine, origin: Origin, target: &str, settings: PollSettings) -> Self {
        let bearer = settings.bearer.as_ref();
        let request = stator_http::request("GET", &origin, target, bearer, None);
        let (connection, reports) = (Connection::new(origin), Vec::new());
        Self { engine, settings, connection, request, reports }
    }

    /// Fetches a page and reads it.
    ///
    /// # Errors
    ///
    /// [`PollError`]; the next call reconnects if need be.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, and nothing else happens.
    pub async fn poll(&mut self) -> Result<Page<'_>, PollError> {
        let Self { engine, settings, connection, request, reports } = self;
        let PollSettings { timeout, page_bytes_max, .. } = *settings;
        let exchange = connection.exchange(request, page_bytes_max);
        let response = match tokio::time::timeout(timeout, exchange).await {
            Ok(response) => response?,
            Err(_) => return Err(PollError::Timeout(timeout)),
        };
        if response.status != 200 {
            return Err(PollError::Status(response.status));
        }
        read(*engine, response.body, reports);
        Ok(Page { reports, text: response.body })
    }
}
