//! The open or closed state of an agent, and its publication.

use stator_protos::discovery::AgentRecord;
use stator_runtime::admin::Readiness;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// Open while the engines serve and do not rest, until the agent drains. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Door(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    /// The agent's record in the fleet.
    record: Arc<watch::Sender<AgentRecord>>,
    /// The agent's readiness in the cluster.
    readiness: Readiness,
    resting: AtomicBool,
    draining: AtomicBool,
}

impl Door {
    /// Tells these; nobody yet.
    pub(crate) fn new(record: Arc<watch::Sender<AgentRecord>>, readiness: Readiness) -> Self {
        let (resting, draining) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Inside { record, readiness, resting, draining }))
    }

    /// Takes requests from now on, or none while the engines rest.
    pub(crate) fn rest(&self, rests: bool) {
        self.0.resting.store(rests, Ordering::Relaxed);
        self.tell();
    }

    /// Whether the engines rest.
    pub(crate) fn rests(&self) -> bool {
        self.0.resting.load(Ordering::Relaxed)
    }

    /// Takes no requests any more, whatever the engines do.
    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.tell();
    }

    /// Tells what is so now, also of workers that came or went.
    pub(crate) fn tell(&self) {
        let Inside { record, readiness, resting, draining } = &*self.0;
        // Under the record's lock, so that who comes last tells what is true.
        record.send_modify(|record| {
            let shut = resting.load(Ordering::Relaxed) || draining.load(Ordering::Relaxed);
            record.accepting = !shut;
            readiness.set(!shut && !record.workers.is_empty());
        });
    }
}
