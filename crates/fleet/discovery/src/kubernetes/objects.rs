//! The objects of the API as far as they are read and written. Fields that are missing have
//! defaults: a newer or older server must not blind anybody.

use crate::record::decode_unleased;
use crate::roster::RecordResult;
use serde::Deserialize;
use serde_json::{Value, json};
use stator_kube::meta::{Condition, NoFields, Object, ObjectReference};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Key of the agents inside the custom resource's data.
const AGENTS: &str = "stator_agents";

/// A pod as it is told to an agent in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) uid: String,
}

/// Content of a custom resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AgentsObject {
    /// Identities of the pods that own it.
    pub(super) owners: Vec<String>,
    /// Published records, by agent.
    pub(super) agents: BTreeMap<String, RecordResult>,
}

/// Reads a custom resource; `None` if it is being deleted, or no agent's.
///
/// # Errors
///
/// If it is not one.
pub(super) fn published(json: &str) -> serde_json::Result<Option<AgentsObject>> {
    #[derive(Default, Deserialize)]
    struct Spec {
        #[serde(default)]
        data: Option<Data>,
    }
    #[derive(Deserialize)]
    struct Data {
        // As `AGENTS`.
        #[serde(default)]
        stator_agents: Option<BTreeMap<String, String>>,
    }
    let Object { metadata, spec, .. }: Object<Spec> = serde_json::from_str(json)?;
    let texts = spec.data.and_then(|data| data.stator_agents).unwrap_or_default();
    if texts.is_empty() || metadata.is_deleting() {
        return Ok(None);
    }
    let agents = texts.into_iter().map(|(agent, text)| {
        let read = decode_unleased(text.as_bytes(), &agent).map(Arc::new);
        (agent, read)
    });
    let owners = metadata.owner_references.into_iter().filter(|owner| owner.kind == "Pod");
    let owners = owners.map(|owner| owner.uid).collect();
    Ok(Some(AgentsObject { owners, agents: agents.collect() }))
}

/// A pod that is not being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedPod {
    /// The identity of the object.
    pub uid: String,
    /// Whether its probes pass.
    pub is_ready: bool,
}

/// Reads a pod; `None` of one that is being deleted.
///
/// # Errors
///
/// If it is not a pod.
pub(super) fn listed_pod(json: &str) -> serde_json::Result<Option<Vec<ListedPod>>> {
    #[derive(Default, Deserialize)]
    struct Status {
        #[serde(default)]
        conditions: Vec<Condition>,
    }
    let Object { metadata, status, .. }: Object<NoFields, Status> = serde_json::from_str(json)?;
    let is_ready = Condition::is_ready(&status.conditions);
    Ok((!metadata.is_deleting()).then(|| vec![ListedPod { uid: metadata.uid, is_ready }]))
}

/// Reads the pods of an EndpointSlice, but for those that are being deleted.
///
/// # Errors
///
/// If it is not one.
pub(super) fn listed_in_slice(json: &str) -> serde_json::Result<Option<Vec<ListedPod>>> {
    #[derive(Deserialize)]
    struct Slice {
        #[serde(default)]
        endpoints: Option<Vec<Endpoint>>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Endpoint {
        #[serde(default)]
        conditions: Conditions,
        #[serde(default)]
        target_ref: ObjectReference,
    }
    #[derive(Default, Deserialize)]
    struct Conditions {
        ready: Option<bool>,
        terminating: Option<bool>,
    }
    let Slice { endpoints } = serde_json::from_str(json)?;
    let pods = endpoints.unwrap_or_default().into_iter().filter(|endpoint| {
        endpoint.target_ref.kind == "Pod" && endpoint.conditions.terminating != Some(true)
    });
    let pods = pods.map(|endpoint| {
        // A condition that is not known reads as ready, as the API says.
        let is_ready = endpoint.conditions.ready != Some(false);
        ListedPod { uid: endpoint.target_ref.uid, is_ready }
    });
    Ok(Some(pods.collect()))
}

/// The custom resource of a pod with one agent's record, or without it: what its agent applies.
pub(super) fn resource(pod: &Pod, record: Option<(&str, String)>) -> Vec<u8> {
    let data = match record {
        Some((agent, text)) => json!({ AGENTS: { agent: text } }),
        // Without the map the server would be left with `data: null`, which the schema forbids.
        None => json!({ AGENTS: {} }),
    };
    let resource: Value = json!({
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoWorkerMetadata",
        "metadata": {
            "name": pod.name,
            // Several may say so of one pod, and none of them holds up its end.
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.name,
                "uid": pod.uid,
                "controller": false,
                "blockOwnerDeletion": false,
            }],
        },
        "spec": { "data": data },
    });
    resource.to_string().into_bytes()
}

#[cfg(test)]
mod object_tests {
    use super::*;
    use crate::record::sample;
    use stator_protos::discovery::AgentRecord;

    #[test]
    fn what_an_agent_applies_is_what_others_read() {
        let pod = Pod { name: "p".into(), uid: "u".into() };
        let record = sample("a", 0);
        let text = serde_json::to_string(&record).unwrap();
        let object = String::from_utf8(resource(&pod, Some(("a", text)))).unwrap();
        let found = published(&object).unwrap().unwrap();
        assert_eq!(found.owners, ["u"]);
        assert_eq!(
            found.agents["a"],
            Ok(Arc::new(AgentRecord { lease_ms: u64::MAX, ..sample("a", 0) }))
        );
        let without = String::from_utf8(resource(&pod, None)).unwrap();
        assert_eq!(published(&without).unwrap(), None);
    }

    #[test]
    fn what_others_keep_in_the_resource_is_no_agent() {
        for data in [
            "null",
            "{}",
            r#"{"stator_agents": null}"#,
            r#"{"endpoints": {"x": {}}, "model_cards": {}}"#,
        ] {
            let object = format!(r#"{{"metadata": {{"name": "p"}}, "spec": {{"data": {data}}}}}"#);
            assert_eq!(published(&object).unwrap(), None, "{data}");
        }
        let nonsense = r#"{"spec": {"data": {"stator_agents": {"a": "{"}}}}"#;
        assert!(published(nonsense).unwrap().unwrap().agents["a"].is_err());
    }

    fn listed(uid: &str, is_ready: bool) -> ListedPod {
        ListedPod { uid: uid.into(), is_ready }
    }

    #[test]
    fn a_pod_is_listed_until_it_is_deleted_ready_or_not() {
        let pod = |metadata: Value, ready: &str| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let pod = json!({"metadata": metadata, "status": {"conditions": conditions}});
            listed_pod(&pod.to_string()).unwrap()
        };
        assert_eq!(pod(json!({"uid": "u"}), "True"), Some(vec![listed("u", true)]));
        assert_eq!(pod(json!({"uid": "u"}), "False"), Some(vec![listed("u", false)]));
        let deleted = json!({"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(pod(deleted, "True"), None);
        let silent = listed_pod(r#"{"metadata": {"uid": "u"}}"#).unwrap();
        assert_eq!(silent, Some(vec![listed("u", false)]));
    }

    #[test]
    fn a_slice_names_the_pods_that_are_ready() {
        let endpoint = |uid: &str, conditions: Value| json!({"targetRef": {"kind": "Pod", "uid": uid}, "conditions": conditions});
        let slice = json!({"endpoints": [
            endpoint("a", json!({"ready": true})),
            endpoint("b", json!({"ready": false})),
            endpoint("c", json!({})),
            endpoint("d", json!({"ready": true, "terminating": true})),
            {"targetRef": {"kind": "Node", "uid": "e"}},
            {},
        ]});
        let pods = listed_in_slice(&slice.to_string()).unwrap();
        let expected = [("a", true), ("b", false), ("c", true)];
        assert_eq!(pods, Some(expected.map(|(uid, ready)| listed(uid, ready)).to_vec()));
        assert_eq!(listed_in_slice(r#"{"endpoints": null}"#).unwrap(), Some(vec![]));
    }
}
