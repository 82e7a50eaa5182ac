//! Predictors on series whose future is known.

use super::*;
use proptest::{collection::vec, prelude::*};

fn settings(kind: LoadPredictor) -> PredictorSettings {
    PredictorSettings { kind, log1p: false, noise: None, season_s: 3_600.0 }
}

fn after(kind: LoadPredictor, values: &[f64], ahead_s: f64) -> f64 {
    let series = RateSeries { step_s: 5.0, values, end_s: 5.0 * values.len() as f64, trends: &[] };
    forecast(&settings(kind), series, &SeasonProfile::new(3_600.0), ahead_s).rate
}

const KINDS: [LoadPredictor; 4] =
    [LoadPredictor::Constant, LoadPredictor::Arima, LoadPredictor::Kalman, LoadPredictor::Seasonal];

#[test]
fn a_constant_rate_stays_as_it_is() {
    for kind in KINDS {
        let rate = after(kind, &[4.0; 50], 60.0);
        assert!((rate - 4.0).abs() < 0.01, "{kind:?}: {rate}");
    }
}

#[test]
fn leading_zeros_say_nothing_and_an_empty_series_is_no_load() {
    for kind in KINDS {
        assert_eq!(after(kind, &[], 60.0), 0.0, "{kind:?}");
        assert_eq!(after(kind, &[0.0; 9], 60.0), 0.0, "{kind:?}");
        let values = [vec![0.0; 60], vec![3.0; 30]].concat();
        let rate = after(kind, &values, 30.0);
        assert!((rate - 3.0).abs() < 0.05, "{kind:?}: {rate}");
    }
}

#[test]
fn trends_go_on() {
    let values: Vec<f64> = (0..60).map(|at| 2.0 + 0.1 * f64::from(at)).collect();
    // 60 s are 12 steps: 7.9 + 1.2.
    let arima = after(LoadPredictor::Arima, &values, 60.0);
    assert!((arima - 9.1).abs() < 0.1, "{arima}");
    let kalman = after(LoadPredictor::Kalman, &values, 60.0);
    assert!((8.6..9.2).contains(&kalman), "{kalman}");
    assert_eq!(after(LoadPredictor::Constant, &values, 60.0), values[59]);
}

#[test]
fn the_filter_of_dynamos_noise_follows_a_step() {
    let noise = KalmanNoise { level: 1.0, trend: 0.1, measurement: 10.0 };
    let settings = PredictorSettings { noise: Some(noise), ..settings(LoadPredictor::Kalman) };
    let values = [vec![2.0; 30], vec![8.0; 30]].concat();
    let series = RateSeries { step_s: 5.0, values: &values, end_s: 300.0, trends: &[] };
    let forecast = forecast(&settings, series, &SeasonProfile::new(1.0), 5.0);
    assert!((forecast.rate - 8.0).abs() < 0.5 && forecast.deviation > 0.0, "{forecast:?}");
}

#[test]
fn a_season_is_known_before_it_comes_and_scaled_by_the_present() {
    let rate = |at: f64| 5.0 + 4.0 * (at / 3_600.0 * std::f64::consts::TAU).sin();
    let mut profile = SeasonProfile::new(3_600.0);
    for at in 0..720 {
        profile.learn(f64::from(at) * 5.0, rate(f64::from(at) * 5.0));
    }
    profile.learn(3_600.0, rate(0.0));
    // Twice the load of yesterday, at the same time of the day.
    let values: Vec<f64> = (0..100).map(|at| 2.0 * rate(3_600.0 + f64::from(at) * 5.0)).collect();
    let series = RateSeries { step_s: 5.0, values: &values, end_s: 3_600.0 + 495.0, trends: &[] };
    let told = forecast(&settings(LoadPredictor::Seasonal), series, &profile, 300.0).rate;
    let expected = 2.0 * rate(795.0);
    assert!((told / expected - 1.0).abs() < 0.03, "{told} is not {expected}");
}

proptest! {
    #[test]
    fn forecasts_are_numbers_of_requests(
        values in vec(0.0_f64..1_000.0, 0..60), kind in 0_usize..4, ahead_s in 0.0_f64..600.0,
        log1p: bool,
    ) {
        let settings = PredictorSettings { log1p, ..settings(KINDS[kind]) };
        let series = RateSeries { step_s: 5.0, values: &values, end_s: 0.0, trends: &[] };
        let told = forecast(&settings, series, &SeasonProfile::new(3_600.0), ahead_s);
        prop_assert!(told.rate >= 0.0 && told.rate.is_finite(), "{told:?}");
        prop_assert!(told.deviation >= 0.0 && told.deviation.is_finite(), "{told:?}");
    }
}
