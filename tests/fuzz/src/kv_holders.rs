//! Of any value of the header `x-stator-kv-holders` a few holders are read, and the same again of what
//! is written of them.

use stator_protos::holders::{read, written};
use stator_protos::worker::{KV_HOLDER_ADDRESS_MAX_BYTES, KV_HOLDERS_MAX};

/// Runs the target.
pub(crate) fn run(value: &[u8]) {
    let Ok(text) = std::str::from_utf8(value) else { return };
    let holders = read(text);
    assert!(holders.len() <= KV_HOLDERS_MAX);
    for holder in &holders {
        assert!(holder.blocks > 0 && holder.address.len() <= KV_HOLDER_ADDRESS_MAX_BYTES);
    }
    let again = written(holders.iter().map(|holder| (&*holder.address, holder.blocks)));
    assert_eq!(again.is_none(), holders.is_empty());
    assert_eq!(read(&again.unwrap_or_default()), holders);
}
