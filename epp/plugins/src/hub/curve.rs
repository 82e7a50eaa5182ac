//! The latency curve of an endpoint: its time to the first token by the requests in flight.

/// Half the width of the band of percentiles over which the load at an anchor is averaged.
const BAND: f64 = 10.0;

/// One observation: the requests that were in flight when a request was sent, and the seconds until
/// the first piece of its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observation {
    /// Requests in flight, without the one observed.
    pub in_flight: f64,
    /// Seconds.
    pub ttft: f64,
}

/// An endpoint's time to the first token, as observed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Anchors {
    /// Seconds without load; 0 while too little was observed.
    pub floor: f64,
    /// At low load.
    pub low: Anchor,
    /// At the load that is usual of late.
    pub typical: Anchor,
    /// Whether enough was observed of late for the anchors to count.
    pub calibrated: bool,
}

/// A point of the curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Anchor {
    /// Requests in flight.
    pub in_flight: f64,
    /// Seconds.
    pub ttft: f64,
}

impl Anchor {
    /// The anchor at a percentile of `sorted` observations, which are in order of their seconds.
    pub(crate) fn at(sorted: &[Observation], percentile: f64) -> Self {
        let band =
            &sorted[rank(sorted.len(), percentile - BAND)..=rank(sorted.len(), percentile + BAND)];
        let sum: f64 = band.iter().map(|seen| seen.in_flight).sum();
        Self {
            in_flight: sum / band.len() as f64,
            ttft: sorted[rank(sorted.len(), percentile)].ttft,
        }
    }
}

impl Anchors {
    /// Whether the anchors say more than the floor.
    pub(crate) fn trusted(&self) -> bool {
        self.calibrated && self.typical.in_flight > 0.0 && self.typical.ttft > self.floor
    }

    /// Seconds until the first piece of an answer while `in_flight` requests run. The low anchor
    /// bends the curve only where it lies apart from the typical one by `gap` requests, between it
    /// and the floor: else its slope is noise.
    pub(crate) fn predict(&self, in_flight: f64, gap: f64) -> f64 {
        if !self.trusted() {
            return self.floor;
        }
        let (low, typical) = (self.low, self.typical);
        let start = Anchor { in_flight: 0.0, ttft: self.floor };
        let bends = typical.in_flight - low.in_flight >= gap
            && typical.ttft > low.ttft
            && low.ttft > self.floor
            && low.in_flight > 0.0;
        let (from, to) = match bends {
            true if in_flight < low.in_flight => (start, low),
            true => (low, typical),
            false => (start, typical),
        };
        let slope = (to.ttft - from.ttft) / (to.in_flight - from.in_flight);
        (from.ttft + (in_flight - from.in_flight) * slope).max(self.floor)
    }
}

/// The position of a percentile among `count` values; at least one.
pub(crate) fn rank(count: usize, percentile: f64) -> usize {
    let last = count.saturating_sub(1) as f64;
    (percentile.clamp(0.0, 100.0) / 100.0 * last).round() as usize
}
