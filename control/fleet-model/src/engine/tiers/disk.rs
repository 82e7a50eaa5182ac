//! A disk of which nothing but its content is modelled.

use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;
use std::collections::VecDeque;

/// Blocks in the order in which they were written. The oldest is overwritten, unless it was read since:
/// then it is written anew, as the disk tier of agents does.
#[derive(Debug)]
pub(super) struct FifoDisk {
    capacity: usize,
    order: VecDeque<BlockName>,
    /// Whether a block was read since it was written.
    held: FxHashMap<BlockName, bool>,
}

impl FifoDisk {
    pub(super) fn new(capacity: u32) -> Self {
        let (order, held) = Default::default();
        Self { capacity: capacity as usize, order, held }
    }

    /// Reads a block; false if it is not there.
    pub(super) fn read(&mut self, name: BlockName) -> bool {
        self.held.get_mut(&name).map(|was_read| *was_read = true).is_some()
    }

    /// Writes a block; those that it takes the place of go into `gone`. Returns the blocks written,
    /// those written anew included.
    pub(super) fn write(&mut self, name: BlockName, gone: &mut Vec<BlockName>) -> u64 {
        let mut written = 1;
        if self.held.insert(name, false).is_some() {
            return written;
        }
        self.order.push_back(name);
        // Each block is passed over once at most.
        for _ in 0..self.order.len() {
            if self.held.len() <= self.capacity {
                break;
            }
            let Some(oldest) = self.order.pop_front() else { break };
            match self.held.get_mut(&oldest) {
                Some(was_read) if *was_read => {
                    *was_read = false;
                    self.order.push_back(oldest);
                    written += 1;
                }
                _ => {
                    self.held.remove(&oldest);
                    gone.push(oldest);
                }
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_was_not_read_is_overwritten() {
        let mut disk = FifoDisk::new(2);
        let mut gone = Vec::new();
        for name in [1, 2] {
            assert_eq!(disk.write(BlockName(name), &mut gone), 1);
        }
        assert!(disk.read(BlockName(1)) && !disk.read(BlockName(9)));
        assert_eq!(disk.write(BlockName(3), &mut gone), 2);
        assert_eq!(gone, [BlockName(2)]);
        assert_eq!(disk.write(BlockName(3), &mut gone), 1);
    }
}
