//! Finds out whether an engine serves: by asking it, and by what comes of its requests.

use super::tally::Tally;
use stator_dialect::{Ask, Description, Dialect, Fault, Hand};
use stator_protos::worker::Sampling;
use stator_supervise::Progress;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait for the engine to say how it is.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Answers that may be late one after the other: an engine in a long step answers late.
const LATE_MAX: u32 = 5;
/// Pause before a bad answer is checked once more; only the second counts.
const AGAIN: Duration = Duration::from_millis(200);
/// Longest wait for one token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// An engine, as whoever watches over it sees it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) dialect: Arc<dyn Dialect>,
    /// Tallies of its ranks; unset until their number is known.
    pub(super) tallies: OnceLock<Vec<Arc<Tally>>>,
    /// Whether the engine was paused or put to sleep: nothing is expected of it, and nothing is
    /// sent to it.
    pub(super) resting: Arc<AtomicBool>,
    /// Idle time before it is asked for a token.
    pub(super) canary_idle: Option<Duration>,
}

/// Memory between two looks: the number of late answers in a row.
#[derive(Debug, Default)]
pub(super) struct Memory(u32);

/// For how long each rank of an engine has had nothing to do.
#[derive(Debug, Default)]
pub(super) struct Idle(Vec<Since>);

/// For how long one rank has.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// The progress that was last seen.
    counter: u64,
    /// Since when nothing else was.
    since: Instant,
}

impl Probe {
    /// Requests that run on each rank, and a number that changes with every token of theirs. One
    /// that rests has none; nothing where the ranks are not known.
    pub(super) fn progress(&self) -> Vec<Progress> {
        let rests = self.resting.load(Ordering::Relaxed);
        let tallies = self.tallies.get().into_iter().flatten();
        let progress = tallies.map(|tally| {
            let counts = tally.counts();
            let running = if rests { 0 } else { counts.running + counts.waiting };
            Progress { running, counter: tally.progress() }
        });
        progress.collect()
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
        if description.total_blocks.is_none() {
            // Some tell it with their first step.
            return self.dialect.describe().await.map_err(text);
        }
        Ok(description)
    }

    /// Whether an engine that was ready still serves. One answer that is no good says nothing: a
    /// connection may be refused or broken by chance.
    ///
    /// # Errors
    ///
    /// Why it does not: what it answered twice in a row.
    pub(super) async fn healthy(&self, memory: &mut Memory) -> Result<(), String> {
        if self.looks_healthy(memory).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
        self.looks_healthy(memory).await
    }

    /// Judges one answer. A late one proves nothing.
    async fn looks_healthy(&self, Memory(late): &mut Memory) -> Result<(), String> {
        let asked = tokio::time::timeout(HEALTH_TIMEOUT, self.dialect.healthy()).await;
        *late = if asked.is_ok() { 0 } else { *late + 1 };
        match asked {
            Ok(said) => said.map_err(|fault| fault.to_string()),
            Err(_) if *late <= LATE_MAX => Ok(()),
            Err(_) => Err(format!("no answer within {} s", HEALTH_TIMEOUT.as_secs())),
        }
    }

    /// The ranks that had nothing to do for so long that they are to be asked for a token; their
    /// time begins anew then.
    pub(super) fn wants_canary(&self, Idle(ranks): &mut Idle) -> Vec<u16> {
        let Some(limit) = self.canary_idle else { return Vec::new() };
        let (now, rests) = (Instant::now(), self.resting.load(Ordering::Relaxed));
        let progress = self.progress();
        ranks.resize(progress.len(), Since { counter: 0, since: now });
        let seen = (0..).zip(ranks.iter_mut().zip(progress));
        let wanted = seen.filter_map(|(rank, (idle, Progress { running, counter }))| {
            if running > 0 || counter != idle.counter || rests {
                *idle = Since { counter, since: now };
            }
            let wanted = now - idle.since >= limit;
            if wanted {
                idle.since = now;
            }
            wanted.then_some(rank)
        });
        wanted.collect()
    }

    /// Asks these ranks for a token. Takes up to a minute for each.
    ///
    /// # Errors
    ///
    /// Why there is none. A rank that others keep busy is well, and a connection that breaks is
    /// tried again, once.
    pub(super) async fn canary(&self, ranks: Vec<u16>) -> Result<(), String> {
        let several = self.tallies.get().is_some_and(|ranks| ranks.len() > 1);
        for rank in ranks {
            let rank = several.then_some(rank);
            let first = match self.one_token(rank).await {
                Err(Fault::Unreachable(_)) => self.one_token(rank).await,
                first => first,
            };
            match first {
                Ok(()) | Err(Fault::Overloaded(_)) => {}
                Err(fault) => return Err(format!("a canary failed: {fault}")),
            }
        }
        Ok(())
    }

    async fn one_token(&self, rank: Option<u16>) -> Result<(), Fault> {
        let token = async {
            let mut answer = self.dialect.generate(canary(rank)).await?;
            while let Some(delta) = answer.next().await? {
                // An engine that pools gives a vector in place of it.
                if !delta.tokens.is_empty() || !delta.pooled.is_empty() {
                    return Ok(());
                }
            }
            Err(Fault::Failed("the answer has no token".into()))
        };
        let late = || Fault::Failed(format!("no token within {} s", TOKEN_TIMEOUT.as_secs()));
        tokio::time::timeout(TOKEN_TIMEOUT, token).await.unwrap_or_else(|_| Err(late()))
    }
}

/// The request that proves that an engine serves.
pub(super) fn canary(rank: Option<u16>) -> Ask {
    // The engine may still have the one before, or one of another agent.
    let unique = RandomState::new().hash_one(rank);
    Ask {
        id: format!("canary-{unique:016x}"),
        // Not one alone, of which vLLM 0.32 with an ExampleConnector dies.
        tokens: [1, 1].into(),
        sampling: Arc::new(Sampling { max_tokens: 1, ignore_eos: true, ..Sampling::neutral() }),
        cache_salt: None,
        lora: None,
        priority: 0,
        rank,
        trace: None,
        kv_hint: None,
        hand: Hand::Canary,
    }
}

#[cfg(test)]
mod tests;
