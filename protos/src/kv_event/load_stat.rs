//! How busy SGLang says that it is, beside its KV events.

use crate::msgpack::{DecodeError, Reader, Value};

/// What the first field is.
const NAME: &[u8] = b"LoadStat";
/// Fields that every report has, the name included.
const FIELDS_MIN: u32 = 6;

/// One message of SGLang's load topic. What is `None` was not told.
///
/// Source: SGLang 0.5.23, `--load-publish-endpoint`: an array, fields in this order after the name
/// `LoadStat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadStat {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests that wait for room.
    pub waiting: u32,
    /// Tokens whose KV is in use.
    pub used_tokens: u64,
    /// Tokens for whose KV there is room.
    pub total_tokens: u64,
    /// Data-parallel rank.
    pub rank: u32,
    /// Prompt tokens of waiting requests that no cache has.
    pub waiting_uncached_tokens: Option<u64>,
    /// Tokens in use, and those that waiting requests will use.
    pub demanded_tokens: Option<u64>,
    /// Most requests that run at once.
    pub running_max: Option<u64>,
    /// Counter: prompt tokens computed.
    pub prefill_tokens: Option<u64>,
    /// Counter: time spent on prompts, in microseconds.
    pub prefill_busy_us: Option<u64>,
}

impl LoadStat {
    /// Reads a message; fields after the eleventh are skipped.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] where the frame is malformed.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(frame);
        let fields = match reader.value()? {
            Value::Array(fields) if fields >= FIELDS_MIN => fields,
            _ => return Err(unexpected("load", "an array of at least 6")),
        };
        if reader.value()? != Value::Str(NAME) {
            return Err(unexpected("load", "the name LoadStat"));
        }
        let small = |number: u64, field| {
            u32::try_from(number).map_err(|_| unexpected(field, "an integer below 4294967296"))
        };
        let running = small(number(&mut reader, "running")?, "running")?;
        let waiting = small(number(&mut reader, "waiting")?, "waiting")?;
        let used_tokens = number(&mut reader, "used_tokens")?;
        let total_tokens = number(&mut reader, "total_tokens")?;
        let rank = small(number(&mut reader, "rank")?, "rank")?;
        let mut left = fields - FIELDS_MIN;
        let mut more = |field| -> Result<Option<u64>, DecodeError> {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            number(&mut reader, field).map(Some)
        };
        let load = Self {
            running,
            waiting,
            used_tokens,
            total_tokens,
            rank,
            waiting_uncached_tokens: more("waiting_uncached_tokens")?,
            demanded_tokens: more("demanded_tokens")?,
            running_max: more("running_max")?,
            prefill_tokens: more("prefill_tokens")?,
            prefill_busy_us: more("prefill_busy_us")?,
        };
        for _ in 0..left {
            reader.skip()?;
        }
        reader.finish()?;
        Ok(load)
    }
}

fn number(reader: &mut Reader<'_>, field: &'static str) -> Result<u64, DecodeError> {
    match reader.value()? {
        Value::Unsigned(value) => Ok(value),
        _ => Err(unexpected(field, "an integer that is not negative")),
    }
}

fn unexpected(field: &'static str, expected: &'static str) -> DecodeError {
    DecodeError::Unexpected { field, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// As SGLang 0.5.23 sent it.
    const IDLE: &[u8] = b"\x9b\xa8LoadStat\x00\x00\x00\xcd\x20\x00\x00\x00\x00\x10\x0b\xcd\x31\xef";

    #[track_caller]
    fn check(frame: &[u8], expected: Result<LoadStat, DecodeError>) {
        assert_eq!(LoadStat::decode(frame), expected);
    }

    #[test]
    fn what_an_engine_sent_is_read() {
        let idle = LoadStat {
            total_tokens: 8192,
            waiting_uncached_tokens: Some(0),
            demanded_tokens: Some(0),
            running_max: Some(16),
            prefill_tokens: Some(11),
            prefill_busy_us: Some(12783),
            ..LoadStat::default()
        };
        check(IDLE, Ok(idle));
        let mut later = IDLE.to_vec();
        later[0] = 0x9c;
        later.extend(b"\xa3new");
        check(&later, Ok(idle));
    }

    #[test]
    fn a_report_may_end_after_the_rank() {
        let report = LoadStat {
            running: 1,
            waiting: 2,
            used_tokens: 3,
            total_tokens: 4,
            rank: 5,
            ..LoadStat::default()
        };
        check(b"\x96\xa8LoadStat\x01\x02\x03\x04\x05", Ok(report));
        let report = LoadStat { waiting_uncached_tokens: Some(6), ..report };
        check(b"\x97\xa8LoadStat\x01\x02\x03\x04\x05\x06", Ok(report));
    }

    #[test]
    fn malformed_reports_are_refused() {
        check(&[], Err(DecodeError::Truncated));
        check(&IDLE[..20], Err(DecodeError::Truncated));
        check(b"\x91\xa8LoadStat", Err(unexpected("load", "an array of at least 6")));
        check(
            b"\x96\xa8LoadStar\x01\x02\x03\x04\x05",
            Err(unexpected("load", "the name LoadStat")),
        );
        let negative = unexpected("waiting", "an integer that is not negative");
        check(b"\x96\xa8LoadStat\x01\xff\x03\x04\x05", Err(negative));
        let wide = unexpected("rank", "an integer below 4294967296");
        check(b"\x96\xa8LoadStat\x01\x02\x03\x04\xcf\xff\xff\xff\xff\xff\xff\xff\xff", Err(wide));
        let after = [IDLE, b"\x00"].concat();
        check(&after, Err(DecodeError::TrailingBytes { bytes: 1 }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(head in 0..=IDLE.len(), tail in vec(any::<u8>(), 0..40)) {
            let _ = LoadStat::decode(&[&IDLE[..head], &tail].concat());
        }
    }
}
