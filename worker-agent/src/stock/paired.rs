//! A request whose prompt another worker computes: who is asked for what, and what becomes of the
//! token that comes of the prompt.
//!
//! Where the engines allow it, that token goes to the client as soon as prefill has it, and decode
//! goes on from it; otherwise decode computes the prompt's last position once more.

use super::request::{AnswerStart, ChoiceProgress, Failure, Job, failure, first_of, sampling};
use crate::metrics::PrefilledBy;
use crate::prefill::agents::{self, AdmittedWorker, PrefillMiss};
use crate::request_plane::metadata::PrefillWorker;
use crate::worker::PrefillResult;
use futures::future;
use serde_json::value::RawValue;
use stator_dialect::{Answer, Ask, Delta, Fault, Finish, FirstToken, Hand, Manner, SharedRequest};
use stator_protos::worker::Sampling;
use stator_protos::worker::{self, ErrorKind};
use tokio::time::Instant;

/// Why decode is waited for no longer, where both were asked at once.
enum Over {
    /// Prefill's answer is all of it.
    Complete(Box<Delta>),
    /// One of them failed.
    Failed(PrefillMiss),
}

impl Job<'_> {
    /// Begins with the KV that another worker computes, or without it where that does not work and
    /// the engine computes prompts; `None` where all of the answer came with it.
    pub(super) async fn with_prefill(
        &self,
        progress: &mut ChoiceProgress,
        peer: &PrefillWorker,
    ) -> Result<Option<AnswerStart>, Failure> {
        let stock = &self.rank.stock;
        if self.request.choices > 1 {
            // What was handed over is used once; the other choices would compute the prompt anyway.
            stock.prefilled(PrefilledBy::itself_choices);
            return self.begin(progress, Hand::Whole).await.map(Some).map_err(failure);
        }
        let deadline = Instant::now() + self.rank.prefill_timeout;
        let paired = tokio::time::timeout_at(deadline, self.paired(progress, peer, deadline));
        let (by, why) = match paired.await {
            Ok(Ok(begun)) => {
                self.count_prefill(progress);
                return Ok(begun);
            }
            Ok(Err(why)) => why,
            Err(_) => {
                let waited = self.rank.prefill_timeout.as_millis();
                (PrefilledBy::itself_timeout, format!("nothing within {waited} ms"))
            }
        };
        let client_request_id = &self.metadata.client_request_id;
        tracing::warn!(client_request_id, prefill = %peer.worker, why, "the prompt did not come");
        // Whatever the client has is part of the prompt now.
        progress.taken = progress.taken.or(progress.repeated.take());
        progress.prefill_failed = progress.taken.is_none();
        let begun = self.begin(progress, Hand::Whole).await;
        if let Err(Fault::Half(half)) = begun {
            stock.prefilled(PrefilledBy::nobody);
            let kind = match by {
                // Another prefill worker would not help it.
                PrefilledBy::itself_engine_failed => ErrorKind::Internal,
                _ => ErrorKind::Unprefilled,
            };
            return Err((kind, format!("prefill worker {}: {why}; {half}", peer.worker)));
        }
        stock.prefilled(by);
        begun.map(Some).map_err(failure)
    }

    async fn paired(
        &self,
        progress: &mut ChoiceProgress,
        peer: &PrefillWorker,
        deadline: Instant,
    ) -> Result<Option<AnswerStart>, PrefillMiss> {
        let shared = SharedRequest {
            request: self.request.key.0,
            rank: peer.worker.rank,
            logprobs: self.request.sampling.logprobs.is_some(),
        };
        let admitted = self.rank.prefill_agents.admit(peer).await?;
        match self.rank.dialect.pair(&shared, &peer.handover).map_err(engine)? {
            Manner::InTurn { prefill, first } => {
                let told = prefill.as_deref();
                let prefilled = self.prefilled(progress, &admitted, first, told).await?;
                self.in_turn(progress, first, prefilled, deadline).await
            }
            Manner::Together { prefill, decode, first, prompt_first } => {
                let begun = async {
                    let begun = self.begin(progress, Hand::Decode(decode)).await;
                    begun.map_err(|fault| Over::Failed(engine(fault)))
                };
                let prefilled = async {
                    let prefilled =
                        self.prefilled(progress, &admitted, first, Some(&prefill)).await;
                    let prefilled = prefilled.map_err(Over::Failed)?;
                    let done = Instant::now();
                    all_of_it(first, prefilled)
                        .map_or(Ok(done), |all| Err(Over::Complete(Box::new(all))))
                };
                // The first failure, or a prefill that is the whole answer, drops the other half.
                match future::try_join(prefilled, begun).await {
                    Ok((done, begun)) => {
                        progress.handed_over = Some(done).filter(|_| prompt_first);
                        Ok(Some(begun))
                    }
                    Err(Over::Complete(all)) => {
                        self.count_prefill(progress);
                        self.deliver(progress, *all);
                        Ok(None)
                    }
                    Err(Over::Failed(why)) => Err(why),
                }
            }
        }
    }

    /// Continues after a finished prefill.
    async fn in_turn(
        &self,
        progress: &mut ChoiceProgress,
        first: FirstToken,
        prefilled: PrefillResult,
        deadline: Instant,
    ) -> Result<Option<AnswerStart>, PrefillMiss> {
        let done = Instant::now();
        let PrefillResult { handover, cached_tokens, first: token } = prefilled;
        let token = token.filter(|_| self.is_wanted(progress, first));
        let token = token.map(|token| Delta { cached_tokens: Some(cached_tokens), ..token });
        let told = match (handover, token) {
            (None, Some(all @ Delta { finish: Some(Finish::Stop(_)), .. })) => {
                self.count_prefill(progress);
                self.deliver(progress, all);
                return Ok(None);
            }
            (None, _) => {
                let why = "the prefill worker's engine handed nothing over";
                return Err((PrefilledBy::itself_prefill_failed, why.into()));
            }
            (Some(told), Some(token)) if self.is_early(progress, &token) => {
                let had = token.tokens.first().copied();
                self.count_prefill(progress);
                self.deliver(progress, Delta { finish: None, ..token });
                match first {
                    FirstToken::Taken { .. } => progress.taken = had,
                    FirstToken::Passed | FirstToken::PassedUnlessLast | FirstToken::Dropped => {
                        progress.repeated = had;
                    }
                }
                told
            }
            // One that ends the answer is left to decode, which frees what was handed over.
            (Some(told), _) => told,
        };
        let entry = self.rank.tally.enter(0);
        let ask = self.ask(progress, Hand::Decode(told));
        let (answer, first) = self.begun_for_certain(ask, deadline).await.map_err(engine)?;
        progress.handed_over = Some(done);
        Ok(Some(AnswerStart { answer, first, entry }))
    }

    /// Counts the prefill worker as who computed the prompt, once and before the client knows.
    fn count_prefill(&self, progress: &mut ChoiceProgress) {
        if !std::mem::replace(&mut progress.prefilled, true) {
            self.rank.stock.prefilled(PrefilledBy::prefill_worker);
        }
    }

    /// Begins to decode in a task of its own, which goes on to the first token even if nobody waits
    /// for it any more: KV handed over to an engine that never hears of it would stay until its
    /// lease ends. `deadline` ends the task.
    async fn begun_for_certain(
        &self,
        ask: Ask,
        deadline: Instant,
    ) -> Result<(Box<dyn Answer>, Delta), Fault> {
        let engine = self.rank.dialect.clone();
        let begun =
            tokio::spawn(
                async move { tokio::time::timeout_at(deadline, first_of(&engine, ask)).await },
            );
        match begun.await {
            Ok(Ok(begun)) => begun,
            Ok(Err(_)) => Err(Fault::Unreachable("no token before the deadline".into())),
            Err(error) => Err(Fault::Failed(format!("the task that waits for it: {error}"))),
        }
    }

    /// Whether the token that comes of the prompt must be chosen as the client asked.
    fn is_wanted(&self, progress: &ChoiceProgress, first: FirstToken) -> bool {
        match first {
            FirstToken::Dropped => false,
            FirstToken::Passed | FirstToken::PassedUnlessLast => true,
            FirstToken::Taken { .. } => {
                let room = first.is_taken_behind(self.request.tokens.len());
                room && continues(&sampling(&self.request, progress.choice, 0))
            }
        }
    }

    /// Whether the token may go to the client before decode has begun.
    fn is_early(&self, progress: &ChoiceProgress, token: &Delta) -> bool {
        let sampling = sampling(&self.request, progress.choice, 0);
        let one = token.tokens.len() == 1 && token.finish == Some(Finish::Length);
        // Where decode fails the answer goes on as if the token were of the prompt.
        one && sampling.max_tokens > 1 && sampling.guide.is_none()
    }

    async fn prefilled(
        &self,
        progress: &ChoiceProgress,
        peer: &AdmittedWorker,
        first: FirstToken,
        told: Option<&RawValue>,
    ) -> Result<PrefillResult, PrefillMiss> {
        let prompt = self.prompt(progress, peer.peer(), self.is_wanted(progress, first));
        let (agents, within) = (&self.rank.prefill_agents, self.rank.prefill_timeout);
        let asked = agents.prefill(peer, prompt, told, within, |_| ()).await;
        asked.map_err(|why| (PrefilledBy::itself_prefill_failed, why))
    }

    /// The request for a prefill worker.
    fn prompt(
        &self,
        progress: &ChoiceProgress,
        peer: &PrefillWorker,
        wanted: bool,
    ) -> worker::Submit {
        let sampling = sampling(&self.request, progress.choice, 0);
        let sampling = match wanted {
            true => Sampling {
                max_tokens: 1,
                min_tokens: sampling.min_tokens.min(1),
                prompt_logprobs: None,
                ..sampling
            },
            false => agents::any_token(),
        };
        let (traceparent, tracestate) = match self.traced.told() {
            Some(trace) => (trace.parent, trace.state.unwrap_or_default()),
            None => Default::default(),
        };
        let prompt = agents::prompt(peer, &self.request, &self.metadata, sampling);
        worker::Submit { traceparent, tracestate, ..prompt }
    }
}

/// Whether the answer stays correct if its first token is passed on as the last of the prompt: no
/// requested draw depends on how many came before it, and nothing counts or constrains the
/// generated tokens.
fn continues(sampling: &Sampling) -> bool {
    (sampling.temperature == 0.0 || sampling.seed_is_drawn)
        && sampling.presence_penalty == 0.0
        && sampling.frequency_penalty == 0.0
        && sampling.guide.is_none()
        && sampling.max_tokens > 1
}

/// The answer of a prefill that is already the whole answer, if decode does not see it.
fn all_of_it(first: FirstToken, prefilled: PrefillResult) -> Option<Delta> {
    let all = prefilled.first.filter(|_| first == FirstToken::PassedUnlessLast)?;
    let ended = matches!(all.finish, Some(Finish::Stop(_)));
    ended.then_some(Delta { cached_tokens: Some(prefilled.cached_tokens), ..all })
}

fn engine(fault: Fault) -> PrefillMiss {
    (PrefilledBy::itself_engine_failed, fault.to_string())
}
