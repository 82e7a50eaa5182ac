//! Asks an engine for its page.

use super::{Engine, EngineReport, read};
use crate::fetch::{self, Bearer, Connection, FetchError, Origin};
use std::time::Duration;

/// How pages are asked for.
#[derive(Clone, Debug)]
pub struct PollSettings {
    /// Longest wait for a page, 1 s by default.
    pub timeout: Duration,
    /// Largest page, in bytes; 8 MiB by default.
    pub page_bytes_max: usize,
    /// What the engine asks for; nothing by default.
    pub bearer: Option<Bearer>,
}

impl Default for PollSettings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(1), page_bytes_max: 8 << 20, bearer: None }
    }
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PollError {
    /// The engine could not be asked.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It answered with something else.
    #[error("status {0}, not 200")]
    Status(u16),
    /// It did not answer.
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

/// A page, until the next is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// What it tells of each rank.
    pub reports: &'a [EngineReport],
    /// The page as it came, with the engine's own names.
    pub text: &'a [u8],
}

impl Poller {
    /// A poller that has asked nothing yet; the page is at `target`, a path with its query.
    pub fn new(engine: Engine, origin: Origin, target: &str, settings: PollSettings) -> Self {
        let bearer = settings.bearer.as_ref();
        let request = fetch::request_as(bearer, &origin, ("GET", target), None);
        let (connection, reports) = (Connection::new(origin), Vec::new());
        Self { engine, settings, connection, request, reports }
    }

    /// Asks for a page and reads it.
    ///
    /// # Errors
    ///
    /// [`PollError`]; the next call makes a new connection if need be.
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
