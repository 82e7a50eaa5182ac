use std::time::UNIX_EPOCH;

use super::*;
use crate::client::{MeasuredReply, PromptDetails, RequestFailure, TokenUsage};
use crate::record::RequestOutcome;

/// A report of `count` good requests and a failed one, TTFT 10 ms × `factor` and growing.
pub(crate) fn sample(label: &str, count: u32, factor: f64) -> Report {
    use clap::Parser;
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }
    let args =
        Cli::try_parse_from(["bench", "--label", label, "--rate", "5", "--slo-ttft-ms", "12"]);
    let (args, mut record) = (args.unwrap().load, Record::default());
    for n in 0..count {
        let ms = |ms: f64| Duration::from_secs_f64(ms * factor / 1e3);
        let ttft = ms(10.0 + f64::from(n) * 0.1);
        let details = Some(PromptDetails { cached_tokens: Some(60) });
        let usage =
            TokenUsage { prompt_tokens: 100, completion_tokens: 3, prompt_tokens_details: details };
        let gaps = vec![ms(4.0), ms(6.0)];
        let usage = Some(usage);
        let reply = MeasuredReply {
            ttft: Some(ttft),
            latency: ttft + ms(10.0),
            gaps,
            chunks: 3,
            usage,
            text: String::new(),
        };
        let sent = Duration::from_millis(u64::from(n) * 20);
        let ended = sent + reply.latency;
        record.add(
            RequestOutcome { sent, lag: ms(0.1), ended, result: &Ok(reply) },
            &args.objectives,
        );
    }
    let sent = Duration::from_secs(1);
    let failed = Err(RequestFailure::Status { status: 503, kind: "<busy>".to_owned() });
    record.add(
        RequestOutcome { sent, lag: Duration::ZERO, ended: sent, result: &failed },
        &args.objectives,
    );
    let cost = ProcessCost {
        pid: 7,
        name: "x".to_owned(),
        processes: 1,
        cpu_ms: Some(30.0),
        ..ProcessCost::default()
    };
    let measured = Measurement {
        model: "tiny".to_owned(),
        started_at: UNIX_EPOCH + Duration::from_secs(1_790_000_000),
        window: Duration::from_secs(2),
        record,
        unfinished: 1,
        processes: vec![ProcessCost { rss_peak_bytes: Some(5 << 20), ..cost }],
        machine: Some(MachineCost {
            cpus: 2,
            client_cpu_ms: 5.0,
            other_cpu_ms: 40.0,
            other_share: 0.01,
        }),
    };
    Report::new(&args, measured)
}

#[test]
fn rates_and_shares_follow_from_the_counts() {
    let report = sample("a", 29, 1.0);
    assert_eq!((report.requests.sent, report.requests.failed), (31, 1));
    assert_eq!(report.throughput.requests_per_s, 14.5);
    assert_eq!(report.tokens.cached_share, Some(0.6));
    assert_eq!(report.processes[0].cpu_us_per_request, Some(1_000.0));
    let goodput = report.goodput.unwrap();
    assert_eq!((goodput.good, goodput.share), (21, 0.7));
    assert!(report.open_loop);
}
