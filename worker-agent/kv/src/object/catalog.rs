//! Known blocks of the bucket: the extent of each, and its position there.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use stator_protos::name::BlockName;

use super::extent::ExtentId;

/// Place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    pub(crate) extent: ExtentKey,
    pub(crate) position: u16,
}

/// An extent within one catalog. Keys grow and are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ExtentKey(u64);

struct ExtentRecord {
    id: ExtentId,
    /// Names in the extent's order.
    names: Box<[BlockName]>,
}

/// Blocks and extents, about 64 bytes of memory for each block. The number of blocks is bounded:
/// the catalog forgets the extents that it learnt of first, and the bucket keeps them.
pub(crate) struct Catalog {
    blocks: FxHashMap<BlockName, BlockPlace>,
    extents: BTreeMap<ExtentKey, ExtentRecord>,
    by_id: FxHashMap<ExtentId, ExtentKey>,
    /// Names of all extents, of which some may be told by several.
    names: usize,
    names_max: usize,
    next: u64,
}

/// Changes by a new extent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CatalogChange {
    /// Positions of blocks that the catalog did not know before.
    pub(crate) found: Vec<u16>,
    /// Names that it knows no more, as it is full.
    pub(crate) gone: Vec<BlockName>,
}

impl Catalog {
    /// A catalog of at most so many names.
    pub(crate) fn new(names_max: usize) -> Self {
        Self {
            blocks: FxHashMap::default(),
            extents: BTreeMap::new(),
            by_id: FxHashMap::default(),
            names: 0,
            names_max,
            next: 0,
        }
    }

    /// Place of a block, if the bucket has it.
    pub(crate) fn place(&self, name: BlockName) -> Option<BlockPlace> {
        self.blocks.get(&name).copied()
    }

    /// The identity of an extent and how many blocks it has.
    pub(crate) fn extent(&self, key: ExtentKey) -> Option<(ExtentId, usize)> {
        self.extents.get(&key).map(|record| (record.id, record.names.len()))
    }

    /// Whether the catalog has the extent.
    pub(crate) fn has(&self, id: ExtentId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Learns of an extent. A block that is in another extent already stays there.
    pub(crate) fn insert(&mut self, id: ExtentId, names: Box<[BlockName]>) -> CatalogChange {
        let mut change = CatalogChange::default();
        if self.has(id) || names.len() > self.names_max {
            return change;
        }
        while self.names + names.len() > self.names_max
            && let Some(oldest) = self.extents.keys().next().copied()
        {
            change.gone.extend(self.remove(oldest));
        }
        let key = ExtentKey(self.next);
        self.next += 1;
        self.names += names.len();
        for (position, name) in names.iter().enumerate() {
            let place = BlockPlace { extent: key, position: position as u16 };
            self.blocks.entry(*name).or_insert_with(|| {
                change.found.push(place.position);
                place
            });
        }
        self.by_id.insert(id, key);
        self.extents.insert(key, ExtentRecord { id, names });
        // A block may have gone with an old extent and come back with this one.
        change.gone.retain(|name| !self.blocks.contains_key(name));
        change
    }

    /// Forgets an extent; returns the names that are in no place now.
    pub(crate) fn remove(&mut self, key: ExtentKey) -> Vec<BlockName> {
        let Some(record) = self.extents.remove(&key) else { return Vec::new() };
        self.by_id.remove(&record.id);
        self.names -= record.names.len();
        let blocks = &mut self.blocks;
        let is_here = |name: &BlockName| blocks.get(name).is_some_and(|place| place.extent == key);
        let mut gone = record.names.into_vec();
        gone.retain(is_here);
        gone.retain(|name| self.blocks.remove(name).is_some());
        gone
    }

    /// Removes an extent like [`Self::remove`], by identity.
    pub(crate) fn remove_id(&mut self, id: ExtentId) -> Vec<BlockName> {
        self.by_id.get(&id).copied().map_or_else(Vec::new, |key| self.remove(key))
    }

    /// Forgets one block, whose frame is bad; returns whether it was there.
    pub(crate) fn remove_block(&mut self, name: BlockName, place: BlockPlace) -> bool {
        let is_there = self.blocks.get(&name) == Some(&place);
        if is_there {
            self.blocks.remove(&name);
        }
        is_there
    }

    /// Forgets everything; returns the names.
    pub(crate) fn clear(&mut self) -> Vec<BlockName> {
        // Not the next key: a read on its way must not find another extent under its key.
        let empty = Self { next: self.next, ..Self::new(self.names_max) };
        std::mem::replace(self, empty).blocks.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(number: u8) -> ExtentId {
        ExtentId([number; 32])
    }

    fn names(numbers: &[u8]) -> Box<[BlockName]> {
        numbers.iter().map(|number| BlockName((*number).into())).collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, Vec<u8>),
        Remove(u8),
        RemoveBlock(u8),
        Clear,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let number = || 0..12_u8;
        prop_oneof![
            6 => (number(), vec(number(), 0..5)).prop_map(|(id, names)| Step::Insert(id, names)),
            2 => number().prop_map(Step::Remove),
            2 => number().prop_map(Step::RemoveBlock),
            1 => Just(Step::Clear),
        ]
    }

    /// Extents in the order in which they were learnt, and the place of each block, as lists.
    #[derive(Default)]
    struct CatalogModel {
        extents: Vec<(u8, Vec<u8>)>,
        places: Vec<(u8, u8)>,
    }

    impl CatalogModel {
        fn known(&self) -> BTreeSet<u8> {
            self.places.iter().map(|(name, _)| *name).collect()
        }

        fn remove(&mut self, id: u8) {
            self.extents.retain(|(other, _)| *other != id);
            self.places.retain(|(_, extent)| *extent != id);
        }

        fn apply(&mut self, step: &Step, names_max: usize) {
            match step {
                Step::Insert(id, names) => {
                    if self.extents.iter().any(|(other, _)| other == id) {
                        return;
                    }
                    let held =
                        |model: &Self| model.extents.iter().map(|(_, n)| n.len()).sum::<usize>();
                    while held(self) + names.len() > names_max {
                        self.remove(self.extents[0].0);
                    }
                    self.extents.push((*id, names.clone()));
                    for name in names {
                        if !self.known().contains(name) {
                            self.places.push((*name, *id));
                        }
                    }
                }
                Step::Remove(id) => self.remove(*id),
                Step::RemoveBlock(name) => self.places.retain(|(other, _)| other != name),
                Step::Clear => *self = Self::default(),
            }
        }
    }

    proptest! {
        /// The catalog places blocks as two lists do, and reports what changed.
        #[test]
        fn agrees_with_lists(steps in vec(any_step(), 0..60)) {
            const NAMES_MAX: usize = 14;
            let (mut catalog, mut model) = (Catalog::new(NAMES_MAX), CatalogModel::default());
            for step in &steps {
                let before = model.known();
                model.apply(step, NAMES_MAX);
                let mut change = CatalogChange::default();
                let mut found = BTreeSet::new();
                match step {
                    Step::Insert(number, of) => {
                        change = catalog.insert(id(*number), names(of));
                        found = change.found.iter().map(|at| of[usize::from(*at)]).collect();
                    }
                    Step::Remove(number) => change.gone = catalog.remove_id(id(*number)),
                    Step::RemoveBlock(name) => {
                        let name = BlockName((*name).into());
                        if let Some(place) = catalog.place(name) {
                            prop_assert!(catalog.remove_block(name, place));
                            change.gone.push(name);
                        }
                    }
                    Step::Clear => {
                        let gone = catalog.clear();
                        prop_assert_eq!(gone.len(), before.len());
                        prop_assert_eq!(catalog.names, 0);
                        continue;
                    }
                }
                let known = model.known();
                for number in 0..12_u8 {
                    let name = BlockName(number.into());
                    let place = catalog.place(name).and_then(|place| {
                        let (id, blocks) = catalog.extent(place.extent)?;
                        assert!(usize::from(place.position) < blocks);
                        Some(id.0[0])
                    });
                    let expected = model.places.iter().find(|(n, _)| *n == number).map(|(_, e)| *e);
                    prop_assert_eq!(place, expected);
                    let is_gone = before.contains(&number) && !known.contains(&number);
                    prop_assert_eq!(change.gone.contains(&name), is_gone, "gone {}", number);
                    if !before.contains(&number) {
                        prop_assert_eq!(found.contains(&number), known.contains(&number));
                    }
                }
            }
        }
    }
}
