//! Faults of flags.

use stator_runtime::config::ConfigError;

/// Collects faults, so that all are reported at once.
#[derive(Default)]
pub(super) struct Faults(pub(super) Vec<String>);

impl Faults {
    pub(super) fn range<T: PartialOrd + std::fmt::Display>(
        &mut self,
        flag: &str,
        value: T,
        min: T,
        max: T,
    ) {
        if !(&min..=&max).contains(&&value) {
            self.0.push(format!("{flag}: {value} is not in {min}..={max}"));
        }
    }

    pub(super) fn keep<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|faults| self.0.extend(faults.0)).ok()
    }

    pub(super) fn keep_one<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|fault| self.0.push(fault)).ok()
    }

    pub(super) fn none(self) -> Result<(), ConfigError> {
        if self.0.is_empty() { Ok(()) } else { Err(ConfigError(self.0)) }
    }
}
