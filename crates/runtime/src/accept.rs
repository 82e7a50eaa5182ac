//! Accepting TCP connections when the system cannot give any more of them.

use crate::log::Occurrences;
use prometheus_client::metrics::counter::Counter;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The wait after the system refused a connection, mostly for want of file descriptors, so that
/// asking again does not take a whole core.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Least time between two log lines about refused connections.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Accepts connections, whatever the system says.
#[derive(Debug)]
pub struct Acceptor {
    tcp: TcpListener,
    errors: Counter,
    unlogged: Occurrences,
    /// No connection is asked for before this moment.
    paused: Option<Instant>,
}

impl Acceptor {
    /// Accepts what comes to `tcp`.
    pub fn new(tcp: TcpListener) -> Self {
        Self { tcp, errors: Counter::default(), unlogged: Occurrences::default(), paused: None }
    }

    /// The address that clients connect to.
    ///
    /// # Errors
    ///
    /// When the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Makes `errors` count the times that the system gave no connection.
    pub fn count_errors(&mut self, errors: Counter) {
        self.errors = errors;
    }

    /// The next connection and its client's address. If the system cannot give one, clients wait in
    /// its queue: the failure is counted, logged once per 10 s, and tried again after a pause.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no connection.
    pub async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            if let Some(until) = self.paused {
                tokio::time::sleep_until(until).await;
                self.paused = None;
            }
            match self.tcp.accept().await {
                Ok((stream, client)) => {
                    // Answers are small writes, and waiting to fill a segment would delay every
                    // token. Only a connection that is gone refuses; reading from it says so.
                    let _ = stream.set_nodelay(true);
                    return (stream, client);
                }
                // A client that is gone already is no reason to let others wait.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    tracing::debug!(%error, "connection not accepted");
                }
                Err(error) => {
                    let now = Instant::now();
                    self.errors.inc();
                    self.paused = Some(now + REFUSED_PAUSE);
                    if let Some(failures) = self.unlogged.note(now.into_std(), LOG_PERIOD) {
                        tracing::warn!(%error, failures, "connections cannot be accepted");
                    }
                }
            }
        }
    }
}
