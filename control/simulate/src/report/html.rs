//! One self-contained page.

use super::svg::{Axis, Plot, colour};
use super::table;
use stator_fleet_model::{FleetPoint, RunOutcome};
use std::fmt::Write;

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;max-width:1340px;margin:2em auto;\
    padding:0 1em;color:#1b1b1b}svg{width:640px;max-width:100%;font-size:11px}\
    .grid{stroke:#ddd}figure{display:inline-block;margin:0 8px 1.5em 0}\
    figcaption{font-weight:600}pre{overflow-x:auto;background:#f5f5f3;padding:1em}\
    .key span{margin-right:1.2em;white-space:nowrap}.key i{display:inline-block;width:1em;\
    height:.7em;margin-right:.4em}";

/// The page of some runs; `command` is what made it.
pub(crate) fn html(command: &str, outcomes: &[RunOutcome]) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>stator simulate</title>\
         <style>{STYLE}</style><h1>stator simulate</h1><pre>{}</pre><pre>{}\n{}</pre>",
        escaped(command),
        escaped(&table::table(outcomes)),
        escaped(&table::notes(outcomes)),
    );
    page += &key(outcomes);
    page += &figure("TTFT", &distribution(outcomes, "TTFT, ms", |o| &o.ttft_curve));
    page += &figure("ITL", &distribution(outcomes, "ITL, ms", |o| &o.itl_curve));
    let waiting = |point: &FleetPoint| f64::from(point.held + point.waiting);
    page += &figure("Requests that wait", &over_time(outcomes, "requests", waiting));
    let longest = |point: &FleetPoint| f64::from(point.longest);
    page += &figure("Longest queue of one worker", &over_time(outcomes, "requests", longest));
    let running = |point: &FleetPoint| f64::from(point.running);
    page += &figure("Requests that run", &over_time(outcomes, "requests", running));
    page += &figure("KV in use", &over_time(outcomes, "share of blocks", |point| point.used));
    page += &figure("Prompt tokens reused", &cached(outcomes));
    page += &figure("Busy time of workers, least to most", &balance(outcomes));
    for outcome in outcomes.iter().filter(|outcome| !outcome.bars.is_empty()) {
        let title = format!("One worker under {}, seed {}", outcome.policy, outcome.seed);
        page += &figure(&title, &timeline(outcome));
    }
    page += "<p>A timeline shows requests in the order of their ends: until the first token in \
             orange, from then on in blue.</p></html>\n";
    page
}

fn key(outcomes: &[RunOutcome]) -> String {
    let mut key = String::from("<p class='key'>");
    for (line, outcome) in outcomes.iter().enumerate() {
        let (colour, policy, seed) = (colour(line), outcome.policy, outcome.seed);
        let _ =
            write!(key, "<span><i style='background:{colour}'></i>{policy}, seed {seed}</span>");
    }
    key + "</p>"
}

fn figure(title: &str, plot: &str) -> String {
    format!("<figure><figcaption>{title}</figcaption>{plot}</figure>")
}

fn distribution(
    outcomes: &[RunOutcome],
    label: &'static str,
    curve: impl Fn(&RunOutcome) -> &Vec<(f64, f64)>,
) -> String {
    let values = || outcomes.iter().flat_map(&curve).map(|point| point.0);
    let share = Axis { label: "share", low: 0.0, high: 1.0, logarithmic: false };
    let mut plot = Plot::new(Axis::logarithmic(label, values()), share);
    for (line, outcome) in outcomes.iter().enumerate() {
        plot.line(curve(outcome).iter().copied(), colour(line));
    }
    plot.finish()
}

fn over_time(
    outcomes: &[RunOutcome],
    label: &'static str,
    value: impl Fn(&FleetPoint) -> f64,
) -> String {
    let points = || outcomes.iter().flat_map(|outcome| &outcome.samples);
    let x = Axis::linear("seconds", points().map(|point| point.at_s));
    let y = Axis::linear(label, points().map(&value));
    let mut plot = Plot::new(x, y);
    for (line, outcome) in outcomes.iter().enumerate() {
        let points = outcome.samples.iter().map(|point| (point.at_s, value(point)));
        plot.line(points, colour(line));
    }
    plot.finish()
}

fn cached(outcomes: &[RunOutcome]) -> String {
    let x = Axis::linear("share of prompt tokens", outcomes.iter().map(|o| o.cached_share));
    let y = Axis { label: "", low: 0.0, high: outcomes.len().max(1) as f64, logarithmic: false };
    let mut plot = Plot::new(x, y);
    for (line, outcome) in outcomes.iter().enumerate() {
        let row = (outcomes.len() - 1 - line) as f64;
        plot.bar(0.0, outcome.cached_share, row, colour(line));
    }
    plot.finish()
}

fn balance(outcomes: &[RunOutcome]) -> String {
    let most = outcomes.iter().map(|outcome| outcome.busy.len()).max().unwrap_or(1);
    let x = Axis::linear("worker", std::iter::once((most.max(2) - 1) as f64));
    let y = Axis::linear("share of time", outcomes.iter().flat_map(|o| &o.busy).copied());
    let mut plot = Plot::new(x, y);
    for (line, outcome) in outcomes.iter().enumerate() {
        let mut busy = outcome.busy.clone();
        busy.sort_by(f64::total_cmp);
        let points = busy.into_iter().enumerate().map(|(rank, busy)| (rank as f64, busy));
        plot.line(points, colour(line));
    }
    plot.finish()
}

fn timeline(outcome: &RunOutcome) -> String {
    let bars = &outcome.bars;
    let from = bars.iter().map(|bar| bar.placed_s).fold(f64::MAX, f64::min);
    let to = bars.iter().map(|bar| bar.ended_s).fold(from + 1e-9, f64::max);
    let x = Axis { label: "seconds", low: from, high: to, logarithmic: false };
    let y = Axis { label: "request", low: 0.0, high: bars.len() as f64, logarithmic: false };
    let mut plot = Plot::new(x, y);
    for (row, bar) in bars.iter().enumerate() {
        let row = (bars.len() - 1 - row) as f64;
        plot.bar(bar.placed_s, bar.first_s, row, colour(1));
        plot.bar(bar.first_s, bar.ended_s, row, colour(0));
    }
    plot.finish()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
