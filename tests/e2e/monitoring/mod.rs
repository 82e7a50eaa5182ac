//! Dashboards and alerts: every metric that they name exists, Prometheus' own engine evaluates every
//! query over pages of real processes, and every alert fires when it should.

mod alerts;
mod dashboards;
mod pages;
mod promql;
mod queries;

use std::path::{Path, PathBuf};

/// The folder of dashboards and alerts.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/monitoring")
}

/// Variable of Grafana for the time over which a rate is taken, and what stands for it here.
const RATE_INTERVAL: (&str, &str) = ("$__rate_interval", "5m");

/// All queries of the dashboards, as Prometheus gets them.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(folder().join("dashboards.yaml")).unwrap();
    let sources = dashboards::DashboardSource::read(&text);
    let queries = sources.iter().flat_map(|source| source.queries());
    queries.map(|query| query.replace(RATE_INTERVAL.0, RATE_INTERVAL.1)).collect()
}
