//! The bound on the way of KV that a graph may set: agents say where they stand, and frontends keep the
//! two workers of a request that near.

use super::instance::Instance;
use crate::kinds::common::KvTransferPolicy;
use serde_json::{Value, json};

/// Annotation of components with the bound, as JSON.
pub(super) const NEARNESS: &str = "stator.dev/kv-transfer";

/// Labels of nodes whose values pods know of themselves: the part of the fleet that stator calls them,
/// and the field of the pod. Kubernetes copies the labels of zones and regions to pods since 1.35.
const KNOWN: [(&str, &str, &str); 3] = [
    ("kubernetes.io/hostname", "host", "spec.nodeName"),
    ("topology.kubernetes.io/zone", "zone", "metadata.labels['topology.kubernetes.io/zone']"),
    ("topology.kubernetes.io/region", "zone", "metadata.labels['topology.kubernetes.io/region']"),
];

/// The annotation's value for a policy.
///
/// # Errors
///
/// The reason where pods cannot know where they stand.
pub(super) fn annotation(policy: &KvTransferPolicy) -> Result<Value, String> {
    let said = policy.label_key.as_deref().unwrap_or_default();
    let Some((label, ..)) = KNOWN.iter().find(|(label, ..)| *label == said) else {
        let known = KNOWN.map(|(label, ..)| label).join(", ");
        return Err(format!("has no effect: labelKey is {said:?}, pods know only {known}"));
    };
    let is_required = policy.enforcement.as_deref() != Some("preferred");
    Ok(json!(json!({ "label": label, "required": is_required }).to_string()))
}

/// Has a pod's containers of stator's roles keep to the bound of their component.
pub(super) fn keep(of: &Instance, template: &mut Value) {
    let metadata = of.shape.pod_template.as_ref().and_then(|said| said.0.get("metadata"));
    let text = metadata.and_then(|metadata| metadata["annotations"][NEARNESS].as_str());
    let bound: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
    let Some(bound) = bound else { return };
    let Some((_, part, field)) = KNOWN.iter().find(|(label, ..)| bound["label"] == *label) else {
        return;
    };
    let containers = template["spec"]["containers"].as_array_mut().into_iter().flatten();
    for container in containers.filter(|container| container["command"] == json!(["stator"])) {
        let role = container["args"][0].clone();
        if role == "agent" {
            let name = format!("STATOR_TOPOLOGY_{}", part.to_uppercase());
            let source = json!({ "fieldRef": { "fieldPath": field } });
            let mut env = container["env"].as_array().cloned().unwrap_or_default();
            env.push(json!({ "name": name, "valueFrom": source }));
            container["env"] = env.into();
        } else if role == "proxy" && bound["required"] == true {
            let mut args = container["args"].as_array().cloned().unwrap_or_default();
            args.push(json!(format!("--router-split-within={part}")));
            container["args"] = args.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(label: &str, enforcement: &str) -> KvTransferPolicy {
        let policy = json!({ "domain": "d", "labelKey": label, "enforcement": enforcement });
        serde_json::from_value(policy).expect("a policy")
    }

    fn kept(policy: &KvTransferPolicy, role: &str) -> Value {
        let annotation = annotation(policy).expect("the label is known");
        let document = json!({
            "metadata": { "name": "c" },
            "spec": { "podTemplate": { "metadata": { "annotations": { NEARNESS: annotation } } } },
        });
        let of = Instance::read(&document).expect("a component");
        let container = json!({ "command": ["stator"], "args": [role] });
        let mut template = json!({ "spec": { "containers": [container] } });
        keep(&of, &mut template);
        template["spec"]["containers"][0].take()
    }

    #[test]
    fn agents_say_where_they_stand_and_frontends_keep_to_it() {
        let zone = policy("topology.kubernetes.io/zone", "required");
        let agent = kept(&zone, "agent");
        let field = &agent["env"][0]["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!(agent["env"][0]["name"], "STATOR_TOPOLOGY_ZONE");
        assert_eq!(field, "metadata.labels['topology.kubernetes.io/zone']");
        let within = json!(["proxy", "--router-split-within=zone"]);
        assert_eq!(kept(&zone, "proxy")["args"], within);
        // The cost of the way prefers near workers by itself.
        let host = policy("kubernetes.io/hostname", "preferred");
        assert_eq!(kept(&host, "proxy")["args"], json!(["proxy"]));
        assert_eq!(kept(&host, "agent")["env"][0]["name"], "STATOR_TOPOLOGY_HOST");
    }

    #[test]
    fn a_label_that_pods_do_not_know_is_said() {
        let fault = annotation(&policy("rack", "required")).expect_err("it is unknown");
        assert!(fault.contains("labelKey is \"rack\""), "{fault}");
    }
}
