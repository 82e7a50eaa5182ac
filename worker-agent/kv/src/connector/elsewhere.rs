//! The server where the system has no sockets that keep the borders of messages.

use super::{ConnectorReport, ConnectorSettings};
use std::io;

/// The server that engines connect to, which runs on Linux only.
#[derive(Debug)]
pub struct ConnectorServer(());

impl ConnectorServer {
    /// Refuses.
    ///
    /// # Errors
    ///
    /// Always [`io::ErrorKind::Unsupported`].
    pub fn start(_: ConnectorSettings) -> io::Result<Self> {
        let why = "engines in other processes reach KV tiers on Linux only";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// An empty report: nothing is connected.
    pub fn report(&self) -> ConnectorReport {
        ConnectorReport::default()
    }
}
