//! One request on a stock engine, from its submission to its last token.

use super::metrics::StockMetrics;
use super::read_ahead::{ReadAhead, beside};
use super::sink::LifeSink;
use super::tally::{Entry, Tally};
use super::trace::TracedRequest;
use crate::kv::pages::prompt_keys;
use crate::kv::peers::KvPeers;
use crate::kv::prompt_pins::PromptPins;
use crate::kv::tiers::TierUse;
use crate::metrics::{AgentMetrics, Outcome};
use crate::prefill::agents::PrefillAgents;
use crate::request_plane::metadata::RequestMetadata;
use crate::request_plane::outbox::Outbox;
use crate::request_plane::translate;
use crate::worker::{PrefillOrder, PrefillResult, Submission};
use futures::future;
use serde_json::value::RawValue;
use stator_dialect::{Answer, Ask, Delta, Dialect, Fault, Hand};
use stator_engine::Request;
use stator_protos::worker::Sampling;
use stator_protos::worker::{self, ErrorKind};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::Instant;

/// Longest part of the client's request id in the engine's.
const CLIENT_ID_BYTES: usize = 32;

/// Time that a drain allows for the fetch of a prompt's KV: engines do not report its end, and the
/// decode worker may have to wait for room first.
pub(super) const FETCH: Duration = Duration::from_secs(5);

/// No client wishes to pin the prompt, or one was told what is pinned.
const NOT_ASKED: u32 = u32::MAX;

/// Tells this agent's requests from those that another one, or an earlier one, sent to the engine.
static LIFE: LazyLock<u32> = LazyLock::new(rand::random);

/// State that all requests of one rank share.
#[derive(Debug)]
pub(crate) struct Rank {
    /// The engine.
    pub(crate) dialect: Arc<dyn Dialect>,
    /// Its data-parallel rank, where it has several.
    pub(crate) rank: Option<u16>,
    /// Tally of the rank's work.
    pub(crate) tally: Arc<Tally>,
    /// PrefillAgents that compute prompts for the rank.
    pub(crate) prefill_agents: Arc<PrefillAgents>,
    /// Longest wait for them.
    pub(crate) prefill_timeout: Duration,
    /// Counters of the agent.
    pub(crate) metrics: AgentMetrics,
    /// Counters of stock engines.
    pub(crate) stock: StockMetrics,
    /// The engine was told to rest, and would hold what it is sent.
    pub(crate) resting: Arc<AtomicBool>,
    /// The tiers of its engine, if it has any.
    pub(crate) read_ahead: Option<ReadAhead>,
    /// Agents that the engine's tiers read from, too.
    pub(crate) peers: Option<Arc<KvPeers>>,
    /// Pins prompts in the engine's tiers, if there are any and clients may.
    pub(crate) pins: Option<PromptPins>,
    /// Tokens of a page of an SGLang, which tells the tiers nothing but the keys of pages.
    pub(crate) page_tokens: Option<NonZeroU32>,
}

/// Why a choice has no answer.
pub(super) type Failure = (ErrorKind, String);

impl Rank {
    /// Whether the engine rests.
    pub(crate) fn rests(&self) -> bool {
        self.resting.load(Ordering::Relaxed)
    }

    /// Runs a request until it has ended, and tells its client's stream.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts the request in the engine, and nothing more is sent to the
    /// client.
    pub(crate) async fn run(&self, submission: Submission, sink: Arc<LifeSink>) {
        let Submission { request, request_id, metadata, outbox, ticket } = submission;
        let first_choice = request.first_choice;
        let traced = TracedRequest::begin("worker.generate", &request, &metadata);
        let left = AtomicU32::new(request.choices);
        let kv_hint = self.note(&request, &metadata, &traced);
        let pinned_tokens = AtomicU32::new(self.pin(&request, &metadata).unwrap_or(NOT_ASKED));
        let outbox = &*outbox;
        let job = Job {
            rank: self,
            request,
            request_id,
            metadata,
            traced,
            outbox,
            left,
            kv_hint,
            has_begun: AtomicBool::new(false),
            pinned_tokens,
        };
        let choices = (0..job.request.choices).map(|n| job.choice(first_choice + n));
        let read_ahead = async {
            // Where another worker computes the prompt, its KV comes from there.
            if job.metadata.prefill.is_none() {
                self.read_ahead(&job.request, &job.metadata, sink).await;
            }
        };
        match beside(read_ahead, future::try_join_all(choices)).await {
            // The last output of the last choice has ended it.
            Ok(_) => self.metrics.ended(Outcome::completed),
            Err((kind, message)) => {
                self.metrics.ended(kind.into());
                outbox.push_last(translate::failure(request_id, first_choice, kind, message));
            }
        }
        drop(ticket);
    }

    /// Notes for the tiers who holds KV of a prompt, and that its trace is to tell what they give: the
    /// engine names its blocks by itself, and later. Returns the number of the note. vLLM passes it on;
    /// pages of an SGLang are known by their keys.
    fn note(
        &self,
        request: &Request,
        metadata: &RequestMetadata,
        traced: &TracedRequest,
    ) -> Option<u64> {
        let holders = &metadata.kv_holders;
        let is_of_use = !holders.is_empty() || traced.is_sampled();
        let peers = self.peers.as_ref().filter(|_| is_of_use)?;
        let Some(page_tokens) = self.page_tokens else { return Some(peers.note(holders)) };
        // SGLang draws a part of an adapter's keys by lot.
        metadata.lora.is_none().then(|| {
            let salt = request.cache_salt.as_deref();
            let pages = prompt_keys(request.tokens.as_slice(), salt, page_tokens);
            peers.note_pages(&pages, holders)
        })
    }

    /// Blocks that the engine got from the tiers for a prompt, if that is known.
    fn used(&self, kv_hint: Option<u64>) -> Option<TierUse> {
        Some(self.peers.as_ref()?.used(kv_hint?)?.into())
    }

    /// Has the tiers read what there is of a prompt, while its request is on its way to the engine.
    async fn read_ahead(&self, request: &Request, metadata: &RequestMetadata, sink: Arc<LifeSink>) {
        if let Some(tiers) = &self.read_ahead {
            tiers.begin(request, metadata.lora.as_deref(), sink).await;
        }
    }

    /// Pins the blocks of a prompt, if its client wishes it. Returns the tokens that are pinned.
    fn pin(&self, request: &Request, metadata: &RequestMetadata) -> Option<u32> {
        self.pins.as_ref()?.pin(request, metadata, &self.metrics)
    }

    /// Computes a prompt for another engine, unless who asked for it has gone.
    pub(crate) async fn prefill(&self, order: PrefillOrder, sink: Arc<LifeSink>) {
        let PrefillOrder { request, metadata, handover, mut answer, ticket, .. } = order;
        let prefilled = self.prefilled(&request, &metadata, handover);
        let read_ahead = self.read_ahead(&request, &metadata, sink);
        let done = tokio::select! {
            done = beside(read_ahead, prefilled) => done,
            () = answer.closed() => return self.metrics.ended(Outcome::cancelled),
        };
        self.metrics.ended(match &done {
            Ok(_) => Outcome::completed,
            Err((kind, _)) => (*kind).into(),
        });
        let hands_over = done.as_ref().is_ok_and(|done| done.handover.is_some());
        // Nobody to tell: the engine has released the blocks, or will when their lease ends.
        if answer.send(done).is_ok() && hands_over {
            drop((request, metadata));
            tokio::time::sleep(FETCH).await;
        }
        drop(ticket);
    }

    async fn prefilled(
        &self,
        request: &Request,
        metadata: &RequestMetadata,
        handover: Option<Box<RawValue>>,
    ) -> Result<PrefillResult, Failure> {
        let mut entry = self.tally.enter(request.tokens.len());
        let traced = TracedRequest::begin("worker.prefill", request, metadata);
        let ask = ask(
            self,
            RequestParts { request, metadata, traced: &traced },
            request.first_choice,
            &[],
        );
        let kv_hint = self.note(request, metadata, &traced);
        self.pin(request, metadata);
        let asked = self.dialect.generate(Ask { hand: Hand::Prefill(handover), kv_hint, ..ask });
        traced.enter("prefill");
        let mut answer = asked.await.map_err(failure)?;
        let mut prefilled = PrefillResult { handover: None, cached_tokens: 0, first: None };
        while let Some(mut delta) = answer.next().await.map_err(failure)? {
            entry.tokens(delta.tokens.len().max(usize::from(delta.finish.is_some())));
            prefilled.cached_tokens = delta.cached_tokens.unwrap_or(prefilled.cached_tokens);
            prefilled.handover = delta.handover.take().or(prefilled.handover);
            prefilled.first = Some(delta).filter(|delta| !delta.tokens.is_empty());
        }
        traced.tell_tiers(self.used(kv_hint));
        self.metrics.prompt_tokens.inc_by(request.tokens.len() as u64);
        self.metrics.cached_tokens.inc_by(prefilled.cached_tokens.into());
        Ok(prefilled)
    }
}

/// A request that runs.
pub(super) struct Job<'a> {
    pub(super) rank: &'a Rank,
    pub(super) request: Request,
    request_id: u64,
    pub(super) metadata: RequestMetadata,
    pub(super) traced: TracedRequest,
    outbox: &'a Outbox,
    /// Choices that have not ended.
    left: AtomicU32,
    /// Number by which the tiers know who holds KV of its prompt.
    kv_hint: Option<u64>,
    /// Whether a choice has a token.
    has_begun: AtomicBool,
    /// Tokens of the prompt that its client has pinned, until an output has reported them.
    pinned_tokens: AtomicU32,
}

/// An answer that has begun.
pub(super) struct AnswerStart {
    pub(super) answer: Box<dyn Answer>,
    pub(super) first: Delta,
    /// Counts it among what runs.
    pub(super) entry: Entry,
}

impl Job<'_> {
    /// Runs one choice to its end.
    async fn choice(&self, choice: u32) -> Result<(), Failure> {
        let mut progress = ChoiceProgress { choice, ..ChoiceProgress::default() };
        let begun = match &self.metadata.prefill {
            None => self.begin(&progress, Hand::Whole).await.map_err(failure)?,
            Some(peer) => match self.with_prefill(&mut progress, peer).await? {
                Some(begun) => begun,
                None => return Ok(()),
            },
        };
        let AnswerStart { mut answer, first, mut entry } = begun;
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            self.traced.enter("decode");
            self.traced.tell_tiers(self.rank.used(self.kv_hint));
        }
        let mut delta = Some(first);
        while let Some(mut some) = delta {
            entry.tokens(some.tokens.len());
            progress.look_for_transfer(&some);
            progress.take_repeated(&mut some).map_err(failure)?;
            self.deliver(&mut progress, some);
            if progress.finished {
                return Ok(());
            }
            delta = answer.next().await.map_err(failure)?;
        }
        Err((ErrorKind::Internal, "the engine's answer has no end".into()))
    }

    /// Asks the engine, and waits for what comes first.
    pub(super) async fn begin(
        &self,
        progress: &ChoiceProgress,
        hand: Hand,
    ) -> Result<AnswerStart, Fault> {
        // Not before: an engine that waits for another's is not busy.
        let to_compute = match &hand {
            Hand::Whole | Hand::Prefill(_) | Hand::Canary => self.request.tokens.len(),
            Hand::Decode(_) => 0,
        };
        let entry = self.rank.tally.enter(to_compute);
        let (answer, first) = first_of(&self.rank.dialect, self.ask(progress, hand)).await?;
        Ok(AnswerStart { answer, first, entry })
    }

    /// The request to the engine for the rest of a choice.
    pub(super) fn ask(&self, progress: &ChoiceProgress, hand: Hand) -> Ask {
        let Self { request, metadata, traced, .. } = self;
        let parts = RequestParts { request, metadata, traced };
        Ask {
            hand,
            kv_hint: self.kv_hint,
            ..ask(self.rank, parts, progress.choice, progress.taken.as_slice())
        }
    }

    /// Sends on what came of a choice.
    pub(super) fn deliver(&self, progress: &mut ChoiceProgress, delta: Delta) {
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
            translate::finish(finish, usage)
        });
        // The choices of a request run side by side: the last to finish ends the request.
        let ends = finish.is_some() && self.left.fetch_sub(1, Ordering::Relaxed) == 1;
        let pinned_tokens = self.pinned_tokens.swap(NOT_ASKED, Ordering::Relaxed);
        let output = worker::Output {
            pinned_tokens: Some(pinned_tokens).filter(|tokens| *tokens != NOT_ASKED),
            request_id: self.request_id,
            choice: progress.choice,
            token_ids: delta.tokens,
            logprobs: delta.logprobs.into_iter().map(translate::logprobs).collect(),
            prompt_logprobs: delta.prompt_logprobs.into_iter().map(translate::logprobs).collect(),
            cached_tokens: delta.cached_tokens,
            prefill_failed: std::mem::take(&mut progress.prefill_failed),
            transfer_us: std::mem::take(&mut progress.transfer_us),
            pooled: delta.pooled,
            finish,
        };
        match ends {
            true => self.outbox.push_last(output),
            false => self.outbox.push_one(output),
        }
    }
}

/// Progress of a choice.
#[derive(Default)]
pub(super) struct ChoiceProgress {
    pub(super) choice: u32,
    tokens: u32,
    cached_tokens: Option<u32>,
    /// Failure of the prefill, not yet reported; the next output carries it.
    pub(super) prefill_failed: bool,
    /// End of the prefill worker's computation, until a token came after its hand-over.
    pub(super) handed_over: Option<Instant>,
    /// Microseconds of the KV transfer, not yet reported; the next output carries them.
    pub(super) transfer_us: u32,
    /// Whether the metrics name the prefill worker as the one that computed the prompt.
    pub(super) prefilled: bool,
    /// The token of a prefill that the client has, and the engine goes on from.
    pub(super) taken: Option<u32>,
    /// The token of a prefill that the client has, and the engine's answer begins with.
    pub(super) repeated: Option<u32>,
    finished: bool,
}

impl ChoiceProgress {
    /// The first token that came of what was handed over says how long that took.
    pub(super) fn look_for_transfer(&mut self, delta: &Delta) {
        if let Some(since) = self.handed_over.take_if(|_| !delta.tokens.is_empty()) {
            let took = since.elapsed().as_micros();
            self.transfer_us = u32::try_from(took).unwrap_or(u32::MAX).max(1);
        }
    }

    /// Takes out of an answer what the client has of it.
    fn take_repeated(&mut self, delta: &mut Delta) -> Result<(), Fault> {
        let Some(expected) = self.repeated.filter(|_| !delta.tokens.is_empty()) else {
            return Ok(());
        };
        self.repeated = None;
        let token = delta.tokens.remove(0);
        if !delta.logprobs.is_empty() {
            delta.logprobs.remove(0);
        }
        if token == expected {
            return Ok(());
        }
        let why = format!("the answer begins with token {token}, prefill said {expected}");
        Err(Fault::Failed(why))
    }
}

/// An answer, and what comes first of it.
pub(super) async fn first_of(
    engine: &Arc<dyn Dialect>,
    ask: Ask,
) -> Result<(Box<dyn Answer>, Delta), Fault> {
    let mut answer = engine.generate(ask).await?;
    match answer.next().await? {
        Some(first) => Ok((answer, first)),
        None => Err(Fault::Failed("the engine's answer is empty".into())),
    }
}

/// The parts of a client's request that make up an engine's.
struct RequestParts<'a> {
    request: &'a Request,
    metadata: &'a RequestMetadata,
    traced: &'a TracedRequest,
}

/// The request to the engine for one choice. Tokens of an earlier attempt are part of its prompt,
/// and so are those `taken` from a prefill.
fn ask(
    rank: &Rank,
    RequestParts { request, metadata, traced }: RequestParts<'_>,
    choice: u32,
    taken: &[u32],
) -> Ask {
    let id: String = metadata
        .client_request_id
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        .take(CLIENT_ID_BYTES)
        .collect();
    Ask {
        id: format!("{id}-{:x}-{:x}.{choice}", *LIFE, request.key.0),
        tokens: match taken {
            [] => request.tokens.as_slice().into(),
            taken => [request.tokens.as_slice(), taken].concat().into(),
        },
        sampling: Arc::new(sampling(request, choice, taken.len())),
        cache_salt: request.cache_salt.clone(),
        lora: metadata.lora.clone(),
        priority: metadata.priority,
        rank: rank.rank,
        trace: traced.told(),
        kv_hint: None,
        hand: Hand::Whole,
    }
}

/// Sampling of one choice that already has `taken` tokens.
pub(super) fn sampling(request: &Request, choice: u32, taken: usize) -> Sampling {
    let resumed = (request.resumed + taken) as u32;
    Sampling {
        seed: request.sampling.seed.wrapping_add(choice.into()),
        max_tokens: request.sampling.max_tokens.saturating_sub(resumed).max(1),
        min_tokens: request.sampling.min_tokens.saturating_sub(resumed),
        ..Sampling::clone(&request.sampling)
    }
}

pub(super) fn failure(fault: Fault) -> Failure {
    let kind = match &fault {
        Fault::Invalid(_) | Fault::Unsupported(_) => ErrorKind::Invalid,
        // Others have room, or do all of a request.
        Fault::Overloaded(_) | Fault::Half(_) => ErrorKind::Overloaded,
        Fault::Aborted(_) | Fault::Unreachable(_) | Fault::Failed(_) => ErrorKind::Internal,
    };
    (kind, fault.to_string())
}
