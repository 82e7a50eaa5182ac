//! Engines' memory over the driver that records: what is copied, in which order, and a failure at
//! each call.

use super::*;
use crate::fake::FakeDriver;
use crate::report::DeviceUuid;
use crate::tests::{model, pattern};

const SLOTS: u32 = 6;
const PAGES: u32 = 4;
const SHAPE: PageShape = PageShape { layers: 3, heads: 2, tokens: 4, content_bytes: 16 };
const PAGE: usize = 384;
const DEVICE: [u8; 16] = [1; 16];

#[derive(Debug)]
struct OneDevice(Arc<FakeDriver>);

impl DeviceOpener for OneDevice {
    type Driver = FakeDriver;

    fn open(&self, uuid: [u8; 16]) -> Result<Arc<FakeDriver>, NoCuda> {
        let is_there = uuid == DEVICE;
        is_there.then(|| self.0.clone()).ok_or(NoCuda::NoDevice(DeviceUuid(uuid)))
    }
}

struct Rig {
    driver: Arc<FakeDriver>,
    copier: EngineCopier<OneDevice>,
    arena: Arc<Arena>,
    /// An event that engines reach before they order.
    event: [u8; 64],
}

fn rig() -> Rig {
    let driver = Arc::new(FakeDriver::default());
    let (event, handle) = driver.foreign_event();
    driver.reach(event);
    // Slots hold the parts of two workers.
    let arena = Arc::new(Arena::new(SLOTS, 2 * PAGE).unwrap());
    let copier = EngineCopier::new(OneDevice(driver.clone()));
    Rig { driver, copier, arena, event: handle }
}

/// Memory with pages in this order behind 32 other bytes.
fn export(order: PageOrder, part: u64, event: Option<[u8; 64]>) -> DeviceExport {
    let PageShape { layers, heads, tokens, content_bytes } = SHAPE;
    let packed = KvLayout::packed(order, SHAPE, PAGES).unwrap();
    let PageStrides { layer, page, head, token } = packed.strides();
    let strides = [layer, page, head, token].map(|stride| stride as u64);
    DeviceExport {
        memory: ExportedMemory::Ipc([9; 64]),
        event,
        device: DEVICE,
        bytes: 32 + packed.end() as u64,
        pages: DevicePages {
            layers,
            heads,
            tokens,
            content_bytes,
            count: PAGES,
            first: 32,
            strides,
        },
        part,
    }
}

impl Rig {
    fn open(&self, order: PageOrder, part: u64) -> Result<DeviceMemoryId, CopyRefusal> {
        let id = self.copier.open(&export(order, part, Some(self.event)), None, &self.arena)?;
        let engine = self.copier.engine(id).unwrap();
        let memory = engine.side.memory().attachment();
        self.driver.fill(memory, &pattern(id.0 + 1, memory.bytes()));
        Ok(id)
    }

    fn pages(&self, id: DeviceMemoryId) -> Vec<u8> {
        let engine = self.copier.engine(id).unwrap();
        self.driver.bytes(engine.side.memory().attachment())
    }

    fn slots(&self) -> Vec<u8> {
        let arena = self.copier.state.lock().arenas[0].1.clone();
        self.driver.bytes(arena.attachment())
    }

    fn layouts(&self, order: PageOrder, part: u64) -> (KvLayout, KvLayout) {
        let pages = page_layout(&export(order, part, None).pages).unwrap();
        (pages, slot_layout(SHAPE, part, &self.arena).unwrap())
    }

    /// All orders in turn; the first that fails.
    fn all(&self) -> Result<(), CopyRefusal> {
        let first = self.open(PageOrder::Lbhnc, 0)?;
        let second = self.open(PageOrder::Blhnc, PAGE as u64)?;
        let (first_end, second_end) = (CopyEnd::Pages(first), CopyEnd::Pages(second));
        let orders: [(_, _, &[_]); 3] = [
            (first_end, CopyEnd::Slots, &[(0, 5), (3, 1)]),
            (CopyEnd::Slots, second_end, &[(5, 2), (0, 0)]),
            (first_end, second_end, &[(1, 1), (2, 3)]),
        ];
        for (from, to, pairs) in orders {
            let copied = self.copier.copy(from, to, pairs);
            // Whatever was posted is done or never will be: targets can be given to others.
            let at_rest = (self.slots(), self.pages(first), self.pages(second));
            while (0..self.driver.lanes()).any(|lane| self.driver.step(lane)) {}
            assert!(at_rest == (self.slots(), self.pages(first), self.pages(second)));
            copied?;
        }
        self.copier.close(first);
        self.copier.close(second);
        Ok(())
    }
}

#[test]
fn pages_of_two_engines_go_to_slots_and_back_and_to_each_other() {
    let rig = rig();
    let first = rig.open(PageOrder::Lbhnc, 0).unwrap();
    let second = rig.open(PageOrder::Blhnc, PAGE as u64).unwrap();
    let (first_pages, first_slots) = rig.layouts(PageOrder::Lbhnc, 0);
    let (second_pages, second_slots) = rig.layouts(PageOrder::Blhnc, PAGE as u64);
    let (a, mut b, mut slots) = (rig.pages(first), rig.pages(second), rig.slots());
    let copy = |from, to, pairs: &[_]| rig.copier.copy(from, to, pairs).unwrap();

    copy(CopyEnd::Pages(first), CopyEnd::Slots, &[(0, 5), (3, 1)]);
    model((&first_pages, &a), (&first_slots, &mut slots), &[(0, 5), (3, 1)]);
    copy(CopyEnd::Pages(second), CopyEnd::Slots, &[(2, 5)]);
    model((&second_pages, &b), (&second_slots, &mut slots), &[(2, 5)]);
    assert!(rig.slots() == slots, "each worker has its part");
    copy(CopyEnd::Slots, CopyEnd::Pages(second), &[(5, 0), (1, 3)]);
    model((&second_slots, &slots), (&second_pages, &mut b), &[(5, 0), (1, 3)]);
    copy(CopyEnd::Pages(first), CopyEnd::Pages(second), &[(1, 1)]);
    model((&first_pages, &a), (&second_pages, &mut b), &[(1, 1)]);
    assert!(rig.pages(second) == b && rig.pages(first) == a);
}

#[test]
fn each_copy_begins_after_the_engines_event() {
    let rig = rig();
    let first = rig.open(PageOrder::Blhnc, 0).unwrap();
    let second = rig.open(PageOrder::Blhnc, 0).unwrap();
    let calls_of = |from, to| {
        let before = rig.driver.calls().len();
        rig.copier.copy(from, to, &[(0, 0)]).unwrap();
        rig.driver.calls()[before..].to_vec()
    };
    for (from, to) in
        [(CopyEnd::Pages(first), CopyEnd::Slots), (CopyEnd::Slots, CopyEnd::Pages(first))]
    {
        let calls = calls_of(from, to);
        let waits = calls.iter().take_while(|call| **call == "wait_for").count();
        assert!(waits > 0 && !calls[waits..].contains(&"wait_for"), "{calls:?}");
        assert!(calls[waits..].contains(&"copy") && calls.ends_with(&["wait"]), "{calls:?}");
    }
    // A pass waits for the source's event as well.
    let pass = calls_of(CopyEnd::Pages(first), CopyEnd::Pages(second));
    assert_eq!(pass[0], "wait", "{pass:?}");
    assert!(pass.contains(&"wait_for"), "{pass:?}");
}

#[test]
fn after_a_failure_at_any_call_nothing_is_on_its_way_and_nothing_stays_mapped() {
    let mut failures = 0;
    // The last round has no call left to fail.
    for call in 0.. {
        let Rig { driver, copier, arena, event } = rig();
        driver.fail(call);
        let rig = Rig { driver: driver.clone(), copier, arena, event };
        let has_failed = rig.all().is_err();
        let calls = driver.calls().len();
        drop(rig);
        assert_eq!(driver.attached(), 0, "call {call}");
        failures += usize::from(has_failed);
        if call >= calls {
            assert!(!has_failed);
            break;
        }
    }
    assert!(failures >= 20, "{failures} calls failed in turn");
}

#[test]
fn the_arena_is_registered_once() {
    let rig = rig();
    let first = rig.open(PageOrder::Lbhnc, 0).unwrap();
    rig.copier.close(first);
    // The arena; routes by the kernel have staging areas, which go with their engine.
    assert_eq!(rig.driver.attached(), 1);
    rig.open(PageOrder::Lbhnc, 0).unwrap();
    assert_eq!(rig.copier.state.lock().arenas.len(), 1);
}

#[derive(Debug)]
struct TwoDevices([Arc<FakeDriver>; 2]);

impl DeviceOpener for TwoDevices {
    type Driver = FakeDriver;

    fn open(&self, uuid: [u8; 16]) -> Result<Arc<FakeDriver>, NoCuda> {
        Ok(self.0[usize::from(uuid != DEVICE)].clone())
    }
}

/// The arena is one for all devices; whatever else an engine's copies need is of its own device.
#[test]
fn engines_on_two_devices_share_the_arena_and_copy_on_their_own() {
    let drivers = [FakeDriver::default(), FakeDriver::default()].map(Arc::new);
    let copier = EngineCopier::new(TwoDevices(drivers.clone()));
    let arena = Arc::new(Arena::new(SLOTS, 2 * PAGE).unwrap());
    let count = |driver: &FakeDriver, call| driver.calls().iter().filter(|c| **c == call).count();
    let mut attached = Vec::new();
    for (device, driver) in [DEVICE, [2; 16]].into_iter().zip(&drivers) {
        let before = drivers.each_ref().map(|driver| count(driver, "lane"));
        let export = DeviceExport { device, ..export(PageOrder::Lbhnc, 0, None) };
        let id = copier.open(&export, None, &arena).unwrap();
        let engine = copier.engine(id).unwrap();
        assert!(Arc::ptr_eq(engine.side.memory().driver(), driver));
        let made = drivers.each_ref().map(|driver| count(driver, "lane"));
        let other = usize::from(device == DEVICE);
        assert_eq!(made[other], before[other], "lanes of another device");
        assert!(made[1 - other] > before[1 - other]);
        attached.push(driver.attached());
    }
    assert_eq!(copier.state.lock().arenas.len(), 1);
    assert_eq!(attached[0], attached[1] + 1, "the first has the arena, too");
}

#[test]
fn pages_go_from_one_device_to_another_past_the_arena() {
    // Two devices of one driver, whose addresses are of one space.
    let both = FakeDriver::default();
    let drivers = [both.clone(), both].map(Arc::new);
    let copier = EngineCopier::new(TwoDevices(drivers.clone()));
    let arena = Arc::new(Arena::new(SLOTS, 2 * PAGE).unwrap());
    let open = |device, order| {
        let export = DeviceExport { device, ..export(order, 0, None) };
        let id = copier.open(&export, None, &arena).unwrap();
        let memory = copier.engine(id).unwrap().side.memory().clone();
        drivers[0].fill(memory.attachment(), &pattern(id.0 + 1, memory.attachment().bytes()));
        (id, page_layout(&export.pages).unwrap(), memory)
    };
    let (first, first_pages, first_memory) = open(DEVICE, PageOrder::Lbhnc);
    let (second, second_pages, second_memory) = open([2; 16], PageOrder::Blhnc);
    let bytes = |memory: &KvMemory<_>| drivers[0].bytes(memory.attachment());
    let (a, mut b) = (bytes(&first_memory), bytes(&second_memory));
    let before = drivers[0].calls().len();
    let pairs = [(1, 1), (2, 3)];
    copier.copy(CopyEnd::Pages(first), CopyEnd::Pages(second), &pairs).unwrap();
    model((&first_pages, &a), (&second_pages, &mut b), &pairs);
    assert!(bytes(&first_memory) == a && bytes(&second_memory) == b);
    let calls = drivers[0].calls()[before..].to_vec();
    assert_eq!(calls, ["reach", "lane", "copy_across", "fence", "wait"]);
    // Without a way between them both stay as they are.
    drivers[0].fail(0);
    let refused = copier.copy(CopyEnd::Pages(first), CopyEnd::Pages(second), &[(0, 0)]);
    assert!(refused.is_err() && bytes(&second_memory) == b);
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let rig = rig();
    let refused = |change: &dyn Fn(&mut DeviceExport)| {
        let mut export = export(PageOrder::Lbhnc, 0, None);
        change(&mut export);
        rig.copier.open(&export, None, &rig.arena).unwrap_err().0
    };
    let part = refused(&|export| export.part = PAGE as u64 + 1);
    assert_eq!(part, "a page of 384 bytes at byte 385 of a slot of 768");
    assert!(refused(&|export| export.part = u64::MAX).starts_with("a page of 384 bytes"));
    assert!(refused(&|export| export.bytes -= 1).contains("in a memory of"));
    assert!(refused(&|export| export.pages.layers = 0).contains("no bytes"));
    let huge = |export: &mut DeviceExport| {
        export.pages.strides = [0; 4];
        export.pages.layers = u32::MAX;
        export.pages.heads = u32::MAX;
    };
    assert!(refused(&huge).contains("too many"));
    assert_eq!(
        refused(&|export| export.memory = ExportedMemory::File),
        "the message named a file and brought none"
    );
    let device = refused(&|export| export.device = [0xab; 16]);
    assert_eq!(device, format!("no device {} in this process", "ab".repeat(16)));
    let none = CopyEnd::Pages(DeviceMemoryId(7));
    let copy = rig.copier.copy(none, CopyEnd::Slots, &[]).unwrap_err();
    assert_eq!(copy.0, "the memory is not exported any more");
    let id = rig.open(PageOrder::Lbhnc, 0).unwrap();
    let beyond = rig.copier.copy(CopyEnd::Pages(id), CopyEnd::Slots, &[(0, SLOTS)]);
    assert_eq!(beyond.unwrap_err().0, "page 6 of 6");
}

#[test]
fn without_a_driver_an_export_is_refused() {
    let copier = EngineCopier::new(CudaDevices);
    let arena = Arc::new(Arena::new(SLOTS, 2 * PAGE).unwrap());
    match copier.open(&export(PageOrder::Lbhnc, 0, None), None, &arena) {
        Err(CopyRefusal(reason)) => println!("refused: {reason}"),
        Ok(_) => panic!("memory that nobody exported"),
    }
}
