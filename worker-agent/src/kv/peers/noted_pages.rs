//! Pages of prompts that an SGLang is asked for, until it asks for them.

use crate::kv::pages::PageKey;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_kv::connector::NotedPlace;
use std::collections::VecDeque;

/// Pages that are noted at most; the oldest goes first.
const PAGES_MAX: usize = 1 << 16;

/// Places of pages in noted prompts. An engine may ask from any page on: it has those before itself.
#[derive(Default)]
pub(super) struct NotedPages(Mutex<PageNotes>);

#[derive(Default)]
struct PageNotes {
    by_page: FxHashMap<PageKey, NotedPlace>,
    /// Pages with the number of their note, oldest first.
    order: VecDeque<(PageKey, u64)>,
}

impl NotedPages {
    /// Keeps the pages of a prompt, under the number of its note.
    pub(super) fn note(&self, pages: &[PageKey], number: u64) {
        let mut kept = self.0.lock();
        for (first, page) in pages.iter().take(PAGES_MAX).enumerate() {
            kept.by_page.insert(*page, NotedPlace { number, first });
            kept.order.push_back((*page, number));
        }
        while kept.order.len() > PAGES_MAX {
            let Some((page, number)) = kept.order.pop_front() else { break };
            // A later note may be for the same page.
            if kept.by_page.get(&page).is_some_and(|place| place.number == number) {
                kept.by_page.remove(&page);
            }
        }
    }

    /// Place of this page in the prompt that was noted with it last.
    pub(super) fn find(&self, page: PageKey) -> Option<NotedPlace> {
        self.0.lock().by_page.get(&page).copied()
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

    fn place(number: u64, first: usize) -> Option<NotedPlace> {
        Some(NotedPlace { number, first })
    }

    #[test]
    fn the_latest_pages_are_kept() {
        let notes = NotedPages::default();
        let prompt: Vec<_> = (0..PAGES_MAX as u32).map(page).collect();
        notes.note(&prompt, 5);
        assert_eq!((notes.find(page(0)), notes.find(page(7))), (place(5, 0), place(5, 7)));
        notes.note(&[page(u32::MAX), page(1)], 6);
        assert_eq!(notes.find(page(0)), None);
        assert_eq!((notes.find(page(1)), notes.find(page(2))), (place(6, 1), place(5, 2)));
    }
}
