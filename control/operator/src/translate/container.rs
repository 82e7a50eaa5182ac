//! A pod's containers, translated.

use super::Note;
use super::launch::{ModuleLaunch, launch};
use super::line::RoleLine;
use super::place::PodPlace;
use super::table::{ModuleRule, TABLE};
use crate::kinds::beta::ComponentType;
use serde_json::{Value, json};

/// Module of a frontend that obeys a picker.
const DIRECT: &str = "dynamo.frontend direct";
/// Module of the picker, whose image has no other program.
const PICKER: &str = "dynamo.epp";
/// Engines that agents start on several nodes.
const SPANNING: [&str; 2] = ["vllm", "sglang"];
/// Words of an agent whose engine is behind a sidecar: the engine's port, the sidecar's metrics port
/// that closes last, and the time that a sidecar may take to end.
const BEHIND_SIDECAR: [&str; 3] =
    ["--engine-port=8200", "--outlive=127.0.0.1:9091", "--drain-timeout-s=45"];
/// Fields of the pod that agents have in their environment.
const POD_FIELDS: [(&str, &str); 3] =
    [("POD_IP", "status.podIP"), ("POD_NAME", "metadata.name"), ("POD_UID", "metadata.uid")];

/// The pod template with stator's roles in the place of Dynamo's modules, and what was lost.
pub(crate) fn translate_pod(template: &Value, place: &PodPlace<'_>) -> (Value, Vec<Note>) {
    let mut template = template.clone();
    let mut notes = Vec::new();
    let Some(containers) = template["spec"]["containers"].as_array_mut() else {
        return (template, notes);
    };
    let launches: Vec<_> = containers.iter().map(|container| module_of(container, place)).collect();
    let engine =
        launches.iter().flatten().flatten().find_map(|of| {
            TABLE.modules.get(&of.module).and_then(|module| module.engine.as_deref())
        });
    let is_behind_sidecar = launches.iter().flatten().flatten().any(|of| of.module == DIRECT);
    for (container, launch) in containers.iter_mut().zip(&launches) {
        let Some(launch) = launch else { continue };
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        let note = |(subject, message)| Note {
            component: place.component.to_owned(),
            container: name.clone(),
            subject,
            message,
        };
        let (module, launch) = match rule(launch, place) {
            Ok(found) => found,
            Err(lost) => {
                notes.push(note(lost));
                continue;
            }
        };
        let mut line = RoleLine::new(module, container, place);
        line.take(&launch.words);
        line.take_environment();
        match module.role.as_deref() {
            Some("agent") if is_behind_sidecar && engine != Some("sim") => {
                BEHIND_SIDECAR.iter().for_each(|word| line.add(word));
            }
            Some("sidecar") if engine == Some("sglang") => line.add("--connector=sglang"),
            // Sidecars of decode workers ask it for prompts.
            Some("sidecar") if place.kind == Some(ComponentType::Prefill) => {
                line.add("--serve-prefill");
            }
            _ => {}
        }
        let (role, words, lost) = line.finish();
        notes.extend(lost.into_iter().map(note));
        match role.as_str() {
            "agent" => add_pod_fields(container),
            "planner" => probe_at_metrics(container),
            _ => {}
        }
        container["command"] = json!(["stator"]);
        container["args"] = [role].into_iter().chain(words).collect();
        let image =
            container["image"].as_str().and_then(|image| place.substitutes.images.get(image));
        if let Some(image) = image {
            container["image"] = image.clone().into();
        }
    }
    (template, notes)
}

type Launched = Result<ModuleLaunch, (String, String)>;

/// The module of a container, by the name that the table has for it.
fn module_of(container: &Value, place: &PodPlace<'_>) -> Option<Launched> {
    let Some(found) = launch(container) else {
        let is_picker = place.kind == Some(ComponentType::Epp)
            && container["name"] == "main"
            && container["command"].is_null();
        let words = container["args"].as_array().into_iter().flatten();
        let words = words.filter_map(|word| word.as_str().map(str::to_owned)).collect();
        return is_picker.then(|| Ok(ModuleLaunch { module: PICKER.to_owned(), words }));
    };
    Some(found.map(|mut of| {
        let is_mode = |pair: &[String]| pair[0] == "--router-mode" && pair[1] == "direct";
        let is_direct = of.words.windows(2).any(is_mode)
            || of.words.iter().any(|word| word == "--router-mode=direct");
        if of.module == "dynamo.frontend" && is_direct {
            of.module = DIRECT.to_owned();
        }
        of
    }))
}

/// The rule for a module that has a role here.
fn rule<'l>(
    launch: &'l Launched,
    place: &PodPlace<'_>,
) -> Result<(&'static ModuleRule, &'l ModuleLaunch), (String, String)> {
    let launch = launch.as_ref().map_err(|(module, obstacle)| {
        (module.clone(), format!("the script stays as it is: {obstacle}"))
    })?;
    let lost = |why: &str| Err((launch.module.clone(), why.to_owned()));
    let Some(module) = TABLE.modules.get(&launch.module) else {
        return lost("stator has no role that does its work");
    };
    if let Some(missing) = &module.missing {
        return lost(missing);
    }
    let engine = module.engine.as_deref();
    if place.is_multinode && engine.is_some_and(|engine| !SPANNING.contains(&engine)) {
        return lost("on several nodes it stays as it is: agents start vLLM and SGLang there");
    }
    Ok((module, launch))
}

/// Probes the port for metrics, which is the only one that a planner of ours has.
fn probe_at_metrics(container: &mut Value) {
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        if let Some(port) = container.pointer_mut(&format!("/{probe}/httpGet/port"))
            && *port == "system"
        {
            *port = "metrics".into();
        }
    }
}

fn add_pod_fields(container: &mut Value) {
    if !container["env"].is_array() {
        container["env"] = json!([]);
    }
    let Some(env) = container["env"].as_array_mut() else { return };
    for (name, path) in POD_FIELDS {
        if !env.iter().any(|variable| variable["name"] == name) {
            // Variables that others name come first.
            let field = json!({ "fieldRef": { "fieldPath": path } });
            env.insert(0, json!({ "name": name, "valueFrom": field }));
        }
    }
}
