//! Blocks of text: how a prompt is named where nobody makes tokens of it.
//!
//! They stand in the place of blocks of tokens, for those who guess what a worker holds from what
//! it was sent; no engine knows them.

use crate::hash::SequenceHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of text that count as one token.
///
/// Source: the `estimate` of the llm-d router's `token-producer`.
pub const BYTES_PER_TOKEN: usize = 4;

/// Namespace of the blocks of a LoRA adapter and a cache salt; an empty string is the same as none.
pub fn text_seed(adapter: Option<&str>, cache_salt: Option<&str>) -> u64 {
    let seed = xxh3_64_with_seed(adapter.unwrap_or_default().as_bytes(), 1);
    xxh3_64_with_seed(cache_salt.unwrap_or_default().as_bytes(), seed)
}

/// Appends the chained hashes of the complete blocks of `pieces`, taken as one text, which blocks
/// of `block_size` tokens would have; returns how many bytes there are.
pub fn text_hashes<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    block_size: u32,
    seed: u64,
    sequence: &mut Vec<SequenceHash>,
) -> usize {
    let bytes_per_block = (block_size.max(1) as usize).saturating_mul(BYTES_PER_TOKEN);
    let (mut total, mut parent) = (0, seed);
    // What the pieces so far left over, always less than a block.
    let mut rest: Vec<u8> = Vec::new();
    let mut push = |block: &[u8]| {
        parent = xxh3_64_with_seed(block, parent);
        sequence.push(SequenceHash(parent));
    };
    for mut piece in pieces {
        total += piece.len();
        if !rest.is_empty() {
            let (head, tail) = piece.split_at(piece.len().min(bytes_per_block - rest.len()));
            rest.extend_from_slice(head);
            piece = tail;
            if rest.len() < bytes_per_block {
                continue;
            }
            push(&rest);
            rest.clear();
        }
        let blocks = piece.chunks_exact(bytes_per_block);
        rest.extend_from_slice(blocks.remainder());
        blocks.for_each(&mut push);
    }
    total
}

/// About how many tokens so many bytes are.
pub fn estimated_tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn blocks(pieces: &[Vec<u8>], size: u32) -> (usize, Vec<SequenceHash>) {
        let mut sequence = Vec::new();
        let total = text_hashes(pieces.iter().map(|piece| &piece[..]), size, 7, &mut sequence);
        (total, sequence)
    }

    proptest! {
        /// The cuts between pieces do not matter, and longer texts keep their beginning.
        #[test]
        fn pieces_make_one_text(
            pieces in vec(vec(any::<u8>(), 0..40), 0..12),
            more in vec(any::<u8>(), 0..40),
            size in 1u32..6,
        ) {
            let (total, sequence) = blocks(&pieces, size);
            let mut text = pieces.concat();
            prop_assert_eq!((total, &sequence), (text.len(), &blocks(&[text.clone()], size).1));
            prop_assert_eq!(sequence.len(), text.len() / (size as usize * BYTES_PER_TOKEN));
            text.extend(more);
            prop_assert!(blocks(&[text], size).1.starts_with(&sequence));
        }
    }

    #[test]
    fn adapters_and_salts_keep_texts_apart() {
        let seeds = [(None, None), (Some("a"), None), (None, Some("a")), (Some("b"), Some("a"))];
        let seeds: std::collections::HashSet<_> =
            seeds.map(|(adapter, salt)| text_seed(adapter, salt)).into_iter().collect();
        assert_eq!(seeds.len(), 4);
        assert_eq!(text_seed(Some(""), Some("")), text_seed(None, None));
    }

    #[test]
    fn a_part_of_a_token_counts_as_one() {
        assert_eq!([0, 1, 4, 5].map(estimated_tokens), [0, 1, 1, 2]);
    }
}
