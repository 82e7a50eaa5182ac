//! The order in which plug-ins are built and run: each after those that it depends on.

use crate::complete::producer_of;
use crate::document::{Document, PluginEntry};
use crate::findings::Findings;
use stator_epp_plugins::{needs, references};

/// Progress of the walk at one plug-in.
#[derive(Clone, Copy, PartialEq)]
enum Visit {
    Not,
    Begun,
    Done,
}

/// Positions of the plug-ins, dependencies first. A plug-in with the name of its type comes
/// before others of that type, because whoever names none means it. Plug-ins that depend on
/// themselves are noted as a fault.
pub(crate) fn order(document: &Document, findings: &Findings) -> Vec<usize> {
    let plugins = &document.plugins;
    let mut walk = Walk {
        document,
        findings,
        visits: vec![Visit::Not; plugins.len()],
        trail: Vec::new(),
        order: Vec::with_capacity(plugins.len()),
    };
    let mut positions: Vec<usize> = (0..plugins.len()).collect();
    positions.sort_by_key(|position| plugins[*position].name != plugins[*position].type_name);
    for position in positions {
        walk.visit(position);
    }
    walk.order
}

struct Walk<'d> {
    document: &'d Document,
    findings: &'d Findings,
    visits: Vec<Visit>,
    /// The plug-ins between the first and the one that is being visited.
    trail: Vec<usize>,
    order: Vec<usize>,
}

impl Walk<'_> {
    /// Visits what a plug-in depends on, then notes the plug-in. As deep as the longest chain of
    /// dependencies, which the bound on lists bounds.
    fn visit(&mut self, position: usize) {
        match self.visits[position] {
            Visit::Done => return,
            Visit::Begun => return self.circle(position),
            Visit::Not => self.visits[position] = Visit::Begun,
        }
        self.trail.push(position);
        for dependency in dependencies(self.document, &self.document.plugins[position]) {
            self.visit(dependency);
        }
        self.trail.pop();
        self.visits[position] = Visit::Done;
        self.order.push(position);
    }

    fn circle(&self, position: usize) {
        let plugins = &self.document.plugins;
        let begun = self.trail.iter().skip_while(|visited| **visited != position);
        let names: Vec<&str> =
            begun.chain([&position]).map(|p| plugins[*p].name.as_str()).collect();
        let message = format!("depends on itself: {}", names.join(" -> "));
        self.findings.fault(&plugins[position].path, message);
    }
}

/// Positions of the plug-ins that a plug-in names or needs.
fn dependencies(document: &Document, plugin: &PluginEntry) -> Vec<usize> {
    let named = references(&plugin.parameters).into_iter().map(|reference| reference.name);
    let needed = needs(&plugin.type_name, &plugin.parameters).into_iter();
    let needed = needed.filter_map(|producer| Some(producer_of(document, producer)?.name.clone()));
    let position = |name: String| document.plugins.iter().position(|other| other.name == name);
    named.chain(needed).filter_map(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Plug-ins of these names, types and parameters, in the order of building, or the faults.
    fn check(plugins: &[(&str, &str, Value)], expected: Result<&[&str], &str>) {
        let entry =
            |(n, (name, type_name, parameters)): (usize, &(&str, &str, Value))| PluginEntry {
                path: format!("plugins[{n}]"),
                name: (*name).to_owned(),
                type_name: (*type_name).to_owned(),
                parameters: parameters.clone(),
                why: None,
            };
        let plugins = plugins.iter().enumerate().map(entry).collect();
        let document = Document { plugins, ..Document::default() };
        let findings = Findings::new(false);
        let order = order(&document, &findings);
        let names: Vec<&str> = order.iter().map(|p| document.plugins[*p].name.as_str()).collect();
        match findings.finish() {
            Ok(_) => assert_eq!(Ok(names.as_slice()), expected),
            Err(refused) => assert_eq!(Err(refused.to_string().as_str()), expected),
        }
    }

    const APPROXIMATE: &str = "approx-prefix-cache-producer";

    #[test]
    fn plug_ins_come_after_those_that_they_name_or_need() {
        check(
            &[
                ("handler", "disagg-profile-handler", json!({"deciders": {"prefill": "decider"}})),
                ("decider", "always-disagg-pd-decider", json!({})),
                ("scorer", "prefix-cache-scorer", json!({})),
                (APPROXIMATE, APPROXIMATE, json!({})),
                ("tokens", "token-producer", json!({})),
            ],
            Ok(&["tokens", APPROXIMATE, "decider", "handler", "scorer"]),
        );
    }

    #[test]
    fn a_producer_with_the_name_of_its_type_is_the_first_of_it() {
        check(
            &[("cpu", APPROXIMATE, json!({})), (APPROXIMATE, APPROXIMATE, json!({}))],
            Ok(&[APPROXIMATE, "cpu"]),
        );
    }

    #[test]
    fn circles_are_told_with_all_their_members() {
        let named = |name: &str| json!({"prefixMatchInfoProducerName": name});
        check(
            &[
                ("c", "inflight-load-producer", named("a")),
                ("a", "inflight-load-producer", named("b")),
                ("b", "inflight-load-producer", named("a")),
                ("d", "inflight-load-producer", named("d")),
            ],
            Err(
                "plugins[1]: depends on itself: a -> b -> a\nplugins[3]: depends on itself: d -> d",
            ),
        );
    }
}
