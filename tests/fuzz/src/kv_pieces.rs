//! Whatever an agent is sent of the KV that it fetches: the blocks that it takes are those that came
//! whole and in order, and no more than it asked for.

use prost::Message;
use stator_protos::worker::FetchChunk;
use stator_worker_agent::engine::transfer::{Assembly, BlockKv, KvForm};

/// Blocks that are asked for, and the first of them.
const COUNT: usize = 3;
const FIRST: u32 = 2;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((&block_bytes, mut messages)) = input.split_first() else { return };
    let block_bytes = usize::from(block_bytes % 8);
    let mut assembly = Assembly::new(KvForm { fingerprint: 1, block_bytes }, FIRST, COUNT);
    let mut plain: Vec<BlockKv> = Vec::new();
    let mut part = Vec::new();
    while let Ok(chunk) = FetchChunk::decode_length_delimited(&mut messages) {
        let next = chunk.block as usize == FIRST as usize + plain.len() && plain.len() < COUNT;
        part.extend_from_slice(&chunk.kv);
        let fits = match chunk.checksum {
            Some(_) => part.len() == block_bytes,
            None => part.len() <= block_bytes,
        };
        let taken = assembly.push(chunk.block, &chunk.kv, chunk.checksum);
        assert_eq!(taken.is_ok(), next && fits);
        if taken.is_err() {
            break;
        }
        if let Some(checksum) = chunk.checksum {
            plain.push(BlockKv { kv: std::mem::take(&mut part), checksum });
        }
    }
    assert_eq!(assembly.blocks(), plain);
}
