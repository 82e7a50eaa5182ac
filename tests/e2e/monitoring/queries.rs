//! Queries of the dashboards, and the files that are made of the dashboards' data.

use super::dashboards::DashboardSource;
use super::pages::Fleet;
use super::promql::PromQl;
use super::{alerts, folder, queries};
use std::collections::BTreeSet;
use std::path::Path;

/// Environment variable with which the test writes the dashboards.
const WRITE: &str = "STATOR_WRITE_DASHBOARDS";
/// Ends of the names of a family's series.
const ENDS: [&str; 4] = ["_total", "_bucket", "_sum", "_count"];

#[test]
fn dashboards_are_as_their_data_says() {
    let text = std::fs::read_to_string(folder().join("dashboards.yaml")).unwrap();
    for source in DashboardSource::read(&text) {
        let path = folder().join("dashboards").join(&source.name).with_extension("json");
        let made = serde_json::to_string_pretty(&source.json()).unwrap() + "\n";
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let renew = format!("{WRITE}=1 cargo test -p stator-tests --test e2e dashboards");
        assert!(found == made, "{} is not as its data says: {renew}", path.display());
    }
}

/// Prometheus' engine understands every query, each metric exists, and where processes show all
/// metrics of a query, the query gives something.
#[tokio::test]
async fn every_query_is_evaluated_and_names_metrics_that_exist() {
    let Some(promql) = PromQl::installed() else { return };
    let mut fleet = Fleet::start().await;
    fleet.serves("Hello").await;
    let mut pages = fleet.scraped(0.0).await;
    fleet.serves("Hello again").await;
    pages.extend(fleet.scraped(60.0).await);

    let mut asked = queries();
    let dashboards = asked.len();
    asked.extend(alerts::expressions());
    let shown = shown(pages.iter().map(|page| &*page.text));
    let registered = Registered::read();
    let mut empty = Vec::new();
    for (at, answer) in promql.evaluate(&pages, 60.0, &asked).into_iter().enumerate() {
        assert!(!answer.metrics.is_empty(), "{} names no metric", asked[at]);
        for name in &answer.metrics {
            let exists = shown.contains(&**name) || registered.has(name);
            assert!(exists, "{}: there is no metric {name}", asked[at]);
        }
        let all = answer.metrics.iter().all(|name| shown.contains(&**name));
        // Alerts give nothing while all is well.
        if at < dashboards && all && answer.series.is_empty() {
            empty.push(&asked[at]);
        }
    }
    assert!(empty.is_empty(), "these give nothing: {empty:#?}");
}

/// Names of the series on pages.
fn shown<'a>(pages: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let lines = pages.flat_map(str::lines).filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(['{', ' ']).next().unwrap_or_default()).collect()
}

/// Texts in the files that register metrics: a family without series is on no page.
struct Registered(String);

impl Registered {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut text = String::new();
        for folder in ["proxy", "worker-agent", "epp", "control", "crates"] {
            gather(&root.join(folder), &mut text);
        }
        assert!(text.len() > 50_000, "the files that register metrics were not found");
        Self(text)
    }

    /// Whether a family of this name is registered: under its whole name, or under the part behind
    /// its room's prefix, whose unit may be said apart.
    fn has(&self, name: &str) -> bool {
        let family = ENDS.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let rooms = [
            "stator_proxy_",
            "stator_agent_",
            "stator_planner_",
            "stator_operator_",
            "stator_kv_",
            "stator_epp_",
        ];
        let part = rooms.iter().find_map(|room| family.strip_prefix(room)).unwrap_or(family);
        let units = ["_seconds", "_bytes"];
        let bare = units.iter().find_map(|unit| part.strip_suffix(unit)).unwrap_or(part);
        [family, part, bare].iter().any(|name| self.0.contains(&format!("\"{name}\"")))
    }
}

/// Appends the production sources below a folder whose path speaks of metrics.
fn gather(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let shown = path.to_string_lossy().into_owned();
        if path.is_dir() {
            gather(&path, text);
        } else if shown.ends_with(".rs") && shown.contains("metrics") && !shown.contains("tests") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}
