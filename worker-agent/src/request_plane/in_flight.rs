//! Count of an agent's running requests, so that a drain knows its end.

use std::sync::Arc;
use tokio::sync::watch;

/// Counts what runs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct InFlight(Arc<watch::Sender<usize>>);

/// One request that runs; dropping it says that it has ended.
#[derive(Debug)]
pub(crate) struct Ticket(InFlight);

impl InFlight {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts one more.
    pub(crate) fn enter(&self) -> Ticket {
        self.0.send_modify(|running| *running += 1);
        Ticket(self.clone())
    }

    /// Number of running requests.
    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until none runs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn none(&self) {
        // The sender lives as long as `self`, so the wait ends only as it should.
        let _ = self.0.subscribe().wait_for(|running| *running == 0).await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.0.send_modify(|running| *running -= 1);
    }
}
