//! Work of computing prompts.

/// Prompt tokens that are to be computed, and the pairs of one of them and a token that it attends
/// to: what a long prompt takes grows with both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    pub(crate) tokens: f64,
    pub(crate) pairs: f64,
}

impl Work {
    /// The last `uncached` tokens of a prompt of `tokens`.
    pub(crate) fn of(uncached: f64, tokens: f64) -> Self {
        Self { tokens: uncached, pairs: uncached * (tokens - uncached / 2.0).max(0.0) }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, pairs: self.pairs + other.pairs }
    }

    /// This work less `other`, each part at least 0.
    pub(crate) fn without(self, other: Self) -> Self {
        let left = |all: f64, part: f64| (all - part).max(0.0);
        Self { tokens: left(self.tokens, other.tokens), pairs: left(self.pairs, other.pairs) }
    }

    /// This work times `factor`.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { tokens: self.tokens * factor, pairs: self.pairs * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prompt_attends_to_all_of_it() {
        assert_eq!(Work::of(100.0, 100.0), Work { tokens: 100.0, pairs: 5_000.0 });
        assert_eq!(Work::of(10.0, 100.0).pairs, 950.0);
        let both = Work::of(90.0, 90.0).plus(Work::of(10.0, 100.0));
        assert_eq!(both, Work::of(100.0, 100.0));
        assert_eq!(both.without(Work::of(90.0, 90.0)), Work::of(10.0, 100.0));
        assert_eq!(Work::default().without(both), Work::default());
    }
}
