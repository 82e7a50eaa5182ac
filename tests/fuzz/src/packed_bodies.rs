//! A body that comes compressed unpacks to the same bytes whatever its pieces, to no more than its limit,
//! and is refused where it breaks off.
//!
//! An input is a byte that chooses gzip, deflate or zstd, the size of pieces less one, and the body.

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let [coding, piece_bytes, body @ ..] = input else { return };
    stator_proxy::fuzz::packed_body(*coding, *piece_bytes, body);
}
