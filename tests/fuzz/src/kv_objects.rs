//! Index objects and headers of extents: what is read survives the wire, and is of no other form.
//!
//! An input is a byte that says which of the two the rest is. The tag at its end is the genuine one,
//! which no fuzzer finds.

use stator_kv::BlockForm;
use stator_kv::cipher::{KvCipher, KvKey};
use stator_kv::object::format::{ExtentHeader, IndexObject, Seal};

const FORM: BlockForm = BlockForm { fingerprint: [3; 32], block_bytes: 100 };

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((kind, content)) = input.split_first() else { return };
    let seal = Seal::new(None, &FORM.fingerprint);
    let cipher = KvCipher::new(&KvKey::of_secret(b"fuzz"), &[1; 32]);
    let secret = Seal::new(None, &FORM.fingerprint).with_cipher(Some(cipher));
    let mut sealed = content.to_vec();
    seal.close(&mut sealed);
    assert_eq!(IndexObject::decode(&sealed, &FORM, &secret), None, "nobody has the key");
    assert_eq!(ExtentHeader::decode(&sealed, &FORM, &secret), None, "nobody has the key");
    let other = BlockForm { fingerprint: [4; 32], ..FORM };
    if kind % 2 == 0 {
        assert_eq!(IndexObject::decode(content, &FORM, &seal), None, "nobody sealed this");
        assert_eq!(IndexObject::decode(&sealed, &other, &seal), None);
        if let Some(index) = IndexObject::decode(&sealed, &FORM, &seal) {
            let bytes = index.encode(&FORM, &seal);
            assert_eq!(IndexObject::decode(&bytes, &FORM, &seal).as_ref(), Some(&index));
            let hidden = index.encode(&FORM, &secret);
            assert_eq!(IndexObject::decode(&hidden, &FORM, &seal), None);
            assert_eq!(IndexObject::decode(&hidden, &FORM, &secret), Some(index));
        }
    } else {
        assert_eq!(ExtentHeader::decode(content, &FORM, &seal), None, "nobody sealed this");
        assert_eq!(ExtentHeader::decode(&sealed, &other, &seal), None);
        if let Some(header) = ExtentHeader::decode(&sealed, &FORM, &seal) {
            let bytes = header.encode(&FORM, &seal);
            assert_eq!(ExtentHeader::decode(&bytes, &FORM, &seal).as_ref(), Some(&header));
            let hidden = header.encode(&FORM, &secret);
            assert_eq!(ExtentHeader::decode(&hidden, &FORM, &seal), None);
            assert_eq!(ExtentHeader::decode(&hidden, &FORM, &secret), Some(header));
        }
    }
}
