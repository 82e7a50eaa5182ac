//! A reader of MessagePack that trusts no length: it borrows from the frame, allocates nothing and
//! never panics. The caller interprets the values.

use rmp::Marker;

/// Deepest nesting of values that are skipped unread.
pub const MAX_DEPTH: usize = 32;

/// Why a frame was refused. The frame is lost as a whole: for a numbered stream that is a gap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends inside a value.
    #[error("frame ends inside a value")]
    Truncated,
    /// Bytes follow the message.
    #[error("{bytes} bytes follow the message")]
    TrailingBytes {
        /// Number of the bytes.
        bytes: usize,
    },
    /// A value has the wrong type or is out of range.
    #[error("{field}: expected {expected}")]
    Unexpected {
        /// The field.
        field: &'static str,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// A field that has no default is missing.
    #[error("{field}: missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A size is beyond its limit.
    #[error("{field}: {size} is above the limit of {limit}")]
    TooLarge {
        /// The field that has this size.
        field: &'static str,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// An event's tokens do not fill its blocks.
    #[error("token_ids: {tokens} tokens do not fill {blocks} blocks of {block_size}")]
    TokenCount {
        /// Tokens in the event.
        tokens: usize,
        /// Blocks in the event.
        blocks: usize,
        /// Tokens per block.
        block_size: u32,
    },
    /// Values nest deeper than [`MAX_DEPTH`].
    #[error("values nest deeper than {MAX_DEPTH}")]
    TooDeep,
}

/// One scalar, or the head of a container whose items follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MsgpackValue<'a> {
    Nil,
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    /// Number of items.
    Array(u32),
    /// Number of pairs.
    Map(u32),
    /// A boolean or an extension: nothing here has one, so that only skipping meets them.
    Other,
}

/// Reads values from the front of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MsgpackReader<'a> {
    rest: &'a [u8],
}

impl<'a> MsgpackReader<'a> {
    pub(crate) fn new(frame: &'a [u8]) -> Self {
        Self { rest: frame }
    }

    /// Bytes not read yet: no honest container has more items than this.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Succeeds at the end of the frame only.
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::TrailingBytes { bytes }),
        }
    }

    /// The next scalar or container head.
    pub(crate) fn value(&mut self) -> Result<MsgpackValue<'a>, DecodeError> {
        let [byte] = self.take()?;
        Ok(match Marker::from_u8(byte) {
            Marker::FixPos(value) => MsgpackValue::Unsigned(value.into()),
            Marker::FixNeg(value) => MsgpackValue::Negative(value.into()),
            Marker::U8 => MsgpackValue::Unsigned(self.take().map(u8::from_be_bytes)?.into()),
            Marker::U16 => MsgpackValue::Unsigned(self.take().map(u16::from_be_bytes)?.into()),
            Marker::U32 => MsgpackValue::Unsigned(self.take().map(u32::from_be_bytes)?.into()),
            Marker::U64 => MsgpackValue::Unsigned(self.take().map(u64::from_be_bytes)?),
            Marker::I8 => signed(self.take().map(i8::from_be_bytes)?.into()),
            Marker::I16 => signed(self.take().map(i16::from_be_bytes)?.into()),
            Marker::I32 => signed(self.take().map(i32::from_be_bytes)?.into()),
            Marker::I64 => signed(self.take().map(i64::from_be_bytes)?),
            Marker::F32 => MsgpackValue::Float(self.take().map(f32::from_be_bytes)?.into()),
            Marker::F64 => MsgpackValue::Float(self.take().map(f64::from_be_bytes)?),
            Marker::Null => MsgpackValue::Nil,
            Marker::FixArray(items) => MsgpackValue::Array(items.into()),
            Marker::Array16 => MsgpackValue::Array(self.take().map(u16::from_be_bytes)?.into()),
            Marker::Array32 => MsgpackValue::Array(self.take().map(u32::from_be_bytes)?),
            Marker::FixMap(pairs) => MsgpackValue::Map(pairs.into()),
            Marker::Map16 => MsgpackValue::Map(self.take().map(u16::from_be_bytes)?.into()),
            Marker::Map32 => MsgpackValue::Map(self.take().map(u32::from_be_bytes)?),
            marker => self.bytes(marker)?,
        })
    }

    /// The next value if it is an integer from 0 to 2^32 - 1, else `None`. Token ids are most of
    /// every frame, so that their usual forms are looked for first.
    #[inline]
    pub(crate) fn u32(&mut self) -> Result<Option<u32>, DecodeError> {
        let (value, rest) = match self.rest {
            [value @ 0..=0x7f, rest @ ..] => (u32::from(*value), rest),
            [0xcd, a, b, rest @ ..] => (u16::from_be_bytes([*a, *b]).into(), rest),
            [0xce, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), rest),
            _ => {
                return Ok(match self.value()? {
                    MsgpackValue::Unsigned(value) => u32::try_from(value).ok(),
                    _ => None,
                });
            }
        };
        self.rest = rest;
        Ok(Some(value))
    }

    /// Passes over the next value with all it holds.
    pub(crate) fn skip(&mut self) -> Result<(), DecodeError> {
        // Items left at each open level. A loop instead of recursion, so that a hostile frame
        // cannot choose how much stack it takes.
        let mut left = [0u64; MAX_DEPTH];
        let mut depth = 0;
        left[0] = 1;
        loop {
            while left[depth] == 0 {
                if depth == 0 {
                    return Ok(());
                }
                depth -= 1;
            }
            left[depth] -= 1;
            let items = match self.value()? {
                MsgpackValue::Array(items) => u64::from(items),
                MsgpackValue::Map(pairs) => 2 * u64::from(pairs),
                _ => continue,
            };
            depth += 1;
            *left.get_mut(depth).ok_or(DecodeError::TooDeep)? = items;
        }
    }

    /// A string, a byte string, or something that is only skipped.
    fn bytes(&mut self, marker: Marker) -> Result<MsgpackValue<'a>, DecodeError> {
        Ok(match marker {
            Marker::FixStr(bytes) => MsgpackValue::Str(self.slice(bytes.into())?),
            Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let bytes = self.length(marker)?;
                MsgpackValue::Str(self.slice(bytes)?)
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                let bytes = self.length(marker)?;
                MsgpackValue::Bin(self.slice(bytes)?)
            }
            Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
                let bytes = self.length(marker)?;
                self.extension(bytes)?
            }
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            _ => MsgpackValue::Other,
        })
    }

    fn length(&mut self, marker: Marker) -> Result<usize, DecodeError> {
        Ok(match marker {
            Marker::Str8 | Marker::Bin8 | Marker::Ext8 => {
                self.take().map(u8::from_be_bytes)?.into()
            }
            Marker::Str16 | Marker::Bin16 | Marker::Ext16 => {
                self.take().map(u16::from_be_bytes)?.into()
            }
            _ => self.take().map(u32::from_be_bytes)? as usize,
        })
    }

    /// An extension is its type, one byte, and then its data.
    fn extension(&mut self, bytes: usize) -> Result<MsgpackValue<'a>, DecodeError> {
        let [_kind] = self.take()?;
        self.slice(bytes)?;
        Ok(MsgpackValue::Other)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    fn slice(&mut self, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(bytes).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }
}

/// Writers may use a signed form for what is not negative.
fn signed<'a>(value: i64) -> MsgpackValue<'a> {
    u64::try_from(value).map_or(MsgpackValue::Negative(value), MsgpackValue::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[track_caller]
    fn check(frame: &[u8], expected: Result<MsgpackValue<'_>, DecodeError>) {
        assert_eq!(MsgpackReader::new(frame).value(), expected);
    }

    #[test]
    fn every_width_of_a_number_reads_alike() {
        check(&[0x07], Ok(MsgpackValue::Unsigned(7)));
        check(&[0xcc, 7], Ok(MsgpackValue::Unsigned(7)));
        check(&[0xd0, 7], Ok(MsgpackValue::Unsigned(7)));
        check(&[0xd3, 0, 0, 0, 0, 0, 0, 0, 7], Ok(MsgpackValue::Unsigned(7)));
        check(
            &[0xcf, 0xff, 0, 0, 0, 0, 0, 0, 7],
            Ok(MsgpackValue::Unsigned(0xff00_0000_0000_0007)),
        );
        check(&[0xff], Ok(MsgpackValue::Negative(-1)));
        check(&[0xd1, 0xff, 0xfe], Ok(MsgpackValue::Negative(-2)));
    }

    #[test]
    fn a_value_cut_short_is_truncated() {
        for frame in [&[][..], &[0xcf, 1], &[0xa3, b'a'], &[0xc4], &[0xdc, 1], &[0xd6, 1, 2]] {
            check(frame, Err(DecodeError::Truncated));
        }
    }

    #[test]
    fn skipping_passes_over_exactly_one_value() {
        // {"a": [1, {2: nil}], true: ext}, and then 9.
        let frame = [0x82, 0xa1, b'a', 0x92, 1, 0x81, 2, 0xc0, 0xc3, 0xd4, 5, 6, 9];
        let mut reader = MsgpackReader::new(&frame);
        assert_eq!(reader.skip(), Ok(()));
        assert_eq!(reader.value(), Ok(MsgpackValue::Unsigned(9)));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn nesting_has_a_limit() {
        let nested = |levels: usize| [vec![0x91; levels], vec![0xc0]].concat();
        assert_eq!(MsgpackReader::new(&nested(MAX_DEPTH - 1)).skip(), Ok(()));
        assert_eq!(MsgpackReader::new(&nested(MAX_DEPTH)).skip(), Err(DecodeError::TooDeep));
    }

    #[test]
    fn a_lying_length_is_truncated_not_believed() {
        assert_eq!(
            MsgpackReader::new(&[0xdf, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(DecodeError::Truncated)
        );
        check(&[0xc6, 0xff, 0xff, 0xff, 0xff, 0], Err(DecodeError::Truncated));
    }

    proptest! {
        #[test]
        fn the_short_way_to_a_number_reads_the_same(frame in vec(any::<u8>(), 0..12)) {
            let (mut short, mut long) = (MsgpackReader::new(&frame), MsgpackReader::new(&frame));
            let expected = long.value().map(|value| match value {
                MsgpackValue::Unsigned(value) => u32::try_from(value).ok(),
                _ => None,
            });
            prop_assert_eq!(short.u32(), expected.clone());
            if expected.is_ok() {
                prop_assert_eq!(short.remaining(), long.remaining());
            }
        }

        #[test]
        fn skipping_anything_ends(frame in vec(any::<u8>(), 0..200)) {
            let mut reader = MsgpackReader::new(&frame);
            let before = reader.remaining();
            if reader.skip().is_ok() {
                prop_assert!(reader.remaining() < before);
            }
        }
    }
}
