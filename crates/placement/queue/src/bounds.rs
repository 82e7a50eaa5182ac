//! Usage of a queue, and its bounds.

use crate::invalid::SettingFindings;
use crate::outcome::QueueRefusal;

/// Most requests that any band, or all together, may be set to hold: about 150 MB beside the
/// payloads.
const REQUESTS_MAX: u32 = 1_000_000;

/// Sizes of waiting requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUsage {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Tokens of their prompts that are to be computed.
    pub tokens: u64,
}

impl QueueUsage {
    pub(crate) fn one(bytes: u64, tokens: u32) -> Self {
        Self { requests: 1, bytes, tokens: u64::from(tokens) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            bytes: self.bytes.saturating_add(other.bytes),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            bytes: self.bytes.saturating_sub(other.bytes),
            tokens: self.tokens.saturating_sub(other.tokens),
        }
    }
}

/// Most that may wait at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests, 1 to 1,000,000.
    pub requests: u32,
    /// Bytes of their bodies, at least 1; `None` is bounded by `requests` only.
    pub bytes: Option<u64>,
    /// Tokens of their prompts that are to be computed, at least 1; `None` as for bytes.
    pub tokens: Option<u64>,
}

impl Bounds {
    /// As much as can be set.
    pub const MAX: Self = Self { requests: REQUESTS_MAX, bytes: None, tokens: None };

    /// The bounds as usage, unlimited where no bound is set.
    pub(crate) fn limits(&self) -> QueueUsage {
        let limit = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
        QueueUsage {
            requests: u64::from(self.requests),
            bytes: limit(self.bytes),
            tokens: limit(self.tokens),
        }
    }

    pub(crate) fn check(&self, name: &str, findings: &mut SettingFindings) {
        let requests = u64::from(self.requests);
        findings.range(&format!("{name}.requests"), requests, 1..=u64::from(REQUESTS_MAX));
        for (unit, bound) in [("bytes", self.bytes), ("tokens", self.tokens)] {
            if let Some(bound) = bound {
                findings.range(&format!("{name}.{unit}"), bound, 1..=u64::MAX);
            }
        }
    }
}

/// The first bound that one more request would break: why, the limit and what waits now.
pub(crate) type BrokenBound = (QueueRefusal, u64, u64);

/// Whether one more request fits.
pub(crate) fn fits(
    bounds: &Bounds,
    waiting: QueueUsage,
    one: QueueUsage,
    reasons: [QueueRefusal; 3],
) -> Result<(), BrokenBound> {
    let (limits, [requests, bytes, tokens]) = (bounds.limits(), reasons);
    // Subtracted, not added, so that nothing overflows.
    let check = |reason, limit: u64, now: u64, more: u64| {
        let room = limit.checked_sub(now).is_some_and(|room| room >= more);
        if room { Ok(()) } else { Err((reason, limit, now)) }
    };
    check(requests, limits.requests, waiting.requests, one.requests)?;
    check(bytes, limits.bytes, waiting.bytes, one.bytes)?;
    check(tokens, limits.tokens, waiting.tokens, one.tokens)
}
