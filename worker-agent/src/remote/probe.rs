//! Finds out whether an engine serves: by asking it, and by what comes of its requests.

use super::tally::Tally;
use stator_dialect::{Ask, Description, Dialect, Fault, Hand, Sampling};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait for the engine to say how it is.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Answers that may be late one after the other: an engine in a long step answers late.
const LATE_MAX: u32 = 5;
/// Longest wait for one token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// An engine, as whoever watches over it sees it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) dialect: Arc<dyn Dialect>,
    /// What its ranks have to do; unknown until it said how many there are.
    pub(super) tallies: OnceLock<Vec<Arc<Tally>>>,
    /// It was paused or put to sleep: nothing is expected of it.
    pub(super) resting: AtomicBool,
    /// Idle time before it is asked for a token.
    pub(super) canary_idle: Option<Duration>,
}

/// What is remembered between two looks.
#[derive(Debug)]
pub(super) struct Memory {
    late: u32,
    /// The progress that was last seen, and since when nothing else was.
    last: (u64, Instant),
}

impl Default for Memory {
    fn default() -> Self {
        Self { late: 0, last: (0, Instant::now()) }
    }
}

impl Probe {
    /// Requests that run, and a number that changes with every token of theirs.
    pub(super) fn progress(&self) -> (u32, u64) {
        let resting = self.resting.load(Ordering::Relaxed);
        let tallies = self.tallies.get().into_iter().flatten().filter(|_| !resting);
        tallies.fold((0, 0), |(running, progress), tally| {
            let counts = tally.counts();
            (running + counts.running + counts.waiting, progress + tally.progress())
        })
    }

    /// Proof that an engine which was not ready serves, and what it is.
    ///
    /// # Errors
    ///
    /// Why it does not.
    pub(super) async fn ready(&self) -> Result<Description, String> {
        let text = |fault: Fault| fault.to_string();
        self.dialect.healthy().await.map_err(text)?;
        let description = self.dialect.describe().await.map_err(text)?;
        for rank in 0..description.ranks.max(1) {
            self.one_token((description.ranks > 1).then_some(rank)).await.map_err(text)?;
        }
        Ok(description)
    }

    /// Whether an engine that was ready still serves.
    ///
    /// # Errors
    ///
    /// Why it does not. One late answer is none.
    pub(super) async fn healthy(&self, memory: &mut Memory) -> Result<(), String> {
        let asked = tokio::time::timeout(HEALTH_TIMEOUT, self.dialect.healthy()).await;
        match asked {
            Ok(Ok(())) => memory.late = 0,
            Ok(Err(fault)) => return Err(fault.to_string()),
            Err(_) => {
                memory.late += 1;
                if memory.late > LATE_MAX {
                    return Err(format!("no answer within {} s", HEALTH_TIMEOUT.as_secs()));
                }
            }
        }
        self.canary(memory).await.map_err(|fault| format!("a canary failed: {fault}"))
    }

    /// Asks for a token where there was nothing to do for long.
    async fn canary(&self, memory: &mut Memory) -> Result<(), Fault> {
        let ((running, progress), now) = (self.progress(), Instant::now());
        if running > 0 || progress != memory.last.0 || self.resting.load(Ordering::Relaxed) {
            memory.last = (progress, now);
        }
        let idle = self.canary_idle.filter(|idle| now - memory.last.1 >= *idle);
        let Some((_, tallies)) = idle.zip(self.tallies.get()) else { return Ok(()) };
        memory.last.1 = now;
        let several = tallies.len() > 1;
        for rank in (0..).take(tallies.len()) {
            self.one_token(several.then_some(rank)).await?;
        }
        Ok(())
    }

    async fn one_token(&self, rank: Option<u16>) -> Result<(), Fault> {
        // The engine may still have the one before, or one of another agent.
        let unique = RandomState::new().hash_one(rank);
        let ask = Ask {
            id: format!("canary-{unique:016x}"),
            tokens: [1].into(),
            sampling: Arc::new(Sampling { max_tokens: 1, ignore_eos: true, ..Sampling::default() }),
            cache_salt: None,
            lora: None,
            priority: 0,
            rank,
            hand: Hand::Whole,
        };
        let token = async {
            let mut answer = self.dialect.generate(ask).await?;
            while let Some(delta) = answer.next().await? {
                if !delta.tokens.is_empty() {
                    return Ok(());
                }
            }
            Err(Fault::Failed("the answer has no token".into()))
        };
        let late = || Fault::Failed(format!("no token within {} s", TOKEN_TIMEOUT.as_secs()));
        tokio::time::timeout(TOKEN_TIMEOUT, token).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests;
