//! Writes a batch as vLLM does from 0.24 on: an array whose events are maps.

use super::{KvEvent, Removed, Stored};
use rmp::encode::{
    ByteBuf, ValueWriteError, write_array_len, write_f64, write_map_len, write_nil, write_str,
    write_uint,
};
use std::convert::Infallible;

/// A buffer in memory takes whatever is written: the error cannot exist.
type Written = Result<(), ValueWriteError<Infallible>>;

/// Appends the payload of a batch to `out`: when it was made, in seconds since the Unix epoch, its
/// events, and the data-parallel rank that they are of.
///
/// A receiver refuses what is beyond the limits of [`super::decode`]; a batch that comes near
/// them is better sent in parts.
pub fn encode(timestamp_s: f64, events: &[KvEvent], rank: Option<u32>, out: &mut Vec<u8>) {
    let mut buffer = ByteBuf::from_vec(std::mem::take(out));
    let Ok(()) = write_batch(&mut buffer, timestamp_s, events, rank);
    *out = buffer.into_vec();
}

fn write_batch(
    out: &mut ByteBuf,
    timestamp_s: f64,
    events: &[KvEvent],
    rank: Option<u32>,
) -> Written {
    write_array_len(out, 3)?;
    write_f64(out, timestamp_s)?;
    write_array_len(out, length(events.len()))?;
    for event in events {
        match event {
            KvEvent::Stored(stored) => write_stored(out, stored)?,
            KvEvent::Removed(removed) => write_removed(out, removed)?,
            KvEvent::Cleared => {
                write_map_len(out, 1)?;
                write_pair(out, "type", Some("AllBlocksCleared"))?;
            }
        }
    }
    write_optional(out, rank.map(u64::from))
}

fn write_stored(out: &mut ByteBuf, stored: &Stored) -> Written {
    write_map_len(out, 8)?;
    write_pair(out, "type", Some("BlockStored"))?;
    write_numbers(out, "block_hashes", stored.hashes.iter().copied())?;
    write_str(out, "parent_block_hash")?;
    write_optional(out, stored.parent)?;
    write_numbers(out, "token_ids", stored.tokens.iter().map(|&token| token.into()))?;
    write_str(out, "block_size")?;
    write_uint(out, stored.block_size.into())?;
    write_pair(out, "lora_id", None)?;
    write_pair(out, "medium", Some(stored.medium.name()))?;
    write_pair(out, "lora_name", stored.lora_name.as_deref())
}

fn write_removed(out: &mut ByteBuf, removed: &Removed) -> Written {
    write_map_len(out, 3)?;
    write_pair(out, "type", Some("BlockRemoved"))?;
    write_numbers(out, "block_hashes", removed.hashes.iter().copied())?;
    write_pair(out, "medium", Some(removed.medium.name()))
}

fn write_pair(out: &mut ByteBuf, key: &str, value: Option<&str>) -> Written {
    write_str(out, key)?;
    match value {
        Some(value) => write_str(out, value)?,
        None => {
            let Ok(()) = write_nil(out);
        }
    }
    Ok(())
}

fn write_optional(out: &mut ByteBuf, value: Option<u64>) -> Written {
    match value {
        Some(value) => {
            write_uint(out, value)?;
        }
        None => {
            let Ok(()) = write_nil(out);
        }
    }
    Ok(())
}

fn write_numbers(
    out: &mut ByteBuf,
    key: &str,
    numbers: impl ExactSizeIterator<Item = u64>,
) -> Written {
    write_str(out, key)?;
    write_array_len(out, length(numbers.len()))?;
    for number in numbers {
        write_uint(out, number)?;
    }
    Ok(())
}

fn length(items: usize) -> u32 {
    u32::try_from(items).expect("a list of 2^32 numbers does not fit in any message")
}
