//! Guesses where to look first: prompts that begin alike often share the same beginning with others
//! (a system prompt, a tenant's documents), and workers hold it to the same block.

use stator_protos::hash::SequenceHash;

/// Beginnings that are remembered: as many as fit into a corner of a core's nearest cache.
const GUESSES: usize = 64;
/// Ends that are remembered of each.
const ENDS: usize = 2;

/// Findings of earlier lookups, by the first block of their sequences; the latest is remembered.
#[derive(Default)]
pub(crate) struct Guesses(Vec<Guess>);

/// A guess of where the holders of a sequence change.
#[derive(Clone, Copy, Default)]
pub(crate) struct Guess {
    first: u64,
    /// Numbers of the blocks that are the last with the holders that they have, ascending; 0 is
    /// none.
    pub(crate) ends: [u32; ENDS],
}

impl Guesses {
    /// The guess for a sequence that begins with `first`; without ends if there is none.
    pub(crate) fn of(&self, first: SequenceHash) -> Guess {
        let guess = self.0.get(place(first)).copied().unwrap_or_default();
        if guess.first == first.0 { guess } else { Guess::default() }
    }

    /// Remembers where the holders of a sequence that begins with `first` change, ascending.
    pub(crate) fn note(&mut self, first: SequenceHash, mut ends: impl Iterator<Item = u32>) {
        self.0.resize(GUESSES, Guess::default());
        let ends = [(); ENDS].map(|()| ends.next().unwrap_or_default());
        self.0[place(first)] = Guess { first: first.0, ends };
    }
}

fn place(first: SequenceHash) -> usize {
    first.0 as usize % GUESSES
}

#[cfg(all(test, not(stator_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_a_beginning_is_remembered() {
        let (first, like_it) = (SequenceHash(7), SequenceHash(7 + GUESSES as u64));
        let mut guesses = Guesses::default();
        assert_eq!(guesses.of(first).ends, [0, 0]);
        guesses.note(first, [3, 9, 12].into_iter());
        assert_eq!(guesses.of(first).ends, [3, 9]);
        assert_eq!(guesses.of(like_it).ends, [0, 0], "another one of the same place");
        guesses.note(first, [4].into_iter());
        assert_eq!(guesses.of(first).ends, [4, 0]);
    }
}
