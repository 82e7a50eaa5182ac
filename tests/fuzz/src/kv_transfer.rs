//! Frames of a KV transfer are read or refused, and what is read survives the wire.

use stator_kv::transfer::wire::{
    FrameHeader, HEADER_BYTES, Hello, NAMES_MAX, decode_checksums, decode_names, decode_reason,
    decode_slots, encode_checksums, encode_names, encode_slots,
};

/// Runs the target: a header, and its payload.
pub(crate) fn run(input: &[u8]) {
    let Some((header, payload)) = input.split_first_chunk::<HEADER_BYTES>() else { return };
    if let Ok(read) = FrameHeader::decode(header) {
        assert_eq!(read.encode(), *header);
        assert!(read.length as usize <= (NAMES_MAX * 16).max(1 << 20));
    }
    if let Ok(hello) = Hello::decode(payload) {
        assert_eq!(hello.encode(), payload);
        assert!(hello.form.block_bytes > 0);
    }
    let names = encode_names(&decode_names(payload));
    assert_eq!(names, payload[..payload.len() / 16 * 16]);
    let checksums = encode_checksums(decode_checksums(payload));
    assert_eq!(checksums, payload[..payload.len() / 8 * 8]);
    let slots = encode_slots(decode_slots(payload));
    assert_eq!(slots, payload[..payload.len() / 4 * 4]);
    assert!(!decode_reason(payload).contains(char::is_control));
}
