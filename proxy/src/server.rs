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
use stator_runtime::Shutdown;
use stator_runtime::tls::{Connection, Listener};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
            Self::Standalone(service) => service.server_limits().0,
            Self::Direct { direct, .. } => direct.connections_max(),
        }
    }

    /// Turns to unready, and waits while requests run, but not for ever.
    async fn drain(&self) {
        match self {
            Self::Direct { direct, .. } => direct.drain().await,
            Self::Standalone(service) => {
                service.drain();
                let (_, limit) = service.server_limits();
                if tokio::time::timeout(limit, service.idle()).await.is_err() {
                    let running = service.running();
                    tracing::warn!(running, "drain timeout; cutting running requests");
                }
            }
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

/// Serves `listener` until `shutdown`, then drains.
pub(crate) async fn serve(mut listener: Listener, serving: Arc<Serving>, shutdown: Shutdown) {
    let places = Arc::new(Semaphore::new(serving.connections_max()));
    let edge = Arc::new(Edge { serving: serving.clone(), shutdown: shutdown.clone() });
    let drained = async {
        shutdown.wait().await;
        serving.drain().await;
    };
    tokio::pin!(drained);
    loop {
        tokio::select! {
            Some((connection, place)) = accept(&mut listener, &places) => {
                // Ends by itself when the client does, or with the process after the drain.
                tokio::spawn(serve_connection(edge.clone(), connection, shutdown.clone(), place));
            }
            () = &mut drained => return,
        }
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

async fn serve_connection(
    edge: Arc<Edge>,
    connection: Connection,
    shutdown: Shutdown,
    _place: OwnedSemaphorePermit,
) {
    let stream = Corked::new(Box::new(Wire(connection)));
    edge.process_new(Box::new(stream), &shutdown.watch()).await;
}

/// What Pingora calls for each request.
struct Edge {
    serving: Arc<Serving>,
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
        let mut exchange = Exchange::new(session);
        if self.shutdown.is_set() {
            exchange.close_after();
        }
        self.serving.answer(exchange).await
    }
}
