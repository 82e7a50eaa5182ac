//! Token ids as JSON: lists are long, so they are written and read without a tree.

/// Appends `ids` as a JSON array without spaces.
pub fn write_token_ids(ids: &[u32], out: &mut Vec<u8>) {
    // Ids of today's vocabularies have up to six digits; a comma follows each.
    out.reserve(ids.len() * 7 + 16);
    let mut before = b'[';
    for &id in ids {
        if id < 100_000_000 {
            let (digits, length) = eight_digits(id);
            // A copy of a fixed length is one instruction; one of the right length is a call.
            let text = u128::from(digits) << 8 | u128::from(before);
            out.extend_from_slice(&text.to_le_bytes());
            out.truncate(out.len() - 15 + length);
        } else {
            out.push(before);
            out.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
        }
        before = b',';
    }
    if ids.is_empty() {
        out.push(before);
    }
    out.push(b']');
}

/// The digits of an id below 10^8, the first in the lowest byte, and how many they are.
///
/// All digits at once: fours, then pairs, then digits are split by products that stand for
/// divisions, each in a lane of its own.
fn eight_digits(id: u32) -> (u64, usize) {
    let fours = u64::from(id / 10_000) | u64::from(id % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007F_0000_007F;
    let pairs = hundreds | (fours - hundreds * 100) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    let digits = tens | (pairs - tens * 10) << 8;
    let leading_zeros = (digits.trailing_zeros() / 8).min(7);
    let text = (digits | 0x3030_3030_3030_3030) >> (leading_zeros * 8);
    (text, 8 - leading_zeros as usize)
}

/// Reads a JSON array of whole numbers below 2^32; nothing where `raw` is anything else.
pub fn read_token_ids(raw: &[u8]) -> Option<Vec<u32>> {
    let mut rest = raw.trim_ascii().strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii();
    let mut ids = Vec::with_capacity(rest.len() / 6);
    if rest.is_empty() {
        return Some(ids);
    }
    loop {
        let (id, length) = leading_id(rest)?;
        ids.push(id);
        rest = rest[length..].trim_ascii_start();
        match rest.split_first() {
            None => return Some(ids),
            Some((b',', after)) => rest = after.trim_ascii_start(),
            Some(_) => return None,
        }
    }
}

/// The number at the start of `text` and how many digits it has.
fn leading_id(text: &[u8]) -> Option<(u32, usize)> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // The largest id has ten digits; what fits those fits 64 bits.
    if length == 0 || length > 10 || (length > 1 && text[0] == b'0') {
        return None;
    }
    let id = text[..length].iter().fold(0, |id, &digit| id * 10 + u64::from(digit - b'0'));
    Some((u32::try_from(id).ok()?, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Written ids are those that serde_json writes, and come back.
        #[test]
        fn ids_survive(ids in prop::collection::vec(any::<u32>(), 0..50)) {
            let mut written = Vec::new();
            write_token_ids(&ids, &mut written);
            prop_assert_eq!(&written, &serde_json::to_vec(&ids).expect("ids serialise"));
            prop_assert_eq!(read_token_ids(&written), Some(ids));
        }

        /// Ids of every length are written.
        #[test]
        fn lengths_are_right(id in any::<u32>(), shift in 0..32) {
            let mut written = Vec::new();
            write_token_ids(&[id >> shift], &mut written);
            prop_assert_eq!(written, format!("[{}]", id >> shift).into_bytes());
        }

        /// A list is read exactly where serde_json reads it as ids.
        #[test]
        fn lists_are_read_as_serde_json_does(raw in "\\[( ?(-?[0-9]{0,11}|1.5|\"a\") ?,?){0,4}\\]") {
            let model = serde_json::from_str::<Vec<u32>>(&raw).ok();
            // serde_json takes -0 as an id; nobody means that.
            prop_assume!(!raw.contains("-0"));
            prop_assert_eq!(read_token_ids(raw.as_bytes()), model);
        }
    }
}
