//! Profile of a season: the mean rate of each part of a day, or of another season.

use super::{Forecast, RateSeries};

/// Most parts of a season, and the shortest, seconds.
const BINS_MAX: f64 = 288.0;
const BIN_MIN_S: f64 = 15.0;
/// Share of the latest season in the profile.
const LATEST_SHARE: f64 = 0.4;
/// Time over which the present is compared with the profile, seconds.
const COMPARED_S: f64 = 120.0;
/// Limits of the factor between the present and the profile.
const FACTOR: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// Mean rate in each part of a season, where known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SeasonProfile {
    season_s: f64,
    bins: Vec<Option<f64>>,
    /// The part that is being measured, with the sum and number of its values.
    open: Option<(usize, f64, u32)>,
}

impl SeasonProfile {
    /// A profile that knows nothing.
    pub(crate) fn new(season_s: f64) -> Self {
        let bins = (season_s / BIN_MIN_S).clamp(1.0, BINS_MAX) as usize;
        Self { season_s: season_s.max(1.0), bins: vec![None; bins], open: None }
    }

    /// Takes in the rate at a time.
    pub(crate) fn learn(&mut self, at_s: f64, rate: f64) {
        let bin = self.place(at_s) as usize % self.bins.len();
        match &mut self.open {
            Some((open, sum, count)) if *open == bin => {
                *sum += rate;
                *count += 1;
            }
            _ => {
                if let Some((ended, sum, count)) = self.open.replace((bin, rate, 1)) {
                    let mean = sum / f64::from(count);
                    let known = self.bins[ended].get_or_insert(mean);
                    *known += LATEST_SHARE * (mean - *known);
                }
            }
        }
    }

    /// The rate a while after the last value; none where the profile does not know enough.
    pub(super) fn forecast(&self, series: RateSeries<'_>, ahead_s: f64) -> Option<Forecast> {
        let then = self.rate(series.end_s + ahead_s)?;
        let count = (COMPARED_S / series.step_s).ceil() as usize;
        let (mut seen, mut known) = (0.0, 0.0);
        for (steps, value) in series.values.iter().rev().take(count).enumerate() {
            known += self.rate(series.end_s - steps as f64 * series.step_s)?;
            seen += value;
        }
        if known <= 0.0 {
            return None;
        }
        let factor = (seen / known).clamp(*FACTOR.start(), *FACTOR.end());
        // The deviation of a factor that was counted from so many arrivals.
        let arrivals = (seen * series.step_s).max(1.0);
        Some(Forecast {
            rate: factor * then,
            deviation: factor * then / arrivals.sqrt(),
            surge: 0.0,
        })
    }

    /// The rate of the profile at a time, between the middles of its parts.
    fn rate(&self, at_s: f64) -> Option<f64> {
        let place = self.place(at_s) - 0.5;
        let before = place.floor();
        let of = |bin: f64| self.bins[bin.rem_euclid(self.bins.len() as f64) as usize];
        let (low, high) = (of(before)?, of(before + 1.0)?);
        Some(low + (high - low) * (place - before))
    }

    /// The part of a season at a time, with its fraction.
    fn place(&self, at_s: f64) -> f64 {
        (at_s / self.season_s).rem_euclid(1.0) * self.bins.len() as f64
    }
}
