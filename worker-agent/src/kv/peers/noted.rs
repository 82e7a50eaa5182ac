//! Notes of prompts that an engine in another process is asked for: who holds them, until the engine
//! names their blocks, and what it got of them.

use super::holder::KvHolder;
use parking_lot::Mutex;
use stator_kv::connector::{AskUse, NotedPlace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
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
    /// Blocks that the engine got of it, by the places from which it asked for some: an SGLang asks
    /// for a long prompt part by part.
    used: BTreeMap<usize, AskUse>,
}

impl NotedHolders {
    /// Keeps holders; returns the number of the note.
    pub(super) fn note(&self, holders: Arc<[KvHolder]>) -> u64 {
        let mut kept = self.0.lock();
        if kept.notes.len() == NOTES_MAX {
            kept.notes.pop_front();
            kept.first += 1;
        }
        kept.notes.push_back(PromptNote { holders, used: BTreeMap::new() });
        kept.first + kept.notes.len() as u64 - 1
    }

    /// The holders of this number, if they are still kept.
    pub(super) fn find(&self, number: u64) -> Option<Arc<[KvHolder]>> {
        let mut kept = self.0.lock();
        Some(kept.note(number)?.holders.clone())
    }

    /// Notes what the engine got so far from a place of a prompt on.
    ///
    /// Several questions may be for the same blocks: each choice asks, and an SGLang first looks for pages
    /// and then loads them. The question that got the most blocks counts. Of equal ones it is the one that
    /// found the fewest in host memory: it had brought there what the others found.
    pub(super) fn note_use(&self, place: NotedPlace, used: AskUse) {
        let mut kept = self.0.lock();
        let Some(note) = kept.note(place.number) else { return };
        let counts = |of: &AskUse| (of.ready, of.asked, Reverse(of.host));
        let most = note.used.entry(place.first).or_insert(used);
        if counts(&used) > counts(most) {
            *most = used;
        }
    }

    /// Blocks that the engine got so far for the prompt of this number, if it has asked for any.
    pub(super) fn used(&self, number: u64) -> Option<AskUse> {
        let mut kept = self.0.lock();
        kept.note(number)?.used.values().copied().reduce(|sum, of| AskUse {
            asked: sum.asked + of.asked,
            host: sum.host + of.host,
            ready: sum.ready + of.ready,
            bytes: sum.bytes + of.bytes,
            waited: sum.waited.max(of.waited),
        })
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
    fn the_question_that_got_most_counts_in_each_place() {
        let notes = NotedHolders::default();
        let number = notes.note([].into());
        let from = |first| NotedPlace { number, first };
        assert_eq!(notes.used(number), None);
        let got = |host, ready| AskUse { asked: 9, host, ready, ..AskUse::default() };
        for (host, ready) in [(1, 1), (1, 4), (0, 2), (4, 4)] {
            notes.note_use(from(0), got(host, ready));
        }
        assert_eq!(notes.used(number), Some(got(1, 4)));
        notes.note_use(from(9), got(2, 3));
        assert_eq!(notes.used(number), Some(AskUse { asked: 18, ..got(3, 7) }));
        notes.note_use(NotedPlace { number: number + 1, first: 0 }, got(9, 9));
        assert_eq!(notes.used(number + 1), None);
    }
}
