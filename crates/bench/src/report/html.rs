//! The result as one page that needs nothing else: plots are inline SVG, there is no script.

use std::fmt::Write;

use serde_json::Value;

use super::Report;
use super::svg::{Axis, Layer, Mark, Plot, Scale, escape};
use super::table::{facts, figures, latencies};

/// Points of a plot over time; more slots than that are averaged.
const TIME_POINTS: usize = 128;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1f24; --soft: #656d76; --back: #ffffff; --card: #f6f8fa;
  --rule: #d8dee4; --a: #0969da; --b: #bc4c00; --c: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #8d96a0; --back: #0d1117;
  --card: #161b22; --rule: #30363d; --a: #4493f8; --b: #f0883e; --c: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
h2 { font-size: 1rem; margin: 0 0 .5rem; font-weight: 600; }
section { margin: 0 0 2rem; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); }
figure { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--rule); fill: none; }
.axis { stroke: var(--soft); fill: none; }
.line { stroke-width: 2; fill: none; stroke-linejoin: round; }
.dots { stroke-width: 4; stroke-linecap: round; fill: none; opacity: .55; }
.a { stroke: var(--a); } .b { stroke: var(--b); } .c { stroke: var(--c); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; font-weight: 400; }
th:first-child { width: 11rem; }
th { color: var(--soft); white-space: nowrap; }
.figures td, .figures thead th + th { text-align: right; }
td { overflow-wrap: anywhere; }
";

/// The page.
pub fn render(report: &Report) -> String {
    let title = escape(&format!("stator bench: {}", report.label));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    rows(&mut page, "Result", facts(report).into_iter());
    latency_table(&mut page, report);
    page.push_str("<section class=\"plots\">\n");
    for plot in plots(report) {
        let _ =
            write!(page, "<figure><h2>{}</h2>\n{}</figure>\n", escape(plot.title), plot.render());
    }
    page.push_str("</section>\n");
    if let Value::Object(config) = &report.config {
        let set = config.iter().filter(|(_, value)| !value.is_null());
        rows(&mut page, "Configuration", set.map(|(name, value)| (name.as_str(), plain(value))));
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn rows<'a>(page: &mut String, title: &str, rows: impl Iterator<Item = (&'a str, String)>) {
    let _ = write!(page, "<section class=\"wide\"><h2>{title}</h2>\n<table>\n");
    for (name, value) in rows {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(&value));
    }
    page.push_str("</table></section>\n");
}

/// A value as people write it: text without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn latency_table(page: &mut String, report: &Report) {
    page.push_str("<section class=\"wide\"><h2>Latency, ms</h2>\n<table class=\"figures\">\n<thead><tr><th></th>");
    for name in ["count", "mean", "p50", "p90", "p95", "p99", "max"] {
        let _ = write!(page, "<th>{name}</th>");
    }
    page.push_str("</tr></thead>\n");
    for (name, summary) in latencies(report) {
        let cells: String =
            figures(summary).iter().map(|cell| format!("<td>{cell}</td>")).collect();
        let _ = writeln!(page, "<tr><th>{name}</th>{cells}</tr>");
    }
    page.push_str("</table></section>\n");
}

/// The plots for which there are values.
fn plots(report: &Report) -> Vec<Plot<'_>> {
    let curves = &report.curves;
    let distributions = [
        ("Time to first token (TTFT), distribution", &curves.ttft),
        ("Inter-token latency (ITL), distribution", &curves.itl),
        ("End-to-end latency, distribution", &curves.e2e),
    ];
    let known = distributions.into_iter().filter(|(_, curve)| !curve.is_empty());
    let mut plots: Vec<Plot<'_>> = known.map(|(title, curve)| distribution(title, curve)).collect();
    plots.extend(ttft_over_time(report));
    plots.push(over_time(
        report,
        "Output tokens over time",
        "tokens/s",
        &[("", "a", |slot| slot.output_tokens)],
    ));
    let requests: [Count; 3] = [
        ("sent", "b", |slot| slot.sent as f64),
        ("succeeded", "a", |slot| slot.succeeded as f64),
        ("failed", "c", |slot| slot.failed as f64),
    ];
    let shown = if report.requests.failed > 0 { &requests[..] } else { &requests[..2] };
    plots.push(over_time(report, "Requests over time", "requests/s", shown));
    plots
}

/// Name, class and value of something that is counted over time.
type Count = (&'static str, &'static str, fn(&crate::series::TimeSlot) -> f64);

fn distribution<'a>(title: &'a str, curve: &[(f64, f64)]) -> Plot<'a> {
    let points = curve.iter().map(|(ms, share)| (*ms, share * 100.0)).collect();
    Plot {
        title,
        x: Axis {
            label: "milliseconds",
            scale: Scale::logarithmic(curve.iter().map(|(ms, _)| *ms)),
        },
        y: Axis { label: "% of requests", scale: Scale::linear([100.0 / 1.02].into_iter()) },
        layers: vec![Layer { name: "", class: "a", mark: Mark::Line, points }],
    }
}

fn ttft_over_time(report: &Report) -> Option<Plot<'_>> {
    let points: Vec<(f64, f64)> =
        report.points.iter().filter_map(|point| Some((point.sent_s, point.ttft_ms?))).collect();
    if points.is_empty() {
        return None;
    }
    Some(Plot {
        title: "TTFT over time, by when the request was sent",
        x: Axis { label: "seconds", scale: Scale::linear([report.window_s].into_iter()) },
        y: Axis {
            label: "milliseconds",
            scale: Scale::logarithmic(points.iter().map(|(_, ms)| *ms)),
        },
        layers: vec![Layer { name: "", class: "a", mark: Mark::Dots, points }],
    })
}

fn over_time<'a>(report: &Report, title: &'a str, unit: &'a str, counts: &[Count]) -> Plot<'a> {
    let layer = |(name, class, count): &Count| {
        let (name, class, mark) = (*name, *class, Mark::Line);
        Layer { name, class, mark, points: rates(report, *count) }
    };
    let layers: Vec<Layer<'a>> = counts.iter().map(layer).collect();
    let values = layers.iter().flat_map(|layer| &layer.points).map(|(_, rate)| *rate);
    // A legend lies above the lines, where there is one.
    let room = if counts.len() > 1 { 1.15 } else { 1.0 };
    let y = Axis { label: unit, scale: Scale::linear(values.map(|rate| rate * room)) };
    let x = Axis { label: "seconds", scale: Scale::linear([report.window_s].into_iter()) };
    Plot { title, x, y, layers }
}

/// Rates per second in the middle of each span of time.
fn rates(report: &Report, count: fn(&crate::series::TimeSlot) -> f64) -> Vec<(f64, f64)> {
    let merged = report.series.slots.len().div_ceil(TIME_POINTS).max(1);
    let slot_s = report.series.slot_s;
    let spans = report.series.slots.chunks(merged).enumerate();
    let rate = |(index, span): (usize, &[crate::series::TimeSlot])| {
        let start_s = (index * merged) as f64 * slot_s;
        // The last span is as long as the measurement lasted in it.
        let length_s =
            (span.len() as f64 * slot_s).min(report.window_s - start_s).max(slot_s * 0.5);
        (start_s + length_s / 2.0, span.iter().map(count).sum::<f64>() / length_s)
    };
    spans.map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_page_is_whole_and_needs_nothing_else() {
        let page = render(&sample("a <b>", 200, 1.0));
        assert_eq!(page.matches("<svg").count(), 6);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("a &lt;b&gt;") && page.contains("http 503 &lt;busy&gt;"));
        for foreign in ["<script", "src=", "href=", "@import", "NaN", "inf "] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_measurement_without_answers_has_a_page_too() {
        let page = render(&sample("none", 0, 1.0));
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(!page.contains("NaN"));
    }

    #[test]
    fn rates_add_up_to_the_counts() {
        let report = sample("a", 60, 1.0);
        let rates = rates(&report, |slot| slot.sent as f64);
        let total: f64 = rates.iter().map(|(_, rate)| rate * report.series.slot_s).sum();
        assert!((total - 61.0).abs() < 1e-6, "{total}");
    }
}
