//! Translation between the wire's messages and ours. Peers' claims are checked here: pools that a
//! peer did not name and impossible ranks are skipped.

use crate::feeds::{Frame, SentPrompt};
use crate::gauges::GaugeKey;
use crate::names::PoolMap;
use crate::{PoolId, SEQUENCE_MAX};
use stator_placement::{PeerLoad, WorkerHoldings};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::peers as proto;
use stator_protos::{Generation, WorkerId, WorkerRank};

/// Blocks in one chunk of a snapshot, 512 KiB.
pub(crate) const CHUNK_HASHES_MAX: usize = 1 << 16;

/// Largest message that is taken, in bytes; those that are sent are well below it.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

impl PoolMap {
    fn key(&self, pool: u32, worker_id: u64, rank: u32) -> Option<GaugeKey> {
        let pool = self.get(pool)?;
        let rank = u16::try_from(rank).ok()?;
        Some((pool, WorkerRank { worker: WorkerId(worker_id), rank }))
    }

    pub(crate) fn gauge(&self, gauge: &proto::Gauge) -> Option<(GaugeKey, PeerLoad)> {
        let key = self.key(gauge.pool, gauge.worker_id, gauge.rank)?;
        let proto::Gauge { requests, tokens, prefill_tokens, prefill_pairs, blocks, .. } = *gauge;
        Some((key, PeerLoad { requests, tokens, prefill_tokens, prefill_pairs, blocks }))
    }

    pub(crate) fn sent(&self, sent: proto::Sent) -> Option<SentPrompt> {
        let key = self.key(sent.pool, sent.worker_id, sent.rank)?;
        let hashes = sent.sequence_hashes.into_iter().take(SEQUENCE_MAX).map(SequenceHash);
        Some(SentPrompt { key, hashes: hashes.collect() })
    }

    /// The worker and generation whose blocks a chunk holds.
    pub(crate) fn holding(&self, holding: &proto::Holding) -> Option<(GaugeKey, Generation)> {
        let key = self.key(holding.pool, holding.worker_id, holding.rank)?;
        Some((key, Generation(holding.generation)))
    }
}

pub(crate) fn frame(frame: &Frame) -> proto::SyncFrame {
    let gauge = |&((pool, worker), value): &(GaugeKey, PeerLoad)| proto::Gauge {
        pool: pool.0,
        worker_id: worker.worker.0,
        rank: worker.rank.into(),
        requests: value.requests,
        tokens: value.tokens,
        prefill_tokens: value.prefill_tokens,
        prefill_pairs: value.prefill_pairs,
        blocks: value.blocks,
    };
    proto::SyncFrame {
        hello: None,
        gauges: frame.gauges.iter().map(gauge).collect(),
        sent: frame.sent.iter().map(|sent| message_of(sent.key, &sent.hashes)).collect(),
        pools: frame.pools.clone(),
    }
}

fn message_of((pool, worker): GaugeKey, hashes: &[SequenceHash]) -> proto::Sent {
    proto::Sent {
        pool: pool.0,
        worker_id: worker.worker.0,
        rank: worker.rank.into(),
        sequence_hashes: hashes.iter().map(|hash| hash.0).collect(),
    }
}

/// Predictions of a pool, one message for each worker and [`SEQUENCE_MAX`] blocks.
pub(crate) fn predicted(
    pool: PoolId,
    mut part: Vec<(WorkerRank, SequenceHash)>,
) -> proto::SnapshotChunk {
    // Stable: of a worker the order may tell which blocks were used last.
    part.sort_by_key(|(worker, _)| *worker);
    let of_worker = part.chunk_by(|one, next| one.0 == next.0);
    let messages = of_worker.flat_map(|blocks| blocks.chunks(SEQUENCE_MAX)).map(|blocks| {
        let hashes: Vec<_> = blocks.iter().map(|(_, hash)| *hash).collect();
        message_of((pool, blocks[0].0), &hashes)
    });
    proto::SnapshotChunk { predicted: messages.collect(), ..proto::SnapshotChunk::default() }
}

/// A worker's blocks, in chunks of one medium each; the last one says so. At least one.
pub(crate) fn holdings(
    (pool, worker): GaugeKey,
    mut held: WorkerHoldings,
) -> impl Iterator<Item = proto::SnapshotChunk> {
    held.blocks.sort_unstable_by_key(|&(_, medium)| medium);
    let mut parts = Vec::new();
    for blocks in held.blocks.chunk_by(|one, next| one.1 == next.1) {
        let hashes: Vec<u64> = blocks.iter().map(|(hash, _)| hash.0).collect();
        parts.extend(hashes.chunks(CHUNK_HASHES_MAX).map(|part| (blocks[0].1, part.to_vec())));
    }
    // An empty chunk tells that the worker is known to hold nothing.
    if parts.is_empty() {
        parts.push((Medium::Device, Vec::new()));
    }
    let count = parts.len();
    parts.into_iter().enumerate().map(move |(n, (medium, sequence_hashes))| {
        let holding = proto::Holding {
            pool: pool.0,
            worker_id: worker.worker.0,
            rank: worker.rank.into(),
            generation: held.generation.0,
            medium: medium_out(medium).into(),
            sequence_hashes,
            last: n + 1 == count,
        };
        proto::SnapshotChunk { holding: Some(holding), ..proto::SnapshotChunk::default() }
    })
}

/// Blocks of a chunk; none of a medium that we do not know.
pub(crate) fn blocks(
    holding: &proto::Holding,
) -> impl Iterator<Item = (SequenceHash, Medium)> + '_ {
    let medium = match holding.medium() {
        proto::Medium::Unspecified => None,
        proto::Medium::Device => Some(Medium::Device),
        proto::Medium::Host => Some(Medium::Host),
        proto::Medium::Disk => Some(Medium::Disk),
        proto::Medium::Remote => Some(Medium::Remote),
    };
    let hashes = holding.sequence_hashes.iter();
    hashes.filter_map(move |&hash| Some((SequenceHash(hash), medium?)))
}

fn medium_out(medium: Medium) -> proto::Medium {
    match medium {
        Medium::Device => proto::Medium::Device,
        Medium::Host => proto::Medium::Host,
        Medium::Disk => proto::Medium::Disk,
        Medium::Remote => proto::Medium::Remote,
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
