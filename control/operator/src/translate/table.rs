//! The table of Dynamo's modules, their flags, and the flags of ours that take their place.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The table, read once.
pub(super) static TABLE: LazyLock<ModuleTable> = LazyLock::new(|| {
    serde_yaml_ng::from_str(include_str!("modules.yaml")).expect("a test reads the table")
});

/// Modules by name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModuleTable {
    /// Flags that all modules have.
    pub(super) shared: BTreeMap<String, FlagRule>,
    pub(super) modules: BTreeMap<String, ModuleRule>,
}

/// Role that takes a module's place.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ModuleRule {
    /// Command of stator; without one nothing takes the module's place.
    pub(super) role: Option<String>,
    pub(super) missing: Option<String>,
    /// Words of every command line.
    pub(super) words: Vec<String>,
    /// Engine that the agent runs.
    pub(super) engine: Option<String>,
    pub(super) unlisted: Unlisted,
    /// Variables that give flags.
    pub(super) env: BTreeMap<String, String>,
    pub(super) flags: BTreeMap<String, FlagRule>,
}

/// Owner of flags that the table does not list.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unlisted {
    /// Nobody: they have no counterpart.
    #[default]
    Nobody,
    /// The engine.
    Engine,
    /// Our role, which has flags of the same names.
    Role,
}

/// Fate of a flag.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FlagRule {
    /// Flag of ours that takes the value.
    pub(super) to: Option<String>,
    /// Flag of the engine that takes the value.
    pub(super) engine: Option<String>,
    /// Values in our words; an empty one leaves the flag out.
    pub(super) values: Option<BTreeMap<String, String>>,
    /// Parts of values that have no counterpart, with reasons.
    pub(super) refused: BTreeMap<String, String>,
    /// Flag of ours with which no part is refused.
    pub(super) unless: Option<String>,
    /// The flag has no value; ours is given this one.
    pub(super) switch: Option<String>,
    /// Value for which our flag is given, which has none itself; it is left out for others.
    pub(super) when: Option<String>,
    /// Value that is as if the flag were not there.
    pub(super) off: Option<String>,
    /// The value is an object of JSON with these keys, each with a fate of its own.
    pub(super) keys: BTreeMap<String, FlagRule>,
    /// Reason for which nothing is lost without it.
    pub(super) settled: Option<String>,
    /// Reason for which nothing takes its place.
    pub(super) missing: Option<String>,
}

impl ModuleTable {
    /// The rule of a module's flag; dashes and underscores are alike.
    pub(super) fn flag<'t>(&'t self, module: &'t ModuleRule, name: &str) -> Option<&'t FlagRule> {
        let name = name.replace('_', "-");
        module.flags.get(&name).or_else(|| self.shared.get(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_has_a_role_or_a_reason() {
        for (name, module) in &TABLE.modules {
            assert_ne!(module.role.is_some(), module.missing.is_some(), "{name}");
            let roles = ["agent", "epp", "planner", "proxy", "sidecar"];
            assert!(module.role.as_deref().is_none_or(|role| roles.contains(&role)), "{name}");
        }
    }

    #[test]
    fn every_flag_has_one_fate() {
        let modules = TABLE.modules.values().flat_map(|module| &module.flags);
        let keys = TABLE.modules.values().flat_map(|module| module.flags.values());
        let keys = keys.flat_map(|rule| &rule.keys);
        for (name, rule) in modules.chain(&TABLE.shared).chain(keys) {
            if !rule.keys.is_empty() {
                continue;
            }
            let fates = [&rule.to, &rule.engine, &rule.settled, &rule.missing];
            assert_eq!(fates.iter().filter(|fate| fate.is_some()).count(), 1, "{name}: {rule:?}");
        }
    }

    #[test]
    fn every_variable_gives_a_flag_of_the_table() {
        for module in TABLE.modules.values() {
            for flag in module.env.values() {
                assert!(TABLE.flag(module, flag).is_some(), "{flag}");
            }
        }
    }
}
