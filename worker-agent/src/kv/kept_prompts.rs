//! The prefill side of a pair: prompts that are computed for another agent's engine, pushed to that
//! agent chunk by chunk, and kept until it has read their KV.

use super::handovers::{BlockExport, Handovers, KeptOrder, LentPrompt, OpenHandover};
use super::offer::{KeepOrder, KeptBlocks};
use super::pushed::{ExportedBlock, PushedBlocks};
use super::transfer_room::TransferRoom;
use crate::metrics::{AgentMetrics, Outcome};
use crate::request_plane::in_flight::Ticket;
use crate::request_plane::metadata::RequestMetadata;
use crate::request_plane::{trace, translate};
use crate::worker::guarded::GuardedEngine;
use crate::worker::{PrefillOrder, PrefillResult};
use rustc_hash::FxHashMap;
use serde_json::value::{RawValue, to_raw_value};
use stator_engine::{Output, Request, RequestKey, Rest, SharedKv};
use stator_kv::staging::StagedSlot;
use stator_protos::name::BlockName;
use stator_protos::worker::ErrorKind;
use stator_runtime::trace::Stages;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// Prompts that are kept at most; what a further one computed is given up.
const KEPT_MAX: usize = 256;
/// Longest time that a prompt is kept for a decode worker, however long that would wait for it.
const LEASE: Duration = Duration::from_secs(60);
/// Orders of readers that may wait. A reader waits for room.
const ORDERS_MAX: usize = 1024;
/// Orders of readers that are served between two steps at most.
const ORDERS_PER_STEP: usize = 8;

/// Prompts that are being computed and prompts that are kept, by their names.
#[derive(Debug)]
pub(crate) struct KeptPrompts {
    /// The agent's prompts for others; `None` where the engine computes none for others.
    handovers: Option<Arc<Handovers>>,
    running: FxHashMap<RequestKey, RunningPrompt>,
    kept: FxHashMap<RequestKey, KeptPrompt>,
    orders: mpsc::Receiver<KeptOrder>,
    /// The other end, for readers.
    orders_sender: mpsc::Sender<KeptOrder>,
    /// An order that has come, and was not looked at.
    next: Option<KeptOrder>,
    metrics: AgentMetrics,
}

/// A prompt that is being computed.
#[derive(Debug)]
struct RunningPrompt {
    lent: LentPrompt,
    /// Lets the decode worker read it.
    open: OpenHandover,
    /// Tells the decode worker how many blocks it can read; `None` where it reads none before the end.
    ready: Option<watch::Sender<usize>>,
    /// The time at which its decode worker wants it no more, if it said so.
    wanted_until: Option<Instant>,
    answer: oneshot::Sender<Result<PrefillResult, (ErrorKind, String)>>,
    in_flight: Ticket,
    /// Spans of the prompt, which end with it.
    _trace: Stages,
}

/// A prompt whose blocks wait for their decode worker.
#[derive(Debug)]
struct KeptPrompt {
    until: Instant,
    /// Lets the decode worker read it.
    _open: OpenHandover,
    /// A drain waits for who reads it.
    _in_flight: Ticket,
}

impl KeptPrompts {
    /// Keeps prompts among those of the agent; without, every order for one is refused.
    pub(crate) fn new(handovers: Option<Arc<Handovers>>, metrics: AgentMetrics) -> Self {
        let (running, kept) = Default::default();
        let (orders_sender, orders) = mpsc::channel(ORDERS_MAX);
        Self { handovers, running, kept, orders, orders_sender, next: None, metrics }
    }

    /// Waits until a reader has an order or nobody wants a prompt any more; for ever where neither
    /// happens.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn news(&mut self) {
        if self.next.is_some() {
            return;
        }
        let end = self.ends().map(|(_, end)| end).min();
        let lease_ends = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = self.orders.recv() => self.next = order,
            () = lease_ends => {}
        }
    }

    /// Pushes what was computed and serves orders of readers; returns the prompts that are not needed
    /// any more. Room bounds the one and a number the other, so that readers do not hold up running
    /// requests.
    pub(crate) fn serve(&mut self, engine: &mut GuardedEngine) -> Vec<RequestKey> {
        if let Some(handovers) = &self.handovers {
            self.running.values().for_each(|prompt| prompt.push(engine, &handovers.room));
        }
        let mut gone = Vec::new();
        for _ in 0..ORDERS_PER_STEP {
            match self.next.take().or_else(|| self.orders.try_recv().ok()) {
                Some(KeptOrder::Export(order)) => export(engine, order),
                Some(KeptOrder::GiveUp(key)) => gone.push(key),
                None => break,
            }
        }
        gone
    }

    /// Prompts that nobody wants any more.
    pub(crate) fn expired(&self, now: Instant) -> Vec<RequestKey> {
        self.ends().filter(|(_, end)| *end <= now).map(|(key, _)| key).collect()
    }

    /// Prompts, and the times after which nobody wants them.
    fn ends(&self) -> impl Iterator<Item = (RequestKey, Instant)> {
        let running = self.running.iter().filter_map(|(key, it)| Some((*key, it.wanted_until?)));
        running.chain(self.kept.iter().map(|(key, it)| (*key, it.until)))
    }

    /// Begins to compute a prompt.
    pub(crate) fn begin(&mut self, engine: &mut GuardedEngine, rest: Rest, order: PrefillOrder) {
        let PrefillOrder { request, metadata, handover, ready, answer, ticket: in_flight } = order;
        let key = request.key;
        let trace = trace::request("worker.prefill", &request, &metadata);
        let begun = match self.check(rest, &request, &metadata, handover.as_deref()) {
            Ok((order, handovers)) => {
                submit(engine, request).map(|names| (order, handovers.clone(), names))
            }
            Err(refusal) => Err(refusal),
        };
        match begun {
            Ok((KeepOrder { ticket, within_ms, push_from }, handovers, names)) => {
                let within = within_ms.map(Duration::from_millis);
                let wanted_until = within.and_then(|within| Instant::now().checked_add(within));
                let pushed = PushedBlocks::new(push_from.unwrap_or(0));
                let lent = LentPrompt { key, names, pushed, orders: self.orders_sender.clone() };
                let open = handovers.open(&ticket, lent.clone());
                let ready = push_from.map(|_| ready);
                let prompt = RunningPrompt {
                    lent,
                    open,
                    ready,
                    wanted_until,
                    answer,
                    in_flight,
                    _trace: trace,
                };
                self.running.insert(key, prompt);
            }
            Err(refusal) => {
                self.metrics.ended(refusal.0.into());
                // Who asked may be gone.
                let _ = answer.send(Err(refusal));
            }
        }
    }

    /// Checks an order, and returns it with the place where the prompt is to be read.
    fn check(
        &self,
        rest: Rest,
        request: &Request,
        metadata: &RequestMetadata,
        handover: Option<&RawValue>,
    ) -> Result<(KeepOrder, &Arc<Handovers>), (ErrorKind, String)> {
        let invalid = |why: &str| (ErrorKind::Invalid, why.to_owned());
        let Some(handovers) = &self.handovers else {
            return Err(invalid("the engine here hands no KV over"));
        };
        if rest != Rest::Awake {
            return Err((ErrorKind::Overloaded, translate::RESTING.into()));
        }
        if request.choices != 1 || metadata.lora.is_some() {
            return Err(invalid("a prompt is computed for one choice and without an adapter"));
        }
        let order = handover.and_then(|json| serde_json::from_str(json.get()).ok());
        let order: KeepOrder = order.ok_or_else(|| invalid("handover_json: it has no ticket"))?;
        // A ticket is for one prompt.
        if handovers.has(order.ticket.handle) {
            return Err(invalid("handover_json: the ticket is in use"));
        }
        Ok((order, handovers))
    }

    /// Answers the order for a prompt with the output that ends it, and keeps the prompt's blocks.
    pub(crate) fn finish(&mut self, engine: &mut GuardedEngine, output: &Output) {
        let Some(finish) = &output.finish else { return };
        let key = output.key;
        let (Some(prompt), Some(handovers)) = (self.running.remove(&key), &self.handovers) else {
            return;
        };
        // The last chunk, too: the reader's question finds the engine in the middle of its next step.
        prompt.push(engine, &handovers.room);
        let RunningPrompt { open, wanted_until, answer, in_flight, .. } = prompt;
        self.metrics.prompt_tokens.inc_by(finish.prompt_tokens.into());
        self.metrics.cached_tokens.inc_by(finish.cached_tokens.into());
        let blocks = engine.call(|engine| engine.kv().kept(key)).unwrap_or(0);
        let room = blocks > 0 && self.kept.len() < KEPT_MAX;
        let handover = to_raw_value(&KeptBlocks { blocks }).ok().filter(|_| room);
        let cached_tokens = finish.cached_tokens;
        let answered = answer.send(Ok(PrefillResult { handover, cached_tokens, first: None }));
        self.metrics.ended(if answered.is_ok() { Outcome::completed } else { Outcome::cancelled });
        // Without a decode worker that knows of them, the blocks would lie here for a whole lease.
        match room && answered.is_ok() {
            true => {
                let until = Instant::now() + LEASE;
                let until = wanted_until.map_or(until, |wanted| wanted.min(until));
                let kept = KeptPrompt { until, _open: open, _in_flight: in_flight };
                self.kept.insert(key, kept);
            }
            false => drop(engine.call(|engine| engine.cancel(key))),
        }
    }

    /// Forgets a prompt; the engine hears of it elsewhere.
    pub(crate) fn give_up(&mut self, key: RequestKey) {
        if self.running.remove(&key).is_some() {
            self.metrics.ended(Outcome::cancelled);
        }
        self.kept.remove(&key);
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

impl RunningPrompt {
    /// Copies blocks that have become whole out for a decode worker that reads them already, as far as
    /// there is room.
    fn push(&self, engine: &mut GuardedEngine, room: &TransferRoom) {
        let Some(ready) = &self.ready else { return };
        let LentPrompt { key, names, pushed, .. } = &self.lent;
        let next = pushed.next();
        let copied = engine.call(|engine| {
            let kv = engine.kv();
            let whole = kv.kept(*key).min(names.len());
            let names = names.get(next..whole).filter(|names| !names.is_empty())?;
            let slots = room.spare(names.len());
            Some(copy_out(kv, *key, (next..).zip(names), slots))
        });
        if let Some(blocks) = copied.flatten().filter(|blocks| !blocks.is_empty()) {
            pushed.push(blocks);
            ready.send_replace(pushed.next());
        }
    }
}

/// Submits a prompt whose blocks stay held after its end; returns their names.
fn submit(
    engine: &mut GuardedEngine,
    mut request: Request,
) -> Result<Arc<[BlockName]>, (ErrorKind, String)> {
    let key = request.key;
    // Kept before its first step: a prompt that ended meanwhile would free its blocks.
    let submitted = engine.call(|engine| {
        let names = engine.kv().reusable(&mut request).names;
        engine.submit(request)?;
        engine.kv().keep(key);
        Ok(names.into())
    });
    let failed = || (ErrorKind::Internal, "the engine has failed".into());
    submitted.ok_or_else(failed)?.map_err(translate::refusal)
}

/// Copies leading ones of some blocks of a prompt out, as many as there is room for.
fn export(engine: &mut GuardedEngine, order: BlockExport) {
    let BlockExport { key, first, names, slots, answer } = order;
    // The reader may have given up while the engine computed.
    if answer.is_closed() {
        return;
    }
    let exported = engine.call(|engine| copy_out(engine.kv(), key, (first..).zip(&names), slots));
    // Who asked may be gone; then the slots are free again.
    let _ = answer.send(exported.unwrap_or_default());
}

/// Copies leading ones of blocks of a prompt, by their places, into slots.
fn copy_out<'a>(
    kv: &dyn SharedKv,
    key: RequestKey,
    blocks: impl Iterator<Item = (usize, &'a BlockName)>,
    slots: Vec<StagedSlot>,
) -> Vec<ExportedBlock> {
    let copied = blocks.zip(slots).map_while(|((place, name), slot)| {
        let kv = kv.export(key, place)?;
        // Simulated engines have no KV, and a block on its way has a byte at least.
        let checksum = slot.write(*name, if kv.is_empty() { &[0] } else { kv });
        Some(ExportedBlock { slot, checksum })
    });
    copied.collect()
}
