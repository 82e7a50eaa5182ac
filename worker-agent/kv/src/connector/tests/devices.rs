//! Tests of copies for workers. A memory file stands in for device memory, and the processor copies.

use super::super::CountedCopier;
use super::super::copier::{CopyEnd, CopyRefusal, DeviceCopier, DeviceMemoryId};
use super::super::device::DeviceDesk;
use super::super::outbox::EngineOutbox;
use super::super::wire::device::COPIES_MAX;
use super::super::wire::*;
use super::kit::{Agent, BLOCK_BYTES, Shim, hello, until};
use crate::SlotId;
use crate::arena::Arena;
use crate::metrics::{DeviceWay, KvMetrics};
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;

const PAGES: u32 = 4;

/// A memory file and the arena.
type MappedFile = (Arc<Arena>, Arc<Arena>);

/// Copies between memory files and the arena, when its gate is open.
#[derive(Default)]
struct FileCopier {
    open: Mutex<Vec<Option<MappedFile>>>,
    is_shut: Mutex<bool>,
    opened: Condvar,
    /// Orders that have begun.
    begun: Mutex<usize>,
}

impl FileCopier {
    fn set_shut(&self, is_shut: bool) {
        *self.is_shut.lock() = is_shut;
        self.opened.notify_all();
    }

    fn mapped(&self) -> usize {
        self.open.lock().iter().flatten().count()
    }

    /// Memory and arena of a number.
    fn memory(&self, id: DeviceMemoryId) -> MappedFile {
        self.open.lock()[id.0 as usize].clone().expect("it is mapped")
    }
}

impl DeviceCopier for FileCopier {
    fn open(
        &self,
        export: &DeviceExport,
        file: Option<OwnedFd>,
        arena: &Arc<Arena>,
    ) -> Result<DeviceMemoryId, CopyRefusal> {
        let file = file.ok_or_else(|| CopyRefusal("no file".into()))?;
        let memory = Arena::open(file, export.pages.count, BLOCK_BYTES);
        let memory = memory.map_err(|error| CopyRefusal(error.to_string()))?;
        let mut open = self.open.lock();
        open.push(Some((Arc::new(memory), Arc::clone(arena))));
        Ok(DeviceMemoryId(open.len() as u64 - 1))
    }

    fn copy(&self, from: CopyEnd, to: CopyEnd, pairs: &[(u32, u32)]) -> Result<(), CopyRefusal> {
        *self.begun.lock() += 1;
        let mut is_shut = self.is_shut.lock();
        while *is_shut {
            self.opened.wait(&mut is_shut);
        }
        let (from, to) = match (from, to) {
            (CopyEnd::Pages(from), CopyEnd::Pages(to)) => (self.memory(from).0, self.memory(to).0),
            (CopyEnd::Pages(from), CopyEnd::Slots) => self.memory(from),
            (CopyEnd::Slots, CopyEnd::Pages(to)) => {
                let (memory, arena) = self.memory(to);
                (arena, memory)
            }
            (CopyEnd::Slots, CopyEnd::Slots) => return Err(CopyRefusal("slots to slots".into())),
        };
        for &(source, target) in pairs {
            if source >= from.slots() || target >= to.slots() {
                return Err(CopyRefusal("no such page".into()));
            }
            let mut kv = [0; BLOCK_BYTES];
            from.read(SlotId(source), &mut kv);
            to.write(SlotId(target), &kv);
        }
        Ok(())
    }

    fn close(&self, memory: DeviceMemoryId) {
        self.open.lock()[memory.0 as usize] = None;
    }
}

/// An agent that copies for engines.
fn copying() -> (Agent, Arc<FileCopier>) {
    let mut agent = Agent::new(16);
    let copier = Arc::<FileCopier>::default();
    agent.copier = Some(copier.clone());
    agent.start();
    (agent, copier)
}

/// A worker with device memory.
struct Worker {
    shim: Shim,
    memory: Arena,
}

fn worker(agent: &Agent, engine: &str) -> Worker {
    let hello = Hello { role: ShimRole::Worker, world: 1, ..hello(engine) };
    let mut shim = Shim::join(&agent.socket(), &hello);
    shim.pulse();
    let memory = Arena::new(PAGES, BLOCK_BYTES).unwrap();
    Worker { shim, memory }
}

fn export() -> ShimMessage {
    let pages = DevicePages {
        layers: 1,
        heads: 1,
        tokens: 1,
        content_bytes: BLOCK_BYTES as u32,
        count: PAGES,
        ..DevicePages::default()
    };
    ShimMessage::Export(Box::new(DeviceExport {
        memory: ExportedMemory::File,
        event: None,
        device: [1; 16],
        bytes: 4096 * u64::from(PAGES),
        pages,
        part: 0,
    }))
}

impl Worker {
    fn export(&mut self) -> Result<(), String> {
        self.shim.wire.send_with(&export().encode(), self.memory.file());
        let AgentMessage::Exported(result) = self.shim.next() else { panic!("no EXPORTED") };
        result
    }

    fn order(&self, number: u64, way: CopyOrderWay, pairs: &[(u32, u32)]) {
        let pairs = pairs.to_vec();
        self.shim.wire.send(&ShimMessage::Copy(CopyOrder { number, way, pairs }));
    }

    fn copied(&mut self) -> (u64, Result<(), String>) {
        match self.shim.next() {
            AgentMessage::Copied { number, result } => (number, result),
            message => panic!("{message:?}"),
        }
    }

    fn page(&self, page: u32) -> u8 {
        let mut kv = [0; BLOCK_BYTES];
        self.memory.read(SlotId(page), &mut kv);
        kv[0]
    }
}

#[test]
fn a_worker_copies_by_itself_where_the_agent_cannot() {
    let agent = Agent::new(8);
    let mut worker = worker(&agent, "a");
    assert_eq!(worker.export(), Err("this agent copies for no engine".to_owned()));
    worker.shim.pulse();
}

#[test]
fn the_agent_stores_loads_and_passes_pages() {
    let mut agent = Agent::new(16);
    let (copier, metrics) = (Arc::<FileCopier>::default(), KvMetrics::default());
    agent.copier = Some(Arc::new(CountedCopier::new(copier.clone(), metrics.clone())));
    agent.start();
    let (mut one, mut two) = (worker(&agent, "a"), worker(&agent, "b"));
    assert_eq!((one.export(), two.export()), (Ok(()), Ok(())));
    let mut scheduler = Shim::join(&agent.socket(), &Hello { world: 1, ..hello("a") });
    let slot = scheduler.slot();
    one.memory.write(SlotId(2), &[7; BLOCK_BYTES]);
    one.order(1, CopyOrderWay::Store, &[(2, slot.0)]);
    assert_eq!(one.copied(), (1, Ok(())));
    assert_eq!(scheduler.content(slot), 7);
    two.order(1, CopyOrderWay::Load, &[(slot.0, 3)]);
    assert_eq!((two.copied(), two.page(3)), ((1, Ok(())), 7));
    two.order(2, CopyOrderWay::Pass("a".into()), &[(2, 0)]);
    assert_eq!((two.copied(), two.page(0)), ((2, Ok(())), 7));
    two.order(3, CopyOrderWay::Pass("c".into()), &[(2, 0)]);
    let reason = "engine \"c\" has exported no memory of this rank".to_owned();
    assert_eq!(two.copied(), (3, Err(reason)));
    two.order(4, CopyOrderWay::Load, &[(99, 0)]);
    assert_eq!(two.copied(), (4, Err("no such page".to_owned())));
    let ways = [DeviceWay::store, DeviceWay::load, DeviceWay::pass];
    let counted = ways.map(|way| metrics.copied_bytes(way));
    assert_eq!(counted, [BLOCK_BYTES as u64; 3], "of each way one page, and none that failed");
    drop((one, two));
    until("memory is given back", || copier.mapped() == 0);
}

#[test]
fn loads_go_before_stores_and_the_end_says_bye_when_nothing_runs() {
    let (mut agent, copier) = copying();
    let mut worker = worker(&agent, "a");
    worker.export().unwrap();
    copier.set_shut(true);
    worker.order(1, CopyOrderWay::Store, &[]);
    until("the first has begun", || *copier.begun.lock() == 1);
    worker.order(2, CopyOrderWay::Store, &[]);
    worker.order(3, CopyOrderWay::Load, &[]);
    worker.shim.pulse();
    copier.set_shut(false);
    let order: Vec<_> = (0..3).map(|_| worker.copied().0).collect();
    assert_eq!(order, [1, 3, 2]);
    copier.set_shut(true);
    worker.order(4, CopyOrderWay::Store, &[]);
    until("it has begun", || *copier.begun.lock() == 4);
    let server = agent.server.take();
    let stopping = std::thread::spawn(move || drop(server));
    // No end, and no BYE, while the order runs.
    assert!(!worker.shim.wire.has_message());
    copier.set_shut(false);
    assert_eq!(worker.copied(), (4, Ok(())));
    assert_eq!(worker.shim.next(), AgentMessage::Bye);
    assert_eq!(worker.shim.wire.receive(), None);
    stopping.join().unwrap();
    assert_eq!(copier.mapped(), 0);
}

#[test]
fn orders_without_memory_and_exports_of_schedulers_end_the_connection() {
    let (agent, copier) = copying();
    let mut without = worker(&agent, "a");
    without.order(1, CopyOrderWay::Store, &[]);
    assert_eq!(without.shim.wire.receive(), None);
    let mut scheduler = agent.shim("b");
    scheduler.wire.send(&export());
    while scheduler.wire.receive().is_some() {}
    assert_eq!(copier.mapped(), 0);
}

#[test]
fn orders_that_are_not_answered_are_bounded() {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (agent, _engine) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let outbox = Arc::new(EngineOutbox::new(agent.into()).unwrap());
    let copier = Arc::<FileCopier>::default();
    let arena = || Arc::new(Arena::new(1, BLOCK_BYTES).unwrap());
    copier.open.lock().push(Some((arena(), arena())));
    copier.set_shut(true);
    let (memory, find) = (DeviceMemoryId(0), Box::new(|_: &str| None));
    let desk = DeviceDesk::start(copier.clone(), memory, outbox, find).unwrap();
    let order = |number| {
        let (way, pairs) = (CopyOrderWay::Store, Vec::new());
        desk.order(CopyOrder { number, way, pairs })
    };
    assert!((0..COPIES_MAX as u64).all(order));
    assert!(!order(99));
    copier.set_shut(false);
    until("there is room again", || order(100));
    drop(desk);
    assert_eq!(copier.mapped(), 0);
}
