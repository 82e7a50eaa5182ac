//! A small fleet, and short ways to build and run plug-ins, for tests.

use crate::{BuildContext, build};
use serde_json::Value;
use stator_epp_scheduler::plugin::{Filter, Moment, Pick, PluginParts, Routing, Scorer};
use stator_epp_scheduler::{
    Candidate, Endpoint, EngineLoad, InFlight, PrefixMatch, Random, Request, Roles, Time,
};
use stator_protos::{WorkerId, WorkerRank};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Endpoints `10.0.0.1:8000`, `10.0.0.2:8000`... with what is known of them.
pub(crate) struct Fleet {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) loads: Vec<EngineLoad>,
    pub(crate) in_flight: Vec<InFlight>,
}

impl Fleet {
    pub(crate) fn of(size: u8) -> Self {
        Self {
            endpoints: (0..size).map(|number| endpoint(number, &[])).collect(),
            loads: vec![EngineLoad::default(); size.into()],
            in_flight: vec![InFlight::default(); size.into()],
        }
    }

    /// A fleet of one endpoint for each set of labels.
    pub(crate) fn labelled(labels: &[&[(&str, &str)]]) -> Self {
        let mut fleet = Self::of(labels.len() as u8);
        for (number, labels) in (0..).zip(labels) {
            fleet.endpoints[usize::from(number)] = endpoint(number, labels);
        }
        fleet
    }

    /// A fleet whose loads are made from values.
    pub(crate) fn loaded<T: Copy>(values: &[T], load: impl Fn(T) -> EngineLoad) -> Self {
        let mut fleet = Self::of(values.len() as u8);
        fleet.loads = values.iter().map(|value| load(*value)).collect();
        fleet
    }

    pub(crate) fn candidates(&self) -> Vec<Candidate<'_>> {
        let known = self.endpoints.iter().zip(&self.loads).zip(&self.in_flight);
        known.map(|((endpoint, load), sent)| Candidate::new(endpoint, load, *sent)).collect()
    }
}

fn endpoint(number: u8, labels: &[(&str, &str)]) -> Endpoint {
    let labels: BTreeMap<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let name: Arc<str> = format!("pod-{number}-rank-0").into();
    Endpoint {
        worker: WorkerRank { worker: WorkerId(number.into()), rank: 0 },
        uid: format!("uid-{number}").into(),
        pod: format!("pod-{number}").into(),
        namespace: "models".into(),
        address: ([10, 0, 0, number + 1], 8000).into(),
        roles: Roles::of(&labels),
        labels: Arc::new(labels),
        name,
    }
}

/// A match of some of a prompt's blocks of 16 tokens.
pub(crate) fn matched(blocks: u32, of: u32) -> PrefixMatch {
    PrefixMatch {
        matched_blocks: blocks,
        total_blocks: of,
        block_size: 16,
        weighted_blocks: blocks.into(),
    }
}

/// A plug-in of a configuration whose only profile is `default`.
pub(crate) fn made(type_name: &str, parameters: Value) -> PluginParts {
    let mut context = BuildContext::new(vec!["default".to_owned()]);
    build(type_name, type_name, &parameters, &mut context).expect("the parameters are right")
}

/// Asserts that parameters are refused with exactly these errors.
pub(crate) fn check_errors(type_name: &str, parameters: Value, wanted: &[&str]) {
    let mut context = BuildContext::new(vec!["default".to_owned()]);
    let built = build(type_name, type_name, &parameters, &mut context);
    assert_eq!(built.err().unwrap_or_default(), wanted);
}

/// The scores of all candidates.
pub(crate) fn scores(
    scorer: &dyn Scorer,
    request: &Request<'_>,
    candidates: &[Candidate<'_>],
) -> Vec<f64> {
    let mut scores = vec![f64::NAN; candidates.len()];
    let candidates: Vec<_> = candidates.iter().collect();
    let now = Moment { time: Time::default(), random: &mut Random::new(1) };
    scorer.score(request, &candidates, &mut scores, now);
    scores
}

/// Asserts the scores of candidates, to a millionth.
pub(crate) fn check_scores(
    scorer: &dyn Scorer,
    request: &Request<'_>,
    candidates: &[Candidate<'_>],
    wanted: &[f64],
) {
    let scores = scores(scorer, request, candidates);
    let alike = scores.iter().zip(wanted).all(|(score, wanted)| (score - wanted).abs() < 1e-6);
    assert!(alike && scores.len() == wanted.len(), "{scores:?} is not {wanted:?}");
}

/// Numbers of the endpoints that a filter keeps.
pub(crate) fn kept(
    filter: &dyn Filter,
    request: &Request<'_>,
    candidates: Vec<Candidate<'_>>,
) -> Vec<u64> {
    let mut candidates = candidates.iter().collect();
    let now = Moment { time: Time::default(), random: &mut Random::new(1) };
    filter.filter(request, &mut candidates, now);
    candidates.iter().map(|candidate| candidate.endpoint.worker.worker.0).collect()
}

/// A routing to one candidate.
pub(crate) fn routed<'a>(candidate: &Candidate<'a>) -> Routing<'a> {
    Routing::to(Pick { targets: vec![candidate.clone()] })
}
