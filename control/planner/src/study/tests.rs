//! Loads that broke other planners, in virtual time.

use super::*;
use crate::{Observation, Replicas};

fn run(case: &StudyCase) -> StudyOutcome {
    let mut own = Own::new("stator", study_settings(case));
    replay(case, &mut own).expect("no rule is broken")
}

/// Mean TTFT was 160 s and goodput 9 % where the planner's estimate left out the queue. Source:
/// Dynamo's issue 10528.
#[test]
fn the_sine_that_broke_dynamos_planner_keeps_its_goodput() {
    for form in [Form::Aggregated, Form::Split] {
        let case = StudyCase::sine(form, 2.0, 1);
        let outcome = run(&case);
        assert!(outcome.attainment >= 0.90 && outcome.failed == 0, "{form:?}: {outcome:?}");
        let settings = seasonal_settings(&case, StudyCase::PERIOD_S);
        let known = replay(&case, &mut Own::new("seasonal", settings)).expect("no rule is broken");
        assert!(known.attainment >= 0.90, "{form:?}: {known:?}");
    }
}

/// Source: Dynamo's issue 9294, where two workers became one and two again.
#[test]
fn constant_load_moves_no_worker_back_and_forth() {
    for seed in [1, 2] {
        let outcome = run(&StudyCase::constant(8.0, 400.0, seed));
        assert_eq!(outcome.reversals, 0, "{outcome:?}");
        assert!(outcome.attainment >= 0.96 && outcome.actions <= 4, "{outcome:?}");
    }
}

/// Source: Dynamo's issues 13559 and 13565, where workers that left took their requests with them.
#[test]
fn a_load_that_rises_and_falls_fails_no_request() {
    let outcome = run(&StudyCase::step(900.0, 1));
    assert_eq!(outcome.failed, 0, "{outcome:?}");
    let (first, last) = (outcome.workers[0], outcome.workers[outcome.workers.len() - 1]);
    let most = outcome.workers.iter().max().expect("there are decisions");
    assert!(*most > first && last < *most, "{outcome:?}");
}

/// A planner and all that it wanted.
struct Watched<'a>(&'a mut Own, &'a mut Vec<Replicas>);

impl ScalingLaw for Watched<'_> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn wanted(&mut self, observation: &Observation) -> Replicas {
        let wanted = self.0.wanted(observation);
        self.1.push(wanted);
        wanted
    }
}

#[test]
fn prefill_and_decode_workers_change_places_when_lengths_do() {
    let case = StudyCase::shift(900.0, 1);
    let mut own = Own::new("stator", study_settings(&case));
    let mut seen = Vec::new();
    replay(&case, &mut Watched(&mut own, &mut seen)).expect("no rule is broken");
    let [before, during, after] = [50, 118, 178].map(|at| seen[at]);
    assert!(before.prefill > during.prefill && during.prefill < after.prefill, "{seen:?}");
    assert!(before.decode < during.decode && during.decode > after.decode, "{seen:?}");
}
