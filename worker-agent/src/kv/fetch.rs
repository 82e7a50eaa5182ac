//! The decode side of a pair: another agent's engine computes the prompt, and its KV is fetched from
//! there. Whatever goes wrong on the way, the engine here computes what is missing itself.

use super::offer::{KeepOrder, KvOffer};
use crate::config::KvTrust;
use crate::metrics::{PairMetrics, PrefilledBy};
use crate::prefill::agents::{self, AdmittedWorker, PrefillAgents, PrefillMiss};
use crate::request_plane::metadata::{PrefillWorker, RequestMetadata};
use crate::worker::guarded::GuardedEngine;
use rustc_hash::FxHashMap;
use serde_json::value::to_raw_value;
use stator_engine::transfer::{Assembly, BlockKv, KvForm, Seal};
use stator_engine::{Output, Request, RequestKey, Reusable};
use stator_protos::name::BlockName;
use stator_protos::worker::{self, Submit};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

/// Requests whose prompts may be elsewhere at once; further ones are computed here.
const TRANSFERS_MAX: usize = 1024;
/// KV that may be on its way to one engine at once, in MiB; a larger prompt comes alone.
const FETCHING_MIB: u32 = 256;
/// Longest wait for a peer that is asked to give up a prompt.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings for sharing requests with engines of other agents.
#[derive(Clone, Debug)]
pub(crate) struct Pairing {
    /// Whether the engine computes prompts for others.
    pub(crate) hands_over: bool,
    /// PrefillAgents that compute prompts for the engine.
    pub(crate) prefill_agents: Arc<PrefillAgents>,
    /// The agents whose KV is believed.
    pub(crate) trust: KvTrust,
    /// Longest wait for a prompt and its KV.
    pub(crate) timeout: Duration,
    /// Counters of prefills.
    pub(crate) metrics: PairMetrics,
}

/// Outcome of a prompt at a peer.
pub(crate) type FetchResult = Result<FetchedKv, PrefillMiss>;

/// Requests whose prompts are computed elsewhere or on their way.
pub(crate) struct PromptFetches {
    pairing: Pairing,
    fetching: Arc<Semaphore>,
    tasks: JoinSet<(RequestKey, FetchResult)>,
    /// One that has ended, and was not looked at.
    ended: Option<(RequestKey, FetchResult)>,
    waiting: FxHashMap<RequestKey, WaitingRequest>,
    /// Whether a log says already that KV of other machines is not believed.
    is_distrust_told: bool,
}

struct WaitingRequest {
    request: Request,
    blocks: Range<usize>,
    task: AbortHandle,
}

/// KV of a prompt.
pub(crate) struct FetchedKv {
    blocks: Vec<BlockKv>,
    /// Prompt tokens whose KV the prefill worker had already.
    cached_tokens: u32,
    /// End of the prompt's computation.
    computed: Instant,
    _room: OwnedSemaphorePermit,
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
        Self {
            pairing,
            fetching: Arc::new(Semaphore::new(FETCHING_MIB as usize)),
            tasks: JoinSet::new(),
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
        while self.ended.is_none() {
            match self.tasks.join_next().await {
                Some(ended) => self.ended = self.look(ended),
                None => std::future::pending().await,
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
        if let Some((by, why)) = self.reason_to_stay(form, &reusable, &peer) {
            tracing::debug!(prefill = %peer.worker, why, "the prompt is computed here");
            self.pairing.metrics.prefills.count(by);
            return Some(request);
        }
        // Only the blocks behind those that are here already are asked for.
        let (key, blocks) = (request.key, reusable.held..reusable.names.len());
        let fetch = PromptFetch {
            prefill_agents: self.pairing.prefill_agents.clone(),
            prompt: agents::prompt(&peer, &request, metadata, agents::any_token()),
            peer,
            form,
            blocks: blocks.clone(),
            names: reusable.names[blocks.clone()].to_vec(),
            fetching: self.fetching.clone(),
            trust: self.pairing.trust.clone(),
            metrics: self.pairing.metrics.clone(),
        };
        let timeout = self.pairing.timeout;
        let task = self.tasks.spawn(async move { (key, fetch.within(timeout).await) });
        self.waiting.insert(key, WaitingRequest { request, blocks, task });
        None
    }

    /// The reason for which a prompt is computed here, if there is one. Cheapest reason first:
    /// nothing is asked of a prefill worker whose KV could not be used here.
    fn reason_to_stay(
        &mut self,
        form: KvForm,
        reusable: &Reusable,
        peer: &PrefillWorker,
    ) -> Option<(PrefilledBy, &'static str)> {
        if reusable.held == reusable.names.len() {
            return Some((PrefilledBy::itself_nothing_to_move, "there is nothing to move"));
        }
        let offer = serde_json::from_str::<KvOffer>(peer.handover.get()).ok();
        if offer != Some(KvOffer { kv: form.fingerprint }) {
            return Some((PrefilledBy::itself_unlike, "the KV there is of another form"));
        }
        if !self.pairing.trust.covers(&peer.endpoint) {
            self.tell_distrust(&peer.endpoint);
            let why = "nothing vouches for KV of other machines";
            return Some((PrefilledBy::itself_untrusted, why));
        }
        let full = self.waiting.len() >= TRANSFERS_MAX;
        full.then_some((PrefilledBy::itself_prefill_failed, "too many are on their way"))
    }

    /// Imports what came of a prompt, and returns its request, which runs in any case: the engine
    /// computes the blocks that are missing. `None` where the request was cancelled.
    pub(crate) fn finish(
        &mut self,
        engine: &mut GuardedEngine,
        key: RequestKey,
        result: FetchResult,
    ) -> Option<(Request, PromptOutcome)> {
        let WaitingRequest { request, blocks, .. } = self.waiting.remove(&key)?;
        let mut outcome = PromptOutcome::default();
        let (imported, missing) = match result {
            Ok(FetchedKv { blocks: came, cached_tokens, computed, _room }) => {
                let import =
                    engine.call(|engine| engine.kv().import(&request, blocks.start, &came));
                let imported = import.unwrap_or(0);
                (outcome.since, outcome.cached_tokens) = (Some(computed), Some(cached_tokens));
                let why = || format!("{imported} of {} blocks are usable", blocks.len());
                let missing =
                    (imported < blocks.len()).then(|| (PrefilledBy::itself_prefill_failed, why()));
                (imported, missing)
            }
            Err(why) => (0, Some(why)),
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

/// A prompt that a peer computes, and the blocks of it that are missing here.
struct PromptFetch {
    prefill_agents: Arc<PrefillAgents>,
    peer: PrefillWorker,
    prompt: Submit,
    form: KvForm,
    blocks: Range<usize>,
    names: Vec<BlockName>,
    fetching: Arc<Semaphore>,
    trust: KvTrust,
    metrics: PairMetrics,
}

impl PromptFetch {
    async fn within(self, limit: Duration) -> FetchResult {
        let come = tokio::time::timeout(limit, self.bring(limit)).await;
        match come {
            Ok(come) => come,
            Err(_) => {
                let why = format!("nothing within {} ms", limit.as_millis());
                Err((PrefilledBy::itself_timeout, why))
            }
        }
    }

    async fn bring(self, limit: Duration) -> FetchResult {
        let failed = |why: String| (PrefilledBy::itself_prefill_failed, why);
        let peer = self.prefill_agents.admit(&self.peer).await?;
        let mut kept = RemotePrompt { prefill_agents: self.prefill_agents.clone(), at: None };
        let handle = rand::random();
        let told =
            to_raw_value(&KeepOrder { handle }).map_err(|error| failed(error.to_string()))?;
        kept.at = Some((peer.clone(), handle));
        let asked = self.prefill_agents.prefill(&peer, self.prompt, Some(&told), limit);
        let prefilled = asked.await.map_err(failed)?;
        if prefilled.handover.is_none() {
            return Err(failed("the prefill worker had no room to keep the prompt".into()));
        }
        let computed = Instant::now();
        let mib = (self.blocks.len() * self.form.block_bytes).div_ceil(1 << 20).max(1);
        let permits = u32::try_from(mib).unwrap_or(u32::MAX).min(FETCHING_MIB);
        let room = self.fetching.clone().acquire_many_owned(permits).await;
        let room = room.map_err(|error| failed(error.to_string()))?;
        let fetched = self.prefill_agents.fetch(&peer, handle, self.blocks.clone()).await;
        let mut chunks = fetched.map_err(failed)?;
        // It is given up with the stream now.
        kept.at = None;
        let seal = Seal::new(&self.trust.transfer_key, self.form, handle);
        let mut assembly = Assembly::new(seal, self.blocks.start as u32, self.names);
        loop {
            let torn = match chunks.message().await {
                Ok(Some(chunk)) => {
                    assembly.push(chunk.block, &chunk.kv, chunk.mac.as_deref()).err()
                }
                Ok(None) => break,
                Err(status) => {
                    tracing::warn!(%status, "the KV of a prompt was cut off");
                    break;
                }
            };
            if let Some(torn) = torn {
                tracing::warn!(%torn, "the KV of a prompt is not what was asked for");
                self.metrics.blocks_forged.inc();
                self.prefill_agents.shun(&peer);
                break;
            }
        }
        let (blocks, cached_tokens) = (assembly.blocks(), prefilled.cached_tokens);
        Ok(FetchedKv { blocks, cached_tokens, computed, _room: room })
    }
}

/// A prompt that a peer may keep. Dropping it has the peer give it up: what it computed for a
/// client that has gone would else be kept until its lease ends.
struct RemotePrompt {
    prefill_agents: Arc<PrefillAgents>,
    at: Option<(AdmittedWorker, u64)>,
}

impl Drop for RemotePrompt {
    fn drop(&mut self) {
        let (Some((peer, handle)), Ok(runtime)) =
            (self.at.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let prefill_agents = self.prefill_agents.clone();
        runtime.spawn(async move {
            // One that is not there any more keeps nothing.
            let given_up = prefill_agents.fetch(&peer, handle, 0..0);
            let _ = tokio::time::timeout(GIVE_UP_TIMEOUT, given_up).await;
        });
    }
}
