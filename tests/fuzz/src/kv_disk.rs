//! A disk tier believes a header and descriptors only as they were written, at their place.
//!
//! Under a key it believes nothing that was not encrypted with it.
//!
//! An input is a header, and then the table of a segment. The last byte says which bit is flipped.

use stator_kv::BlockForm;
use stator_kv::cipher::{KvCipher, KvKey};
use stator_kv::disk::codec::DescriptorCodec;
use stator_kv::disk::format::{
    DESCRIPTOR_BYTES, Descriptor, DescriptorRead, FormSeed, HEADER_BYTES, Header, HeaderRead, Place,
};

const SEGMENT: u32 = 3;
/// The form of tables under a header that is not whole.
const FORM: BlockForm = BlockForm { fingerprint: [1; 32], block_bytes: 8192 };

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let mut form = FORM;
    if let HeaderRead::Whole(header) = Header::decode(input) {
        assert_eq!(Header::decode(&header.encode()), HeaderRead::Whole(header));
        assert!(header.geometry().segment_slots > 0);
        form = header.form;
    }
    let flipped = usize::from(input.last().copied().unwrap_or(0));
    let table = input.get(HEADER_BYTES..).unwrap_or(&[]);
    let seed = FormSeed::of(&form);
    let cipher = KvCipher::new(&KvKey::of_secret(b"fuzz"), &[1; 32]);
    let sealed = DescriptorCodec::new(&form, Some(cipher));
    for (slot, bytes) in (0..).zip(table.as_chunks::<DESCRIPTOR_BYTES>().0) {
        let place = Place { segment: SEGMENT, slot };
        let is_zero = bytes.iter().all(|byte| *byte == 0);
        let read = Descriptor::decode(bytes, seed, place);
        assert_eq!(read == DescriptorRead::Empty, is_zero);
        let nothing = if is_zero { DescriptorRead::Empty } else { DescriptorRead::Torn };
        assert_eq!(sealed.decode(bytes, place), nothing, "nobody has the key");
        let DescriptorRead::Whole(descriptor) = read else { continue };
        let written = descriptor.encode(seed, place);
        assert_eq!(Descriptor::decode(&written, seed, place), read);
        let torn = |bytes: &[u8; DESCRIPTOR_BYTES], place| {
            assert_eq!(Descriptor::decode(bytes, seed, place), DescriptorRead::Torn);
        };
        torn(bytes, Place { segment: SEGMENT + 1, slot });
        torn(bytes, Place { segment: SEGMENT, slot: slot + 1 });
        let hidden = sealed.encode(&descriptor, place);
        assert_eq!(sealed.decode(&hidden, place), read);
        let elsewhere = Place { segment: SEGMENT, slot: slot + 1 };
        assert_eq!(sealed.decode(&hidden, elsewhere), DescriptorRead::Torn);
        let mut bytes = *bytes;
        bytes[flipped / 2 % DESCRIPTOR_BYTES] ^= 1 << (flipped % 8);
        torn(&bytes, place);
    }
}
