//! Bounds of a replay, over any transport: how long it may take, and how much it may bring.

use bytes::Bytes;
use std::time::Duration;
use tokio::time::timeout;

/// Longest wait for the next message of a replay. A stock engine serves replays between two
/// batches, and looks for them every 100 ms.
pub const REPLAY_SILENCE: Duration = Duration::from_secs(2);
/// Longest wait for all of a replay.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(120);
/// Batches that a replay may have.
const REPLAY_BATCHES_MAX: usize = 1 << 20;
/// Bytes of payload that a replay may have.
const REPLAY_BYTES_MAX: usize = 256 << 20;

/// Waits for all of a replay, at most two minutes.
///
/// # Errors
///
/// The reason of `replay`, or that it took too long.
pub async fn replay_in_time(
    replay: impl Future<Output = Result<Vec<(u64, Bytes)>, String>>,
) -> Result<Vec<(u64, Bytes)>, String> {
    match timeout(REPLAY_TIMEOUT, replay).await {
        Ok(batches) => batches,
        Err(_) => Err(format!("not complete within {REPLAY_TIMEOUT:?}")),
    }
}

/// The batches of one replay: at most 256 MiB and 2^20 batches.
#[derive(Debug, Default)]
pub struct ReplayBatches {
    /// Batches with their numbers, in the order in which they came.
    pub batches: Vec<(u64, Bytes)>,
    size_bytes: usize,
}

impl ReplayBatches {
    /// Takes one more batch.
    ///
    /// # Errors
    ///
    /// A replay has at most 256 MiB and 2^20 batches; the reason says so.
    pub fn push(&mut self, number: u64, payload: Bytes) -> Result<(), String> {
        self.size_bytes += payload.len();
        if self.size_bytes > REPLAY_BYTES_MAX || self.batches.len() == REPLAY_BATCHES_MAX {
            return Err(format!(
                "more than {REPLAY_BYTES_MAX} bytes or {REPLAY_BATCHES_MAX} batches"
            ));
        }
        self.batches.push((number, payload));
        Ok(())
    }
}
