//! One decision: producers, admission, then the profiles that the handler asks for.

use crate::plugin::{Moment, Pick, Routing};
use crate::program::{Profile, Program, Saturation};
use crate::scheduler::{Call, Refused};
use crate::slot::Slot;
use crate::{Candidate, Random, Request, Time};
use std::net::SocketAddr;
use tracing::info_span;

/// Target of the spans of traces, as `runtime` names it; where no traces are kept they cost
/// nothing.
///
/// Source: names of spans of the llm-d router.
const SPANS: &str = "otel";

/// What one decision works on.
pub(crate) struct Cycle<'a> {
    program: &'a Program,
    request: &'a Request<'a>,
    call: Call,
    candidates: Vec<Candidate<'a>>,
    random: Random,
    /// What each profile's candidates scored, where it is wanted.
    told: Vec<Vec<(SocketAddr, f64)>>,
}

impl<'a> Cycle<'a> {
    pub(crate) fn new(
        program: &'a Program,
        request: &'a Request<'a>,
        call: Call,
        candidates: Vec<Candidate<'a>>,
    ) -> Self {
        let random = Random::new(call.seed);
        Self { program, request, call, candidates, random, told: Vec::new() }
    }

    /// Decides.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub(crate) fn route(&mut self) -> Result<Routing<'a>, Refused> {
        if self.candidates.is_empty() {
            return Err(Refused::NoEndpoints);
        }
        for producer in &self.program.producers {
            producer.plugin.produce(self.request, &mut self.candidates, self.call.now);
        }
        self.admit()?;
        let (program, request) = (self.program, self.request);
        let mut run = |name: &str| {
            let profile = program.profiles.iter().find(|profile| profile.name == name)?;
            self.run(profile)
        };
        let mut routing = program.handler.plugin.route(request, &mut run)?;
        for writer in &program.route_headers {
            let headers = writer.plugin.route_headers(request, &self.candidates, &routing);
            routing.headers.extend(headers);
        }
        Ok(routing)
    }

    /// Headers for the client.
    pub(crate) fn response_headers(&self, routing: &Routing<'_>) -> Vec<(&'static str, String)> {
        let writers = self.program.response_headers.iter();
        writers.flat_map(|writer| writer.plugin.response_headers(self.request, routing)).collect()
    }

    /// What the candidates of the answering profile scored, where it is wanted.
    pub(crate) fn scores(&mut self, routing: &Routing<'_>) -> Vec<(SocketAddr, f64)> {
        let Some(chosen) = routing.primary.targets.first() else { return Vec::new() };
        let has = |scores: &Vec<(SocketAddr, f64)>| {
            scores.iter().any(|(address, _)| *address == chosen.endpoint.address)
        };
        let at = self.told.iter().position(has);
        at.map(|at| self.told.swap_remove(at)).unwrap_or_default()
    }

    fn admit(&mut self) -> Result<(), Refused> {
        let sheddable = self.request.priority < 0;
        if sheddable && self.saturated() {
            return Err(Refused::Saturated);
        }
        for admitter in &self.program.admitters {
            let now = Moment { time: self.call.now, random: &mut self.random };
            let admitted = admitter.plugin.admit(self.request, &self.candidates, now);
            admitted.map_err(Refused::NotAdmitted)?;
        }
        Ok(())
    }

    fn saturated(&self) -> bool {
        let full = self.candidates.iter().map(|candidate| {
            fullness(self.program.saturation, candidate.load, candidate.in_flight, self.call.now)
        });
        mean(full) >= 1.0
    }

    /// Runs one profile; `None` if its filters leave nothing.
    fn run(&mut self, profile: &Profile) -> Option<Pick<'a>> {
        let _span =
            info_span!(target: SPANS, "run_scheduler_profile", profile = profile.name).entered();
        let candidates = self.filtered(profile);
        if candidates.is_empty() {
            return None;
        }
        let totals = self.scored(profile, &candidates);
        if self.call.scores {
            let addresses = candidates.iter().map(|candidate| candidate.endpoint.address);
            self.told.push(addresses.zip(totals.iter().copied()).collect());
        }
        let picking = info_span!(target: SPANS, "pick_endpoints", candidates = candidates.len());
        let picked = picking.in_scope(|| profile.picker.plugin.pick(&totals, &mut self.random));
        let targets: Vec<_> =
            picked.into_iter().filter_map(|at| candidates.get(at).cloned()).collect();
        (!targets.is_empty()).then_some(Pick { targets })
    }

    /// The candidates that a profile's filters leave.
    fn filtered(&mut self, profile: &Profile) -> Vec<Candidate<'a>> {
        let _span = info_span!(target: SPANS, "filter_endpoints").entered();
        let mut candidates = self.candidates.clone();
        for filter in &profile.filters {
            let now = Moment { time: self.call.now, random: &mut self.random };
            filter.plugin.filter(self.request, &mut candidates, now);
        }
        candidates
    }

    /// The weighted sums of what a profile's scorers say of each candidate.
    fn scored(&mut self, profile: &Profile, candidates: &[Candidate<'a>]) -> Vec<f64> {
        let _span = info_span!(target: SPANS, "llm_d.epp.scoring").entered();
        let mut totals = vec![0.0; candidates.len()];
        let mut scores = vec![0.0; candidates.len()];
        for (scorer, weight) in &profile.scorers {
            let name = format_args!("llm_d.epp.scorer.{}", scorer.type_name);
            let _span = info_span!(target: SPANS, "llm_d.epp.scorer", otel.name = %name).entered();
            scores.fill(0.0);
            let now = Moment { time: self.call.now, random: &mut self.random };
            scorer.plugin.score(self.request, candidates, &mut scores, now);
            for (total, score) in totals.iter_mut().zip(&scores) {
                // A score that is no number counts as the worst.
                *total += weight * if score.is_nan() { 0.0 } else { score.clamp(0.0, 1.0) };
            }
        }
        totals
    }
}

/// How full a pool is: the mean over its endpoints; 1 without any.
pub(crate) fn saturation<'a>(
    saturation: Saturation,
    slots: impl Iterator<Item = &'a Slot>,
    now: Time,
) -> f64 {
    mean(slots.map(|slot| fullness(saturation, &slot.load, slot.in_flight(), now)))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    if count == 0 { 1.0 } else { sum / f64::from(count) }
}

fn fullness(
    saturation: Saturation,
    load: &crate::EngineLoad,
    in_flight: crate::InFlight,
    now: Time,
) -> f64 {
    match saturation {
        Saturation::Utilization { queue_depth, kv_usage, staleness } => {
            let fresh = load.updated.is_some_and(|at| now <= at.after(staleness));
            match fresh {
                true => (f64::from(load.waiting) / queue_depth).max(load.kv_usage / kv_usage),
                // What was sent is the only news: it never stops all requests for good.
                false => in_flight.requests as f64 / queue_depth,
            }
        }
        Saturation::Concurrency { requests, tokens } => {
            let share = |used: u64, limit: Option<u64>| {
                limit.map_or(0.0, |limit| used as f64 / limit.max(1) as f64)
            };
            share(in_flight.requests, requests).max(share(in_flight.tokens, tokens))
        }
    }
}
