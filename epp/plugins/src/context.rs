//! The context in which plug-ins find each other while they are built.

use crate::hub::LatencyObserver;
use crate::location::{Levels, PeerEndpoint};
use crate::params::Params;
use crate::session::IdSource;
use crate::settings::PluginSettings;
use stator_epp_scheduler::plugin::{Decider, PluginParts};
use stator_epp_scheduler::{Candidate, PrefixMatch};
use stator_placement::{CostModel, SessionSettings, Weights};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The placement core's cost function, as `kv-aware` asks for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvCost {
    /// Unit of the cost.
    pub model: CostModel,
    /// Weights of the cost in blocks.
    pub weights: Weights,
    /// Sessions that make their endpoint cheaper, if any do.
    pub sessions: Option<SessionSettings>,
}

/// State shared by the plug-ins of one configuration while they are built, in the order of their
/// references to each other (see [`crate::references`]).
#[derive(Default)]
pub struct BuildContext {
    /// Names of the scheduling profiles; set before the first plug-in is built.
    pub profiles: Vec<String>,
    /// Plug-ins built so far, by their name in configuration.
    pub built: BTreeMap<String, PluginParts>,
    /// Settings of plug-ins whose work other rooms do, by their name in configuration.
    pub settings: BTreeMap<String, PluginSettings>,
    /// Notes for the operator on plug-ins that were built, by their name in configuration; each
    /// note begins with the path of a parameter.
    pub notes: BTreeMap<String, Vec<String>>,
    /// The placement core's cost function, if a scorer asked for its cost.
    pub kv_cost: Option<KvCost>,
    /// Safety factor of latency objectives, from the latency producer; 1 where there is none.
    pub(crate) slo_factor: SloFactor,
    /// The endpoint that the profile before this one chose.
    pub(crate) peer: PeerEndpoint,
    /// Labels that name an endpoint's topology; known once a `topology-extractor` is built.
    pub(crate) levels: Arc<OnceLock<Levels>>,
    /// Whether a plug-in goes by where an endpoint is.
    pub(crate) topology: bool,
    prefix_sources: BTreeMap<String, PrefixSource>,
    id_sources: BTreeMap<String, Vec<IdSource>>,
    latency_observers: BTreeMap<String, Arc<LatencyObserver>>,
    /// Names of the plug-ins whose type may be there only once, by type.
    only: BTreeMap<&'static str, String>,
    /// Name of the plug-in that is being built.
    name: String,
}

/// A factor that scorers read when they run, because its producer may be built after them.
pub(crate) type SloFactor = Arc<OnceLock<f64>>;

/// Source of a candidate's prefix matches for a plug-in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixSource {
    /// The first approximate producer's.
    #[default]
    Approximate,
    /// The precise index's.
    Precise,
    /// Another approximate producer's, by its number.
    Named(u16),
}

impl PrefixSource {
    /// The match of a candidate, `None` where the producer said nothing.
    pub fn read(self, candidate: &Candidate<'_>) -> Option<PrefixMatch> {
        match self {
            Self::Approximate => candidate.approximate,
            Self::Precise => candidate.precise,
            Self::Named(number) => {
                let named = candidate.found()?.named.iter();
                named.copied().find_map(|(named, found)| (named == number).then_some(found))
            }
        }
    }

    /// Writes a match to where [`PrefixSource::read`] finds it.
    pub(crate) fn write(self, candidate: &mut Candidate<'_>, found: PrefixMatch) {
        match self {
            Self::Approximate => candidate.approximate = Some(found),
            Self::Precise => candidate.precise = Some(found),
            Self::Named(number) => candidate.findings().named.push((number, found)),
        }
    }
}

impl BuildContext {
    /// A context for a configuration with these scheduling profiles.
    pub fn new(profiles: Vec<String>) -> Self {
        Self { profiles, ..Self::default() }
    }

    pub(crate) fn begin(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Hands settings of the plug-in that is being built to another room.
    pub(crate) fn settle(&mut self, settings: PluginSettings) -> PluginParts {
        self.settings.insert(self.name.clone(), settings);
        PluginParts::default()
    }

    /// Leaves an error if there is another plug-in of a type that may be there only once.
    pub(crate) fn claim(&mut self, type_name: &'static str, params: &mut Params<'_>) {
        let owner = self.only.entry(type_name).or_insert_with(|| self.name.clone());
        // The same name comes again where its parameters were wrong and are tried once more.
        if *owner != self.name {
            params.wrong("type", format!("{type_name} may be there only once"));
        }
    }

    /// A place for the matches of the approximate producer that is being built.
    pub(crate) fn new_approximate_source(&mut self) -> PrefixSource {
        if let Some(source) = self.prefix_sources.get(&self.name) {
            return *source;
        }
        let others = self.prefix_sources.values().filter(|s| **s != PrefixSource::Precise).count();
        let source = match u16::try_from(others) {
            Ok(0) | Err(_) => PrefixSource::Approximate,
            Ok(number) => PrefixSource::Named(number),
        };
        self.prefix_sources.insert(self.name.clone(), source);
        source
    }

    /// Makes the plug-in that is being built a name of the precise index.
    pub(crate) fn new_precise_source(&mut self) {
        self.prefix_sources.insert(self.name.clone(), PrefixSource::Precise);
    }

    /// Makes the plug-in that is being built a name for where sessions' identities come from.
    pub(crate) fn new_id_source(&mut self, sources: Vec<IdSource>) {
        self.id_sources.insert(self.name.clone(), sources);
    }

    /// Makes the plug-in that is being built a name for what was observed of latencies.
    pub(crate) fn new_latency_observer(&mut self, observed: Arc<LatencyObserver>) {
        self.latency_observers.insert(self.name.clone(), observed);
    }

    /// Reads `ttftPercentilesProducerName`: whose observations a plug-in goes by.
    pub(crate) fn latency_observer(&self, params: &mut Params<'_>) -> Option<Arc<LatencyObserver>> {
        let name = "ttftPercentilesProducerName";
        let Some(observer) = params.text(name) else {
            params.note(name, "is missing: nothing is known of any endpoint, and all score alike");
            return None;
        };
        let observed = self.latency_observers.get(&observer).cloned();
        if observed.is_none() {
            params.wrong(name, format!("no latency observer is called {observer:?}"));
        }
        observed
    }

    /// Sources of an attribute of requests, by the name of the plug-in that makes it.
    pub(crate) fn id_source(&self, attribute: &str) -> Option<&[IdSource]> {
        self.id_sources.get(attribute).map(Vec::as_slice)
    }

    /// Reads `prefixMatchInfoProducerName`: whose prefix matches a plug-in goes by.
    pub(crate) fn prefix_source(&self, params: &mut Params<'_>) -> PrefixSource {
        let name = "prefixMatchInfoProducerName";
        let Some(producer) = params.text(name) else { return PrefixSource::default() };
        if let Some(source) = self.prefix_sources.get(&producer) {
            return *source;
        }
        params.wrong(name, format!("no prefix producer is called {producer:?}"));
        PrefixSource::default()
    }

    /// Reads a reference to a decider.
    pub(crate) fn decider(
        &self,
        params: &mut Params<'_>,
        parameter: &'static str,
    ) -> Option<Arc<dyn Decider>> {
        let name = params.text(parameter)?;
        let decider = self.built.get(&name).map(|built| built.decider.clone());
        match decider {
            Some(Some(decider)) => Some(decider),
            Some(None) => {
                params.wrong(parameter, format!("plug-in {name:?} is not a decider"));
                None
            }
            None => {
                params.wrong(parameter, format!("no plug-in is called {name:?}"));
                None
            }
        }
    }

    /// Reads the name of a scheduling profile.
    pub(crate) fn profile(
        &self,
        params: &mut Params<'_>,
        parameter: &'static str,
        default: &str,
    ) -> String {
        let given = params.text(parameter);
        let missing = |name: &String| !self.profiles.contains(name);
        if let Some(name) = given.as_ref().filter(|name| missing(name)) {
            params.wrong(parameter, format!("no profile is called {name:?}"));
        }
        given.unwrap_or_else(|| default.to_owned())
    }

    /// The safety factor of latency objectives, for when it is needed.
    pub(crate) fn slo_factor(&self) -> SloFactor {
        Arc::clone(&self.slo_factor)
    }
}
