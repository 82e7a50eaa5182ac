//! Sequences that wait for room, first come first served.

use std::collections::VecDeque;

use super::sequence::Sequence;
use crate::RequestKey;

/// Answer of a sequence to whether it can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueAdmission {
    /// The sequence has its blocks.
    Admitted,
    /// There is no room; nobody overtakes it.
    NoRoom,
    /// KV is on its way; others pass.
    AwaitsKv,
}

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

    /// The first sequences, at most `most`.
    pub(super) fn first(&mut self, most: usize) -> impl Iterator<Item = &mut Sequence> {
        self.sequences.iter_mut().take(most)
    }

    /// Takes the first sequence that does not wait for KV, if there is room for it; of those that
    /// do, it passes at most `most`.
    pub(super) fn pop(
        &mut self,
        most: usize,
        mut admit: impl FnMut(&mut Sequence) -> QueueAdmission,
    ) -> Option<Sequence> {
        let mut found = None;
        for (place, sequence) in self.sequences.iter_mut().take(most.saturating_add(1)).enumerate()
        {
            let remaining = sequence.remaining();
            match admit(sequence) {
                QueueAdmission::Admitted => found = Some((place, remaining)),
                QueueAdmission::NoRoom => {}
                QueueAdmission::AwaitsKv => continue,
            }
            break;
        }
        let (place, remaining) = found?;
        let sequence = self.sequences.remove(place)?;
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
