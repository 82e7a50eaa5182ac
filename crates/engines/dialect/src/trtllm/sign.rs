//! Signatures on hand-overs: proof that their sender knows the key that its servers share.
//!
//! Servers with `internal_request_auth_key` refuse a request that locates KV elsewhere, unless a
//! header signs it. Servers without the key accept any. Source: `serve/disagg_auth.py` of
//! TensorRT-LLM's main branch.

use crate::http::Headers;
use crate::{ApiKey, Fault};
use ::http::{HeaderName, HeaderValue};
use ring::hmac;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::fmt::Write;

const HEADER: HeaderName = HeaderName::from_static("x-trtllm-disagg-auth");

/// Signer with the shared key.
#[derive(Debug)]
pub(super) struct Signer(hmac::Key);

/// The signed part of a hand-over.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Signed {
    ctx_info_endpoint: Option<Endpoint>,
    encoded_opaque_state: Option<String>,
}

/// An endpoint; a list counts by its first element.
#[derive(Deserialize)]
#[serde(untagged)]
enum Endpoint {
    One(String),
    List(Vec<String>),
}

impl Signer {
    pub(super) fn new(key: &ApiKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.0.as_bytes()))
    }

    /// Adds the signature of the hand-over `told`, where it has anything to sign.
    ///
    /// # Errors
    ///
    /// [`Fault::Invalid`] where a server could not read the hand-over.
    pub(super) fn sign(&self, told: &RawValue, headers: &mut Headers) -> Result<(), Fault> {
        let Signed { ctx_info_endpoint, encoded_opaque_state: state } =
            serde_json::from_str(told.get())
                .map_err(|error| Fault::Invalid(format!("handover: {error}")))?;
        let endpoint = ctx_info_endpoint.and_then(|endpoint| match endpoint {
            Endpoint::One(endpoint) => Some(endpoint),
            Endpoint::List(endpoints) => endpoints.into_iter().next(),
        });
        if endpoint.is_none() && state.is_none() {
            return Ok(());
        }
        let signed = canonical(endpoint.as_deref(), state.as_deref());
        let mut value = String::from("sha256=");
        for byte in hmac::sign(&self.0, signed.as_bytes()).as_ref() {
            write!(value, "{byte:02x}").expect("a string takes all");
        }
        let value = HeaderValue::try_from(value).expect("digits can stand in a header");
        headers.push((HEADER, value));
        Ok(())
    }
}

/// The JSON that is signed, as Python writes it: sorted, without spaces, in ASCII.
fn canonical(endpoint: Option<&str>, state: Option<&str>) -> String {
    let mut json = String::new();
    for (before, text) in
        [("{\"ctx_info_endpoint\":", endpoint), (",\"encoded_opaque_state\":", state)]
    {
        json.push_str(before);
        match text {
            Some(text) => quote(&mut json, text),
            None => json.push_str("null"),
        }
    }
    json.push('}');
    json
}

/// A string as Python's `json.dumps` writes it.
fn quote(json: &mut String, text: &str) {
    json.push('"');
    for char in text.chars() {
        match char {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            ' '..='~' => json.push(char),
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    write!(json, "\\u{unit:04x}").expect("a string takes all");
                }
            }
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::raw;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// The header's value for what decode is told.
    fn check(key: &str, told: &str) -> Option<String> {
        let mut headers = Headers::new();
        Signer::new(&ApiKey(key.into())).sign(&raw(told), &mut headers).unwrap();
        let [(name, value)] = &headers[..] else {
            assert!(headers.is_empty());
            return None;
        };
        assert_eq!(name, "x-trtllm-disagg-auth");
        Some(value.to_str().unwrap().into())
    }

    /// Signatures were made with Python 3's own modules, for an endpoint E and a state S:
    /// `p = json.dumps({"ctx_info_endpoint": E, "encoded_opaque_state": S}, sort_keys=True,
    /// separators=(",", ":"))`, `hmac.new(key.encode(), p.encode(), hashlib.sha256).hexdigest()`.
    #[test]
    fn signatures_are_those_of_python() {
        let endpoint = "4fb177752f91fab751270b49e883857a68aa6203aa41760f178ca41b6e0a85b5";
        let state = "d518b424e51b46ccaa2827b2af2e21b3aa9c41ca9d785f02c41f786db2c66e83";
        let both = "491329f2a5764224c7c3fd05479dc7423960d167bf00b45e8b72d02cf21f7375";
        for (told, expected) in [
            (r#"{"ctx_info_endpoint":"tcp://10.0.0.1:5000"}"#, endpoint),
            (r#"{"ctx_info_endpoint":["tcp://10.0.0.1:5000","tcp://10.0.0.2:5000"]}"#, endpoint),
            (r#"{"ctx_request_id":1,"encoded_opaque_state":"b3BhcXVl","x":[]}"#, state),
            (r#"{"ctx_info_endpoint":[],"encoded_opaque_state":"b3BhcXVl"}"#, state),
            (
                r#"{"encoded_opaque_state":"b3BhcXVl","ctx_info_endpoint":"tcp://10.0.0.1:5000"}"#,
                both,
            ),
        ] {
            assert_eq!(check("hush", told), Some(format!("sha256={expected}")), "{told}");
        }
        // E is `ipc://`, a euro sign, a slash, a crab, `"\/`, a delete, a line feed and 0x01.
        let told = r#"{"ctx_info_endpoint":"ipc://€/🦀\"\\/\u007f\n\u0001",
            "encoded_opaque_state":"+/="}"#;
        let expected = "ca61126c14f99c57ddc6038b9bf41a55ac1f9f0f44a5a93b294c3997719926b8";
        assert_eq!(check("hüsh €", told), Some(format!("sha256={expected}")));
    }

    #[test]
    fn what_tells_no_place_is_not_signed_and_what_is_no_place_is_refused() {
        for told in ["{}", r#"{"ctx_info_endpoint":null,"encoded_opaque_state":null}"#] {
            assert_eq!(check("hush", told), None, "{told}");
        }
        let signer = Signer::new(&ApiKey("hush".into()));
        for told in ["7", r#"{"ctx_info_endpoint":7}"#, r#"{"encoded_opaque_state":["a"]}"#] {
            let signed = signer.sign(&raw(told), &mut Headers::new());
            assert!(matches!(signed, Err(Fault::Invalid(_))), "{told}");
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        assert!(!format!("{:?}", Signer::new(&ApiKey("hush".into()))).contains("hush"));
    }

    proptest! {
        #[test]
        fn what_is_signed_is_the_same_json_in_ascii(endpoint: String, state: Option<String>) {
            let json = canonical(Some(&endpoint), state.as_deref());
            prop_assert!(json.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", json);
            let read: Value = serde_json::from_str(&json).unwrap();
            let expected = json!({"ctx_info_endpoint": endpoint, "encoded_opaque_state": state});
            prop_assert_eq!(read, expected);
        }
    }
}
