//! Types of plug-ins, as the table lists them.

use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::PluginParts;

/// A type of plug-in.
#[derive(Debug)]
pub struct PluginKind {
    /// Its name in configuration.
    pub type_name: &'static str,
    /// Other names of the type.
    pub aliases: &'static [&'static str],
    /// Whether it can be used.
    pub stability: Stability,
    /// Places in a configuration that the plug-in can take.
    pub places: &'static [PluginPlace],
    /// Producers that the plug-in needs.
    pub needs: &'static [Need],
    pub(crate) make: Make,
}

/// Reads parameters and makes a plug-in; leaves errors in the parameters.
pub(crate) type Make = fn(&mut Params<'_>, &mut BuildContext) -> PluginParts;

/// Whether a type can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// Yes.
    Stable,
    /// Only where experimental plug-ins are allowed.
    Alpha,
    /// Yes, but another one took its place.
    Deprecated,
    /// No: others have it, this program does not.
    Missing,
}

/// A place in a configuration that a plug-in can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginPlace {
    /// Drops endpoints.
    Filter,
    /// Drops endpoints before any profile sees them.
    Screener,
    /// Ranks endpoints.
    Scorer,
    /// Chooses endpoints.
    Picker,
    /// Runs profiles.
    ProfileHandler,
    /// Decides whether to split a request.
    Decider,
    /// Finds out about requests and endpoints.
    Producer,
    /// Refuses requests.
    Admitter,
    /// Adds headers to requests or answers, or reports on them.
    Reporter,
    /// Reads request bodies.
    Parser,
    /// Orders the requests of a flow.
    OrderingPolicy,
    /// Chooses between flows.
    FairnessPolicy,
    /// Limits priority bands.
    UsageLimitPolicy,
    /// Says which requests can be revoked.
    EvictionFilter,
    /// Says which requests are revoked first.
    EvictionOrder,
    /// Says how full a pool is.
    SaturationDetector,
    /// Reads what endpoints tell.
    DataSource,
    /// Makes sense of what a data source read.
    Extractor,
    /// Finds endpoints.
    Discovery,
    /// Shares state with other replicas.
    Syncer,
}

/// A producer that a plug-in depends on; one that is missing is made with its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Type of the producer.
    pub producer: &'static str,
    /// The parameter that names another one instead, if given.
    pub unless: Option<&'static str>,
    /// A parameter and the word, or `true`, that it must have for the need to be there.
    pub when: Option<(&'static str, &'static str)>,
}
