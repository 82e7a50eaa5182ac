//! The token that carries a session's endpoint: base64 of `namespace/name`.
//!
//! Source: the session affinity of the llm-d router; RFC 4648 with padding.

use stator_epp_scheduler::Endpoint;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Longest token that is read: names in Kubernetes have at most 253 bytes.
const MAX_LENGTH: usize = 1024;

/// The token of an endpoint.
pub(super) fn encode(endpoint: &Endpoint) -> String {
    let name = format!("{}/{}", endpoint.namespace, endpoint.name);
    let mut token = String::with_capacity(name.len().div_ceil(3) * 4);
    for chunk in name.as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * position) & 63) as usize];
            token.push(if position <= chunk.len() { digit.into() } else { '=' });
        }
    }
    token
}

/// The endpoint's name in a token; `None` if the text is no token.
pub(super) fn decode(token: &str) -> Option<String> {
    if token.is_empty() || token.len() > MAX_LENGTH || !token.len().is_multiple_of(4) {
        return None;
    }
    let digits = token.strip_suffix("==").or(token.strip_suffix('=')).unwrap_or(token);
    let mut bytes = Vec::with_capacity(token.len());
    let (mut bits, mut count) = (0u32, 0);
    for digit in digits.bytes() {
        let value = ALPHABET.iter().position(|known| *known == digit)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Whether what a token carried names an endpoint.
pub(super) fn names(name: &str, endpoint: &Endpoint) -> bool {
    name.split_once('/') == Some((&endpoint.namespace, &endpoint.name))
}
