//! Accepts connections and hands each request to what is served.

use crate::corked::Corked;
use crate::direct::Direct;
use crate::exchange::Exchange;
use crate::service::Service;
use crate::wire::Wire;
use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use stator_model::openai::ApiError;
use stator_runtime::Shutdown;
use stator_runtime::tls::{Connection, Listener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

/// Time that every connection has, once the listener closes, to bring the request that was already
/// on its way; that request is refused in words, and the connection then closes.
const LAST_REQUEST: Duration = Duration::from_millis(500);
/// When a client should come back that asked a proxy on its way out: another one is there at once.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How a proxy ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// Time for which the proxy takes requests after it has said that it is not ready.
    pub lame_duck: Duration,
    /// Longest time for which requests may then run on.
    pub drain_timeout: Duration,
}

/// What answers the requests of a listener.
pub(crate) enum Serving {
    /// An API over a fleet of workers.
    Standalone(Box<Service>),
    /// The engine beside this proxy.
    Direct {
        /// Shared by the listeners of all its ranks.
        direct: Arc<Direct>,
        /// The rank that this listener is for.
        rank: usize,
    },
}

impl Serving {
    /// Most connections at once.
    fn connections_max(&self) -> usize {
        match self {
            Self::Standalone(service) => service.connections_max(),
            Self::Direct { direct, .. } => direct.connections_max(),
        }
    }

    fn ending(&self) -> Ending {
        match self {
            Self::Standalone(service) => service.ending(),
            Self::Direct { direct, .. } => direct.ending(),
        }
    }

    /// Requests that run now.
    fn running(&self) -> i64 {
        match self {
            Self::Standalone(service) => service.running(),
            Self::Direct { direct, .. } => direct.running(),
        }
    }

    /// Says for good that no more requests are wanted; those that come are still answered.
    fn leave(&self) {
        match self {
            Self::Standalone(service) => service.readiness().close(),
            Self::Direct { direct, .. } => direct.readiness().close(),
        }
    }

    /// Answers one request; gives the connection back where it can be used again.
    async fn answer(&self, mut exchange: Exchange) -> Option<ReusedHttpStream> {
        match self {
            Self::Standalone(service) => {
                let _running = service.enter();
                service.handle(&mut exchange).await;
                exchange.finish().await
            }
            Self::Direct { direct, rank } => {
                let _running = direct.enter();
                direct.handle(&mut exchange, *rank).await;
                exchange.finish().await
            }
        }
    }
}

/// Serves `listener` until `shutdown`, then ends in three steps: the proxy is not ready, and takes
/// requests while load balancers notice; it closes the listener and refuses further requests; the
/// running ones finish, or are cut off when the drain timeout is over.
pub(crate) async fn serve(mut listener: Listener, serving: Arc<Serving>, shutdown: Shutdown) {
    let places = Arc::new(Semaphore::new(serving.connections_max()));
    let (closing, closed) = watch::channel(false);
    let edge = Arc::new(Edge { serving: serving.clone(), leaving: shutdown.clone(), closed });
    // Ends by itself when the client does, or with the process after the drain.
    let spawn =
        |(connection, place)| tokio::spawn(serve_connection(edge.clone(), connection, place));
    let ending = serving.ending();
    let lame_duck = async {
        shutdown.wait().await;
        serving.leave();
        let (running, lame_duck_ms) = (serving.running(), ending.lame_duck.as_millis());
        tracing::info!(running, lame_duck_ms, "not ready any more");
        tokio::time::sleep(ending.lame_duck).await;
    };
    tokio::pin!(lame_duck);
    loop {
        tokio::select! {
            Some(accepted) = accept(&mut listener, &places) => drop(spawn(accepted)),
            () = &mut lame_duck => break,
        }
    }
    // Their clients are connected already, and would see a reset.
    while let Ok(Some(accepted)) = timeout(Duration::ZERO, accept(&mut listener, &places)).await {
        spawn(accepted);
        // A task that never yields would find the listener empty before it is.
        tokio::task::yield_now().await;
    }
    drop(listener);
    tracing::info!(running = serving.running(), "draining");
    closing.send_replace(true);
    drop(edge);
    // Each connection holds the edge, and with it the other end of this channel.
    if timeout(ending.drain_timeout, closing.closed()).await.is_err() {
        let running = serving.running();
        tracing::warn!(running, "drain timeout; cutting running requests");
    }
}

/// Waits for a place, then for a connection: past the limit, clients queue in the kernel.
async fn accept(
    listener: &mut Listener,
    places: &Arc<Semaphore>,
) -> Option<(Connection, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    // It sets the connection to send at once: events are small writes, and waiting to fill a
    // segment would delay every token.
    Some((listener.accept().await, place))
}

async fn serve_connection(edge: Arc<Edge>, connection: Connection, _place: OwnedSemaphorePermit) {
    let stream = Corked::new(Box::new(Wire(connection)));
    edge.process_new(Box::new(stream), &edge.leaving.watch()).await;
}

/// What Pingora calls for each request.
struct Edge {
    serving: Arc<Serving>,
    /// Set when clients should use another proxy: their connections close after an answer.
    leaving: Shutdown,
    /// True once the listener is closed and requests are refused.
    closed: watch::Receiver<bool>,
}

impl Edge {
    /// Reads the head of the next request; false where none comes, because the client has gone or
    /// the proxy ends.
    async fn read_head(&self, session: &mut ServerSession) -> pingora::Result<bool> {
        let mut closed = self.closed.clone();
        let closing = async { drop(closed.wait_for(|closed| *closed).await) };
        let reading = session.read_request();
        tokio::pin!(reading);
        tokio::select! {
            biased;
            read = &mut reading => read,
            () = closing => timeout(LAST_REQUEST, reading).await.unwrap_or(Ok(false)),
        }
    }
}

#[async_trait]
impl HttpServerApp for Edge {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        _: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        // Bytes that arrive early belong to the next request and are no reason to hang up.
        session.set_pipelining_enabled(true);
        match self.read_head(&mut session).await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_) => {
                Exchange::refuse_malformed(session).await;
                return None;
            }
        }
        let mut exchange = Exchange::new(session);
        if self.leaving.is_set() {
            exchange.close_after();
        }
        if *self.closed.borrow() {
            let refusal = ApiError::unavailable("the server is shutting down", RETRY_AFTER);
            exchange.fail(&refusal).await;
            return exchange.finish().await;
        }
        self.serving.answer(exchange).await
    }
}
