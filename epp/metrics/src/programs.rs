//! Service that programs get from a pool whose flows share by the tokens they used. A program is a
//! flow by another name: its id is the fairness id.

use crate::exposition::{SeriesValue, rows, single, write};
use crate::family::{Child, Family};
use crate::names;
use crate::request::RequestMetrics;
use parking_lot::Mutex;
use prometheus_client::encoding::DescriptorEncoder;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All programs. Their ids are the fairness ids of [`RequestMetrics`], and so as few.
#[derive(Debug)]
pub struct Programs(Family<1, Mutex<AttainedService>>);

/// One program. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Program(Arc<Child<1, Mutex<AttainedService>>>);

/// Service that a program got.
#[derive(Debug)]
struct AttainedService {
    requests: u32,
    waited: Duration,
    /// In tokens, each by its weight, as of a time.
    service: (f64, Instant),
    half_life: Duration,
}

impl Default for Programs {
    fn default() -> Self {
        Self(Family::new(usize::MAX))
    }
}

impl Programs {
    /// The program that a request belongs to. After `half_life` half of what it got is forgotten;
    /// where priorities differ in that, what came first counts.
    pub fn of(&self, request: &RequestMetrics, half_life: Duration) -> Program {
        let make = || Mutex::new(AttainedService::new(half_life));
        Program(self.0.always(&[request.fairness_id()], make))
    }

    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let children = self.0.children();
        let of = |value: fn(&AttainedService) -> f64| {
            let read = |child: &Child<1, Mutex<AttainedService>>| {
                Some(SeriesValue::Gauge(value(&child.metric.lock())))
            };
            rows(&children, &["program_id"], read)
        };
        let waits: Vec<_> =
            children.iter().map(|child| child.metric.lock().mean_wait_ms()).collect();
        let index = (!waits.is_empty()).then(|| SeriesValue::Gauge(fairness(&waits)));
        write(encoder, &names::PROGRAM_FAIRNESS, &single(index))?;
        write(encoder, &names::PROGRAM_WAIT, &of(AttainedService::mean_wait_ms))?;
        write(
            encoder,
            &names::PROGRAM_SERVICE,
            &of(|attained| attained.service_at(Instant::now()).round()),
        )
    }
}

impl Program {
    /// A request went on after a wait of `waited`.
    pub fn dispatched(&self, waited: Duration) {
        let mut attained = self.0.metric.lock();
        attained.requests = attained.requests.saturating_add(1);
        attained.waited = attained.waited.saturating_add(waited);
    }

    /// The program used `tokens`, each counted by its weight.
    pub fn served(&self, tokens: f64) {
        self.0.metric.lock().gets(tokens, Instant::now());
    }
}

impl AttainedService {
    fn new(half_life: Duration) -> Self {
        Self { requests: 0, waited: Duration::ZERO, service: (0.0, Instant::now()), half_life }
    }

    fn gets(&mut self, tokens: f64, now: Instant) {
        self.service = (self.service_at(now) + tokens, now);
    }

    /// Service as of `now`, after its decay.
    fn service_at(&self, now: Instant) -> f64 {
        let (service, as_of) = self.service;
        let passed = now.saturating_duration_since(as_of);
        service * (-passed.div_duration_f64(self.half_life)).exp2()
    }

    fn mean_wait_ms(&self) -> f64 {
        self.waited.as_secs_f64() * 1000.0 / f64::from(self.requests.max(1))
    }
}

/// Jain's index of what each gets: 1 where all get the same, `1/n` where one of `n` gets it all.
///
/// Source: Jain, Chiu and Hawe, "A quantitative measure of fairness".
fn fairness(shares: &[f64]) -> f64 {
    let (sum, squares) = shares
        .iter()
        .fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn the_index_is_one_over_the_number_that_share() {
        assert_eq!(fairness(&[]), 1.0);
        assert_eq!(fairness(&[0.0, 0.0]), 1.0);
        assert_eq!(fairness(&[7.0, 7.0, 7.0]), 1.0);
        assert_eq!(fairness(&[5.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(fairness(&[1.0, 1.0, 0.0, 0.0]), 0.5);
    }

    #[test]
    fn half_of_what_was_got_is_forgotten_after_a_half_life() {
        let mut attained = AttainedService::new(Duration::from_secs(60));
        let start = attained.service.1;
        let at = |seconds| start + Duration::from_secs(seconds);
        attained.gets(100.0, at(0));
        assert_eq!(attained.service_at(at(60)), 50.0);
        attained.gets(10.0, at(60));
        assert_eq!(attained.service_at(at(120)), 30.0);
        assert_eq!(attained.service_at(at(0)), 60.0, "the past is the present");
    }

    proptest! {
        #[test]
        fn the_index_is_a_share(shares in vec(0.0..1e9_f64, 1..20)) {
            let index = fairness(&shares);
            let least = 1.0 / shares.len() as f64;
            prop_assert!((least - 1e-9..=1.0 + 1e-9).contains(&index), "{index}");
        }
    }
}
