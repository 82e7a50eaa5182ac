//! Tests on a cluster whose pods run: the operator's graphs, from manifests to answered requests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod autoscaling;
mod bed;
mod change;
mod chart;
mod examples;
mod gangs;
mod graphs;
mod load;
mod manual;
mod planner;
mod pods;
mod webhooks;
