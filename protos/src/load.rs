//! Load reports: how busy a worker is, sent on the event plane beside its KV events.

use crate::msgpack::{MsgpackReader, MsgpackValue};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

pub use crate::msgpack::DecodeError;

/// Load of one worker at one moment. A MessagePack array on the wire, fields in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests that wait for room.
    pub waiting: u32,
    /// KV blocks that running requests use.
    pub used_blocks: u32,
    /// KV blocks that hold reusable prefixes and can be evicted.
    pub cached_blocks: u32,
    /// KV blocks in all.
    pub total_blocks: u32,
    /// Prompt tokens of waiting and running requests that are still to be computed.
    pub pending_prefill_tokens: u64,
}

/// Fields of a report; later versions append theirs.
const FIELDS: u32 = 6;

impl Load {
    /// Appends the report to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut buffer = rmp::encode::ByteBuf::from_vec(std::mem::take(out));
        let Ok(()) = self.write(&mut buffer);
        *out = buffer.into_vec();
    }

    /// Reads a report; fields after the sixth are skipped.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] where the frame is malformed.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = MsgpackReader::new(frame);
        let fields = match reader.value()? {
            MsgpackValue::Array(fields) if fields >= FIELDS => fields,
            _ => return Err(unexpected("load", "an array of at least 6")),
        };
        let load = Self {
            running: small(&mut reader, "running")?,
            waiting: small(&mut reader, "waiting")?,
            used_blocks: small(&mut reader, "used_blocks")?,
            cached_blocks: small(&mut reader, "cached_blocks")?,
            total_blocks: small(&mut reader, "total_blocks")?,
            pending_prefill_tokens: number(&mut reader, "pending_prefill_tokens")?,
        };
        for _ in FIELDS..fields {
            reader.skip()?;
        }
        reader.finish()?;
        Ok(load)
    }

    fn write(
        &self,
        out: &mut rmp::encode::ByteBuf,
    ) -> Result<(), rmp::encode::ValueWriteError<Infallible>> {
        rmp::encode::write_array_len(out, FIELDS)?;
        let counts =
            [self.running, self.waiting, self.used_blocks, self.cached_blocks, self.total_blocks];
        for count in counts {
            rmp::encode::write_uint(out, count.into())?;
        }
        rmp::encode::write_uint(out, self.pending_prefill_tokens)?;
        Ok(())
    }
}

fn number(reader: &mut MsgpackReader<'_>, field: &'static str) -> Result<u64, DecodeError> {
    match reader.value()? {
        MsgpackValue::Unsigned(value) => Ok(value),
        _ => Err(unexpected(field, "an integer that is not negative")),
    }
}

fn small(reader: &mut MsgpackReader<'_>, field: &'static str) -> Result<u32, DecodeError> {
    u32::try_from(number(reader, field)?)
        .map_err(|_| unexpected(field, "an integer below 4294967296"))
}

fn unexpected(field: &'static str, expected: &'static str) -> DecodeError {
    DecodeError::Unexpected { field, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[track_caller]
    fn check(frame: &[u8], expected: Result<Load, DecodeError>) {
        assert_eq!(Load::decode(frame), expected);
    }

    #[test]
    fn a_longer_report_of_a_later_version_is_read() {
        let load = Load { running: 1, waiting: 2, total_blocks: 5, ..Load::default() };
        check(&[0x98, 1, 2, 0, 0, 5, 0, 0xa1, b'x', 0x91, 7], Ok(load));
    }

    #[test]
    fn malformed_reports_are_refused() {
        check(&[], Err(DecodeError::Truncated));
        check(&[0x96, 1, 2, 3], Err(DecodeError::Truncated));
        check(&[0x95, 1, 2, 3, 4, 5], Err(unexpected("load", "an array of at least 6")));
        check(&[0x96, 1, 2, 3, 4, 5, 6, 7], Err(DecodeError::TrailingBytes { bytes: 1 }));
        let negative = unexpected("waiting", "an integer that is not negative");
        check(&[0x96, 1, 0xff, 3, 4, 5, 6], Err(negative));
        let wide = [&[0x96, 0xcf][..], &[0xff; 8], &[2, 3, 4, 5, 6]].concat();
        check(&wide, Err(unexpected("running", "an integer below 4294967296")));
    }

    proptest! {
        #[test]
        fn a_report_survives_the_wire(counts: [u32; 5], pending_prefill_tokens: u64) {
            let [running, waiting, used_blocks, cached_blocks, total_blocks] = counts;
            let load = Load {
                running, waiting, used_blocks, cached_blocks, total_blocks, pending_prefill_tokens,
            };
            let mut frame = Vec::new();
            load.encode(&mut frame);
            prop_assert_eq!(Load::decode(&frame), Ok(load));
        }

        #[test]
        fn arbitrary_bytes_never_panic(frame in vec(any::<u8>(), 0..64)) {
            if let Ok(load) = Load::decode(&frame) {
                let mut again = Vec::new();
                load.encode(&mut again);
                prop_assert_eq!(Load::decode(&again), Ok(load));
            }
        }
    }
}
