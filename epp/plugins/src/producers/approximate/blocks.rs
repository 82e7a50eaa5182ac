//! Prompts as chains of block hashes.

use stator_epp_scheduler::Request;
use stator_protos::hash::SequenceHash;
use stator_protos::text::BYTES_PER_TOKEN;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The chains of one request, one for each block size that was asked for.
#[derive(Default)]
pub(super) struct Chains {
    key: Key,
    /// Whether the hashes come with the request.
    given: bool,
    by_size: Vec<(u32, Vec<SequenceHash>)>,
}

/// Key that tells apart requests with the same id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Key {
    id: String,
    tokens: u32,
    bytes: usize,
}

impl Key {
    fn of(request: &Request<'_>) -> Self {
        let bytes = request.prompt.text.iter().map(|piece| piece.len()).sum();
        Self { id: request.id.to_owned(), tokens: request.prompt.tokens, bytes }
    }
}

impl Chains {
    /// Forgets the request before this one.
    pub(super) fn begin(&mut self, request: &Request<'_>, given: bool) {
        self.given = given;
        self.key = Key::of(request);
        self.by_size.clear();
    }

    /// Keeps the chains if they are this request's.
    pub(super) fn continue_or_begin(&mut self, request: &Request<'_>, given: bool) {
        if self.key != Key::of(request) {
            self.begin(request, given);
        }
    }

    /// The chain of the request for one block size.
    pub(super) fn of(
        &mut self,
        request: &Request<'_>,
        block_size: u32,
        max_blocks: usize,
    ) -> &[SequenceHash] {
        let known = self.by_size.iter().position(|(size, _)| *size == block_size);
        let position = known.unwrap_or_else(|| {
            let chain = match self.given {
                true => given_chain(request, max_blocks),
                false => chain(request, block_size, max_blocks),
            };
            self.by_size.push((block_size, chain));
            self.by_size.len() - 1
        });
        &self.by_size[position].1
    }
}

/// The first `max_blocks` of the hashes that came with a request. They are mixed with the model's
/// name and the salt, so that hashes of other models never match.
fn given_chain(request: &Request<'_>, max_blocks: usize) -> Vec<SequenceHash> {
    let salt = request.prompt.cache_salt.unwrap_or_default();
    let seed = xxh3_64_with_seed(salt.as_bytes(), xxh3_64(request.model.as_bytes()));
    let hashes = request.prompt.given_hashes.iter().take(max_blocks);
    hashes.map(|hash| SequenceHash(xxh3_64_with_seed(&hash.to_le_bytes(), seed))).collect()
}

/// The hash of each of the first `max_blocks` blocks and all before it; the last may be short.
pub(in crate::producers) fn chain(
    request: &Request<'_>,
    block_size: u32,
    max_blocks: usize,
) -> Vec<SequenceHash> {
    let prompt = &request.prompt;
    let salt = prompt.cache_salt.unwrap_or_default();
    // Another model or salt makes other blocks of the same text.
    let mut parent = xxh3_64_with_seed(salt.as_bytes(), xxh3_64(request.model.as_bytes()));
    let mut next = |block: &[u8]| {
        parent = xxh3_64_with_seed(block, parent);
        SequenceHash(parent)
    };
    match prompt.token_ids {
        Some(ids) => {
            let blocks = ids.chunks(block_size as usize).take(max_blocks);
            blocks.map(|block| next(bytemuck::cast_slice(block))).collect()
        }
        None => {
            let mut chain = Vec::new();
            let size = block_size as usize * BYTES_PER_TOKEN;
            for_each_block(prompt.text, size, |block| {
                chain.push(next(block));
                chain.len() < max_blocks
            });
            chain
        }
    }
}

/// Calls `visit` with each block of `size` bytes, and with what is left, until it gives false.
fn for_each_block(pieces: &[&[u8]], size: usize, mut visit: impl FnMut(&[u8]) -> bool) {
    let mut begun = Vec::with_capacity(size);
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            // A block within one piece is visited where it lies, without a copy.
            if begun.is_empty() && rest.len() >= size {
                if !visit(&rest[..size]) {
                    return;
                }
                rest = &rest[size..];
                continue;
            }
            let (fits, more) = rest.split_at(rest.len().min(size - begun.len()));
            begun.extend_from_slice(fits);
            rest = more;
            if begun.len() == size {
                if !visit(&begun) {
                    return;
                }
                begun.clear();
            }
        }
    }
    if !begun.is_empty() {
        visit(&begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However a text lies in pieces, its blocks are those of the whole.
        #[test]
        fn pieces_do_not_change_blocks(
            pieces in prop::collection::vec(prop::collection::vec(0..3u8, 0..30), 0..8),
            size in 1..20usize,
            limit in 1..20usize,
        ) {
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            let mut blocks = Vec::new();
            for_each_block(&pieces, size, |block| {
                blocks.push(block.to_vec());
                blocks.len() < limit
            });
            let whole = pieces.concat();
            let wanted: Vec<_> = whole.chunks(size).take(limit).map(<[u8]>::to_vec).collect();
            prop_assert_eq!(blocks, wanted);
        }
    }
}
