//! Candidates of a token with their logprobs, put into the contract's order.

use crate::TokenLogprobs;

/// One candidate as an engine names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
    /// 1 is the most likely; `None` where the engine does not say.
    pub(crate) rank: Option<u32>,
}

/// The chosen token with its `count` best alternatives, best first. Engines list the chosen token
/// among the alternatives even where it is none of the best.
pub(crate) fn ranked(
    chosen: (u32, f32),
    mut candidates: Vec<Candidate>,
    count: u32,
) -> TokenLogprobs {
    candidates.retain(|candidate| candidate.rank.is_none_or(|rank| rank <= count));
    candidates.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    candidates.truncate(count as usize);
    let top = candidates.iter().map(|candidate| (candidate.token, candidate.logprob)).collect();
    TokenLogprobs { token: chosen.0, logprob: chosen.1, top }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_token_is_an_alternative_only_where_it_is_one_of_the_best() {
        let candidate = |token, logprob, rank| Candidate { token, logprob, rank: Some(rank) };
        let given = vec![candidate(9, -5.0, 8), candidate(1, -0.5, 1), candidate(2, -1.5, 2)];
        let ranked = ranked((9, -5.0), given, 2);
        assert_eq!(ranked.top, [(1, -0.5), (2, -1.5)]);
        assert_eq!((ranked.token, ranked.logprob), (9, -5.0));
    }
}
