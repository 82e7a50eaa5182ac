//! The store that a reader asks for, in the first frame of its connection.

use super::wire::{FrameHeader, WireError};

/// The store that a reader wants to read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ReaderPurpose {
    /// The holder's tiers.
    #[default]
    Tiers = 0,
    /// The prompt that the holder's engine computed for this reader.
    Handover = 1,
}

impl ReaderPurpose {
    /// The purpose of a [`Hello`](super::wire::FrameKind::Hello).
    ///
    /// # Errors
    ///
    /// [`WireError`] for a number that nobody knows.
    pub fn of_header(header: &FrameHeader) -> Result<Self, WireError> {
        match header.count {
            0 => Ok(Self::Tiers),
            1 => Ok(Self::Handover),
            _ => Err(WireError::Field { kind: header.kind, field: "count" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::wire::FrameKind;

    #[test]
    fn the_purpose_of_a_reader_is_known_or_refused() {
        let of = |count| {
            ReaderPurpose::of_header(&FrameHeader { count, ..FrameHeader::new(FrameKind::Hello) })
        };
        assert_eq!(of(0), Ok(ReaderPurpose::Tiers));
        assert_eq!(of(1), Ok(ReaderPurpose::Handover));
        assert_eq!(of(2), Err(WireError::Field { kind: FrameKind::Hello, field: "count" }));
    }
}
