//! Custom resource definitions of the kinds.

use super::GROUP;
use super::alpha::{
    ModelSpec, ModelStatus, OldComponentDeploymentSpec, OldComponentDeploymentStatus, OldGraphSpec,
    OldGraphStatus, OldRequestSpec, OldRequestStatus, OldScalingAdapterSpec, WorkerMetadataSpec,
};
use super::beta::{
    ComponentDeploymentSpec, ComponentDeploymentStatus, GraphSpec, GraphStatus, RequestSpec,
    RequestStatus, ScalingAdapterSpec, ScalingAdapterStatus,
};
use super::schema::{add_older, schema_of};
use schemars::JsonSchema;
use serde_json::{Value, json};

/// Column of `kubectl get`: heading, type and path.
type Column = (&'static str, &'static str, &'static str);

/// Kind of the group.
struct KindTable {
    name: &'static str,
    short: &'static str,
    /// Columns of the stored version.
    columns: &'static [Column],
    /// Versions, the stored one last.
    versions: Vec<VersionTable>,
}

/// Version of a kind.
struct VersionTable {
    name: &'static str,
    spec: Value,
    status: Option<Value>,
}

const GRAPH: &[Column] = &[
    ("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
    ("Backend", "string", ".spec.backendFramework"),
];
const COMPONENT: &[Column] = &[
    ("Available", "string", ".status.conditions[?(@.type==\"Available\")].status"),
    ("Backend", "string", ".spec.backendFramework"),
];
const REQUEST: &[Column] = &[
    ("Model", "string", ".spec.model"),
    ("Backend", "string", ".spec.backend"),
    ("Phase", "string", ".status.phase"),
    ("Message", "string", ".status.conditions[?(@.type==\"Succeeded\")].message"),
    ("DGD", "string", ".status.dgdName"),
];
const SCALING: &[Column] = &[
    ("DGD", "string", ".spec.dgdRef.name"),
    ("COMPONENT", "string", ".spec.dgdRef.componentName"),
    ("REPLICAS", "integer", ".status.replicas"),
];
const MODEL: &[Column] = &[
    ("BaseModel", "string", ".spec.baseModelName"),
    ("Type", "string", ".spec.modelType"),
    ("Ready", "integer", ".status.readyEndpoints"),
    ("Total", "integer", ".status.totalEndpoints"),
];

/// The definitions of all kinds.
pub(crate) fn definitions() -> Vec<Value> {
    kinds().into_iter().map(definition).collect()
}

fn kinds() -> [KindTable; 6] {
    let graph = vec![
        version::<OldGraphSpec, OldGraphStatus>("v1alpha1"),
        version::<GraphSpec, GraphStatus>("v1beta1"),
    ];
    let component = vec![
        version::<OldComponentDeploymentSpec, OldComponentDeploymentStatus>("v1alpha1"),
        version::<ComponentDeploymentSpec, ComponentDeploymentStatus>("v1beta1"),
    ];
    let request = vec![
        version::<OldRequestSpec, OldRequestStatus>("v1alpha1"),
        version::<RequestSpec, RequestStatus>("v1beta1"),
    ];
    let scaling = vec![
        version::<OldScalingAdapterSpec, ScalingAdapterStatus>("v1alpha1"),
        version::<ScalingAdapterSpec, ScalingAdapterStatus>("v1beta1"),
    ];
    let model = vec![version::<ModelSpec, ModelStatus>("v1alpha1")];
    let metadata =
        VersionTable { name: "v1alpha1", spec: schema_of::<WorkerMetadataSpec>(), status: None };
    [
        kind("DynamoGraphDeployment", "dgd", GRAPH, graph),
        kind("DynamoComponentDeployment", "dcd", COMPONENT, component),
        kind("DynamoGraphDeploymentRequest", "dgdr", REQUEST, request),
        kind("DynamoGraphDeploymentScalingAdapter", "dgdsa", SCALING, scaling),
        kind("DynamoModel", "dm", MODEL, model),
        kind("DynamoWorkerMetadata", "dwm", &[], vec![metadata]),
    ]
}

fn kind(
    name: &'static str,
    short: &'static str,
    columns: &'static [Column],
    versions: Vec<VersionTable>,
) -> KindTable {
    KindTable { name, short, columns, versions }
}

fn version<Spec: JsonSchema, Status: JsonSchema>(name: &'static str) -> VersionTable {
    VersionTable { name, spec: schema_of::<Spec>(), status: Some(schema_of::<Status>()) }
}

fn definition(mut kind: KindTable) -> Value {
    // There is no conversion in the API server: what is stored keeps the form it was written in.
    if let [old, stored] = &mut kind.versions[..] {
        add_older(&mut stored.spec, &old.spec);
        if let (Some(stored), Some(old)) = (&mut stored.status, &mut old.status) {
            add_older(stored, old);
            // The operator writes the newer form, which the API server has to be able to read in the
            // older one too: it compares who set what in the form in which somebody applied it.
            old["x-kubernetes-preserve-unknown-fields"] = true.into();
        }
    }
    let is_scaled = kind.short == "dgdsa";
    let last = kind.versions.len() - 1;
    let versions = kind.versions.into_iter().enumerate().map(|(at, of)| {
        let columns = if at == last { kind.columns } else { &[] };
        let mut version = version_definition(of, columns);
        version["storage"] = (at == last).into();
        if is_scaled {
            version["subresources"]["scale"] = json!({
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            });
        }
        version
    });
    let versions: Vec<_> = versions.collect();
    let singular = kind.name.to_lowercase();
    let plural = format!("{singular}s");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": format!("{}List", kind.name),
                "plural": plural,
                "singular": singular,
                "shortNames": [kind.short],
            },
            "versions": versions,
        },
    })
}

fn version_definition(of: VersionTable, columns: &[Column]) -> Value {
    let columns = columns
        .iter()
        .map(|(name, kind, path)| json!({ "name": name, "type": kind, "jsonPath": path }));
    let age = json!({ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" });
    let columns: Vec<_> = columns.chain([age]).collect();
    let mut version = json!({
        "name": of.name,
        "served": true,
        "additionalPrinterColumns": columns,
        "schema": { "openAPIV3Schema": {
            "type": "object",
            "properties": {
                "apiVersion": { "type": "string" },
                "kind": { "type": "string" },
                "metadata": { "type": "object" },
                "spec": of.spec,
            },
        } },
    });
    if let Some(status) = of.status {
        version["schema"]["openAPIV3Schema"]["properties"]["status"] = status;
        version["subresources"] = json!({ "status": {} });
    }
    version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_version_of_each_kind_is_stored() {
        for definition in definitions() {
            let versions = definition["spec"]["versions"].as_array().expect("there are versions");
            let stored: Vec<_> = versions.iter().map(|of| of["storage"] == true).collect();
            assert_eq!(stored.iter().filter(|stored| **stored).count(), 1, "{definition:#}");
            assert_eq!(stored.last(), Some(&true));
        }
    }

    /// `required` of a list's key may not go: the API server merges by it.
    #[test]
    fn components_are_merged_by_name() {
        let graph = &definitions()[0]["spec"]["versions"][1]["schema"]["openAPIV3Schema"];
        let spec = &graph["properties"]["spec"]["properties"];
        assert_eq!(spec["components"]["items"]["required"], json!(["name"]));
        assert_eq!(spec["components"]["maxItems"], 25);
        assert!(spec["services"].is_object(), "what was written as v1alpha1 is kept");
    }
}
