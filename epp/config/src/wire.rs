//! Connects what was built to a [`Plan`].

use crate::document::{Document, PluginEntry, ProfileEntry, Reference};
use crate::findings::Findings;
use crate::plan::{Features, ParserKind, Plan, ResponsePath};
use crate::surroundings::Surroundings;
use stator_epp_plugins::BuildContext;
use stator_epp_plugins::settings::{Concurrency, ConcurrencyMode, Detector, PluginSettings};
use stator_epp_scheduler::plugin::PluginParts;
use stator_epp_scheduler::{NamedPlugin, Profile, Program, Saturation};
use stator_placement::CostModel;
use std::sync::Arc;

/// Types whose plug-ins count what is in flight, or look at answers as a whole. `kv-aware` is not
/// among them unless it is to count in time: what was sent counts until the engine's own report
/// covers it.
const SEE_ANSWERS: [&str; 3] =
    ["inflight-load-producer", "predicted-latency-producer", "request-attribute-reporter"];
/// Further types that look at answers as a whole, where requests wait.
const FAIR_BY_ANSWERS: [&str; 2] = ["program-aware-fairness", "virtual-token-fairness-policy"];
/// The type whose plug-ins look at the head of answers.
const VERIFIER: &str = "destination-endpoint-served-verifier";
const PRECISE: [&str; 2] = ["precise-prefix-cache-producer", "precise-prefix-cache-scorer"];

/// The plan, or `None` if something could not be built, which is a fault already.
pub(crate) fn wire(
    document: &Document,
    context: &BuildContext,
    order: &[usize],
    findings: &Findings,
) -> Option<Plan> {
    let around = Surroundings { document, context, findings };
    let detector = around.detector();
    let program = program(document, context, order, saturation(detector?));
    let gate = |name| document.gates.iter().any(|gate| gate.name == name && gate.on);
    let features = Features { flow_control: gate("flowControl") };
    let parser = |entry: &Reference| ParserKind::of(&document.plugin(&entry.name)?.type_name);
    let is_identity = |settings: &PluginSettings| match settings {
        PluginSettings::AgentIdentity(sources) => Some(sources.clone()),
        _ => None,
    };
    // Everything is looked at before anything is given up, for all faults to be found.
    let metrics = around.metrics();
    around.warn_idle();
    let agent_identity = around.only(is_identity).unwrap_or_default();
    let (tokens, precise, in_flight) = (around.tokens(), around.precise(), around.in_flight());
    let program = program?;
    Some(Plan {
        response_path: response_path(document, context, &program, features),
        parsers: document.parsers.iter().filter_map(parser).collect(),
        tokens,
        precise,
        kv_cost: context.kv_cost,
        in_flight,
        topology: context.topology_labels(),
        metrics,
        discovery: around.discovery(),
        agent_identity,
        reporters: around.reporters(),
        verifies_served: document.plugins.iter().any(|plugin| plugin.type_name == VERIFIER),
        detector: detector?,
        flow_control: around.flow_control()?,
        features,
        program,
    })
}

/// The program that decides; `None` if a profile has no picker or there is no handler.
fn program(
    document: &Document,
    context: &BuildContext,
    order: &[usize],
    saturation: Saturation,
) -> Option<Program> {
    let part = |position: &usize| {
        let entry = &document.plugins[*position];
        Some((entry, context.built.get(&entry.name)?))
    };
    // In the order of building: each producer runs after those that it depends on.
    let parts: Parts<'_> = order.iter().filter_map(part).collect();
    let profiles = document.profiles.iter().map(|entry| profile(entry, &parts));
    let precise = |plugin: &PluginEntry| PRECISE.contains(&plugin.type_name.as_str());
    Some(Program {
        profiles: profiles.collect::<Option<Vec<_>>>()?,
        handler: all(&parts, |built| built.handler.as_ref()).into_iter().next()?,
        screeners: all(&parts, |built| built.screener.as_ref()),
        producers: all(&parts, |built| built.producer.as_ref()),
        observers: all(&parts, |built| built.observer.as_ref()),
        prefixes: all(&parts, |built| built.prefixes.as_ref()),
        shared: all(&parts, |built| built.shared.as_ref()),
        measured: all(&parts, |built| built.measured.as_ref()),
        lookup_meter: None,
        admitters: all(&parts, |built| built.admitter.as_ref()),
        route_headers: all(&parts, |built| built.route_headers.as_ref()),
        response_headers: all(&parts, |built| built.response_headers.as_ref()),
        uses_kv: context.kv_cost.is_some() || document.plugins.iter().any(precise),
        saturation,
    })
}

/// Plug-ins with what they were built into, in the order in which they were built.
type Parts<'p> = Vec<(&'p PluginEntry, &'p PluginParts)>;

fn profile(entry: &ProfileEntry, parts: &Parts<'_>) -> Option<Profile> {
    let (mut filters, mut scorers, mut picker) = (Vec::new(), Vec::new(), None);
    for member in &entry.plugins {
        let part = parts.iter().find(|(plugin, _)| plugin.name == member.reference.name);
        let Some((plugin, built)) = part else { continue };
        filters.extend(built.filter.as_ref().map(|filter| named(plugin, filter)));
        let weight = member.weight.as_ref().map_or(1.0, |weight| weight.value);
        scorers.extend(built.scorer.as_ref().map(|scorer| (named(plugin, scorer), weight)));
        picker = built.picker.as_ref().map(|picker| named(plugin, picker)).or(picker);
    }
    Some(Profile { name: entry.name.clone(), filters, scorers, picker: picker? })
}

/// Everything of one kind.
fn all<T: ?Sized>(
    parts: &Parts<'_>,
    part: impl Fn(&PluginParts) -> Option<&Arc<T>>,
) -> Vec<NamedPlugin<T>> {
    parts.iter().filter_map(|(entry, built)| Some(named(entry, part(built)?))).collect()
}

fn named<T: ?Sized>(entry: &PluginEntry, plugin: &Arc<T>) -> NamedPlugin<T> {
    NamedPlugin {
        type_name: entry.type_name.as_str().into(),
        name: entry.name.as_str().into(),
        plugin: Arc::clone(plugin),
    }
}

/// The scheduler's saturation measure for a detector. The detector's headroom is for filtering
/// only.
fn saturation(detector: Detector) -> Saturation {
    match detector {
        Detector::Utilization(limits) => Saturation::Utilization {
            queue_depth: limits.queue_depth,
            kv_usage: limits.kv_usage,
            staleness: limits.staleness,
        },
        Detector::Concurrency(Concurrency { mode, requests, tokens, .. }) => {
            Saturation::Concurrency {
                requests: (mode != ConcurrencyMode::Tokens).then_some(requests),
                tokens: (mode != ConcurrencyMode::Requests).then_some(tokens),
            }
        }
    }
}

/// Part of an answer that the plug-ins must see. Plug-ins in no profile count too: they run.
fn response_path(
    document: &Document,
    context: &BuildContext,
    program: &Program,
    features: Features,
) -> ResponsePath {
    let types = || document.plugins.iter().map(|plugin| plugin.type_name.as_str());
    let by_answers = |type_name| FAIR_BY_ANSWERS.contains(&type_name);
    let fair = features.flow_control && types().any(by_answers);
    let timed = context.kv_cost.is_some_and(|cost| cost.model == CostModel::Time);
    if fair || timed || types().any(|type_name| SEE_ANSWERS.contains(&type_name)) {
        return ResponsePath::Body;
    }
    let verifies = types().any(|type_name| type_name == VERIFIER);
    match verifies || !program.response_headers.is_empty() {
        true => ResponsePath::Headers,
        false => ResponsePath::Nothing,
    }
}
