//! Memory between arena and disk, for blocks that are encrypted on the way.

use super::format::{PAGE_BYTES, Page};

/// As much memory as there are blocks under way, and one block more.
#[derive(Debug, Default)]
pub(super) struct Staging {
    spare: Vec<Box<[Page]>>,
    /// A block in one piece.
    pub(super) block: Vec<u8>,
}

impl Staging {
    /// Pages of so many bytes, with any content.
    pub(super) fn pages(&mut self, bytes: usize) -> Box<[Page]> {
        self.spare.pop().unwrap_or_else(|| Page::zeros(bytes / PAGE_BYTES))
    }

    /// Keeps pages for later, if fewer than `most` are kept.
    pub(super) fn keep(&mut self, pages: Box<[Page]>, most: usize) {
        if self.spare.len() < most {
            self.spare.push(pages);
        }
    }
}
