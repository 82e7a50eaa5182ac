//! Tests of the rewrites: tables, and the precedence against the obvious search.

use crate::{Rewrite, RewriteRule, RewriteTarget, Rewrites};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn rule(models: &[&str], targets: &[(&str, Option<u32>)]) -> RewriteRule {
    let named: Vec<_> = models.iter().map(|model| model.to_string()).collect();
    let target = |(model, weight): &(&str, Option<u32>)| RewriteTarget {
        model: (*model).into(),
        weight: *weight,
    };
    RewriteRule {
        models: (!named.is_empty()).then_some(named),
        targets: targets.iter().map(target).collect(),
    }
}

fn rewrite(name: &str, created: &str, rules: &[RewriteRule]) -> Rewrite {
    Rewrite { name: name.into(), created: created.into(), rules: rules.to_vec() }
}

/// `expected` is the rewrite that applies and the model, or nothing.
fn check(rewrites: &[Rewrite], model: &str, expected: Option<(&str, &str)>) {
    for order in [rewrites.to_vec(), rewrites.iter().rev().cloned().collect()] {
        let compiled = Rewrites::compile(&order);
        let found = compiled.rewrite(model, 0).map(|found| (found.rewrite, found.model));
        assert_eq!(found, expected);
    }
}

#[test]
fn a_rule_for_the_model_comes_before_one_for_any() {
    let any = rewrite("any", "2020", &[rule(&[], &[("x", None)])]);
    let exact = rewrite("exact", "2024", &[rule(&["a", "b"], &[("y", None)])]);
    let both = [any, exact];
    check(&both, "a", Some(("exact", "y")));
    check(&both, "b", Some(("exact", "y")));
    check(&both, "c", Some(("any", "x")));
    check(&both[1..], "c", None);
}

#[test]
fn the_older_object_wins_then_the_name_then_the_order() {
    let old = rewrite("z", "2023-01-01T00:00:00Z", &[rule(&["a"], &[("old", None)])]);
    let new = rewrite("a", "2024-01-01T00:00:00Z", &[rule(&["a"], &[("new", None)])]);
    check(&[old.clone(), new], "a", Some(("z", "old")));
    let same_age = rewrite("y", "2023-01-01T00:00:00Z", &[rule(&["a"], &[("named", None)])]);
    check(&[old, same_age], "a", Some(("y", "named")));
    let twice = [rule(&["a"], &[("first", None)]), rule(&["a"], &[("second", None)])];
    check(&[rewrite("r", "", &twice)], "a", Some(("r", "first")));
}

#[test]
fn a_rule_without_targets_is_none() {
    let rules = [rule(&["a"], &[]), rule(&["a"], &[("x", None)])];
    check(&[rewrite("r", "", &rules)], "a", Some(("r", "x")));
    assert!(Rewrites::compile(&[rewrite("r", "", &rules[..1])]).is_empty());
}

/// How often each of the targets is chosen by `n` numbers that are spread evenly.
fn shares(targets: &[(&str, Option<u32>)], n: u64) -> BTreeMap<String, u64> {
    let compiled = Rewrites::compile(&[rewrite("r", "", &[rule(&[], targets)])]);
    let mut shares = BTreeMap::new();
    for i in 0..n {
        let random = i * (u64::MAX / n) + u64::MAX / n / 2;
        let found = compiled.rewrite("any", random).expect("the rule is for any model");
        *shares.entry(found.model.to_owned()).or_default() += 1;
    }
    shares
}

#[test]
fn targets_get_what_their_weights_say() {
    let check = |targets: &[(&str, Option<u32>)], expected: &[(&str, u64)]| {
        let expected = expected.iter().map(|(model, n)| (model.to_string(), *n)).collect();
        assert_eq!(shares(targets, 100), expected);
    };
    check(&[("a", Some(90)), ("b", Some(10))], &[("a", 90), ("b", 10)]);
    check(&[("a", None), ("b", None)], &[("a", 50), ("b", 50)]);
    check(&[("a", None), ("b", Some(1))], &[("b", 100)]);
    check(&[("a", Some(1_000_000)), ("b", Some(1_000_000))], &[("a", 50), ("b", 50)]);
    check(&[("a", Some(0)), ("b", Some(2))], &[("b", 100)]);
}

#[test]
fn every_random_number_chooses_a_target() {
    let targets = [("a", Some(1)), ("b", Some(3))];
    let compiled = Rewrites::compile(&[rewrite("r", "", &[rule(&[], &targets)])]);
    assert_eq!(compiled.rewrite("m", 0).expect("a rule").model, "a");
    assert_eq!(compiled.rewrite("m", u64::MAX).expect("a rule").model, "b");
}

fn any_rule() -> impl Strategy<Value = RewriteRule> {
    let models = proptest::option::of(vec("[ab]", 0..3));
    let target = ("[xy]", proptest::option::of(1u32..3))
        .prop_map(|(model, weight)| RewriteTarget { model, weight });
    (models, vec(target, 0..3)).prop_map(|(models, targets)| RewriteRule { models, targets })
}

fn any_rewrite() -> impl Strategy<Value = Rewrite> {
    ("[p-s]", "202[0-2]", vec(any_rule(), 0..3)).prop_map(|(name, created, rules)| Rewrite {
        name,
        created,
        rules,
    })
}

/// The obvious search: every applicable rule with its precedence, and the least of them.
fn search<'a>(rewrites: &'a [Rewrite], model: &str) -> Option<(&'a str, &'a RewriteRule)> {
    let mut found = Vec::new();
    for rewrite in rewrites {
        for (at, rule) in rewrite.rules.iter().enumerate() {
            let exact = rule.models.as_ref().map(|models| models.iter().any(|m| m == model));
            if exact != Some(false) && !rule.targets.is_empty() {
                let precedence = (exact.is_none(), &rewrite.created, &rewrite.name, at);
                found.push((precedence, rewrite.name.as_str(), rule));
            }
        }
    }
    found.into_iter().min_by_key(|(precedence, ..)| *precedence).map(|(_, name, rule)| (name, rule))
}

proptest! {
    #[test]
    fn precedence_agrees_with_a_search(
        mut rewrites in vec(any_rewrite(), 0..6),
        model in "[a-c]",
        random: u64,
    ) {
        // A cluster has one object of a name.
        rewrites.sort_by(|a, b| a.name.cmp(&b.name));
        rewrites.dedup_by(|a, b| a.name == b.name);
        let compiled = Rewrites::compile(&rewrites);
        let found = compiled.rewrite(&model, random);
        let expected = search(&rewrites, &model);
        prop_assert_eq!(found.map(|found| found.rewrite), expected.map(|(name, _)| name));
        if let (Some(found), Some((_, rule))) = (found, expected) {
            let weighted = rule.targets.iter().any(|target| target.weight.is_some());
            let of_rule = rule.targets.iter().any(|target| {
                target.model == found.model && (target.weight.is_some() || !weighted)
            });
            prop_assert!(of_rule);
        }
    }
}
