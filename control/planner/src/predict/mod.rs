//! Forecasts of the request rate, from evenly spaced measurements of it.
//!
//! | predictor | it says |
//! | --- | --- |
//! | constant | the last value |
//! | arima | autoregression on the values or on their differences, of the order that fits best |
//! | kalman | level and trend, with noise that is given or found by likelihood |
//! | adaptive | the level, its trend, or a trend corrected by its past errors: the best of late |
//! | seasonal | the profile of a day (or another season), scaled by the present |

mod arima;
mod kalman;
mod learnt;
mod season;

pub use kalman::KalmanNoise;
pub(crate) use kalman::Trend;
pub(crate) use season::SeasonProfile;

/// Rates at even distances, the latest last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateSeries<'a> {
    /// Seconds between two values.
    pub(crate) step_s: f64,
    /// Requests a second.
    pub(crate) values: &'a [f64],
    /// Time of the last value, seconds.
    pub(crate) end_s: f64,
    /// Trends at the latest values, as far as they are remembered.
    pub(crate) trends: &'a [Trend],
}

/// Rate at a later time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Forecast {
    /// Its mean, requests a second, at least 0.
    pub(crate) rate: f64,
    /// Its standard deviation: of the mean, without the chance of single arrivals.
    pub(crate) deviation: f64,
    /// Rate beyond it that bursts bring, if the load comes in bursts that nobody foresees.
    pub(crate) surge: f64,
}

/// Kind of forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadPredictor {
    /// The last value.
    Constant,
    /// Autoregression on the values or on their differences.
    Arima,
    /// Level and trend.
    Kalman,
    /// Level and trend, corrected by their own past errors. Finds periods by itself.
    Adaptive,
    /// The profile of a season, in place of Prophet.
    Seasonal,
}

/// A predictor with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictorSettings {
    /// Its kind.
    pub kind: LoadPredictor,
    /// Whether ARIMA works on `ln(1 + rate)`.
    pub log1p: bool,
    /// Noise of the Kalman filter; found by likelihood if absent.
    pub noise: Option<KalmanNoise>,
    /// Length of a season, seconds.
    pub season_s: f64,
}

/// Values below which there is nothing to fit.
const VALUES_MIN: usize = 5;

/// The trend at the last value of a series, of which there is at least one.
pub(crate) fn trend(settings: &PredictorSettings, series: RateSeries<'_>) -> Trend {
    match series.trends.last() {
        Some(trend) if settings.kind == LoadPredictor::Adaptive => *trend,
        _ => kalman::trend(series.values, series.step_s, settings.noise),
    }
}

/// The rate `ahead_s` seconds after the last value.
pub(crate) fn forecast(
    settings: &PredictorSettings,
    series: RateSeries<'_>,
    profile: &SeasonProfile,
    ahead_s: f64,
) -> Forecast {
    // A fleet that nobody used yet says nothing of its use.
    let begin = series.values.iter().position(|rate| *rate > 0.0).unwrap_or(series.values.len());
    let series = RateSeries { values: &series.values[begin..], ..series };
    let Some(&last) = series.values.last() else { return Forecast::default() };
    let constant = Forecast { rate: last, ..Forecast::default() };
    if series.values.len() < VALUES_MIN {
        return constant;
    }
    let predicted = match settings.kind {
        LoadPredictor::Constant => constant,
        LoadPredictor::Arima => arima::forecast(series, ahead_s, settings.log1p),
        LoadPredictor::Kalman => trend(settings, series).forecast(ahead_s, series.step_s),
        LoadPredictor::Adaptive => {
            learnt::forecast(series.step_s, series.values, series.trends, ahead_s)
                .unwrap_or_else(|| trend(settings, series).forecast(ahead_s, series.step_s))
        }
        LoadPredictor::Seasonal => profile
            .forecast(series, ahead_s)
            .unwrap_or_else(|| trend(settings, series).forecast(ahead_s, series.step_s)),
    };
    // A forecast far beyond all that was seen is a fault of the fit.
    let most = series.values.iter().fold(1.0, |most: f64, rate| most.max(4.0 * rate));
    let finite = |value: f64, otherwise: f64| if value.is_finite() { value } else { otherwise };
    Forecast {
        rate: finite(predicted.rate, last).clamp(0.0, most),
        deviation: finite(predicted.deviation, 0.0).min(most),
        surge: finite(predicted.surge, 0.0).min(most),
    }
}

#[cfg(test)]
mod tests;
