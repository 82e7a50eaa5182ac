//! The decode side of the transfer: reads the blocks of one prompt into memory of its own.

use super::offer::HandoverTicket;
use super::transfer_room::TransferRoom;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_engine::RequestKey;
use stator_engine::transfer::ArrivedBlocks;
use stator_kv::peer::{PeerSettings, PeerTier, ReportListener};
use stator_kv::staging::StagedSlot;
use stator_kv::tier::{Tier, TierError, TierRead, TierReport, Urgency};
use stator_kv::{Block, SlotId, TenantKey};
use stator_protos::name::BlockName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Bytes of a prompt beyond which it is read over two connections.
const ONE_STREAM_BYTES: usize = 4 << 20;
/// Longest time for the holder to hear that a prompt is not needed any more.
const FAREWELL: Duration = Duration::from_millis(100);

/// Waits of a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    /// Longest time of a batch.
    pub(crate) deadline: Duration,
    /// Longest silence of the holder.
    pub(crate) silence: Duration,
}

/// Reads a prompt that one agent keeps for this reader. Dropping it cancels what is being read.
pub(crate) struct PromptReader {
    tier: PeerTier,
    holder: SocketAddr,
    room: TransferRoom,
    slots: ReadSlots,
    ends: mpsc::UnboundedReceiver<ReadEnd>,
}

/// Slots that are being read into. They stay in use until their reports: nobody else may write there.
type ReadSlots = Arc<Mutex<FxHashMap<SlotId, StagedSlot>>>;

/// A slot that is not written any more, and whether it has its block.
struct ReadEnd {
    slot: StagedSlot,
    result: Result<(), TierError>,
}

/// Leading blocks of a batch that have come.
pub(crate) struct ReadBatch {
    /// By place.
    pub(crate) slots: Vec<StagedSlot>,
    /// The fate of the block behind them.
    pub(crate) fault: Option<TierError>,
}

/// Blocks of a prompt, ready to be imported.
#[derive(Debug)]
pub(crate) struct LandedBlocks {
    /// The request that they are for.
    pub(crate) key: RequestKey,
    /// Place of the first in the prompt.
    pub(crate) first: usize,
    pub(crate) names: Vec<BlockName>,
    pub(crate) slots: Vec<StagedSlot>,
}

impl PromptReader {
    /// A reader with this ticket of so many blocks, which the agent at `holder` keeps.
    pub(crate) fn new(
        room: TransferRoom,
        ticket: &HandoverTicket,
        holder: SocketAddr,
        blocks: usize,
        limits: ReadLimits,
    ) -> Self {
        let slots = ReadSlots::default();
        let (sender, ends) = mpsc::unbounded_channel();
        let reading = slots.clone();
        let listener: ReportListener = Arc::new(move |report| {
            let TierReport::Read { slot, result, .. } = report else { return };
            if let Some(slot) = reading.lock().remove(&slot) {
                // Where nobody waits any more the slot is free at once.
                let _ = sender.send(ReadEnd { slot, result: result.map(drop) });
            }
        });
        let bytes = blocks.saturating_mul(room.form.block_bytes);
        let settings = PeerSettings {
            streams: if bytes > ONE_STREAM_BYTES { 2 } else { 1 },
            read_deadline: limits.deadline,
            silence: limits.silence,
            // The holder gives the prompt up when the last connection is closed.
            idle: limits.deadline,
            queue_max: room.batch_max(),
            batch_max: room.batch_max(),
            peers_max: 1,
            hints_max: room.batch_max(),
            ..PeerSettings::default()
        };
        let (arena, reader) = (room.memory.arena().clone(), ticket.reader(&room.key));
        let tier = PeerTier::new(arena, room.form, reader, settings, Handle::current(), listener);
        Self { tier, holder, room, slots, ends }
    }

    /// Reads leading ones of these blocks, as many as there is room for now: at least one, for whose
    /// room it waits.
    pub(crate) async fn read(&mut self, names: &[BlockName]) -> ReadBatch {
        let slots = self.room.memory.take(names.len().min(self.room.batch_max())).await;
        let names = &names[..slots.len()];
        self.tier.hint(self.holder, &names.iter().copied().map(block).collect::<Vec<_>>());
        let ids: Vec<_> = slots.iter().map(StagedSlot::id).collect();
        self.slots.lock().extend(ids.iter().copied().zip(slots));
        for (&name, &slot) in names.iter().zip(&ids) {
            self.tier.read(TierRead { name, slot, urgency: Urgency::Demand });
        }
        let mut ends: FxHashMap<SlotId, ReadEnd> = FxHashMap::default();
        while ends.len() < ids.len() {
            // The tier, which has the sender, is here.
            let Some(end) = self.ends.recv().await else { break };
            ends.insert(end.slot.id(), end);
        }
        let mut batch = ReadBatch { slots: Vec::new(), fault: None };
        for end in ids.iter().filter_map(|id| ends.remove(id)) {
            if let Err(error) = end.result {
                batch.fault = Some(error);
                break;
            }
            batch.slots.push(end.slot);
        }
        batch
    }

    /// Tells the holder that it need not keep the prompt any more.
    pub(crate) async fn finish(self) {
        self.tier.finish(FAREWELL).await;
    }
}

/// A block as hints have it.
fn block(name: BlockName) -> Block {
    Block { name, hash: None, parent: None, depth: 0, tenant: TenantKey::default() }
}

impl ArrivedBlocks for LandedBlocks {
    fn name(&self, block: usize) -> Option<BlockName> {
        self.names.get(block).copied()
    }

    fn load(&mut self, block: usize, kv: &mut [u8]) -> bool {
        // The byte of a block without KV is not looked at.
        if kv.is_empty() {
            return true;
        }
        let is_whole = kv.len() == self.slots[block].block_bytes();
        if is_whole {
            self.slots[block].read(kv);
        }
        is_whole
    }
}
