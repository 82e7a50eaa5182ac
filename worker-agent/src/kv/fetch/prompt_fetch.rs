//! One prompt that another agent's engine computes, from the order to the last block.

use crate::config::KvTrust;
use crate::kv::offer::{HandoverTicket, KeepOrder};
use crate::kv::prompt_reader::{LandedBlocks, PromptReader, ReadLimits};
use crate::kv::transfer_room::TransferRoom;
use crate::metrics::{PairMetrics, PrefilledBy};
use crate::prefill::agents::{AdmittedWorker, PrefillAgents, PrefillMiss};
use crate::request_plane::metadata::PrefillWorker;
use serde_json::value::to_raw_value;
use stator_engine::RequestKey;
use stator_kv::peer::visit;
use stator_kv::tier::TierError;
use stator_protos::name::BlockName;
use stator_protos::worker::Submit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

/// Number of readable blocks of a prompt that is computed.
const ALL_READY: usize = usize::MAX;

/// Outcome of a prompt at a peer.
pub(crate) type FetchResult = Result<FetchedKv, PrefillMiss>;

/// A prompt whose KV has come, as far as it did.
pub(crate) struct FetchedKv {
    /// Prompt tokens whose KV the prefill worker had already.
    pub(super) cached_tokens: u32,
    /// End of the prompt's computation.
    pub(super) computed: Instant,
}

/// A prompt that a peer computes, and the blocks of it that are missing here.
pub(super) struct PromptFetch {
    pub(super) prefill_agents: Arc<PrefillAgents>,
    pub(super) peer: PrefillWorker,
    /// Address of the peer's transfer, `host:port`.
    pub(super) transfer: String,
    pub(super) prompt: Submit,
    /// The request that the blocks are for.
    pub(super) key: RequestKey,
    /// Place of the first missing block in the prompt.
    pub(super) first: usize,
    pub(super) names: Vec<BlockName>,
    pub(super) room: TransferRoom,
    /// Way of the blocks to the driver.
    pub(super) landed: mpsc::Sender<LandedBlocks>,
    pub(super) trust: KvTrust,
    /// Longest time for the prompt and its KV.
    pub(super) timeout: Duration,
    /// Longest silence of the peer.
    pub(super) silence: Duration,
    pub(super) metrics: PairMetrics,
}

fn failed(why: impl ToString) -> PrefillMiss {
    (PrefilledBy::itself_prefill_failed, why.to_string())
}

impl PromptFetch {
    /// Has the prompt computed, and its blocks sent to the driver.
    pub(super) async fn run(self) -> FetchResult {
        let limit = self.timeout;
        timeout(limit, self.bring()).await.unwrap_or_else(|_| {
            let why = format!("nothing within {} ms", limit.as_millis());
            Err((PrefilledBy::itself_timeout, why))
        })
    }

    async fn bring(mut self) -> FetchResult {
        let peer = self.prefill_agents.admit(&self.peer).await?;
        let holder = self.holder().await?;
        let ticket = HandoverTicket::draw();
        let within_ms = u64::try_from(self.timeout.as_millis()).ok();
        let order = KeepOrder { ticket, within_ms, push_from: Some(self.first) };
        let told = to_raw_value(&order).map_err(failed)?;
        let mut kept = RemotePrompt { room: self.room.clone(), at: Some((ticket, holder)) };
        let prompt = std::mem::take(&mut self.prompt);
        let (ready, mut readable) = watch::channel(0);
        let computing = async {
            let set_ready = |blocks| {
                ready.send_replace(blocks);
            };
            let agents = &self.prefill_agents;
            let asked = agents.prefill(&peer, prompt, Some(&told), self.timeout, set_ready);
            let prefilled = asked.await.map_err(failed)?;
            if prefilled.handover.is_none() {
                return Err(failed("the prefill worker had no room to keep the prompt"));
            }
            let computed = Instant::now();
            ready.send_replace(ALL_READY);
            Ok(FetchedKv { cached_tokens: prefilled.cached_tokens, computed })
        };
        let limits = ReadLimits { deadline: self.timeout, silence: self.silence };
        let (room, blocks) = (self.room.clone(), self.names.len());
        let mut reader = PromptReader::new(room, &ticket, holder, blocks, limits);
        // Blocks come while the prompt is computed; where either fails, the other is of no use.
        let reading = self.read(&mut reader, &mut readable, &peer);
        let (fetched, ()) = tokio::try_join!(computing, reading)?;
        reader.finish().await;
        // The peer has heard that the prompt is not needed any more.
        kept.at = None;
        Ok(fetched)
    }

    /// The address of the peer's transfer.
    async fn holder(&self) -> Result<SocketAddr, PrefillMiss> {
        let unknown = |why: String| failed(format!("no transfer at {:?}: {why}", self.transfer));
        let found = lookup_host(&self.transfer).await;
        let mut found = found.map_err(|error| unknown(error.to_string()))?;
        let holder = found.next().ok_or_else(|| unknown("no such host".into()))?;
        if !self.trust.beyond_this_machine && !holder.ip().to_canonical().is_loopback() {
            return Err(unknown("nothing vouches for KV of other machines".into()));
        }
        Ok(holder)
    }

    /// Reads the blocks as they become readable, and sends them to the driver, batch by batch.
    async fn read(
        &self,
        reader: &mut PromptReader,
        readable: &mut watch::Receiver<usize>,
        peer: &AdmittedWorker,
    ) -> Result<(), PrefillMiss> {
        let mut come = 0;
        while come < self.names.len() {
            let next = self.first + come;
            let ready = *readable.wait_for(|ready| *ready > next).await.map_err(failed)?;
            let end = self.names.len().min(ready - self.first);
            let batch = reader.read(&self.names[come..end]).await;
            let blocks = batch.slots.len();
            if blocks > 0 {
                let names = self.names[come..come + blocks].to_vec();
                let landed = LandedBlocks { key: self.key, first: next, names, slots: batch.slots };
                self.landed.send(landed).await.map_err(failed)?;
                if *readable.borrow() != ALL_READY {
                    self.metrics.blocks_early.inc_by(blocks as u64);
                }
                come += blocks;
            }
            match batch.fault {
                None => {}
                // The peer had room for some blocks of the batch only, or has no more.
                Some(TierError::Missing) if blocks > 0 => {}
                Some(fault) => {
                    if fault == TierError::Corrupt {
                        self.metrics.blocks_forged.inc();
                        self.prefill_agents.shun(peer);
                    }
                    return Err(failed(format!("its KV was cut off after {come} blocks: {fault}")));
                }
            }
        }
        Ok(())
    }
}

/// A prompt that a peer may keep. Dropping it has the peer give it up: what it computed for a
/// client that has gone would else be kept until its lease ends.
struct RemotePrompt {
    room: TransferRoom,
    at: Option<(HandoverTicket, SocketAddr)>,
}

impl Drop for RemotePrompt {
    fn drop(&mut self) {
        let (Some((ticket, holder)), Ok(runtime)) =
            (self.at.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (reader, form) = (ticket.reader(&self.room.key), self.room.form);
        runtime.spawn(async move {
            // One that is not there any more keeps nothing.
            let _ = visit(holder, &reader, form).await;
        });
    }
}
