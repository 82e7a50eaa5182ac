//! The decode side of a pair: another agent's engine computes the prompt, and its KV is fetched from
//! there. Whatever goes wrong on the way, the engine here computes what is missing itself.

mod prompt_fetch;

pub(crate) use prompt_fetch::FetchResult;

use super::handovers::Handovers;
use super::offer::KvOffer;
use super::prompt_reader::LandedBlocks;
use super::transfer_room::TransferRoom;
use crate::config::KvTrust;
use crate::metrics::{PairMetrics, PrefilledBy};
use crate::prefill::agents::{self, PrefillAgents};
use crate::request_plane::metadata::{PrefillWorker, RequestMetadata};
use crate::worker::guarded::GuardedEngine;
use prompt_fetch::{FetchedKv, PromptFetch};
use rustc_hash::FxHashMap;
use stator_engine::transfer::KvForm;
use stator_engine::{Output, Request, RequestKey, Reusable};
use stator_protos::worker;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

/// Requests whose prompts may be elsewhere at once; further ones are computed here.
const TRANSFERS_MAX: usize = 1024;
/// Batches of blocks that have come and wait for the engine. A fetch waits for room.
const LANDED_MAX: usize = 16;

/// Settings for sharing requests with engines of other agents.
#[derive(Clone, Debug)]
pub(crate) struct Pairing {
    /// Prompts that engines here compute for others; `None` where they compute none.
    pub(crate) handovers: Option<Arc<Handovers>>,
    /// PrefillAgents that compute prompts for the engine.
    pub(crate) prefill_agents: Arc<PrefillAgents>,
    /// Room for KV on its way; `None` where no KV can come.
    pub(crate) room: Option<TransferRoom>,
    /// The agents whose KV is believed.
    pub(crate) trust: KvTrust,
    /// Longest wait for a prompt and its KV.
    pub(crate) timeout: Duration,
    /// Longest silence of an agent that owes KV.
    pub(crate) silence: Duration,
    /// Counters of prefills.
    pub(crate) metrics: PairMetrics,
}

/// Requests whose prompts are computed elsewhere or on their way.
pub(crate) struct PromptFetches {
    pairing: Pairing,
    tasks: JoinSet<(RequestKey, FetchResult)>,
    landed: mpsc::Receiver<LandedBlocks>,
    /// The other end, for fetches.
    landed_sender: mpsc::Sender<LandedBlocks>,
    /// Blocks that have come, and were not looked at.
    next_landed: Option<LandedBlocks>,
    /// One that has ended, and was not looked at.
    ended: Option<(RequestKey, FetchResult)>,
    waiting: FxHashMap<RequestKey, WaitingRequest>,
    /// Whether a log says already that KV of other machines is not believed.
    is_distrust_told: bool,
}

struct WaitingRequest {
    request: Request,
    blocks: Range<usize>,
    /// Blocks that the engine has taken in.
    imported: usize,
    task: AbortHandle,
}

/// Outcome of a prompt, for the next output of its request.
#[derive(Debug, Default)]
pub(crate) struct PromptOutcome {
    failed: bool,
    /// Start of the KV transfer.
    since: Option<Instant>,
    /// Prompt tokens that the prefill worker had cached, for all outputs.
    cached_tokens: Option<u32>,
}

impl PromptOutcome {
    /// Corrects the cached tokens: fetched blocks count as cached only if the prefill worker had
    /// them cached.
    pub(crate) fn correct(&self, output: &mut Output) {
        let Some(cached) = self.cached_tokens else { return };
        output.cached_tokens = output.cached_tokens.map(|_| cached);
        if let Some(finish) = &mut output.finish {
            finish.cached_tokens = cached;
        }
    }

    /// Adds the outcome to one output.
    pub(crate) fn tell(&mut self, output: worker::Output) -> worker::Output {
        let us = |since: Instant| u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX);
        let transfer_us = self.since.take().map_or(0, |since| us(since).max(1));
        let prefill_failed = std::mem::take(&mut self.failed);
        worker::Output { prefill_failed, transfer_us, ..output }
    }
}

impl PromptFetches {
    pub(crate) fn new(pairing: Pairing) -> Self {
        let (landed_sender, landed) = mpsc::channel(LANDED_MAX);
        Self {
            pairing,
            tasks: JoinSet::new(),
            landed,
            landed_sender,
            next_landed: None,
            ended: None,
            waiting: FxHashMap::default(),
            is_distrust_told: false,
        }
    }

    /// Requests that wait for their prompts.
    pub(crate) fn count(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Waits until there is one to be looked at; for ever where there is none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn news(&mut self) {
        while self.ended.is_none() && self.next_landed.is_none() {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => self.ended = self.look(ended),
                landed = self.landed.recv() => self.next_landed = landed,
            }
        }
    }

    /// Says once what is amiss where KV of other machines is not believed.
    fn tell_distrust(&mut self, endpoint: &str) {
        if !std::mem::replace(&mut self.is_distrust_told, true) {
            let advice =
                "give all agents one --fleet-secret-file, or their request planes mutual TLS";
            tracing::warn!(endpoint, advice, "KV of agents on other machines is not believed");
        }
    }

    /// The next one that has ended.
    pub(crate) fn next(&mut self) -> Option<(RequestKey, FetchResult)> {
        if let Some(ended) = self.ended.take() {
            return Some(ended);
        }
        loop {
            let ended = self.tasks.try_join_next()?;
            if let Some(ended) = self.look(ended) {
                return Some(ended);
            }
        }
    }

    /// A request that is cancelled needs no prompt.
    pub(crate) fn cancel(&mut self, key: RequestKey) {
        if let Some(waiting) = self.waiting.remove(&key) {
            waiting.task.abort();
        }
    }

    /// One that was aborted is nobody's any more.
    fn look(
        &self,
        ended: Result<(RequestKey, FetchResult), JoinError>,
    ) -> Option<(RequestKey, FetchResult)> {
        match ended {
            Ok(ended) => Some(ended),
            Err(error) => {
                let mut waiting = self.waiting.iter();
                let (key, _) = waiting.find(|(_, waiting)| waiting.task.id() == error.id())?;
                let why = format!("the task that fetches it: {error}");
                Some((*key, Err((PrefilledBy::itself_prefill_failed, why))))
            }
        }
    }

    /// Has a prompt computed by a prefill worker, if its KV can be of use here; otherwise gives the
    /// request back, to be computed here.
    pub(crate) fn begin(
        &mut self,
        engine: &mut GuardedEngine,
        mut request: Request,
        metadata: &RequestMetadata,
        peer: PrefillWorker,
    ) -> Option<Request> {
        let known = engine.call(|engine| {
            let kv = engine.kv();
            (kv.form(), kv.reusable(&mut request))
        });
        let Some((form, reusable)) = known else { return Some(request) };
        let (room, offer) = match self.check(form, &reusable, &peer) {
            Ok(offered) => offered,
            Err((by, why)) => {
                tracing::debug!(prefill = %peer.worker, why, "the prompt is computed here");
                self.pairing.metrics.prefills.count(by);
                return Some(request);
            }
        };
        // Only the blocks behind those that are here already are asked for.
        let (key, blocks) = (request.key, reusable.held..reusable.names.len());
        let Pairing { prefill_agents, trust, timeout, silence, metrics, .. } = self.pairing.clone();
        let fetch = PromptFetch {
            prefill_agents,
            prompt: agents::prompt(&peer, &request, metadata, agents::any_token()),
            peer,
            transfer: offer.transfer,
            key,
            first: blocks.start,
            names: reusable.names[blocks.clone()].to_vec(),
            room,
            landed: self.landed_sender.clone(),
            trust,
            timeout,
            silence,
            metrics,
        };
        let task = self.tasks.spawn(async move { (key, fetch.run().await) });
        self.waiting.insert(key, WaitingRequest { request, blocks, imported: 0, task });
        None
    }

    /// The room for a prompt's KV and where it is handed over, or the reason for which the prompt is
    /// computed here. Cheapest reason first: nothing is asked of a prefill worker whose KV could not be
    /// used here.
    fn check(
        &mut self,
        form: KvForm,
        reusable: &Reusable,
        peer: &PrefillWorker,
    ) -> Result<(TransferRoom, KvOffer), (PrefilledBy, &'static str)> {
        if reusable.held == reusable.names.len() {
            return Err((PrefilledBy::itself_nothing_to_move, "there is nothing to move"));
        }
        let offer = serde_json::from_str::<KvOffer>(peer.handover.get()).ok();
        let offer = offer.filter(|offer| offer.form == form.fingerprint);
        let offer = offer.ok_or((PrefilledBy::itself_unlike, "the KV there is of another form"))?;
        if !self.pairing.trust.covers(&peer.endpoint) {
            self.tell_distrust(&peer.endpoint);
            let why = "nothing vouches for KV of other machines";
            return Err((PrefilledBy::itself_untrusted, why));
        }
        if self.waiting.len() >= TRANSFERS_MAX {
            return Err((PrefilledBy::itself_prefill_failed, "too many are on their way"));
        }
        let room = self.pairing.room.clone();
        let room = room.ok_or((PrefilledBy::itself_prefill_failed, "no KV can come here"))?;
        Ok((room, offer))
    }

    /// Imports blocks that have come.
    pub(crate) fn import(&mut self, engine: &mut GuardedEngine) {
        while let Some(mut landed) = self.next_landed.take().or_else(|| self.landed.try_recv().ok())
        {
            // A request that was cancelled needs none, and behind a gap they are of no use.
            let waiting = self.waiting.get_mut(&landed.key);
            let next = |waiting: &WaitingRequest| waiting.blocks.start + waiting.imported;
            let Some(waiting) = waiting.filter(|waiting| next(waiting) == landed.first) else {
                continue;
            };
            let imported = engine
                .call(|engine| engine.kv().import(&waiting.request, landed.first, &mut landed));
            waiting.imported += imported.unwrap_or(0);
        }
    }

    /// Returns the request of a prompt whose fetch has ended. It runs in any case: the engine computes
    /// the blocks that are missing. `None` where the request was cancelled.
    pub(crate) fn finish(
        &mut self,
        key: RequestKey,
        result: FetchResult,
    ) -> Option<(Request, PromptOutcome)> {
        let WaitingRequest { request, blocks, imported, .. } = self.waiting.remove(&key)?;
        let mut outcome = PromptOutcome::default();
        let missing = match result {
            Ok(FetchedKv { cached_tokens, computed }) => {
                (outcome.since, outcome.cached_tokens) = (Some(computed), Some(cached_tokens));
                let why = || format!("{imported} of {} blocks are usable", blocks.len());
                (imported < blocks.len()).then(|| (PrefilledBy::itself_prefill_failed, why()))
            }
            Err(why) => Some(why),
        };
        let metrics = &self.pairing.metrics;
        metrics.blocks_fetched.inc_by(imported as u64);
        metrics.blocks_missed.inc_by((blocks.len() - imported) as u64);
        if let Some((by, why)) = missing {
            tracing::warn!(why, "the prompt did not come");
            metrics.prefills.count(by);
            // A part of a prompt saves work, and yet the pair has failed: the proxy should hear so.
            outcome = PromptOutcome { failed: true, ..PromptOutcome::default() };
        } else {
            metrics.prefills.count(PrefilledBy::prefill_worker);
        }
        Some((request, outcome))
    }
}
