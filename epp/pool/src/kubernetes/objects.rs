//! The objects of the API as far as they are read, and their translation into our own types.
//! Fields that are missing have defaults: a newer or older server must not blind the picker.

use super::resource::POOL_GROUP;
use crate::{AppProtocol, PORTS_MAX, Pod, PoolSpec, Rewrite, RewriteRule, RewriteTarget};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stator_kube::meta::{Condition, Metadata, NoFields, Object};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Annotations that name the ports in use, canonical first.
const ACTIVE_PORTS: [&str; 2] =
    ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// The pool that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRef {
    /// Its namespace; pods and policies are looked for there too.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its API group, [`POOL_GROUP`] unless policies refer to another.
    pub group: String,
}

impl PoolRef {
    /// A pool of the usual group.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into(), group: POOL_GROUP.into() }
    }
}

/// Labels of an object.
pub(crate) type Labels = Arc<BTreeMap<String, String>>;

fn object<S: Default + DeserializeOwned>(json: &str) -> serde_json::Result<(Metadata, S)> {
    let object: Object<S> = serde_json::from_str(json)?;
    Ok((object.metadata, object.spec))
}

/// A pod.
///
/// # Errors
///
/// If it is not one.
pub(crate) fn pod(json: &str) -> serde_json::Result<Option<Pod>> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Status {
        #[serde(rename = "podIP")]
        pod_ip: String,
        conditions: Vec<Condition>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        node_name: String,
    }
    // Only the fields that are read: a pod has hundreds, and thousands of pods come at once.
    let Object { metadata, spec, status }: Object<Spec, Status> = serde_json::from_str(json)?;
    let deleting = metadata.is_deleting();
    let active_ports = ACTIVE_PORTS.iter().find_map(|name| metadata.annotations.get(*name));
    Ok(Some(Pod {
        namespace: metadata.namespace.into(),
        name: metadata.name.into(),
        uid: metadata.uid.into(),
        active_ports: active_ports.cloned(),
        labels: Arc::new(metadata.labels),
        node: Some(spec.node_name).filter(|node| !node.is_empty()).map(Arc::from),
        ip: status.pod_ip.parse::<IpAddr>().ok(),
        ready: Condition::is_ready(&status.conditions),
        deleting,
    }))
}

/// Labels of a node, those that are `wanted`.
///
/// # Errors
///
/// If it is not one.
pub(crate) fn node(json: &str, wanted: &[String]) -> serde_json::Result<Option<Labels>> {
    let (metadata, _) = object::<NoFields>(json)?;
    let labels = metadata.labels.into_iter().filter(|(name, _)| wanted.contains(name));
    Ok(Some(Arc::new(labels.collect())))
}

/// An `InferencePool`; `None` if it is being deleted.
///
/// # Errors
///
/// If it is not one.
pub(crate) fn pool(json: &str) -> serde_json::Result<Option<PoolSpec>> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        selector: Selector,
        target_ports: Vec<Port>,
        app_protocol: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Selector {
        match_labels: BTreeMap<String, String>,
    }
    #[derive(Deserialize)]
    struct Port {
        number: u16,
    }
    let (metadata, spec) = object::<Spec>(json)?;
    let app_protocol = match spec.app_protocol.as_deref() {
        Some("kubernetes.io/h2c") => AppProtocol::H2c,
        _ => AppProtocol::Http,
    };
    // The API server holds the limit too, unless its definition is an older one.
    let ports = spec.target_ports.iter().take(PORTS_MAX).map(|port| port.number);
    Ok((!metadata.is_deleting()).then(|| PoolSpec {
        selector: spec.selector.match_labels.into_iter().collect(),
        target_ports: ports.collect(),
        app_protocol,
    }))
}

/// The group that newer llm-d CRDs fill in for the pool of a policy, whatever the pool's own is.
const POLICY_GROUP: &str = "llm-d.ai";

/// The pool that a policy is for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Reference {
    group: Option<String>,
    name: String,
}

impl Reference {
    fn is(&self, pool: &PoolRef) -> bool {
        let group = self.group.as_deref().unwrap_or(POOL_GROUP);
        self.name == pool.name && (group == pool.group || group == POLICY_GROUP)
    }
}

/// The priority of an `InferenceObjective`; `None` if it is another pool's or being deleted.
///
/// # Errors
///
/// If it is not one.
pub(crate) fn objective(json: &str, of: &PoolRef) -> serde_json::Result<Option<i32>> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        priority: Option<i32>,
        pool_ref: Reference,
    }
    let (metadata, spec) = object::<Spec>(json)?;
    let is_ours = spec.pool_ref.is(of) && !metadata.is_deleting();
    Ok(is_ours.then(|| spec.priority.unwrap_or(0)))
}

/// An `InferenceModelRewrite`; `None` if it is another pool's or being deleted.
///
/// # Errors
///
/// If it is not one.
pub(crate) fn rewrite(json: &str, of: &PoolRef) -> serde_json::Result<Option<Rewrite>> {
    let (metadata, spec) = object::<RewriteSpec>(json)?;
    if !spec.pool_ref.is(of) || metadata.is_deleting() {
        return Ok(None);
    }
    let rules = spec.rules.into_iter().map(|rule| RewriteRule {
        models: models(rule.matches),
        targets: rule
            .targets
            .into_iter()
            .map(|target| RewriteTarget { model: target.model_rewrite, weight: target.weight })
            .collect(),
    });
    Ok(Some(Rewrite {
        name: metadata.name,
        created: metadata.creation_timestamp.unwrap_or_default(),
        rules: rules.collect(),
    }))
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RewriteSpec {
    pool_ref: Reference,
    rules: Vec<RuleSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuleSpec {
    matches: Vec<MatchSpec>,
    targets: Vec<TargetSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MatchSpec {
    model: Option<ModelMatch>,
}

#[derive(Deserialize)]
struct ModelMatch {
    r#type: Option<String>,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TargetSpec {
    weight: Option<u32>,
    model_rewrite: String,
}

/// The models that matches name: any of them is enough, none at all means all models, and so
/// does one without a model. A type of match that is not known matches nothing.
fn models(matches: Vec<MatchSpec>) -> Option<Vec<String>> {
    if matches.is_empty() || matches.iter().any(|one| one.model.is_none()) {
        return None;
    }
    let exact = |model: &ModelMatch| model.r#type.as_deref().is_none_or(|kind| kind == "Exact");
    let named = matches.into_iter().filter_map(|one| one.model.filter(exact));
    Some(named.map(|model| model.value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check_pod(object: Value, check: impl FnOnce(Pod)) {
        check(pod(&object.to_string()).expect("a pod").expect("pods are always told of"));
    }

    #[test]
    fn a_pod_is_read_as_far_as_it_matters() {
        let object = json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"},
                "annotations": {"inference.networking.k8s.io/active-ports": "8001"},
            },
            "spec": {"containers": []},
            "status": {"podIP": "fd00::1", "conditions": [
                {"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"},
            ]},
        });
        check_pod(object, |pod| {
            assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("n", "p", "u"));
            assert_eq!(pod.active_ports.as_deref(), Some("8001"));
            assert_eq!(pod.ip, Some("fd00::1".parse().expect("an address")));
            assert!(pod.ready && !pod.deleting);
        });
    }

    #[test]
    fn a_pod_that_starts_or_leaves_is_read_too() {
        check_pod(json!({"metadata": {"name": "p"}}), |pod| {
            assert!(!pod.ready && !pod.deleting && pod.ip.is_none());
        });
        let status = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        let metadata = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {
            "llm-d.ai/active-ports": "1", "inference.networking.k8s.io/active-ports": "2",
        }});
        check_pod(json!({"metadata": metadata, "status": status}), |pod| {
            assert!(!pod.ready && pod.deleting);
            assert_eq!(pod.active_ports.as_deref(), Some("1"));
        });
    }

    #[test]
    fn a_pool_is_read_until_it_is_deleted() {
        let mut object = json!({"metadata": {"name": "p"}, "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "targetPorts": [{"number": 8000}, {"number": 8001}],
            "appProtocol": "kubernetes.io/h2c",
            "endpointPickerRef": {"name": "epp"},
        }});
        let spec = pool(&object.to_string()).expect("a pool").expect("it is there");
        let expected = PoolSpec::standalone("app=x", &[8000, 8001]).expect("a pool");
        assert_eq!(spec, PoolSpec { app_protocol: AppProtocol::H2c, ..expected });
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(pool(&object.to_string()).expect("a pool"), None);
    }

    #[test]
    fn an_objective_is_its_own_pools() {
        let check = |reference: Value, expected: Option<i32>| {
            let object = json!({"spec": {"priority": -2, "poolRef": reference}});
            let of = PoolRef::new("n", "mine");
            assert_eq!(objective(&object.to_string(), &of).expect("an objective"), expected);
        };
        check(json!({"name": "mine"}), Some(-2));
        check(json!({"name": "mine", "group": POOL_GROUP, "kind": "InferencePool"}), Some(-2));
        check(json!({"name": "mine", "group": "llm-d.ai"}), Some(-2));
        check(json!({"name": "mine", "group": "other"}), None);
        check(json!({"name": "other"}), None);
        let nameless = objective("{}", &PoolRef::new("n", "")).expect("an objective");
        assert_eq!(nameless, Some(0));
    }

    #[test]
    fn a_rewrite_keeps_its_rules_in_order() {
        let object = json!({
            "metadata": {"name": "r", "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"poolRef": {"name": "mine"}, "rules": [
                {"matches": [{"model": {"type": "Exact", "value": "a"}}, {"model": {"value": "b"}}],
                 "targets": [{"modelRewrite": "x", "weight": 7}]},
                {"targets": [{"modelRewrite": "y"}]},
                {"matches": [{"model": {"type": "Prefix", "value": "c"}}], "targets": []},
            ]},
        });
        let target = |model: &str, weight| RewriteTarget { model: model.into(), weight };
        let named = Some(vec!["a".to_owned(), "b".to_owned()]);
        let expected = Rewrite {
            name: "r".into(),
            created: "2026-01-02T03:04:05Z".into(),
            rules: vec![
                RewriteRule { models: named, targets: vec![target("x", Some(7))] },
                RewriteRule { models: None, targets: vec![target("y", None)] },
                RewriteRule { models: Some(vec![]), targets: vec![] },
            ],
        };
        let read =
            |pool| rewrite(&object.to_string(), &PoolRef::new("n", pool)).expect("a rewrite");
        assert_eq!(read("mine"), Some(expected));
        assert_eq!(read("other"), None);
    }
}
