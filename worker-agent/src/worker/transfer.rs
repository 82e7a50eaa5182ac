//! The decode side of a pair: another agent's engine computes the prompt, and its KV is fetched from
//! there. Whatever goes wrong on the way, the engine here computes what is missing itself.

use super::Driver;
use super::handing::Order;
use crate::config::KvTrust;
use crate::metrics::{PairMetrics, PrefilledBy};
use crate::prefill::agents::{self, AdmittedPeer, Peers, Why};
use crate::request_plane::metadata::{Extras, Peer};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use stator_engine::transfer::{Assembly, BlockKv, KvForm, Seal};
use stator_engine::{Output, Request, RequestKey};
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
    /// Peers that compute prompts for the engine.
    pub(crate) peers: Arc<Peers>,
    /// The agents whose KV is believed.
    pub(crate) trust: KvTrust,
    /// Longest wait for a prompt and its KV.
    pub(crate) timeout: Duration,
    /// Counters of prefills.
    pub(crate) metrics: PairMetrics,
}

/// Record of an agent that prefills: its `handover`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handover {
    /// [`KvForm::fingerprint`] of its engines.
    pub(crate) kv: u64,
}

/// Outcome of a prompt at a peer.
pub(super) type Arrival = Result<Arrived, Why>;

/// Requests whose prompts are computed elsewhere or on their way.
pub(super) struct Transfers {
    pairing: Pairing,
    fetching: Arc<Semaphore>,
    tasks: JoinSet<(RequestKey, Arrival)>,
    /// One that has ended, and was not looked at.
    ended: Option<(RequestKey, Arrival)>,
    waiting: FxHashMap<RequestKey, Waiting>,
    /// Whether a log says already that KV of other machines is not believed.
    is_distrust_told: bool,
}

struct Waiting {
    request: Request,
    blocks: Range<usize>,
    task: AbortHandle,
}

/// KV of a prompt.
pub(super) struct Arrived {
    blocks: Vec<BlockKv>,
    /// Prompt tokens whose KV the prefill worker had already.
    cached_tokens: u32,
    /// End of the prompt's computation.
    computed: Instant,
    _room: OwnedSemaphorePermit,
}

/// Outcome of a prompt, for the next output of its request.
#[derive(Debug, Default)]
pub(super) struct PromptOutcome {
    failed: bool,
    /// Start of the KV transfer.
    since: Option<Instant>,
    /// Prompt tokens that the prefill worker had cached, for all outputs.
    cached_tokens: Option<u32>,
}

impl PromptOutcome {
    /// Corrects the cached tokens: fetched blocks count as cached only if the prefill worker had
    /// them cached.
    pub(super) fn correct(&self, output: &mut Output) {
        let Some(cached) = self.cached_tokens else { return };
        output.cached_tokens = output.cached_tokens.map(|_| cached);
        if let Some(finish) = &mut output.finish {
            finish.cached_tokens = cached;
        }
    }

    /// Adds the outcome to one output.
    pub(super) fn tell(&mut self, output: worker::Output) -> worker::Output {
        let us = |since: Instant| u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX);
        let transfer_us = self.since.take().map_or(0, |since| us(since).max(1));
        let prefill_failed = std::mem::take(&mut self.failed);
        worker::Output { prefill_failed, transfer_us, ..output }
    }
}

impl Transfers {
    pub(super) fn new(pairing: Pairing) -> Self {
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
    pub(super) fn count(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Waits until there is one to be looked at; for ever where there is none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn news(&mut self) {
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
    pub(super) fn next(&mut self) -> Option<(RequestKey, Arrival)> {
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
    pub(super) fn cancel(&mut self, key: RequestKey) {
        if let Some(waiting) = self.waiting.remove(&key) {
            waiting.task.abort();
        }
    }

    /// One that was aborted is nobody's any more.
    fn look(
        &self,
        ended: Result<(RequestKey, Arrival), JoinError>,
    ) -> Option<(RequestKey, Arrival)> {
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
}

impl Driver {
    /// Has a prompt computed by a peer, if its KV can be of use here; otherwise computes it.
    pub(super) fn have_prefilled(&mut self, mut request: Request, extras: &Extras, peer: Peer) {
        let known = self.guarded(|engine| {
            let kv = engine.kv();
            (kv.form(), kv.reusable(&mut request))
        });
        let Some((form, reusable)) = known else { return self.run_request(request) };
        let offer = serde_json::from_str::<Handover>(peer.handover.get()).ok();
        let unlike = offer != Some(Handover { kv: form.fingerprint });
        let full = self.transfers.waiting.len() >= TRANSFERS_MAX;
        let stranger = !self.transfers.pairing.trust.covers(&peer.endpoint);
        // Cheapest reason first: nothing is asked of a peer whose KV could not be used here.
        let why = match reusable.held == reusable.names.len() {
            true => Some((PrefilledBy::itself_nothing_to_move, "there is nothing to move")),
            false if unlike => {
                Some((PrefilledBy::itself_unlike, "the KV there is of another form"))
            }
            false if stranger => {
                self.transfers.tell_distrust(&peer.endpoint);
                Some((PrefilledBy::itself_untrusted, "nothing vouches for KV of other machines"))
            }
            false if full => {
                Some((PrefilledBy::itself_prefill_failed, "too many are on their way"))
            }
            false => None,
        };
        if let Some((by, why)) = why {
            tracing::debug!(prefill = %peer.worker, why, "the prompt is computed here");
            self.transfers.pairing.metrics.prefills.count(by);
            return self.run_request(request);
        }
        let (key, blocks) = (request.key, reusable.held..reusable.names.len());
        let job = Job {
            peers: self.transfers.pairing.peers.clone(),
            prompt: agents::prompt(&peer, &request, extras, agents::any_token()),
            peer,
            form,
            blocks: blocks.clone(),
            names: reusable.names[blocks.clone()].to_vec(),
            fetching: self.transfers.fetching.clone(),
            trust: self.transfers.pairing.trust.clone(),
            metrics: self.transfers.pairing.metrics.clone(),
        };
        self.enter(key, "transfer");
        let timeout = self.transfers.pairing.timeout;
        let task = self.transfers.tasks.spawn(async move { (key, job.within(timeout).await) });
        self.transfers.waiting.insert(key, Waiting { request, blocks, task });
    }

    /// Goes on with what came of a prompt.
    pub(super) fn arrived(&mut self, key: RequestKey, arrival: Arrival) {
        let Some(Waiting { request, blocks, .. }) = self.transfers.waiting.remove(&key) else {
            return;
        };
        let mut told = PromptOutcome::default();
        let (taken, missing) = match arrival {
            Ok(Arrived { blocks: came, cached_tokens, computed, _room }) => {
                let import =
                    self.guarded(|engine| engine.kv().import(&request, blocks.start, &came));
                let taken = import.unwrap_or(0);
                (told.since, told.cached_tokens) = (Some(computed), Some(cached_tokens));
                let why = || format!("{taken} of {} blocks are usable", blocks.len());
                let missing =
                    (taken < blocks.len()).then(|| (PrefilledBy::itself_prefill_failed, why()));
                (taken, missing)
            }
            Err(why) => (0, Some(why)),
        };
        // The request runs in any case: the engine computes the blocks that are missing.
        let metrics = &self.transfers.pairing.metrics;
        metrics.blocks_fetched.inc_by(taken as u64);
        metrics.blocks_missed.inc_by((blocks.len() - taken) as u64);
        if let Some((by, why)) = missing {
            tracing::warn!(why, "the prompt did not come");
            metrics.prefills.count(by);
            told = PromptOutcome { failed: true, ..PromptOutcome::default() };
        } else {
            metrics.prefills.count(PrefilledBy::prefill_worker);
        }
        if let Some(live) = self.live.get_mut(&key) {
            live.prefilled = told;
        }
        self.run_request(request);
    }
}

/// A prompt that a peer computes, and the blocks of it that are missing here.
struct Job {
    peers: Arc<Peers>,
    peer: Peer,
    prompt: Submit,
    form: KvForm,
    blocks: Range<usize>,
    names: Vec<BlockName>,
    fetching: Arc<Semaphore>,
    trust: KvTrust,
    metrics: PairMetrics,
}

impl Job {
    async fn within(self, limit: Duration) -> Arrival {
        let come = tokio::time::timeout(limit, self.bring(limit)).await;
        match come {
            Ok(come) => come,
            Err(_) => {
                let why = format!("nothing within {} ms", limit.as_millis());
                Err((PrefilledBy::itself_timeout, why))
            }
        }
    }

    async fn bring(self, limit: Duration) -> Arrival {
        let failed = |why: String| (PrefilledBy::itself_prefill_failed, why);
        let peer = self.peers.admit(&self.peer).await?;
        let mut kept = PeerPrompt { peers: self.peers.clone(), at: None };
        let handle = rand::random();
        let told = to_raw_value(&Order { handle }).map_err(|error| failed(error.to_string()))?;
        kept.at = Some((peer.clone(), handle));
        let asked = self.peers.prefill(&peer, self.prompt, Some(&told), limit);
        let prefilled = asked.await.map_err(failed)?;
        if prefilled.handover.is_none() {
            return Err(failed("the prefill worker had no room to keep the prompt".into()));
        }
        let computed = Instant::now();
        let mib = (self.blocks.len() * self.form.block_bytes).div_ceil(1 << 20).max(1);
        let permits = u32::try_from(mib).unwrap_or(u32::MAX).min(FETCHING_MIB);
        let room = self.fetching.clone().acquire_many_owned(permits).await;
        let room = room.map_err(|error| failed(error.to_string()))?;
        let fetched = self.peers.fetch(&peer, handle, self.blocks.clone()).await;
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
                self.peers.shun(&peer);
                break;
            }
        }
        let (blocks, cached_tokens) = (assembly.blocks(), prefilled.cached_tokens);
        Ok(Arrived { blocks, cached_tokens, computed, _room: room })
    }
}

/// A prompt that a peer may keep. Dropping it has the peer give it up: what it computed for a
/// client that has gone would else be kept until its lease ends.
struct PeerPrompt {
    peers: Arc<Peers>,
    at: Option<(AdmittedPeer, u64)>,
}

impl Drop for PeerPrompt {
    fn drop(&mut self) {
        let (Some((peer, handle)), Ok(runtime)) =
            (self.at.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let peers = self.peers.clone();
        runtime.spawn(async move {
            // One that is not there any more keeps nothing.
            let given_up = peers.fetch(&peer, handle, 0..0);
            let _ = tokio::time::timeout(GIVE_UP_TIMEOUT, given_up).await;
        });
    }
}
