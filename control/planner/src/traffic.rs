//! Traffic of a graph over time: rates for the predictors, and the mean request.

use crate::capacity::Demand;
use crate::observation::TrafficTotals;
use crate::predict::{
    Forecast, LoadPredictor, PredictorSettings, RateSeries, SeasonProfile, Trend, forecast, trend,
};

/// Rates that are kept.
const RATES_MAX: usize = 2_048;
/// Time after which a request hardly counts for the mean, seconds, and requests after which it does:
/// whichever comes first.
const MEMORY_S: f64 = 300.0;
const MEMORY_REQUESTS: f64 = 1_000.0;
/// Longest gap between two observations that is filled with their mean rate, steps.
const GAP_STEPS_MAX: f64 = 60.0;
/// Spread of prompts whose squares nobody counts: that of exponential lengths.
const SPREAD_UNKNOWN: f64 = 2.0;
/// Requests before which their means say nothing.
const REQUESTS_MIN: f64 = 5.0;

/// The traffic of the last hours.
#[derive(Clone, Debug)]
pub(crate) struct TrafficWindow {
    step_s: f64,
    rates: Vec<f64>,
    /// Trends at the latest rates, with the adaptive predictor.
    trends: Vec<Trend>,
    predictor: PredictorSettings,
    profile: SeasonProfile,
    last: Option<(f64, TrafficTotals)>,
    /// Sums over recent requests; older ones count less.
    recent: TrafficTotals,
    /// Tokens of an answer until one has ended.
    output_tokens: f64,
}

impl TrafficWindow {
    /// No traffic yet. One value stands for `step_s` seconds; answers are taken to have
    /// `output_tokens` until one has ended.
    pub(crate) fn new(step_s: f64, predictor: PredictorSettings, output_tokens: f64) -> Self {
        Self {
            step_s,
            rates: Vec::new(),
            trends: Vec::new(),
            profile: SeasonProfile::new(predictor.season_s),
            predictor,
            last: None,
            recent: TrafficTotals::default(),
            output_tokens,
        }
    }

    /// Takes in an earlier season: arrivals, in seconds from the start of a season.
    pub(crate) fn warm_up(&mut self, arrivals_s: impl IntoIterator<Item = f64>) {
        let (mut step, mut count) = (0_u64, 0.0);
        for at_s in arrivals_s {
            let of = (at_s / self.step_s) as u64;
            while step < of {
                self.profile.learn(step as f64 * self.step_s, count / self.step_s);
                (step, count) = (step + 1, 0.0);
            }
            count += 1.0;
        }
        self.profile.learn(step as f64 * self.step_s, count / self.step_s);
    }

    /// Takes in the counts at a time.
    pub(crate) fn observe(&mut self, at_s: f64, totals: TrafficTotals) {
        let Some((before_s, before)) = self.last.replace((at_s, totals)) else { return };
        let span_s = at_s - before_s;
        // After a restart of the counters the next difference counts again.
        let Some(grown) = totals.since(&before).filter(|_| span_s > 0.0) else { return };
        let rate = grown.requests / span_s;
        let steps = (span_s / self.step_s).round().clamp(1.0, GAP_STEPS_MAX) as usize;
        self.rates.extend(std::iter::repeat_n(rate, steps));
        self.rates.drain(..self.rates.len().saturating_sub(RATES_MAX));
        self.remember_trend(at_s, steps);
        self.profile.learn(at_s, rate);
        let kept = (-(span_s / MEMORY_S).max(grown.requests / MEMORY_REQUESTS)).exp();
        let add = |sum: &mut f64, more: f64| *sum = *sum * kept + more;
        add(&mut self.recent.requests, grown.requests);
        add(&mut self.recent.prompt_tokens, grown.prompt_tokens);
        add(&mut self.recent.prompt_squares, grown.prompt_squares);
        add(&mut self.recent.cached_tokens, grown.cached_tokens);
        add(&mut self.recent.answers, grown.answers);
        add(&mut self.recent.output_tokens, grown.output_tokens);
    }

    /// Remembers the trend of the rates, once for each of the latest `steps` of them.
    fn remember_trend(&mut self, at_s: f64, steps: usize) {
        if self.predictor.kind != LoadPredictor::Adaptive {
            return;
        }
        let series =
            RateSeries { step_s: self.step_s, values: &self.rates, end_s: at_s, trends: &[] };
        let trend = trend(&self.predictor, series);
        self.trends.extend(std::iter::repeat_n(trend, steps));
        self.trends.drain(..self.trends.len().saturating_sub(RATES_MAX));
    }

    /// Requests that were counted when last observed.
    pub(crate) fn requests(&self) -> Option<f64> {
        self.last.map(|(_, totals)| totals.requests)
    }

    /// Whether no request came for as long as requests are remembered.
    pub(crate) fn is_quiet(&self) -> bool {
        let steps = (MEMORY_S / self.step_s).ceil() as usize;
        self.rates.len() >= steps && self.rates.iter().rev().take(steps).all(|rate| *rate == 0.0)
    }

    /// Rate a while from now.
    pub(crate) fn forecast(&self, ahead_s: f64) -> Forecast {
        let end_s = self.last.map_or(0.0, |(at_s, _)| at_s);
        let (values, trends) = (&self.rates, &self.trends);
        let series = RateSeries { step_s: self.step_s, values, end_s, trends };
        forecast(&self.predictor, series, &self.profile, ahead_s)
    }

    /// Requests like the recent ones, at this rate; none before there were enough of them.
    pub(crate) fn demand(&self, rate: f64) -> Option<Demand> {
        let recent = &self.recent;
        if recent.requests < REQUESTS_MIN {
            return None;
        }
        let prompt = recent.prompt_tokens / recent.requests;
        let cached = (recent.cached_tokens / recent.requests).clamp(0.0, 0.95 * prompt);
        let spread = recent.prompt_squares / recent.requests / (prompt * prompt).max(1.0);
        let output = recent.output_tokens / recent.answers;
        Some(Demand {
            rate,
            computed_tokens: prompt - cached,
            cached_tokens: cached,
            prompt_spread: if spread > 0.0 { spread.max(1.0) } else { SPREAD_UNKNOWN },
            output_tokens: if output.is_finite() { output.max(1.0) } else { self.output_tokens },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictor() -> PredictorSettings {
        let kind = LoadPredictor::Adaptive;
        PredictorSettings { kind, log1p: false, noise: None, season_s: 86_400.0 }
    }

    fn totals(requests: f64) -> TrafficTotals {
        TrafficTotals {
            requests,
            prompt_tokens: 1_000.0 * requests,
            prompt_squares: 2e6 * requests,
            cached_tokens: 250.0 * requests,
            answers: requests,
            output_tokens: 80.0 * requests,
        }
    }

    #[test]
    fn the_mean_request_is_that_of_the_recent_ones() {
        let mut window = TrafficWindow::new(5.0, predictor(), 150.0);
        assert_eq!(window.demand(1.0), None);
        for tick in 0..10 {
            window.observe(5.0 * f64::from(tick), totals(10.0 * f64::from(tick)));
        }
        let demand = window.demand(3.0).expect("there were requests");
        assert!((demand.computed_tokens - 750.0).abs() < 1e-6, "{demand:?}");
        assert!((demand.prompt_spread - 2.0).abs() < 1e-6 && demand.rate == 3.0, "{demand:?}");
        assert!((demand.output_tokens - 80.0).abs() < 1e-6, "{demand:?}");
    }

    #[test]
    fn counters_that_begin_again_are_no_negative_rate_and_a_gap_is_its_mean() {
        let mut window = TrafficWindow::new(5.0, predictor(), 150.0);
        for (at_s, requests) in [(0.0, 0.0), (5.0, 20.0), (10.0, 3.0), (30.0, 43.0)] {
            window.observe(at_s, totals(requests));
        }
        assert_eq!(window.rates, [4.0, 2.0, 2.0, 2.0, 2.0]);
    }
}
