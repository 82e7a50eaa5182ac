//! The screener that keeps prefill and decode of a request to one revision of a rollout.

use crate::context::BuildContext;
use crate::params::Params;
use rustc_hash::FxHashSet;
use stator_epp_scheduler::plugin::{Moment, PluginParts, ResponseHeaders, Routing, Screener};
use stator_epp_scheduler::{Candidate, LabelSelector, Random, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const REVISION_LABEL: &str = "disaggregatedset.x-k8s.io/revision";
const ROLE_LABEL: &str = "disaggregatedset.x-k8s.io/role";
const REVISION_HEADER: &str = "x-llm-d-disagg-revision";
/// Headers that parallel requests for one answer have in common; the first one present counts.
const DECISION_HEADERS: [&str; 2] = ["x-llm-d-revision-decision-id", "x-request-id"];

/// `disaggregatedset-rollout-screener`: leaves every profile the endpoints of one revision.
///
/// A revision is covered if each of `requiredRoles` has a pod that is ready and that
/// `scope.labelSelector` selects. One covered revision is drawn, with a chance in proportion to
/// its weight: `sum` weighs by its pods of all required roles, `max-role` by those of the role
/// that has the most pods in all covered revisions together. Draw: the revision whose `ln(U) / w`
/// is highest, where `U` is random in (0, 1]; unless `disableCoordination` is true, `U` is a hash
/// of the request's decision and the revision, so that parallel requests for one answer agree,
/// at other replicas too. A header that names a revision, or another label by `headerSelectors`
/// of mode `strict`, is obeyed before; where no endpoint is left the request is refused. Answers
/// carry the labels of the chosen endpoint in these headers. `disabled` draws nothing.
///
/// Source: `disaggregatedset-rollout-screener` of the llm-d router, as 0.10 has it
/// (`headerSelectors`, `requireRoles`) and as later versions do. Keys of weighted draws:
/// Efraimidis and Spirakis.
pub(crate) fn rollout(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let scope = params.within("scope", scope);
    let mut marks = params.list("headerSelectors", mark);
    let (revision, gating) = params.within("revisionGating", |params| revision(params, &marks));
    let label = revision.label.clone();
    if !marks.iter().any(|mark| mark.strict && mark.label == label) {
        marks.push(revision);
    }
    let plugin = Arc::new(Rollout { scope, marks, label, gating });
    PluginParts {
        screener: Some(plugin.clone()),
        response_headers: Some(plugin),
        ..PluginParts::default()
    }
}

struct Rollout {
    /// Selects the pods that count.
    scope: LabelSelector,
    marks: Vec<Mark>,
    /// The label that has the revision.
    label: String,
    gating: Option<Gating>,
}

/// A label that a header names.
struct Mark {
    header: &'static str,
    label: String,
    /// Whether endpoints without it are dropped.
    strict: bool,
}

struct Gating {
    weigh: Weigh,
    /// Roles that each revision needs.
    roles: Vec<String>,
    /// The label that has a pod's role.
    label: String,
    coordinated: bool,
}

#[derive(Clone, Copy)]
enum Weigh {
    Sum,
    MaxRole,
}

/// Pods of each required role, by revision.
type Counts<'c> = BTreeMap<&'c str, Vec<u32>>;

fn scope(params: &mut Params<'_>) -> LabelSelector {
    let text = params.required_text("labelSelector");
    LabelSelector::parse(&text).unwrap_or_else(|part| {
        params.wrong("labelSelector", format!("{part:?} is no part of a label selector"));
        LabelSelector::default()
    })
}

fn header(name: &str) -> &'static str {
    // Headers on answers have names that live as long as the process; there are as many of these
    // as are configured.
    name.to_ascii_lowercase().leak()
}

fn mark(params: &mut Params<'_>) -> Mark {
    params.required_text("name");
    if !params.has("mode") {
        params.wrong("mode", "is required");
    }
    Mark {
        header: header(&params.required_text("headerName")),
        label: params.required_text("labelKey"),
        strict: params.choice("mode", &[("strict", true), ("prefer", false)]),
    }
}

/// The revision's own header and label, and how one is drawn.
fn revision(params: &mut Params<'_>, marks: &[Mark]) -> (Mark, Option<Gating>) {
    let text = |given: Option<String>, default: &str| given.unwrap_or_else(|| default.to_owned());
    if !params.has("mode") {
        params.wrong("mode", "is required");
    }
    let modes = [("sum", Some(Weigh::Sum)), ("max-role", Some(Weigh::MaxRole)), ("disabled", None)];
    let weigh = params.choice("mode", &modes);
    let named = params.text("revisionHeaderName");
    let revision = Mark {
        header: header(named.as_deref().unwrap_or(REVISION_HEADER)),
        label: text(params.text("revisionLabelKey"), REVISION_LABEL),
        strict: true,
    };
    let taken = |mark: &Mark| mark.header == revision.header && mark.label != revision.label;
    if marks.iter().any(taken) {
        params.wrong("revisionHeaderName", "is the header of another label in headerSelectors");
    }
    // `requireRoles.values` is the spelling of earlier versions.
    let earlier = params.within("requireRoles", |params| params.texts("values"));
    let mut roles = params.texts("requiredRoles");
    if roles.is_empty() {
        roles = earlier;
    }
    let distinct: FxHashSet<_> = roles.iter().filter(|role| !role.is_empty()).collect();
    if weigh.is_some() && roles.is_empty() {
        params.wrong("requiredRoles", "is required with sum and max-role");
    } else if distinct.len() < roles.len() {
        params.wrong("requiredRoles", "has a role twice, or one that is empty");
    }
    let label = text(params.text("roleLabelKey"), ROLE_LABEL);
    let coordinated = !params.flag("disableCoordination", false);
    (revision, weigh.map(|weigh| Gating { weigh, roles, label, coordinated }))
}

impl Screener for Rollout {
    fn screen(&self, request: &Request<'_>, candidates: &mut Vec<Candidate<'_>>, now: Moment<'_>) {
        for mark in self.marks.iter().filter(|mark| mark.strict) {
            let wanted = request.headers.get(mark.header).filter(|value| !value.is_empty());
            if wanted.is_some() {
                candidates.retain(|candidate| candidate.endpoint.label(&mark.label) == wanted);
            }
        }
        let Some(gating) = &self.gating else { return };
        let chosen = gating.draw(&self.counts(gating, candidates), request, now.random);
        candidates.retain(|candidate| {
            chosen.is_some() && candidate.endpoint.label(&self.label) == chosen
        });
    }
}

impl Rollout {
    /// The pods of each revision; ranks of one pod count once.
    fn counts<'c>(&self, gating: &Gating, candidates: &[Candidate<'c>]) -> Counts<'c> {
        let (mut counts, mut seen) = (Counts::new(), FxHashSet::default());
        for endpoint in candidates.iter().map(|candidate| candidate.endpoint) {
            let role = endpoint.label(&gating.label);
            let role = gating.roles.iter().position(|known| Some(known.as_str()) == role);
            let (Some(revision), Some(role)) = (endpoint.label(&self.label), role) else {
                continue;
            };
            let counts_here = !revision.is_empty()
                && self.scope.selects(|label| endpoint.label(label))
                && seen.insert((&*endpoint.namespace, &*endpoint.pod));
            if counts_here {
                let pods = counts.entry(revision).or_insert_with(|| vec![0; gating.roles.len()]);
                pods[role] += 1;
            }
        }
        counts
    }
}

impl Gating {
    /// The revision that a request keeps to; `None` if none is covered.
    fn draw<'c>(
        &self,
        counts: &Counts<'c>,
        request: &Request<'_>,
        random: &mut Random,
    ) -> Option<&'c str> {
        let covered = || counts.iter().filter(|(_, pods)| pods.iter().all(|pods| *pods > 0));
        let total = |role: usize| covered().map(|(_, pods)| u64::from(pods[role])).sum::<u64>();
        // Of roles that have as many pods the first counts.
        let largest = (0..self.roles.len()).rev().max_by_key(|role| total(*role))?;
        let weight = |pods: &[u32]| match self.weigh {
            Weigh::Sum => pods.iter().map(|pods| f64::from(*pods)).sum(),
            Weigh::MaxRole => f64::from(pods[largest]),
        };
        let given = DECISION_HEADERS.iter().find_map(|header| request.headers.get(header));
        let decision = given.filter(|id| self.coordinated && !id.is_empty());
        let seed = decision.map(|id| xxh3_64(id.as_bytes()));
        let mut key = |revision: &str, pods: &[u32]| {
            let unit = match seed {
                Some(seed) => Random::new(xxh3_64_with_seed(revision.as_bytes(), seed)).unit(),
                None => random.unit(),
            };
            (1.0 - unit).ln() / weight(pods)
        };
        let keys = covered().map(|(revision, pods)| (*revision, key(revision, pods)));
        keys.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(revision, _)| revision)
    }
}

impl ResponseHeaders for Rollout {
    fn response_headers(
        &self,
        _: &Request<'_>,
        routing: &Routing<'_>,
    ) -> Vec<(&'static str, String)> {
        let chosen = routing.primary.targets.first();
        let label = |mark: &Mark| Some((mark.header, chosen?.endpoint.label(&mark.label)?));
        let labels = self.marks.iter().filter_map(label).filter(|(_, value)| !value.is_empty());
        labels.map(|(header, value)| (header, value.to_owned())).collect()
    }
}

#[cfg(test)]
#[path = "rollout_tests.rs"]
mod tests;
