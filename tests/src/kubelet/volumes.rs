//! Volumes of a pod, as folders of this machine.

use super::Node;
use super::environment::{field, files, items, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Seconds for which a token holds; no test lasts so long.
const TOKEN_SECONDS: u32 = 24 * 3600;

/// A folder or a file of this machine, and its place in a container.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mount {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
}

/// Makes the volumes of a pod below `folder`; returns the folder of each by name.
///
/// # Errors
///
/// Fault: something that a volume needs is not there.
pub(super) async fn prepare(
    node: &Node,
    pod: &Value,
    address: Ipv4Addr,
    folder: &Path,
) -> Result<BTreeMap<String, PathBuf>, String> {
    let mut made = BTreeMap::new();
    for volume in items(&pod["spec"], "volumes") {
        let name = text(&volume["name"]);
        let target = folder.join("volumes").join(&name);
        let target = place(node, pod, volume).unwrap_or(target);
        create(&target)?;
        let contents = contents(node, pod, volume, address).await;
        for (path, bytes) in contents.map_err(|error| format!("volume {name}: {error}"))? {
            let file = target.join(path);
            create(file.parent().unwrap_or(&target))?;
            std::fs::write(&file, bytes).map_err(|error| format!("volume {name}: {error}"))?;
        }
        made.insert(name, target);
    }
    Ok(made)
}

/// The mounts of a container.
///
/// # Errors
///
/// A mount of a volume that the pod does not have.
pub(super) fn mounts(
    container: &Value,
    volumes: &BTreeMap<String, PathBuf>,
) -> Result<Vec<Mount>, String> {
    let mounts = items(container, "volumeMounts").map(|mount| {
        let name = text(&mount["name"]);
        let volume = volumes.get(&name).ok_or_else(|| format!("no volume is called {name}"))?;
        let from = volume.join(text(&mount["subPath"]).trim_start_matches('/'));
        Ok(Mount { from, to: text(&mount["mountPath"]).into() })
    });
    mounts.collect()
}

/// The folder of a volume that outlives its pod.
fn place(node: &Node, pod: &Value, volume: &Value) -> Option<PathBuf> {
    if let Some(path) = volume["hostPath"]["path"].as_str() {
        return Some(path.into());
    }
    let claim = volume["persistentVolumeClaim"]["claimName"].as_str()?;
    let namespace = text(&pod["metadata"]["namespace"]);
    Some(node.settings.directory.join("claims").join(namespace).join(claim))
}

/// Files that a volume has from the beginning, by their paths in it.
async fn contents(
    node: &Node,
    pod: &Value,
    volume: &Value,
    address: Ipv4Addr,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let own = ["emptyDir", "hostPath", "persistentVolumeClaim"];
    if own.iter().any(|kind| !volume[kind].is_null()) {
        return Ok(BTreeMap::new());
    }
    let sources: Vec<_> = match volume["projected"]["sources"].as_array() {
        Some(sources) => sources.iter().collect(),
        None => vec![volume],
    };
    let mut all = BTreeMap::new();
    for source in sources {
        all.extend(of_source(node, pod, source, address).await?);
    }
    Ok(all)
}

async fn of_source(
    node: &Node,
    pod: &Value,
    source: &Value,
    address: Ipv4Addr,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let namespace = text(&pod["metadata"]["namespace"]);
    for (kind, plural) in [("configMap", "configmaps"), ("secret", "secrets")] {
        let said = &source[kind];
        if said.is_object() {
            let files = files(node, plural, &namespace, said).await?;
            return chosen(files, said);
        }
    }
    if source["downwardAPI"].is_object() {
        let items = items(&source["downwardAPI"], "items").map(|item| {
            let value = field(pod, &text(&item["fieldRef"]["fieldPath"]), address);
            (text(&item["path"]), value.unwrap_or_default().into_bytes())
        });
        return Ok(items.collect());
    }
    let token = &source["serviceAccountToken"];
    if token.is_object() {
        let path = text(&token["path"]);
        return Ok(BTreeMap::from([(path, self::token(node, pod, token).await?.into_bytes())]));
    }
    Err(format!("the kubelet of the tests knows no {source}"))
}

/// The files that `items` name, under the paths that they give; all without any.
fn chosen(
    mut files: BTreeMap<String, Vec<u8>>,
    said: &Value,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    if said["items"].is_null() {
        return Ok(files);
    }
    let mut chosen = BTreeMap::new();
    for item in items(said, "items") {
        let key = text(&item["key"]);
        match files.remove(&key) {
            Some(bytes) => drop(chosen.insert(text(&item["path"]), bytes)),
            None if said["optional"] == true => {}
            None => return Err(format!("no key {key:?}")),
        }
    }
    Ok(chosen)
}

/// A token of the pod's service account.
async fn token(node: &Node, pod: &Value, said: &Value) -> Result<String, String> {
    let metadata = &pod["metadata"];
    let audiences: Vec<_> = said["audience"].as_str().into_iter().collect();
    let pod_reference = json!({ "apiVersion": "v1", "kind": "Pod", "name": metadata["name"],
        "uid": metadata["uid"] });
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": { "audiences": audiences, "expirationSeconds": TOKEN_SECONDS,
            "boundObjectRef": pod_reference },
    });
    let (namespace, account) =
        (text(&metadata["namespace"]), text(&pod["spec"]["serviceAccountName"]));
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let answer = node.api.call(http::Method::POST, &path, request.to_string().into()).await;
    let answer = answer.map_err(|error| format!("a token of {account}: {error}"))?;
    let answer: Value = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
    Ok(text(&answer["status"]["token"]))
}

/// Creates a folder that every user of a container may write to.
fn create(folder: &Path) -> Result<(), String> {
    let made = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)));
    made.map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_of_a_volume_or_of_a_part_of_it() {
        let volumes = BTreeMap::from([("v".to_owned(), PathBuf::from("/volumes/v"))]);
        let mut mount = json!({ "name": "v", "mountPath": "/etc/v" });
        let check = |mount: &Value, from: &str| {
            let found = mounts(&json!({ "volumeMounts": [mount] }), &volumes).expect("a volume");
            assert_eq!(found, [Mount { from: from.into(), to: "/etc/v".into() }]);
        };
        check(&mount, "/volumes/v/");
        mount["subPath"] = json!("file");
        check(&mount, "/volumes/v/file");
        mount["name"] = json!("w");
        let missing = mounts(&json!({ "volumeMounts": [mount] }), &volumes);
        assert_eq!(missing, Err("no volume is called w".to_owned()));
    }

    #[test]
    fn files_get_the_paths_that_items_give() {
        let files = BTreeMap::from([("a".to_owned(), vec![1]), ("b".to_owned(), vec![2])]);
        let said = json!({ "items": [{ "key": "b", "path": "x/y" }] });
        let found = chosen(files.clone(), &said).expect("the key is there");
        assert_eq!(found, BTreeMap::from([("x/y".to_owned(), vec![2])]));
        assert_eq!(chosen(files.clone(), &json!({})), Ok(files.clone()));
        let said = json!({ "items": [{ "key": "c", "path": "c" }] });
        assert_eq!(chosen(files, &said), Err("no key \"c\"".to_owned()));
    }
}
