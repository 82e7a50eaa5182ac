//! One decision: screening, producers, admission, then the profiles that the handler asks for.

use crate::decision::{Call, ScheduleError};
use crate::plugin::{Moment, Pick, Routing};
use crate::program::{Profile, Program, Saturation};
use crate::slot::EndpointSlot;
use crate::{Candidate, EngineLoad, InFlight, Random, Request, Roles, Time};
use std::net::SocketAddr;
use tracing::info_span;

/// Target of the spans of traces, as `runtime` names it; where no traces are kept they cost
/// nothing.
///
/// Source: names of spans of the llm-d router.
pub(crate) const SPANS: &str = "otel";

/// Working state of one decision.
pub(crate) struct Cycle<'a> {
    program: &'a Program,
    request: &'a Request<'a>,
    call: Call,
    candidates: Vec<Candidate<'a>>,
    random: Random,
    /// Scores of each profile's candidates, if wanted.
    profile_scores: Vec<Vec<(SocketAddr, f64)>>,
}

impl<'a> Cycle<'a> {
    pub(crate) fn new(
        program: &'a Program,
        request: &'a Request<'a>,
        call: Call,
        candidates: Vec<Candidate<'a>>,
    ) -> Self {
        let random = Random::new(call.seed);
        Self { program, request, call, candidates, random, profile_scores: Vec::new() }
    }

    /// Decides. `sheds` refuses requests of negative priority while the pool is full.
    ///
    /// # Errors
    ///
    /// See [`ScheduleError`].
    pub(crate) fn route(&mut self, sheds: bool) -> Result<Routing<'a>, ScheduleError> {
        for screener in &self.program.screeners {
            let now = Moment { time: self.call.now, random: &mut self.random };
            screener.plugin.screen(self.request, &mut self.candidates, now);
        }
        if self.candidates.is_empty() {
            return Err(ScheduleError::NoEndpoints);
        }
        for producer in &self.program.producers {
            producer.plugin.produce(self.request, &mut self.candidates, self.call.now);
        }
        self.admit(sheds)?;
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

    /// Scores of the answering profile's candidates, if wanted.
    pub(crate) fn scores(&mut self, routing: &Routing<'_>) -> Vec<(SocketAddr, f64)> {
        let Some(chosen) = routing.primary.targets.first() else { return Vec::new() };
        let has = |scores: &Vec<(SocketAddr, f64)>| {
            scores.iter().any(|(address, _)| *address == chosen.endpoint.address)
        };
        let at = self.profile_scores.iter().position(has);
        at.map(|at| self.profile_scores.swap_remove(at)).unwrap_or_default()
    }

    fn admit(&mut self, sheds: bool) -> Result<(), ScheduleError> {
        let sheddable = sheds && self.request.priority < 0;
        if sheddable && self.saturated() {
            return Err(ScheduleError::Saturated);
        }
        for admitter in &self.program.admitters {
            let now = Moment { time: self.call.now, random: &mut self.random };
            let admitted = admitter.plugin.admit(self.request, &self.candidates, now);
            admitted.map_err(ScheduleError::NotAdmitted)?;
        }
        Ok(())
    }

    fn saturated(&self) -> bool {
        let full = self.candidates.iter().map(|candidate| {
            let sent = SentLoad { in_flight: candidate.in_flight, unreported: 0 };
            fullness(self.program.saturation, candidate.load, sent, self.call.now)
        });
        mean(full).is_none_or(|full| full >= 1.0)
    }

    /// Runs one profile; `None` if its filters leave nothing.
    fn run(&mut self, profile: &Profile) -> Option<Pick<'a>> {
        let _span =
            info_span!(target: SPANS, "run_scheduler_profile", profile = profile.name).entered();
        let mut now = Moment { time: self.call.now, random: &mut self.random };
        let mut candidates: Vec<_> = self.candidates.iter().collect();
        filter(profile, self.request, &mut candidates, &mut now);
        if candidates.is_empty() {
            return None;
        }
        let totals = score(profile, self.request, &candidates, &mut now);
        if self.call.scores {
            let addresses = candidates.iter().map(|candidate| candidate.endpoint.address);
            self.profile_scores.push(addresses.zip(totals.iter().copied()).collect());
        }
        let picking = info_span!(target: SPANS, "pick_endpoints", candidates = candidates.len());
        let picked = picking.in_scope(|| profile.picker.plugin.pick(&totals, now.random));
        let picked = picked.into_iter().filter_map(|at| candidates.get(at).copied().cloned());
        let targets: Vec<_> = picked.collect();
        (!targets.is_empty()).then_some(Pick { targets })
    }
}

/// Leaves the candidates that a profile's filters leave.
fn filter(
    profile: &Profile,
    request: &Request<'_>,
    candidates: &mut Vec<&Candidate<'_>>,
    now: &mut Moment<'_>,
) {
    let _span = info_span!(target: SPANS, "filter_endpoints").entered();
    for filter in &profile.filters {
        filter.plugin.filter(request, candidates, now.again());
    }
}

/// The weighted sums of what a profile's scorers say of each candidate.
fn score(
    profile: &Profile,
    request: &Request<'_>,
    candidates: &[&Candidate<'_>],
    now: &mut Moment<'_>,
) -> Vec<f64> {
    let _span = info_span!(target: SPANS, "llm_d.epp.scoring").entered();
    let mut totals = vec![0.0; candidates.len()];
    let mut scores = vec![0.0; candidates.len()];
    for (scorer, weight) in &profile.scorers {
        let name = format_args!("llm_d.epp.scorer.{}", scorer.type_name);
        let _span = info_span!(target: SPANS, "llm_d.epp.scorer", otel.name = %name).entered();
        scores.fill(0.0);
        scorer.plugin.score(request, candidates, &mut scores, now.again());
        for (total, score) in totals.iter_mut().zip(&scores) {
            // A score that is no number counts as the worst.
            *total += weight * if score.is_nan() { 0.0 } else { score.clamp(0.0, 1.0) };
        }
    }
    totals
}

/// Saturation of a pool: the mean over the endpoints of the fuller stage, prefill or decode; 1
/// without endpoints. Load sent since engines reported counts as if it waited there.
///
/// Source: the stages of flow control in the llm-d router.
pub(crate) fn saturation(saturation: Saturation, slots: &[EndpointSlot], now: Time) -> f64 {
    let fullest = stages(saturation, slots, now).into_iter().flatten().reduce(f64::max);
    let all = || stage(saturation, slots, now, |_| true);
    fullest.or_else(all).unwrap_or(1.0)
}

/// Saturation of the endpoints that prefill, and of those that decode; `None` where there are none.
pub(crate) fn stages(
    saturation: Saturation,
    slots: &[EndpointSlot],
    now: Time,
) -> [Option<f64>; 2] {
    let roles: [fn(Roles) -> bool; 2] = [|roles| roles.prefill, |roles| roles.decode];
    roles.map(|role| stage(saturation, slots, now, role))
}

fn stage(
    saturation: Saturation,
    slots: &[EndpointSlot],
    now: Time,
    wanted: fn(Roles) -> bool,
) -> Option<f64> {
    let slots = slots.iter().filter(|slot| wanted(slot.endpoint.roles));
    mean(slots.map(|slot| {
        let sent = SentLoad { in_flight: slot.in_flight(), unreported: slot.unreported() };
        fullness(saturation, &slot.load, sent, now)
    }))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// Load that was sent to an endpoint.
struct SentLoad {
    in_flight: InFlight,
    /// Requests that its engine's report cannot have.
    unreported: u64,
}

fn fullness(saturation: Saturation, load: &EngineLoad, sent: SentLoad, now: Time) -> f64 {
    let SentLoad { in_flight, unreported } = sent;
    match saturation {
        Saturation::Utilization { queue_depth, kv_usage, staleness } => {
            let fresh = load.updated.is_some_and(|at| now <= at.after(staleness));
            if fresh {
                let waiting = u64::from(load.waiting) + unreported;
                return (waiting as f64 / queue_depth).max(load.kv_usage / kv_usage);
            }
            // What was sent is the only news: it never stops all requests for good.
            let waiting = in_flight.requests.saturating_sub(load.running.into());
            waiting as f64 / queue_depth
        }
        Saturation::Concurrency { requests, tokens } => {
            let share = |used: u64, limit: Option<u64>| {
                limit.map_or(0.0, |limit| used as f64 / limit.max(1) as f64)
            };
            share(in_flight.requests, requests).max(share(in_flight.tokens, tokens))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Screener;
    use crate::slot::Slots;
    use crate::testkit::{endpoint, program, rank};
    use crate::{Endpoint, HeaderView, NamedPlugin};
    use std::sync::Arc;

    const NOW: Time = Time(std::time::Duration::from_secs(1));

    fn slots(endpoints: &[Arc<Endpoint>]) -> Slots {
        let mut slots = Slots::default();
        for endpoint in endpoints {
            slots.insert(endpoint);
        }
        slots
    }

    #[track_caller]
    fn check(by: Saturation, slots: &Slots, expected: f64) {
        assert_eq!(saturation(by, slots.iter().as_slice(), NOW), expected);
    }

    /// Leaves what the header `pod` names.
    struct ByPod;

    impl Screener for ByPod {
        fn screen(&self, request: &Request<'_>, all: &mut Vec<Candidate<'_>>, _: Moment<'_>) {
            all.retain(|candidate| request.headers.get("pod") == Some(&*candidate.endpoint.pod));
        }
    }

    #[test]
    fn what_a_screener_drops_is_not_there_for_any_profile() {
        let plugin: Arc<dyn Screener> = Arc::new(ByPod);
        let screener = NamedPlugin { type_name: "by-pod".into(), name: "by-pod".into(), plugin };
        let program = Program { screeners: vec![screener], ..program() };
        let slots = slots(&[endpoint(1), endpoint(2), endpoint(3)]);
        let ask = |pod: &str| {
            let headers = [("pod", pod)];
            let request = Request { headers: HeaderView(&headers), ..Request::default() };
            let call = Call { now: NOW, seed: 7, watched: true, scores: false };
            let candidates = slots.candidates(&request, None, None);
            let mut cycle = Cycle::new(&program, &request, call, candidates);
            cycle.route(true).map(|routing| routing.primary.targets[0].endpoint.pod.to_string())
        };
        assert_eq!(ask("pod3"), Ok("pod3".into()));
        assert_eq!(ask("pod4"), Err(ScheduleError::NoEndpoints));
    }

    #[test]
    fn a_pool_is_as_full_as_its_fuller_stage() {
        let prefill = Roles { prefill: true, labelled: true, ..Roles::default() };
        let prefill = Arc::new(Endpoint { roles: prefill, ..(*endpoint(3)).clone() });
        let mut slots = slots(&[endpoint(1), endpoint(2), prefill]);
        let by = Saturation::Concurrency { requests: Some(10), tokens: Some(100) };
        check(by, &slots, 0.0);
        slots.get_mut(rank(1)).expect("it is there").own.requests = 8;
        check(by, &slots, 0.4);
        slots.get_mut(rank(3)).expect("it is there").others.tokens = 70;
        check(by, &slots, 0.7);
        check(by, &Slots::default(), 1.0);
    }

    #[test]
    fn what_was_sent_since_the_report_waits_as_well() {
        let mut slots = slots(&[endpoint(1)]);
        let slot = slots.get_mut(rank(1)).expect("it is there");
        slot.load = EngineLoad { waiting: 1, updated: Some(NOW), ..EngineLoad::default() };
        slot.own.requests = 30;
        slot.reported();
        check(Saturation::default(), &slots, 0.2);
        slots.get_mut(rank(1)).expect("it is there").own.requests = 33;
        check(Saturation::default(), &slots, 0.8);
    }

    #[test]
    fn an_endpoint_that_is_silent_takes_a_few_more_than_it_ran() {
        let mut slots = slots(&[endpoint(1)]);
        check(Saturation::default(), &slots, 0.0);
        let slot = slots.get_mut(rank(1)).expect("it is there");
        let updated = Some(Time::from_millis(1));
        slot.load = EngineLoad { waiting: 99, running: 20, updated, ..EngineLoad::default() };
        slot.own.requests = 21;
        check(Saturation::default(), &slots, 0.2);
        slots.get_mut(rank(1)).expect("it is there").own.requests = 25;
        check(Saturation::default(), &slots, 1.0);
    }
}
