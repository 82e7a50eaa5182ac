//! An agent that fetches KV takes only blocks that came whole, in order and sealed, and no more
//! than it asked for.
//!
//! An input is a byte for the size of a block, then messages. An empty seal stands for the genuine
//! one, which no fuzzer finds.

use prost::Message;
use stator_engine::transfer::{Assembly, BlockKv, KvForm, Seal, TransferKey};
use stator_protos::name::BlockName;
use stator_protos::worker::FetchChunk;

/// Blocks that are asked for, and the place of the first of them.
const NAMES: [BlockName; 3] = [BlockName(1), BlockName(2), BlockName(3)];
const FIRST: u32 = 2;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((&block_bytes, mut messages)) = input.split_first() else { return };
    let block_bytes = usize::from(block_bytes % 8);
    let form = KvForm { fingerprint: 1, block_bytes };
    let seal = Seal::new(&TransferKey::of_secret(b"secret"), form, 9);
    let mut assembly = Assembly::new(seal.clone(), FIRST, NAMES.to_vec());
    let mut plain: Vec<BlockKv> = Vec::new();
    let mut part = Vec::new();
    while let Ok(chunk) = FetchChunk::decode_length_delimited(&mut messages) {
        let name = NAMES.get(plain.len()).copied();
        let next = name.filter(|_| chunk.block as usize == FIRST as usize + plain.len());
        part.extend_from_slice(&chunk.kv);
        let genuine = next.map(|name| seal.of(chunk.block, name, &part).to_vec());
        let mac = match chunk.mac {
            Some(mac) if mac.is_empty() => genuine.clone().or(Some(Vec::new())),
            mac => mac.map(|mac| mac.to_vec()),
        };
        let fits = match mac {
            Some(_) => part.len() == block_bytes && mac == genuine,
            None => part.len() <= block_bytes,
        };
        let taken = assembly.push(chunk.block, &chunk.kv, mac.as_deref());
        assert_eq!(taken.is_ok(), next.is_some() && fits);
        if taken.is_err() {
            break;
        }
        if let Some(name) = next.filter(|_| mac.is_some()) {
            plain.push(BlockKv { name, kv: std::mem::take(&mut part) });
        }
    }
    assert_eq!(assembly.blocks(), plain);
}
