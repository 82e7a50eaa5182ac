//! The outcomes as one page.

use super::table;
use stator_fleet_model::{FleetPoint, RunOutcome};
use stator_report::{Axis, BarMark, Layer, Page, Plot, Scale, Shape};

/// Colours of a timeline: before the first token, and from then on.
const ORANGE: usize = 1;
const BLUE: usize = 0;

/// The page of some runs; `command` is what made it.
pub(crate) fn html(command: &str, outcomes: &[RunOutcome]) -> String {
    let mut page = Page::new("stator simulate");
    page.text(command);
    page.table("Results", &table::table(outcomes));
    page.note(&table::notes(outcomes));
    // Eight plots have the same lines: one key for all of them.
    page.key(outcomes.iter().map(|run| format!("{}, seed {}", run.policy, run.seed)));
    let waiting = |point: &FleetPoint| f64::from(point.held + point.waiting);
    let longest = |point: &FleetPoint| f64::from(point.longest);
    let running = |point: &FleetPoint| f64::from(point.running);
    page.plots([
        distribution("TTFT", outcomes, |run| &run.ttft_curve),
        distribution("ITL", outcomes, |run| &run.itl_curve),
        over_time("Requests that wait", "requests", outcomes, waiting),
        over_time("Longest queue of one worker", "requests", outcomes, longest),
        over_time("Requests that run", "requests", outcomes, running),
        over_time("KV in use", "share of blocks", outcomes, |point| point.used),
        cached(outcomes),
        balance(outcomes),
    ]);
    page.plots(outcomes.iter().filter(|run| !run.bars.is_empty()).map(timeline));
    page.note(
        "A timeline shows requests in the order of their ends: until the first token in orange, \
         from then on in blue.",
    );
    page.finish()
}

/// A line for each run, in the colours of the key.
fn lines(lines: impl Iterator<Item = Vec<(f64, f64)>>) -> Vec<Layer<'static>> {
    let layer = |(colour, points)| Layer { name: "", colour, shape: Shape::Line(points) };
    lines.enumerate().map(layer).collect()
}

fn distribution<'a>(
    title: &str,
    outcomes: &'a [RunOutcome],
    curve: impl Fn(&'a RunOutcome) -> &'a Vec<(f64, f64)>,
) -> Plot<'static> {
    let curves: Vec<_> = outcomes.iter().map(|run| curve(run).clone()).collect();
    let values = curves.iter().flatten().map(|point| point.0);
    Plot {
        title: title.to_owned(),
        x: Axis { label: "milliseconds", scale: Scale::logarithmic(values) },
        y: Axis { label: "share", scale: Scale::between(0.0, 1.0) },
        layers: lines(curves.into_iter()),
    }
}

fn over_time(
    title: &str,
    label: &'static str,
    outcomes: &[RunOutcome],
    value: impl Fn(&FleetPoint) -> f64,
) -> Plot<'static> {
    let points = || outcomes.iter().flat_map(|run| &run.samples);
    let of_run = |run: &RunOutcome| {
        run.samples.iter().map(|point| (point.at_s, value(point))).collect::<Vec<_>>()
    };
    Plot {
        title: title.to_owned(),
        x: Axis { label: "seconds", scale: Scale::linear(points().map(|point| point.at_s)) },
        y: Axis { label, scale: Scale::linear(points().map(&value)) },
        layers: lines(outcomes.iter().map(of_run)),
    }
}

fn cached(outcomes: &[RunOutcome]) -> Plot<'static> {
    let shares = outcomes.iter().map(|run| run.cached_share);
    let bar = |(colour, run): (usize, &RunOutcome)| {
        // The first run is on top.
        let row = (outcomes.len() - 1 - colour) as f64;
        let bar = BarMark { from: 0.0, to: run.cached_share, row };
        Layer { name: "", colour, shape: Shape::Bars(vec![bar]) }
    };
    Plot {
        title: "Prompt tokens reused".to_owned(),
        x: Axis { label: "share of prompt tokens", scale: Scale::linear(shares) },
        y: Axis { label: "", scale: Scale::between(0.0, outcomes.len().max(1) as f64) },
        layers: outcomes.iter().enumerate().map(bar).collect(),
    }
}

fn balance(outcomes: &[RunOutcome]) -> Plot<'static> {
    let most = outcomes.iter().map(|run| run.busy.len()).max().unwrap_or(1);
    let of_run = |run: &RunOutcome| {
        let mut busy = run.busy.clone();
        busy.sort_by(f64::total_cmp);
        busy.into_iter().enumerate().map(|(rank, busy)| (rank as f64, busy)).collect::<Vec<_>>()
    };
    let shares = outcomes.iter().flat_map(|run| &run.busy).copied();
    Plot {
        title: "Busy time of workers, least to most".to_owned(),
        x: Axis { label: "worker", scale: Scale::between(0.0, (most.max(2) - 1) as f64) },
        y: Axis { label: "share of time", scale: Scale::linear(shares) },
        layers: lines(outcomes.iter().map(of_run)),
    }
}

fn timeline(outcome: &RunOutcome) -> Plot<'static> {
    let bars = &outcome.bars;
    let from = bars.iter().map(|bar| bar.placed_s).fold(f64::MAX, f64::min);
    let to = bars.iter().map(|bar| bar.ended_s).fold(from + 1e-9, f64::max);
    let row = |place: usize| (bars.len() - 1 - place) as f64;
    let prompts = bars.iter().enumerate().map(|(place, bar)| BarMark {
        from: bar.placed_s,
        to: bar.first_s,
        row: row(place),
    });
    let answers = bars.iter().enumerate().map(|(place, bar)| BarMark {
        from: bar.first_s,
        to: bar.ended_s,
        row: row(place),
    });
    Plot {
        title: format!("One worker under {}, seed {}", outcome.policy, outcome.seed),
        x: Axis { label: "seconds", scale: Scale::between(from, to) },
        y: Axis { label: "request", scale: Scale::between(0.0, bars.len() as f64) },
        layers: vec![
            Layer { name: "", colour: ORANGE, shape: Shape::Bars(prompts.collect()) },
            Layer { name: "", colour: BLUE, shape: Shape::Bars(answers.collect()) },
        ],
    }
}
