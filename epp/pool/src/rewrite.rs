//! Rules that replace a requested model by another.

use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Largest weight of a target.
///
/// Source: `spec.rules[].targets[].weight` of `InferenceModelRewrite`.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// An `InferenceModelRewrite`, or an entry of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Its name.
    pub name: String,
    /// Time of its creation, as `YYYY-MM-DDTHH:MM:SSZ`, so that text order is age; empty is oldest.
    pub created: String,
    /// Its rules in their order.
    pub rules: Vec<RewriteRule>,
}

/// One rule: these models become one of those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteRule {
    /// Models that it is for; `None` is any.
    pub models: Option<Vec<String>>,
    /// Models in their place; a rule without targets has no effect.
    pub targets: Vec<RewriteTarget>,
}

/// A model that takes requests for another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteTarget {
    /// Its name.
    pub model: String,
    /// Its share of the requests, 1 to [`WEIGHT_MAX`]. Where no target of a rule has one all are
    /// alike; where some have, the others get nothing.
    pub weight: Option<u32>,
}

/// All rewrites of a pool, made ready for lookups.
///
/// A rule for the requested model comes before one for any. Among several the older object
/// wins, then the name that sorts first, then the rule that stands first.
///
/// Source: the precedence rules of `InferenceModelRewrite`; the name is ours, so that equal ages
/// have an order that every picker knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrites {
    exact: FxHashMap<String, Arc<Choice>>,
    generic: Option<Arc<Choice>>,
}

/// A rewritten model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewrittenModel<'a> {
    /// Name of the rewrite that did it.
    pub rewrite: &'a str,
    /// The model that is asked for instead.
    pub model: &'a str,
}

/// The targets of one rule.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    rewrite: Arc<str>,
    /// Targets that get requests, each with the sum of the weights up to and with its own.
    targets: Vec<(u64, String)>,
}

impl Rewrites {
    /// Makes ready what `rewrites` say, in whatever order they come.
    pub fn compile<'a>(rewrites: impl IntoIterator<Item = &'a Rewrite>) -> Self {
        let mut rewrites: Vec<_> = rewrites.into_iter().collect();
        rewrites.sort_by_key(|rewrite| (&rewrite.created, &rewrite.name));
        let mut compiled = Self::default();
        for rewrite in rewrites {
            let name: Arc<str> = rewrite.name.as_str().into();
            for rule in &rewrite.rules {
                if let Some(choice) = Choice::of(&name, &rule.targets) {
                    compiled.add(rule, Arc::new(choice));
                }
            }
        }
        compiled
    }

    /// The model in place of `model`, if a rule names one; equal values of `random` choose alike.
    pub fn rewrite(&self, model: &str, random: u64) -> Option<RewrittenModel<'_>> {
        let choice = self.exact.get(model).or(self.generic.as_ref())?;
        Some(RewrittenModel { rewrite: &choice.rewrite, model: choice.choose(random) })
    }

    /// Whether no model is ever replaced.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.generic.is_none()
    }

    fn add(&mut self, rule: &RewriteRule, choice: Arc<Choice>) {
        match &rule.models {
            None => drop(self.generic.get_or_insert(choice)),
            Some(models) => {
                for model in models {
                    self.exact.entry(model.clone()).or_insert_with(|| choice.clone());
                }
            }
        }
    }
}

impl Choice {
    fn of(rewrite: &Arc<str>, targets: &[RewriteTarget]) -> Option<Self> {
        let weighted = targets.iter().any(|target| target.weight.is_some());
        let mut sum = 0;
        let mut kept = Vec::with_capacity(targets.len());
        for target in targets {
            let weight = target.weight.unwrap_or(u32::from(!weighted)).min(WEIGHT_MAX);
            if weight > 0 {
                sum += u64::from(weight);
                kept.push((sum, target.model.clone()));
            }
        }
        (!kept.is_empty()).then(|| Self { rewrite: rewrite.clone(), targets: kept })
    }

    fn choose(&self, random: u64) -> &str {
        let (total, last) = self.targets.last().expect("a choice has a target");
        let point = ((u128::from(random) * u128::from(*total)) >> 64) as u64;
        let at = self.targets.partition_point(|(sum, _)| *sum <= point);
        self.targets.get(at).map_or(last, |(_, model)| model)
    }
}
