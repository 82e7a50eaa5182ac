//! gRPC health checks, `grpc.health.v1`: whether the process lives, and whether picks would
//! succeed.
//!
//! Envoy asks for the ext-proc service on the ext-proc port, Kubernetes for `liveness` and
//! `readiness` on a port of its own. Each pool has an ext-proc port of its own, and there the names
//! stand for that pool alone; on the common port they stand for the process, which is ready while
//! one of its pools is, and each pool has its `namespace/name` as a further name. So a data plane
//! goes round a pool that is empty, and Kubernetes does not take the other pools away with it.
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
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::Connected;

/// The name that is healthy as long as the process answers.
const LIVENESS: &str = "liveness";

/// The names that are healthy while the process, or the pool whose port it is, is ready. The empty
/// one is the server as a whole.
const READINESS: [&str; 4] = ["", "readiness", crate::ext_proc::SERVICE, "inference-extension"];

/// State behind health checks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    ready: watch::Receiver<bool>,
    /// Readiness of each pool, by `namespace/name`.
    pools: Arc<[(String, watch::Receiver<bool>)]>,
}

impl Health {
    /// Ready while `ready` holds true. Its sender should outlive the server: once it is gone,
    /// readiness stays as it was.
    pub fn new(ready: watch::Receiver<bool>) -> Self {
        Self { ready, pools: Arc::default() }
    }

    /// Adds the readiness of each of these pools, by `namespace/name`.
    pub(crate) fn with_pools(self, pools: Vec<(String, watch::Receiver<bool>)>) -> Self {
        Self { pools: pools.into(), ..self }
    }

    /// Health checks on the port of a pool of its own.
    pub(crate) fn of_pool(&self, pool: &str) -> Self {
        Self { ready: self.readiness_of(pool).clone(), ..self.clone() }
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

    /// Whether a name is healthy; `None` for an unknown one.
    pub(crate) fn is_serving(&self, service: &str) -> Option<bool> {
        match service {
            LIVENESS => Some(true),
            _ if self.names().any(|name| name == service) => {
                Some(*self.readiness_of(service).borrow())
            }
            _ => None,
        }
    }

    /// Readiness behind a name: a pool's own, and for all other names that of the process.
    fn readiness_of(&self, service: &str) -> &watch::Receiver<bool> {
        let pool = self.pools.iter().find(|(name, _)| name == service);
        pool.map_or(&self.ready, |(_, ready)| ready)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let pools = self.pools.iter().map(|(name, _)| name.as_str());
        std::iter::once(LIVENESS).chain(READINESS).chain(pools)
    }
}
