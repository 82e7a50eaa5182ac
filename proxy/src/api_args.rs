//! Flags of the API over a fleet: a proxy beside an engine leaves the API to the engine.

use clap::{Args, ValueEnum};
use stator_api::UnknownFields;

/// Treatment of requests, whatever stands behind.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "HTTP")]
pub struct ApiArgs {
    /// Treatment of a request with a field that its API does not have, such as `temprature`. A
    /// field that would change the answer, and that is not implemented, is refused either way.
    #[arg(
        long,
        env = "STATOR_UNKNOWN_FIELDS",
        value_enum,
        default_value_t = UnknownFieldsArg::Refuse,
        value_name = "WHAT"
    )]
    pub unknown_fields: UnknownFieldsArg,
}

/// Values of `--unknown-fields`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UnknownFieldsArg {
    /// The client gets 400 with the field's name.
    #[default]
    Refuse,
    /// The answer's header `x-stator-ignored` names the field.
    Ignore,
}

impl From<UnknownFieldsArg> for UnknownFields {
    fn from(arg: UnknownFieldsArg) -> Self {
        match arg {
            UnknownFieldsArg::Refuse => Self::Refuse,
            UnknownFieldsArg::Ignore => Self::Ignore,
        }
    }
}

impl ApiArgs {
    /// Faults of flags that a proxy beside an engine cannot obey.
    pub(crate) fn faults_beside_an_engine(self) -> impl Iterator<Item = String> {
        let ignores = self.unknown_fields == UnknownFieldsArg::Ignore;
        let fault = "unknown-fields: the engine beside a sidecar reads the fields".to_owned();
        ignores.then_some(fault).into_iter()
    }
}
