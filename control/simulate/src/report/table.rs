//! The table of results: a row per policy.

use stator_fleet_model::{RunOutcome, TierTotals};
use stator_report::TextTable;
use stator_report::number::{count_or_short, percent, short};

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
pub(crate) fn table(outcomes: &[RunOutcome]) -> TextTable {
    let mut table = TextTable::new(HEAD);
    let mut policies: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !policies.contains(&outcome.policy) {
            policies.push(outcome.policy);
        }
    }
    for policy in policies {
        let of_policy = outcomes.iter().filter(|outcome| outcome.policy == policy);
        table.row(policy, cells(&of_policy.collect::<Vec<_>>()));
    }
    table
}

/// Notes under the table: the meaning of the columns, and faults that happened.
pub(crate) fn notes(outcomes: &[RunOutcome]) -> String {
    let mut text = String::from(
        "Times in ms; good: share of requests within both objectives, and how many a second; \
         cached: share of prompt tokens reused; imbal.: variation of busy time over workers.\n",
    );
    for RunOutcome { policy, seed, tiers, .. } in outcomes {
        let TierTotals { host, disk, objects, peers, .. } = tiers;
        let TierTotals { host_written, disk_written, objects_written, .. } = tiers;
        if *host_written > 0 {
            text += &format!(
                "{policy}, seed {seed}: blocks from host memory {host}, disk {disk}, objects {objects}, \
                 others {peers}; written to host memory {host_written}, to disk {disk_written}, \
                 objects {objects_written}\n"
            );
        }
    }
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

fn cells(outcomes: &[&RunOutcome]) -> [String; 12] {
    let median = |figure: &dyn Fn(&RunOutcome) -> f64| {
        let mut values: Vec<f64> = outcomes.iter().map(|outcome| figure(outcome)).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let time = |figure: &dyn Fn(&RunOutcome) -> f64| short(median(figure));
    let share = |figure: &dyn Fn(&RunOutcome) -> f64| percent(median(figure));
    [
        time(&|outcome| outcome.ttft_ms.mean),
        time(&|outcome| outcome.ttft_ms.p50),
        time(&|outcome| outcome.ttft_ms.p90),
        time(&|outcome| outcome.ttft_ms.p99),
        time(&|outcome| outcome.itl_ms.mean),
        time(&|outcome| outcome.itl_ms.p99),
        share(&|outcome| outcome.good_share),
        time(&|outcome| outcome.goodput),
        share(&|outcome| outcome.cached_share),
        time(&|outcome| outcome.imbalance),
        share(&|outcome| outcome.busy_share),
        count_or_short(median(&|outcome| outcome.failed as f64)),
    ]
}
