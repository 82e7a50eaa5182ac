//! Proof that an agent belongs to the fleet, and that its frames come from it.
//!
//! Both sides of a connection draw a random number. Keys that are derived from the fleet's key and
//! from both numbers prove who is there, one in each direction, and tag all later frames. A tag
//! covers the frame's header with its sequence number, and for KV the name of the block, so that a
//! frame of another connection, direction, lease, place or time is worth nothing.
//!
//! With a fleet secret a tag is BLAKE3 in its keyed mode over header, name and payload. Without
//! one the key is known to all, so that only agents on this machine are believed, and there a tag
//! is XXH3: it covers everything but KV, and the block's checksum covers the KV.

use super::slot_part::SlotPart;
use super::wire::{HEADER_BYTES, TAG_BYTES};
use stator_protos::name::BlockName;
use std::fmt;
use std::net::IpAddr;
use xxhash_rust::xxh3::Xxh3Default;

/// Purpose for which the key is derived: another use of the secret has another key.
const CONTEXT: &str = "stator 2026 transfer of KV blocks";

/// The fleet's key for transfers of KV.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetKey {
    key: [u8; 32],
    is_secret: bool,
}

impl FleetKey {
    /// The key of a fleet with this secret.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self { key: blake3::derive_key(CONTEXT, secret), is_secret: true }
    }

    /// Whether KV may be exchanged with an agent at this address.
    pub fn covers(&self, address: IpAddr) -> bool {
        self.is_secret || address.to_canonical().is_loopback()
    }
}

impl Default for FleetKey {
    /// The key of fleets without a secret, which everybody knows.
    fn default() -> Self {
        Self { key: blake3::derive_key(CONTEXT, &[]), is_secret: false }
    }
}

impl fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetKey").field("is_secret", &self.is_secret).finish_non_exhaustive()
    }
}

/// Shows that a frame is genuine.
pub(crate) type Tag = [u8; TAG_BYTES];

/// Keys and proofs of one connection.
pub(crate) struct SessionKeys {
    /// Tag of the challenge.
    pub(crate) holder_proof: Tag,
    /// Tag of the reader's proof.
    pub(crate) reader_proof: Tag,
    /// Key of the frames to the holder.
    pub(crate) to_holder: FrameKey,
    /// Key of the frames to the reader.
    pub(crate) to_reader: FrameKey,
}

impl SessionKeys {
    /// The keys after these first two frames of a connection.
    pub(crate) fn new(fleet: &FleetKey, hello: &[u8], challenge: &[u8]) -> Self {
        // Both parts have a fixed length.
        let transcript = blake3::Hasher::new().update(hello).update(challenge).finalize();
        let derive = |purpose: u8| {
            let mut hasher = blake3::Hasher::new_keyed(&fleet.key);
            *hasher.update(&[purpose]).update(transcript.as_bytes()).finalize().as_bytes()
        };
        let frames = |purpose| FrameKey { key: derive(purpose), is_secret: fleet.is_secret };
        Self {
            holder_proof: derive(1),
            reader_proof: derive(2),
            to_holder: frames(3),
            to_reader: frames(4),
        }
    }
}

/// Tags the frames of one direction of a connection.
#[derive(Clone)]
pub(crate) struct FrameKey {
    key: [u8; 32],
    is_secret: bool,
}

impl FrameKey {
    /// The tag of a frame without KV.
    pub(crate) fn tag(&self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> Tag {
        let mut tag = self.start(header);
        tag.update(payload);
        tag.finish()
    }

    /// The tag of a frame with this part of the block with this name.
    pub(crate) fn tag_kv(
        &self,
        header: &[u8; HEADER_BYTES],
        name: BlockName,
        part: &SlotPart<'_>,
    ) -> Tag {
        let mut tag = self.start(header);
        // The header says by its kind that a name follows.
        tag.update(&name.to_bytes());
        if self.is_secret {
            part.each_piece(|piece| tag.update(piece));
        }
        tag.finish()
    }

    fn start(&self, header: &[u8; HEADER_BYTES]) -> TagHasher {
        let mut hasher = if self.is_secret {
            TagHasher::Keyed(Box::new(blake3::Hasher::new_keyed(&self.key)))
        } else {
            TagHasher::Plain(Box::new(Xxh3Default::new()))
        };
        if !self.is_secret {
            hasher.update(&self.key);
        }
        hasher.update(header);
        hasher
    }
}

enum TagHasher {
    Keyed(Box<blake3::Hasher>),
    Plain(Box<Xxh3Default>),
}

impl TagHasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Keyed(hasher) => drop(hasher.update(bytes)),
            Self::Plain(hasher) => hasher.update(bytes),
        }
    }

    fn finish(&self) -> Tag {
        match self {
            Self::Keyed(hasher) => *hasher.finalize().as_bytes(),
            Self::Plain(hasher) => {
                let mut tag = [0; TAG_BYTES];
                tag[..8].copy_from_slice(&hasher.digest().to_le_bytes());
                tag
            }
        }
    }
}

/// Whether two tags are equal, in a time that does not depend on where they differ.
pub(crate) fn are_equal(one: &Tag, other: &Tag) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlotId;
    use crate::arena::Arena;

    fn key(fleet: &FleetKey, challenge: u8) -> FrameKey {
        SessionKeys::new(fleet, b"hello", &[challenge]).to_reader
    }

    fn tag_kv(key: &FrameKey, header: u8, name: u128, kv: u8) -> Tag {
        let arena = Arena::new(1, 40_000).unwrap();
        arena.write(SlotId(0), &[kv; 40_000]);
        let part = SlotPart { arena: &arena, slot: SlotId(0), range: 100..39_900 };
        key.tag_kv(&[header; HEADER_BYTES], BlockName(name), &part)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_tag_is_of_secret_connection_direction_header_name_and_kv() {
        let secret = FleetKey::of_secret(b"correct-horse-battery");
        let tag = tag_kv(&key(&secret, 1), 1, 2, 3);
        assert!(are_equal(&tag, &tag_kv(&key(&secret, 1), 1, 2, 3)));
        let others = [
            tag_kv(&key(&FleetKey::of_secret(b"correct-horse-batterY"), 1), 1, 2, 3),
            tag_kv(&key(&FleetKey::default(), 1), 1, 2, 3),
            tag_kv(&key(&secret, 2), 1, 2, 3),
            tag_kv(&SessionKeys::new(&secret, b"hello", &[1]).to_holder, 1, 2, 3),
            tag_kv(&key(&secret, 1), 2, 2, 3),
            tag_kv(&key(&secret, 1), 1, 3, 3),
            tag_kv(&key(&secret, 1), 1, 2, 4),
        ];
        assert!(others.iter().all(|other| !are_equal(&tag, other)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn without_a_secret_a_tag_covers_all_but_kv() {
        let key = key(&FleetKey::default(), 1);
        assert_eq!(tag_kv(&key, 1, 2, 3), tag_kv(&key, 1, 2, 4));
        assert_ne!(tag_kv(&key, 1, 2, 3), tag_kv(&key, 1, 3, 3));
        assert_ne!(tag_kv(&key, 1, 2, 3), tag_kv(&key, 2, 2, 3));
        assert_ne!(key.tag(&[1; HEADER_BYTES], &[1]), key.tag(&[1; HEADER_BYTES], &[2]));
    }

    #[test]
    fn proofs_of_the_two_sides_differ() {
        let keys = SessionKeys::new(&FleetKey::of_secret(b"secret"), b"hello", b"challenge");
        assert_ne!(keys.holder_proof, keys.reader_proof);
    }

    #[test]
    fn without_a_secret_only_this_machine_is_believed() {
        let covers = |address: &str| FleetKey::default().covers(address.parse().unwrap());
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(covers(address), "{address}");
        }
        for address in ["10.0.0.1", "fd00::1", "0.0.0.0", "::", "::ffff:10.0.0.1"] {
            assert!(!covers(address), "{address}");
            assert!(FleetKey::of_secret(b"secret").covers(address.parse().unwrap()));
        }
    }

    #[test]
    fn no_debug_output_shows_the_key() {
        let shown = format!("{:?}", FleetKey::of_secret(b"hush"));
        assert_eq!(shown, "FleetKey { is_secret: true, .. }");
    }
}
