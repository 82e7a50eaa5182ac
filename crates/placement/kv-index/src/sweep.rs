//! Progress of a sweep, which takes retired slots out of the cells.

use crate::lane::SweepPlace;

/// A sweep over all cells.
#[derive(Default)]
pub(crate) struct Sweep {
    /// The slots that this sweep takes out, in order; none while there is no sweep.
    pub(crate) slots: Vec<u32>,
    pub(crate) lane: usize,
    pub(crate) place: SweepPlace,
}
