//! Record of requests: counts and distributions, in bounded memory.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::args::ObjectiveArgs;
use crate::client::{MeasuredReply, RequestFailure};
use crate::histogram::Histogram;
use crate::series::{Point, Points, TimeSeries};

/// Most kinds of failure that are told apart; later ones count as [`OTHER_KIND`].
const KINDS_MAX: usize = 64;
/// The name of failures beyond the bound.
const OTHER_KIND: &str = "other";

/// One request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct RequestOutcome<'a> {
    /// Time of sending, since the start of the measurement.
    pub sent: Duration,
    /// Delay of sending against the plan; zero in a closed loop.
    pub lag: Duration,
    /// Time of its end, since the start of the measurement.
    pub ended: Duration,
    /// Its reply, or the failure.
    pub result: &'a Result<MeasuredReply, RequestFailure>,
}

/// Everything that is known about the requests of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Distribution of TTFT.
    pub ttft: Histogram,
    /// Distribution of ITL, a value for each request.
    pub itl: Histogram,
    /// Distribution of the gaps between chunks, a value for each gap.
    pub gap: Histogram,
    /// Distribution of end-to-end latency.
    pub e2e: Histogram,
    /// Distribution of how late requests were sent.
    pub lag: Histogram,
    /// Requests answered well.
    pub succeeded: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Failures by name.
    pub failures: BTreeMap<String, u64>,
    /// Requests that met every objective.
    pub good: u64,
    /// Answers whose tokens the server did not count, so that chunks count as tokens.
    pub uncounted: u64,
    /// Tokens of prompts, as servers counted them.
    pub prompt_tokens: u64,
    /// Tokens of prompts in answers that also said how many were cached.
    pub cacheable_tokens: u64,
    /// Tokens of prompts whose KV was reused.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Counts over time.
    pub series: TimeSeries,
    /// A sample of requests.
    pub points: Points,
}

impl Record {
    /// Takes one outcome.
    pub fn add(&mut self, outcome: RequestOutcome<'_>, objectives: &ObjectiveArgs) {
        self.series.at(outcome.sent).sent += 1;
        self.lag.record(outcome.lag);
        match outcome.result {
            Ok(reply) => self.success(&outcome, reply, objectives),
            Err(failure) => self.failure(&outcome, failure),
        }
    }

    fn success(
        &mut self,
        outcome: &RequestOutcome<'_>,
        reply: &MeasuredReply,
        objectives: &ObjectiveArgs,
    ) {
        self.succeeded += 1;
        self.series.at(outcome.ended).succeeded += 1;
        self.e2e.record(reply.latency);
        reply.ttft.iter().for_each(|ttft| self.ttft.record(*ttft));
        reply.itl().iter().for_each(|itl| self.itl.record(*itl));
        reply.gaps.iter().for_each(|gap| self.gap.record(*gap));
        self.tokens(outcome, reply);
        self.good += u64::from(is_good(reply, objectives));
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let sent_s = outcome.sent.as_secs_f64();
        self.points.add(Point { sent_s, ttft_ms: reply.ttft.map(ms), e2e_ms: ms(reply.latency) });
    }

    fn tokens(&mut self, outcome: &RequestOutcome<'_>, reply: &MeasuredReply) {
        let output = reply.output_tokens();
        self.output_tokens += output;
        match reply.usage {
            None => self.uncounted += 1,
            Some(usage) => {
                self.prompt_tokens += usage.prompt_tokens;
                if let Some(cached) = usage.cached_tokens() {
                    self.cached_tokens += cached;
                    self.cacheable_tokens += usage.prompt_tokens;
                }
            }
        }
        // An answer that came as a whole counts at its end.
        let Some(first) = reply.ttft else {
            self.series.at(outcome.ended).output_tokens += output as f64;
            return;
        };
        let chunks = 1 + reply.gaps.len();
        let share = output as f64 / chunks as f64;
        let mut at = outcome.sent + first;
        self.series.at(at).output_tokens += share;
        for gap in &reply.gaps {
            at += *gap;
            self.series.at(at).output_tokens += share;
        }
    }

    fn failure(&mut self, outcome: &RequestOutcome<'_>, failure: &RequestFailure) {
        self.failed += 1;
        self.series.at(outcome.ended).failed += 1;
        let name = failure.name();
        let known = self.failures.contains_key(&name) || self.failures.len() < KINDS_MAX;
        let name = if known { name } else { OTHER_KIND.to_owned() };
        *self.failures.entry(name).or_default() += 1;
    }
}

/// Whether a request meets every objective that is given. An answer without a first token meets
/// no TTFT objective; one with a single token has no gap that could be too long.
fn is_good(reply: &MeasuredReply, objectives: &ObjectiveArgs) -> bool {
    let within = |time: Duration, limit_ms: f64| time.as_secs_f64() * 1e3 <= limit_ms;
    let ttft = objectives
        .slo_ttft_ms
        .is_none_or(|limit| reply.ttft.is_some_and(|ttft| within(ttft, limit)));
    let itl =
        objectives.slo_itl_ms.is_none_or(|limit| reply.itl().is_none_or(|itl| within(itl, limit)));
    let e2e = objectives.slo_e2e_ms.is_none_or(|limit| within(reply.latency, limit));
    ttft && itl && e2e
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{PromptDetails, TokenUsage};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn reply(cached_tokens: Option<u64>) -> MeasuredReply {
        let prompt_tokens_details = Some(PromptDetails { cached_tokens });
        MeasuredReply {
            ttft: Some(ms(50)),
            latency: ms(250),
            gaps: vec![ms(100), ms(100)],
            chunks: 3,
            usage: Some(TokenUsage {
                prompt_tokens: 40,
                completion_tokens: 5,
                prompt_tokens_details,
            }),
            text: String::new(),
        }
    }

    fn record(
        results: &[Result<MeasuredReply, RequestFailure>],
        objectives: &ObjectiveArgs,
    ) -> Record {
        let mut record = Record::default();
        for result in results {
            let outcome = RequestOutcome { sent: ms(1_000), lag: ms(0), ended: ms(1_250), result };
            record.add(outcome, objectives);
        }
        record
    }

    #[test]
    fn tokens_are_those_that_the_server_counted() {
        let record = record(&[Ok(reply(Some(32))), Ok(reply(None))], &ObjectiveArgs::default());
        assert_eq!((record.prompt_tokens, record.output_tokens), (80, 10));
        assert_eq!((record.cached_tokens, record.cacheable_tokens), (32, 40));
        assert_eq!(record.itl.quantile(0.5).as_millis(), 50);
    }

    #[test]
    fn tokens_over_time_are_where_their_chunks_arrived() {
        let record = record(&[Ok(reply(None))], &ObjectiveArgs::default());
        let tokens: Vec<f64> =
            record.series.slots()[10..].iter().map(|slot| slot.output_tokens).collect();
        assert_eq!(tokens.len(), 3);
        assert!(tokens.iter().all(|tokens| (tokens - 5.0 / 3.0).abs() < 1e-9));
    }

    #[test]
    fn goodput_counts_what_meets_every_objective() {
        let check = |ttft, itl, e2e, good| {
            let objectives = ObjectiveArgs { slo_ttft_ms: ttft, slo_itl_ms: itl, slo_e2e_ms: e2e };
            assert_eq!(record(&[Ok(reply(None))], &objectives).good, good);
        };
        check(Some(50.0), Some(50.0), Some(250.0), 1);
        check(Some(49.0), None, None, 0);
        check(None, Some(49.0), None, 0);
        check(Some(60.0), Some(60.0), Some(249.0), 0);
        let objectives = ObjectiveArgs { slo_ttft_ms: Some(1.0), ..ObjectiveArgs::default() };
        assert_eq!(record(&[Ok(MeasuredReply::default())], &objectives).good, 0);
    }

    #[test]
    fn failures_are_counted_by_kind_within_a_bound() {
        let status = |status| Err(RequestFailure::Status { status, kind: String::new() });
        let mut results: Vec<_> = (0..100).map(|n| status(400 + n)).collect();
        results.push(status(400));
        let record = record(&results, &ObjectiveArgs::default());
        assert_eq!(record.failed, 101);
        assert_eq!(record.failures["http 400"], 2);
        assert_eq!(record.failures[OTHER_KIND], 36);
        assert_eq!(record.failures.len(), KINDS_MAX + 1);
    }
}
