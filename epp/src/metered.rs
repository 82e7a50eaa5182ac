//! Measures how long plug-ins take: each is wrapped where a program is put together, so that the
//! scheduler reads no clock.

use stator_epp_metrics::{
    EncoderCache, LatencyMetrics, PluginMetrics, PluginName, PluginTimer, PrefixIndexer,
};
use stator_epp_scheduler::plugin::{
    Admitter, Filter, LookupMeter, Meter, MeteredPlugin, Moment, Observer, Pick, Picker,
    PlacedRequest, PrefixIndex, Producer, ProfileHandler, RequestLatencies, RequestProgress,
    RouteError, Routing, Scorer, Screener,
};
use stator_epp_scheduler::{
    Candidate, Endpoint, MultimodalItem, NamedPlugin, Profile, Program, Random, Request, Time,
};
use std::sync::Arc;
use std::time::Instant;

/// A plug-in and what measures it.
struct Metered<T: ?Sized> {
    plugin: Arc<T>,
    timer: PluginTimer,
}

impl<T: ?Sized> Metered<T> {
    fn of(metrics: &PluginMetrics, extension_point: &str, named: &NamedPlugin<T>) -> Self {
        let name = PluginName { type_name: &named.type_name, name: &named.name };
        let timer = metrics.timer(extension_point, name);
        Self { plugin: named.plugin.clone(), timer }
    }

    fn time<R>(&self, work: impl FnOnce(&T) -> R) -> R {
        let started = Instant::now();
        let result = work(&self.plugin);
        self.timer.took(started.elapsed());
        result
    }
}

/// The program with measured plug-ins.
///
/// Source: the extension points of `plugin_duration_seconds` in the llm-d router.
pub(crate) fn metered(program: &Program, metrics: &Arc<PluginMetrics>) -> Program {
    fn named<T: ?Sized>(like: &NamedPlugin<T>, plugin: Arc<T>) -> NamedPlugin<T> {
        NamedPlugin { plugin, ..like.clone() }
    }
    // A wrapper around each plug-in: none of them knows metrics.
    let filter = |known: &NamedPlugin<dyn Filter>| {
        named(known, Arc::new(Metered::of(metrics, "Filter", known)) as Arc<dyn Filter>)
    };
    let scorer = |(known, weight): &(NamedPlugin<dyn Scorer>, f64)| {
        let plugin: Arc<dyn Scorer> = Arc::new(Metered::of(metrics, "Scorer", known));
        (named(known, plugin), *weight)
    };
    let profile = |profile: &Profile| Profile {
        name: profile.name.clone(),
        filters: profile.filters.iter().map(filter).collect(),
        scorers: profile.scorers.iter().map(scorer).collect(),
        picker: named(&profile.picker, Arc::new(Metered::of(metrics, "Picker", &profile.picker))),
    };
    let producer = |known: &NamedPlugin<dyn Producer>| {
        let plugin = Metered::of(metrics, "PrepareData", known);
        let is_known = |plugin: &&NamedPlugin<dyn MeteredPlugin>| plugin.name == known.name;
        let found =
            program.measured.iter().find(is_known).map(|plugin| Findings::of(metrics, plugin));
        named(known, Arc::new(Finding { plugin, found }) as Arc<dyn Producer>)
    };
    let screener = |known: &NamedPlugin<dyn Screener>| {
        named(known, Arc::new(Metered::of(metrics, "Screener", known)) as Arc<dyn Screener>)
    };
    let admitter = |known: &NamedPlugin<dyn Admitter>| {
        named(known, Arc::new(Metered::of(metrics, "Admission", known)) as Arc<dyn Admitter>)
    };
    let measured = program.prefixes.iter().map(|index| PrefixFindings::at(metrics, index));
    let handler = Metered::of(metrics, "ProfilePicker", &program.handler);
    Program {
        profiles: program.profiles.iter().map(profile).collect(),
        handler: named(&program.handler, Arc::new(handler)),
        screeners: program.screeners.iter().map(screener).collect(),
        producers: program.producers.iter().map(producer).collect(),
        observers: program.observers.iter().cloned().chain(measured).collect(),
        lookup_meter: Some(Arc::new(Lookups(metrics.clone()))),
        admitters: program.admitters.iter().map(admitter).collect(),
        ..program.clone()
    }
}

/// Measures what an index of prefixes found at the endpoint that was chosen.
struct PrefixFindings {
    index: Arc<dyn PrefixIndex>,
    metrics: PrefixIndexer,
}

impl PrefixFindings {
    fn at(
        metrics: &PluginMetrics,
        named: &NamedPlugin<dyn PrefixIndex>,
    ) -> NamedPlugin<dyn Observer> {
        let NamedPlugin { type_name, name, plugin } = named.clone();
        let names = PluginName { type_name: &type_name, name: &name };
        let found = Self { index: plugin, metrics: metrics.prefix_indexer(names) };
        NamedPlugin { type_name, name, plugin: Arc::new(found) }
    }
}

impl Observer for PrefixFindings {
    fn placed(&self, _: &Request<'_>, placed: &PlacedRequest<'_>, _: Time) {
        /// Bytes of text that count as one token.
        ///
        /// Source: the prefix metrics of the llm-d router.
        const BYTES_PER_TOKEN: u64 = 4;
        let bytes = |tokens: u64| tokens * BYTES_PER_TOKEN;
        let chosen = placed.routing.primary.targets.first();
        if let Some(found) = chosen.and_then(|target| self.index.found(target)) {
            let prompt = u64::from(found.total_blocks) * u64::from(found.block_size);
            self.metrics.found(bytes(found.matched_tokens()), bytes(prompt));
        }
        self.metrics.resized(self.index.entries() as u64);
    }

    fn first_token(&self, _: &RequestProgress<'_>, _: Time) {}

    fn ended(&self, _: &RequestProgress<'_>, _: Time) {}
}

/// Counts what a plug-in finds out.
struct Findings {
    encoder_cache: EncoderCache,
    latency: LatencyMetrics,
}

impl Findings {
    /// The findings of a plug-in, which counts them in `metrics` from now on.
    fn of(
        metrics: &PluginMetrics,
        NamedPlugin { type_name, name, plugin }: &NamedPlugin<dyn MeteredPlugin>,
    ) -> Arc<Self> {
        let names = PluginName { type_name, name };
        let (encoder_cache, latency) = (metrics.encoder_cache(names), metrics.latency(names));
        let findings = Arc::new(Self { encoder_cache, latency });
        plugin.measure_with(findings.clone());
        findings
    }
}

impl Meter for Findings {
    fn items_sought(&self, items: &[MultimodalItem]) {
        self.encoder_cache.sought(items);
    }

    fn items_held(&self, endpoint: &Endpoint, held: &[MultimodalItem], sought: usize) {
        self.encoder_cache.found(endpoint, held, sought);
    }

    fn fared(&self, fared: &RequestLatencies<'_>) {
        self.latency.fared(fared);
    }
}

/// A producer, and what it finds out, if that is counted.
struct Finding {
    plugin: Metered<dyn Producer>,
    found: Option<Arc<Findings>>,
}

impl Producer for Finding {
    fn produce(&self, request: &Request<'_>, candidates: &mut [Candidate<'_>], now: Time) {
        let predicted = |all: &[Candidate<'_>]| all.iter().any(|one| one.latency().is_some());
        let (before, started) = (predicted(candidates), Instant::now());
        self.plugin.time(|plugin| plugin.produce(request, candidates, now));
        let took = started.elapsed();
        if let Some(found) = self.found.as_ref().filter(|_| !before && predicted(candidates)) {
            found.latency.predicted_in(request.asked_model, request.model, took);
        }
    }
}

/// Measures lookups of the KV index.
struct Lookups(Arc<PluginMetrics>);

impl LookupMeter for Lookups {
    fn measure(&self, lookup: &mut dyn FnMut() -> u32) {
        let started = Instant::now();
        let blocks = lookup();
        self.0.looked_up(blocks.into(), started.elapsed());
    }
}

impl Filter for Metered<dyn Filter> {
    fn filter(&self, request: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, now: Moment<'_>) {
        self.time(|plugin| plugin.filter(request, candidates, now));
    }
}

impl Screener for Metered<dyn Screener> {
    fn screen(&self, request: &Request<'_>, candidates: &mut Vec<Candidate<'_>>, now: Moment<'_>) {
        self.time(|plugin| plugin.screen(request, candidates, now));
    }
}

impl Scorer for Metered<dyn Scorer> {
    fn score(
        &self,
        request: &Request<'_>,
        candidates: &[&Candidate<'_>],
        scores: &mut [f64],
        now: Moment<'_>,
    ) {
        self.time(|plugin| plugin.score(request, candidates, scores, now));
    }
}

impl Picker for Metered<dyn Picker> {
    fn pick(&self, scores: &[f64], random: &mut Random) -> Vec<usize> {
        self.time(|plugin| plugin.pick(scores, random))
    }
}

impl Admitter for Metered<dyn Admitter> {
    fn admit(
        &self,
        request: &Request<'_>,
        candidates: &[Candidate<'_>],
        now: Moment<'_>,
    ) -> Result<(), String> {
        self.time(|plugin| plugin.admit(request, candidates, now))
    }
}

impl ProfileHandler for Metered<dyn ProfileHandler> {
    fn route<'a>(
        &self,
        request: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError> {
        self.time(|plugin| plugin.route(request, run))
    }
}

#[cfg(test)]
#[path = "metered_tests.rs"]
mod tests;
