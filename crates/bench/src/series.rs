//! Events over time, in bounded memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Width of a slot in the beginning.
const SLOT_MIN: Duration = Duration::from_millis(100);
/// Most slots; when time goes on, each two become one of twice the width.
const SLOTS_MAX: usize = 512;
/// Most points that are kept of single requests; when there are more, every other one is dropped.
const POINTS_MAX: usize = 4_096;

/// Counts of one slot of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSlot {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered well.
    pub succeeded: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Output tokens that arrived. An answer's tokens are spread evenly over its chunks, so this
    /// is a fraction.
    pub output_tokens: f64,
}

/// Counts over time: at most 512 slots, as wide as the time so far needs.
#[derive(Clone, Debug)]
pub struct TimeSeries {
    width: Duration,
    slots: Vec<TimeSlot>,
}

impl Default for TimeSeries {
    fn default() -> Self {
        Self { width: SLOT_MIN, slots: Vec::new() }
    }
}

impl TimeSeries {
    /// The slot of a time since the start.
    pub fn at(&mut self, time: Duration) -> &mut TimeSlot {
        while self.index(time) >= SLOTS_MAX {
            self.width *= 2;
            self.slots = self
                .slots
                .chunks(2)
                .map(|pair| pair.iter().fold(TimeSlot::default(), sum))
                .collect();
        }
        let index = self.index(time);
        if index >= self.slots.len() {
            self.slots.resize(index + 1, TimeSlot::default());
        }
        &mut self.slots[index]
    }

    /// Width of a slot.
    pub fn width(&self) -> Duration {
        self.width
    }

    /// The slots so far, from the start on.
    pub fn slots(&self) -> &[TimeSlot] {
        &self.slots
    }

    fn index(&self, time: Duration) -> usize {
        usize::try_from(time.as_nanos() / self.width.as_nanos()).unwrap_or(usize::MAX)
    }
}

fn sum(a: TimeSlot, b: &TimeSlot) -> TimeSlot {
    TimeSlot {
        sent: a.sent + b.sent,
        succeeded: a.succeeded + b.succeeded,
        failed: a.failed + b.failed,
        output_tokens: a.output_tokens + b.output_tokens,
    }
}

/// One request, as a point in plots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Time of sending, in seconds since the start.
    pub sent_s: f64,
    /// Its TTFT in milliseconds, where it has one.
    pub ttft_ms: Option<f64>,
    /// Its end-to-end latency in milliseconds.
    pub e2e_ms: f64,
}

/// An even sample of requests: every n-th, where n doubles whenever there are too many.
#[derive(Clone, Debug)]
pub struct Points {
    every: u64,
    seen: u64,
    points: Vec<Point>,
}

impl Default for Points {
    fn default() -> Self {
        Self { every: 1, seen: 0, points: Vec::new() }
    }
}

impl Points {
    /// Takes the next request, or leaves it out.
    pub fn add(&mut self, point: Point) {
        if self.seen.is_multiple_of(self.every) {
            if self.points.len() == POINTS_MAX {
                let mut index = 0;
                self.points.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.every *= 2;
            }
            if self.seen.is_multiple_of(self.every) {
                self.points.push(point);
            }
        }
        self.seen += 1;
    }

    /// The sample, in the order in which the requests ended.
    pub fn points(&self) -> &[Point] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_widen_with_time() {
        let mut series = TimeSeries::default();
        series.at(Duration::from_millis(150)).sent += 1;
        assert_eq!((series.slots().len(), series.slots()[1].sent), (2, 1));
        series.at(Duration::from_secs(3_600)).sent += 1;
        assert!(series.slots().len() <= SLOTS_MAX);
        assert!(series.width() * SLOTS_MAX as u32 > Duration::from_secs(3_600));
    }

    #[test]
    fn samples_are_bounded_and_even() {
        let mut points = Points::default();
        for index in 0..100_000 {
            points.add(Point { sent_s: f64::from(index), ttft_ms: None, e2e_ms: 0.0 });
        }
        let times: Vec<f64> = points.points().iter().map(|point| point.sent_s).collect();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&times.len()));
        assert!(times.windows(2).all(|w| w[1] - w[0] == times[1] - times[0]));
    }

    proptest! {
        /// However the slots widen, nothing is lost, and a slot holds the times that are its own.
        #[test]
        fn nothing_is_lost(times in vec(0_u64..10_000_000, 1..100)) {
            let mut series = TimeSeries::default();
            times.iter().for_each(|ms| series.at(Duration::from_millis(*ms)).sent += 1);
            let mut model = vec![0; series.slots().len()];
            for ms in &times {
                model[(Duration::from_millis(*ms).as_nanos() / series.width().as_nanos()) as usize] += 1;
            }
            let counted: Vec<u64> = series.slots().iter().map(|slot| slot.sent).collect();
            prop_assert_eq!(counted, model);
        }
    }
}
