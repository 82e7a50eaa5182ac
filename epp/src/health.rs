//! gRPC health checks, `grpc.health.v1`: whether the process lives, and whether it is ready.
//!
//! Envoy asks for the ext-proc service on the ext-proc port, Kubernetes for `liveness` and
//! `readiness` on a port of its own.
//!
//! Source: `grpc/health/v1/health.proto` of gRPC, written out here because the library at hand
//! has no `List`; service names of the llm-d router, and `inference-extension` of Dynamo.

mod service;
#[cfg(test)]
mod tests;

pub use service::{HealthListRequest, HealthListResponse, HealthService};

use futures::Stream;
use stator_runtime::shutdown::Shutdown;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::Connected;

/// The name that is healthy as long as the process answers.
const LIVENESS: &str = "liveness";

/// The names that are healthy while the process is ready. The empty one is the server as a whole.
const READINESS: [&str; 4] = ["", "readiness", crate::ext_proc::SERVICE, "inference-extension"];

/// What health checks are answered from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    ready: watch::Receiver<bool>,
}

impl Health {
    /// Ready while `ready` holds true. Its sender should outlive the server: once it is gone,
    /// readiness stays as it was.
    pub fn new(ready: watch::Receiver<bool>) -> Self {
        Self { ready }
    }

    /// The gRPC service of a server that ends with `until`; so do its watches.
    pub fn service(&self, until: &Shutdown) -> HealthService {
        HealthService::new(self.clone(), until.clone())
    }

    /// Serves health checks alone on `incoming` connections until `shutdown`.
    ///
    /// # Errors
    ///
    /// When accepting fails for good.
    pub async fn serve<I, C>(
        &self,
        incoming: I,
        shutdown: &Shutdown,
    ) -> Result<(), tonic::transport::Error>
    where
        I: Stream<Item = io::Result<C>>,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let server = Server::builder().add_service(self.service(shutdown));
        server.serve_with_incoming_shutdown(incoming, shutdown.wait()).await
    }

    /// Whether a name is healthy; `None` for one that nobody knows.
    fn is_serving(&self, service: &str) -> Option<bool> {
        match service {
            LIVENESS => Some(true),
            _ if READINESS.contains(&service) => Some(*self.ready.borrow()),
            _ => None,
        }
    }

    fn names() -> impl Iterator<Item = &'static str> {
        std::iter::once(LIVENESS).chain(READINESS)
    }
}
