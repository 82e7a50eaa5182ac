//! The result as text on standard output.

use std::fmt::Write;

use stator_report::TextTable;
use stator_report::number::{megabytes, percent, short, whole};

use crate::histogram::Summary;

use super::{Process, Report};

/// Lines up everything that a person wants to know at first.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in facts(report) {
        let _ = writeln!(text, "{name:<12} {value}");
    }
    let latencies = latencies(report);
    if !latencies.rows.is_empty() {
        text.push('\n');
        text.push_str(&latencies.text());
    }
    text
}

/// Everything besides latencies, as names and values.
pub(super) fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        (
            "label",
            format!("{} ({}, stator bench {})", report.label, report.started_at, report.version),
        ),
        ("model", report.model.clone()),
        ("requests", requests(report)),
    ];
    // A line for each kind: their counts tell whether a server was overloaded or broken.
    let failures = report.requests.failures.iter();
    facts.extend(failures.map(|(kind, count)| ("failure", format!("{} × {kind}", whole(*count)))));
    let rates = &report.throughput;
    facts.push((
        "throughput",
        format!(
            "{} req/s, {} output tokens/s, {} tokens/s in all",
            short(rates.requests_per_s),
            short(rates.output_tokens_per_s),
            short(rates.total_tokens_per_s)
        ),
    ));
    if let Some(goodput) = &report.goodput {
        let share = percent(goodput.share);
        facts.push((
            "goodput",
            format!(
                "{} req/s, {share} of requests met every objective",
                short(goodput.requests_per_s)
            ),
        ));
    }
    facts.push(("tokens", tokens(report)));
    facts.extend(report.processes.iter().map(|cost| ("process", process(cost))));
    if let Some(machine) = &report.machine {
        let client = short(machine.client_cpu_ms);
        let other = percent(machine.other_share);
        facts.push((
            "machine",
            format!(
                "{} CPUs, {other} busy with other work; this client used {client} ms",
                machine.cpus
            ),
        ));
    } else {
        facts.push(("machine", "not available".to_owned()));
    }
    facts
}

/// The distributions that the report has: count, mean, percentiles and maximum.
pub(super) fn latencies(report: &Report) -> TextTable {
    let latency = &report.latency;
    let all = [
        ("TTFT", &latency.ttft),
        ("ITL", &latency.itl),
        ("inter-chunk", &latency.inter_chunk),
        ("end to end", &latency.e2e),
    ];
    let lag = report.open_loop.then_some(("send lag", &latency.send_lag));
    let mut table = TextTable::new(["ms", "count", "mean", "p50", "p90", "p95", "p99", "max"]);
    for (name, summary) in all.into_iter().chain(lag).filter(|(_, summary)| summary.count > 0) {
        let Summary { count, mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, max_ms, .. } = *summary;
        let times = [mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, max_ms].map(short);
        table.row(name, std::iter::once(whole(count)).chain(times));
    }
    table
}

fn requests(report: &Report) -> String {
    let requests = &report.requests;
    let mut text = format!("{} in {} s", whole(requests.sent), short(report.window_s));
    let _ = write!(
        text,
        ", {} succeeded, {} failed",
        whole(requests.succeeded),
        whole(requests.failed)
    );
    if requests.unfinished > 0 {
        let _ = write!(text, ", {} cut off", whole(requests.unfinished));
    }
    text
}

fn tokens(report: &Report) -> String {
    let tokens = &report.tokens;
    let mut text = format!("{} prompt, {} output", whole(tokens.prompt), whole(tokens.output));
    match (tokens.cached, tokens.cached_share) {
        (Some(cached), Some(share)) => {
            let _ =
                write!(text, ", {} cached ({} of prompt tokens)", whole(cached), percent(share));
        }
        _ => text.push_str(", cached ones not reported by the server"),
    }
    if tokens.uncounted_answers > 0 {
        let _ = write!(text, "; {} answers counted by chunks", whole(tokens.uncounted_answers));
    }
    text
}

fn process(process: &Process) -> String {
    let cost = &process.cost;
    let mut text = format!("{} {}", cost.pid, cost.name);
    if cost.processes > 1 {
        let _ = write!(text, " and {} descendants", cost.processes - 1);
    }
    let Some(cpu_ms) = cost.cpu_ms else {
        return text + ": not available";
    };
    let _ = write!(text, ": {} ms CPU", short(cpu_ms));
    if let Some(us) = process.cpu_us_per_request {
        let _ = write!(text, ", {} µs/request", short(us));
    }
    if let Some(us) = process.cpu_us_per_output_token {
        let _ = write!(text, ", {} µs/output token", short(us));
    }
    let rss = [cost.rss_before_bytes, cost.rss_after_bytes, cost.rss_peak_bytes]
        .map(|bytes| bytes.map(megabytes));
    if let [Some(before), Some(after), Some(peak)] = rss {
        let _ = write!(text, "; RSS {before} before, {after} after, {peak} peak");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_table_has_every_figure() {
        let text = render(&sample("kv", 29, 1.0));
        let expected = "\
label        kv (2026-09-21T14:13:20Z, stator bench 0.1.0)
model        tiny
requests     31 in 2.00 s, 29 succeeded, 1 failed, 1 cut off
failure      1 × http 503 <busy>
throughput   14.5 req/s, 43.5 output tokens/s, 1,494 tokens/s in all
goodput      10.5 req/s, 70.0 % of requests met every objective
tokens       2,900 prompt, 87 output, 1,740 cached (60.0 % of prompt tokens)
process      7 x: 30.0 ms CPU, 1,000 µs/request, 345 µs/output token
machine      2 CPUs, 1.0 % busy with other work; this client used 5.00 ms

ms           count   mean    p50    p90    p95    p99    max
TTFT            29   11.4   11.4   12.6   12.7   12.8   12.8
ITL             29   5.00   5.00   5.00   5.00   5.00   5.00
inter-chunk     58   5.00   4.01   6.00   6.00   6.00   6.00
end to end      29   21.4   21.4   22.6   22.7   22.7   22.8
send lag        30  0.097  0.100  0.100  0.100  0.100  0.100
";
        assert_eq!(text, expected);
    }
}
