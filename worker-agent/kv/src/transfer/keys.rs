//! Proof that an agent belongs to the fleet, and that its frames come from it.
//!
//! Both sides of a connection draw a random number. Keys that are derived from the fleet's key and
//! from both numbers prove who is there, one in each direction, and tag all later frames. A tag
//! covers the frame's header with its sequence number, and for KV the name of the block, so that a
//! frame of another connection, direction, lease, place or time is worth nothing.
//!
//! With a fleet secret a tag is one of AES-128-GCM over header, name and payload. The payload
//! travels in the clear: GCM's ciphertext is made in a cache, for the tag alone, because the
//! processor makes that tag several times as fast as a hash with a key. A frame longer than a piece
//! is a chain: the tag of a piece is authenticated with the piece behind it, and the last one is
//! the frame's. Without a secret the key is known to all, so that only agents on this machine are
//! believed, and there a tag is XXH3: it covers everything but KV, and the block's checksum covers
//! the KV.
//!
//! A hand-over has a secret of its own and hides what it moves: its payloads travel encrypted
//! (AES-256-GCM), and a tag is the cipher's, over header, name and payload.
//!
//! # Nonces
//!
//! A nonce that came twice under one key would give that key's authentication away. None does:
//!
//! - A key is of one direction of one connection: it is derived from both sides' random numbers, and
//!   is nowhere kept.
//! - A nonce is the frame's sequence number, which its sender counts up with every frame, and the
//!   number of the piece within the frame; an encrypted payload has the last number instead, and
//!   each frame has a tag in one way only. The reader takes the number that it expects, not one that
//!   a stranger wrote.
//! - After [`super::link::FRAMES_MAX`] frames the connection ends and the next one has new keys: at
//!   most 2^48 blocks of AES under one key. A frame that is forged ends the connection at once, so
//!   that a forger has one attempt for each key, which succeeds with a chance below 2^-111.

use super::slot_part::{PIECE, SlotPart};
use super::wire::{HEADER_BYTES, TAG_BYTES};
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag as CipherTag, UnboundKey,
};
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
    /// Whether frames under it are encrypted.
    is_hidden: bool,
}

impl FleetKey {
    /// The key of a fleet with this secret.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self { key: blake3::derive_key(CONTEXT, secret), is_secret: true, is_hidden: false }
    }

    /// The key of one hand-over, whose reader drew `token` and gave it to the holder on a channel that
    /// both trust. Where there is a fleet secret, knowing the token is not enough.
    pub fn of_handover(&self, token: &[u8; 32]) -> Self {
        let key = *blake3::keyed_hash(&self.key, token).as_bytes();
        Self { key, is_secret: true, is_hidden: true }
    }

    /// Whether strangers do not know it.
    pub(crate) fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// Whether KV may be exchanged with an agent at this address.
    pub fn covers(&self, address: IpAddr) -> bool {
        self.is_secret || address.to_canonical().is_loopback()
    }
}

impl Default for FleetKey {
    /// The key of fleets without a secret, which everybody knows.
    fn default() -> Self {
        Self { key: blake3::derive_key(CONTEXT, &[]), is_secret: false, is_hidden: false }
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
        let proof = |purpose| *derive(purpose).first_chunk().expect("it has 32 bytes");
        let frames = |purpose| FrameKey::new(&derive(purpose), fleet);
        Self {
            holder_proof: proof(1),
            reader_proof: proof(2),
            to_holder: frames(3),
            to_reader: frames(4),
        }
    }
}

/// Tags the frames of one direction of a connection.
#[derive(Clone)]
pub(crate) enum FrameKey {
    /// Nobody else knows it.
    Secret(Box<LessSafeKey>),
    /// Nobody else knows it, and payloads are encrypted.
    Hidden(Box<LessSafeKey>),
    /// All know it.
    Known([u8; 32]),
}

impl FrameKey {
    fn new(key: &[u8; 32], fleet: &FleetKey) -> Self {
        if !fleet.is_secret {
            return Self::Known(*key);
        }
        if fleet.is_hidden {
            let key = UnboundKey::new(&AES_256_GCM, key).expect("it has 32 bytes");
            return Self::Hidden(Box::new(LessSafeKey::new(key)));
        }
        let half = &key[..AES_128_GCM.key_len()];
        let key = UnboundKey::new(&AES_128_GCM, half).expect("half of 32 bytes");
        Self::Secret(Box::new(LessSafeKey::new(key)))
    }

    /// The cipher of payloads, if they are encrypted.
    pub(crate) fn cipher(&self) -> Option<FrameCipher<'_>> {
        match self {
            Self::Hidden(key) => Some(FrameCipher(key)),
            Self::Secret(_) | Self::Known(_) => None,
        }
    }

    /// The tag of a frame without KV.
    pub(crate) fn tag(&self, sequence: u64, header: &[u8; HEADER_BYTES], payload: &[u8]) -> Tag {
        match self {
            Self::Known(key) => known_tag(&[key, header, payload]),
            Self::Secret(key) | Self::Hidden(key) => {
                let mut chain = TagChain::new(key, sequence, header);
                let mut space = [0; PIECE];
                for piece in payload.chunks(PIECE) {
                    let space = &mut space[..piece.len()];
                    space.copy_from_slice(piece);
                    chain.add(space);
                }
                chain.tag
            }
        }
    }

    /// The tag of a frame with this part of the block with this name.
    pub(crate) fn tag_kv(
        &self,
        sequence: u64,
        header: &[u8; HEADER_BYTES],
        name: BlockName,
        part: &SlotPart<'_>,
    ) -> Tag {
        // The header says by its kind that a name follows.
        match self {
            Self::Known(key) => known_tag(&[key, header, &name.to_bytes()]),
            Self::Secret(key) | Self::Hidden(key) => {
                let start = [&header[..], &name.to_bytes()].concat();
                let mut chain = TagChain::new(key, sequence, &start);
                part.each_piece(|piece| chain.add(piece));
                chain.tag
            }
        }
    }
}

/// Encrypts the payloads of one direction of a connection.
pub(crate) struct FrameCipher<'a>(&'a LessSafeKey);

impl FrameCipher<'_> {
    /// Encrypts the payload of the frame with this number, which for KV is a part of the block with
    /// this name.
    pub(crate) fn seal(
        &self,
        sequence: u64,
        header: &[u8; HEADER_BYTES],
        name: Option<BlockName>,
        payload: &mut [u8],
    ) -> Tag {
        let (nonce, aad) = (nonce(sequence, u32::MAX), aad(header, name));
        let sealed = self.0.seal_in_place_separate_tag(nonce, aad, payload);
        let sealed = sealed.expect("no frame has the 64 GiB that are too many");
        let mut tag = Tag::default();
        tag.copy_from_slice(sealed.as_ref());
        tag
    }

    /// Decrypts a payload. False if it is not what was sent; then it is anything.
    #[must_use]
    pub(crate) fn open(
        &self,
        sequence: u64,
        header: &[u8; HEADER_BYTES],
        name: Option<BlockName>,
        tag: &Tag,
        payload: &mut [u8],
    ) -> bool {
        let (nonce, aad) = (nonce(sequence, u32::MAX), aad(header, name));
        let tag = CipherTag::from(*tag);
        self.0.open_in_place_separate_tag(nonce, aad, tag, payload, 0..).is_ok()
    }
}

/// The nonce of a piece of a frame.
fn nonce(sequence: u64, piece: u32) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&sequence.to_le_bytes());
    nonce[8..].copy_from_slice(&piece.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Whatever else the tag of an encrypted frame covers.
fn aad(header: &[u8; HEADER_BYTES], name: Option<BlockName>) -> Aad<Vec<u8>> {
    let name = name.map(BlockName::to_bytes);
    Aad::from([&header[..], name.as_ref().map_or(&[], |name| &name[..])].concat())
}

/// The tag of a frame whose pieces come one after the other.
struct TagChain<'a> {
    key: &'a LessSafeKey,
    sequence: u64,
    /// Number of the next piece.
    piece: u32,
    /// The tag of all pieces so far.
    tag: Tag,
}

impl<'a> TagChain<'a> {
    /// The chain of the frame with this number, which begins with `start`.
    fn new(key: &'a LessSafeKey, sequence: u64, start: &[u8]) -> Self {
        let mut chain = Self { key, sequence, piece: 0, tag: Tag::default() };
        chain.link(start, &mut []);
        chain
    }

    /// Adds a piece, which is anything then.
    fn add(&mut self, piece: &mut [u8]) {
        let before = self.tag;
        self.link(&before, piece);
    }

    fn link(&mut self, before: &[u8], piece: &mut [u8]) {
        let nonce = nonce(self.sequence, self.piece);
        self.piece += 1;
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::from(before), piece);
        let sealed = sealed.expect("no piece has the 64 GiB that are too many");
        self.tag.copy_from_slice(sealed.as_ref());
    }
}

/// The tag that all can make.
fn known_tag(parts: &[&[u8]]) -> Tag {
    let mut hasher = Xxh3Default::new();
    parts.iter().for_each(|part| hasher.update(part));
    let mut tag = Tag::default();
    tag[..8].copy_from_slice(&hasher.digest().to_le_bytes());
    tag
}

/// Whether two tags are equal, in a time that does not depend on where they differ.
pub(crate) fn are_equal(one: &Tag, other: &Tag) -> bool {
    let wide = |tag: &Tag| {
        let mut wide = [0; 32];
        wide[..TAG_BYTES].copy_from_slice(tag);
        blake3::Hash::from_bytes(wide)
    };
    wide(one) == wide(other)
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
        key.tag_kv(5, &[header; HEADER_BYTES], BlockName(name), &part)
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
        let header = [1; HEADER_BYTES];
        assert_ne!(key.tag(5, &header, &[1]), key.tag(5, &header, &[2]));
    }

    /// Agents of two builds must agree.
    #[test]
    fn a_tag_is_what_it_is() {
        let key = key(&FleetKey::of_secret(b"secret"), 1);
        let tag = key.tag(0x0102, &[3; HEADER_BYTES], &[4; PIECE + 1]);
        assert_eq!(u128::from_le_bytes(tag), 0xbc85adfdffe19d23b3539dd27b98fe12);
    }

    #[test]
    fn no_two_pieces_and_frames_have_one_nonce() {
        let key = key(&FleetKey::of_secret(b"secret"), 1);
        let tag = |sequence, payload: &[u8]| key.tag(sequence, &[1; HEADER_BYTES], payload);
        // The same bytes under another number, or in another place, have another tag.
        assert_ne!(tag(1, &[7; 9]), tag(2, &[7; 9]));
        assert_ne!(tag(1, &[7; 9]), tag(1 << 32, &[7; 9]));
        let mut two = vec![7; 2 * PIECE];
        two[PIECE..].fill(8);
        let there = tag(1, &two);
        two.rotate_left(PIECE);
        assert_ne!(there, tag(1, &two));
        // The same change in both pieces does not cancel.
        two.iter_mut().for_each(|byte| *byte ^= 1);
        assert_ne!(tag(1, &two), there);
        assert_ne!(tag(1, &[7; PIECE]), tag(1, &[7; 2 * PIECE]));
        assert_ne!(tag(1, &[]), tag(1, &[0]));
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
    fn an_encrypted_frame_is_of_key_number_header_name_and_payload() {
        let fleet = FleetKey::default().of_handover(&[1; 32]);
        let (to_reader, to_holder) =
            (key(&fleet, 1), SessionKeys::new(&fleet, b"hello", &[1]).to_holder);
        let (cipher, other) = (to_reader.cipher().unwrap(), to_holder.cipher().unwrap());
        let (header, name) = ([1; HEADER_BYTES], Some(BlockName(2)));
        let mut sealed = *b"eight by";
        let tag = cipher.seal(5, &header, name, &mut sealed);
        assert_ne!(&sealed, b"eight by");
        let mut kv = sealed;
        assert!(cipher.open(5, &header, name, &tag, &mut kv));
        assert_eq!(&kv, b"eight by");
        assert!(!other.open(5, &header, name, &tag, &mut sealed.clone()));
        assert!(!cipher.open(6, &header, name, &tag, &mut sealed.clone()));
        assert!(!cipher.open(5, &[2; HEADER_BYTES], name, &tag, &mut sealed.clone()));
        assert!(!cipher.open(5, &header, Some(BlockName(3)), &tag, &mut sealed.clone()));
        assert!(!cipher.open(5, &header, None, &tag, &mut sealed.clone()));
        sealed[7] ^= 1;
        assert!(!cipher.open(5, &header, name, &tag, &mut sealed));
        assert!(key(&FleetKey::of_secret(b"secret"), 1).cipher().is_none());
    }

    #[test]
    fn the_key_of_a_hand_over_is_of_secret_and_token() {
        let secret = FleetKey::of_secret(b"correct-horse-battery");
        let key = secret.of_handover(&[1; 32]);
        assert!(key == secret.of_handover(&[1; 32]));
        assert!(key != secret.of_handover(&[2; 32]));
        assert!(key != FleetKey::default().of_handover(&[1; 32]));
        // The token is as good as a secret.
        assert!(FleetKey::default().of_handover(&[1; 32]).covers([10, 0, 0, 1].into()));
    }

    #[test]
    fn no_debug_output_shows_the_key() {
        let shown = format!("{:?}", FleetKey::of_secret(b"hush"));
        assert_eq!(shown, "FleetKey { is_secret: true, .. }");
    }
}
