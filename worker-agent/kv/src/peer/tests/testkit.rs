//! Two agents in one process, and a network between them that fails as told.

use crate::arena::Arena;
use crate::checksum::checksum;
use crate::peer::{PeerSettings, PeerTier};
use crate::tier::{Tier, TierError, TierRead, TierReport, Urgency};
use crate::transfer::direct::DirectWay;
use crate::transfer::{
    FleetKey, Lender, LendingStore, LentBlock, LentBlocks, LoanWish, TransferServer,
};
use crate::{Block, BlockForm, Checksum, SlotId};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use stator_protos::name::BlockName;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const SECRET: &[u8] = b"correct-horse-battery";

pub(crate) fn form(block_bytes: usize) -> BlockForm {
    BlockForm { fingerprint: [7; 32], block_bytes }
}

/// The KV of a block, different for each name and place.
pub(crate) fn kv(name: u128, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u128 * 31 + name * 7 + (at as u128 >> 8)) as u8).collect()
}

/// A store with the blocks 0 to `blocks`, in slots of the same numbers.
pub(crate) struct Shelf {
    pub(crate) arena: Arc<Arena>,
    blocks: u128,
    /// Pinned blocks by loan.
    loans: watch::Sender<BTreeMap<u64, usize>>,
    /// Loans that were ever made.
    pub(crate) lent: AtomicUsize,
    /// Whether loans come at once. They wait for it otherwise.
    pub(crate) is_quick: watch::Sender<bool>,
    /// The way in which the arena is read directly.
    pub(crate) direct: OnceLock<Arc<dyn DirectWay>>,
}

impl Shelf {
    pub(crate) fn new(blocks: u32, block_bytes: usize) -> Arc<Self> {
        let arena = Arc::new(Arena::new(blocks.max(1), block_bytes).unwrap());
        for block in 0..blocks {
            arena.write(SlotId(block), &kv(block.into(), block_bytes));
        }
        let blocks = blocks.into();
        let loans = watch::Sender::new(BTreeMap::new());
        let (direct, is_quick) = (OnceLock::new(), watch::Sender::new(true));
        Arc::new(Self { arena, blocks, loans, lent: AtomicUsize::new(0), is_quick, direct })
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.arena.block_bytes()
    }

    /// A server of this store, on the loopback interface.
    pub(crate) async fn serve(self: &Arc<Self>, key: FleetKey) -> Served {
        let (arena, lender) = (self.arena.clone(), self.clone());
        let direct = self.direct.get().cloned();
        Served::new(LendingStore { arena, lender, form: form(self.block_bytes()), key, direct })
            .await
    }

    /// Waits until nothing is lent.
    pub(crate) async fn unpinned(&self) {
        let mut loans = self.loans.subscribe();
        let unpinned = loans.wait_for(|loans| loans.is_empty());
        timeout(PATIENCE, unpinned).await.expect("pins go").unwrap();
    }

    /// Waits until something is lent.
    pub(crate) async fn pinned(&self) {
        let mut loans = self.loans.subscribe();
        let pinned = loans.wait_for(|loans| loans.values().any(|pins| *pins > 0));
        timeout(PATIENCE, pinned).await.expect("blocks are lent").unwrap();
    }
}

impl Lender for Shelf {
    fn lend(&self, loan: u64, wish: LoanWish) -> BoxFuture<'static, LentBlocks> {
        let here = wish.names.into_iter().take_while(|name| name.0 < self.blocks);
        let lent: Vec<_> = here
            .map(|name| {
                let slot = SlotId(name.0 as u32);
                LentBlock { slot, checksum: self.arena.checksum(slot, name) }
            })
            .collect();
        self.lent.fetch_add(1, SeqCst);
        self.loans.send_modify(|loans| loans.extend([(loan, lent.len())]));
        let mut is_quick = self.is_quick.subscribe();
        Box::pin(async move {
            let _ = is_quick.wait_for(|is_quick| *is_quick).await;
            lent.into()
        })
    }

    fn release(&self, loan: u64) {
        self.loans.send_if_modified(|loans| loans.remove(&loan).is_some());
    }
}

/// A server that runs until this is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    task: JoinSet<()>,
}

impl Served {
    /// A server of a store, on the loopback interface.
    pub(crate) async fn new(store: LendingStore) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = TransferServer::new(Arc::new(store));
        let mut task = JoinSet::new();
        task.spawn(server.run(listener));
        Self { address, task }
    }

    /// Kills the server with all its connections.
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
    }
}

/// The fate of what a holder sends on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    CutAfter(usize),
    StallAfter(usize),
    FlipAt(usize),
}

/// A network between a reader and a holder.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    /// Bytes that each connection brought to the reader.
    pub(crate) bytes: Arc<Mutex<Vec<usize>>>,
    _task: JoinSet<()>,
}

impl Relay {
    /// Connections have these fates, in order; all further ones have the last.
    pub(crate) async fn new(holder: SocketAddr, fates: &[Fate]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let mut fates = VecDeque::from(fates.to_vec());
        let counts = bytes.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((reader, _)) = listener.accept().await {
                let fate = if fates.len() > 1 { fates.pop_front() } else { fates.front().copied() };
                let fate = fate.unwrap_or(Fate::Pass);
                let at = counts.lock().len();
                counts.lock().push(0);
                let counts = counts.clone();
                let Ok(holder) = TcpStream::connect(holder).await else { continue };
                connections.spawn(async move {
                    let (mut questions, mut to_reader) = reader.into_split();
                    let (mut answers, mut to_holder) = holder.into_split();
                    let back = async {
                        let mut sent = 0;
                        let mut buffer = vec![0; 4096];
                        loop {
                            let limit = match fate {
                                Fate::CutAfter(bytes) | Fate::StallAfter(bytes) => bytes - sent,
                                Fate::Pass | Fate::FlipAt(_) => buffer.len(),
                            };
                            if limit == 0 {
                                break;
                            }
                            let limit = limit.min(buffer.len());
                            let read = answers.read(&mut buffer[..limit]).await.unwrap_or(0);
                            if read == 0 {
                                return;
                            }
                            if let Fate::FlipAt(at) = fate
                                && (sent..sent + read).contains(&at)
                            {
                                buffer[at - sent] ^= 1;
                            }
                            if to_reader.write_all(&buffer[..read]).await.is_err() {
                                return;
                            }
                            sent += read;
                            counts.lock()[at] = sent;
                        }
                        if matches!(fate, Fate::CutAfter(_)) {
                            // A socket that is closed with unread questions would be reset, and
                            // what the reader has not read yet would be lost with it.
                            let _ = to_reader.shutdown().await;
                        }
                        std::future::pending::<()>().await;
                    };
                    let forth = copy(&mut questions, &mut to_holder);
                    tokio::select! { () = back => {}, _ = forth => {} }
                });
            }
        });
        Self { address, bytes, _task: task }
    }
}

/// A reader with its own arena.
pub(crate) struct Reading {
    pub(crate) tier: PeerTier,
    pub(crate) arena: Arc<Arena>,
    reports: mpsc::UnboundedReceiver<TierReport>,
}

/// Settings for blocks in several small frames.
pub(crate) fn settings() -> PeerSettings {
    let (read_deadline, silence) = (PATIENCE, PATIENCE);
    PeerSettings { frame_bytes: 4096, read_deadline, silence, ..PeerSettings::default() }
}

impl Reading {
    pub(crate) fn new(form: BlockForm, key: FleetKey, settings: PeerSettings) -> Self {
        let arena = Arc::new(Arena::new(64, form.block_bytes).unwrap());
        let (sender, reports) = mpsc::unbounded_channel();
        let listener = Arc::new(move |report| drop(sender.send(report)));
        let tier = PeerTier::new(arena.clone(), form, key, settings, Handle::current(), listener);
        Self { tier, arena, reports }
    }

    /// Says that the peer has these blocks.
    pub(crate) fn hint(&self, peer: SocketAddr, names: std::ops::Range<u128>) {
        let block = |name: u128| Block {
            name: BlockName(name),
            hash: None,
            parent: None,
            depth: name as u32,
            tenant: crate::TenantKey::default(),
        };
        self.tier.hint(peer, &names.map(block).collect::<Vec<_>>());
    }

    pub(crate) fn ask(&self, name: u128, urgency: Urgency) {
        self.tier.read(TierRead { name: BlockName(name), slot: SlotId(name as u32), urgency });
    }

    /// Drops the tier. Its reports follow those about what it held.
    pub(crate) fn drop_tier(mut self) -> mpsc::UnboundedReceiver<TierReport> {
        while self.reports.try_recv().is_ok_and(|report| is_of_content(&report)) {}
        self.reports
    }

    /// The next report that is not about what the tier holds.
    pub(crate) async fn report(&mut self) -> TierReport {
        loop {
            let report = timeout(PATIENCE, self.reports.recv()).await;
            match report.expect("every read ends").expect("the tier is there") {
                report if is_of_content(&report) => {}
                report => return report,
            }
        }
    }

    /// The next source of blocks that the tier tells: its number and its time for a block.
    pub(crate) async fn located(&mut self) -> (u8, Option<Duration>) {
        loop {
            let report = timeout(PATIENCE, self.reports.recv()).await;
            let report = report.expect("the tier tells").expect("the tier is there");
            if let TierReport::Located { source, cost, .. } = report {
                return (source.0.get(), cost.map(|cost| cost.block));
            }
        }
    }

    /// Reads blocks, and returns what came of each, by name. Blocks that came have the right bytes.
    pub(crate) async fn read(
        &mut self,
        names: std::ops::Range<u128>,
    ) -> Vec<Result<Checksum, TierError>> {
        names.clone().for_each(|name| self.ask(name, Urgency::Demand));
        let mut results = BTreeMap::new();
        while results.len() < names.clone().count() {
            let TierReport::Read { name, slot, result } = self.report().await else { continue };
            assert_eq!(slot, SlotId(name.0 as u32));
            if let Ok(sum) = result {
                let bytes = self.arena.block_bytes();
                let mut there = vec![0; bytes];
                self.arena.read(slot, &mut there);
                assert!(there == kv(name.0, bytes), "block {name:?} has other bytes");
                assert_eq!(sum, checksum(name, &there));
            }
            assert!(results.insert(name, result).is_none(), "a read is reported once");
        }
        results.into_values().collect()
    }
}

/// Whether a report is about what the tier holds.
fn is_of_content(report: &TierReport) -> bool {
    matches!(report, TierReport::Found(_) | TierReport::Located { .. } | TierReport::Gone(_))
}
