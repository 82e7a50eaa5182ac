//! Copies of a component's workload.

use crate::objects::nodes;
use serde_json::Value;
use std::collections::BTreeMap;

/// Copies of a workload, as its controller reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkloadReadiness {
    pub(crate) asked: i32,
    pub(crate) updated: i32,
    pub(crate) ready: i32,
    pub(crate) available: i32,
    /// Whether the report is of the newest specification.
    pub(crate) is_current: bool,
}

impl WorkloadReadiness {
    /// The report of a workload; nothing of one that is not there.
    pub(crate) fn of(workload: Option<&Value>) -> Self {
        let Some(workload) = workload else { return Self::default() };
        let number = |value: &Value| value.as_i64().unwrap_or_default() as i32;
        let status = &workload["status"];
        let ready = number(&status["readyReplicas"]);
        let is_own = ["Deployment", "StatefulSet"].iter().any(|kind| workload["kind"] == *kind);
        // A LeaderWorkerSet has no number of its own for what is available.
        let available = status.get("availableReplicas").map_or(ready, number);
        Self {
            asked: workload["spec"]["replicas"].as_i64().map_or(1, |asked| asked as i32),
            updated: number(&status["updatedReplicas"]),
            ready,
            available: if is_own { number(&status["availableReplicas"]) } else { available },
            is_current: status["observedGeneration"] == workload["metadata"]["generation"]
                || !is_own,
        }
    }

    /// The report of engines that have StatefulSets of their nodes: a copy is an engine all of whose
    /// `nodes` are there, even if somebody has scaled a set down.
    pub(super) fn of_engines<'a>(sets: impl Iterator<Item = &'a Value>, nodes: i32) -> Self {
        let mut engines: BTreeMap<&str, Vec<Self>> = BTreeMap::new();
        for set in sets {
            let number = nodes::engine_number(set).unwrap_or_default();
            engines.entry(number).or_default().push(Self::of(Some(set)));
        }
        let count = |of: fn(&Self) -> i32| {
            // One set is the leader's, the other the workers'.
            let is_whole = |sets: &&Vec<Self>| {
                let is_there = |set: &Self| set.is_current && of(set) >= set.asked.max(1);
                sets.len() == 2
                    && sets.iter().all(is_there)
                    && sets.iter().map(of).sum::<i32>() >= nodes
            };
            engines.values().filter(is_whole).count() as i32
        };
        Self {
            asked: engines.len() as i32,
            updated: count(|set| set.updated),
            ready: count(|set| set.ready),
            available: count(|set| set.available),
            is_current: engines.values().flatten().all(|set| set.is_current) && !engines.is_empty(),
        }
    }

    /// Whether all copies of the newest specification are available.
    pub(super) fn is_ready(&self) -> bool {
        self.is_current && self.available >= self.asked && self.updated >= self.asked
    }
}
