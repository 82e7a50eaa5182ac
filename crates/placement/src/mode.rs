//! The ways to choose among workers.

use std::fmt;
use std::str::FromStr;

/// Way to choose among the workers that may take a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The least cost by KV overlap and load, see [`crate::Score`].
    #[default]
    Kv,
    /// Each in turn.
    RoundRobin,
    /// Any, all alike.
    Random,
    /// The one with fewer requests in flight, of two taken at random.
    PowerOfTwo,
    /// The one with the fewest requests in flight.
    LeastLoaded,
}

impl Mode {
    /// Every mode, for help texts.
    pub const ALL: [Self; 5] =
        [Self::Kv, Self::RoundRobin, Self::Random, Self::PowerOfTwo, Self::LeastLoaded];

    /// Name in configuration, metrics and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::PowerOfTwo => "power-of-two",
            Self::LeastLoaded => "least-loaded",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No mode has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode {0:?}: expected one of kv, round-robin, random, power-of-two, least-loaded")]
pub struct UnknownMode(pub String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| UnknownMode(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_known_by_its_name() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert!(UnknownMode(String::new()).to_string().contains(mode.name()));
        }
        let unknown = "KV".parse::<Mode>();
        assert_eq!(unknown, Err(UnknownMode("KV".into())));
    }
}
