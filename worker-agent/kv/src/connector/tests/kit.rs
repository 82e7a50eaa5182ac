//! An agent with a cache of few slots, a shim, and a tier that does as told.

use super::super::copier::DeviceCopier;
use super::super::names::KeyNames;
use super::super::wire::EngineHint;
use super::super::wire::*;
use super::super::{
    AskHint, AskUse, ConnectorServer, ConnectorSettings, EngineChange, KeyBook, NotedPlace,
};
use crate::arena::Arena;
use crate::cache::{CacheSettings, CacheTier, TierReporter, TieredCache};
use crate::store::TierSettings;
use crate::tier::{Tier, TierError, TierEvent, TierRead, TierReport, TierWrite};
use crate::{Block, BlockForm, SlotId};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use stator_protos::hash::SequenceHash;
use stator_protos::kv_event::Medium;
use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 64;
/// Longest wait of a test.
const DEADLINE: Duration = Duration::from_secs(20);

/// Calls until `done`. Nothing sleeps: what is awaited is asked of other threads.
pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// The form of the KV that the cache is for.
pub(super) const FORM: BlockForm = BlockForm { fingerprint: [1; 32], block_bytes: BLOCK_BYTES };

/// A connector with a cache.
pub(super) struct Agent {
    folder: tempfile::TempDir,
    pub(super) tier: Arc<HeldTier>,
    pub(super) cache: Arc<TieredCache>,
    /// Reports to routers about host memory and engines.
    pub(super) heard: Arc<Mutex<Heard>>,
    pub(super) server: Option<ConnectorServer>,
    /// Names of blocks whose tokens no shim knows.
    pub(super) book: Arc<Book>,
    /// Hints that were passed on, each with the number of blocks.
    pub(super) hinted: Arc<Mutex<Vec<(AskHint, usize)>>>,
    /// Last uses of the tiers by requests for noted prompts.
    pub(super) used: Arc<Mutex<BTreeMap<NotedPlace, AskUse>>>,
    /// What copies for workers, from the next start on.
    pub(super) copier: Option<Arc<dyn DeviceCopier>>,
}

/// Names of blocks, by their numbers, and blocks that had none.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) names: Mutex<BTreeMap<u32, SequenceHash>>,
    pub(super) unnamed: Mutex<Vec<Block>>,
}

impl KeyBook for Book {
    fn name(&self, EngineKey(key): &EngineKey, block: Block) -> Block {
        let number = u32::from_le_bytes(*key.first_chunk().unwrap());
        Block { hash: self.names.lock().get(&number).copied(), ..block }
    }

    fn unnamed(&self, _: &EngineKey, block: Block) {
        self.unnamed.lock().push(block);
    }
}

/// Reports to routers.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Hashes of blocks that came, and of those before them.
    pub(super) stored: Vec<(Option<SequenceHash>, Option<SequenceHash>)>,
    pub(super) engines: Vec<EngineChange>,
}

impl Agent {
    pub(super) fn new(slots: u32) -> Self {
        Self::with_quota(slots, None)
    }

    /// One whose tenants may have this share of the slots, in percent.
    pub(super) fn with_quota(slots: u32, tenant_share_percent: Option<u8>) -> Self {
        let tier = Arc::new(HeldTier::default());
        let opened = Arc::clone(&tier);
        let heard = Arc::<Mutex<Heard>>::default();
        let told = Arc::clone(&heard);
        let events = Arc::new(move |event| {
            if let TierEvent::Stored { block, medium: Medium::Host } = event {
                told.lock().stored.push((block.hash, block.parent));
            }
        });
        let mut settings =
            CacheSettings { events, tenant_share_percent, ..CacheSettings::new(slots) };
        settings.tiers.push(CacheTier {
            name: "disk",
            settings: TierSettings::new(Medium::Disk),
            open: Box::new(move |place| {
                let _ = opened.report.set(place.report);
                Ok(opened)
            }),
        });
        let cache = TieredCache::open(FORM, settings).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (server, book, hinted, used, copier) = Default::default();
        let mut agent = Self { folder, tier, cache, heard, server, book, hinted, used, copier };
        agent.start();
        agent
    }

    /// Starts the server, again.
    pub(super) fn start(&mut self) {
        drop(self.server.take());
        let cache = Arc::clone(&self.cache);
        let open = move |form: BlockForm| match form.block_bytes {
            BLOCK_BYTES => Ok(Arc::clone(&cache)),
            bytes => Err(format!("no room for blocks of {bytes} bytes")),
        };
        let (hinted, used) = (Arc::clone(&self.hinted), Arc::clone(&self.used));
        let settings = ConnectorSettings {
            connections_max: 8,
            copier: self.copier.clone(),
            watch: {
                let heard = Arc::clone(&self.heard);
                Arc::new(move |change| heard.lock().engines.push(change))
            },
            hints: Arc::new(move |hint, blocks| {
                hinted.lock().push((hint.clone(), blocks.len()));
                match hint {
                    AskHint::Given(EngineHint::Noted(number)) => {
                        Some(NotedPlace { number, first: 0 })
                    }
                    _ => None,
                }
            }),
            uses: Arc::new(move |place, of| used.lock().extend([(place, of)])),
            keys: self.book.clone(),
            ..ConnectorSettings::new(self.socket(), Box::new(open))
        };
        self.server = Some(ConnectorServer::start(settings).unwrap());
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("kv.sock")
    }

    /// A scheduler of an engine in this process.
    pub(super) fn shim(&self, engine: &str) -> Shim {
        Shim::join(&self.socket(), &hello(engine))
    }

    /// Slots that a newcomer could have: free ones, and those of blocks that can be evicted.
    pub(super) fn free(&self) -> usize {
        let clients: Vec<_> = (0..8).map(|_| self.cache.connect(Arc::new(|_| ()))).collect();
        clients.iter().map(|client| client.grant(1024).len()).sum()
    }

    pub(super) fn quarantined(&self) -> usize {
        self.server.as_ref().unwrap().report().quarantined
    }

    pub(super) fn connections(&self) -> usize {
        self.server.as_ref().unwrap().report().connections
    }
}

/// HELLO of a scheduler.
pub(super) fn hello(engine: &str) -> Hello {
    Hello {
        role: ShimRole::Scheduler,
        rank: 0,
        world: 0,
        block_tokens: 16,
        prefill_us: 0,
        row_bytes: BLOCK_BYTES as u64,
        fingerprint: FORM.fingerprint,
        incarnation: [7; 16],
        engine: engine.into(),
        form: "tiny".into(),
    }
}

/// The key of a block.
pub(super) fn key(block: u32) -> EngineKey {
    let mut key = [0; 36];
    key[..4].copy_from_slice(&block.to_le_bytes());
    EngineKey(key)
}

/// A shim.
pub(super) struct Shim {
    pub(super) wire: ShimWire,
    pub(super) welcome: Welcome,
    pub(super) file: OwnedFd,
    pub(super) arena: Arena,
    pub(super) granted: VecDeque<SlotId>,
    request: u64,
}

impl Shim {
    pub(super) fn join(socket: &Path, hello: &Hello) -> Self {
        let mut wire = ShimWire::connect(socket);
        wire.send(&ShimMessage::Hello(hello.clone()));
        let (message, file) = wire.receive_all().expect("an answer");
        let AgentMessage::Welcome(welcome) = message else { panic!("{message:?}") };
        let file = file.expect("the arena");
        let arena = Arena::open(file.try_clone().unwrap(), welcome.slots, hello.row_bytes as usize);
        let (arena, granted) = (arena.unwrap(), VecDeque::new());
        Self { wire, welcome, file, arena, granted, request: 0 }
    }

    /// Number of the next request that it asks for.
    pub(super) fn next_request(&self) -> u64 {
        self.request + 1
    }

    /// The next message but GRANT and DUP, which are taken.
    pub(super) fn next(&mut self) -> AgentMessage {
        loop {
            match self.wire.receive().expect("a message") {
                AgentMessage::Grant(slots) | AgentMessage::Duplicate(slots) => {
                    self.granted.extend(slots);
                }
                message => return message,
            }
        }
    }

    /// A slot to fill.
    pub(super) fn slot(&mut self) -> SlotId {
        while self.granted.is_empty() {
            let AgentMessage::Grant(slots) = self.wire.receive().expect("a grant") else {
                panic!("no grant")
            };
            self.granted.extend(slots);
        }
        self.granted.pop_front().unwrap()
    }

    /// Fills a slot with bytes that say which block it is.
    pub(super) fn fill(&mut self, block: u32) -> SlotId {
        let slot = self.slot();
        self.arena.write(slot, &[block as u8; BLOCK_BYTES]);
        let filled = FilledSlot { key: key(block), slot, depth: block };
        self.wire.send(&ShimMessage::Filled(vec![filled]));
        slot
    }

    /// Tells the tokens of a block, all of which are its number.
    pub(super) fn tell(&mut self, block: u32, before: Option<u32>) {
        self.tell_salted(block, before, "");
    }

    /// Tells the tokens of a block under a salt.
    pub(super) fn tell_salted(&mut self, block: u32, before: Option<u32>, salt: &str) {
        let before = before.map_or([0; 32], |before| *key(before).0.first_chunk().unwrap());
        let blocks = vec![BlockTokens { key: key(block), before, tokens: vec![block; 16] }];
        let (lora, salt) = (String::new(), salt.to_owned());
        self.wire.send(&ShimMessage::Tokens(TokensFrame { lora, salt, blocks }));
    }

    /// Fills slots with blocks and waits until they are visible.
    pub(super) fn store(&mut self, blocks: &[u32]) {
        for block in blocks {
            self.fill(*block);
            until("the block is visible", || {
                let found = self.ask(&[*block]);
                self.end(found.request);
                found.slots.len() == 1
            });
        }
    }

    pub(super) fn ask(&mut self, blocks: &[u32]) -> AskProgress {
        self.request += 1;
        let keys: Vec<_> = blocks.iter().map(|block| key(*block)).collect();
        let frame = |first: usize, keys: &[EngineKey]| AskFrame {
            request: self.request,
            prefill_us: 0,
            total: blocks.len() as u32,
            first: first as u32,
            keys: keys.to_vec(),
        };
        let frames: Vec<_> = match keys.len() {
            0 => vec![frame(0, &[])],
            _ => keys
                .chunks(KEYS_MAX)
                .enumerate()
                .map(|(at, keys)| frame(at * KEYS_MAX, keys))
                .collect(),
        };
        frames.into_iter().for_each(|frame| self.wire.send(&ShimMessage::Ask(frame)));
        let AgentMessage::Found(mut found) = self.next() else { panic!("no FOUND") };
        assert_eq!(found.request, self.request);
        // A long answer goes on in READY.
        while found.slots.len() % KEYS_MAX == 0 && !found.slots.is_empty() && found.pending > 0 {
            let ready = self.ready();
            found.slots.extend(ready.slots);
            found.pending = ready.pending;
        }
        found
    }

    pub(super) fn ready(&mut self) -> AskProgress {
        match self.next() {
            AgentMessage::Ready(ready) => ready,
            message => panic!("{message:?}"),
        }
    }

    pub(super) fn end(&mut self, request: u64) {
        self.wire.send(&ShimMessage::End { request });
    }

    /// Waits until the agent has heard all messages so far.
    pub(super) fn pulse(&mut self) {
        let pulse = ShimPulse { boot: self.welcome.boot, ..ShimPulse::default() };
        self.wire.send(&ShimMessage::Pulse(pulse));
        assert_eq!(self.next(), AgentMessage::Pulse { boot: self.welcome.boot });
    }

    /// The byte of which a slot is full.
    pub(super) fn content(&self, slot: SlotId) -> u8 {
        let mut kv = [0; BLOCK_BYTES];
        self.arena.read(slot, &mut kv);
        assert!(kv.iter().all(|byte| *byte == kv[0]));
        kv[0]
    }
}

/// A socket with a connection.
pub(super) struct ShimWire(OwnedFd);

impl ShimWire {
    pub(super) fn connect(path: &Path) -> Self {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(socket)
    }

    pub(super) fn send(&self, message: &ShimMessage) {
        self.send_bytes(&message.encode());
    }

    /// Sends bytes and a file.
    pub(super) fn send_with(&self, packet: &[u8], file: BorrowedFd<'_>) {
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let parts = [IoSlice::new(packet)];
        rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// Sends bytes, if the other end is still there.
    pub(super) fn send_bytes(&self, packet: &[u8]) {
        let _ = rustix::net::send(&self.0, packet, SendFlags::NOSIGNAL);
    }

    /// Whether a message waits, or the end.
    pub(super) fn has_message(&self) -> bool {
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    /// The next message; none if the other end is closed.
    pub(super) fn receive(&mut self) -> Option<AgentMessage> {
        self.receive_all().map(|(message, _)| message)
    }

    fn receive_all(&mut self) -> Option<(AgentMessage, Option<OwnedFd>)> {
        let limit = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&limit)), Ok(1), "no message in time");
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&self.0, &mut parts, &mut control, flags);
        let bytes = received.map_or(0, |message| message.bytes);
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        (bytes > 0).then(|| (AgentMessage::decode(&buffer[..bytes]).unwrap(), file))
    }
}

/// A tier whose reads end when the test says so.
#[derive(Default)]
pub(super) struct HeldTier {
    report: OnceLock<TierReporter>,
    reads: Mutex<Vec<TierRead>>,
}

impl HeldTier {
    fn say(&self, report: TierReport) {
        self.report.get().expect("opened")(report);
    }

    /// The tier has a block.
    pub(super) fn has(&self, block: u32) {
        let name = KeyNames::new(&FORM.fingerprint, &[0; 16]).name(&key(block));
        self.say(TierReport::Found(vec![Block {
            name,
            hash: None,
            parent: None,
            depth: block,
            tenant: crate::TenantKey::default(),
        }]));
    }

    /// Ends the first `count` reads when they have been asked for: with the block, or in vain.
    pub(super) fn end_reads(&self, arena: &Arena, count: usize, with: Result<u8, TierError>) {
        until("the tier is to read", || self.reads.lock().len() >= count);
        let reads: Vec<_> = self.reads.lock().drain(..count).collect();
        for TierRead { name, slot, .. } in reads {
            let result = with.map(|byte| {
                arena.write(slot, &[byte; BLOCK_BYTES]);
                arena.checksum(slot, name)
            });
            self.say(TierReport::Read { name, slot, result });
        }
    }
}

impl Tier for HeldTier {
    fn medium(&self) -> Medium {
        Medium::Disk
    }

    fn read(&self, read: TierRead) {
        self.reads.lock().push(read);
    }

    fn write(&self, TierWrite { block, slot, .. }: TierWrite) {
        let result = Err(TierError::Full);
        self.say(TierReport::Written { name: block.name, slot, result });
    }

    fn forget(&self, _: &[stator_protos::name::BlockName]) {}

    fn clear(&self) {}
}
