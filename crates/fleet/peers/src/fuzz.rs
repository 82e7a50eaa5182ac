//! Frames of other replicas, for fuzz targets.

use crate::names::{PoolMap, PoolNames};
use crate::wire;
use prost::Message;
use stator_protos::peers::{SnapshotChunk, SyncFrame};

/// Reads a frame of the synchronisation stream; counts what is believed of it, gauges and sent
/// prompts.
pub fn sync_frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let frame = SyncFrame::decode(bytes).ok()?;
    let (mut names, mut map) = (PoolNames::default(), PoolMap::default());
    let hello = frame.hello.unwrap_or_default();
    map.extend(&hello.pools, &mut names);
    map.extend(&frame.pools, &mut names);
    let gauges = frame.gauges.iter().filter_map(|gauge| map.gauge(gauge)).count();
    let sent = frame.sent.into_iter().filter_map(|sent| map.sent(sent)).count();
    Some((gauges, sent))
}

/// Reads a part of a snapshot for a replica that knows the pool `a`; counts the blocks that are
/// believed.
pub fn snapshot_chunk(bytes: &[u8]) -> Option<usize> {
    let chunk = SnapshotChunk::decode(bytes).ok()?;
    let (mut names, mut map) = (PoolNames::default(), PoolMap::default());
    map.extend(&["a".to_owned()], &mut names);
    let held = chunk.holding.as_ref().filter(|holding| map.holding(holding).is_some());
    let held = held.map_or(0, |holding| wire::blocks(holding).count());
    let predicted = chunk.predicted.into_iter().filter_map(|sent| map.sent(sent));
    Some(held + predicted.map(|sent| sent.hashes.len()).sum::<usize>())
}
