//! The tasks of a socket: one that accepts connections, and one for each of them.

use crate::Error;
use crate::endpoint::{EndpointListener, Halves};
use crate::seats::{Room, Seat, SeatUsage, room};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, Id, JoinSet};

/// Wait after a connection that the system could not give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves connections until it is dropped.
pub(crate) struct SocketServer {
    endpoint: String,
    task: JoinSet<()>,
}

impl SocketServer {
    /// Listens at `endpoint`; each connection is served by a task of its own, which says what the
    /// connection is good for.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] and [`Error::Io`].
    pub(crate) async fn bind<F>(
        endpoint: &str,
        serve: impl Fn(Halves, Arc<SeatUsage>) -> F + Send + 'static,
    ) -> Result<Self, Error>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (listener, endpoint) = EndpointListener::bind(endpoint).await?;
        let mut task = JoinSet::new();
        let mut door = Door { endpoint: endpoint.clone(), seats: Vec::new(), is_full: false };
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok(halves) => door.admit(halves, &serve, &mut connections),
                        Err(error) => {
                            tracing::warn!(endpoint = door.endpoint, %error, "cannot accept a connection");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    },
                    Some(ended) = connections.join_next_with_id() => match ended {
                        Ok((id, ended)) => {
                            door.left(id);
                            over(&door.endpoint, ended);
                        }
                        // A panic of a task has told of itself.
                        Err(error) => door.left(error.id()),
                    },
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

    /// Address that it is bound or connected to.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Stops listening: afterwards the endpoint may be bound again.
    pub(crate) async fn close(mut self) {
        self.task.shutdown().await;
    }
}

/// The connected peers of a socket.
struct Door {
    endpoint: String,
    seats: Vec<Seat<AbortHandle>>,
    /// Whether somebody had to give way, or was refused, since there was room.
    is_full: bool,
}

impl Door {
    fn admit<F>(
        &mut self,
        halves: Halves,
        serve: &impl Fn(Halves, Arc<SeatUsage>) -> F,
        connections: &mut JoinSet<Result<(), Error>>,
    ) where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let address = halves.address;
        let found = room(&self.seats, address);
        let was_full = std::mem::replace(&mut self.is_full, found != Room::Free);
        if self.is_full && !was_full {
            let (endpoint, open) = (&self.endpoint, self.seats.len());
            tracing::warn!(endpoint, open, ?address, "too many connections: idle ones give way");
        }
        match found {
            Room::Free => {}
            Room::InPlaceOf(place) => self.seats.remove(place).connection.abort(),
            Room::None => return,
        }
        let usage = Arc::new(SeatUsage::default());
        let connection = connections.spawn(serve(halves, usage.clone()));
        self.seats.push(Seat { address, usage, connection });
    }

    fn left(&mut self, id: Id) {
        self.seats.retain(|seat| seat.connection.id() != id);
    }
}

fn over(endpoint: &str, ended: Result<(), Error>) {
    if let Err(error) = ended {
        tracing::debug!(endpoint, %error, "a connection is over");
    }
}
