//! Writing JSON strings and numbers straight into a byte buffer.

/// Appends `text` as a JSON string with its quotes.
pub fn push_json_str(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    push_escaped(out, text);
    out.push(b'"');
}

/// Appends `text` escaped as the inside of a JSON string.
///
/// Text that needs no escape, which is nearly all of it, is found eight bytes at a time and
/// copied as one run.
pub fn push_escaped(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut start = 0;
    while let Some(at) = find_special(&bytes[start..]).map(|at| start + at) {
        out.extend_from_slice(&bytes[start..at]);
        push_escape(out, bytes[at]);
        start = at + 1;
    }
    out.extend_from_slice(&bytes[start..]);
}

/// Appends an integer.
pub fn push_int(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a number; what JSON cannot express becomes the nearest value in -9999..=9999, as
/// clients expect for the logarithm of zero.
pub fn push_f32(out: &mut Vec<u8>, value: f32) {
    use std::io::Write;
    let finite = if value.is_nan() { -9999.0 } else { value.clamp(-9999.0, 9999.0) };
    // Writing to a vector cannot fail.
    let _ = write!(out, "{finite}");
}

/// The first byte that must be escaped: a control character, a quote or a backslash.
fn find_special(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The classic "has a byte less than n" test; a false alarm is impossible because bytes with
    // the high bit set are masked out, and such bytes never need an escape.
    let has_zero = |v: u64| v.wrapping_sub(ONES) & !v & HIGH;
    let mut offset = 0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight bytes"));
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let quote = has_zero(word ^ (ONES * u64::from(b'"')));
        let backslash = has_zero(word ^ (ONES * u64::from(b'\\')));
        let found = control | quote | backslash;
        if found != 0 {
            // Borrows only travel upwards, so the lowest hit is a true one.
            return Some(offset + found.trailing_zeros() as usize / 8);
        }
        offset += 8;
    }
    let special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    chunks.remainder().iter().position(special).map(|at| offset + at)
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' => out.extend_from_slice(b"\\\""),
        b'\\' => out.extend_from_slice(b"\\\\"),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0x08 => out.extend_from_slice(b"\\b"),
        0x0c => out.extend_from_slice(b"\\f"),
        control => {
            out.extend_from_slice(b"\\u00");
            out.push(HEX[usize::from(control >> 4)]);
            out.push(HEX[usize::from(control & 15)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is written reads back as the same text, and is as short as serde_json's.
        #[test]
        fn agrees_with_serde_json(text in "[\\x00-\\x7f\u{80}-\u{10ffff}]{0,80}") {
            let mut out = Vec::new();
            push_json_str(&mut out, &text);
            prop_assert_eq!(out, serde_json::to_vec(&text).unwrap());
        }
    }

    #[test]
    fn logprob_of_zero_is_a_number() {
        let mut out = Vec::new();
        push_f32(&mut out, f32::NEG_INFINITY);
        assert_eq!(out, b"-9999");
    }
}
