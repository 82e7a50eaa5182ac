//! Rights that roles need, as the manifests give them, and those that an installation needs.

use crate::args::RoleName;
use crate::facts::Right;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Manifests with roles.
const MANIFESTS: [&str; 4] = [
    include_str!("../../../manifests/agents/role.yaml"),
    include_str!("../../../manifests/agents/components/planner/planner.yaml"),
    include_str!("../../../manifests/epp/base/role.yaml"),
    include_str!("../../../manifests/operator/operator.yaml"),
];

/// Kinds that an installation creates, by group.
const INSTALLED: [(&str, &[&str]); 5] = [
    ("", &["configmaps", "serviceaccounts", "services"]),
    ("apps", &["deployments"]),
    ("networking.k8s.io", &["networkpolicies"]),
    ("policy", &["poddisruptionbudgets"]),
    ("rbac.authorization.k8s.io", &["roles", "rolebindings"]),
];

impl RoleName {
    /// Names of its roles in the manifests.
    fn manifest_names(self) -> &'static [&'static str] {
        match self {
            Self::Agent => &["stator-agent"],
            Self::Proxy => &["stator-proxy"],
            Self::Epp => &["stator-epp"],
            Self::Operator => &["stator-operator"],
            Self::Planner => &["stator-proxy", "stator-planner-scale"],
        }
    }
}

/// The rights of these roles, each once; without roles those of an installation.
pub(crate) fn needed(roles: &[RoleName]) -> BTreeSet<Right> {
    if roles.is_empty() {
        return installed().collect();
    }
    let names: Vec<_> = roles.iter().flat_map(|role| role.manifest_names()).collect();
    let documents = MANIFESTS.iter().flat_map(|text| serde_yaml_ng::Deserializer::from_str(text));
    let objects = documents.map(|one| Value::deserialize(one).expect("a manifest of ours is YAML"));
    let is_role = |object: &Value| {
        matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))
            && object["metadata"]["name"].as_str().is_some_and(|name| names.contains(&&name))
    };
    objects.filter(is_role).flat_map(|role| rights(&role)).collect()
}

fn installed() -> impl Iterator<Item = Right> {
    INSTALLED.iter().flat_map(|(group, resources)| {
        resources.iter().map(|resource| right("create", group, resource))
    })
}

fn rights(role: &Value) -> Vec<Right> {
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let named: Vec<_> = texts(&rule["resourceNames"]).collect();
        let names = if named.is_empty() { vec![""] } else { named };
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    let all = right(verb, group, resource);
                    let of = |name: &&str| Right { name: (*name).into(), ..all.clone() };
                    rights.extend(names.iter().map(of));
                }
            }
        }
    }
    rights
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn right(verb: &str, group: &str, resource: &str) -> Right {
    Right { verb: verb.into(), group: group.into(), resource: resource.into(), name: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_rights_in_a_manifest() {
        let has = |role, verb, group, resource| {
            let needed = needed(&[role]);
            assert!(needed.contains(&right(verb, group, resource)), "{role:?}: {needed:?}");
        };
        has(RoleName::Agent, "patch", "nvidia.com", "dynamoworkermetadatas");
        has(RoleName::Proxy, "watch", "", "pods");
        has(RoleName::Epp, "list", "inference.networking.k8s.io", "inferencepools");
        has(RoleName::Operator, "create", "apps", "deployments");
        has(RoleName::Planner, "watch", "", "pods");
        let scale =
            Right { name: "stator-decode".into(), ..right("update", "apps", "deployments/scale") };
        assert!(needed(&[RoleName::Planner]).contains(&scale));
    }

    #[test]
    fn rules_may_be_about_one_object() {
        let rule = serde_json::json!({ "apiGroups": ["a"], "resources": ["b"], "verbs": ["get"],
                                       "resourceNames": ["c", "d"] });
        let found = rights(&serde_json::json!({ "rules": [rule] }));
        let of = |name: &str| Right { name: name.into(), ..right("get", "a", "b") };
        assert_eq!(found, [of("c"), of("d")]);
    }

    #[test]
    fn without_roles_the_rights_are_those_of_an_installation() {
        let needed = needed(&[]);
        assert!(needed.contains(&right("create", "apps", "deployments")));
        assert!(needed.iter().all(|right| right.verb == "create"));
    }
}
