//! Vectors and classes of engines are the numbers of their answers.
//!
//! Classes are probabilities in the order of the values.

use serde_json::Value;
use stator_dialect::{Kind, Pooling, replay_pooled};

/// Furthest that the sum of probabilities may be from one.
const SUM_ERROR: f32 = 1e-3;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let read = |kind, pooling| {
        let read = replay_pooled(kind, pooling, input).ok()?;
        assert!(read.finish.is_some() && read.tokens.is_empty());
        assert!(!read.pooled.is_empty() && read.pooled.iter().all(|value| value.is_finite()));
        Some(read.pooled)
    };
    let tree: Value = serde_json::from_slice(input).unwrap_or_default();
    if let Some(vector) = read(Kind::Vllm, Pooling::Vector) {
        assert_eq!(read(Kind::Vllm, Pooling::Classes).as_ref(), Some(&vector));
        if let Some(text) = tree["data"][0]["data"].as_str() {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(text, base64(&bytes));
        }
    }
    let [vector, classes] = [Pooling::Vector, Pooling::Classes].map(|of| read(Kind::Sglang, of));
    let (Some(vector), Some(classes)) = (&vector, &classes) else {
        assert_eq!(vector, classes, "one of both is refused");
        return;
    };
    if let Some(values) = tree["embedding"].as_array() {
        let values = values.iter().map(|value| value.as_f64().expect("a number") as f32);
        let close = |(one, other): (f32, &f32)| (one - other).abs() <= one.abs() * 1e-6;
        assert!(values.len() == vector.len() && values.zip(vector).all(close));
    }
    if let [_] = vector[..] {
        assert_eq!(vector, classes);
        return;
    }
    assert_eq!(vector.len(), classes.len());
    let sum: f32 = classes.iter().sum();
    assert!((sum - 1.0).abs() < SUM_ERROR, "{sum}");
    let mut pairs: Vec<_> = vector.iter().zip(classes).collect();
    pairs.sort_by(|one, other| one.0.total_cmp(other.0));
    assert!(pairs.is_sorted_by(|one, other| one.1 <= other.1), "{vector:?} {classes:?}");
}

/// Bytes as base64 with its padding.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = BASE64[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
