//! Descriptors as a directory has them: in plain bytes, or encrypted.
//!
//! An encrypted descriptor has 128 bytes, too: magic 4, version 2, zeros 2, nonce 12 and tag 16 of
//! the descriptor, and then, encrypted, 92: name 16, hash 8, checksum 8, epoch 8, depth 4, length 4,
//! parent 8, tenant 8, nonce and tag of the payload 28. Who has no key learns from it how many blocks
//! there are, and when they were written.

use super::format::{
    DESCRIPTOR_BYTES, Descriptor, DescriptorRead, FIELD_BYTES, FormSeed, Place, VERSION,
    decode_fields, encode_fields,
};
use crate::BlockForm;
use crate::cipher::{CipherTag, KvCipher};

const MAGIC: u32 = u32::from_le_bytes(*b"kvs1");
/// Bytes before the encrypted part: what shows the kind, and the tag.
const HEAD: usize = 8 + CipherTag::BYTES;
/// Encrypted bytes before those of the payload's tag.
const FIELDS: usize = FIELD_BYTES;
const _: () = assert!(HEAD + FIELDS + CipherTag::BYTES == DESCRIPTOR_BYTES);

/// Writes and reads descriptors of a form, encrypted where there is a cipher.
#[derive(Clone, Debug)]
pub struct DescriptorCodec {
    seed: FormSeed,
    cipher: Option<KvCipher>,
}

impl DescriptorCodec {
    /// The codec of a directory.
    pub fn new(form: &BlockForm, cipher: Option<KvCipher>) -> Self {
        Self { seed: FormSeed::of(form), cipher }
    }

    /// The cipher of the payloads, too.
    pub(super) fn cipher(&self) -> Option<&KvCipher> {
        self.cipher.as_ref()
    }

    /// A descriptor as bytes, for its place.
    pub fn encode(&self, descriptor: &Descriptor, place: Place) -> [u8; DESCRIPTOR_BYTES] {
        let Some(cipher) = &self.cipher else { return descriptor.encode(self.seed, place) };
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&(VERSION as u16).to_le_bytes());
        let flags = encode_fields(descriptor, &mut bytes[HEAD..HEAD + FIELDS]);
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[HEAD + FIELDS..].copy_from_slice(&descriptor.seal.to_bytes());
        let context = self.context(&bytes, place);
        let tag = cipher.seal_record(&context, &mut bytes[HEAD..]);
        bytes[8..HEAD].copy_from_slice(&tag.to_bytes());
        bytes
    }

    /// Reads what stands at a place.
    pub fn decode(&self, bytes: &[u8; DESCRIPTOR_BYTES], place: Place) -> DescriptorRead {
        let Some(cipher) = &self.cipher else { return Descriptor::decode(bytes, self.seed, place) };
        if bytes.iter().all(|byte| *byte == 0) {
            return DescriptorRead::Empty;
        }
        let kind = [&MAGIC.to_le_bytes()[..], &(VERSION as u16).to_le_bytes()].concat();
        let (mut bytes, tag) = (*bytes, bytes[8..].first_chunk());
        let tag = CipherTag::from_bytes(*tag.expect("the descriptor is longer"));
        let context = self.context(&bytes, place);
        if bytes[..6] != kind || !cipher.open_record(&context, &tag, &mut bytes[HEAD..]) {
            return DescriptorRead::Torn;
        }
        let flags = u16::from_le_bytes([bytes[6], bytes[7]]);
        let seal = bytes[HEAD + FIELDS..].first_chunk().expect("it ends the descriptor");
        match decode_fields(&bytes[HEAD..HEAD + FIELDS], flags) {
            None => DescriptorRead::Torn,
            Some(read) => {
                DescriptorRead::Whole(Descriptor { seal: CipherTag::from_bytes(*seal), ..read })
            }
        }
    }

    /// Authenticated context of a descriptor: its form, its place, and its plain bytes.
    fn context(&self, bytes: &[u8; DESCRIPTOR_BYTES], place: Place) -> [u8; 24] {
        let mut context = [0; 24];
        context[..8].copy_from_slice(&bytes[..8]);
        context[8..16].copy_from_slice(&self.seed.number().to_le_bytes());
        context[16..20].copy_from_slice(&place.segment.to_le_bytes());
        context[20..].copy_from_slice(&place.slot.to_le_bytes());
        context
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::KvKey;
    use crate::{Block, Checksum, TenantKey};
    use proptest::prelude::*;
    use stator_protos::hash::SequenceHash;
    use stator_protos::name::BlockName;

    const FORM: BlockForm = BlockForm { fingerprint: [7; 32], block_bytes: 5000 };

    fn codec(secret: &str) -> DescriptorCodec {
        let cipher = KvCipher::new(&KvKey::of_secret(secret.as_bytes()), &[1; 32]);
        DescriptorCodec::new(&FORM, Some(cipher))
    }

    proptest! {
        #[test]
        fn encrypted_descriptors_survive_and_every_flipped_bit_tears_them(
            name: u128, hashes: [Option<u64>; 2], numbers: (u64, u64, u64), sizes: (u32, u32),
            slot: u32, bit in 0..DESCRIPTOR_BYTES * 8,
        ) {
            let ((checksum, epoch, tenant), (depth, length)) = (numbers, sizes);
            let [hash, parent] = hashes.map(|hash| hash.map(SequenceHash));
            let tenant = TenantKey(tenant);
            let block = Block { name: BlockName(name), hash, parent, depth, tenant };
            let seal = CipherTag { nonce: [3; 12], tag: [4; 16] };
            let descriptor = Descriptor { block, checksum: Checksum(checksum), epoch, length, seal };
            let place = Place { segment: 3, slot };
            let mut bytes = codec("a").encode(&descriptor, place);
            prop_assert_eq!(codec("a").decode(&bytes, place), DescriptorRead::Whole(descriptor));
            let torn = DescriptorRead::Torn;
            prop_assert_eq!(codec("b").decode(&bytes, place), torn);
            prop_assert_eq!(DescriptorCodec::new(&FORM, None).decode(&bytes, place), torn);
            prop_assert_eq!(codec("a").decode(&bytes, Place { segment: 4, slot }), torn);
            let shows = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
            prop_assert!(!shows(&BlockName(name).to_bytes()));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(codec("a").decode(&bytes, place), torn);
        }
    }
}
