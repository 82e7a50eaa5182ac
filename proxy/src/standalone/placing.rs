//! From the tokens of a prompt to a place among the workers, and what the worker is told.

use super::metrics::{Metrics, WholePrompt};
use super::plan::Plan;
use super::{Place, Prompt};
use http::StatusCode;
use stator_api::openai::ApiError;
use stator_api::steering::Steering;
use stator_gate::AdmitError;
use stator_placement::{Adapter, PickError, Split};
use stator_protos::WorkerRank;
use stator_protos::hash::{HashSeed, sequence_hashes};
use stator_protos::worker::Submit;
use stator_queue::QueueEntry;
use std::num::NonZeroU32;
use std::time::Duration;

/// Wait before another try, if no worker can take a request now.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Queue entry for so many choices of a prompt.
pub(crate) fn entry(
    plan: &Plan,
    tokens: &[u32],
    block_size: NonZeroU32,
    choices: usize,
) -> QueueEntry<Prompt> {
    let seed = HashSeed::new(plan.adapter.as_deref(), plan.cache_salt.as_deref());
    let mut sequence = Vec::new();
    sequence_hashes(tokens, block_size, seed, &mut sequence);
    let prompt_tokens = tokens.len() as u32;
    QueueEntry {
        priority: plan.steering.priority,
        jump: plan.steering.jump_s,
        flow: plan.flow,
        tokens: prompt_tokens,
        bytes: 4 * u64::from(prompt_tokens),
        objective: plan.steering.objective,
        payload: Prompt {
            sequence,
            tokens: prompt_tokens,
            max_output_tokens: Some(plan.sampling.max_tokens),
            expected_output_tokens: plan.steering.expected_tokens,
            session: plan.session,
            needs: plan.steering.needs.clone(),
            pinned: plan.steering.pins.worker,
            prefill_pinned: plan.steering.pins.prefill.filter(|_| !is_whole(plan, choices)),
            adapter: plan.adapter.as_deref().map(Adapter::new),
            // Who computes the prompt of one token has the answer.
            split: (plan.sampling.max_tokens == 1).then_some(Split::Never),
            indivisible: indivisible(plan, choices).is_some(),
            ..Prompt::default()
        },
        ..QueueEntry::default()
    }
}

/// Whether one worker does all of it, whatever the policy is: also the prompt of one token, as who
/// computes that has the answer.
fn is_whole(plan: &Plan, choices: usize) -> bool {
    plan.sampling.max_tokens == 1 || indivisible(plan, choices).is_some()
}

/// Why the prompt of so many choices cannot be given to another worker, whatever the policy is.
fn indivisible(plan: &Plan, choices: usize) -> Option<&'static str> {
    if choices > 1 {
        // A prompt that is handed over can be taken once.
        Some("choices")
    } else if plan.sampling.pooled {
        // Nothing is left to do for who would take the KV.
        Some("pooled")
    } else if plan.sampling.prompt_logprobs.is_some() {
        // Only who computes a prompt has them, and who answers must say them.
        Some("prompt_logprobs")
    } else {
        None
    }
}

/// Counts who computes the prompt, where that could be another than who answers.
pub(crate) fn count(metrics: &Metrics, plan: &Plan, place: &Place, choices: usize) {
    if place.decision().prefill.is_some() {
        metrics.prompts_split.inc();
    } else if let Some(no_split) = place.no_split() {
        let one_token = (plan.sampling.max_tokens == 1).then_some("one_token");
        let reason = indivisible(plan, choices).or(one_token).unwrap_or(no_split.name());
        metrics.prompts_whole.get_or_create(&WholePrompt { reason }).inc();
    }
}

/// The submission to the worker, without the tokens and the choices.
pub(crate) fn submission(plan: &Plan, place: &Place) -> Submit {
    let WorkerRank { worker, rank } = place.worker();
    Submit {
        worker_id: worker.0,
        rank: rank.into(),
        sampling: Some(plan.sampling.clone()),
        cache_salt: plan.cache_salt.clone().unwrap_or_default(),
        lora_name: plan.adapter.clone().unwrap_or_default(),
        client_request_id: plan.request_id.clone(),
        traceparent: plan.traceparent.clone().unwrap_or_default(),
        tracestate: plan.tracestate.clone().unwrap_or_default(),
        prefill: place.prefill_peer(),
        // A picker in front knows of agents that this proxy does not.
        kv_holders: match place.holders() {
            [] => plan.steering.holders.clone(),
            known => known.to_vec(),
        },
        priority: plan.steering.priority,
        pin_seconds: plan.pin_seconds,
        ..Submit::default()
    }
}

/// The one place where a failed placement becomes an answer.
pub(crate) fn unplaced(
    steering: &Steering,
    adapter: Option<&str>,
    error: AdmitError<PickError>,
) -> ApiError {
    match error {
        AdmitError::Rejected { reason, retry_after, .. } if !reason.is_capacity() => {
            ApiError::unavailable("no worker would take the request in time", retry_after)
        }
        AdmitError::Rejected { limit, current, retry_after, .. } => ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate_limit_error",
            format!("too many requests wait for a worker: {current}, the limit is {limit}"),
        )
        .with_code("rate_limit_exceeded")
        .with_retry_after(retry_after),
        AdmitError::Evicted { waited, retry_after, .. } => ApiError::unavailable(
            format!("no worker took the request within {} ms", waited.as_millis()),
            retry_after,
        ),
        AdmitError::Failed(error) => {
            ApiError::unavailable(steering.unpicked(adapter, error), RETRY_AFTER)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_placement::{Constraint, Label};
    use stator_protos::WorkerId;
    use stator_protos::hash::SequenceHash;
    use stator_protos::worker::Sampling;

    fn plan(adapter: Option<&str>) -> Plan {
        Plan {
            choices: 1,
            sampling: Sampling::default(),
            cache_salt: None,
            adapter: adapter.map(str::to_owned),
            request_id: String::new(),
            traceparent: None,
            tracestate: None,
            guided: None,
            migration_limit: 0,
            flow: Default::default(),
            session: None,
            pin_seconds: 0,
            steering: Steering { labels: vec!["zone=q".into()], ..Steering::default() },
        }
    }

    /// The request's split, and whether one worker must do all of it.
    fn shared(plan: &Plan, choices: usize) -> (Option<Split>, bool) {
        let Prompt { split, indivisible, .. } = asked(plan, choices);
        (split, indivisible)
    }

    fn asked(plan: &Plan, choices: usize) -> Prompt {
        entry(plan, &[7; 32], NonZeroU32::new(16).unwrap(), choices).payload
    }

    #[test]
    fn the_same_prompt_under_another_adapter_is_another_sequence() {
        let hashes = |adapter| -> Vec<SequenceHash> { asked(&plan(adapter), 1).sequence };
        assert_eq!(hashes(None).len(), 2);
        assert_ne!(hashes(None), hashes(Some("a")));
        assert_ne!(hashes(Some("a")), hashes(Some("b")));
        assert_eq!(asked(&plan(Some("a")), 1).adapter, Some(Adapter::new("a")));
    }

    #[test]
    fn nobody_else_is_named_for_what_one_worker_must_do_alone() {
        let mut plan = plan(None);
        plan.steering.pins.prefill = Some(WorkerRank { worker: WorkerId(7), rank: 0 });
        let named = |plan: &Plan, choices| asked(plan, choices).prefill_pinned.is_some();
        assert_eq!((named(&plan, 1), named(&plan, 2)), (true, false));
        plan.sampling.max_tokens = 1;
        assert!(!named(&plan, 1));
    }

    #[test]
    fn what_one_worker_must_do_alone_is_not_split() {
        let mut plan = plan(None);
        assert_eq!(shared(&plan, 1), (None, false));
        assert_eq!(shared(&plan, 2), (None, true));
        plan.sampling.prompt_logprobs = Some(0);
        assert_eq!(shared(&plan, 1), (None, true));
        plan.sampling.prompt_logprobs = None;
        plan.sampling.max_tokens = 1;
        assert_eq!(shared(&plan, 1), (Some(Split::Never), false));
    }

    #[test]
    fn what_workers_lack_is_named_as_the_request_did() {
        let [zone, other] = ["zone=q", "zone=r"].map(|text| Constraint::Label(Label::new(text)));
        let adapter = Constraint::Adapter(Adapter::new("a"));
        let plan = plan(Some("a"));
        let check = |error, expected: &str| {
            let error = AdmitError::Failed(error);
            let answer = unplaced(&plan.steering, plan.adapter.as_deref(), error);
            assert_eq!((answer.status.as_u16(), answer.message.as_str()), (503, expected));
        };
        check(
            PickError::Unsatisfied { constraint: zone },
            "no worker has the label \"zone=q\" now",
        );
        check(
            PickError::Contradictory { one: zone, other: adapter },
            "no worker has both the label \"zone=q\" and the adapter \"a\" now",
        );
        let Constraint::Label(Label(hash)) = other else { panic!("it is a label") };
        check(
            PickError::Unsatisfied { constraint: other },
            &format!("no worker has label {hash:016x} now"),
        );
        check(PickError::NoWorkers, "no worker can take the request");
        check(
            PickError::Indivisible,
            "no worker does all of a request now, and one with several choices or logprobs of the \
             prompt cannot be shared by two",
        );
    }
}
