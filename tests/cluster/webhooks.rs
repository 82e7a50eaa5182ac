//! Webhooks of an operator in the cluster: what the API server stores has passed them.

use crate::bed::documents;
use hyper::StatusCode;
use serde_json::{Value, json};
use stator_tests::nodes::PodSpace;

const GRAPH: &str = include_str!("../../manifests/operator/graphs/simulated.yaml");

/// Checks that documents are filled in, refused with their faults, and converted.
pub(crate) async fn all_answer(space: &PodSpace<'_>) {
    let mut graph = documents(GRAPH).remove(0);
    let decode = &mut graph["spec"]["components"][2];
    decode.as_object_mut().unwrap().remove("replicas");
    let stored = space.namespace.apply(graph.clone()).await;
    assert_eq!(stored["spec"]["components"][2]["replicas"], 1, "{stored:#}");
    let origin = "nvidia.com/dynamo-operator-origin-version";
    assert!(stored["metadata"]["annotations"][origin].is_string(), "{stored:#}");

    graph["spec"]["components"][2]["sharedMemorySize"] = json!("-1Gi");
    graph["spec"]["components"][0]["frontendSidecar"] = json!("door");
    let refusal = space.namespace.try_apply(graph).await.unwrap_err();
    assert_eq!(refusal.status, StatusCode::UNPROCESSABLE_ENTITY, "{refusal:?}");
    for path in ["components[Decode].sharedMemorySize", "components[Frontend].frontendSidecar"] {
        assert!(refusal.message.contains(path), "{refusal:?}");
    }

    let older = space.object("nvidia.com/v1alpha1", "DynamoGraphDeployment", "simulated");
    let older = space.namespace.api.get(&older).await.unwrap();
    let services = older["spec"]["services"].as_object().unwrap();
    let kinds: Vec<_> = services.values().map(|service| &service["componentType"]).collect();
    assert!(kinds.contains(&&Value::from("frontend")) && services.len() == 3, "{older:#}");
}
