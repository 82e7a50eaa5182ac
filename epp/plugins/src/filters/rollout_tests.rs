use crate::testing::{Fleet, check_errors, made, routed};
use serde_json::{Value, json};
use stator_epp_scheduler::plugin::{Moment, PluginParts};
use stator_epp_scheduler::{HeaderView, Random, Request, Time};

const TYPE: &str = "disaggregatedset-rollout-screener";
const REVISION: &str = "disaggregatedset.x-k8s.io/revision";
const ROLE: &str = "disaggregatedset.x-k8s.io/role";

fn parameters(mode: &str) -> Value {
    json!({
        "scope": {"labelSelector": "set=mine"},
        "revisionGating": {"mode": mode, "requiredRoles": ["prefill", "decode"]},
    })
}

/// A fleet of so many prefill and decode pods of each revision.
fn fleet(revisions: &[(&str, usize, usize)]) -> Fleet {
    let pods = revisions.iter().flat_map(|(revision, prefill, decode)| {
        let roles = [("prefill", *prefill), ("decode", *decode)];
        let roles = roles.into_iter().flat_map(|(role, count)| std::iter::repeat_n(role, count));
        roles.map(move |role| vec![("set", "mine"), (REVISION, *revision), (ROLE, role)])
    });
    let pods: Vec<_> = pods.collect();
    Fleet::labelled(&pods.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// The revisions of what is left of a fleet, once for each endpoint.
fn left(
    plugin: &PluginParts,
    fleet: &Fleet,
    headers: &[(&str, &str)],
    random: &mut Random,
) -> String {
    let screener = plugin.screener.as_ref().expect("it is a screener");
    let request = Request { headers: HeaderView(headers), ..Request::default() };
    let mut candidates = fleet.candidates();
    screener.screen(&request, &mut candidates, Moment { time: Time::default(), random });
    candidates.iter().filter_map(|left| left.endpoint.label(REVISION)).collect()
}

/// Counts the requests, of 10,000, that are kept to revision `a`; `headers` have a number.
fn share(plugin: &PluginParts, fleet: &Fleet, header: &str) -> f64 {
    let mut random = Random::new(7);
    let kept = (0..10_000).filter(|number| {
        let left = left(plugin, fleet, &[(header, &number.to_string())], &mut random);
        assert!(left == "aaaaaaaaaaa" || left == "bb", "{left} is not one revision");
        left.starts_with('a')
    });
    kept.count() as f64 / 10_000.0
}

#[track_caller]
fn check_share(mode: &str, wanted: f64) {
    let (plugin, fleet) = (made(TYPE, parameters(mode)), fleet(&[("a", 2, 9), ("b", 1, 1)]));
    for header in ["x-other", "x-request-id", "x-llm-d-revision-decision-id"] {
        let share = share(&plugin, &fleet, header);
        assert!((share - wanted).abs() < 0.015, "{header}: {share} is not {wanted}");
    }
}

#[test]
fn requests_are_shared_by_the_pods_of_the_larger_role() {
    check_share("max-role", 0.9);
}

#[test]
fn requests_are_shared_by_the_pods_of_all_roles() {
    check_share("sum", 11.0 / 13.0);
}

#[test]
fn roles_of_equal_size_count_in_their_order() {
    let plugin = made(TYPE, parameters("max-role"));
    let fleet = fleet(&[("a", 3, 1), ("b", 1, 3)]);
    let mut random = Random::new(1);
    let kept = (0..10_000).filter(|_| left(&plugin, &fleet, &[], &mut random) == "aaaa");
    let kept = kept.count();
    assert!((7_300..7_700).contains(&kept), "{kept}");
}

#[test]
fn a_revision_that_lacks_a_role_gets_nothing() {
    let plugin = made(TYPE, parameters("sum"));
    let mut random = Random::new(1);
    let mut check = |fleet: &Fleet, headers: &[(&str, &str)], wanted: &str| {
        assert_eq!(left(&plugin, fleet, headers, &mut random), wanted);
    };
    let of_b = [("x-llm-d-disagg-revision", "b")];
    let rollout = fleet(&[("a", 1, 1), ("b", 0, 5)]);
    check(&rollout, &[], "aa");
    check(&rollout, &of_b, "");
    check(&fleet(&[("a", 2, 0), ("b", 0, 5)]), &[], "");
    check(&fleet(&[("a", 9, 9), ("b", 1, 2)]), &of_b, "bbb");
    check(&fleet(&[("a", 9, 9)]), &of_b, "");
}

#[test]
fn pods_out_of_scope_do_not_cover_a_revision() {
    let out = [("set", "other"), (REVISION, "a"), (ROLE, "prefill")];
    let within = [("set", "mine"), (REVISION, "a"), (ROLE, "decode")];
    let plugin = made(TYPE, parameters("sum"));
    let fleet = Fleet::labelled(&[&out, &within, &[]]);
    assert_eq!(left(&plugin, &fleet, &[], &mut Random::new(1)), "");
}

#[test]
fn ranks_of_one_pod_count_once() {
    let plugin = made(TYPE, parameters("sum"));
    let mut ranks = fleet(&[("a", 1, 7), ("b", 1, 1)]);
    let pod = ranks.endpoints[1].pod.clone();
    for endpoint in &mut ranks.endpoints[1..8] {
        endpoint.pod = pod.clone();
    }
    let mut random = Random::new(1);
    let kept = (0..10_000).filter(|_| left(&plugin, &ranks, &[], &mut random) == "aaaaaaaa");
    let kept = kept.count();
    assert!((4_800..5_200).contains(&kept), "{kept}");
}

#[test]
fn requests_of_one_decision_agree_whatever_the_chance_unless_they_need_not() {
    let fleet = fleet(&[("a", 1, 1), ("b", 1, 1)]);
    let headers = [("x-llm-d-revision-decision-id", "one"), ("x-request-id", "other")];
    let kinds = |parameters: Value| {
        let plugin = made(TYPE, parameters);
        let of = |seed| left(&plugin, &fleet, &headers, &mut Random::new(seed));
        (0..100).map(of).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(kinds(parameters("sum")), 1);
    let mut alone = parameters("sum");
    alone["revisionGating"]["disableCoordination"] = json!(true);
    assert_eq!(kinds(alone), 2);
}

#[test]
fn headers_name_labels_and_answers_carry_them() {
    let plugin = made(
        TYPE,
        json!({
            "scope": {"labelSelector": "set=mine"},
            "headerSelectors": [
                {"name": "revision", "headerName": "X-Rev", "labelKey": REVISION, "mode": "strict"},
                {"name": "role", "headerName": "x-role", "labelKey": ROLE, "mode": "prefer"},
            ],
            "revisionGating": {"mode": "disabled"},
        }),
    );
    let fleet = fleet(&[("a", 1, 0), ("b", 0, 1)]);
    let mut random = Random::new(1);
    let mut check = |headers: &[(&str, &str)], wanted: &str| {
        assert_eq!(left(&plugin, &fleet, headers, &mut random), wanted);
    };
    check(&[("x-role", "decode")], "ab");
    check(&[("x-rev", "b")], "b");
    check(&[("x-rev", "c")], "");
    let writer = plugin.response_headers.as_ref().expect("it stamps answers");
    let stamped = writer.response_headers(&Request::default(), &routed(&fleet.candidates()[1]));
    assert_eq!(stamped, [("x-rev", "b".to_owned()), ("x-role", "decode".to_owned())]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    check_errors(
        TYPE,
        Value::Null,
        &[
            "scope.labelSelector: is required",
            "revisionGating.mode: is required",
            "revisionGating.requiredRoles: is required with sum and max-role",
        ],
    );
    check_errors(
        TYPE,
        json!({
            "scope": {"labelSelector": "a=(b)"},
            "headerSelectors": [{"name": "a", "headerName": "x-a", "labelKey": "a"}],
            "revisionGating": {
                "mode": "most",
                "revisionHeaderName": "x-a",
                "requireRoles": {"values": ["a", "a"]},
            },
        }),
        &[
            "scope.labelSelector: \"a=(b)\" is no part of a label selector",
            "headerSelectors[0].mode: is required",
            "revisionGating.mode: \"most\" is none of sum, max-role, disabled",
            "revisionGating.revisionHeaderName: is the header of another label in headerSelectors",
            "revisionGating.requiredRoles: has a role twice, or one that is empty",
        ],
    );
}
