//! Notes of prompts that an engine in another process is asked for: who holds them, until the engine
//! names their blocks, and what it got of them.

use super::holder::KvHolder;
use parking_lot::Mutex;
use stator_kv::connector::AskUse;
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
    notes: VecDeque<PromptNote>,
}

/// A note of one prompt.
struct PromptNote {
    holders: Arc<[KvHolder]>,
    /// Blocks that the engine got of it: the most, where several choices asked.
    used: Option<AskUse>,
}

impl NotedHolders {
    /// Keeps holders; returns the number of the note.
    pub(super) fn note(&self, holders: Arc<[KvHolder]>) -> u64 {
        let mut kept = self.0.lock();
        if kept.notes.len() == NOTES_MAX {
            kept.notes.pop_front();
            kept.first += 1;
        }
        kept.notes.push_back(PromptNote { holders, used: None });
        kept.first + kept.notes.len() as u64 - 1
    }

    /// The holders of this number, if they are still kept.
    pub(super) fn find(&self, number: u64) -> Option<Arc<[KvHolder]>> {
        let mut kept = self.0.lock();
        Some(kept.note(number)?.holders.clone())
    }

    /// Notes what the engine got so far for the prompt of this number.
    pub(super) fn note_use(&self, number: u64, used: AskUse) {
        let mut kept = self.0.lock();
        let Some(note) = kept.note(number) else { return };
        note.used = note.used.into_iter().chain([used]).max_by_key(|of| of.ready);
    }

    /// Blocks that the engine got so far for the prompt of this number.
    pub(super) fn used(&self, number: u64) -> Option<AskUse> {
        self.0.lock().note(number)?.used
    }
}

impl HolderNotes {
    fn note(&mut self, number: u64) -> Option<&mut PromptNote> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.notes.get_mut(place)
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

    #[test]
    fn the_choice_that_got_most_counts() {
        let notes = NotedHolders::default();
        let number = notes.note([].into());
        assert_eq!(notes.used(number), None);
        let got = |ready| AskUse { asked: 9, ready, ..AskUse::default() };
        for ready in [1, 4, 2] {
            notes.note_use(number, got(ready));
        }
        assert_eq!(notes.used(number), Some(got(4)));
        notes.note_use(number + 1, got(9));
        assert_eq!(notes.used(number + 1), None);
    }
}
