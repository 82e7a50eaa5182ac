//! The study: planners on a fleet in virtual time, under the same requests.
//!
//! Every planner sees the same signals every five seconds and starts with the same workers. Start
//! reading at [`replay`]; `peers` has the laws of other planners, `clairvoyant` the one that knows
//! the future, [`traffic`] the requests.

mod cases;
mod clairvoyant;
mod own;
mod peers;
mod replay;
#[cfg(test)]
mod tests;
pub mod traffic;

pub use cases::Form;
pub use clairvoyant::{Schedule, cheapest_fixed, cheapest_schedule};
pub use own::{Own, seasonal_settings, study_settings};
pub use peers::{DynamoSla, HpaLaw, KedaLaw, PercentLaw};
pub use replay::{ScalingLaw, StudyCase, StudyOutcome, mean_demand, replay};
