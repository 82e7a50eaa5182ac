//! A warm start: what workers hold, as a peer knows it.

use crate::PeersSettings;
use crate::dial::{self, DialError};
use crate::hub::Hub;
use crate::names::PoolMap;
use crate::roster::PeerNames;
use crate::wire;
use stator_placement::WorkerHoldings;
use stator_protos::peers as proto;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::Streaming;

/// Blocks that are taken over; a peer that claims more is not heard further.
const BLOCKS_MAX: usize = 1 << 24;

/// Result of a warm start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmStart {
    /// The peer that gave it; `None` where none could.
    pub source: Option<SocketAddr>,
    /// Workers whose blocks were taken over.
    pub workers: usize,
    /// Blocks heard of, reported and predicted.
    pub blocks: usize,
    /// Whether the peer told everything within the time.
    pub complete: bool,
    /// Time that it took.
    pub elapsed: Duration,
}

/// A peer's answer, of which only the greeting was read.
struct Answer {
    source: SocketAddr,
    pools: PoolMap,
    chunks: Streaming<proto::SnapshotChunk>,
}

/// Takes over what the first peer that can tells, within the time that there is.
pub(crate) async fn start(hub: &Arc<Hub>, settings: &Arc<PeersSettings>) -> WarmStart {
    let begin = Instant::now();
    let mut start = WarmStart::default();
    let taking = take_over(hub, settings, &mut start);
    if tokio::time::timeout(settings.warm_start, taking).await.is_err() {
        tracing::warn!(limit = ?settings.warm_start, "the warm start took too long");
    }
    start.elapsed = begin.elapsed();
    hub.warm.store(true, Ordering::Relaxed);
    let source = start.source.map_or_else(|| "none".to_owned(), |source| source.to_string());
    tracing::info!(source, workers = start.workers, blocks = start.blocks, "warm start");
    hub.metrics.warm_source.get_or_create(&[("source", source)]).set(1);
    hub.metrics.warm_seconds.set(start.elapsed.as_secs_f64());
    hub.metrics.warm_blocks.set(start.blocks as i64);
    start
}

async fn take_over(hub: &Arc<Hub>, settings: &Arc<PeersSettings>, start: &mut WarmStart) {
    let Some(answer) = first_answer(hub, settings).await else { return };
    start.source = Some(answer.source);
    match restore(hub, answer, start).await {
        Ok(complete) => start.complete = complete,
        Err(error) => tracing::warn!(%error, "the warm start broke off"),
    }
}

/// Asks all peers at once, and goes on with the first that is warm.
async fn first_answer(hub: &Arc<Hub>, settings: &Arc<PeersSettings>) -> Option<Answer> {
    let mut asked = JoinSet::new();
    for address in
        PeerNames::default().look_up(&settings.peers).await.into_iter().take(crate::PEERS_MAX)
    {
        let (hub, settings) = (hub.clone(), settings.clone());
        asked.spawn(async move { ask(&hub, address, &settings).await });
    }
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(Some(answer))) => return Some(answer),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a peer gives no warm start"),
            Err(error) => tracing::error!(%error, "a task of the warm start failed"),
        }
    }
    None
}

/// `None` where the address is our own, or its replica knows nothing yet.
async fn ask(
    hub: &Hub,
    source: SocketAddr,
    settings: &PeersSettings,
) -> Result<Option<Answer>, DialError> {
    let mut client = dial::connect(source, settings).await?;
    let message = proto::SnapshotRequest { hello: Some(hub.hello()) };
    let mut chunks = client.snapshot(dial::request(message, settings)).await?.into_inner();
    let first = chunks.message().await?.ok_or(DialError::NoHello)?;
    let hello = first.hello.ok_or(DialError::NoHello)?;
    if hello.replica_id == hub.id || !first.warm {
        return Ok(None);
    }
    let mut pools = PoolMap::default();
    pools.extend(&hello.pools, &mut hub.names.lock());
    Ok(Some(Answer { source, pools, chunks }))
}

/// Takes over what a peer tells, each worker when it is whole. Whether that is everything.
async fn restore(
    hub: &Hub,
    mut answer: Answer,
    start: &mut WarmStart,
) -> Result<bool, tonic::Status> {
    let mut blocks = Vec::new();
    while let Some(chunk) = answer.chunks.message().await? {
        for sent in chunk.predicted {
            start.blocks += sent.sequence_hashes.len();
            if let Some(sent) = answer.pools.sent(sent) {
                hub.replica.sent(sent.key.0, sent.key.1, &sent.hashes);
            }
        }
        if let Some(holding) = chunk.holding {
            start.blocks += holding.sequence_hashes.len();
            blocks.extend(wire::blocks(&holding));
            // Only a whole worker is taken over: a part would count as all that it holds.
            if holding.last {
                let blocks = std::mem::take(&mut blocks);
                if let Some(((pool, worker), generation)) = answer.pools.holding(&holding) {
                    let held = WorkerHoldings { generation, blocks };
                    start.workers += usize::from(hub.replica.restore(pool, worker, held));
                }
            }
        }
        if start.blocks > BLOCKS_MAX {
            tracing::warn!(limit = BLOCKS_MAX, "a peer has more blocks than are taken over");
            return Ok(false);
        }
    }
    Ok(true)
}
