//! The table on standard output: a row per policy.

use stator_fleet_model::RunOutcome;

const HEAD: [&str; 13] = [
    "policy",
    "TTFT mean",
    "p50",
    "p90",
    "p99",
    "ITL mean",
    "p99",
    "good",
    "req/s",
    "cached",
    "imbal.",
    "busy",
    "failed",
];

/// One policy, or the medians of one policy over several seeds.
pub(crate) fn table(outcomes: &[RunOutcome]) -> String {
    let mut rows = vec![HEAD.map(String::from)];
    let mut policies: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !policies.contains(&outcome.policy) {
            policies.push(outcome.policy);
        }
    }
    for policy in policies {
        let of_policy = outcomes.iter().filter(|outcome| outcome.policy == policy);
        rows.push(row(policy, &of_policy.collect::<Vec<_>>()));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
            text.push_str(&cell);
        }
        text.push('\n');
    }
    text
}

/// Notes under the table: the meaning of the columns, and faults that happened.
pub(crate) fn notes(outcomes: &[RunOutcome]) -> String {
    let mut text = String::from(
        "Times in ms; good: share of requests within both objectives, and how many a second; \
         cached: share of prompt tokens reused; imbal.: variation of busy time over workers.\n",
    );
    for outcome in outcomes {
        let RunOutcome { policy, seed, preemptions, migrations, deaths, lost_batches, .. } =
            outcome;
        if preemptions + migrations + deaths + lost_batches > 0 {
            text += &format!(
                "{policy}, seed {seed}: {preemptions} preemptions, {deaths} deaths, {migrations} \
                 migrations, {lost_batches} batches of events lost\n"
            );
        }
    }
    text
}

fn row(policy: &str, outcomes: &[&RunOutcome]) -> [String; 13] {
    let median = |figure: &dyn Fn(&RunOutcome) -> f64| {
        let mut values: Vec<f64> = outcomes.iter().map(|outcome| figure(outcome)).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let time = |figure: &dyn Fn(&RunOutcome) -> f64| number(median(figure));
    let share = |figure: &dyn Fn(&RunOutcome) -> f64| format!("{:.1} %", 100.0 * median(figure));
    [
        policy.to_owned(),
        time(&|outcome| outcome.ttft_ms.mean),
        time(&|outcome| outcome.ttft_ms.p50),
        time(&|outcome| outcome.ttft_ms.p90),
        time(&|outcome| outcome.ttft_ms.p99),
        time(&|outcome| outcome.itl_ms.mean),
        time(&|outcome| outcome.itl_ms.p99),
        share(&|outcome| outcome.good_share),
        time(&|outcome| outcome.goodput),
        share(&|outcome| outcome.cached_share),
        format!("{:.3}", median(&|outcome| outcome.imbalance)),
        share(&|outcome| outcome.busy_share),
        format!("{}", median(&|outcome| outcome.failed as f64)),
    ]
}

/// Four digits where there are any after the point.
fn number(value: f64) -> String {
    match value {
        0.0..10.0 => format!("{value:.2}"),
        10.0..1_000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
