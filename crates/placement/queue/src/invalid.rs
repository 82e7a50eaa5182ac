//! Settings that cannot be used, all at once.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest time that can be set for anything.
pub(crate) const LONGEST: Duration = Duration::from_secs(86_400);
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetting {
    /// Its name, as a path from the settings.
    pub name: String,
    /// The invalid value.
    pub value: String,
    /// The valid values.
    pub limit: String,
}

/// All settings that cannot be used; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSettings(pub Vec<InvalidSetting>);

impl fmt::Display for InvalidSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, InvalidSetting { name, value, limit }) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "; " };
            write!(f, "{separator}{name}: {value} is not {limit}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidSettings {}

/// Invalid settings found so far.
#[derive(Default)]
pub(crate) struct SettingFindings(Vec<InvalidSetting>);

impl SettingFindings {
    pub(crate) fn add(&mut self, name: &str, value: impl fmt::Display, limit: impl fmt::Display) {
        let (name, value, limit) = (name.to_owned(), value.to_string(), limit.to_string());
        self.0.push(InvalidSetting { name, value, limit });
    }

    pub(crate) fn range(&mut self, name: &str, value: u64, range: RangeInclusive<u64>) {
        if !range.contains(&value) {
            self.add(name, value, format_args!("in {}..={}", range.start(), range.end()));
        }
    }

    pub(crate) fn duration(
        &mut self,
        name: &str,
        value: Duration,
        range: RangeInclusive<Duration>,
    ) {
        if !range.contains(&value) {
            let limit = format!("in {:?}..={:?}", range.start(), range.end());
            self.add(name, format_args!("{value:?}"), limit);
        }
    }

    pub(crate) fn into_result(self) -> Result<(), InvalidSettings> {
        if self.0.is_empty() { Ok(()) } else { Err(InvalidSettings(self.0)) }
    }
}
