//! Endpoints, plug-ins and programs for tests.

use crate::plugin::{Filter, Moment, Pick, Picker, ProfileHandler, RouteError, Routing, Scorer};
use crate::*;
use stator_protos::{WorkerId, WorkerRank};
use std::sync::Arc;

/// An endpoint of a pod of its own, `10.0.0.<number>:8000`.
pub(crate) fn endpoint(number: u8) -> Arc<Endpoint> {
    life(number, "1")
}

/// An endpoint in a certain life of its pod.
pub(crate) fn life(number: u8, uid: &str) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        worker: rank(number),
        uid: uid.into(),
        name: format!("pod{number}-rank-0").into(),
        pod: format!("pod{number}").into(),
        namespace: "default".into(),
        address: ([10, 0, 0, number], 8000).into(),
        labels: Arc::default(),
        roles: Roles { decode: true, ..Roles::default() },
    })
}

pub(crate) fn rank(number: u8) -> WorkerRank {
    WorkerRank { worker: WorkerId(number.into()), rank: 0 }
}

/// Scores 1 less the placement core's cost over 1000, or 0 where there is none.
struct Cheapest;

impl Scorer for Cheapest {
    fn score(&self, _: &Request<'_>, all: &[&Candidate<'_>], scores: &mut [f64], _: Moment<'_>) {
        for (score, candidate) in scores.iter_mut().zip(all) {
            *score = candidate.cost.map_or(0.0, |cost| 1.0 - cost / 1000.0);
        }
    }
}

struct First;

impl Picker for First {
    fn pick(&self, scores: &[f64], _: &mut Random) -> Vec<usize> {
        let best = (0..scores.len()).rev().max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        best.into_iter().collect()
    }
}

/// Keeps what the header `only` names by its pod.
struct Only;

impl Filter for Only {
    fn filter(&self, request: &Request<'_>, all: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        let only = request.headers.get("only");
        all.retain(|candidate| only.is_none_or(|only| only == &*candidate.endpoint.pod));
    }
}

struct Single;

impl ProfileHandler for Single {
    fn route<'a>(
        &self,
        _: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError> {
        let primary = run("default").ok_or(RouteError::Drained)?;
        Ok(Routing { primary, others: Vec::new(), headers: Vec::new(), port: None })
    }
}

fn named<T: ?Sized>(name: &str, plugin: Arc<T>) -> NamedPlugin<T> {
    NamedPlugin { type_name: name.into(), name: name.into(), plugin }
}

/// One profile that takes the cheapest endpoint.
pub(crate) fn program() -> Program {
    let profile = Profile {
        name: "default".into(),
        filters: vec![named("only", Arc::new(Only) as Arc<dyn Filter>)],
        scorers: vec![(named("cheapest", Arc::new(Cheapest) as Arc<dyn Scorer>), 1.0)],
        picker: named("first", Arc::new(First)),
    };
    Program {
        profiles: vec![profile],
        handler: named("single", Arc::new(Single)),
        screeners: Vec::new(),
        producers: Vec::new(),
        observers: Vec::new(),
        prefixes: Vec::new(),
        shared: Vec::new(),
        measured: Vec::new(),
        lookup_meter: None,
        admitters: Vec::new(),
        route_headers: Vec::new(),
        response_headers: Vec::new(),
        uses_kv: true,
        saturation: Saturation::default(),
    }
}
