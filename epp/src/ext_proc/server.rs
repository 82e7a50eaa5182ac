//! Connections of data planes, from their acceptance to the end of the last stream.

use super::connection::{ConnectionTask, OpenedStreams};
use super::service::ExtProc;
use crate::exchange::Director;
use crate::health::{Health, HealthService};
use futures::future::{BoxFuture, Either};
use futures::{Stream, StreamExt};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use stator_runtime::shutdown::Shutdown;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::server::NamedService;

/// Window of one stream, in bytes: a body of this size comes without waiting for us.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Window of a connection, in bytes. It bounds what comes unread over all its streams.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Largest frame of HTTP/2, in bytes: a chunk of a body and what is around it fit.
const FRAME_MAX_BYTES: u32 = 128 << 10;

/// Streams that may be reset before we look at them. When a data plane's clients hang up together
/// it resets that many at once; past the limit the connection ends with all its streams, and the
/// usual one of 20 is there for strangers.
const RESETS_MAX: usize = 4096;

/// Time after which an idle connection is asked whether it still lives, and the longest wait for
/// its answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Settings for the end of a server.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Set when no new connections and streams are taken any more.
    pub shutdown: Shutdown,
    /// Time that open streams may take from then on.
    pub limit: Duration,
}

/// Serves `service`, and health checks beside it, on `incoming` connections until `drain` is set
/// and the streams have ended, or their time is up.
pub async fn serve<D, I, C>(service: ExtProc<D>, health: Health, incoming: I, drain: Drain)
where
    D: Director,
    I: Stream<Item = io::Result<C>>,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let offered = Offered { health: health.service(&drain.shutdown), service };
    let mut connections = JoinSet::new();
    accept(&offered, incoming, &drain.shutdown, &mut connections).await;
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = ended => {}
        () = overtime(&drain) => {
            tracing::warn!(limit = ?drain.limit, "streams cut off after the drain limit");
        }
    }
}

/// Starts a task for each connection until `shutdown`. The listener is closed then, so that data
/// planes connect elsewhere.
async fn accept<D, I, C>(
    offered: &Offered<D>,
    incoming: I,
    shutdown: &Shutdown,
    connections: &mut JoinSet<()>,
) where
    D: Director,
    I: Stream<Item = io::Result<C>>,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut incoming = pin!(incoming);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            // Ended connections leave at once, or the set would grow without end.
            Some(_) = connections.join_next() => {}
            next = incoming.next() => match next {
                Some(Ok(io)) => {
                    let offered = offered.of_connection();
                    connections.spawn(serve_connection(offered, io, shutdown.clone()));
                }
                Some(Err(error)) => tracing::debug!(%error, "a connection was not accepted"),
                None => return,
            },
        }
    }
}

async fn serve_connection<D, C>(offered: Offered<D>, io: C, shutdown: Shutdown)
where
    D: Director,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let opened = OpenedStreams::default();
    let connection = Builder::new(opened.clone())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_MAX_BYTES)
        .max_concurrent_streams(offered.service.max_concurrent_streams())
        .max_pending_accept_reset_streams(RESETS_MAX)
        // A stream that ends here first is reset, as HTTP/2 has it: every answer may be one. The
        // usual limit is for the whole life of a connection.
        .max_local_error_reset_streams(None)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        // Nobody reads the date of an answer to a data plane.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), offered);
    let mut connection = ConnectionTask::new(connection, opened);
    let ended = tokio::select! {
        biased;
        ended = &mut connection => ended,
        () = shutdown.wait() => {
            connection.inner().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection failed");
    }
}

async fn overtime(drain: &Drain) {
    drain.shutdown.wait().await;
    tokio::time::sleep(drain.limit).await;
}

/// The services of one port.
struct Offered<D> {
    service: ExtProc<D>,
    health: HealthService,
}

impl<D: Director> Offered<D> {
    /// The services of one more connection.
    fn of_connection(&self) -> Self {
        Self { service: self.service.of_connection(), health: self.health.clone() }
    }
}

type Answer = Result<Response<Body>, Infallible>;

impl<D: Director> hyper::service::Service<Request<Incoming>> for Offered<D> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, BoxFuture<'static, Answer>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let request = request.map(Body::new);
        match asks(request.uri().path(), HealthService::NAME) {
            true => Either::Right(self.health.clone().call(request)),
            false => Either::Left(ready(Ok(self.service.answer(request)))),
        }
    }
}

/// Whether a path names a method of a service.
fn asks(path: &str, service: &str) -> bool {
    path.strip_prefix('/')
        .and_then(|path| path.strip_prefix(service))
        .is_some_and(|rest| rest.starts_with('/'))
}
