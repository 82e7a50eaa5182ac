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
use pingora::apps::ReusedHttpStream;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
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

    /// Answers one request.
    async fn answer(&self, exchange: &mut Exchange) {
        // A read of the metrics would show itself, and a model that nobody uses never seem idle.
        let is_counted = !self.is_probe(exchange);
        match self {
            Self::Standalone(service) => {
                let _running = is_counted.then(|| service.enter());
                service.handle(exchange, is_counted).await;
            }
            Self::Sidecar { sidecar, rank } => {
                let _running = is_counted.then(|| sidecar.enter());
                // In place it would take 28 KB of every connection, those of a fleet's proxy too.
                Box::pin(sidecar.handle(exchange, *rank, is_counted)).await;
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
        return edge.serve_http1(Box::new(stream)).await;
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
    // In place it would take 3 KB of the connections over HTTP/1.1 too.
    Box::pin(http2::serve(Box::new(stream), limits, end, &edge.client, answer)).await;
}

/// The serving of one connection.
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

    /// Reads the next request up to its body. False where there is none to answer: the connection
    /// closes.
    ///
    /// # Errors
    ///
    /// The refusal of a head that is malformed or late. The connection closes once the client knows.
    async fn next(&self, session: &mut ServerSession) -> Result<bool, ApiError> {
        // Bytes that arrive early belong to the next request and are no reason to hang up.
        session.set_pipelining_enabled(true);
        // Pingora begins its wait anew with every byte; the connection's own deadlines do not.
        session.set_keepalive(Some(0));
        let Some(connection) = CorkedConnection::of(session) else { return Ok(false) };
        connection.patience().expect_head();
        // False where the client has gone.
        let read = self.while_welcome(session.read_request()).await.unwrap_or(Ok(false));
        let Some(connection) = CorkedConnection::of(session) else { return Ok(false) };
        connection.patience().end_head();
        let expired = connection.patience().expired();
        let is_late = expired.is_some_and(|expired| expired != MissedDeadline::Write);
        match read {
            Ok(false) => return Ok(false),
            Err(_) if is_late => {
                self.serving.door().metrics().late("head");
                Err(ApiError::slow_head(self.serving.door().deadlines(&self.client).head))
            }
            Ok(true) if !head::is_absolute(session.req_header()) => {
                head::check(session.req_header())
            }
            _ if head::settle_target(session) => head::check(session.req_header()),
            _ => Err(ApiError::malformed_http()),
        }
        .map(|()| true)
    }

    /// Answers the requests of a connection over HTTP/1.1, one after the other.
    async fn serve_http1(&self, stream: Stream) {
        let mut session = ServerSession::new_http1(stream);
        loop {
            match self.next(&mut session).await {
                Ok(true) => {}
                Ok(false) => return,
                // In place it would take 4 KB of every connection.
                Err(error) => return Box::pin(Exchange::refuse(session, &error)).await,
            }
            // A connection between two requests has no room for one.
            let Some(reused) = Box::pin(self.answer(session)).await else { return };
            let (stream, settings) = reused.consume();
            session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
        }
    }

    /// Answers a request that was read up to its body.
    async fn answer(&self, session: ServerSession) -> Option<ReusedHttpStream> {
        let mut exchange = Exchange::new(session, self.serving.door().clone(), self.client.clone());
        self.serve(&mut exchange).await;
        exchange.finish().await
    }

    /// Sends an answer, a refusal if need be.
    async fn serve(&self, exchange: &mut Exchange) {
        let refusal = match &self.client.probes_only {
            // A place of the reserve is for probes: anything else would fill the reserve too.
            Some(why) if !self.serving.is_probe(exchange) => {
                Some(format!("no connection is free here: {why}"))
            }
            _ if *self.closed.borrow() => Some("the server is shutting down".to_owned()),
            _ => None,
        };
        if self.client.probes_only.is_some() || self.leaving.is_set() {
            exchange.close_after();
        }
        match refusal {
            Some(why) => exchange.fail(&ApiError::unavailable(why, RETRY_AFTER)).await,
            None => self.serving.answer(exchange).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_bytes<A, F: Future>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// A connection keeps room for the largest state of what serves it, and a request for that of
    /// its answer. Paths that most requests do not take are boxed, so that they cost only those
    /// that do.
    #[test]
    fn no_connection_has_room_for_the_longest_path() {
        let connection = future_bytes(|(edge, stream, handshake): (Edge, TcpStream, Handshake)| {
            serve_connection(edge, stream, handshake)
        });
        let request =
            future_bytes(|(edge, session): (&'static Edge, ServerSession)| edge.answer(session));
        assert!(connection <= 3 << 10, "{connection} bytes a connection");
        assert!(request <= 5 << 10, "{request} bytes a request");
    }
}
