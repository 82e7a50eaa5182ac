//! Saturation up to which a band is served.

use crate::entry::BandPlace;
use crate::invalid::{InvalidSettings, SettingFindings};

/// Saturation of the pool up to which a band is served.
///
/// Source: the usage limit policies of the llm-d router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UsageLimit {
    /// One limit for all bands.
    Static {
        /// The saturation, above 0; 1 is full.
        threshold: f64,
    },
    /// Linearly less from the highest band to the lowest.
    PriorityHoldback {
        /// Whether it falls with the value of priorities, or with their rank.
        by_value: bool,
        /// The lowest band's, 0 to `max`.
        min: f64,
        /// The highest band's, and that of a single one.
        max: f64,
    },
    /// 1 for a band below which the pool is fuller than `1 - rank · saturation / (bands - 1)` only
    /// now and then: once in `saturation / (1 - saturation)` times, rounded.
    SoftReflective,
}

impl Default for UsageLimit {
    fn default() -> Self {
        Self::Static { threshold: 1.0 }
    }
}

/// Says of heads whether their bands may be served.
#[derive(Clone, Debug, Default)]
pub struct Ceilings {
    limit: UsageLimit,
    /// Times that [`UsageLimit::SoftReflective`] held a band back or made an exception.
    times: u64,
}

impl Ceilings {
    /// Ceilings of this kind.
    ///
    /// # Errors
    ///
    /// [`InvalidSettings`] names each value that is no number in its range.
    pub fn new(limit: UsageLimit) -> Result<Self, InvalidSettings> {
        let mut findings = SettingFindings::default();
        let mut check = |name: &str, value: f64, range: std::ops::RangeInclusive<f64>| {
            if !range.contains(&value) {
                let (least, most) = (range.start(), range.end());
                findings.add(name, value, format_args!("in {least}..={most}"));
            }
        };
        match limit {
            UsageLimit::Static { threshold } => check("threshold", threshold, 0.001..=1000.0),
            UsageLimit::PriorityHoldback { min, max, .. } => {
                check("max", max, 0.001..=1000.0);
                check("min", min, 0.0..=if max.is_nan() { 0.0 } else { max });
            }
            UsageLimit::SoftReflective => {}
        }
        findings.into_result()?;
        Ok(Self { limit, times: 0 })
    }

    /// Fullness of the pool up to which a band is served, at this saturation; 1 is full.
    pub fn ceiling(&self, band: &BandPlace, saturation: f64) -> f64 {
        match self.limit {
            UsageLimit::Static { threshold } => threshold,
            UsageLimit::PriorityHoldback { by_value, min, max } => {
                max - (max - min) * depth(band, by_value)
            }
            UsageLimit::SoftReflective if saturation >= 1.0 || band.rank == 0 => 1.0,
            UsageLimit::SoftReflective => 1.0 - depth(band, false) * saturation.max(0.0),
        }
    }

    /// Whether a band may be served at this saturation of the pool; 1 is full, and so is a
    /// saturation that is no number. Bands below a band that may not be served may not be served
    /// either.
    pub fn admits(&mut self, band: &BandPlace, saturation: f64) -> bool {
        let saturation = if saturation.is_nan() { f64::INFINITY } else { saturation.max(0.0) };
        match self.limit {
            UsageLimit::Static { .. } | UsageLimit::PriorityHoldback { .. } => {
                saturation < self.ceiling(band, saturation)
            }
            UsageLimit::SoftReflective => {
                let reflected = self.ceiling(band, saturation);
                if saturation >= 1.0 || saturation < reflected || band.rank == 0 {
                    return saturation < 1.0;
                }
                self.times = self.times.wrapping_add(1);
                let period = (saturation / (1.0 - saturation)).round().max(1.0);
                // A float converts to the nearest integer there is.
                self.times.is_multiple_of(period as u64)
            }
        }
    }
}

/// Position of a band between the highest, 0, and the lowest, 1.
fn depth(band: &BandPlace, by_value: bool) -> f64 {
    let (below, all) = if by_value {
        let highest = f64::from(band.highest);
        (highest - f64::from(band.priority), highest - f64::from(band.lowest))
    } else {
        (f64::from(band.rank), f64::from(band.bands) - 1.0)
    };
    if all > 0.0 { (below / all).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The middle one of three bands: 100, 90 and 0.
    const MIDDLE: BandPlace =
        BandPlace { priority: 90, rank: 1, bands: 3, highest: 100, lowest: 0 };
    const LOWEST: BandPlace = BandPlace { priority: 0, rank: 2, ..MIDDLE };
    const HIGHEST: BandPlace = BandPlace { priority: 100, rank: 0, ..MIDDLE };

    #[track_caller]
    fn check(limit: UsageLimit, band: BandPlace, ceiling: f64) {
        let mut ceilings = Ceilings::new(limit).expect("the limit is in range");
        assert!(ceilings.admits(&band, ceiling - 1e-9));
        assert!(!ceilings.admits(&band, ceiling));
        assert!(!ceilings.admits(&band, f64::NAN));
    }

    #[test]
    fn a_static_ceiling_is_the_same_for_all() {
        for band in [HIGHEST, MIDDLE, LOWEST] {
            check(UsageLimit::Static { threshold: 0.9 }, band, 0.9);
        }
    }

    #[test]
    fn holdback_falls_linearly_with_rank_or_value() {
        let limit = |by_value| UsageLimit::PriorityHoldback { by_value, min: 0.5, max: 1.0 };
        for (by_value, middle) in [(false, 0.75), (true, 0.95)] {
            check(limit(by_value), HIGHEST, 1.0);
            check(limit(by_value), MIDDLE, middle);
            check(limit(by_value), LOWEST, 0.5);
        }
        let alone = BandPlace { bands: 1, highest: 90, lowest: 90, rank: 0, ..MIDDLE };
        check(limit(false), alone, 1.0);
        check(limit(true), alone, 1.0);
    }

    #[test]
    fn reflective_ceilings_open_less_often_the_fuller_it_is() {
        let share = |band: BandPlace, saturation: f64| {
            let mut ceilings = Ceilings::new(UsageLimit::SoftReflective).expect("it has no values");
            (0..900).filter(|_| ceilings.admits(&band, saturation)).count()
        };
        assert_eq!(share(HIGHEST, 0.99), 900);
        assert_eq!(share(MIDDLE, 0.6), 900, "below 1 - 0.6 / 2");
        assert_eq!(share(MIDDLE, 0.75), 300);
        assert_eq!(share(LOWEST, 0.75), 300);
        assert_eq!(share(LOWEST, 0.9), 100);
        assert_eq!(share(HIGHEST, 1.0) + share(LOWEST, 1.0) + share(LOWEST, f64::NAN), 0);
    }

    #[test]
    fn values_that_are_no_numbers_or_out_of_range_are_all_named() {
        let limit = UsageLimit::PriorityHoldback { by_value: false, min: -1.0, max: f64::NAN };
        let error = Ceilings::new(limit).expect_err("both are wrong").to_string();
        assert_eq!(error, "max: NaN is not in 0.001..=1000; min: -1 is not in 0..=0");
        assert!(Ceilings::new(UsageLimit::Static { threshold: 0.0 }).is_err());
    }
}
