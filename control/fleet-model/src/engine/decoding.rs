//! The sequences that decode, as the sums that steps depend on.
//!
//! All of them gain a token in every step. A sequence that entered with `length` tokens computed
//! at tick `since` therefore has `length + 1 + t - since` tokens in the step at tick `t`, the last
//! of which is computed by it, and it needs another block in those steps for which
//! `t = since - length` modulo the block size.

use super::rates::Batch;
use super::request::SequenceId;
use super::sequence::{Sequence, SequenceState, Sequences};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(super) struct Decoding {
    block_size: u64,
    count: u32,
    /// The sum of `length + 1 - since`.
    lengths: i64,
    /// Sequences that need a block in the steps of each residue.
    residues: Box<[u32]>,
    /// The tick at which each has its last token and its turn of admission, which decides who gives
    /// blocks back first; then its id and life. Entries of those that left stay until their tick.
    ends: BinaryHeap<Reverse<(u64, u64, SequenceId, u32)>>,
}

impl Decoding {
    pub(super) fn new(block_size: u32) -> Self {
        Self {
            block_size: u64::from(block_size),
            count: 0,
            lengths: 0,
            residues: vec![0; block_size as usize].into(),
            ends: BinaryHeap::new(),
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// The batch of the step at `tick`.
    pub(super) fn batch(&self, tick: u64) -> Batch {
        let sequences = u64::from(self.count);
        let context = self.lengths + sequences as i64 * tick as i64;
        Batch { sequences, context: context as u64 }
    }

    /// A sequence begins at `tick`; it has computed its prompt.
    pub(super) fn enter(&mut self, id: SequenceId, sequence: &Sequence, tick: u64) {
        let Sequence { tokens, left, turn, life, .. } = *sequence;
        self.count += 1;
        self.lengths += i64::from(tokens) + 1 - tick as i64;
        self.residues[self.residue(tokens, tick)] += 1;
        self.ends.push(Reverse((tick + u64::from(left), turn, id, life)));
    }

    /// A sequence that entered so leaves.
    pub(super) fn leave(&mut self, length: u32, since: u64) {
        self.count -= 1;
        self.lengths -= i64::from(length) + 1 - since as i64;
        self.residues[self.residue(length, since)] -= 1;
    }

    /// Blocks that `steps` steps from `tick` on need.
    pub(super) fn crossings(&self, tick: u64, steps: u32) -> u32 {
        let rounds = steps / self.block_size as u32;
        let rest = steps % self.block_size as u32;
        let at = |step: u32| self.residues[((tick + u64::from(step)) % self.block_size) as usize];
        rounds * self.count + (0..rest).map(at).sum::<u32>()
    }

    /// Most steps from `tick` on, of at most `steps`, for which `blocks` suffice; at least 1.
    pub(super) fn steps_with(&self, blocks: u32, tick: u64, steps: u32) -> u32 {
        let rounds = u64::from(steps).div_ceil(self.block_size);
        if rounds * u64::from(self.count) <= u64::from(blocks) {
            return steps;
        }
        let mut needed = 0;
        for step in 0..steps {
            needed += self.crossings(tick + u64::from(step), 1);
            if needed > blocks {
                return step.max(1);
            }
        }
        steps
    }

    /// The first tick at which a sequence ends.
    pub(super) fn first_end(&mut self, sequences: &Sequences) -> Option<u64> {
        loop {
            let &Reverse((tick, _, id, life)) = self.ends.peek()?;
            if is_decoding(sequences, id, life) {
                return Some(tick);
            }
            self.ends.pop();
        }
    }

    /// A sequence that ends at `tick`, if there is a further one.
    pub(super) fn pop_ended(&mut self, tick: u64, sequences: &Sequences) -> Option<SequenceId> {
        (self.first_end(sequences)? <= tick).then(|| self.ends.pop())?.map(|Reverse(end)| end.2)
    }

    fn residue(&self, length: u32, since: u64) -> usize {
        let length = u64::from(length) % self.block_size;
        ((since + self.block_size - length) % self.block_size) as usize
    }
}

/// Whether the sequence that an entry was made for still decodes.
fn is_decoding(sequences: &Sequences, id: SequenceId, life: u32) -> bool {
    let sequence = sequences.at(id);
    sequence.life == life && matches!(sequence.state, SequenceState::Decoding { .. })
}
