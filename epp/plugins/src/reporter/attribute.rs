//! Numbers about a request that are made from the usage in its answer.

use super::expression::Expression;
use std::sync::Arc;

/// Tells the data plane a number about each request, made from the usage in its answer.
///
/// Expressions are a part of the Common Expression Language: numbers, `true` and `false`, fields
/// of `usage` (such as `usage.prompt_tokens`, or `usage.prompt_tokens_details.cached_tokens`),
/// `has(usage.x)`, `+ - * / %`, comparisons, `&& || !`, `a ? b : c`, parentheses. Everything else
/// is refused when the configuration is read.
#[derive(Clone, Debug)]
pub struct AttributeReporter {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) expression: Arc<Expression>,
    pub(super) condition: Option<Arc<Expression>>,
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
