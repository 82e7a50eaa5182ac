//! Index objects, headers and frames of extents: what is read survives the wire, and is of no other
//! form, block or key.
//!
//! An input is a byte that says which of the three the rest is. The tag of an index or a header is
//! the genuine one, which no fuzzer finds.

use stator_kv::cipher::{KvCipher, KvKey};
use stator_kv::object::format::{
    BlockTag, ExtentHeader, IndexObject, Seal, TRAILER_BYTES, open_frame, put_trailer,
    read_trailer, seal_frame,
};
use stator_kv::{BlockForm, Checksum};
use stator_protos::name::BlockName;

const FORM: BlockForm = BlockForm { fingerprint: [3; 32], block_bytes: 100 };
const NAME: BlockName = BlockName(5);
const SUM: Checksum = Checksum(6);

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((kind, content)) = input.split_first() else { return };
    let cipher = KvCipher::new(&KvKey::of_secret(b"fuzz"), &[1; 32]);
    match kind % 3 {
        0 => index(content, &cipher),
        1 => header(content, &cipher),
        _ => {
            signed_frame(content);
            encrypted_frame(content, &cipher);
        }
    }
}

/// The seals that know this key and none, and the content as it is closed without one.
fn seals(content: &[u8], cipher: &KvCipher) -> (Seal, Seal, Vec<u8>) {
    let seal = Seal::new(None, &FORM.fingerprint);
    let secret = Seal::new(None, &FORM.fingerprint).with_cipher(Some(cipher.clone()));
    let mut sealed = content.to_vec();
    seal.close(&mut sealed);
    (seal, secret, sealed)
}

fn index(content: &[u8], cipher: &KvCipher) {
    let (seal, secret, sealed) = seals(content, cipher);
    assert_eq!(IndexObject::decode(&sealed, &FORM, &secret), None, "nobody has the key");
    assert_eq!(IndexObject::decode(content, &FORM, &seal), None, "nobody sealed this");
    let other = BlockForm { fingerprint: [4; 32], ..FORM };
    assert_eq!(IndexObject::decode(&sealed, &other, &seal), None);
    if let Some(index) = IndexObject::decode(&sealed, &FORM, &seal) {
        let bytes = index.encode(&FORM, &seal);
        assert_eq!(IndexObject::decode(&bytes, &FORM, &seal).as_ref(), Some(&index));
        let hidden = index.encode(&FORM, &secret);
        assert_eq!(IndexObject::decode(&hidden, &FORM, &seal), None);
        assert_eq!(IndexObject::decode(&hidden, &FORM, &secret), Some(index));
    }
}

fn header(content: &[u8], cipher: &KvCipher) {
    let (seal, secret, sealed) = seals(content, cipher);
    assert_eq!(ExtentHeader::decode(&sealed, &FORM, &secret), None, "nobody has the key");
    assert_eq!(ExtentHeader::decode(content, &FORM, &seal), None, "nobody sealed this");
    let other = BlockForm { fingerprint: [4; 32], ..FORM };
    assert_eq!(ExtentHeader::decode(&sealed, &other, &seal), None);
    if let Some(header) = ExtentHeader::decode(&sealed, &FORM, &seal) {
        let bytes = header.encode(&FORM, &seal);
        assert_eq!(ExtentHeader::decode(&bytes, &FORM, &seal).as_ref(), Some(&header));
        let hidden = header.encode(&FORM, &secret);
        assert_eq!(ExtentHeader::decode(&hidden, &FORM, &seal), None);
        assert_eq!(ExtentHeader::decode(&hidden, &FORM, &secret), Some(header));
    }
}

/// A place and what is done to its bits, both of the content.
fn change(frame: &mut [u8], content: &[u8]) {
    let at = content.iter().fold(0, |sum, byte| sum + usize::from(*byte)) % frame.len();
    frame[at] ^= content.first().map_or(1, |byte| byte | 1);
}

/// The content as a frame under a fleet's secret, and as the KV of one.
fn signed_frame(content: &[u8]) {
    let seal = Seal::new(Some([1; 32]), &FORM.fingerprint);
    let tag = |kv: &[u8]| -> BlockTag {
        let mut tag = seal.block(NAME);
        tag.update(kv);
        tag
    };
    let read = |frame: &[u8], name| {
        let (kv, trailer) = frame.split_last_chunk::<TRAILER_BYTES>()?;
        read_trailer(trailer, name, tag(kv))
    };
    assert_eq!(read(content, NAME), None, "nobody has the secret");
    let mut frame = content.to_vec();
    put_trailer(&mut frame, NAME, SUM, tag(content));
    assert_eq!(read(&frame, NAME), Some(SUM));
    assert_eq!(read(&frame, BlockName(7)), None);
    change(&mut frame, content);
    assert_eq!(read(&frame, NAME), None);
}

/// The content as a frame that somebody encrypted, and as the KV of one.
fn encrypted_frame(content: &[u8], cipher: &KvCipher) {
    let read = |frame: &[u8], name| {
        let (kv, trailer) = frame.split_last_chunk::<TRAILER_BYTES>()?;
        let mut kv = kv.to_vec();
        let sum = open_frame(&mut kv, trailer, name, cipher)?;
        Some((kv, sum))
    };
    assert_eq!(read(content, NAME), None, "nobody has the key");
    let mut frame = content.to_vec();
    seal_frame(&mut frame, 0, (NAME, SUM), cipher);
    assert_eq!(read(&frame, NAME), Some((content.to_vec(), SUM)));
    assert_eq!(read(&frame, BlockName(7)), None);
    change(&mut frame, content);
    assert_eq!(read(&frame, NAME), None);
}
