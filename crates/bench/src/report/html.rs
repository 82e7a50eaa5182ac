//! The result as one page.

use serde_json::Value;
use stator_report::{Axis, Layer, Page, Plot, Scale, Shape};

use super::Report;
use super::table::{facts, latencies};

/// Points of a plot over time; more slots than that are averaged.
const TIME_POINTS: usize = 128;

/// The page.
pub fn render(report: &Report) -> String {
    let mut page = Page::new(&format!("stator bench: {}", report.label));
    page.facts("Result", facts(report));
    page.table("Latency, ms", &latencies(report));
    page.plots(plots(report));
    if let Value::Object(config) = &report.config {
        let set = config.iter().filter(|(_, value)| !value.is_null());
        page.facts("Configuration", set.map(|(name, value)| (name.as_str(), plain(value))));
    }
    page.finish()
}

/// A value as people write it: text without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
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
        &[("", BLUE, |slot| slot.output_tokens)],
    ));
    let requests: [Count; 3] = [
        ("sent", ORANGE, |slot| slot.sent as f64),
        ("succeeded", BLUE, |slot| slot.succeeded as f64),
        ("failed", RED, |slot| slot.failed as f64),
    ];
    let shown = if report.requests.failed > 0 { &requests[..] } else { &requests[..2] };
    plots.push(over_time(report, "Requests over time", "requests/s", shown));
    plots
}

/// Colours of plots.
const BLUE: usize = 0;
const ORANGE: usize = 1;
const RED: usize = 3;

/// Name, colour and value of something that is counted over time.
type Count = (&'static str, usize, fn(&crate::series::TimeSlot) -> f64);

fn distribution<'a>(title: &'a str, curve: &[(f64, f64)]) -> Plot<'a> {
    let points = curve.iter().map(|(ms, share)| (*ms, share * 100.0)).collect();
    Plot {
        title: title.to_owned(),
        x: Axis {
            label: "milliseconds",
            scale: Scale::logarithmic(curve.iter().map(|(ms, _)| *ms)),
        },
        y: Axis { label: "% of requests", scale: Scale::between(0.0, 100.0) },
        layers: vec![Layer { name: "", colour: BLUE, shape: Shape::Line(points) }],
    }
}

fn ttft_over_time(report: &Report) -> Option<Plot<'_>> {
    let points: Vec<(f64, f64)> =
        report.points.iter().filter_map(|point| Some((point.sent_s, point.ttft_ms?))).collect();
    if points.is_empty() {
        return None;
    }
    Some(Plot {
        title: "TTFT over time, by when the request was sent".to_owned(),
        x: Axis { label: "seconds", scale: Scale::linear([report.window_s].into_iter()) },
        y: Axis {
            label: "milliseconds",
            scale: Scale::logarithmic(points.iter().map(|(_, ms)| *ms)),
        },
        layers: vec![Layer { name: "", colour: BLUE, shape: Shape::Dots(points) }],
    })
}

fn over_time<'a>(report: &Report, title: &'a str, unit: &'a str, counts: &[Count]) -> Plot<'a> {
    let lines: Vec<_> = counts.iter().map(|(_, _, count)| rates(report, *count)).collect();
    let values = lines.iter().flatten().map(|(_, rate)| *rate);
    // A legend lies above the lines, where there is one.
    let room = if counts.len() > 1 { 1.15 } else { 1.0 };
    let y = Axis { label: unit, scale: Scale::linear(values.map(|rate| rate * room)) };
    let x = Axis { label: "seconds", scale: Scale::linear([report.window_s].into_iter()) };
    let layer = |((name, colour, _), points): (&Count, _)| {
        let (name, colour) = (*name, *colour);
        Layer { name, colour, shape: Shape::Line(points) }
    };
    let layers = counts.iter().zip(lines).map(layer).collect();
    Plot { title: title.to_owned(), x, y, layers }
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
