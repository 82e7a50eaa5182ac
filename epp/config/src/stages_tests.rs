//! Configurations of guides that divide a request among endpoints: prefill, decode and encode.

use crate::guides_tests::check;
use crate::{LoadOptions, load};

#[test]
fn pairs_that_keep_to_one_group_load() {
    // As Kthena's guide has it, in words of the router's 0.10.
    let text = "apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: one-group
  parameters:
    scope: {labelSelector: 'modelserving.volcano.sh/name=m,modelserving.volcano.sh/entry=true'}
    revisionGating:
      mode: max-role
      requireRoles: {values: [prefill, decode]}
      revisionLabelKey: modelserving.volcano.sh/group-name
      roleLabelKey: modelserving.volcano.sh/role
- type: label-selector-filter
  name: prefills
  parameters: {matchLabels: {modelserving.volcano.sh/role: prefill}}
- type: label-selector-filter
  name: decodes
  parameters: {matchLabels: {modelserving.volcano.sh/role: decode}}
- {type: queue-scorer}
- {type: max-score-picker}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefills}, {pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: decodes}, {pluginRef: queue-scorer}]}
";
    let load_with =
        |allow_experimental| load(text, LoadOptions { allow_experimental, lenient: false });
    let loaded = load_with(true).expect("it is sound");
    let screeners = loaded.plan.program.screeners.iter().map(|known| &*known.name);
    assert_eq!(screeners.collect::<Vec<_>>(), ["one-group"]);
    assert_eq!(loaded.warnings, []);
    let refused = load_with(false).err().expect("experiments must be allowed").to_string();
    assert!(refused.contains("--allow-experimental-plugins"), "{refused}");
}

#[test]
fn revisions_of_a_set_in_words_of_later_versions_load() {
    check(
        "plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: disaggregatedset.x-k8s.io/name=mine}
    revisionGating: {mode: sum, requiredRoles: [prefill, decode], disableCoordination: true,
      revisionHeaderName: x-rev, revisionLabelKey: disaggregatedset.x-k8s.io/revision,
      roleLabelKey: disaggregatedset.x-k8s.io/role}
- {type: header-label-affinity-scorer, parameters: {headerName: x-slice, labelKey: slice}}
- {type: weighted-random-picker}
",
    );
}

#[test]
fn three_stages_load() {
    check(
        "plugins:
- type: always-disagg-multimodal-decider
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters:
    deciders: {encode: always-disagg-multimodal-decider, prefill: always-disagg-pd-decider}
- {type: encode-filter}
- {type: prefill-filter}
- {type: decode-filter}
- {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMB: 2048}}
- {type: mm-embeddings-cache-scorer}
- {type: active-request-scorer}
schedulingProfiles:
- name: encode
  plugins: [{pluginRef: encode-filter}, {pluginRef: mm-embeddings-cache-scorer, weight: 4}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]
",
    );
}

#[test]
fn the_handlers_of_old_load() {
    check(
        "plugins:
- {type: disagg-headers-handler}
- {type: always-disagg-pd-decider}
- type: disagg-profile-handler
  parameters: {deciderPluginName: always-disagg-pd-decider}
schedulingProfiles:
- {name: prefill, plugins: []}
- {name: decode, plugins: []}
",
    );
    check(
        "plugins:
- {type: prefill-header-handler}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 16}}
- {type: pd-profile-handler, parameters: {deciderPluginName: prefix-based-pd-decider}}
schedulingProfiles:
- {name: prefill, plugins: []}
- {name: decode, plugins: []}
",
    );
    check("plugins: [{type: data-parallel-profile-handler, parameters: {primaryPort: 8000}}]\n");
}
