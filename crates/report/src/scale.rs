//! The range of an axis, and round values in it.

use crate::number::short;

/// The range of an axis; never empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// From zero to the largest value.
    pub fn linear(values: impl Iterator<Item = f64>) -> Self {
        let high = values.fold(0.0, f64::max);
        Self { low: 0.0, high: if high > 0.0 { high * 1.02 } else { 1.0 }, log: false }
    }

    /// From one value to another, larger one.
    pub fn between(low: f64, high: f64) -> Self {
        Self { low, high, log: false }
    }

    /// From the smallest to the largest value above zero; linear where they are within a factor
    /// of ten, since a logarithmic axis would say little then.
    pub fn logarithmic(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let high = values.clone().fold(0.0, f64::max);
        if high > low * 10.0 {
            return Self { low, high, log: true };
        }
        Self::linear(values)
    }

    /// Position of a value on the axis, 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    /// Round values within the range: 1, 2 and 5 in each power of ten as they are needed.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let all =
                powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
            return all.filter(|tick| (self.low..=self.high).contains(tick)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let last = ((self.high - self.low) / step + 1e-9).floor() as u32;
        (0..=last).map(|n| self.low + f64::from(n) * step).collect()
    }
}

/// A tick's value without needless zeros.
pub(crate) fn label(tick: f64) -> String {
    let text = short(tick);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale) -> Vec<String> {
        scale.ticks().into_iter().map(label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::linear([9.0].into_iter())), ["0", "2", "4", "6", "8"]);
        assert_eq!(
            labels(Scale::linear([0.0].into_iter())),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        assert_eq!(labels(Scale::between(0.0, 100.0)), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(
            labels(Scale::logarithmic([0.8, 30.0].into_iter())),
            ["1", "2", "5", "10", "20"]
        );
        assert_eq!(
            labels(Scale::logarithmic([0.5, 20_000.0].into_iter())),
            ["1", "10", "100", "1,000", "10,000"]
        );
    }

    #[test]
    fn values_close_together_get_a_linear_axis() {
        assert!(!Scale::logarithmic([5.0, 20.0].into_iter()).log);
        assert!(!Scale::logarithmic(std::iter::empty()).log);
    }
}
