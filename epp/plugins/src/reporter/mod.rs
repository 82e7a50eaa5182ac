//! `request-attribute-reporter`.

mod expression;
mod parse;

use crate::context::BuildContext;
use crate::params::Params;
use crate::settings::PluginSettings;
use expression::{Expression, ValueType};
use stator_epp_scheduler::plugin::Built;
use std::sync::Arc;

/// Namespace of the dynamic metadata unless configured otherwise.
const NAMESPACE: &str = "envoy.lb";

/// Tells the data plane a number about each request, made from the usage in its answer.
///
/// Expressions are a part of the Common Expression Language: numbers, `true` and `false`, fields
/// of `usage` (such as `usage.prompt_tokens`, or `usage.prompt_tokens_details.cached_tokens`),
/// `has(usage.x)`, `+ - * / %`, comparisons, `&& || !`, `a ? b : c`, parentheses. Everything else
/// is refused when the configuration is read.
#[derive(Clone, Debug)]
pub struct AttributeReporter {
    namespace: Arc<str>,
    name: Arc<str>,
    expression: Arc<Expression>,
    condition: Option<Arc<Expression>>,
}

/// A number for dynamic metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedAttribute {
    /// Namespace of the metadata.
    pub namespace: Arc<str>,
    /// Key in the namespace.
    pub name: Arc<str>,
    /// The number, never 0.
    pub value: i64,
}

impl AttributeReporter {
    /// The attribute to report, given the fields of `usage` by their path without `usage.`. `None`
    /// if the condition does not hold, a field that is needed is absent, or the number is 0.
    pub fn report(&self, usage: &dyn Fn(&str) -> Option<f64>) -> Option<ReportedAttribute> {
        let holds = |condition: &Arc<Expression>| condition.holds(usage);
        if !self.condition.as_ref().is_none_or(holds) {
            return None;
        }
        let value = self.expression.number(usage).filter(|value| value.is_finite())? as i64;
        let (namespace, name) = (Arc::clone(&self.namespace), Arc::clone(&self.name));
        (value != 0).then_some(ReportedAttribute { namespace, name, value })
    }
}

/// `request-attribute-reporter`: see [`AttributeReporter`]; `attributes` has one entry.
pub(crate) fn reporter(params: &mut Params<'_>, context: &mut BuildContext) -> Built {
    let mut reporters = params.list("attributes", attribute);
    if reporters.len() != 1 {
        let count = reporters.len();
        params.wrong("attributes", format!("must have one entry, there are {count}"));
    }
    match reporters.pop().flatten() {
        Some(reporter) => context.settle(PluginSettings::AttributeReporter(reporter)),
        None => Built::default(),
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
