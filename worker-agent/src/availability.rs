//! Whether an agent takes requests, as its record and its readiness say.

use stator_protos::discovery::AgentRecord;
use stator_runtime::admin::Readiness;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// The agent takes requests while its engines serve and do not rest, until it drains. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub(crate) struct Availability(Arc<AvailabilityState>);

#[derive(Debug)]
struct AvailabilityState {
    /// The agent's record in the fleet.
    record: Arc<watch::Sender<AgentRecord>>,
    /// The agent's readiness in the cluster.
    readiness: Readiness,
    resting: AtomicBool,
    draining: AtomicBool,
}

impl Availability {
    /// An availability that is published here, from the first change on.
    pub(crate) fn new(record: Arc<watch::Sender<AgentRecord>>, readiness: Readiness) -> Self {
        let (resting, draining) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(AvailabilityState { record, readiness, resting, draining }))
    }

    /// Takes requests from now on, or refuses them while the engines rest.
    pub(crate) fn set_resting(&self, rests: bool) {
        self.0.resting.store(rests, Ordering::Relaxed);
        self.publish();
    }

    /// Whether the engines rest.
    pub(crate) fn is_resting(&self) -> bool {
        self.0.resting.load(Ordering::Relaxed)
    }

    /// Takes no requests any more, whatever the engines do.
    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.publish();
    }

    /// Publishes the present state, also after workers came or went.
    pub(crate) fn publish(&self) {
        let AvailabilityState { record, readiness, resting, draining } = &*self.0;
        // Under the record's lock, so that who comes last tells what is true.
        record.send_modify(|record| {
            let shut = resting.load(Ordering::Relaxed) || draining.load(Ordering::Relaxed);
            record.accepting = !shut;
            readiness.set(!shut && !record.workers.is_empty());
        });
    }
}
