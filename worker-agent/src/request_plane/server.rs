//! The request plane: the gRPC services of an agent, on one port or socket.

use crate::config;
use crate::events;
use crate::operations;
use crate::operations::access::Access;
use crate::request_plane::listen::Listener;
use crate::request_plane::service::{Agent, Service};
use stator_protos::worker::events_server::EventsServer;
use stator_protos::worker::operations_server::OperationsServer;
use stator_protos::worker::worker_server::WorkerServer;
use stator_runtime::Shutdown;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::wrappers::UnixListenerStream;

/// Largest message from a client: a prompt of a million tokens has less than a third.
const MAX_INPUT_BYTES: usize = 16 << 20;
/// HTTP/2 flow-control window.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
/// Pause between probes of a silent client, and the client's time to answer one.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The services of the request plane.
pub(crate) struct Services {
    worker: Service,
    events: events::serve::Service,
    operations: operations::Service,
}

impl Services {
    /// Makes the services of this agent, for clients with `access`.
    pub(crate) fn new(
        agent: Arc<Agent>,
        events: events::serve::Service,
        operated: operations::Operated,
        access: &config::Access,
    ) -> Self {
        Self {
            worker: Service(agent),
            events,
            operations: operations::Service {
                operated,
                access: Access::new(access.operators.clone()),
            },
        }
    }
}

/// Serves the request plane until `ended`.
pub(crate) async fn serve(listener: Listener, services: Services, ended: Shutdown) {
    let service = WorkerServer::new(services.worker).max_decoding_message_size(MAX_INPUT_BYTES);
    let router = tonic::transport::Server::builder()
        // One stream carries everything of a client: its window is the connection's, and large
        // enough that a burst of long prompts is not cut into round trips.
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(service)
        .add_service(EventsServer::new(services.events))
        .add_service(OperationsServer::new(services.operations));
    let served = match listener {
        Listener::Tcp(listener) => {
            let incoming = listener.incoming();
            router.serve_with_incoming_shutdown(incoming, async move { ended.wait().await }).await
        }
        Listener::Unix(listener) => {
            let incoming = UnixListenerStream::new(listener);
            router.serve_with_incoming_shutdown(incoming, async move { ended.wait().await }).await
        }
    };
    if let Err(error) = served {
        tracing::error!(%error, "the request plane failed");
    }
}
