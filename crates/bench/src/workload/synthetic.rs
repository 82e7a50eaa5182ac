//! Made-up requests with shared prefixes.

use crate::args::PromptArgs;
use crate::seed::{Purpose, Seed};

use super::{Content, PromptInput, Session, SessionSource};

/// Requests of a given size, some of whose tokens are common to a group of requests.
#[derive(Clone, Debug)]
pub struct Synthetic {
    pub(super) content: Content,
    pub(super) seed: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    spread: f64,
    shared_share: f64,
    groups: u32,
}

/// The size of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RequestShape {
    /// Group whose prefix it has.
    pub(super) group: u64,
    /// Length of the prompt, the prefix included.
    pub(super) prompt_tokens: usize,
    /// Length of the answer.
    pub(super) output_tokens: u32,
}

impl Synthetic {
    /// Requests as the arguments describe them.
    pub fn new(args: &PromptArgs, content: Content, seed: u64) -> Self {
        Self {
            content,
            seed,
            prompt_tokens: args.prompt_tokens,
            output_tokens: args.output_tokens,
            spread: args.length_spread,
            shared_share: args.shared_prefix_share,
            groups: args.prefix_groups,
        }
    }

    /// Length of the prefix that a group shares. It does not vary, so that the prefixes of a
    /// group are equal as a whole.
    pub(super) fn shared_len(&self) -> usize {
        (f64::from(self.prompt_tokens) * self.shared_share).round() as usize
    }

    /// The size of a request.
    pub(super) fn shape(&self, index: u64) -> RequestShape {
        let mut seed = Seed::of(self.seed, Purpose::Shape, index);
        let group = seed.below(u64::from(self.groups));
        let mut vary = |len: u32| {
            let factor = 1.0 + self.spread * (2.0 * seed.unit() - 1.0);
            (f64::from(len) * factor).round().max(1.0)
        };
        let prompt_tokens = vary(self.prompt_tokens) as usize;
        RequestShape { group, prompt_tokens, output_tokens: vary(self.output_tokens) as u32 }
    }

    /// Appends the prefix of a group, or its first `len` tokens where those are fewer.
    pub(super) fn extend_shared(&self, prompt: &mut PromptInput, group: u64, len: usize) {
        let seed = Seed::of(self.seed, Purpose::Prefix, group);
        self.content.extend(prompt, len.min(self.shared_len()), seed);
    }
}

impl SessionSource for Synthetic {
    fn session(&self, index: u64) -> Session {
        let shape = self.shape(index);
        let mut prompt = self.content.empty(shape.prompt_tokens);
        self.extend_shared(&mut prompt, shape.group, shape.prompt_tokens);
        let own = shape.prompt_tokens.saturating_sub(self.shared_len());
        self.content.extend(&mut prompt, own, Seed::of(self.seed, Purpose::Request, index));
        Session::single(prompt, shape.output_tokens)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::workload) fn args() -> PromptArgs {
        PromptArgs {
            prompt_kind: None,
            words: None,
            vocab_size: 1000,
            prompt_tokens: 100,
            output_tokens: 10,
            length_spread: 0.0,
            shared_prefix_share: 0.4,
            prefix_groups: 3,
            conversations: None,
            turns: 4,
        }
    }

    fn tokens(source: &Synthetic, index: u64) -> Vec<u32> {
        match source.session(index).turns.remove(0).prompt {
            PromptInput::Tokens(ids) => ids,
            PromptInput::Text(text) => panic!("text: {text}"),
        }
    }

    fn common(a: &[u32], b: &[u32]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn requests_of_a_group_share_exactly_the_prefix() {
        let source = Synthetic::new(&args(), Content::tokens(100_000), 1);
        let requests: Vec<_> =
            (0..30).map(|i| (source.shape(i).group, tokens(&source, i))).collect();
        for (i, (group, ids)) in requests.iter().enumerate() {
            assert_eq!(ids.len(), 100);
            for (other_group, other) in &requests[..i] {
                let expected = if group == other_group { 40 } else { 0 };
                assert_eq!(common(ids, other), expected);
            }
        }
        assert!((0..3).all(|group| requests.iter().any(|(g, _)| *g == group)));
    }

    #[test]
    fn lengths_stay_within_the_spread() {
        let args = PromptArgs { length_spread: 0.5, ..args() };
        let source = Synthetic::new(&args, Content::tokens(1000), 1);
        let lengths: Vec<usize> = (0..500).map(|i| tokens(&source, i).len()).collect();
        assert!(lengths.iter().all(|len| (50..=150).contains(len)));
        assert!(*lengths.iter().min().unwrap() < 60 && *lengths.iter().max().unwrap() > 140);
    }

    #[test]
    fn a_prompt_shorter_than_the_prefix_is_cut() {
        let args = PromptArgs { length_spread: 0.5, shared_prefix_share: 1.0, ..args() };
        let source = Synthetic::new(&args, Content::tokens(1000), 1);
        for index in 0..50 {
            assert_eq!(tokens(&source, index).len(), source.shape(index).prompt_tokens);
        }
    }

    #[test]
    fn a_request_depends_on_seed_and_index_alone() {
        let source = |seed| Synthetic::new(&args(), Content::common_words(), seed);
        assert_eq!(source(1).session(5), source(1).session(5));
        assert_ne!(source(1).session(5), source(2).session(5));
    }
}
