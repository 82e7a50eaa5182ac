//! Thoughts that a client keeps for us: `encrypted_content` of a reasoning item.
//!
//! A client without a stored conversation sends its reasoning items back. Some send the sealed content
//! alone, and drop the text. Content is AES-256-GCM under a key of the client's account.

use crate::json::Json;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use std::fmt;
use std::sync::Arc;

/// First byte of all content, for the day on which its form changes.
const FORM: u8 = 1;

/// Seals and opens thoughts of one account. Cheap to clone.
#[derive(Clone)]
pub struct ThoughtSeal(Arc<SealKeys>);

struct SealKeys {
    content: LessSafeKey,
    nonces: hmac::Key,
}

impl ThoughtSeal {
    /// A seal with a key that nobody else has.
    pub fn new(key: &[u8; 32]) -> Self {
        let of = |label: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), label);
        let (content, nonces) = (of(b"content"), of(b"nonces"));
        let content = UnboundKey::new(&AES_256_GCM, content.as_ref()).expect("a key has 32 bytes");
        let nonces = hmac::Key::new(hmac::HMAC_SHA256, nonces.as_ref());
        Self(Arc::new(SealKeys { content: LessSafeKey::new(content), nonces }))
    }

    /// Seals a text. Equal texts have equal content: a nonce belongs to its text, so that no two texts
    /// share one.
    pub fn seal(&self, text: &str) -> String {
        let tag = hmac::sign(&self.0.nonces, text.as_bytes());
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&tag.as_ref()[..NONCE_LEN]);
        let mut sealed = text.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        let done = self.0.content.seal_in_place_append_tag(unique, Aad::from([FORM]), &mut sealed);
        done.expect("a text is shorter than the cipher's limit");
        BASE64.encode([&[FORM][..], &nonce, &sealed].concat())
    }

    /// The text of sealed content; none if it was not sealed here.
    pub fn open(&self, content: &str) -> Option<String> {
        let bytes = BASE64.decode(content).ok()?;
        let (form, rest) = bytes.split_first()?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let text = self.0.content.open_in_place(nonce, Aad::from([*form]), &mut sealed).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }

    /// Adds the sealed content to the reasoning items of a response's object.
    pub fn seal_object(&self, object: &[u8]) -> Option<Vec<u8>> {
        let Json::Object(mut members) = serde_json::from_slice(object).ok()? else { return None };
        let output = members.iter_mut().find(|(name, _)| name == "output");
        if let Some((_, Json::Array(items))) = output {
            items.iter_mut().for_each(|item| self.seal_item(item));
        }
        serde_json::to_vec(&Json::Object(members)).ok()
    }

    fn seal_item(&self, item: &mut Json<'_>) {
        let Json::Object(members) = item else { return };
        let find = |name: &str| members.iter().position(|(known, _)| known == name);
        let (Some(content), Some(sealed)) = (find("content"), find("encrypted_content")) else {
            return;
        };
        let Json::Array(parts) = &members[content].1 else { return };
        let text: String =
            parts.iter().filter_map(|part| part.get("text").and_then(Json::as_str)).collect();
        members[sealed].1 = Json::Str(self.seal(&text).into());
    }
}

impl PartialEq for ThoughtSeal {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for ThoughtSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThoughtSeal").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Sealed text is opened by its own key and by no other; changed text by none.
        #[test]
        fn only_what_was_sealed_here_is_opened(text in ".{0,80}", at: prop::sample::Index) {
            let seal = ThoughtSeal::new(&[1; 32]);
            let content = seal.seal(&text);
            prop_assert_eq!(seal.open(&content), Some(text));
            prop_assert_eq!(ThoughtSeal::new(&[2; 32]).open(&content), None);
            let mut bytes = BASE64.decode(&content).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1;
            prop_assert_eq!(seal.open(&BASE64.encode(&bytes)), None);
            prop_assert_eq!(seal.open(&BASE64.encode(&bytes[..at])), None);
        }

        /// Whatever a client sends, nothing breaks.
        #[test]
        fn any_content_is_read(content in ".{0,60}") {
            prop_assert_eq!(ThoughtSeal::new(&[1; 32]).open(&content), None);
        }
    }

    #[test]
    fn a_nonce_belongs_to_its_text() {
        let seal = ThoughtSeal::new(&[1; 32]);
        assert_eq!(seal.seal("a"), seal.seal("a"));
        assert_ne!(seal.seal("a")[..17], seal.seal("b")[..17]);
    }
}
