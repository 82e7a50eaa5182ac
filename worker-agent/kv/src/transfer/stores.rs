//! Stores that one server lends from, and the way from a reader to its store.

use super::direct::DirectWay;
use super::keys::FleetKey;
use super::loans::Lender;
use super::purpose::ReaderPurpose;
use crate::BlockForm;
use crate::arena::Arena;
use std::sync::Arc;

/// Blocks that are lent, and the key of those who may read them.
#[derive(Clone)]
pub struct LendingStore {
    /// Memory of the blocks.
    pub arena: Arc<Arena>,
    /// The book-keeper that knows which block is where, and keeps it there.
    pub lender: Arc<dyn Lender>,
    /// Form of the blocks.
    pub form: BlockForm,
    /// Key that readers prove to know. Without a secret only readers on this machine are answered.
    pub key: FleetKey,
    /// The way in which readers may read the arena by themselves, if there is one.
    pub direct: Option<Arc<dyn DirectWay>>,
}

/// Finds the store of a reader by the first words that the reader says.
pub trait LendingStores: Send + Sync {
    /// The store for the reader of this number, which has proved nothing yet. A reader without a store
    /// is not answered.
    fn find(&self, purpose: ReaderPurpose, instance: [u8; 16]) -> Option<LendingStore>;
}

/// One store for all who read from tiers.
impl LendingStores for LendingStore {
    fn find(&self, purpose: ReaderPurpose, _: [u8; 16]) -> Option<LendingStore> {
        (purpose == ReaderPurpose::Tiers).then(|| self.clone())
    }
}
