//! Whatever arrives on the event plane is read or refused; what is read survives the wire.

use stator_protos::kv_event::{EngineBatch, KvEvent, decode, decode_engine, encode};
use stator_protos::load::Load;
use stator_protos::topic::Topic;

/// Runs the target.
pub(crate) fn run(frame: &[u8]) {
    let _ = Topic::parse(frame);
    let _ = Load::decode(frame);
    let engine = decode_engine(frame);
    let decoded = decode(frame);
    assert_eq!(engine.is_ok(), decoded.is_ok());
    if let (Ok(engine), Ok(decoded)) = (engine, decoded) {
        check_details(&engine);
        let mut again = Vec::new();
        let batch = &decoded.batch;
        encode(batch.timestamp_s, &batch.events, batch.rank, &mut again);
        let decoded_again = decode(&again).expect("what we write, we read");
        // Compared as text, because a timestamp may be NaN.
        assert_eq!(format!("{:?}", decoded_again.batch), format!("{:?}", decoded.batch));
    }
}

/// What stored blocks bring is as much as there are blocks, and keys are in the blocks' order.
fn check_details(batch: &EngineBatch) {
    for found in &batch.events {
        if let KvEvent::Stored(stored) = &found.event {
            let tokens = stored.hashes.len() as u64 * u64::from(stored.block_size);
            assert!(stored.tokens.is_empty() || stored.tokens.len() as u64 == tokens);
        }
        let blocks: Vec<u32> = found.detail.extra_keys.iter().map(|(block, _)| block).collect();
        assert!(blocks.is_sorted());
    }
}
