//! A request body while it arrives.

use bytes::{Bytes, BytesMut};

/// A body's chunks as they came, up to a limit.
///
/// The chunks are kept because every byte has to be sent on: what is echoed are these.
#[derive(Clone, Debug)]
pub struct Body {
    chunks: Vec<Bytes>,
    length: usize,
    limit: usize,
}

/// A body is longer than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request body of at least {length} bytes is too large, limit {limit}")]
pub struct BodyTooLong {
    /// Bytes that had come.
    pub length: usize,
    /// Bytes that may come.
    pub limit: usize,
}

impl Body {
    /// An empty body that takes up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { chunks: Vec::new(), length: 0, limit }
    }

    /// Takes the next chunk. Empty ones leave no trace.
    ///
    /// # Errors
    ///
    /// [`BodyTooLong`] where the body would pass its limit; the chunk is dropped then.
    pub fn push(&mut self, chunk: Bytes) -> Result<(), BodyTooLong> {
        let length = self.length.saturating_add(chunk.len());
        if length > self.limit {
            return Err(BodyTooLong { length, limit: self.limit });
        }
        self.length = length;
        if !chunk.is_empty() {
            self.chunks.push(chunk);
        }
        Ok(())
    }

    /// Bytes that have come.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing has come.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The chunks as they came.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// The body in one piece: no copy where it came as one chunk, one copy where it did not.
    pub fn contiguous(&self) -> Bytes {
        match &self.chunks[..] {
            [] => Bytes::new(),
            [only] => only.clone(),
            many => {
                let mut joined = BytesMut::with_capacity(self.length);
                many.iter().for_each(|chunk| joined.extend_from_slice(chunk));
                joined.freeze()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chunks: &[&'static str], limit: usize) -> Result<Body, BodyTooLong> {
        let mut body = Body::new(limit);
        for chunk in chunks {
            body.push(Bytes::from_static(chunk.as_bytes()))?;
        }
        assert_eq!(body.contiguous(), chunks.concat());
        assert_eq!(body.len(), chunks.concat().len());
        Ok(body)
    }

    #[test]
    fn one_chunk_is_not_copied() {
        let body = check(&["", "{}", ""], 2).expect("two bytes fit");
        assert_eq!(body.chunks().len(), 1);
        assert_eq!(body.contiguous().as_ptr(), body.chunks()[0].as_ptr());
    }

    #[test]
    fn many_chunks_are_joined_and_kept() {
        let body = check(&["{\"a\"", ":", "1}"], 7).expect("seven bytes fit");
        assert_eq!(body.chunks().len(), 3);
        assert!(check(&[], 0).expect("nothing fits").is_empty());
    }

    #[test]
    fn a_body_past_its_limit_is_refused() {
        let error = check(&["abcd", "ef"], 5).expect_err("six bytes are too many");
        assert_eq!(error.to_string(), "request body of at least 6 bytes is too large, limit 5");
    }
}
