//! The border between the fleet, which follows agents, and whatever places requests on their workers.

use crate::Members;
use stator_events::KvSink;
use stator_protos::discovery::ModelRecord;
use std::sync::Arc;

/// Opens and closes a pool for each model of the fleet.
pub trait Pools: Send + Sync + 'static {
    /// Learns which workers serve one model, how busy they are and which blocks they hold.
    type Pool: Members + KvSink;

    /// Opens the pool of a model, when its first agent is found. `None` if no pool can serve a
    /// model that is described so; its agent is refused.
    fn open(&self, model: &ModelRecord) -> Option<Arc<Self::Pool>>;

    /// Keeps a pool in order. Dropped when the model is forgotten; until then it should not end.
    fn maintain(&self, pool: Arc<Self::Pool>) -> impl Future<Output = ()> + Send + 'static;

    /// Waits until pools may take requests. Called before each model is announced.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// Closes a pool whose model is forgotten, or has been replaced by another of its name.
    fn close(&self, pool: &Self::Pool);
}
