//! From TensorRT-LLM's completions to deltas: chunks and whole answers are alike.

use crate::answer::Decoder;
use crate::http::fault_of_request;
use crate::json::FirstElement;
use crate::logprobs::ranked;
use crate::{Ask, Delta, Fault, Finish, Hand};
use ::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Deserialize)]
struct AnswerEvent<'a> {
    #[serde(borrow)]
    choices: Option<FirstElement<Choice<'a>>>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    finish_reason: Option<Reason<'a>>,
    /// A stop token or a stop string.
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    logprobs: Option<Logprobs>,
    #[serde(borrow)]
    disaggregated_params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Reason<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Logprobs {
    token_logprobs: Vec<Option<f32>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Deserialize)]
struct PromptTokensDetails {
    cached_tokens: Option<u32>,
}

/// Reads the answer to one request.
pub(crate) struct Decode {
    prefill: bool,
    /// Whether this is a prefill in turn, whose answer says where the KV is.
    hands_over: bool,
    logprobs: bool,
    last: Option<u32>,
    finish: Option<Finish>,
}

impl Decode {
    /// A decoder for the answer to `ask`.
    pub(crate) fn new(ask: &Ask) -> Self {
        let prefill = matches!(ask.hand, Hand::Prefill(_));
        let hands_over = matches!(ask.hand, Hand::Prefill(None));
        let logprobs = ask.sampling.logprobs.is_some();
        Self { prefill, hands_over, logprobs, last: None, finish: None }
    }

    /// Decodes an answer that came as a whole. A prefill whose first token ends the answer is
    /// complete and hands nothing over. A token without the logprob that was asked for is dropped.
    pub(super) fn whole(mut self, body: &[u8]) -> Result<Delta, Fault> {
        let mut delta = Delta::default();
        self.event(body, &mut delta)?;
        self.end(&mut delta)?;
        if self.hands_over && delta.finish == Some(Finish::Length) && delta.handover.is_none() {
            return Err(Fault::Failed("the prefill handed nothing over".into()));
        }
        let ended = matches!(delta.finish, Some(Finish::Stop(_)));
        if self.prefill && !self.hands_over && ended && delta.tokens.is_empty() {
            // Decode would wait for the KV of it.
            return Err(Fault::Failed("the prefill's answer ends without its token".into()));
        }
        if self.logprobs && delta.logprobs.len() != delta.tokens.len() {
            delta.tokens.clear();
            delta.logprobs.clear();
        }
        Ok(delta)
    }

    fn choice(&mut self, choice: Choice<'_>, delta: &mut Delta) -> Result<(), Fault> {
        let ids = match choice.token_ids {
            Some(ids) => ids,
            None if choice.finish_reason.is_some() => Vec::new(),
            None => return Err(Fault::Failed("the engine sends no token ids".into())),
        };
        if self.logprobs {
            let logprobs = choice.logprobs.map_or_else(Vec::new, |said| said.token_logprobs);
            if logprobs.len() != ids.len() && !self.prefill {
                let (got, wanted) = (logprobs.len(), ids.len());
                let message = format!("logprobs: {got} entries for {wanted} tokens");
                return Err(Fault::Failed(message));
            }
            let entries = ids.iter().zip(logprobs).map(|(id, logprob)| {
                ranked((*id, logprob.unwrap_or(f32::NEG_INFINITY)), Vec::new(), 0)
            });
            delta.logprobs.extend(entries);
        }
        self.last = ids.last().copied().or(self.last);
        delta.tokens.extend_from_slice(&ids);
        if let Some(reason) = choice.finish_reason {
            self.finish = Some(self.finish(&reason.0, choice.stop_reason)?);
        }
        // A prefill that ended by a stop token is the whole answer: nothing is left to hand over.
        if self.hands_over && self.finish == Some(Finish::Length) {
            delta.handover = choice.disaggregated_params.map(ToOwned::to_owned);
        }
        Ok(())
    }

    fn finish(&self, reason: &str, stop: Option<&RawValue>) -> Result<Finish, Fault> {
        match reason {
            "length" => Ok(Finish::Length),
            "not_finished" if self.prefill => Ok(Finish::Length),
            "stop" => {
                let token = stop.and_then(|stop| stop.get().parse().ok());
                Ok(Finish::Stop(token.filter(|token| self.last == Some(*token))))
            }
            "cancelled" | "timeout" => Err(Fault::Aborted(format!("finish_reason is {reason}"))),
            _ => Err(Fault::Failed(format!("finish_reason {reason:?} is none that is known"))),
        }
    }
}

impl Decoder for Decode {
    fn event(&mut self, event: &[u8], delta: &mut Delta) -> Result<(), Fault> {
        let said: AnswerEvent<'_> = serde_json::from_slice(event)
            .map_err(|error| Fault::Failed(format!("the answer is not as known: {error}")))?;
        let Some(choices) = said.choices else {
            return Err(error(event));
        };
        if let Some(choice) = choices.0 {
            self.choice(choice, delta)?;
        }
        let details = said.usage.and_then(|usage| usage.prompt_tokens_details);
        if let Some(cached) = details.and_then(|details| details.cached_tokens) {
            delta.cached_tokens = Some(cached);
        }
        Ok(())
    }

    fn end(&mut self, delta: &mut Delta) -> Result<(), Fault> {
        let finish =
            self.finish.ok_or_else(|| Fault::Failed("the answer ends without a finish".into()))?;
        delta.finish = Some(finish);
        Ok(())
    }
}

/// The fault in an answer without choices, with the code in its body.
fn error(event: &[u8]) -> Fault {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ErrorBody {
        code: Option<u16>,
    }
    let body: ErrorBody = serde_json::from_slice(event).unwrap_or_default();
    let status = body.code.and_then(|code| StatusCode::from_u16(code).ok());
    fault_of_request(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenLogprobs;
    use crate::testkit::{ask, decode, fixture, raw};
    use proptest::prelude::*;
    use stator_protos::worker::Sampling;
    use std::sync::Arc;

    const STREAM: &str = "trtllm-1.2-by-hand/completion-stream.response.sse";

    fn whole(asked: &Ask, body: &str) -> Result<Delta, Fault> {
        Decode::new(asked).whole(body.as_bytes())
    }

    fn prefill() -> Ask {
        Ask { hand: Hand::Prefill(None), ..ask(&[1]) }
    }

    #[test]
    fn a_stream_is_read_however_it_is_cut() {
        for size in [1, 13, usize::MAX] {
            let delta = decode(Decode::new(&ask(&[1])), &fixture(STREAM), size).unwrap();
            assert_eq!(delta.tokens, [1072, 542, 3209, 7]);
            assert_eq!(delta.finish, Some(Finish::Stop(Some(7))));
            assert_eq!(delta.cached_tokens, Some(32));
        }
    }

    #[test]
    fn a_context_answer_hands_over_what_it_says() {
        let body = fixture("trtllm-1.2-by-hand/context.response.json");
        let delta = Decode::new(&prefill()).whole(&body).unwrap();
        assert_eq!((delta.tokens, delta.finish), (vec![1072], Some(Finish::Length)));
        let handover = delta.handover.unwrap();
        assert!(handover.get().starts_with(r#"{"request_type":"context_only","#));
    }

    #[test]
    fn an_answer_that_its_first_token_ends_is_complete() {
        let stopped = r#"{"choices":[{"index":0,"text":"","token_ids":[2],"finish_reason":"stop",
            "disaggregated_params":{"request_type":"context_only","ctx_request_id":1}}]}"#;
        let delta = whole(&prefill(), stopped).unwrap();
        assert!(delta.handover.is_none());
        assert_eq!(delta.finish, Some(Finish::Stop(None)));
        let nothing = r#"{"choices":[{"token_ids":[2],"finish_reason":"length"}]}"#;
        assert!(matches!(whole(&prefill(), nothing), Err(Fault::Failed(_))));
    }

    #[test]
    fn a_prefill_that_is_asked_with_decode_hands_nothing_over_itself() {
        let together = Ask { hand: Hand::Prefill(Some(raw("{}"))), ..ask(&[1]) };
        let body = fixture("trtllm-1.2-by-hand/context.response.json");
        let delta = Decode::new(&together).whole(&body).unwrap();
        assert_eq!((delta.tokens, delta.finish), (vec![1072], Some(Finish::Length)));
        assert!(delta.handover.is_none());
        let ended = |ids: &str| {
            let body = r#"{"choices":[{"token_ids":IDS,"finish_reason":"stop"}]}"#;
            whole(&together, &body.replace("IDS", ids))
        };
        let delta = ended("[2]").unwrap();
        assert_eq!((delta.tokens, delta.finish), (vec![2], Some(Finish::Stop(None))));
        assert!(matches!(ended("[]"), Err(Fault::Failed(_))));
    }

    #[test]
    fn a_first_token_without_the_logprob_that_was_asked_for_is_not_told() {
        let sampling = Sampling { logprobs: Some(0), ..Sampling::neutral() };
        let asked = Ask { sampling: Arc::new(sampling), ..prefill() };
        let body = fixture("trtllm-1.2-by-hand/context.response.json");
        let delta = Decode::new(&asked).whole(&body).unwrap();
        assert_eq!((delta.tokens, delta.logprobs), (vec![], vec![]));
        assert!(delta.handover.is_some());
        let body = String::from_utf8(body).unwrap();
        let body =
            body.replacen("\"logprobs\":null", "\"logprobs\":{\"token_logprobs\":[-0.5]}", 1);
        let delta = whole(&asked, &body).unwrap();
        assert_eq!((delta.tokens, delta.logprobs.len()), (vec![1072], 1));
    }

    #[test]
    fn errors_and_unknown_ends_are_faults() {
        let error = r#"{"object":"error","message":"busy","type":"x","param":null,"code":503}"#;
        assert_eq!(whole(&ask(&[1]), error).unwrap_err(), Fault::Overloaded("busy".into()));
        let ended = |reason: &str| {
            whole(
                &ask(&[1]),
                &r#"{"choices":[{"token_ids":[2],"finish_reason":"R"}]}"#.replace('R', reason),
            )
        };
        assert!(matches!(ended("cancelled"), Err(Fault::Aborted(_))));
        assert!(matches!(ended("not_finished"), Err(Fault::Failed(_))));
        let text = r#"{"choices":[{"text":"x","token_ids":null}]}"#;
        assert!(matches!(whole(&ask(&[1]), text), Err(Fault::Failed(_))));
    }

    #[test]
    fn logprobs_are_of_the_chosen_tokens() {
        let sampling = Sampling { logprobs: Some(0), ..Sampling::neutral() };
        let asked = Ask { sampling: Arc::new(sampling), ..ask(&[1]) };
        let body = r#"{"choices":[{"token_ids":[2,3],"finish_reason":"length",
            "logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,-1.5],"tokens":["a","b"],
            "top_logprobs":[{"a":-0.5},{"b":-1.5}]}}]}"#;
        let entry = |token, logprob| TokenLogprobs { token, logprob, top: Vec::new() };
        let expected = [entry(2, -0.5), entry(3, -1.5)];
        assert_eq!(whole(&asked, body).unwrap().logprobs, expected);
        let short = body.replace("[2,3]", "[2,3,4]");
        assert!(matches!(whole(&asked, &short), Err(Fault::Failed(_))));
    }

    proptest! {
        #[test]
        fn damaged_streams_are_faults_or_answers_and_never_panic(
            changes in proptest::collection::vec((0_usize..600, any::<u8>()), 1..20),
            size in 1_usize..200,
        ) {
            let mut stream = fixture(STREAM);
            let len = stream.len();
            for (place, byte) in changes {
                stream[place % len] = byte;
            }
            if let Ok(delta) = decode(Decode::new(&ask(&[1])), &stream, size) {
                prop_assert!(delta.finish.is_some());
            }
        }

        #[test]
        fn arbitrary_bytes_are_no_answer(bytes: Vec<u8>) {
            prop_assert!(Decode::new(&ask(&[1])).whole(&bytes).is_err());
        }
    }
}
