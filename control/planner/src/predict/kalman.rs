//! Local linear trend: a level and its slope, both with noise.
//!
//! The slope is damped in forecasts: a rise goes on for minutes, not for hours.

use super::Forecast;

/// Variances of the filter, per step of the series: Dynamo's `kalman_q_level`, `kalman_q_trend` and
/// `kalman_r`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KalmanNoise {
    /// Growth of the level's variance.
    pub level: f64,
    /// Growth of the slope's variance.
    pub trend: f64,
    /// Variance of a measurement.
    pub measurement: f64,
}

/// Standard deviations that the level may move by in a second, and the slope, as shares of the
/// mean rate: the filter that explains the values best is taken.
const LEVEL_NOISE: [f64; 4] = [0.0, 0.002, 0.008, 0.03];
const TREND_NOISE: [f64; 5] = [0.0, 2e-5, 1e-4, 4e-4, 1.5e-3];
/// Time after which a slope counts no more, seconds.
const DAMPING_S: f64 = 180.0;
/// Values that decide on the noise; older ones forgot what the load is like.
const WINDOW: usize = 240;
/// Variance of the first level and slope of a filter with given noise: none is known.
const UNKNOWN: f64 = 1_000.0;
/// Deviation of the first slope otherwise: a share of the mean rate in a second.
const SLOPE_SHARE: f64 = 0.005;

/// State of the filter.
struct Filter {
    level: f64,
    slope: f64,
    /// Variances of level and slope, and their covariance.
    variance: [f64; 3],
    /// Log-likelihood of the values, up to a constant.
    likelihood: f64,
}

impl Filter {
    fn new(first: f64, level: f64, slope: f64) -> Self {
        Self { level: first, slope: 0.0, variance: [level, slope, 0.0], likelihood: 0.0 }
    }

    /// One step of time passes.
    fn predict(&mut self, noise: &KalmanNoise) {
        self.level += self.slope;
        let [level, slope, both] = self.variance;
        self.variance =
            [level + 2.0 * both + slope + noise.level, slope + noise.trend, both + slope];
    }

    /// Takes a measurement in.
    fn update(&mut self, value: f64, measurement: f64) {
        let [level, slope, both] = self.variance;
        let (error, variance) = (value - self.level, level + measurement);
        self.likelihood -= 0.5 * (error * error / variance + variance.ln());
        let (gain, slope_gain) = (level / variance, both / variance);
        self.level += gain * error;
        self.slope += slope_gain * error;
        self.variance = [(1.0 - gain) * level, slope - slope_gain * both, (1.0 - gain) * both];
    }

    /// The filter after all values but the first, which it begins with.
    fn run(
        mut self,
        values: &[f64],
        noise: &KalmanNoise,
        measurement: impl Fn(f64) -> f64,
    ) -> Self {
        for value in &values[1..] {
            self.predict(noise);
            self.update(*value, measurement(self.level));
        }
        self
    }
}

/// Level and slope of a series at its last value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trend {
    level: f64,
    /// Change of the level in a step.
    slope: f64,
    /// Variances of level and slope, and their covariance.
    variance: [f64; 3],
    noise: KalmanNoise,
}

impl Trend {
    /// The rate `ahead_s` seconds later.
    pub(super) fn rate(&self, ahead_s: f64, step_s: f64) -> f64 {
        self.level + damped(ahead_s, step_s) * self.slope
    }

    /// The forecast with its deviation.
    pub(super) fn forecast(&self, ahead_s: f64, step_s: f64) -> Forecast {
        let ahead = damped(ahead_s, step_s);
        let [level, slope, both] = self.variance;
        let grown = ahead * (self.noise.level + self.noise.trend * ahead * ahead / 3.0);
        let variance = level + 2.0 * ahead * both + ahead * ahead * slope + grown;
        Forecast {
            rate: self.rate(ahead_s, step_s),
            deviation: variance.max(0.0).sqrt(),
            surge: 0.0,
        }
    }
}

/// Steps of the slope that count in a forecast.
fn damped(ahead_s: f64, step_s: f64) -> f64 {
    DAMPING_S / step_s * (1.0 - (-ahead_s / DAMPING_S).exp())
}

/// The trend of values. `noise` is found by likelihood if absent.
pub(super) fn trend(values: &[f64], step_s: f64, noise: Option<KalmanNoise>) -> Trend {
    let values = &values[values.len().saturating_sub(WINDOW)..];
    let (filter, noise) = match noise {
        Some(noise) => {
            let filter = Filter::new(values[0], UNKNOWN, UNKNOWN);
            (filter.run(values, &noise, |_| noise.measurement), noise)
        }
        None => likeliest(values, step_s),
    };
    Trend { level: filter.level, slope: filter.slope, variance: filter.variance, noise }
}

/// The filter under which the values are likeliest.
fn likeliest(values: &[f64], step_s: f64) -> (Filter, KalmanNoise) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    // A Poisson process varies by as much as it counts.
    let measurement = |level: f64| level.max(1.0 / step_s) / step_s;
    let slope = (SLOPE_SHARE * mean * step_s).powi(2);
    let mut best: Option<(Filter, KalmanNoise)> = None;
    for level in LEVEL_NOISE {
        for trend in TREND_NOISE {
            let noise = KalmanNoise {
                level: (level * mean).powi(2) * step_s,
                // The slope is per step, not per second.
                trend: (trend * mean * step_s).powi(2) * step_s,
                measurement: measurement(mean),
            };
            let filter = Filter::new(values[0], measurement(values[0]), slope);
            let filter = filter.run(values, &noise, measurement);
            if best.as_ref().is_none_or(|best| filter.likelihood > best.0.likelihood) {
                best = Some((filter, noise));
            }
        }
    }
    best.expect("there is a noise to try")
}
