//! Filters that go by the labels of endpoints, as a configuration says; the needs of single requests
//! are the placement core's.

use super::filter;
use crate::context::BuildContext;
use crate::location::PeerEndpoint;
use crate::params::Params;
use stator_epp_scheduler::plugin::{Filter, Moment, PluginParts};
use stator_epp_scheduler::{Candidate, LabelSelector, LabelTest, Request, Requirement};

/// `label-selector-filter`: keeps endpoints that a Kubernetes label selector selects.
///
/// All of `matchLabels` and of `matchExpressions` must hold; operators are `In`, `NotIn`,
/// `Exists` and `DoesNotExist`. An empty selector keeps all.
pub(crate) fn label_selector(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    filter(Selected(selector(params)))
}

/// `by-label-selector`: `label-selector-filter` under its old name.
pub(crate) fn by_label_selector(
    params: &mut Params<'_>,
    context: &mut BuildContext,
) -> PluginParts {
    label_selector(params, context)
}

/// `by-label`: keeps endpoints whose `label` has one of `validValues`, and with `allowsNoLabel`
/// those without it.
pub(crate) fn by_label(params: &mut Params<'_>, _: &mut BuildContext) -> PluginParts {
    let by_label = ByLabel {
        label: params.required_text("label"),
        values: params.texts("validValues"),
        or_absent: params.flag("allowsNoLabel", false),
    };
    if by_label.values.is_empty() && !by_label.or_absent {
        params.wrong("validValues", "is required unless allowsNoLabel is true");
    }
    filter(by_label)
}

/// `peer-label-filter`: keeps endpoints whose `label` has the value that it has at the endpoint which
/// an earlier profile chose for the request. All are kept if no profile chose before, or if that
/// endpoint has no such label.
pub(crate) fn peer_label(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    filter(PeerLabel { label: params.required_text("label"), peer: context.peer.clone() })
}

#[derive(Clone, Copy)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

fn selector(params: &mut Params<'_>) -> LabelSelector {
    let mut selector: LabelSelector = params.text_map("matchLabels").into_iter().collect();
    selector.0.extend(params.list("matchExpressions", expression));
    selector
}

fn expression(params: &mut Params<'_>) -> Requirement {
    let label = params.required_text("key");
    if !params.has("operator") {
        params.wrong("operator", "is required");
    }
    let operator = params.choice(
        "operator",
        &[
            ("In", Operator::In),
            ("NotIn", Operator::NotIn),
            ("Exists", Operator::Exists),
            ("DoesNotExist", Operator::DoesNotExist),
        ],
    );
    let values = params.texts("values");
    // As Kubernetes judges its selectors, so that no expression silently selects all.
    let wants_values = matches!(operator, Operator::In | Operator::NotIn);
    if wants_values && values.is_empty() {
        params.wrong("values", "is required with In and NotIn");
    } else if !wants_values && !values.is_empty() {
        params.wrong("values", "must be empty with Exists and DoesNotExist");
    }
    let test = match operator {
        Operator::In => LabelTest::In(values),
        Operator::NotIn => LabelTest::NotIn(values),
        Operator::Exists => LabelTest::Exists,
        Operator::DoesNotExist => LabelTest::DoesNotExist,
    };
    Requirement { label, test }
}

struct Selected(LabelSelector);

impl Filter for Selected {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        candidates.retain(|candidate| self.0.selects(|label| candidate.endpoint.label(label)));
    }
}

struct ByLabel {
    label: String,
    values: Vec<String>,
    or_absent: bool,
}

impl Filter for ByLabel {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        candidates.retain(|candidate| match candidate.endpoint.label(&self.label) {
            None => self.or_absent,
            Some(value) => self.values.iter().any(|valid| valid == value),
        });
    }
}

struct PeerLabel {
    label: String,
    peer: PeerEndpoint,
}

impl Filter for PeerLabel {
    fn filter(&self, _: &Request<'_>, candidates: &mut Vec<&Candidate<'_>>, _: Moment<'_>) {
        let peer = self.peer.0.lock();
        if let Some(value) = peer.as_ref().and_then(|peer| peer.label(&self.label)) {
            candidates.retain(|candidate| candidate.endpoint.label(&self.label) == Some(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PeerLabel;
    use crate::location::PeerEndpoint;
    use crate::testing::{Fleet, check_errors, kept, made};
    use serde_json::{Value, json};
    use stator_epp_scheduler::Request;

    fn check(type_name: &str, parameters: Value, wanted: &[u64]) {
        let fleet = Fleet::labelled(&[
            &[("tier", "gold"), ("zone", "a")],
            &[("tier", "iron"), ("zone", "b")],
            &[("zone", "a")],
        ]);
        let filter = made(type_name, parameters).filter.expect("it is a filter");
        assert_eq!(kept(&*filter, &Request::default(), fleet.candidates()), wanted);
    }

    fn check_expression(expression: Value, wanted: &[u64]) {
        check("label-selector-filter", json!({"matchExpressions": [expression]}), wanted);
    }

    #[test]
    fn selectors_select_as_in_kubernetes() {
        check("label-selector-filter", Value::Null, &[0, 1, 2]);
        check("label-selector-filter", json!({"matchLabels": {"zone": "a"}}), &[0, 2]);
        check("by-label-selector", json!({"matchLabels": {"zone": "a", "tier": "iron"}}), &[]);
        check_expression(json!({"key": "tier", "operator": "In", "values": ["gold"]}), &[0]);
        check_expression(json!({"key": "tier", "operator": "NotIn", "values": ["gold"]}), &[1, 2]);
        check_expression(json!({"key": "tier", "operator": "Exists"}), &[0, 1]);
        check_expression(json!({"key": "tier", "operator": "DoesNotExist"}), &[2]);
    }

    #[test]
    fn by_label_keeps_valid_values_and_the_unlabelled_if_allowed() {
        check("by-label", json!({"label": "tier", "validValues": ["iron"]}), &[1]);
        let allowed = json!({"label": "tier", "validValues": ["iron"], "allowsNoLabel": true});
        check("by-label", allowed, &[1, 2]);
    }

    #[test]
    fn an_endpoint_of_the_peers_kind_is_kept() {
        let fleet = Fleet::labelled(&[&[("revision", "a")], &[("revision", "b")], &[]]);
        let check = |chosen: Option<usize>, wanted: &[u64]| {
            let peer = PeerEndpoint::default();
            let candidates = fleet.candidates();
            *peer.0.lock() = chosen.map(|at| candidates[at].endpoint.clone());
            let filter = PeerLabel { label: "revision".to_owned(), peer };
            assert_eq!(kept(&filter, &Request::default(), candidates), wanted);
        };
        check(None, &[0, 1, 2]);
        check(Some(1), &[1]);
        check(Some(2), &[0, 1, 2]);
        check_errors("peer-label-filter", json!({}), &["label: is required"]);
    }

    #[test]
    fn selectors_that_make_no_sense_are_refused() {
        check_errors(
            "label-selector-filter",
            json!({"matchExpressions": [
                {"key": "a", "operator": "In"},
                {"key": "b", "operator": "Exists", "values": ["c"]},
                {"operator": "Like"},
            ]}),
            &[
                "matchExpressions[0].values: is required with In and NotIn",
                "matchExpressions[1].values: must be empty with Exists and DoesNotExist",
                "matchExpressions[2].key: is required",
                "matchExpressions[2].operator: \"Like\" is none of In, NotIn, Exists, DoesNotExist",
                "matchExpressions[2].values: is required with In and NotIn",
            ],
        );
        check_errors(
            "by-label",
            json!({}),
            &["label: is required", "validValues: is required unless allowsNoLabel is true"],
        );
        check_errors(
            "by-label-selector",
            json!({"matchExpressions": [{"key": "a"}]}),
            &[
                "matchExpressions[0].operator: is required",
                "matchExpressions[0].values: is required with In and NotIn",
            ],
        );
    }
}
