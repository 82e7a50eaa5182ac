//! The gRPC service `envoy.service.ext_proc.v3.ExternalProcessor` and the server that offers it.

use super::session::Session;
use super::settings::Settings;
use crate::exchange::Director;
use crate::health::Health;
use futures::Stream;
use http::{HeaderValue, Request, Response, header};
use stator_epp_metrics::Streams;
use stator_runtime::shutdown::Shutdown;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::Connected;

/// The service's name, on the wire and in health checks.
pub const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

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

/// How often an idle connection is asked whether it still lives, and how long it may take to say.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// Answers data planes; a clone answers alike.
pub struct ExtProc<D> {
    director: Arc<D>,
    settings: Arc<Settings>,
    streams: Option<Streams>,
}

impl<D: Director> ExtProc<D> {
    /// A service that asks `director` for every request, and counts streams where somebody wants
    /// them counted.
    pub fn new(director: Arc<D>, settings: Settings, streams: Option<Streams>) -> Self {
        Self { director, settings: Arc::new(settings), streams }
    }

    fn answer(&self, request: Request<Body>) -> Response<Body> {
        if request.uri().path() != PROCESS {
            let method = request.uri().path();
            return Status::unimplemented(format!("no method {method:?}")).into_http();
        }
        let session = Session::new(
            self.director.clone(),
            self.settings.clone(),
            self.streams.as_ref().map(Streams::opened),
            request.into_body(),
        );
        let mut response = Response::new(Body::new(session));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, grpc);
        response
    }
}

impl<D> Clone for ExtProc<D> {
    fn clone(&self) -> Self {
        Self {
            director: self.director.clone(),
            settings: self.settings.clone(),
            streams: self.streams.clone(),
        }
    }
}

impl<D: Director> NamedService for ExtProc<D> {
    const NAME: &'static str = SERVICE;
}

impl<D: Director> tonic::codegen::Service<Request<Body>> for ExtProc<D> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        ready(Ok(self.answer(request)))
    }
}

/// How a server ends.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Set when no new connections and streams are taken any more.
    pub shutdown: Shutdown,
    /// How long open streams may take from then on.
    pub limit: Duration,
}

/// Serves `service`, and health checks beside it, on `incoming` connections until `drain` is set
/// and the streams have ended, or their time is up.
///
/// # Errors
///
/// When accepting fails for good.
pub async fn serve<D, I, C>(
    service: ExtProc<D>,
    health: Health,
    incoming: I,
    drain: Drain,
) -> Result<(), tonic::transport::Error>
where
    D: Director,
    I: Stream<Item = io::Result<C>>,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let streams = service.settings.max_concurrent_streams;
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_MAX_BYTES)
        .max_concurrent_streams(streams)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .add_service(service)
        .add_service(health.service(&drain.shutdown))
        .serve_with_incoming_shutdown(incoming, drain.shutdown.wait());
    tokio::select! {
        ended = server => ended,
        () = overtime(&drain) => {
            tracing::warn!(limit = ?drain.limit, "streams cut off after the drain limit");
            Ok(())
        }
    }
}

async fn overtime(drain: &Drain) {
    drain.shutdown.wait().await;
    tokio::time::sleep(drain.limit).await;
}
