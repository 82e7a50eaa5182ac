//! Alerts: Prometheus' parser takes them, each fires on what it warns of and none on a fleet that is
//! well, and each has its runbook.

use super::folder;
use super::pages::Fleet;
use super::promql::{PromQl, ScrapedPage};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Minutes that are scraped, more than the longest range of a query.
const MINUTES: u32 = 70;

/// A series: name and labels, the value at the start, what each minute adds.
type FiringSeries = (&'static str, f64, f64);

/// Alerts, and series on which each fires.
const FIRES: [(&str, &[FiringSeries]); 28] = [
    (
        "StatorRequestsFail",
        &[
            ("stator_proxy_requests_total{status=\"200\"}", 0.0, 90.0),
            ("stator_proxy_requests_total{status=\"503\"}", 0.0, 10.0),
        ],
    ),
    (
        "StatorNoWorkers",
        &[("stator_proxy_workers", 0.0, 0.0), ("stator_proxy_requests_waiting", 3.0, 0.0)],
    ),
    (
        "StatorFirstTokenSlow",
        &[
            ("stator_proxy_time_to_first_token_seconds_bucket{le=\"10.0\"}", 0.0, 0.0),
            ("stator_proxy_time_to_first_token_seconds_bucket{le=\"20.0\"}", 0.0, 60.0),
            ("stator_proxy_time_to_first_token_seconds_bucket{le=\"+Inf\"}", 0.0, 60.0),
        ],
    ),
    (
        "StatorQueueLong",
        &[
            ("stator_proxy_queue_duration_seconds_bucket{le=\"5.0\"}", 0.0, 6.0),
            ("stator_proxy_queue_duration_seconds_bucket{le=\"10.0\"}", 0.0, 60.0),
            ("stator_proxy_queue_duration_seconds_bucket{le=\"+Inf\"}", 0.0, 60.0),
        ],
    ),
    (
        "StatorQueueRefuses",
        &[("stator_proxy_queue_refused_requests_total{reason=\"full\"}", 0.0, 1.0)],
    ),
    (
        "StatorClientsTurnedAway",
        &[("stator_proxy_connections_refused_total{reason=\"full\"}", 0.0, 1.0)],
    ),
    ("StatorEngineDown", &[("stator_agent_engine_up", 0.0, 0.0)]),
    ("StatorEngineRestarts", &[("stator_agent_engine_ends_total{cause=\"exit\"}", 0.0, 0.1)]),
    ("StatorMigrations", &[("stator_proxy_migrations_total", 0.0, 12.0)]),
    ("StatorAgentsSilent", &[("stator_fleet_agents_suspect", 1.0, 0.0)]),
    ("StatorDiscoveryLost", &[("stator_fleet_discovery_stale", 1.0, 0.0)]),
    ("StatorIndexFull", &[("stator_proxy_kv_index_dropped_blocks_total", 0.0, 1.0)]),
    ("StatorEventsLost", &[("stator_fleet_events_skipped_total", 0.0, 1.0)]),
    ("StatorTierOff", &[("stator_kv_tier_condition{tier=\"disk\",condition=\"off\"}", 1.0, 0.0)]),
    ("StatorKvDamaged", &[("stator_kv_corrupt_blocks_total", 0.0, 1.0)]),
    ("StatorKvForged", &[("stator_agent_kv_blocks_forged_total", 0.0, 1.0)]),
    ("StatorPickerWithoutEndpoints", &[("llm_d_epp_ready_endpoints{name=\"pool\"}", 0.0, 0.0)]),
    ("StatorPickerErrors", &[("llm_d_epp_request_error_total", 0.0, 60.0)]),
    (
        "StatorPicksNotHonoured",
        &[
            ("stator_epp_picks_honoured_total{pool=\"a\"}", 0.0, 9.0),
            ("stator_epp_picks_not_honoured_total{pool=\"a\"}", 0.0, 1.0),
        ],
    ),
    (
        "StatorPickerBlind",
        &[
            ("stator_epp_signals_pages_total{pool=\"a\"}", 0.0, 1.0),
            ("stator_epp_signals_pages_failed_total{pool=\"a\"}", 0.0, 9.0),
        ],
    ),
    ("StatorPlannerBlind", &[("stator_planner_signals_lost_total", 0.0, 12.0)]),
    ("StatorPlannerRefused", &[("stator_planner_orders_failed_total", 0.0, 1.0)]),
    (
        "StatorPlannerShort",
        &[
            ("stator_planner_wanted_replicas{role=\"decode\"}", 3.0, 0.0),
            ("stator_planner_ordered_replicas{role=\"decode\"}", 2.0, 0.0),
        ],
    ),
    ("StatorOperatorFails", &[("stator_operator_reconcile_errors_total{kind=\"a\"}", 0.0, 1.0)]),
    (
        "StatorOperatorLeaderless",
        &[
            ("stator_operator_leading{namespace=\"a\",pod=\"1\"}", 0.0, 0.0),
            ("stator_operator_leading{namespace=\"a\",pod=\"2\"}", 0.0, 0.0),
            ("stator_operator_leading{namespace=\"b\",pod=\"1\"}", 1.0, 0.0),
        ],
    ),
    (
        "StatorOperatorOverruled",
        &[("stator_operator_edits_undone_total{kind=\"Service\"}", 0.0, 1.0)],
    ),
    (
        "StatorWebhookErrors",
        &[("stator_operator_webhook_errors_total{webhook=\"validate\"}", 0.0, 1.0)],
    ),
    (
        "StatorWebhookSlow",
        &[
            ("stator_operator_webhook_duration_seconds_bucket{le=\"2.187\"}", 0.0, 0.0),
            ("stator_operator_webhook_duration_seconds_bucket{le=\"6.561\"}", 0.0, 60.0),
            ("stator_operator_webhook_duration_seconds_bucket{le=\"+Inf\"}", 0.0, 60.0),
        ],
    ),
];

/// Names and expressions of all alerts.
fn alerts() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    let file: Value = serde_yaml_ng::from_str(&text).unwrap();
    let groups = file["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules.map(|rule| (text(&rule["alert"]), text(&rule["expr"]))).collect()
}

/// The expressions of all alerts.
pub(super) fn expressions() -> Vec<String> {
    alerts().into_iter().map(|(_, expression)| expression).collect()
}

/// A page for each minute.
fn pages(series: &[FiringSeries]) -> Vec<ScrapedPage> {
    let page = |minute: u32| {
        let mut text = String::new();
        for (name, start, added) in series {
            writeln!(text, "{name} {}", start + added * f64::from(minute)).unwrap();
        }
        text.push_str("# EOF\n");
        ScrapedPage { job: "test", at_s: 60.0 * f64::from(minute), text }
    };
    (0..=MINUTES).map(page).collect()
}

#[test]
fn every_alert_fires_on_what_it_warns_of_and_on_nothing_else() {
    let Some(promql) = PromQl::installed() else { return };
    promql.check(&folder().join("alerts.yaml"));
    let alerts = alerts();
    let names: Vec<_> = alerts.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, FIRES.map(|(name, _)| name));
    for (name, series) in FIRES {
        let answers = promql.evaluate(&pages(series), 60.0 * f64::from(MINUTES), &expressions());
        let firing = names.iter().zip(answers).filter(|(_, answer)| !answer.series.is_empty());
        let firing: Vec<_> = firing.map(|(name, _)| *name).collect();
        assert_eq!(firing, [name]);
    }
}

#[tokio::test]
async fn no_alert_fires_on_a_fleet_that_is_well() {
    let Some(promql) = PromQl::installed() else { return };
    let mut fleet = Fleet::start().await;
    let mut pages = fleet.scraped(0.0).await;
    for minute in 1..3 {
        fleet.serves("Hello").await;
        pages.extend(fleet.scraped(60.0 * f64::from(minute)).await);
    }
    for (answer, (name, _)) in promql.evaluate(&pages, 120.0, &expressions()).iter().zip(alerts()) {
        assert!(answer.series.is_empty(), "{name} fires: {:?}", answer.series);
    }
}

#[test]
fn every_alert_has_a_runbook() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/runbooks.md");
    let page = std::fs::read_to_string(page).unwrap();
    let sections: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("## Stator")).collect();
    let alerts = alerts();
    let names: BTreeSet<_> =
        alerts.iter().map(|(name, _)| name.strip_prefix("Stator").unwrap()).collect();
    assert_eq!(sections, names);
}
