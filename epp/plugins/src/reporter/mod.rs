//! `request-attribute-reporter`.

mod attribute;
mod expression;
mod parse;

pub use attribute::{AttributeReporter, ReportedAttribute};

use crate::context::BuildContext;
use crate::params::Params;
use crate::settings::PluginSettings;
use expression::{Expression, ValueType};
use stator_epp_scheduler::plugin::PluginParts;
use std::sync::Arc;

/// Namespace of the dynamic metadata unless configured otherwise.
const NAMESPACE: &str = "envoy.lb";

/// `request-attribute-reporter`: see [`AttributeReporter`]; `attributes` has one entry.
pub(crate) fn reporter(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    let mut reporters = params.list("attributes", attribute);
    if reporters.len() != 1 {
        let count = reporters.len();
        params.wrong("attributes", format!("must have one entry, there are {count}"));
    }
    match reporters.pop().flatten() {
        Some(reporter) => context.settle(PluginSettings::AttributeReporter(reporter)),
        None => PluginParts::default(),
    }
}

fn attribute(params: &mut Params<'_>) -> Option<AttributeReporter> {
    let (namespace, name) =
        params.within("key", |params| (params.text("namespace"), params.required_text("name")));
    let text = params.required_text("expression");
    let expression = read(params, "expression", &text, ValueType::Number);
    let condition = params.text("condition");
    let condition =
        condition.map(|condition| read(params, "condition", &condition, ValueType::Truth));
    Some(AttributeReporter {
        namespace: namespace.as_deref().unwrap_or(NAMESPACE).into(),
        name: name.into(),
        expression: expression?,
        condition: condition.map_or(Some(None), |condition| condition.map(Some))?,
    })
}

fn read(
    params: &mut Params<'_>,
    parameter: &str,
    text: &str,
    kind: ValueType,
) -> Option<Arc<Expression>> {
    if text.is_empty() {
        return None;
    }
    let wanted = match kind {
        ValueType::Number => "a number",
        ValueType::Truth => "true or false",
    };
    match parse::parse(text) {
        Ok(expression) if expression.kind() == kind => return Some(Arc::new(expression)),
        Ok(_) => params.wrong(parameter, format!("{text:?} is not {wanted}")),
        Err(error) => params.wrong(parameter, error),
    }
    None
}

#[cfg(test)]
mod tests;
