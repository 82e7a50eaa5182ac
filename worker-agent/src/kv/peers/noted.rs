//! Holders of prompts that an engine in another process is asked for, until it names their blocks.

use super::holder::KvHolder;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Notes that are kept at most; the oldest goes first.
const NOTES_MAX: usize = 4096;

/// Notes of holders, by number. A note may be read several times: a request has a prompt for each of
/// its choices.
#[derive(Default)]
pub(super) struct NotedHolders(Mutex<HolderNotes>);

#[derive(Default)]
struct HolderNotes {
    /// Number of the first note.
    first: u64,
    notes: VecDeque<Arc<[KvHolder]>>,
}

impl NotedHolders {
    /// Keeps holders; returns the number of the note.
    pub(super) fn note(&self, holders: Arc<[KvHolder]>) -> u64 {
        let mut kept = self.0.lock();
        if kept.notes.len() == NOTES_MAX {
            kept.notes.pop_front();
            kept.first += 1;
        }
        kept.notes.push_back(holders);
        kept.first + kept.notes.len() as u64 - 1
    }

    /// The holders of this number, if they are still kept.
    pub(super) fn find(&self, number: u64) -> Option<Arc<[KvHolder]>> {
        let kept = self.0.lock();
        let place = usize::try_from(number.checked_sub(kept.first)?).ok()?;
        kept.notes.get(place).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_notes_are_kept() {
        let notes = NotedHolders::default();
        let holders = |blocks| [KvHolder { address: "a:1".into(), blocks }].into();
        let numbers: Vec<_> = (0..=NOTES_MAX).map(|blocks| notes.note(holders(blocks))).collect();
        assert_eq!(notes.find(numbers[0]), None);
        assert_eq!(notes.find(numbers[1]), Some(holders(1)));
        assert_eq!(notes.find(numbers[NOTES_MAX]), Some(holders(NOTES_MAX)));
        assert_eq!(notes.find(numbers[NOTES_MAX] + 1), None);
    }
}
