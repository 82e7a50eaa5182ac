//! The bytes of every token, for models whose tokens are bytes.

use tokenizers::{Model as _, Tokenizer};

/// Token id to bytes, in two flat arrays.
#[derive(Debug)]
pub(crate) struct ByteTable {
    bytes: Vec<u8>,
    /// Start of each token, and end of the last one.
    starts: Vec<u32>,
    /// Tokens that are left out where special tokens are skipped.
    special: Vec<bool>,
}

impl ByteTable {
    /// The table of a tokenizer whose decoder is `ByteLevel`.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        let model = tokenizer.get_model();
        let added = tokenizer.get_added_vocabulary();
        let chars = chars_to_bytes();
        let ids = tokenizer.get_vocab(true).into_values().max().map_or(0, |max| max + 1);
        let mut table =
            Self { bytes: Vec::new(), starts: vec![0], special: Vec::with_capacity(ids as usize) };
        for id in 0..ids {
            // What is not in the vocabulary has no bytes, as it decodes to nothing.
            let token =
                added.simple_id_to_token(id).or_else(|| model.id_to_token(id)).unwrap_or_default();
            match token
                .chars()
                .map(|c| chars.get(c as usize).copied().flatten())
                .collect::<Option<Vec<u8>>>()
            {
                Some(bytes) => table.bytes.extend(bytes),
                None => table.bytes.extend(token.bytes()),
            }
            table.starts.push(table.bytes.len() as u32);
            table.special.push(added.is_special_token(&token));
        }
        table
    }

    /// The bytes of a token; none for an id outside the vocabulary.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        match self.starts.get(id as usize..id as usize + 2) {
            Some([start, end]) => &self.bytes[*start as usize..*end as usize],
            _ => &[],
        }
    }

    /// The most bytes that one token has.
    pub(crate) fn longest(&self) -> usize {
        self.starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max().unwrap_or(0)
    }

    /// Whether a token is special.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

/// The character that stands for each byte in the vocabulary of a byte-level model: printable
/// bytes stand for themselves, the others are counted up from U+0100.
///
/// Source: GPT-2's encoder, `bytes_to_unicode`.
pub(crate) fn bytes_to_chars() -> [char; 256] {
    let mut chars = ['\0'; 256];
    let mut next = 0x100u32;
    for byte in 0..=255u8 {
        chars[usize::from(byte)] = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("U+0100 and the 68 after it are characters")
            }
        };
    }
    chars
}

fn chars_to_bytes() -> Vec<Option<u8>> {
    let mut bytes = vec![None; 0x200];
    for (byte, c) in (0..=255u8).zip(bytes_to_chars()) {
        bytes[c as usize] = Some(byte);
    }
    bytes
}
