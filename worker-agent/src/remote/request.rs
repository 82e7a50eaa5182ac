//! One request on a stock engine, from its submission to its last token.

use super::metrics::{PrefilledBy, StockMetrics};
use super::peers::Peers;
use super::tally::{Entry, Tally};
use crate::engine::{Request, Sampling};
use crate::extras::{Extras, Peer};
use crate::in_flight::Ticket;
use crate::metrics::{AgentMetrics, Outcome};
use crate::outbox::Outbox;
use crate::translate;
use crate::worker::{Prefill, Prefilled, Submission};
use futures::future;
use serde_json::value::RawValue;
use stator_dialect::{Answer, Ask, Delta, Dialect, Fault, Hand, Manner};
use stator_protos::worker::{self, ErrorKind};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Longest part of the client's request id in the engine's.
const CLIENT_ID_BYTES: usize = 32;

/// Tells this agent's requests from those that another one, or an earlier one, sent to the engine.
static LIFE: LazyLock<u32> = LazyLock::new(rand::random);

/// What all requests of one rank share.
#[derive(Debug)]
pub(crate) struct Rank {
    /// The engine.
    pub(crate) dialect: Arc<dyn Dialect>,
    /// Its data-parallel rank, where it has several.
    pub(crate) rank: Option<u16>,
    /// What it has to do.
    pub(crate) tally: Arc<Tally>,
    /// Who computes prompts for it.
    pub(crate) peers: Arc<Peers>,
    /// Longest wait for them.
    pub(crate) prefill_timeout: Duration,
    /// Counters of the agent.
    pub(crate) metrics: AgentMetrics,
    /// Counters of stock engines.
    pub(crate) stock: StockMetrics,
}

/// Why a choice has no answer.
type Failure = (ErrorKind, String);

impl Rank {
    /// Runs a request until it has ended, and tells its client's stream.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts the request in the engine; the client is told nothing more.
    pub(crate) async fn run(&self, submission: Submission) {
        let Submission { request, request_id, extras, outbox, ticket } = submission;
        let first_choice = request.first_choice;
        let job = Job { rank: self, request, request_id, extras, outbox: &outbox };
        let choices = (0..job.request.choices).map(|n| job.choice(first_choice + n));
        let (outcome, last) = match future::try_join_all(choices).await {
            Ok(_) => (Outcome::completed, None),
            Err((kind, message)) => {
                let last = translate::failure(request_id, first_choice, kind, message);
                (kind.into(), Some(last))
            }
        };
        self.metrics.ended(outcome);
        end(&outbox, request_id, last, ticket);
    }

    /// Computes a prompt for another engine, unless who asked for it has gone.
    pub(crate) async fn prefill(&self, order: Prefill) {
        let Prefill { request, extras, handover, mut answer, ticket: _ticket } = order;
        let done = tokio::select! {
            done = self.prefilled(&request, &extras, handover) => done,
            () = answer.closed() => return self.metrics.ended(Outcome::cancelled),
        };
        self.metrics.ended(match &done {
            Ok(_) => Outcome::completed,
            Err((kind, _)) => (*kind).into(),
        });
        // Nobody to tell: the engine has released the blocks, or will when their lease ends.
        let _ = answer.send(done);
    }

    async fn prefilled(
        &self,
        request: &Request,
        extras: &Extras,
        handover: Option<Box<RawValue>>,
    ) -> Result<Prefilled, Failure> {
        let mut entry = self.tally.enter(request.tokens.len());
        let ask = ask(self, request, extras, request.first_choice);
        let asked = self.dialect.generate(Ask { hand: Hand::Prefill(handover), ..ask });
        let mut answer = asked.await.map_err(failure)?;
        let mut prefilled = Prefilled { handover: None, cached_tokens: 0 };
        while let Some(delta) = answer.next().await.map_err(failure)? {
            entry.tokens(delta.tokens.len());
            prefilled.cached_tokens = delta.cached_tokens.unwrap_or(prefilled.cached_tokens);
            prefilled.handover = delta.handover.or(prefilled.handover);
        }
        self.metrics.prompt_tokens.inc_by(request.tokens.len() as u64);
        self.metrics.cached_tokens.inc_by(prefilled.cached_tokens.into());
        Ok(prefilled)
    }
}

/// Ends a request in its client's stream.
pub(crate) fn end(outbox: &Outbox, request_id: u64, last: Option<worker::Output>, ticket: Ticket) {
    outbox.push(&mut Vec::from_iter(last), &mut vec![request_id]);
    drop(ticket);
}

/// A request that runs.
struct Job<'a> {
    rank: &'a Rank,
    request: Request,
    request_id: u64,
    extras: Extras,
    outbox: &'a Outbox,
}

/// An answer that has begun.
struct Begun {
    answer: Box<dyn Answer>,
    first: Delta,
    /// Counts it among what runs.
    entry: Entry,
    /// Whether somebody else was to compute the prompt, and did not.
    prefill_failed: bool,
}

impl Job<'_> {
    /// Runs one choice to its end.
    async fn choice(&self, choice: u32) -> Result<(), Failure> {
        let Begun { mut answer, first, mut entry, prefill_failed } = match &self.extras.prefill {
            None => self.begin(choice, Hand::Whole).await.map_err(failure)?,
            Some(peer) => self.with_prefill(choice, peer).await?,
        };
        let mut progress = Progress { choice, prefill_failed, ..Progress::default() };
        let mut delta = Some(first);
        while let Some(some) = delta {
            entry.tokens(some.tokens.len());
            self.deliver(&mut progress, some);
            if progress.finished {
                return Ok(());
            }
            delta = answer.next().await.map_err(failure)?;
        }
        Err((ErrorKind::Internal, "the engine's answer has no end".into()))
    }

    /// Asks the engine, and waits for what comes first.
    async fn begin(&self, choice: u32, hand: Hand) -> Result<Begun, Fault> {
        // Not before: an engine that waits for another's is not busy.
        let to_compute = match &hand {
            Hand::Whole | Hand::Prefill(_) => self.request.tokens.len(),
            Hand::Decode(_) => 0,
        };
        let entry = self.rank.tally.enter(to_compute);
        let ask = ask(self.rank, &self.request, &self.extras, choice);
        let mut answer = self.rank.dialect.generate(Ask { hand, ..ask }).await?;
        match answer.next().await? {
            Some(first) => Ok(Begun { answer, first, entry, prefill_failed: false }),
            None => Err(Fault::Failed("the engine's answer is empty".into())),
        }
    }

    /// Begins with the KV that another worker computes, or without it where that does not work.
    async fn with_prefill(&self, choice: u32, peer: &Peer) -> Result<Begun, Failure> {
        let stock = &self.rank.stock;
        if self.request.choices > 1 {
            // What was handed over is used once; the other choices would compute the prompt anyway.
            stock.prefilled(PrefilledBy::itself_choices);
            return self.begin(choice, Hand::Whole).await.map_err(failure);
        }
        let paired = tokio::time::timeout(self.rank.prefill_timeout, self.paired(choice, peer));
        let (by, why) = match paired.await {
            Ok(Ok(begun)) => {
                stock.prefilled(PrefilledBy::prefill_worker);
                return Ok(begun);
            }
            Ok(Err(why)) => why,
            Err(_) => {
                let waited = self.rank.prefill_timeout.as_millis();
                (PrefilledBy::itself_timeout, format!("nothing within {waited} ms"))
            }
        };
        stock.prefilled(by);
        let client_request_id = &self.extras.client_request_id;
        tracing::warn!(client_request_id, prefill = %peer.worker, why, "computing the prompt here");
        let begun = self.begin(choice, Hand::Whole).await.map_err(failure)?;
        Ok(Begun { prefill_failed: true, ..begun })
    }

    async fn paired(&self, choice: u32, peer: &Peer) -> Result<Begun, (PrefilledBy, String)> {
        let engine = |fault: Fault| (PrefilledBy::itself_engine_failed, fault.to_string());
        let ask = |told| {
            let asked = self.rank.peers.prefill(peer, self.prompt(peer), told);
            async { asked.await.map_err(|why| (PrefilledBy::itself_prefill_failed, why)) }
        };
        let room = self.request.key.0;
        match self.rank.dialect.pair(room, &peer.handover).map_err(engine)? {
            Manner::InTurn => {
                let told = ask(None).await?.handover.ok_or_else(|| {
                    (
                        PrefilledBy::itself_prefill_failed,
                        "the prefill worker's engine handed nothing over".into(),
                    )
                })?;
                self.begin(choice, Hand::Decode(told)).await.map_err(engine)
            }
            Manner::Together { prefill, decode } => {
                let begun =
                    async { self.begin(choice, Hand::Decode(decode)).await.map_err(engine) };
                let (_, begun) = future::try_join(ask(Some(&prefill)), begun).await?;
                Ok(begun)
            }
        }
    }

    /// What a prefill worker is sent.
    fn prompt(&self, peer: &Peer) -> worker::Submit {
        worker::Submit {
            request_id: 0,
            worker_id: peer.worker.worker.0,
            rank: peer.worker.rank.into(),
            token_ids: self.request.tokens.clone(),
            choices: 1,
            sampling: Some(worker::Sampling { max_tokens: 1, ..worker::Sampling::default() }),
            cache_salt: self.request.cache_salt.clone().unwrap_or_default(),
            lora_name: self.extras.lora.clone().unwrap_or_default(),
            client_request_id: self.extras.client_request_id.clone(),
            traceparent: self.extras.traceparent.clone(),
            priority: self.extras.priority,
            ..worker::Submit::default()
        }
    }

    /// Sends on what came of a choice.
    fn deliver(&self, progress: &mut Progress, delta: Delta) {
        let metrics = &self.rank.metrics;
        let generated = delta.tokens.len() as u64;
        metrics.generated_tokens.inc_by(generated);
        progress.tokens += generated as u32;
        progress.cached_tokens = delta.cached_tokens.or(progress.cached_tokens);
        let finish = delta.finish.map(|finish| {
            progress.finished = true;
            let prompt_tokens = (self.request.tokens.len() - self.request.resumed) as u32;
            let cached_tokens = progress.cached_tokens.unwrap_or(0);
            metrics.prompt_tokens.inc_by(prompt_tokens.into());
            metrics.cached_tokens.inc_by(cached_tokens.into());
            let completion_tokens = self.request.resumed as u32 + progress.tokens;
            let usage = worker::Usage { prompt_tokens, completion_tokens, cached_tokens };
            translate::stock_finish(finish, usage)
        });
        let output = worker::Output {
            request_id: self.request_id,
            choice: progress.choice,
            token_ids: delta.tokens,
            logprobs: delta.logprobs.into_iter().map(translate::logprobs).collect(),
            prompt_logprobs: delta.prompt_logprobs.into_iter().map(translate::logprobs).collect(),
            cached_tokens: delta.cached_tokens,
            prefill_failed: std::mem::take(&mut progress.prefill_failed),
            finish,
        };
        self.outbox.push_one(output);
    }
}

/// How far a choice is.
#[derive(Default)]
struct Progress {
    choice: u32,
    tokens: u32,
    cached_tokens: Option<u32>,
    /// Is told with the next output.
    prefill_failed: bool,
    finished: bool,
}

/// What the engine is asked of one choice. What an earlier attempt generated is part of the prompt
/// for it.
fn ask(rank: &Rank, request: &Request, extras: &Extras, choice: u32) -> Ask {
    let id: String = extras
        .client_request_id
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        .take(CLIENT_ID_BYTES)
        .collect();
    let resumed = request.resumed as u32;
    let sampling = Sampling {
        seed: request.sampling.seed.wrapping_add(choice.into()),
        max_tokens: request.sampling.max_tokens.saturating_sub(resumed).max(1),
        min_tokens: request.sampling.min_tokens.saturating_sub(resumed),
        ..Sampling::clone(&request.sampling)
    };
    Ask {
        id: format!("{id}-{:x}-{:x}.{choice}", *LIFE, request.key.0),
        tokens: request.tokens.as_slice().into(),
        sampling: Arc::new(sampling),
        cache_salt: request.cache_salt.clone(),
        lora: extras.lora.clone(),
        priority: extras.priority,
        rank: rank.rank,
        hand: Hand::Whole,
    }
}

fn failure(fault: Fault) -> Failure {
    let kind = match &fault {
        Fault::Invalid(_) | Fault::Unsupported(_) => ErrorKind::Invalid,
        Fault::Overloaded(_) => ErrorKind::Overloaded,
        Fault::Aborted(_) | Fault::Unreachable(_) | Fault::Failed(_) => ErrorKind::Internal,
    };
    (kind, fault.to_string())
}
