//! The prefill side of a pair: prompts that are computed for another agent's engine, and kept until
//! that agent has fetched their KV.

use super::offer::{KeepOrder, KeptBlocks};
use crate::metrics::{AgentMetrics, Outcome};
use crate::request_plane::in_flight::Ticket;
use crate::request_plane::metadata::RequestMetadata;
use crate::request_plane::{trace, translate};
use crate::worker::guarded::GuardedEngine;
use crate::worker::{BlockExport, ExportedPrompt, PrefillOrder, PrefillResult, PromptTake};
use rustc_hash::FxHashMap;
use serde_json::value::{RawValue, to_raw_value};
use stator_engine::{Output, Request, RequestKey, Rest};
use stator_protos::worker::ErrorKind;
use stator_runtime::trace::Stages;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Prompts that are kept at most; what a further one computed is given up.
const KEPT_MAX: usize = 256;
/// Time that a prompt is kept for a decode worker, whose own deadline is shorter.
const LEASE: Duration = Duration::from_secs(60);
/// KV that is copied out between two steps at most, in bytes; one block at least.
const BATCH_BYTES: usize = 4 << 20;

/// Prompts that are being computed, by their names, and prompts that are kept, by their handles.
#[derive(Debug)]
pub(crate) struct KeptPrompts {
    /// Whether the engine computes prompts for others.
    hands_over: bool,
    running: FxHashMap<RequestKey, RunningPrompt>,
    kept: FxHashMap<u64, KeptPrompt>,
    metrics: AgentMetrics,
}

/// A prompt that is being computed.
#[derive(Debug)]
struct RunningPrompt {
    handle: u64,
    answer: oneshot::Sender<Result<PrefillResult, (ErrorKind, String)>>,
    ticket: Ticket,
    /// Spans of the prompt, which end with it.
    _trace: Stages,
}

/// A prompt whose blocks wait for their decode worker.
#[derive(Debug)]
struct KeptPrompt {
    key: RequestKey,
    taken: bool,
    until: Instant,
    /// A drain waits for who fetches it.
    _ticket: Ticket,
}

impl KeptPrompts {
    /// Keeps prompts where `hands_over`; otherwise every order for one is refused.
    pub(crate) fn new(hands_over: bool, metrics: AgentMetrics) -> Self {
        Self { hands_over, running: FxHashMap::default(), kept: FxHashMap::default(), metrics }
    }

    /// Waits until the lease of a kept prompt ends; for ever where none is kept.
    pub(crate) async fn lease_ends(&self) {
        match self.kept.values().map(|kept| kept.until).min() {
            Some(end) => tokio::time::sleep_until(end).await,
            None => std::future::pending().await,
        }
    }

    /// Prompts whose lease has ended.
    pub(crate) fn expired(&self, now: Instant) -> Vec<RequestKey> {
        let expired = self.kept.values().filter(|kept| kept.until <= now);
        expired.map(|kept| kept.key).collect()
    }

    fn has(&self, handle: u64) -> bool {
        let running = self.running.values().any(|prompt| prompt.handle == handle);
        running || self.kept.contains_key(&handle)
    }

    /// Begins to compute a prompt.
    pub(crate) fn begin(&mut self, engine: &mut GuardedEngine, rest: Rest, order: PrefillOrder) {
        let PrefillOrder { request, metadata, handover, answer, ticket } = order;
        let key = request.key;
        let trace = trace::request("worker.prefill", &request, &metadata);
        let begun = match self.check(rest, &request, &metadata, handover.as_deref()) {
            Ok(handle) => submit(engine, request).map(|()| handle),
            Err(refusal) => Err(refusal),
        };
        match begun {
            Ok(handle) => {
                self.running.insert(key, RunningPrompt { handle, answer, ticket, _trace: trace });
            }
            Err(refusal) => {
                self.metrics.ended(refusal.0.into());
                // Who asked may be gone.
                let _ = answer.send(Err(refusal));
            }
        }
    }

    /// Checks an order, and returns the handle under which the prompt is to be kept.
    fn check(
        &self,
        rest: Rest,
        request: &Request,
        metadata: &RequestMetadata,
        handover: Option<&RawValue>,
    ) -> Result<u64, (ErrorKind, String)> {
        let invalid = |why: &str| (ErrorKind::Invalid, why.to_owned());
        if !self.hands_over {
            return Err(invalid("the engine here hands no KV over"));
        }
        if rest != Rest::Awake {
            return Err((ErrorKind::Overloaded, translate::RESTING.into()));
        }
        if request.choices != 1 || metadata.lora.is_some() {
            return Err(invalid("a prompt is computed for one choice and without an adapter"));
        }
        let order = handover.and_then(|json| serde_json::from_str(json.get()).ok());
        let KeepOrder { handle } =
            order.ok_or_else(|| invalid("handover_json: it has no handle"))?;
        // Whoever fetches it names the handle alone, so no two prompts share one.
        if self.has(handle) {
            return Err(invalid("handover_json: the handle is in use"));
        }
        Ok(handle)
    }

    /// Answers the order for a prompt with the output that ends it, and keeps the prompt's blocks.
    pub(crate) fn finish(&mut self, engine: &mut GuardedEngine, output: &Output) {
        let Some(finish) = &output.finish else { return };
        let Some(RunningPrompt { handle, answer, ticket, .. }) = self.running.remove(&output.key)
        else {
            return;
        };
        self.metrics.prompt_tokens.inc_by(finish.prompt_tokens.into());
        self.metrics.cached_tokens.inc_by(finish.cached_tokens.into());
        let key = output.key;
        let blocks = engine.call(|engine| engine.kv().kept(key)).unwrap_or(0);
        let room = blocks > 0 && self.kept.len() < KEPT_MAX;
        let handover = to_raw_value(&KeptBlocks { blocks }).ok().filter(|_| room);
        let cached_tokens = finish.cached_tokens;
        let answered = answer.send(Ok(PrefillResult { handover, cached_tokens, first: None }));
        self.metrics.ended(if answered.is_ok() { Outcome::completed } else { Outcome::cancelled });
        // Without a decode worker that knows of them, the blocks would lie here for a whole lease.
        if room && answered.is_ok() {
            let until = Instant::now() + LEASE;
            self.kept.insert(handle, KeptPrompt { key, taken: false, until, _ticket: ticket });
        } else {
            engine.call(|engine| engine.cancel(key));
        }
    }

    /// Gives a prompt to the first who knows its handle.
    pub(crate) fn take(&mut self, engine: &mut GuardedEngine, order: PromptTake) {
        let form = engine.call(|engine| engine.kv().form());
        let kept = self.kept.get_mut(&order.handle).filter(|kept| !kept.taken);
        let prompt = kept.zip(form).map(|(kept, form)| {
            kept.taken = true;
            ExportedPrompt { key: kept.key, form }
        });
        if let (Err(_), Some(prompt)) = (order.answer.send(prompt), prompt) {
            self.give_up(prompt.key);
            engine.call(|engine| engine.cancel(prompt.key));
        }
    }

    /// Forgets a prompt; the engine hears of it elsewhere.
    pub(crate) fn give_up(&mut self, key: RequestKey) {
        if self.running.remove(&key).is_some() {
            self.metrics.ended(Outcome::cancelled);
        }
        self.kept.retain(|_, kept| kept.key != key);
    }

    /// Forgets all prompts of an engine that has failed.
    pub(crate) fn give_up_all(&mut self, why: &str) {
        self.kept.clear();
        for (_, RunningPrompt { answer, .. }) in self.running.drain() {
            self.metrics.ended(Outcome::internal);
            let _ =
                answer.send(Err((ErrorKind::Internal, format!("the engine has failed: {why}"))));
        }
    }
}

/// Submits a prompt whose blocks stay held after its end.
fn submit(engine: &mut GuardedEngine, request: Request) -> Result<(), (ErrorKind, String)> {
    let key = request.key;
    // Kept before its first step: a prompt that ended meanwhile would free its blocks.
    let submitted = engine.call(|engine| {
        engine.submit(request)?;
        engine.kv().keep(key);
        Ok(())
    });
    let failed = || (ErrorKind::Internal, "the engine has failed".into());
    submitted.ok_or_else(failed)?.map_err(translate::refusal)
}

/// Copies the next blocks of a prompt out.
pub(crate) fn export(engine: &mut GuardedEngine, order: BlockExport) {
    let BlockExport { key, blocks, answer } = order;
    let batch = engine.call(|engine| {
        let kv = engine.kv();
        let most = (BATCH_BYTES / kv.form().block_bytes.max(1)).max(1);
        blocks.take(most).map_while(|block| kv.export(key, block)).collect()
    });
    // Who asked may be gone; then the prompt is given up with it.
    let _ = answer.send(batch.unwrap_or_default());
}
