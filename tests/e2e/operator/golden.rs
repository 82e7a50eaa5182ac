//! Our objects are those of Dynamo's operator, where containers stay as they are.

use super::{data, documents, operator, read};
use serde_json::{Value, json};
use stator_tests::golden::{Bindings, matches};
use stator_tests::kube::Cluster;
use std::path::Path;

/// Version that the golden files were made with.
const VERSION: &str = "1.4.0";
const ORIGIN: &str = "nvidia.com/dynamo-operator-origin-version";
/// Start of the namespaces in the golden files.
const NAMESPACES: &str = "clusterenv-";

/// Compares what a document leads to with a golden file, on a real server, whose defaults count.
async fn check(cluster: &Cluster, input: &Value, output: &Path) {
    let namespace = cluster.namespace().await;
    let mut input = input.clone();
    // As where Grove is installed.
    if output.parent().is_some_and(|pair| pair.ends_with("grove")) {
        input["metadata"]["annotations"]["nvidia.com/workload-provider"] = json!("grove");
    }
    input["metadata"]["namespace"] = json!(namespace.name);
    input["metadata"]["annotations"][ORIGIN] = json!(VERSION);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), input.to_string()).unwrap();
    let file = file.path().display().to_string();
    let made = operator(&["--keep-modules", "explain", &file]);
    let mut objects = Vec::new();
    for object in made.into_iter().filter(|object| object.get("status").is_none()) {
        // Nobody serves these here; the golden files have their defaults.
        objects.push(match object["kind"].as_str() {
            Some("LeaderWorkerSet") => with_defaults(object),
            Some("PodCliqueSet") => object,
            _ => namespace.apply(object).await,
        });
    }
    let (start, _) = namespace.name.split_once('-').unwrap();
    let text = std::fs::read_to_string(output).unwrap().replace(NAMESPACES, &format!("{start}-"));
    let mut bound = Bindings::new();
    let is_graph = |golden: &Value| golden["kind"].as_str().unwrap().starts_with("DynamoGraph");
    for golden in documents(&text).into_iter().filter(|golden| !is_graph(golden)) {
        let of_kind: Vec<_> =
            objects.iter().filter(|object| object["kind"] == golden["kind"]).collect();
        let faults: Vec<_> = of_kind
            .iter()
            .map_while(|object| {
                let mut trial = bound.clone();
                let fault = matches(&golden, object, &mut trial).err();
                if fault.is_none() {
                    bound = trial;
                }
                fault.map(|fault| format!("{}: {fault}", object["metadata"]["name"]))
            })
            .collect();
        let is_found = faults.len() < of_kind.len();
        assert!(is_found, "{}: {}: {faults:#?}", output.display(), golden["metadata"]["name"]);
    }
}

/// Defaults of the LeaderWorkerSet's own webhook.
fn with_defaults(mut set: Value) -> Value {
    set["spec"]["networkConfig"] = json!({ "subdomainPolicy": "Shared" });
    let update = json!({ "maxSurge": 0, "maxUnavailable": 1, "partition": 0 });
    set["spec"]["rolloutStrategy"] =
        json!({ "type": "RollingUpdate", "rollingUpdateConfiguration": update });
    set
}

#[tokio::test]
async fn objects_are_those_of_dynamos_operator() {
    let path = "dynamo-manifests/deploy/operator/internal/controller/testdata";
    let Some(folder) = data(path) else { return };
    let Some(cluster) = Cluster::shared().await else { return };
    for definition in operator(&["crds"]) {
        cluster.define(&serde_yaml_ng::to_string(&definition).unwrap()).await;
    }
    for pair in ["dcd/deployment", "dcd/lws", "dgd/components", "dgd/grove"] {
        let pair = folder.join(pair);
        let input = read(&pair.join("input.yaml")).remove(0);
        check(cluster, &input, &pair.join("output.yaml")).await;
    }
    // A request leads to a graph by profiling; the graph leads to objects.
    for pair in ["dgdr/deployment", "dgdr/lws", "dgdr/grove"] {
        let output = folder.join(pair).join("output.yaml");
        let mut graphs = read(&output);
        let mut graph = graphs
            .remove(graphs.iter().position(|one| one["kind"] == "DynamoGraphDeployment").unwrap());
        graph.as_object_mut().unwrap().remove("status");
        graph["metadata"].as_object_mut().unwrap().remove("$strict");
        check(cluster, &graph, &output).await;
    }
}
