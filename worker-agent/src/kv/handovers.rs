//! The prefill side of the transfer: each prompt that is computed for another agent is lent to the one
//! reader that has its ticket, from the order on, and given up when that reader goes.

use super::offer::HandoverTicket;
use super::pushed::{ExportedBlock, PushedBlocks};
use super::transfer_room::TransferRoom;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_engine::RequestKey;
use stator_kv::staging::StagedSlot;
use stator_kv::transfer::{FleetKey, Lender, LendingStore, LentBlock, LentBlocks, LoanWish};
use stator_protos::name::BlockName;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use tokio::sync::{mpsc, oneshot};

/// An order of a reader to the driver whose engine has the prompt.
#[derive(Debug)]
pub(crate) enum KeptOrder {
    /// Copy blocks out.
    Export(BlockExport),
    /// Forget the prompt: its reader has gone.
    GiveUp(RequestKey),
}

/// Blocks of a kept prompt that are to be copied out.
#[derive(Debug)]
pub(crate) struct BlockExport {
    /// The prompt.
    pub(crate) key: RequestKey,
    /// Place of the first block in the prompt.
    pub(crate) first: usize,
    /// The blocks, which follow one another.
    pub(crate) names: Vec<BlockName>,
    /// Room for the leading blocks.
    pub(crate) slots: Vec<StagedSlot>,
    /// The leading blocks, as far as the engine has them.
    pub(crate) answer: oneshot::Sender<Vec<ExportedBlock>>,
}

/// A prompt that is lent, as its driver and its reader know it. Clones share what is pushed.
#[derive(Clone, Debug)]
pub(crate) struct LentPrompt {
    pub(crate) key: RequestKey,
    /// Names of the prompt's blocks.
    pub(crate) names: Arc<[BlockName]>,
    /// Copies that the driver made before anybody asked.
    pub(crate) pushed: PushedBlocks,
    /// Orders to the driver.
    pub(crate) orders: mpsc::Sender<KeptOrder>,
}

/// Prompts that wait for their readers, of all workers of an agent.
#[derive(Debug)]
pub(crate) struct Handovers {
    /// Memory for their blocks.
    pub(crate) room: TransferRoom,
    prompts: Mutex<FxHashMap<[u8; 16], WaitingPrompt>>,
}

/// A prompt that waits for its reader, or is being read.
#[derive(Debug)]
struct WaitingPrompt {
    key: FleetKey,
    prompt: LentPrompt,
    /// The lender that all connections of the reader share, while there are any.
    lender: Weak<PromptLender>,
    /// Whether the reader has come. A prompt is read once.
    has_reader: Arc<AtomicBool>,
}

/// A prompt that can be read. Dropping it ends that, and frees what was pushed.
#[derive(Debug)]
pub(crate) struct OpenHandover {
    handovers: Arc<Handovers>,
    handle: [u8; 16],
    pushed: PushedBlocks,
}

impl Handovers {
    /// No prompts yet; their blocks go through this room.
    pub(crate) fn new(room: TransferRoom) -> Arc<Self> {
        Arc::new(Self { room, prompts: Mutex::default() })
    }

    /// Whether a prompt has this handle.
    pub(crate) fn has(&self, handle: [u8; 16]) -> bool {
        self.prompts.lock().contains_key(&handle)
    }

    /// Lets whoever has the ticket read a prompt.
    pub(crate) fn open(
        self: &Arc<Self>,
        ticket: &HandoverTicket,
        prompt: LentPrompt,
    ) -> OpenHandover {
        let key = ticket.reader(&self.room.key).key;
        let (lender, has_reader) = Default::default();
        let pushed = prompt.pushed.clone();
        let waiting = WaitingPrompt { key, prompt, lender, has_reader };
        self.prompts.lock().insert(ticket.handle, waiting);
        OpenHandover { handovers: self.clone(), handle: ticket.handle, pushed }
    }

    /// The store of the reader of this number, if a prompt waits for it or is being read by it.
    pub(crate) fn store(&self, reader: [u8; 16]) -> Option<LendingStore> {
        let mut prompts = self.prompts.lock();
        let waiting = prompts.get_mut(&reader)?;
        let lender = match waiting.lender.upgrade() {
            Some(lender) => lender,
            None if waiting.has_reader.load(Relaxed) => return None,
            None => {
                let lender = Arc::new(PromptLender {
                    prompt: waiting.prompt.clone(),
                    room: self.room.clone(),
                    lent: Arc::default(),
                    has_reader: waiting.has_reader.clone(),
                });
                waiting.lender = Arc::downgrade(&lender);
                lender
            }
        };
        Some(LendingStore {
            arena: self.room.memory.arena().clone(),
            lender,
            form: self.room.form,
            key: waiting.key.clone(),
            direct: None,
        })
    }
}

impl Drop for OpenHandover {
    fn drop(&mut self) {
        self.handovers.prompts.lock().remove(&self.handle);
        self.pushed.close();
    }
}

impl LentPrompt {
    /// Leading ones of some blocks that follow one another: what was pushed, or else what the engine has.
    async fn export(&self, names: &[BlockName], room: &TransferRoom) -> Vec<ExportedBlock> {
        let first = self.names.iter().position(|name| Some(name) == names.first());
        let Some(first) = first else { return Vec::new() };
        let own = self.names[first..].iter().take(room.batch_max());
        let named = own.zip(names).take_while(|(own, asked)| own == asked).count();
        let pushed = self.pushed.take(first, named);
        if !pushed.is_empty() {
            return pushed;
        }
        let slots = room.memory.take(named).await;
        let (answer, answered) = oneshot::channel();
        let names = names[..slots.len().min(named)].to_vec();
        let export = BlockExport { key: self.key, first, names, slots, answer };
        // A driver that has ended keeps nothing.
        let _ = self.orders.send(KeptOrder::Export(export)).await;
        answered.await.unwrap_or_default()
    }
}

/// Lends the blocks of one prompt. Dropping it, with the last connection and lease of the reader, gives
/// the prompt up.
struct PromptLender {
    prompt: LentPrompt,
    room: TransferRoom,
    /// By loan.
    lent: Arc<Mutex<FxHashMap<u64, Vec<ExportedBlock>>>>,
    has_reader: Arc<AtomicBool>,
}

impl Lender for PromptLender {
    fn welcome(&self) {
        self.has_reader.store(true, Relaxed);
    }

    fn lend(&self, loan: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let (prompt, room, lent) = (self.prompt.clone(), self.room.clone(), self.lent.clone());
        Box::pin(async move {
            let exported = prompt.export(&wish.names, &room).await;
            let block = |block: &ExportedBlock| LentBlock {
                slot: block.slot.id(),
                checksum: block.checksum,
            };
            let blocks: Vec<_> = exported.iter().map(block).collect();
            lent.lock().insert(loan, exported);
            blocks.into()
        })
    }

    fn release(&self, loan: u64) {
        self.lent.lock().remove(&loan);
    }
}

impl fmt::Debug for PromptLender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptLender").field("prompt", &self.prompt.key).finish_non_exhaustive()
    }
}

impl Drop for PromptLender {
    fn drop(&mut self) {
        // Where the driver has too many orders, the prompt's own lease ends it.
        if self.has_reader.load(Relaxed) {
            let _ = self.prompt.orders.try_send(KeptOrder::GiveUp(self.prompt.key));
        }
    }
}
