//! Bodies as lists of pieces.

use bytes::Bytes;

/// Most bytes of a body in one message to a data plane. Some builds of Envoy cap messages at
/// 64 KiB.
///
/// Source: `BodyByteLimit` of the llm-d router.
pub(crate) const CHUNK_MAX_BYTES: usize = 62_000;

/// Regroups pieces into chunks of at most [`CHUNK_MAX_BYTES`], all but the last of them full.
/// No byte is copied and no chunk is empty.
pub(crate) fn chunks(pieces: impl IntoIterator<Item = Bytes>, mut emit: impl FnMut(Vec<Bytes>)) {
    let (mut chunk, mut room) = (Vec::new(), CHUNK_MAX_BYTES);
    for mut piece in pieces {
        while piece.len() > room {
            chunk.push(piece.split_to(room));
            emit(std::mem::take(&mut chunk));
            room = CHUNK_MAX_BYTES;
        }
        if !piece.is_empty() {
            room -= piece.len();
            chunk.push(piece);
        }
    }
    if !chunk.is_empty() {
        emit(chunk);
    }
}

/// The bytes in all pieces.
pub(crate) fn total(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Whether two lists of pieces hold the same bytes, however they are cut.
pub(crate) fn same(a: &[Bytes], b: &[Bytes]) -> bool {
    if total(a) != total(b) {
        return false;
    }
    let (mut a, mut b) = (a.iter(), b.iter());
    let (mut left, mut right): (&[u8], &[u8]) = (&[], &[]);
    loop {
        // Both end together, as they are of one length.
        while left.is_empty() {
            let Some(piece) = a.next() else { return true };
            left = piece;
        }
        while right.is_empty() {
            let Some(piece) = b.next() else { return true };
            right = piece;
        }
        let common = left.len().min(right.len());
        // A piece that was passed on is the same memory: nothing to compare.
        if left.as_ptr() != right.as_ptr() && left[..common] != right[..common] {
            return false;
        }
        (left, right) = (&left[common..], &right[common..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(sizes: &[usize]) -> Vec<Bytes> {
        let mut next = 0_u8;
        let mut piece = |&size: &usize| {
            let bytes = (0..size).map(|_| {
                next = next.wrapping_add(1);
                next
            });
            bytes.collect::<Bytes>()
        };
        sizes.iter().map(&mut piece).collect()
    }

    fn check(sizes: &[usize]) {
        let pieces = pieces(sizes);
        let mut found = Vec::new();
        chunks(pieces.clone(), |chunk| found.push(chunk));
        let lengths: Vec<_> = found.iter().map(|chunk| total(chunk)).collect();
        let (full, rest) = (total(&pieces) / CHUNK_MAX_BYTES, total(&pieces) % CHUNK_MAX_BYTES);
        let mut expected = vec![CHUNK_MAX_BYTES; full];
        expected.extend(Some(rest).filter(|rest| *rest > 0));
        assert_eq!(lengths, expected);
        assert_eq!(found.concat().concat(), pieces.concat());
    }

    proptest! {
        #[test]
        fn chunks_are_full_and_hold_every_byte(
            sizes in proptest::collection::vec(0_usize..200_000, 0..6),
        ) {
            check(&sizes);
        }
    }

    #[test]
    fn chunks_end_where_the_body_ends() {
        check(&[]);
        check(&[0]);
        check(&[CHUNK_MAX_BYTES]);
        check(&[CHUNK_MAX_BYTES + 1]);
        check(&[1, CHUNK_MAX_BYTES - 1, 1]);
        check(&[2 * CHUNK_MAX_BYTES]);
    }

    #[test]
    fn the_same_bytes_are_the_same_however_they_are_cut() {
        let whole = [Bytes::from_static(b"abcdef")];
        let cut = [Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"cdef")];
        assert!(same(&whole, &cut));
        assert!(same(&[], &[Bytes::new()]));
        assert!(!same(&whole, &cut[..1]));
        assert!(!same(&whole, &[Bytes::from_static(b"abcdeg")]));
    }
}
