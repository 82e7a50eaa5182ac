//! The better of three forecasts, and a trend's correction, learnt from how forecasts were wrong before.
//!
//! A ridge regression on mean rates over windows of the horizon's own length tells the trend's error
//! from the shape of the recent past: that a rise of this kind bends, or that this fall is the end of a
//! period. Nothing is told in advance, neither a period nor a season. Every past forecast is made again
//! with no more than was known then, so that its errors are those of a forecast and not of a fit.
//!
//! Three forecasts compete: the rate stays as it is, it follows its trend, it follows the corrected trend.
//! A later one counts only where its past errors are clearly smaller than those of the one before: after
//! a jump that nobody foresaw, a trend runs too far where the rate that came stays.
//!
//! The deviation is the error that two of three recent forecasts stayed within. One jump is an event and
//! widens no margin; errors that come back are a habit and do.

use super::Forecast;
use super::kalman::Trend;

/// Windows of the mean rates, as parts of the horizon.
const WINDOWS: [f64; 5] = [0.2, 0.4, 0.8, 1.6, 3.2];
/// Terms of the regression: the windows' means, and the mean of all.
const TERMS: usize = WINDOWS.len() + 1;
/// Half of the window over which a forecast is compared with what came, as a part of the horizon.
const REACH: f64 = 0.1;
/// Weight of "the trend is right", in pairs of forecast and truth.
const RIDGE: f64 = 1.0;
/// Pairs after which an earlier one counts by 1/e: in the regression, and in the comparison.
const MEMORY: f64 = 240.0;
const COMPARED: f64 = 60.0;
/// Values that are looked at.
const VALUES_MAX: usize = 480;
/// Pairs before which nothing is learnt, and before which nothing is compared.
const PAIRS_MIN: usize = 24;
/// Largest mean square of a forecast's errors, as a share of a simpler one's, with which it counts.
const BETTER: f64 = 0.8;
/// Share of a normal distribution within its deviation.
const WITHIN: f64 = 0.683;

/// Error of a forecast, as a share of the mean rate, with which it missed; and the share of misses above
/// which loads come in bursts that nobody foresees.
const MISS: f64 = 0.5;
const BURSTY: f64 = 0.4;
/// Latest forecasts that say whether a load is bursty.
const BURST_PAIRS: usize = 180;
/// Share of the requests that a surge leaves out.
const SURGE_LEFT: f64 = 0.05;

/// Sums of a regression with weights that fade.
struct Regression {
    products: [[f64; TERMS]; TERMS],
    targets: [f64; TERMS],
    pairs: usize,
}

impl Regression {
    fn new() -> Self {
        Self { products: [[0.0; TERMS]; TERMS], targets: [0.0; TERMS], pairs: 0 }
    }

    fn add(&mut self, terms: &[f64; TERMS], target: f64) {
        let kept = (-1.0 / MEMORY).exp();
        for (at, term) in terms.iter().enumerate() {
            for (cell, other) in self.products[at].iter_mut().zip(terms) {
                *cell = *cell * kept + term * other;
            }
            self.targets[at] = self.targets[at] * kept + term * target;
        }
        self.pairs += 1;
    }

    /// The target of these terms; 0 before there are enough pairs.
    fn tell(&self, terms: &[f64; TERMS]) -> f64 {
        if self.pairs < PAIRS_MIN {
            return 0.0;
        }
        let factors = self.solve();
        factors.iter().zip(terms).map(|(factor, term)| factor * term).sum()
    }

    /// Factors by Cholesky's decomposition: the ridge keeps it possible.
    fn solve(&self) -> [f64; TERMS] {
        let mut lower = [[0.0; TERMS]; TERMS];
        for row in 0..TERMS {
            for column in 0..=row {
                let known: f64 = (0..column).map(|k| lower[row][k] * lower[column][k]).sum();
                let cell = self.products[row][column] - known;
                lower[row][column] = match row == column {
                    true => (cell + RIDGE).max(1e-9).sqrt(),
                    false => cell / lower[column][column],
                };
            }
        }
        let mut half = [0.0; TERMS];
        for row in 0..TERMS {
            let known: f64 = (0..row).map(|k| lower[row][k] * half[k]).sum();
            half[row] = (self.targets[row] - known) / lower[row][row];
        }
        let mut factors = [0.0; TERMS];
        for row in (0..TERMS).rev() {
            let known: f64 = (row + 1..TERMS).map(|k| lower[k][row] * factors[k]).sum();
            factors[row] = (half[row] - known) / lower[row][row];
        }
        factors
    }
}

/// Errors of forecasts that were made with no more than was known then, the latest last.
#[derive(Default)]
struct PastErrors {
    errors: Vec<f64>,
    /// Mean of their squares, of which the latest count most.
    squares: f64,
    weight: f64,
}

impl PastErrors {
    fn add(&mut self, error: f64) {
        let kept = (-1.0 / COMPARED).exp();
        self.squares = self.squares * kept + error * error;
        self.weight = self.weight * kept + 1.0;
        self.errors.push(error);
    }

    fn mean_square(&self) -> f64 {
        self.squares / self.weight.max(1e-9)
    }

    /// The size of error that a share of them, weighted as the mean is, stayed within.
    fn within(&self, share: f64) -> f64 {
        let weight = |age: usize| (-(age as f64) / COMPARED).exp();
        let aged = self.errors.iter().rev().enumerate();
        let mut sizes: Vec<_> = aged.map(|(age, error)| (error.abs(), weight(age))).collect();
        sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = share * sizes.iter().map(|(_, weight)| weight).sum::<f64>();
        let found = sizes.iter().find(|(_, weight)| {
            left -= weight;
            left <= 0.0
        });
        found.or(sizes.last()).map_or(0.0, |(size, _)| *size)
    }
}

/// The rate `ahead_s` seconds after the last value, with the deviation that forecasts over this
/// horizon had. `trends` are those of each value; none before enough forecasts have come true.
pub(super) fn forecast(
    step_s: f64,
    values: &[f64],
    trends: &[Trend],
    ahead_s: f64,
) -> Option<Forecast> {
    let count = values.len().min(trends.len()).min(VALUES_MAX);
    let (values, trends) = (&values[values.len() - count..], &trends[trends.len() - count..]);
    let ahead = (ahead_s / step_s).round().max(1.0) as usize;
    let reach = ((REACH * ahead as f64).round() as usize).max(1);
    let sums = sums(values);
    let scale = (sums[count] / count as f64).max(1e-9);
    let level = |at: usize| trends[at].rate(0.0, step_s).max(0.0) / scale;
    let base = |at: usize| trends[at].rate(ahead_s, step_s).max(0.0) / scale;
    let truth = |at: usize| {
        let (from, to) = (at + ahead - reach, at + ahead + reach + 1);
        (to <= count).then(|| (sums[to] - sums[from]) / (to - from) as f64 / scale)
    };
    let mut regression = Regression::new();
    let mut past: [PastErrors; 3] = Default::default();
    let (mut told, mut truths, mut noise) = ([0.0; 3], Vec::new(), 0.0);
    for at in 0..count {
        // The pair whose truth is whole by now.
        if let Some(then) = at.checked_sub(ahead + reach)
            && let Some(truth) = truth(then)
        {
            regression.add(&terms(&sums, then, ahead, scale), truth - base(then));
        }
        let corrected = base(at) + regression.tell(&terms(&sums, at, ahead, scale));
        told = [level(at), base(at), corrected.max(0.0)];
        if let Some(truth) = truth(at).filter(|_| regression.pairs >= PAIRS_MIN) {
            past.iter_mut().zip(told).for_each(|(past, told)| past.add(truth - told));
            truths.push(truth);
            // The truth is counted from few arrivals.
            let seconds = (2 * reach + 1) as f64 * step_s;
            let kept = (-1.0 / COMPARED).exp();
            noise = noise * kept + truth / scale / seconds;
        }
    }
    if truths.is_empty() || regression.pairs < 2 * PAIRS_MIN {
        return None;
    }
    let mut best = 0;
    for next in 1..past.len() {
        if past[next].mean_square() < BETTER * past[best].mean_square() {
            best = next;
        }
    }
    let (rate, past) = (told[best], &past[best]);
    let square = past.within(WITHIN).powi(2);
    let variance = (square - noise / past.weight).max(0.1 * square);
    let latest = truths.len().saturating_sub(BURST_PAIRS);
    let held_out = past.errors.iter().copied().zip(truths).skip(latest).collect();
    let surge = surge(held_out) * scale;
    Some(Forecast { rate: rate * scale, deviation: variance.sqrt() * scale, surge })
}

/// Rate beyond the forecasts that nearly all requests of a bursty load came within; 0 of a load that
/// forecasts are good for. Held-out forecasts have their error, and the rate that came.
fn surge(mut held_out: Vec<(f64, f64)>) -> f64 {
    let missed = held_out.iter().filter(|(error, _)| error.abs() > MISS).count();
    let is_bursty = missed as f64 > BURSTY * held_out.len() as f64;
    if !is_bursty || held_out.len() < 2 * PAIRS_MIN {
        return 0.0;
    }
    held_out.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut left = SURGE_LEFT * held_out.iter().map(|(_, came)| came).sum::<f64>();
    let within = held_out.iter().find(|(_, came)| {
        left -= came;
        left <= 0.0
    });
    within.map_or(0.0, |(error, _)| error.max(0.0))
}

/// Sums of the first values.
fn sums(values: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let later = values.iter().map(|value| {
        sum += value;
        sum
    });
    std::iter::once(0.0).chain(later.collect::<Vec<_>>()).collect()
}

fn terms(sums: &[f64], at: usize, ahead: usize, scale: f64) -> [f64; TERMS] {
    let mut terms = [1.0; TERMS];
    for (term, part) in terms.iter_mut().zip(WINDOWS) {
        let window = ((part * ahead as f64).round() as usize).clamp(1, at + 1);
        *term = (sums[at + 1] - sums[at + 1 - window]) / window as f64 / scale;
    }
    terms
}

#[cfg(test)]
mod tests {
    use super::super::kalman::trend;
    use super::*;

    const STEP_S: f64 = 5.0;

    /// Forecasts over a minute at each value of a series, from what came before it.
    fn forecasts(values: &[f64]) -> Vec<Option<Forecast>> {
        let trends: Vec<Trend> =
            (1..=values.len()).map(|to| trend(&values[..to], STEP_S, None)).collect();
        let at = |to: usize| forecast(STEP_S, &values[..to], &trends[..to], 60.0);
        (1..=values.len()).map(at).collect()
    }

    fn wave(at: usize) -> f64 {
        12.5 - 11.5 * (at as f64 / 120.0 * std::f64::consts::TAU).cos()
    }

    #[test]
    fn a_period_that_nobody_named_is_found() {
        // Counts of arrivals are whole.
        let values: Vec<f64> = (0..360).map(|at| (wave(at) * STEP_S).round() / STEP_S).collect();
        let told = forecasts(&values);
        for at in 240..340 {
            let told = told[at].expect("there were enough pairs").rate;
            let trend = trend(&values[..=at], STEP_S, None).rate(60.0, STEP_S);
            let truth = wave(at + 12);
            let (error, of_trend) = ((told - truth).abs(), (trend - truth).abs());
            assert!(error <= of_trend.max(1.0) + 0.5, "{at}: {told}, {trend} and {truth}");
            assert!(error < 2.5, "{at}: {told} is not {truth}");
        }
    }

    /// A step of the load that nobody foresaw: the trend alone would run far beyond it.
    #[test]
    fn a_jump_is_followed_and_is_no_trend() {
        let values = [vec![4.0; 120], vec![16.0; 40]].concat();
        let told = forecasts(&values);
        for (at, told) in told.iter().enumerate().skip(128) {
            let rate = told.as_ref().expect("there were enough pairs").rate;
            assert!((14.0..20.0).contains(&rate), "{at}: {rate}");
        }
        // One jump is no habit.
        let last = told[159].expect("there were enough pairs");
        assert!(last.deviation < 2.0, "{last:?}");
    }

    #[test]
    fn nothing_is_told_before_forecasts_have_come_true() {
        let told = forecasts(&[4.0; 60]);
        assert!(told[..50].iter().all(Option::is_none));
        let steady = forecasts(&[4.0; 120])[119].expect("there were enough pairs");
        assert!((steady.rate - 4.0).abs() < 0.05 && steady.deviation < 0.1, "{steady:?}");
        assert_eq!(steady.surge, 0.0);
    }

    #[test]
    fn bursts_that_nobody_foresees_are_held_for() {
        // Half a minute of 20 requests a second, now and then.
        let bursts = [7, 31, 40, 66, 81, 99, 117, 140, 149, 171, 190, 206, 229];
        let is_burst = |at: usize| bursts.iter().any(|from| (*from..from + 6).contains(&at));
        let values: Vec<f64> = (0..240).map(|at| if is_burst(at) { 20.0 } else { 0.0 }).collect();
        let told = forecasts(&values)[239].expect("there were enough pairs");
        assert!(told.rate + told.surge >= 15.0, "{told:?}");
    }
}
