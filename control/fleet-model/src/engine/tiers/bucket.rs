//! A bucket of an object store, of which nothing but its content is modelled.

use crate::time::Ps;
use rustc_hash::FxHashSet;
use stator_kv::Block;
use stator_protos::name::BlockName;
use std::cell::RefCell;
use std::rc::Rc;

/// Blocks that the workers of a fleet have written, which stay. Clones are the same bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket(Rc<RefCell<BucketContent>>);

#[derive(Debug, Default)]
struct BucketContent {
    names: FxHashSet<BlockName>,
    /// Each block with the time from which all workers know of it, in this order.
    blocks: Vec<(Ps, Block)>,
}

impl Bucket {
    /// Takes a block that was written, of which all workers know at `known`.
    pub(super) fn write(&self, block: Block, known: Ps) {
        let mut content = self.0.borrow_mut();
        if content.names.insert(block.name) {
            // An index tells of its blocks in the order in which they came.
            let before = content.blocks.last().map_or(0, |(known, _)| *known);
            content.blocks.push((known.max(before), block));
        }
    }

    /// Blocks that a worker hears of until `now`, beyond the first `heard`.
    pub(super) fn news(&self, heard: usize, now: Ps) -> Vec<Block> {
        let content = self.0.borrow();
        let blocks = content.blocks.get(heard..).unwrap_or_default().iter();
        blocks.take_while(|(known, _)| *known <= now).map(|(_, block)| *block).collect()
    }
}
