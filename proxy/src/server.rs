//! Accepts connections and hands each request to the [`Service`].

use crate::corked::Corked;
use crate::exchange::Exchange;
use crate::service::Service;
use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::stream::Stream;
use pingora::server::ShutdownWatch;
use stator_runtime::Shutdown;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pause after a failed accept, so that running out of file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Serves `listener` until `shutdown`, then drains: health turns to 503 and new work is refused
/// while running requests finish, for at most the drain timeout.
pub(crate) async fn serve(listener: TcpListener, service: Arc<Service>, shutdown: Shutdown) {
    let (connections_max, drain_timeout) = service.server_limits();
    let edge = Arc::new(Edge { service: service.clone(), shutdown: shutdown.clone() });
    let places = Arc::new(Semaphore::new(connections_max));
    let drained = async {
        shutdown.wait().await;
        service.drain();
        if tokio::time::timeout(drain_timeout, service.idle()).await.is_err() {
            tracing::warn!(running = service.running(), "drain timeout; cutting running requests");
        }
    };
    tokio::pin!(drained);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = &mut drained => break,
        };
        match accepted {
            Ok((stream, place)) => {
                // Ends by itself when the client does, or with the process after the drain.
                tokio::spawn(connection(edge.clone(), stream, shutdown.clone(), place));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Waits for a place, then for a connection: past the limit, clients queue in the kernel.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(
    edge: Arc<Edge>,
    stream: tokio::net::TcpStream,
    shutdown: Shutdown,
    _place: OwnedSemaphorePermit,
) {
    // Events are small writes; waiting to fill a segment would delay every token.
    if stream.set_nodelay(true).is_ok() {
        let stream = Corked::new(Stream::from(stream));
        edge.process_new(Box::new(stream), &shutdown.watch()).await;
    }
}

/// What Pingora calls for each request.
struct Edge {
    service: Arc<Service>,
    shutdown: Shutdown,
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
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_) => {
                Exchange::refuse_malformed(session).await;
                return None;
            }
        }
        let _running = self.service.enter();
        let mut exchange = Exchange::new(session);
        if self.shutdown.is_set() {
            exchange.close_after();
        }
        self.service.handle(&mut exchange).await;
        exchange.finish().await
    }
}
