//! The prefill side of a pair: prompts that are computed for another agent's engine, and kept until
//! it has fetched their KV.

use super::{Driver, Export, Prefill, Prefilled, RESTS, Take, TakenPrompt};
use crate::metrics::Outcome;
use crate::request_plane::in_flight::Ticket;
use crate::request_plane::metadata::Extras;
use crate::request_plane::trace;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
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

/// A decode worker's order for a prompt. The decode worker chooses the handle, so that it can give
/// the prompt up whether or not it heard of its end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) handle: u64,
}

/// Answer to a decode worker about a kept prompt.
#[derive(Debug, Serialize)]
struct Offer {
    blocks: usize,
}

/// Prompts that are being computed, by their names, and prompts that are kept, by their handles.
#[derive(Debug)]
pub(super) struct Handing {
    hands_over: bool,
    computed: FxHashMap<RequestKey, Computed>,
    kept: FxHashMap<u64, HeldPrompt>,
}

#[derive(Debug)]
struct Computed {
    handle: u64,
    answer: oneshot::Sender<Result<Prefilled, (ErrorKind, String)>>,
    ticket: Ticket,
    /// Spans of the prompt, which end with it.
    _trace: Stages,
}

#[derive(Debug)]
struct HeldPrompt {
    key: RequestKey,
    taken: bool,
    until: Instant,
    /// A drain waits for who fetches it.
    _ticket: Ticket,
}

impl Handing {
    pub(super) fn new(hands_over: bool) -> Self {
        Self { hands_over, computed: FxHashMap::default(), kept: FxHashMap::default() }
    }

    /// Waits until a prompt is kept no longer; for ever where none is.
    pub(super) async fn lease_ends(&self) {
        match self.kept.values().map(|kept| kept.until).min() {
            Some(end) => tokio::time::sleep_until(end).await,
            None => std::future::pending().await,
        }
    }

    /// Prompts whose lease has ended.
    pub(super) fn expired(&self, now: Instant) -> Vec<RequestKey> {
        let expired = self.kept.values().filter(|kept| kept.until <= now);
        expired.map(|kept| kept.key).collect()
    }

    fn has(&self, handle: u64) -> bool {
        let computed = self.computed.values().any(|computed| computed.handle == handle);
        computed || self.kept.contains_key(&handle)
    }
}

impl Driver {
    /// Begins to compute a prompt.
    pub(super) fn prefill(&mut self, order: Prefill) {
        let Prefill { request, extras, handover, answer, ticket } = order;
        let key = request.key;
        let trace = trace::request("worker.prefill", &request, &extras);
        match self.begin_prompt(request, &extras, handover.as_deref()) {
            Ok(handle) => {
                self.handing
                    .computed
                    .insert(key, Computed { handle, answer, ticket, _trace: trace });
            }
            Err(refused) => {
                self.metrics.ended(refused.0.into());
                // Who asked may be gone.
                let _ = answer.send(Err(refused));
            }
        }
    }

    fn begin_prompt(
        &mut self,
        request: Request,
        extras: &Extras,
        handover: Option<&RawValue>,
    ) -> Result<u64, (ErrorKind, String)> {
        let invalid = |why: &str| (ErrorKind::Invalid, why.to_owned());
        if !self.handing.hands_over {
            return Err(invalid("the engine here hands no KV over"));
        }
        if self.rest != Rest::Awake {
            return Err((ErrorKind::Overloaded, RESTS.into()));
        }
        if request.choices != 1 || extras.lora.is_some() {
            return Err(invalid("a prompt is computed for one choice and without an adapter"));
        }
        let order = handover.and_then(|json| serde_json::from_str(json.get()).ok());
        let Order { handle } = order.ok_or_else(|| invalid("handover_json: it has no handle"))?;
        if self.handing.has(handle) {
            return Err(invalid("handover_json: the handle is in use"));
        }
        let key = request.key;
        // Kept before its first step: a prompt that ended meanwhile would free its blocks.
        let submitted = self.guarded(|engine| {
            engine.submit(request)?;
            engine.kv().keep(key);
            Ok(())
        });
        let failed = || (ErrorKind::Internal, "the engine has failed".into());
        submitted.ok_or_else(failed)?.map_err(super::refused)?;
        Ok(handle)
    }

    /// Tells who asked for a prompt that it is computed, where this ends it.
    pub(super) fn prompt_done(&mut self, output: &Output) {
        let Some(finish) = &output.finish else { return };
        let Some(Computed { handle, answer, ticket, .. }) =
            self.handing.computed.remove(&output.key)
        else {
            return;
        };
        self.metrics.prompt_tokens.inc_by(finish.prompt_tokens.into());
        self.metrics.cached_tokens.inc_by(finish.cached_tokens.into());
        let key = output.key;
        let blocks = self.guarded(|engine| engine.kv().kept(key)).unwrap_or(0);
        let room = blocks > 0 && self.handing.kept.len() < KEPT_MAX;
        let handover = to_raw_value(&Offer { blocks }).ok().filter(|_| room);
        let cached_tokens = finish.cached_tokens;
        let answered = answer.send(Ok(Prefilled { handover, cached_tokens, first: None }));
        self.metrics.ended(if answered.is_ok() { Outcome::completed } else { Outcome::cancelled });
        if room && answered.is_ok() {
            let until = Instant::now() + LEASE;
            self.handing
                .kept
                .insert(handle, HeldPrompt { key, taken: false, until, _ticket: ticket });
        } else {
            self.guarded(|engine| engine.cancel(key));
        }
    }

    /// Gives a prompt to the first who knows its handle.
    pub(super) fn take(&mut self, Take { handle, answer }: Take) {
        let form = self.guarded(|engine| engine.kv().form());
        let kept = self.handing.kept.get_mut(&handle).filter(|kept| !kept.taken);
        let taken = kept.zip(form).map(|(kept, form)| {
            kept.taken = true;
            TakenPrompt { key: kept.key, form }
        });
        if let (Err(_), Some(taken)) = (answer.send(taken), taken) {
            self.cancel(&[taken.key]);
        }
    }

    /// Copies the next blocks of a prompt out.
    pub(super) fn export(&mut self, Export { key, blocks, answer }: Export) {
        let batch = self.guarded(|engine| {
            let kv = engine.kv();
            let most = (BATCH_BYTES / kv.form().block_bytes.max(1)).max(1);
            blocks.take(most).map_while(|block| kv.export(key, block)).collect()
        });
        // Who asked may be gone; then the prompt is given up with it.
        let _ = answer.send(batch.unwrap_or_default());
    }

    /// Forgets a prompt; the engine hears of it elsewhere.
    pub(super) fn give_up(&mut self, key: RequestKey) {
        if self.handing.computed.remove(&key).is_some() {
            self.metrics.ended(Outcome::cancelled);
        }
        self.handing.kept.retain(|_, kept| kept.key != key);
    }

    /// Forgets all prompts of an engine that has failed.
    pub(super) fn give_up_all(&mut self, why: &str) {
        self.handing.kept.clear();
        for (_, Computed { answer, .. }) in self.handing.computed.drain() {
            self.metrics.ended(Outcome::internal);
            let _ =
                answer.send(Err((ErrorKind::Internal, format!("the engine has failed: {why}"))));
        }
    }
}
