//! The tasks of a socket: one that accepts connections, and one for each of them.

use crate::Error;
use crate::endpoint::{Halves, Listener};
use std::time::Duration;
use tokio::task::JoinSet;

/// Connections at a time; those beyond are closed at once.
const CONNECTIONS_MAX: usize = 1024;
/// Wait after a connection that the system could not give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves connections until it is dropped.
pub(crate) struct Server {
    endpoint: String,
    task: JoinSet<()>,
}

impl Server {
    /// Listens at `endpoint`; each connection is served by a task of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] and [`Error::Io`].
    pub(crate) async fn bind<F>(
        endpoint: &str,
        serve: impl Fn(Halves) -> F + Send + 'static,
    ) -> Result<Self, Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (listener, endpoint) = Listener::bind(endpoint).await?;
        let mut task = JoinSet::new();
        let at = endpoint.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    Some(ended) = connections.join_next() => {
                        // A panic of a task has told of itself.
                        if let Ok(ended) = ended {
                            over(&at, ended);
                        }
                        continue;
                    }
                };
                match accepted {
                    Ok(_) if connections.len() >= CONNECTIONS_MAX => {
                        let limit = CONNECTIONS_MAX;
                        tracing::warn!(endpoint = at, limit, "too many connections");
                    }
                    Ok(halves) => {
                        connections.spawn(serve(halves));
                    }
                    Err(error) => {
                        tracing::warn!(endpoint = at, %error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        Ok(Self { endpoint, task })
    }

    /// Serves one connection, which was made to `endpoint`.
    pub(crate) fn connected(
        endpoint: &str,
        served: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Self {
        let (at, mut task) = (endpoint.to_owned(), JoinSet::new());
        task.spawn(async move { over(&at, served.await) });
        Self { endpoint: endpoint.to_owned(), task }
    }

    /// Where it is bound or connected to.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Stops listening: afterwards the endpoint may be bound again.
    pub(crate) async fn close(mut self) {
        self.task.shutdown().await;
    }
}

fn over(endpoint: &str, ended: Result<(), Error>) {
    if let Err(error) = ended {
        tracing::debug!(endpoint, %error, "a connection is over");
    }
}
