//! Grafana dashboards, made of data: rows of panels with queries.

use serde::Deserialize;
use serde_json::{Value, json};

/// Units of Grafana's grid that a row has.
const GRID: u32 = 24;
/// Units that a panel is wide and high, unless it says otherwise.
const WIDTH: u32 = 8;
const HEIGHT: u32 = 8;

/// A dashboard as it is written by hand.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DashboardSource {
    /// Name of its file, and part of its identity.
    pub(super) name: String,
    title: String,
    rows: Vec<DashboardRow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DashboardRow {
    title: String,
    panels: Vec<DashboardPanel>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DashboardPanel {
    title: String,
    unit: String,
    #[serde(default = "timeseries")]
    kind: String,
    #[serde(default = "usual_width")]
    width: u32,
    queries: Vec<PanelQuery>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PanelQuery {
    expr: String,
    legend: String,
}

fn timeseries() -> String {
    "timeseries".to_owned()
}

fn usual_width() -> u32 {
    WIDTH
}

impl DashboardSource {
    /// All dashboards of a YAML file.
    ///
    /// # Panics
    ///
    /// For a text that lists no dashboards.
    pub(super) fn read(text: &str) -> Vec<Self> {
        serde_yaml_ng::from_str(text).unwrap_or_else(|error| panic!("the dashboards: {error}"))
    }

    /// All queries.
    pub(super) fn queries(&self) -> impl Iterator<Item = &str> {
        let panels = self.rows.iter().flat_map(|row| &row.panels);
        panels.flat_map(|panel| &panel.queries).map(|query| &*query.expr)
    }

    /// The dashboard as Grafana imports it, with its data source as a variable.
    pub(super) fn json(&self) -> Value {
        let (mut panels, mut y) = (Vec::new(), 0);
        for row in &self.rows {
            let place = json!({ "x": 0, "y": y, "w": GRID, "h": 1 });
            panels.push(json!({ "type": "row", "title": row.title, "gridPos": place, "panels": [],
                                "collapsed": false }));
            y += 1;
            let mut x = 0;
            for panel in &row.panels {
                if x + panel.width > GRID {
                    (x, y) = (0, y + HEIGHT);
                }
                let place = json!({ "x": x, "y": y, "w": panel.width, "h": HEIGHT });
                panels.push(panel.json(place));
                x += panel.width;
            }
            y += HEIGHT;
        }
        for (id, panel) in panels.iter_mut().enumerate() {
            panel["id"] = json!(id + 1);
        }
        let source = json!({ "name": "datasource", "label": "Data source", "type": "datasource",
                             "query": "prometheus" });
        json!({
            "uid": format!("stator-{}", self.name),
            "title": self.title,
            "tags": ["stator"],
            "schemaVersion": 39,
            "editable": true,
            "refresh": "30s",
            "time": { "from": "now-3h", "to": "now" },
            "templating": { "list": [source] },
            "panels": panels,
        })
    }
}

impl DashboardPanel {
    fn json(&self, place: Value) -> Value {
        let source = json!({ "type": "prometheus", "uid": "${datasource}" });
        let is_heatmap = self.kind == "heatmap";
        let targets = self.queries.iter().enumerate().map(|(at, query)| {
            let name = char::from(b'A' + u8::try_from(at).expect("a panel has few queries"));
            json!({
                "refId": name.to_string(),
                "datasource": source,
                "expr": query.expr,
                "legendFormat": query.legend,
                "format": if is_heatmap { "heatmap" } else { "time_series" },
            })
        });
        json!({
            "type": self.kind,
            "title": self.title,
            "datasource": source,
            "gridPos": place,
            "fieldConfig": { "defaults": { "unit": self.unit, "min": 0 }, "overrides": [] },
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_fill_rows_of_the_grid() {
        let panel = "{title: t, unit: s, queries: [{expr: a, legend: b}]}";
        let panels = [panel; 4].join(", ");
        let text = format!("[{{name: n, title: t, rows: [{{title: r, panels: [{panels}]}}]}}]");
        let made = DashboardSource::read(&text).remove(0).json();
        let places: Vec<_> = made["panels"].as_array().unwrap()[1..]
            .iter()
            .map(|panel| (panel["gridPos"]["x"].as_u64(), panel["gridPos"]["y"].as_u64()))
            .collect();
        let expected = [(0, 1), (8, 1), (16, 1), (0, 9)];
        assert_eq!(places, expected.map(|(x, y)| (Some(x), Some(y))));
        assert_eq!(made["panels"][1]["targets"][0]["expr"], "a");
    }
}
