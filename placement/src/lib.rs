//! Where a request should run: the KV index, what is in flight, and the cost of each choice.
//!
//! Pure: this crate never opens a socket, reads a clock, draws a random number or takes a lock.
//! Time ([`Time`]) and randomness (a seed) are arguments, so that the same calls give the same
//! answers. Start reading at [`Placement::pick`].

mod chains;
mod cost;
mod deadlines;
mod decision;
mod fleet;
mod index;
mod mode;
mod overlap;
mod placement;
mod predictions;
mod random;
mod settings;
mod slots;
mod table;
mod tracker;

pub use cost::{InvalidWeight, InvalidWeights, Overrides, Score, WeightSettings, Weights};
pub use decision::{Candidate, Decision, PickError, Request};
pub use fleet::{Fleet, Worker, WorkerState};
pub use index::{Applied, Held, Index};
pub use mode::{Mode, UnknownMode};
pub use overlap::{Overlap, Overlaps};
pub use placement::{Placement, Stats};
pub use settings::{BusyThresholds, Settings};
pub use tracker::{BookingId, Footprint, InFlight, Tracker};

use std::time::Duration;

/// A moment: the time since a start that the caller chose and keeps to.
///
/// Moments only ever move forward; one that lies before another already seen counts as that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub Duration);

impl Time {
    /// The moment `ms` milliseconds after the start.
    pub fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// The moment `duration` later, or the last there is.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}
