//! Sequences that wait for room, first come first served.

use std::collections::VecDeque;

use super::sequence::Sequence;
use crate::RequestKey;

/// A queue that knows how much it holds.
#[derive(Debug, Default)]
pub(super) struct Queue {
    sequences: VecDeque<Sequence>,
    choices: usize,
    tokens: usize,
}

impl Queue {
    /// Choices that wait, those behind the first of their request included.
    pub(super) fn choices(&self) -> usize {
        self.choices
    }

    /// Tokens to compute, what is cached not taken off.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn push_back(&mut self, sequence: Sequence) {
        self.count(&sequence);
        self.sequences.push_back(sequence);
    }

    /// Puts a sequence before all others, because it has been served before them.
    pub(super) fn push_front(&mut self, sequence: Sequence) {
        self.count(&sequence);
        self.sequences.push_front(sequence);
    }

    /// Takes the first sequence if it can be admitted; the others do not overtake it.
    pub(super) fn pop_if(&mut self, admit: impl FnOnce(&mut Sequence) -> bool) -> Option<Sequence> {
        let remaining = self.sequences.front()?.remaining();
        if !admit(self.sequences.front_mut()?) {
            return None;
        }
        let sequence = self.sequences.pop_front()?;
        self.choices -= 1 + sequence.siblings as usize;
        self.tokens -= remaining;
        Some(sequence)
    }

    /// Drops all sequences of a request.
    pub(super) fn remove(&mut self, key: RequestKey) {
        let (choices, tokens) = (&mut self.choices, &mut self.tokens);
        self.sequences.retain(|sequence| {
            let keep = sequence.key() != key;
            if !keep {
                *choices -= 1 + sequence.siblings as usize;
                *tokens -= sequence.remaining();
            }
            keep
        });
    }

    fn count(&mut self, sequence: &Sequence) {
        self.choices += 1 + sequence.siblings as usize;
        self.tokens += sequence.remaining();
    }
}
