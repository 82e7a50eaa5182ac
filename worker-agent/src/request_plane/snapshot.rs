//! A worker's blocks on their way to a proxy.

use crate::worker::Snapshot;
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use stator_protos::worker::{self, SnapshotChunk};
use tonic::Status;

/// Hashes in one chunk of a snapshot at most.
const HASHES_PER_CHUNK: usize = 65_536;

/// A snapshot in chunks of one medium each; at least one, since also an empty worker has a
/// generation and a next number.
pub(crate) fn chunks(mut snapshot: Snapshot) -> Vec<Result<SnapshotChunk, Status>> {
    snapshot.blocks.sort_by_key(|(_, medium)| *medium);
    let chunk = |blocks: &[(SequenceHash, Medium)]| {
        let medium = blocks.first().map_or(Medium::Device, |(_, medium)| *medium);
        Ok(SnapshotChunk {
            generation: snapshot.generation.0,
            next_sequence: snapshot.next_sequence,
            sequence_hashes: blocks.iter().map(|(hash, _)| hash.0).collect(),
            medium: worker::Medium::from(medium).into(),
        })
    };
    if snapshot.blocks.is_empty() {
        return vec![chunk(&[])];
    }
    let of_medium = snapshot.blocks.chunk_by(|one, next| one.1 == next.1);
    of_medium.flat_map(|blocks| blocks.chunks(HASHES_PER_CHUNK)).map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::Generation;

    #[test]
    fn a_snapshot_says_where_each_block_is() {
        let blocks = |numbers: std::ops::Range<u64>, medium| {
            numbers.map(move |number| (SequenceHash(number), medium)).collect::<Vec<_>>()
        };
        let (host, device) = (blocks(0..3, Medium::Host), blocks(3..70_000, Medium::Device));
        let blocks = [host, device].concat();
        let told = |blocks| {
            let snapshot = Snapshot { generation: Generation(7), next_sequence: 5, blocks };
            chunks(snapshot).into_iter().map(|chunk| chunk.expect("no chunk is an error"))
        };
        let mut heard = Vec::new();
        for chunk in told(blocks.clone()) {
            assert_eq!((chunk.generation, chunk.next_sequence), (7, 5));
            assert!(chunk.sequence_hashes.len() <= HASHES_PER_CHUNK);
            let medium = Medium::from(chunk.medium());
            heard.extend(chunk.sequence_hashes.iter().map(|hash| (SequenceHash(*hash), medium)));
        }
        heard.sort();
        assert_eq!(heard, blocks);
        assert_eq!(told(Vec::new()).count(), 1);
    }
}
