//! Memory for blocks on their way, their form and the fleet's key: both sides of a hand-over need them.

use stator_engine::transfer::KvForm;
use stator_kv::BlockForm;
use stator_kv::staging::{StagedSlot, Staging};
use stator_kv::transfer::FleetKey;
use stator_kv::transfer::wire::NAMES_MAX;
use std::io;
use std::sync::Arc;

/// Bytes that are copied out of an engine between two of its steps for one reader, and that a reader
/// asks for at once. One block at least.
const BATCH_BYTES: usize = 16 << 20;
/// Purpose for which the form of blocks is hashed.
const FORM_CONTEXT: &str = "stator 2026 form of KV blocks of a hand-over";

/// Memory, form and key of an agent's hand-overs. Clones share the memory.
#[derive(Clone, Debug)]
pub(crate) struct TransferRoom {
    /// Memory for blocks on their way.
    pub(crate) memory: Arc<Staging>,
    /// Form of the blocks. One that has no KV, of a simulated engine, goes as a byte.
    pub(crate) form: BlockForm,
    /// The fleet's key.
    pub(crate) key: FleetKey,
}

impl TransferRoom {
    /// Room of so many bytes for blocks of this form, for one at least.
    ///
    /// # Errors
    ///
    /// The system has no memory files (other systems than Linux).
    pub(crate) fn new(form: KvForm, bytes: u64, key: FleetKey) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new_derive_key(FORM_CONTEXT);
        hasher.update(&form.fingerprint.to_le_bytes());
        let fingerprint = *hasher.finalize().as_bytes();
        let form = BlockForm { fingerprint, block_bytes: form.block_bytes.max(1) };
        Ok(Self { memory: Staging::new(bytes, form.block_bytes)?, form, key })
    }

    /// Slots for blocks that nobody has asked for yet, `max` at most. They take half of the memory at
    /// most: the other half is for prompts whose readers wait.
    pub(crate) fn spare(&self, max: usize) -> Vec<StagedSlot> {
        self.memory.take_spare(self.memory.arena().slots().div_ceil(2) as usize, max)
    }

    /// Blocks that are moved at once, at most.
    pub(crate) fn batch_max(&self) -> usize {
        (BATCH_BYTES / self.form.block_bytes).clamp(1, NAMES_MAX)
    }
}
