//! Made-up conversations of several turns.

use crate::seed::{Purpose, Seed};

use super::{PromptInput, Session, SessionSource, Synthetic, Turn};

/// Conversations: a system message that a group shares, then turns of words that no other
/// conversation shares. The server's answers join the conversation when it runs.
#[derive(Clone, Debug)]
pub struct Conversations {
    requests: Synthetic,
    turns: u32,
}

impl Conversations {
    /// Conversations of `turns` turns, each of the size that `requests` gives.
    pub fn new(requests: Synthetic, turns: u32) -> Self {
        Self { requests, turns }
    }

    fn turn(&self, conversation: u64, turn: u32) -> Turn {
        let index = conversation * u64::from(self.turns) + u64::from(turn);
        let shape = self.requests.shape(index);
        let mut prompt = self.requests.content.empty(shape.prompt_tokens);
        let seed = Seed::of(self.requests.seed, Purpose::Request, index);
        self.requests.content.extend(&mut prompt, shape.prompt_tokens, seed);
        Turn { prompt, output_tokens: shape.output_tokens }
    }
}

impl SessionSource for Conversations {
    fn session(&self, index: u64) -> Session {
        let group = self.requests.shape(index).group;
        let shared = self.requests.shared_len();
        let mut system = self.requests.content.empty(shared);
        self.requests.extend_shared(&mut system, group, shared);
        let system = match system {
            PromptInput::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        };
        Session { system, turns: (0..self.turns).map(|turn| self.turn(index, turn)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::tests::args;
    use super::super::{Content, PromptInput};
    use super::*;

    fn conversations(shared_prefix_share: f64) -> Conversations {
        let args = crate::args::PromptArgs { shared_prefix_share, ..args() };
        Conversations::new(Synthetic::new(&args, Content::common_words(), 1), 3)
    }

    #[test]
    fn every_turn_has_words_of_its_own() {
        let session = conversations(0.4).session(2);
        let texts: Vec<&PromptInput> = session.turns.iter().map(|turn| &turn.prompt).collect();
        assert_eq!(texts.len(), 3);
        assert!(texts[0] != texts[1] && texts[1] != texts[2]);
        assert_eq!(session.system.unwrap().split(' ').count(), 40);
    }

    #[test]
    fn conversations_of_a_group_share_the_system_message() {
        let source = conversations(0.4);
        let group = |index| source.requests.shape(index).group;
        let other = (1..100).find(|index| group(*index) == group(0)).unwrap();
        assert_eq!(source.session(0).system, source.session(other).system);
        assert_ne!(source.session(0).turns, source.session(other).turns);
    }

    #[test]
    fn without_a_shared_prefix_there_is_no_system_message() {
        assert_eq!(conversations(0.0).session(0).system, None);
    }
}
