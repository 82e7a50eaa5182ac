//! Holders of prompts that an SGLang is asked for, until it asks for their pages.

use super::holder::KvHolder;
use crate::kv::pages::PageKey;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages that are noted at most; the oldest goes first.
const PAGES_MAX: usize = 1 << 16;

/// Notes of holders, by the pages of the prompt. An engine may ask from any page on: it has those
/// before itself.
#[derive(Default)]
pub(super) struct NotedPages(Mutex<PageNotes>);

#[derive(Default)]
struct PageNotes {
    by_page: FxHashMap<PageKey, PageNote>,
    /// Pages with the number of their note, oldest first.
    order: VecDeque<(PageKey, u64)>,
    notes: u64,
}

#[derive(Clone)]
struct PageNote {
    number: u64,
    /// Pages before this one in the prompt.
    place: usize,
    holders: Arc<[KvHolder]>,
}

impl NotedPages {
    /// Keeps holders of a prompt, as far as they hold it.
    pub(super) fn note(&self, pages: &[PageKey], holders: &[KvHolder]) {
        let held = holders.iter().map(|holder| holder.blocks).max().unwrap_or(0);
        let holders: Arc<[KvHolder]> = holders.into();
        let mut kept = self.0.lock();
        let number = kept.notes;
        kept.notes += 1;
        for (place, page) in pages.iter().take(held.min(PAGES_MAX)).enumerate() {
            let note = PageNote { number, place, holders: holders.clone() };
            kept.by_page.insert(*page, note);
            kept.order.push_back((*page, number));
        }
        while kept.order.len() > PAGES_MAX {
            let Some((page, number)) = kept.order.pop_front() else { break };
            // A later note may be for the same page.
            if kept.by_page.get(&page).is_some_and(|note| note.number == number) {
                kept.by_page.remove(&page);
            }
        }
    }

    /// Who holds the pages from this one on, and how many pages are before it.
    pub(super) fn find(&self, page: PageKey) -> Option<(Vec<KvHolder>, usize)> {
        let note = self.0.lock().by_page.get(&page)?.clone();
        let from_here = |holder: &KvHolder| {
            let blocks = holder.blocks.checked_sub(note.place).filter(|blocks| *blocks > 0)?;
            Some(KvHolder { blocks, ..holder.clone() })
        };
        Some((note.holders.iter().filter_map(from_here).collect(), note.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u32) -> PageKey {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        PageKey(key)
    }

    fn holder(address: &str, blocks: usize) -> KvHolder {
        KvHolder { address: address.into(), blocks }
    }

    #[test]
    fn a_page_in_the_middle_is_held_by_those_that_hold_so_much() {
        let notes = NotedPages::default();
        let prompt: Vec<_> = (0..8).map(page).collect();
        notes.note(&prompt, &[holder("near:1", 2), holder("far:1", 5)]);
        assert_eq!(notes.find(page(0)), Some((vec![holder("near:1", 2), holder("far:1", 5)], 0)));
        assert_eq!(notes.find(page(3)), Some((vec![holder("far:1", 2)], 3)));
        assert_eq!(notes.find(page(5)), None);
        // The last note counts.
        notes.note(&prompt[..4], &[holder("near:1", 4)]);
        assert_eq!(notes.find(page(3)), Some((vec![holder("near:1", 1)], 3)));
        assert_eq!(notes.find(page(4)), Some((vec![holder("far:1", 1)], 4)));
    }

    #[test]
    fn the_latest_pages_are_kept() {
        let notes = NotedPages::default();
        let prompt: Vec<_> = (0..PAGES_MAX as u32).map(page).collect();
        notes.note(&prompt, &[holder("a:1", PAGES_MAX)]);
        notes.note(&[page(u32::MAX), page(1)], &[holder("b:1", 2)]);
        assert_eq!(notes.find(page(0)), None);
        assert_eq!(notes.find(page(1)), Some((vec![holder("b:1", 1)], 1)));
        assert!(notes.find(page(2)).is_some());
    }
}
