//! `EndpointPickerConfig`, the settings of an endpoint picker, from text to a [`Plan`].
//!
//! A configuration is decoded strictly, and all of its faults are reported at once, each with its
//! path ([`InvalidConfig`]). Defaults are filled in, and [`LoadedConfig::explanation`] lists them
//! with their reasons, in a configuration of its own. This crate opens no file and no socket;
//! plug-ins come from `stator_epp_plugins`.
//!
//! Start reading at [`load`], a line per stage and a module per stage: `decode` reads the keys,
//! `resolve` the names, `complete` fills in, `order` sorts by dependency, `build` makes the
//! plug-ins, `wire` connects them, `surroundings` collects the settings around them.

mod build;
mod complete;
mod decode;
mod decode_flow;
mod document;
mod dynamo;
#[cfg(test)]
mod examples_tests;
mod explain;
mod fields;
mod findings;
#[cfg(test)]
mod guides_tests;
mod migrate;
mod order;
mod plan;
#[cfg(test)]
mod plan_tests;
mod resolve;
#[cfg(test)]
mod stages_tests;
mod suggest;
mod surroundings;
#[cfg(test)]
mod tests;
mod tree;
mod units;
mod wire;

pub use findings::{Finding, InvalidConfig};
pub use plan::*;
pub use units::{parse_duration, parse_quantity};

use findings::Findings;
use tree::Tree;

/// Largest configuration that is read, in bytes: as much as a ConfigMap holds.
pub const SIZE_MAX: usize = 1 << 20;

/// Configurations that need not be written, by name; the first is the default.
const BUILT_IN: [(&str, &str); 2] = [
    ("kv-aware", include_str!("../../../manifests/epp/configs/kv-aware.yaml")),
    ("llm-d-default", include_str!("../../../manifests/epp/configs/llm-d-default.yaml")),
];

/// Strictness with which a configuration is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whether experimental plug-ins may be used.
    pub allow_experimental: bool,
    /// Whether unknown fields, gates and plug-ins are passed over with a warning. For trying a
    /// configuration of another version; what is passed over has no effect.
    pub lenient: bool,
}

/// A configuration that can be run.
pub struct LoadedConfig {
    /// The settings to run.
    pub plan: Plan,
    /// Warnings for the operator, in the order in which they were found.
    pub warnings: Vec<Finding>,
    /// The effective configuration as YAML, with comments on what was filled in. It loads as the
    /// same plan.
    pub explanation: String,
}

/// The text of a built-in configuration.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Loads a configuration, YAML or JSON; an empty one is the default, `kv-aware`.
///
/// # Errors
///
/// [`InvalidConfig`] with everything that is wrong with it.
pub fn load(text: &str, options: LoadOptions) -> Result<LoadedConfig, InvalidConfig> {
    let tree = match parse(text)? {
        Tree::Null => parse(BUILT_IN[0].1)?,
        tree => tree,
    };
    let findings = Findings::new(options.lenient);
    tree.report_duplicates("", &findings);
    let mut document = decode::document(&tree, &findings);
    dynamo::split_prompts(&mut document);
    let left_out = resolve::types(&mut document, options.allow_experimental, &findings);
    migrate::parameters(&mut document, &findings);
    resolve::resolve(&mut document, &left_out, &findings);
    complete::complete(&mut document, &findings);
    let order = order::order(&document, &findings);
    let context = build::build(&mut document, &order, &left_out, &findings);
    let plan = wire::wire(&document, &context, &order, &findings);
    let warnings = findings.finish()?;
    let explanation = explain::explain(&document, context.kv_cost.as_ref());
    let incomplete = || invalid("nothing was built that could schedule".to_owned());
    plan.map(|plan| LoadedConfig { plan, warnings, explanation }).ok_or_else(incomplete)
}

fn parse(text: &str) -> Result<Tree, InvalidConfig> {
    if text.len() > SIZE_MAX {
        return Err(invalid(format!("has {} bytes, more than {SIZE_MAX}", text.len())));
    }
    Tree::parse(text).map_err(invalid)
}

fn invalid(message: String) -> InvalidConfig {
    InvalidConfig(vec![Finding { path: String::new(), message }])
}
