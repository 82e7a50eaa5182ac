//! Places in a body.

/// A range of bytes in a body, `start` included and `end` not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Span {
    /// The bytes of the range; empty where `body` is not the one that it was made from.
    pub fn of<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        body.get(self.start..self.end).unwrap_or_default()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// A member of an object: where its key starts, quote included, and where its value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The opening quote of the key.
    pub key_start: usize,
    /// The key, quotes included.
    pub key_end: usize,
    /// The value, without the space around it.
    pub value: Span,
}
