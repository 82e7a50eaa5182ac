//! Between the request plane's messages and the engine's types: everything that a client can get
//! wrong without the engine's help is found here.

use stator_dialect::{Delta, Finish};
use stator_engine::{AnswerRules, FinishReason, Refusal, Request, RequestKey};
use stator_protos::hash::CACHE_SALT_MAX_BYTES;
use stator_protos::worker::{self, ErrorKind};
use std::sync::Arc;

/// Most completions of one prompt.
pub(crate) const MAX_CHOICES: u32 = 128;
/// Why a request is refused while the engine would hold all that it is sent.
pub(crate) const RESTING: &str = "the engine is paused or asleep";

/// Checks a submission and turns it into a request of the engine.
///
/// # Errors
///
/// A message that names the field, its value and its limit.
pub(crate) fn request(submit: worker::Submit, key: RequestKey) -> Result<Request, String> {
    let tokens = submit.token_ids.len();
    if tokens == 0 {
        return Err("token_ids: 0 tokens, at least 1 is needed".into());
    }
    let resumed = submit.resumed_tokens as usize;
    if resumed >= tokens {
        return Err(format!("resumed_tokens: {resumed} is not below {tokens}, the tokens given"));
    }
    let choices = submit.choices.max(1);
    if choices > MAX_CHOICES {
        return Err(format!("choices: {choices} is not in 1..={MAX_CHOICES}"));
    }
    if submit.first_choice > u32::MAX - choices {
        return Err(format!("first_choice: {} is too large", submit.first_choice));
    }
    if submit.cache_salt.len() > CACHE_SALT_MAX_BYTES {
        let bytes = submit.cache_salt.len();
        return Err(format!("cache_salt: {bytes} bytes, limit {CACHE_SALT_MAX_BYTES}"));
    }
    let sampling = submit.sampling.unwrap_or_default().checked()?;
    if resumed > 0 && sampling.guide.is_some() {
        // Its form would begin anew behind the half that is there.
        return Err(format!("resumed_tokens: {resumed}, 0 for an answer of a given form"));
    }
    Ok(Request {
        key,
        tokens: submit.token_ids,
        resumed,
        first_choice: submit.first_choice,
        choices,
        sampling: Arc::new(sampling),
        cache_salt: Some(submit.cache_salt).filter(|salt| !salt.is_empty()),
        named: None,
        rules: AnswerRules::default(),
    })
}

/// The error for a client whose request the engine refused.
pub(crate) fn refusal(refusal: Refusal) -> (ErrorKind, String) {
    let kind = match &refusal {
        Refusal::Invalid(_) => ErrorKind::Invalid,
        Refusal::QueueFull { .. } => ErrorKind::Overloaded,
    };
    (kind, refusal.to_string())
}

/// An engine's output as the stream sends it.
pub(crate) fn output(output: stator_engine::Output, request_id: u64) -> worker::Output {
    worker::Output {
        request_id,
        choice: output.choice,
        token_ids: output.tokens,
        logprobs: output.logprobs.into_iter().map(logprobs).collect(),
        prompt_logprobs: output.prompt_logprobs.into_iter().map(logprobs).collect(),
        cached_tokens: output.cached_tokens,
        prefill_failed: false,
        transfer_us: 0,
        pooled: output.pooled,
        pinned_tokens: None,
        finish: output.finish.map(own_finish),
    }
}

/// A token's logprobs as the stream sends them.
pub(crate) fn logprobs(token: stator_engine::TokenLogprobs) -> worker::TokenLogprobs {
    let top = token.top.into_iter();
    worker::TokenLogprobs {
        token_id: token.token,
        logprob: token.logprob,
        top: top.map(|(token_id, logprob)| worker::TopLogprob { token_id, logprob }).collect(),
    }
}

fn own_finish(given: stator_engine::Finish) -> worker::Finish {
    let reason = match given.reason {
        FinishReason::Stop(token) => Finish::Stop(Some(token)),
        FinishReason::Length => Finish::Length,
        FinishReason::Pooled => Finish::Stop(None),
    };
    let usage = worker::Usage {
        prompt_tokens: given.prompt_tokens,
        completion_tokens: given.completion_tokens,
        cached_tokens: given.cached_tokens,
    };
    finish(reason, usage)
}

/// The token that came of a prompt, as another agent is told of it.
pub(crate) fn first_output(first: Delta) -> worker::Output {
    let finish = first.finish.map(|reason| finish(reason, worker::Usage::default()));
    worker::Output {
        token_ids: first.tokens,
        logprobs: first.logprobs.into_iter().map(logprobs).collect(),
        finish,
        ..worker::Output::default()
    }
}

/// The token that came of a prompt, as another agent told of it.
pub(crate) fn first_token(told: worker::Output) -> Delta {
    let logprobs = told.logprobs.into_iter().map(|sent| stator_engine::TokenLogprobs {
        token: sent.token_id,
        logprob: sent.logprob,
        top: sent.top.into_iter().map(|top| (top.token_id, top.logprob)).collect(),
    });
    let finish = told.finish.map(|finish| match finish.reason() {
        worker::FinishReason::Stop => Finish::Stop(finish.stop_token_id),
        _ => Finish::Length,
    });
    Delta { tokens: told.token_ids, logprobs: logprobs.collect(), finish, ..Delta::default() }
}

/// The end of a choice as the stream sends it.
pub(crate) fn finish(reason: Finish, usage: worker::Usage) -> worker::Finish {
    let (reason, stop_token_id) = match reason {
        Finish::Stop(token) => (worker::FinishReason::Stop, token),
        Finish::Length => (worker::FinishReason::Length, None),
    };
    worker::Finish {
        reason: reason.into(),
        stop_token_id,
        usage: Some(usage),
        ..worker::Finish::default()
    }
}

/// The last output of a choice that failed.
pub(crate) fn failure(
    request_id: u64,
    choice: u32,
    kind: worker::ErrorKind,
    message: String,
) -> worker::Output {
    let finish = worker::Finish {
        reason: worker::FinishReason::Error.into(),
        error_kind: kind.into(),
        error_message: message,
        ..worker::Finish::default()
    };
    let prefill_failed = kind == worker::ErrorKind::Unprefilled;
    let finish = Some(finish);
    worker::Output { request_id, choice, prefill_failed, finish, ..worker::Output::default() }
}

/// The last output of a choice that its client cancelled.
pub(crate) fn cancelled(request_id: u64, choice: u32) -> worker::Output {
    let finish = worker::Finish {
        reason: worker::FinishReason::Cancelled.into(),
        ..worker::Finish::default()
    };
    worker::Output { request_id, choice, finish: Some(finish), ..worker::Output::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn submit(change: impl FnOnce(&mut worker::Submit)) -> worker::Submit {
        let sampling = worker::Sampling { max_tokens: 5, ..worker::Sampling::default() };
        let mut submit = worker::Submit {
            token_ids: vec![1, 2, 3],
            sampling: Some(sampling),
            ..worker::Submit::default()
        };
        change(&mut submit);
        submit
    }

    fn check(change: impl FnOnce(&mut worker::Submit)) -> Result<Request, String> {
        request(submit(change), RequestKey(1))
    }

    fn check_sampling(change: impl FnOnce(&mut worker::Sampling)) -> Result<Request, String> {
        check(|s| change(s.sampling.as_mut().unwrap()))
    }

    #[test]
    fn zeros_read_as_the_documented_defaults() {
        let request = check(|_| ()).unwrap();
        assert_eq!((request.choices, request.cache_salt), (1, None));
        assert_eq!((request.sampling.top_p, request.sampling.repetition_penalty), (1.0, 1.0));
    }

    #[test]
    fn absurd_values_are_refused_with_field_value_and_limit() {
        let cases = [
            (check(|s| s.token_ids.clear()), "token_ids: 0 tokens, at least 1 is needed"),
            (check(|s| s.resumed_tokens = 3), "resumed_tokens: 3 is not below 3, the tokens given"),
            (check(|s| s.choices = 129), "choices: 129 is not in 1..=128"),
            (check(|s| s.first_choice = u32::MAX), "first_choice: 4294967295 is too large"),
            (check(|s| s.cache_salt = "x".repeat(257)), "cache_salt: 257 bytes, limit 256"),
            (check(|s| s.sampling = None), "max_tokens: 0 is below 1"),
            (check_sampling(|s| s.temperature = f32::NAN), "temperature: NaN is not in 0..=2"),
            (check_sampling(|s| s.temperature = -0.5), "temperature: -0.5 is not in 0..=2"),
            (check_sampling(|s| s.top_p = 1.5), "top_p: 1.5 is not above 0 and at most 1"),
            (check_sampling(|s| s.min_p = f32::INFINITY), "min_p: inf is not in 0..=1"),
            (check_sampling(|s| s.presence_penalty = 3.0), "presence_penalty: 3 is not in -2..=2"),
            (check_sampling(|s| s.logprobs = Some(21)), "logprobs: 21 is not in 0..=20"),
            (check_sampling(|s| s.min_tokens = 6), "min_tokens: 6 is above max_tokens, 5"),
            (
                check_sampling(|s| s.stop_token_ids = vec![0; 4097]),
                "stop_token_ids: 4097 entries, limit 4096",
            ),
        ];
        for (result, expected) in cases {
            assert_eq!(result.unwrap_err(), expected);
        }
    }

    proptest! {
        /// Whatever comes is refused or within the ranges that engines rely on.
        #[test]
        fn what_is_taken_is_within_the_documented_ranges(
            floats in prop::array::uniform6(prop_oneof![any::<f32>(), -3f32..3.0]),
            counts in prop::array::uniform6(0u32..200),
            tokens in prop::collection::vec(any::<u32>(), 0..4),
            biases in prop::collection::vec((any::<u32>(), any::<f32>()), 0..3),
        ) {
            let [temperature, top_p, min_p, repetition, presence, frequency] = floats;
            let [resumed, choices, min_tokens, max_tokens, logprobs, prompt_logprobs] = counts;
            let bias = |(token_id, bias)| worker::LogitBias { token_id, bias };
            let given = worker::Submit {
                resumed_tokens: resumed % 6,
                choices,
                token_ids: tokens,
                sampling: Some(worker::Sampling {
                    temperature,
                    top_p,
                    min_p,
                    repetition_penalty: repetition,
                    presence_penalty: presence,
                    frequency_penalty: frequency,
                    min_tokens,
                    max_tokens,
                    logprobs: Some(logprobs % 30),
                    prompt_logprobs: Some(prompt_logprobs % 30),
                    logit_bias: biases.into_iter().map(bias).collect(),
                    ..worker::Sampling::default()
                }),
                ..worker::Submit::default()
            };
            if let Ok(taken) = request(given, RequestKey(0)) {
                prop_assert!(taken.resumed < taken.tokens.len());
                prop_assert!((1..=MAX_CHOICES).contains(&taken.choices));
                let s = &taken.sampling;
                prop_assert!((0.0..=2.0).contains(&s.temperature));
                prop_assert!(s.top_p > 0.0 && s.top_p <= 1.0);
                prop_assert!((0.0..=1.0).contains(&s.min_p));
                prop_assert!(s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite());
                prop_assert!((-2.0..=2.0).contains(&s.presence_penalty));
                prop_assert!((-2.0..=2.0).contains(&s.frequency_penalty));
                prop_assert!(s.logprobs <= Some(20) && s.prompt_logprobs <= Some(20));
                prop_assert!(1 <= s.max_tokens && s.min_tokens <= s.max_tokens);
                prop_assert!(s.logit_bias.iter().all(|b| (-100.0..=100.0).contains(&b.bias)));
            }
        }
    }

    #[test]
    fn an_answer_of_a_given_form_cannot_be_resumed() {
        let half = check(|s| {
            s.resumed_tokens = 1;
            let form = Some(worker::guide::Form::JsonObject(worker::JsonObject {}));
            s.sampling.as_mut().unwrap().guide = Some(worker::Guide { form });
        });
        assert_eq!(half.unwrap_err(), "resumed_tokens: 1, 0 for an answer of a given form");
    }

    #[test]
    fn a_finished_output_carries_reason_token_and_usage() {
        let finish = stator_engine::Finish {
            reason: FinishReason::Stop(2),
            prompt_tokens: 3,
            completion_tokens: 1,
            cached_tokens: 0,
        };
        let given = stator_engine::Output {
            key: RequestKey(1),
            choice: 4,
            tokens: vec![2],
            logprobs: vec![],
            prompt_logprobs: vec![],
            cached_tokens: None,
            pooled: vec![],
            finish: Some(finish),
        };
        let sent = output(given, 9);
        assert_eq!((sent.request_id, sent.choice), (9, 4));
        let finish = sent.finish.unwrap();
        assert_eq!(finish.reason(), worker::FinishReason::Stop);
        assert_eq!(finish.stop_token_id, Some(2));
        assert_eq!(finish.usage.unwrap().prompt_tokens, 3);
    }
}
