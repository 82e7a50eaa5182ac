//! Facts about a cluster, asked of its API server. Everything is read; nothing is created but
//! reviews of rights, which the server answers and does not keep.

use super::clock;
use crate::args::DoctorArgs;
use crate::facts::{ClockFacts, ClusterFacts, NodeFact, Right, RightFact};
use crate::rules;
use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};
use stator_kube::{Api, ApiError, Cluster};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Questions that are asked at once.
const ASKED_AT_ONCE: usize = 8;
/// Nodes that are read.
const NODES_MAX: usize = 500;
/// Path of the definition of Dynamo's graphs.
const GRAPHS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/\
                      dynamographdeployments.nvidia.com";

pub(crate) async fn gather(args: &DoctorArgs) -> ClusterFacts {
    let cluster = match Cluster::connect(args.kubeconfig.as_deref()).await {
        Ok(cluster) => cluster,
        Err(error) => return ClusterFacts::without(error.to_string()),
    };
    let api = &cluster.api;
    let namespace = args.namespace.clone().unwrap_or(cluster.namespace);
    let version = match get(api, "/version").await {
        Ok(version) => text(&version["gitVersion"]),
        Err(error) => return ClusterFacts::without(error.to_string()),
    };
    let graphs = get(api, GRAPHS).await.unwrap_or_default();
    let webhook = &graphs["spec"]["conversion"]["webhook"]["clientConfig"]["service"];
    ClusterFacts {
        version: Ok(version),
        clock: Some(clock_of(api).await),
        has_namespace: match get(api, &format!("/api/v1/namespaces/{namespace}")).await {
            Ok(_) => Some(true),
            Err(ApiError::Absent(_)) => Some(false),
            Err(_) => None,
        },
        groups: groups(api).await,
        graphs_converted_by: webhook["name"].as_str().map(str::to_owned),
        rights: rights(api, &namespace, args).await,
        nodes: nodes(api).await,
        namespace,
    }
}

impl ClusterFacts {
    /// Facts about a cluster that does not answer.
    pub(crate) fn without(reason: String) -> Self {
        Self {
            namespace: String::new(),
            version: Err(reason),
            clock: None,
            has_namespace: None,
            groups: BTreeMap::new(),
            graphs_converted_by: None,
            rights: Vec::new(),
            nodes: Ok(Vec::new()),
        }
    }
}

async fn get(api: &Api, path: &str) -> Result<Value, ApiError> {
    let answer = api.call(Method::GET, path, Vec::new()).await?;
    serde_json::from_slice(&answer).map_err(|error| ApiError::Malformed(error.to_string()))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

async fn clock_of(api: &Api) -> ClockFacts {
    let before = SystemTime::now();
    let date = api.date().await.map_err(|error| error.to_string());
    clock::compare("the API server", date, before, SystemTime::now())
}

async fn groups(api: &Api) -> BTreeMap<String, Vec<String>> {
    let answer = get(api, "/apis").await.unwrap_or_default();
    let groups = answer["groups"].as_array().into_iter().flatten();
    let versions = |group: &Value| {
        let versions = group["versions"].as_array().into_iter().flatten();
        versions.map(|version| text(&version["version"])).collect()
    };
    groups.map(|group| (text(&group["name"]), versions(group))).collect()
}

async fn rights(api: &Api, namespace: &str, args: &DoctorArgs) -> Vec<RightFact> {
    let account = args.account.as_ref();
    let user = account.map(|name| format!("system:serviceaccount:{namespace}:{name}"));
    let ask = |right: Right| {
        let user = user.clone();
        async move {
            let allowed = is_allowed(api, namespace, user, &right).await;
            RightFact { right, allowed: allowed.map_err(|error| error.to_string()) }
        }
    };
    let asked = futures::stream::iter(rules::needed(&args.roles)).map(ask);
    asked.buffered(ASKED_AT_ONCE).collect().await
}

async fn is_allowed(
    api: &Api,
    namespace: &str,
    user: Option<String>,
    right: &Right,
) -> Result<bool, ApiError> {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    let mut spec = json!({ "resourceAttributes": {
        "namespace": namespace, "verb": right.verb, "group": right.group,
        "resource": resource, "subresource": subresource, "name": right.name,
    } });
    let kind = match user {
        Some(user) => {
            spec["user"] = user.into();
            "SubjectAccessReview"
        }
        None => "SelfSubjectAccessReview",
    };
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec });
    let path = format!("/apis/authorization.k8s.io/v1/{}s", kind.to_lowercase());
    let answer = api.call(Method::POST, &path, review.to_string().into_bytes()).await?;
    let answer: Value =
        serde_json::from_slice(&answer).map_err(|error| ApiError::Malformed(error.to_string()))?;
    Ok(answer["status"]["allowed"] == true)
}

async fn nodes(api: &Api) -> Result<Vec<NodeFact>, String> {
    let answer = get(api, &format!("/api/v1/nodes?limit={NODES_MAX}")).await;
    let answer = answer.map_err(|error| error.to_string())?;
    Ok(answer["items"].as_array().into_iter().flatten().map(node).collect())
}

fn node(node: &Value) -> NodeFact {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    let counts = |start: &str| {
        let allocatable = node["status"]["allocatable"].as_object().into_iter().flatten();
        let ours = allocatable.filter(|(name, _)| name.starts_with(start));
        ours.filter_map(|(_, count)| count.as_str()?.parse::<u64>().ok()).sum()
    };
    let labels = &node["metadata"]["labels"];
    NodeFact {
        name: text(&node["metadata"]["name"]),
        is_ready: ready.any(|condition| condition["status"] == "True"),
        gpus: counts("nvidia.com/gpu") + counts("nvidia.com/mig-") + counts("amd.com/gpu"),
        is_labelled_gpu: labels["nvidia.com/gpu.present"] == "true",
        rdma: counts("rdma/"),
    }
}
