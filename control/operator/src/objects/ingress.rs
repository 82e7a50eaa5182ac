//! Ingresses that services of `v1alpha1` ask for. A graph of `v1beta1` has none: it keeps them in the
//! annotation with its older form.

use super::document::GraphDocument;
use super::object;
use crate::translate::Note;
use serde_json::{Value, json};

/// End of a host where the service names none.
const SUFFIX: &str = "local";
/// Port of the Services of frontends.
const PORT: u16 = 8000;

/// The ingresses of a graph's services, and notes on those that are not made.
pub(super) fn objects(graph: &GraphDocument<'_>, older: &Value) -> (Vec<Value>, Vec<Note>) {
    let (mut objects, mut notes) = (Vec::new(), Vec::new());
    let services = older["spec"]["services"].as_object();
    for (name, service) in services.into_iter().flatten() {
        let said = &service["ingress"];
        let note = |subject: &str, message: &str| Note {
            component: name.clone(),
            container: String::new(),
            subject: subject.to_owned(),
            message: message.to_owned(),
        };
        if said["useVirtualService"] == true {
            notes.push(note("ingress.useVirtualService", "no VirtualService of Istio is made"));
        }
        if said["enabled"] != true {
            continue;
        }
        // Services of workers come and go with their generation.
        match service["componentType"] == "worker" {
            true => notes.push(note("ingress", "belongs to a frontend: workers have none")),
            false => objects.push(ingress(graph, name, said)),
        }
    }
    (objects, notes)
}

fn ingress(graph: &GraphDocument<'_>, service: &str, said: &Value) -> Value {
    let id = format!("{}-{}", graph.name, service.to_lowercase());
    let mut ingress = object("networking.k8s.io/v1", "Ingress", graph.namespace, &id);
    for part in ["annotations", "labels"] {
        if said[part].is_object() {
            ingress["metadata"][part] = said[part].clone();
        }
    }
    let host = host(said);
    let backend = json!({
        "service": { "name": id.replace('.', "-"), "port": { "number": PORT } },
    });
    let path = json!({ "path": "/", "pathType": "Prefix", "backend": backend });
    ingress["spec"] = json!({ "rules": [{ "host": host, "http": { "paths": [path] } }] });
    if let Some(class) = said["ingressControllerClassName"].as_str() {
        ingress["spec"]["ingressClassName"] = class.into();
    }
    if let Some(secret) = said["tls"]["secretName"].as_str() {
        ingress["spec"]["tls"] = json!([{ "hosts": [host], "secretName": secret }]);
    }
    ingress
}

fn host(said: &Value) -> String {
    let text = |name: &str| said[name].as_str().unwrap_or_default();
    let suffix = said["hostSuffix"].as_str().unwrap_or(SUFFIX);
    let host = format!("{}{}", text("hostPrefix"), text("host"));
    if suffix.is_empty() { host } else { format!("{host}.{suffix}") }
}
