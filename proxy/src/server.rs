//! Accepts connections and hands each request to what is served.

use crate::corked::CorkedConnection;
use crate::deadlines::MissedDeadline;
use crate::door::{Door, Visitor};
use crate::ending::Ending;
use crate::exchange::Exchange;
use crate::head;
use crate::http2::{self, ConnectionLimits, EndOfService};
use crate::sidecar::Sidecar;
use crate::standalone::service::Service;
use crate::wire::{Silence, Wire};
use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use stator_api::openai::ApiError;
use stator_runtime::Shutdown;
use stator_runtime::tls::{Handshake, Listener};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// Time that every connection has, once the listener closes, to bring the request that was already
/// on its way; that request is refused in words, and the connection then closes.
const LAST_REQUEST: Duration = Duration::from_millis(500);
/// Wait that a client is asked for by a proxy without a free place, or on its way out: another
/// proxy is there at once.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Service that answers the requests of a listener.
pub(crate) enum Serving {
    /// An API over a fleet of workers.
    Standalone(Arc<Service>),
    /// The engine beside this proxy.
    Sidecar {
        /// Shared by the listeners of all its ranks.
        sidecar: Arc<Sidecar>,
        /// The rank that this listener is for.
        rank: usize,
    },
}

impl Serving {
    fn door(&self) -> &Arc<Door> {
        match self {
            Self::Standalone(service) => service.door(),
            Self::Sidecar { sidecar, .. } => sidecar.door(),
        }
    }

    /// Whether a request is a probe's, which is answered when no place is free too.
    fn is_probe(&self, exchange: &Exchange) -> bool {
        match self {
            Self::Standalone(_) => Service::is_probe(exchange),
            Self::Sidecar { .. } => Sidecar::is_probe(exchange),
        }
    }

    fn ending(&self) -> Ending {
        match self {
            Self::Standalone(service) => service.ending(),
            Self::Sidecar { sidecar, .. } => sidecar.ending(),
        }
    }

    /// Requests that run now.
    fn running(&self) -> i64 {
        match self {
            Self::Standalone(service) => service.running(),
            Self::Sidecar { sidecar, .. } => sidecar.running(),
        }
    }

    /// Says for good that no more requests are wanted; those that come are still answered.
    fn leave(&self) {
        match self {
            Self::Standalone(service) => service.readiness().close(),
            Self::Sidecar { sidecar, .. } => sidecar.readiness().close(),
        }
    }

    /// Answers one request; gives the connection back where it can be used again.
    async fn answer(&self, mut exchange: Exchange) -> Option<ReusedHttpStream> {
        // A read of the metrics would show itself, and a model that nobody uses never seem idle.
        let is_counted = !self.is_probe(&exchange);
        match self {
            Self::Standalone(service) => {
                let _running = is_counted.then(|| service.enter());
                service.handle(&mut exchange, is_counted).await;
                exchange.finish().await
            }
            Self::Sidecar { sidecar, rank } => {
                let _running = is_counted.then(|| sidecar.enter());
                // In place it would take 28 KB of every connection, those of a fleet's proxy too.
                Box::pin(sidecar.handle(&mut exchange, *rank, is_counted)).await;
                exchange.finish().await
            }
        }
    }
}

/// Serves `listener` until `shutdown`, then ends in three steps: the proxy is not ready, and takes
/// requests while load balancers notice; it closes the listener and refuses further requests; the
/// running ones finish, or are cut off when the drain timeout is over.
pub(crate) async fn serve(mut listener: Listener, serving: Arc<Serving>, shutdown: Shutdown) {
    let (closing, closed) = watch::channel(false);
    let handshake = listener.handshake();
    let enter = |(stream, address): (TcpStream, SocketAddr)| {
        // Whoever finds no place is hung up on, and nobody waits behind.
        let Some(client) = serving.door().enter(address.ip()) else { return };
        let (serving, leaving, closed) = (serving.clone(), shutdown.clone(), closed.clone());
        let edge = Edge { serving, leaving, closed, client: Arc::new(client) };
        // Ends by itself when the client does, or with the process after the drain.
        tokio::spawn(serve_connection(edge, stream, handshake.clone()));
    };
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
            accepted = listener.accept_tcp() => enter(accepted),
            () = &mut lame_duck => break,
        }
    }
    // Their clients are connected already, and would see a reset.
    while let Ok(accepted) = timeout(Duration::ZERO, listener.accept_tcp()).await {
        enter(accepted);
        // A task that never yields would find the listener empty before it is.
        tokio::task::yield_now().await;
    }
    drop(listener);
    // Before the word of it: whoever reads that may rely on refusals.
    closing.send_replace(true);
    tracing::info!(running = serving.running(), "draining");
    drop(closed);
    // Each connection holds the other end of this channel.
    if timeout(ending.drain_timeout, closing.closed()).await.is_err() {
        let running = serving.running();
        tracing::warn!(running, "drain timeout; cutting running requests");
    }
}

async fn serve_connection(edge: Edge, stream: TcpStream, handshake: Handshake) {
    let door = edge.serving.door().clone();
    let limit = door.handshake_limit(&edge.client);
    let Some(connection) = handshake.run(stream, limit).await else {
        door.metrics().late("handshake");
        return;
    };
    let deadlines = door.deadlines(&edge.client);
    let opening = Wire::open(connection, deadlines.idle, deadlines.head);
    let wire = match edge.while_welcome(opening).await {
        Some(Ok(wire)) => wire,
        Some(Err(Silence::Preface)) => return door.metrics().late("head"),
        Some(Err(Silence::Nothing)) | None => return,
    };
    let is_http2 = wire.is_http2();
    let stream = CorkedConnection::new(Box::new(wire), deadlines);
    let edge = Arc::new(edge);
    if !is_http2 {
        let watch = edge.leaving.watch();
        edge.process_new(Box::new(stream), &watch).await;
        return;
    }
    let limits = ConnectionLimits {
        streams: door.streams_max(),
        header_bytes: door.limits().header_bytes,
        idle: deadlines.idle,
        last_request: LAST_REQUEST,
    };
    let end = EndOfService { leaving: edge.leaving.clone(), closed: edge.closed.clone() };
    let answer = |session| {
        let edge = edge.clone();
        async move { drop(edge.answer(session).await) }
    };
    http2::serve(Box::new(stream), limits, end, &edge.client, answer).await;
}

/// The application that Pingora calls for each request of one connection.
struct Edge {
    serving: Arc<Serving>,
    /// Set when clients should use another proxy: their connections close after an answer.
    leaving: Shutdown,
    /// True once the listener is closed and requests are refused.
    closed: watch::Receiver<bool>,
    client: Arc<Visitor>,
}

impl Edge {
    /// Waits for something of a client; `None` where it has not come and the proxy ends.
    async fn while_welcome<T>(&self, reading: impl Future<Output = T>) -> Option<T> {
        let mut closed = self.closed.clone();
        let closing = async { drop(closed.wait_for(|closed| *closed).await) };
        tokio::pin!(reading);
        tokio::select! {
            biased;
            read = &mut reading => Some(read),
            () = closing => timeout(LAST_REQUEST, reading).await.ok(),
        }
    }

    /// Reads the next request up to its body. `None` where there is none to answer: the connection
    /// closes, and a client that sent a head that is none knows why.
    async fn next(&self, mut session: ServerSession) -> Option<ServerSession> {
        // Bytes that arrive early belong to the next request and are no reason to hang up.
        session.set_pipelining_enabled(true);
        // Pingora begins its wait anew with every byte; the connection's own deadlines do not.
        session.set_keepalive(Some(0));
        CorkedConnection::of(&session)?.patience().expect_head();
        // False where the client has gone.
        let read = self.while_welcome(session.read_request()).await.unwrap_or(Ok(false));
        let patience = CorkedConnection::of(&session)?.patience();
        patience.end_head();
        let is_late = patience.expired().is_some_and(|expired| expired != MissedDeadline::Write);
        let checked = match read {
            Ok(false) => return None,
            Err(_) if is_late => {
                self.serving.door().metrics().late("head");
                Err(ApiError::slow_head(self.serving.door().deadlines(&self.client).head))
            }
            Ok(true) if !head::is_absolute(session.req_header()) => {
                head::check(session.req_header())
            }
            _ if head::settle_target(&mut session) => head::check(session.req_header()),
            _ => Err(ApiError::malformed_http()),
        };
        if let Err(error) = checked {
            Exchange::refuse(session, &error).await;
            return None;
        }
        Some(session)
    }
}

#[async_trait]
impl HttpServerApp for Edge {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        _: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let session = self.next(session).await?;
        self.answer(session).await
    }
}

impl Edge {
    /// Answers a request that was read up to its body.
    async fn answer(&self, session: ServerSession) -> Option<ReusedHttpStream> {
        let mut exchange = Exchange::new(session, self.serving.door().clone(), self.client.clone());
        // A place of the reserve is for probes: anything else would fill the reserve too.
        if let Some(why) = &self.client.probes_only {
            exchange.close_after();
            if !self.serving.is_probe(&exchange) {
                let message = format!("no connection is free here: {why}");
                exchange.fail(&ApiError::unavailable(message, RETRY_AFTER)).await;
                return exchange.finish().await;
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn future_bytes<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Every connection keeps room for the largest state of its request's future, however idle it
    /// is. Paths that most requests do not take are boxed, so that they cost only those that do.
    #[test]
    fn a_connection_has_no_room_for_the_longest_path() {
        let answer = |(serving, exchange): (&'static Serving, Exchange)| serving.answer(exchange);
        let bytes = future_bytes(answer);
        assert!(bytes <= 8 << 10, "{bytes} bytes");
    }
}
