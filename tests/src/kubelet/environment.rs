//! The environment and the command line of a container, as its pod's specification gives them.

use super::Node;
use crate::kube_config::decode;
use serde_json::Value;
use stator_kube::ApiError;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Folders where programs are, for containers that name no others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of a container.
///
/// # Errors
///
/// The object that cannot be read, unless the container can do without it.
pub(super) async fn environment(
    node: &Node,
    pod: &Value,
    container: &Value,
    address: Ipv4Addr,
) -> Result<BTreeMap<String, String>, String> {
    let (host, port) = &node.settings.server;
    let name = text(&pod["metadata"]["name"]);
    let mut all = BTreeMap::from([
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOSTNAME".to_owned(), name),
        ("KUBERNETES_SERVICE_HOST".to_owned(), host.clone()),
        ("KUBERNETES_SERVICE_PORT".to_owned(), port.to_string()),
        ("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), port.to_string()),
    ]);
    let namespace = text(&pod["metadata"]["namespace"]);
    for source in items(container, "envFrom") {
        let prefix = text(&source["prefix"]);
        let entries = entries(node, &namespace, source).await?;
        all.extend(entries.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
    }
    for variable in items(container, "env") {
        let source = &variable["valueFrom"];
        let value = match variable["value"].as_str() {
            Some(value) => Some(expand(value, &all)),
            None if source.is_null() => Some(String::new()),
            None => match source["fieldRef"]["fieldPath"].as_str() {
                Some(path) => field(pod, path, address),
                None => referred(node, &namespace, container, source).await?,
            },
        };
        all.extend(value.map(|value| (text(&variable["name"]), value)));
    }
    Ok(all)
}

/// The value of a key of a ConfigMap or a Secret, or of the container's own resources.
async fn referred(
    node: &Node,
    namespace: &str,
    container: &Value,
    source: &Value,
) -> Result<Option<String>, String> {
    if let Some(resource) = source["resourceFieldRef"]["resource"].as_str() {
        let (kind, name) = resource.split_once('.').unwrap_or(("limits", resource));
        return Ok(Some(text(&container["resources"][kind][name])));
    }
    for (said, kind) in [("configMapKeyRef", "configMapRef"), ("secretKeyRef", "secretRef")] {
        let Some(key) = source[said]["key"].as_str() else { continue };
        let from = serde_json::json!({ kind: source[said] });
        let value = entries(node, namespace, &from).await?.remove(key);
        if value.is_none() && source[said]["optional"] != true {
            return Err(format!("{} has no key {key:?}", source[said]["name"]));
        }
        return Ok(value);
    }
    Err(format!("no value comes from {source}"))
}

/// All entries of the ConfigMap or the Secret that `source` names.
async fn entries(
    node: &Node,
    namespace: &str,
    source: &Value,
) -> Result<BTreeMap<String, String>, String> {
    let (plural, reference) = match source["secretRef"].is_object() {
        true => ("secrets", &source["secretRef"]),
        false => ("configmaps", &source["configMapRef"]),
    };
    let files = files(node, plural, namespace, reference).await?;
    let texts = files.into_iter();
    Ok(texts.map(|(name, bytes)| (name, String::from_utf8_lossy(&bytes).into_owned())).collect())
}

/// The data of a ConfigMap or a Secret; nothing of an optional one that is missing.
///
/// # Errors
///
/// The server's words.
pub(super) async fn files(
    node: &Node,
    plural: &str,
    namespace: &str,
    reference: &Value,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let name = reference["name"].as_str().or(reference["secretName"].as_str()).unwrap_or_default();
    let object = match node.object(plural, namespace, name).await {
        Err(ApiError::Absent(_)) if reference["optional"] == true => return Ok(BTreeMap::new()),
        reply => reply.map_err(|error| format!("{plural} {name}: {error}"))?,
    };
    let mut files = BTreeMap::new();
    for (field, is_text) in [("data", plural == "configmaps"), ("binaryData", false)] {
        for (name, value) in object[field].as_object().into_iter().flatten() {
            let said = value.as_str().unwrap_or_default();
            let bytes = if is_text { Some(said.into()) } else { decode(said) };
            files.insert(name.clone(), bytes.unwrap_or_default());
        }
    }
    Ok(files)
}

/// A field of the pod, by the path that a reference has.
pub(super) fn field(pod: &Value, path: &str, address: Ipv4Addr) -> Option<String> {
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = map.trim_start_matches("metadata.");
        return pod["metadata"][map][key].as_str().map(str::to_owned);
    }
    match path {
        "status.podIP" | "status.podIPs" => Some(address.to_string()),
        _ => {
            let value = path.split('.').fold(pod, |value, name| &value[name]);
            Some(text(value))
        }
    }
}

/// Command and arguments of a container; what the image starts where it names no command.
pub(super) fn command(
    container: &Value,
    entry: &str,
    variables: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut words: Vec<_> = items(container, "command").map(text).collect();
    if words.is_empty() {
        words.push(entry.to_owned());
    }
    words.extend(items(container, "args").map(text));
    words.iter().map(|word| expand(word, variables)).collect()
}

/// Replaces `$(NAME)` by the variable, where there is one; `$$` is a dollar.
fn expand(said: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = said;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        match name.and_then(|(name, after)| Some((variables.get(name)?, after))) {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => out.push('$'),
        }
    }
    out + rest
}

/// The items of a list that may be missing.
pub(super) fn items<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    of[list].as_array().into_iter().flatten()
}

/// A value as text; nothing of what is missing.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_to_variables_are_replaced() {
        let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let check = |said: &str, expected: &str| assert_eq!(expand(said, &variables), expected);
        check("--at=$(A):$(A)", "--at=1:1");
        check("$(B) $(A", "$(B) $(A");
        check("$$(A) $$$(A) $", "$(A) $1 $");
        check("${A} $A", "${A} $A");
    }

    #[test]
    fn fields_of_a_pod_are_found_by_their_paths() {
        let pod = json!({
            "metadata": { "name": "p", "labels": { "a/b": "l" } },
            "spec": { "nodeName": "n" },
        });
        let address = Ipv4Addr::new(198, 18, 0, 9);
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(field(&pod, path, address).as_deref(), expected, "{path}");
        };
        check("metadata.name", Some("p"));
        check("metadata.labels['a/b']", Some("l"));
        check("metadata.annotations['c']", None);
        check("spec.nodeName", Some("n"));
        check("status.podIP", Some("198.18.0.9"));
    }

    #[test]
    fn a_container_without_a_command_runs_what_its_image_starts() {
        let none = BTreeMap::new();
        let words = command(&json!({ "args": ["a"] }), "echo", &none);
        assert_eq!(words, ["echo", "a"]);
        assert_eq!(command(&json!({ "command": ["b"] }), "echo", &none), ["b"]);
    }
}
