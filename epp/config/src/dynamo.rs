//! Configurations that were written for NVIDIA Dynamo's picker.

use crate::document::{Document, PluginEntry, ProfilePlugin, Reference};
use serde_json::{Value, json};

/// Type of Dynamo's scorer of prefill workers, by which its configurations are known.
const PREFILL_SCORER: &str = "dyn-prefill-scorer";
const HANDLER: &str = "disagg-profile-handler";
const DECIDER: &str = "always-disagg-pd-decider";
const SAME_GENERATION: &str = "peer-label-filter";
/// Label of pods that says to which generation of workers they belong.
const GENERATION_LABEL: &str = "nvidia.com/dynamo-worker-hash";
const WHY: &str = "as Dynamo's picker does with dyn-prefill-scorer";

/// Makes of what goes without saying in Dynamo's picker what has to be said here: a prefill worker
/// computes every prompt, if there is one, and it is of the generation of the decode worker.
pub(crate) fn split_prompts(document: &mut Document) {
    let Document { plugins, profiles, .. } = document;
    if !plugins.iter().any(|plugin| plugin.type_name == PREFILL_SCORER) {
        return;
    }
    let Some(handler) = plugins.iter_mut().find(|plugin| plugin.type_name == HANDLER) else {
        return;
    };
    let parameters = &mut handler.parameters;
    if !parameters["deciders"].is_null() || !parameters["deciderPluginName"].is_null() {
        return;
    }
    let name = parameters["profiles"]["prefill"].as_str().unwrap_or("prefill").to_owned();
    let Some(profile) = profiles.iter_mut().find(|profile| profile.name == name) else { return };
    if parameters.is_null() {
        *parameters = json!({});
    }
    parameters["deciders"] = json!({ "prefill": DECIDER });
    for (added, parameters) in
        [(DECIDER, Value::Null), (SAME_GENERATION, json!({ "label": GENERATION_LABEL }))]
    {
        if !plugins.iter().any(|plugin| plugin.name == added) {
            plugins.push(PluginEntry {
                path: format!("plugins[{}]", plugins.len()),
                name: added.to_owned(),
                type_name: added.to_owned(),
                parameters,
                why: Some(WHY.to_owned()),
            });
        }
    }
    let path = format!("{}.plugins", profile.path);
    let reference = Reference::added(path, SAME_GENERATION, WHY);
    profile.plugins.insert(0, ProfilePlugin { reference, weight: None });
}

#[cfg(test)]
mod tests {
    use crate::{LoadOptions, load};

    const DYNAMO: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: disagg-profile-handler}
- {type: label-filter, name: prefills, parameters: {label: role, validValues: [prefill]}}
- {type: label-filter, name: decodes, parameters: {label: role, validValues: [decode]}}
- {type: dyn-prefill-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefills}, {pluginRef: dyn-prefill-scorer}, {pluginRef: max-score-picker}]
- name: decode
  plugins: [{pluginRef: decodes}, {pluginRef: max-score-picker}]
";

    fn explanation(text: &str) -> String {
        load(text, LoadOptions::default()).expect("a good configuration").explanation
    }

    #[test]
    fn prompts_are_computed_by_prefill_workers_of_the_same_generation() {
        let effective = explanation(DYNAMO);
        for part in ["prefill: always-disagg-pd-decider", "label: nvidia.com/dynamo-worker-hash"] {
            assert!(effective.contains(part), "no {part} in\n{effective}");
        }
        // The effective configuration says it itself, and is left as it is.
        assert_eq!(
            explanation(&effective).matches("peer-label-filter").count(),
            effective.matches("peer-label-filter").count()
        );
    }

    #[test]
    fn a_decider_that_is_named_counts() {
        let decider = "{type: prefix-based-pd-decider, parameters: {nonCachedTokens: 9}}";
        let handler = "{type: disagg-profile-handler, \
                       parameters: {deciders: {prefill: prefix-based-pd-decider}}}";
        let text =
            DYNAMO.replace("{type: disagg-profile-handler}", &format!("{handler}\n- {decider}"));
        assert!(!explanation(&text).contains("always-disagg-pd-decider"));
        assert!(
            !explanation(&DYNAMO.replace("dyn-prefill-scorer", "kv-aware")).contains("peer-label")
        );
    }
}
