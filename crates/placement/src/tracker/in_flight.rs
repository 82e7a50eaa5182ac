//! Load in flight, as it is summed up and told.

/// Load in flight at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens that are still to be computed.
    pub prefill_tokens: u64,
    /// KV blocks in use.
    pub blocks: u64,
}

impl InFlight {
    /// The most of anything that somebody else may claim, so that sums cannot overflow.
    const CLAIM_MAX: u64 = 1 << 40;

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            prefill_tokens: self.prefill_tokens.saturating_add(other.prefill_tokens),
            blocks: self.blocks.saturating_add(other.blocks),
        }
    }

    /// The part of each count beyond `other`'s.
    pub(crate) fn beyond(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            prefill_tokens: self.prefill_tokens.saturating_sub(other.prefill_tokens),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }

    /// As much of it as can be believed.
    pub(crate) fn believed(self) -> Self {
        let most = |claim: u64| claim.min(Self::CLAIM_MAX);
        Self {
            requests: most(self.requests),
            prefill_tokens: most(self.prefill_tokens),
            blocks: most(self.blocks),
        }
    }
}

/// Load that a replica has in flight at a worker, for other replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerLoad {
    /// Requests.
    pub requests: u64,
    /// Their tokens still to be computed or produced, where whoever books counts them; no cost does.
    pub tokens: u64,
    /// Prompt tokens that are still to be computed.
    pub prefill_tokens: u64,
    /// Pairs of one of them and a token that it attends to; 0 if unknown.
    pub prefill_pairs: u64,
    /// KV blocks in use.
    pub blocks: u64,
}

impl PeerLoad {
    /// Sum of two replicas' loads.
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// Each amount of this and of another, made one.
    pub fn zip(self, other: Self, one: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            requests: one(self.requests, other.requests),
            tokens: one(self.tokens, other.tokens),
            prefill_tokens: one(self.prefill_tokens, other.prefill_tokens),
            prefill_pairs: one(self.prefill_pairs, other.prefill_pairs),
            blocks: one(self.blocks, other.blocks),
        }
    }
}
