//! Settings of a [`Scheduler`](crate::Scheduler).

use crate::TierWeights;
use stator_placement::PlacementSettings;
use std::time::Duration;

/// Settings for the state of a pool.
#[derive(Clone, Debug)]
pub struct SchedulerSettings {
    /// The placement core's settings.
    pub placement: PlacementSettings,
    /// Time after a request was sent from which its engine's report is sure to cover it. Default
    /// 100 ms.
    pub settle: Duration,
    /// Longest time that an unwatched request holds its place without a covering report. Default 60
    /// s.
    pub unwatched_lease: Duration,
    /// Most requests in flight. Default 1,048,576.
    pub in_flight_max: usize,
    /// Numbers of requests are above this. Default 0. Pools that share plug-ins need numbers of
    /// their own: a plug-in knows a request by nothing else.
    pub tickets_above: u64,
    /// Whether requests of negative priority are refused while the pool is full. Default yes; no
    /// where they wait instead.
    pub sheds: bool,
    /// Worth of a block in the precise index, by its tier.
    pub tier_weights: TierWeights,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Self {
            placement: PlacementSettings::default(),
            settle: Duration::from_millis(100),
            unwatched_lease: Duration::from_secs(60),
            in_flight_max: 1 << 20,
            tickets_above: 0,
            sheds: true,
            tier_weights: TierWeights::default(),
        }
    }
}
