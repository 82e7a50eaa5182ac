//! Bytes by which other agents find an arena.

use stator_kv::transfer::direct::{DESCRIPTION_BYTES_MAX, DirectError};

/// Description of an arena: the address of its first byte (u64, little endian), its bytes (u64), and
/// the metadata of NIXL's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaDescription {
    /// Address of the first byte, in the process that has the arena.
    pub first: u64,
    /// Bytes of the arena.
    pub bytes: u64,
    /// Metadata by which NIXL finds the other agent. NIXL alone reads it.
    pub metadata: Vec<u8>,
}

impl ArenaDescription {
    /// The description as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let Self { first, bytes, metadata } = self;
        [&first.to_le_bytes()[..], &bytes.to_le_bytes(), metadata].concat()
    }

    /// Reads what another agent has sent.
    ///
    /// # Errors
    ///
    /// The bytes are too few or too many, or the arena ends behind the last address.
    pub fn decode(description: &[u8]) -> Result<Self, DirectError> {
        let unreadable = || DirectError(format!("{} bytes describe no arena", description.len()));
        if description.len() > DESCRIPTION_BYTES_MAX {
            return Err(unreadable());
        }
        let (first, rest) = description.split_first_chunk().ok_or_else(unreadable)?;
        let (bytes, metadata) = rest.split_first_chunk().ok_or_else(unreadable)?;
        let (first, bytes) = (u64::from_le_bytes(*first), u64::from_le_bytes(*bytes));
        if first.checked_add(bytes).is_none() {
            return Err(DirectError(format!("an arena of {bytes} bytes at {first:#x}")));
        }
        Ok(Self { first, bytes, metadata: metadata.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_behind_the_last_address_is_refused() {
        let arena = |first, bytes| ArenaDescription { first, bytes, metadata: vec![1, 2] };
        let whole = arena(u64::MAX - 4096, 4096);
        assert_eq!(ArenaDescription::decode(&whole.encode()), Ok(whole));
        let refused = ArenaDescription::decode(&arena(u64::MAX - 4096, 4097).encode());
        let words = "an arena of 4097 bytes at 0xffffffffffffefff";
        assert_eq!(refused.unwrap_err().to_string(), words);
        let refused = ArenaDescription::decode(&[0; 15]).unwrap_err();
        assert_eq!(refused.to_string(), "15 bytes describe no arena");
        assert!(ArenaDescription::decode(&[0; DESCRIPTION_BYTES_MAX + 1]).is_err());
    }
}
