//! A driver without a device: it records what it is told, works when it is asked to, and fails on
//! order.

use crate::driver::{
    Attachment, AttachmentKind, Driver, DriverError, DriverFence, DriverLane, IpcHandle,
    MemorySource, check_end, check_runs,
};
use crate::fold::{PagePair, plan};
use crate::kernel::PageKernel;
use crate::runs::CopyRun;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Copies runs one after the other, by the processor.
///
/// # Panics
///
/// A run ends behind its memory.
pub(crate) fn copy_runs(runs: &[CopyRun], from: &[u8], to: &mut [u8]) {
    for run in runs {
        let source = &from[run.from..run.from + run.bytes];
        to[run.to..run.to + run.bytes].copy_from_slice(source);
    }
}

/// A driver whose memories are vectors.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeDriver(Arc<Mutex<World>>);

#[derive(Debug, Default)]
struct World {
    memories: BTreeMap<u64, Vec<u8>>,
    lanes: Vec<VecDeque<Work>>,
    /// Fences, and whether they are over.
    fences: Vec<bool>,
    calls: Vec<&'static str>,
    /// The call that fails, counted from 0.
    failing: Option<usize>,
    made: u64,
    /// Whether the device failed: from then on all calls do.
    is_lost: bool,
}

#[derive(Clone, Debug)]
enum Work {
    Copy { from: u64, to: u64, runs: Vec<CopyRun> },
    Fence(usize),
    Await(usize),
}

impl FakeDriver {
    /// Lets a call fail, counted from the next one.
    pub(crate) fn fail(&self, call: usize) {
        let mut world = self.0.lock();
        world.failing = Some(world.calls.len() + call);
    }

    /// Names of all calls so far.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.0.lock().calls.clone()
    }

    /// Memories that are attached.
    pub(crate) fn attached(&self) -> usize {
        self.0.lock().memories.len()
    }

    /// Pieces of work that were posted and not done.
    pub(crate) fn posted(&self) -> usize {
        self.0.lock().lanes.iter().map(VecDeque::len).sum()
    }

    /// An event of another process that is not over, and its handle.
    pub(crate) fn foreign_event(&self) -> (usize, IpcHandle) {
        let mut world = self.0.lock();
        world.fences.push(false);
        let number = world.fences.len() - 1;
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(&(number as u64).to_le_bytes());
        (number, handle)
    }

    /// The other process reaches its event.
    pub(crate) fn reach(&self, event: usize) {
        self.0.lock().fences[event] = true;
    }

    /// Lets one lane do its next work, if it has any that can be done.
    pub(crate) fn step(&self, lane: usize) -> bool {
        self.0.lock().step(lane)
    }

    /// Lanes that were made.
    pub(crate) fn lanes(&self) -> usize {
        self.0.lock().lanes.len()
    }

    pub(crate) fn bytes(&self, of: &Attachment) -> Vec<u8> {
        self.0.lock().memories[&of.address].clone()
    }

    pub(crate) fn fill(&self, of: &Attachment, bytes: &[u8]) {
        let mut world = self.0.lock();
        world.memories.get_mut(&of.address).expect("attached").copy_from_slice(bytes);
    }

    fn call(&self, name: &'static str) -> Result<(), DriverError> {
        let mut world = self.0.lock();
        let number = world.calls.len();
        world.calls.push(name);
        match world.failing == Some(number) || world.is_lost {
            true => Err(DriverError::Call { call: name, name: "ordered".into(), code: 999 }),
            false => Ok(()),
        }
    }
}

impl World {
    fn step(&mut self, lane: usize) -> bool {
        let Some(work) = self.lanes[lane].front().cloned() else { return false };
        match work {
            Work::Await(fence) if !self.fences[fence] => return false,
            Work::Await(_) => {}
            Work::Fence(fence) => self.fences[fence] = true,
            Work::Copy { from, to, runs } => {
                let source = self.memories[&from].clone();
                copy_runs(&runs, &source, self.memories.get_mut(&to).expect("attached"));
            }
        }
        self.lanes[lane].pop_front();
        true
    }

    fn settle(&mut self) {
        while (0..self.lanes.len()).any(|lane| self.step(lane)) {}
    }
}

impl Driver for FakeDriver {
    type Lane = FakeLane;

    fn attach(&self, source: MemorySource) -> Result<Attachment, DriverError> {
        self.call("attach")?;
        let (bytes, kind) = match source {
            MemorySource::Arena(arena) => {
                (arena.stride() * arena.slots() as usize, AttachmentKind::Arena(arena))
            }
            MemorySource::Ipc { bytes, .. } => (bytes, AttachmentKind::Ipc),
            MemorySource::File { bytes, .. } => (bytes, AttachmentKind::File { reserved: bytes }),
            MemorySource::Device { bytes } => (bytes, AttachmentKind::Device),
        };
        let mut world = self.0.lock();
        world.made += 1;
        let address = world.made << 40;
        world.memories.insert(address, vec![0; bytes]);
        Ok(Attachment { address, bytes, kind })
    }

    fn detach(&self, attachment: Attachment) -> Result<(), DriverError> {
        let called = self.call("detach");
        let mut world = self.0.lock();
        world.settle();
        world.memories.remove(&attachment.address).expect("detached once");
        called
    }

    fn lane(&self) -> Result<FakeLane, DriverError> {
        self.call("lane")?;
        let mut world = self.0.lock();
        world.lanes.push(VecDeque::new());
        Ok(FakeLane { driver: self.clone(), number: world.lanes.len() - 1 })
    }

    fn reach(&self, _: &Self) -> Result<(), DriverError> {
        self.call("reach")
    }

    fn copy_across(
        &self,
        lane: &FakeLane,
        from: &Attachment,
        to: &Attachment,
        _: &Self,
        runs: &[CopyRun],
    ) -> Result<(), DriverError> {
        check_runs(from, to, runs)?;
        self.call("copy_across")?;
        lane.post(Work::Copy { from: from.address, to: to.address, runs: runs.to_vec() });
        Ok(())
    }

    fn foreign_fence(&self, handle: IpcHandle) -> Result<FakeFence, DriverError> {
        self.call("foreign_fence")?;
        let number = u64::from_le_bytes(handle[..8].try_into().expect("8 bytes")) as usize;
        Ok(FakeFence { driver: self.clone(), number })
    }
}

#[derive(Debug)]
pub(crate) struct FakeLane {
    driver: FakeDriver,
    number: usize,
}

impl FakeLane {
    fn post(&self, work: Work) {
        self.driver.0.lock().lanes[self.number].push_back(work);
    }
}

impl DriverLane for FakeLane {
    type Fence = FakeFence;

    fn copy(
        &self,
        from: &Attachment,
        to: &Attachment,
        runs: &[CopyRun],
    ) -> Result<(), DriverError> {
        check_runs(from, to, runs)?;
        self.driver.call("copy")?;
        self.post(Work::Copy { from: from.address, to: to.address, runs: runs.to_vec() });
        Ok(())
    }

    fn convert(
        &self,
        from: &Attachment,
        to: &Attachment,
        kernel: &PageKernel,
        pairs: &[PagePair],
    ) -> Result<(), DriverError> {
        let (read, written) = kernel.ends();
        check_end(from, read)?;
        check_end(to, written)?;
        self.driver.call("convert")?;
        let (source, target) = kernel.layouts();
        let runs = plan(source, target, pairs).expect("pages that are there");
        self.post(Work::Copy { from: from.address, to: to.address, runs });
        Ok(())
    }

    fn fence(&self) -> Result<FakeFence, DriverError> {
        self.driver.call("fence")?;
        let number = {
            let mut world = self.driver.0.lock();
            world.fences.push(false);
            world.fences.len() - 1
        };
        self.post(Work::Fence(number));
        Ok(FakeFence { driver: self.driver.clone(), number })
    }

    fn wait_for(&self, fence: &FakeFence) -> Result<(), DriverError> {
        self.driver.call("wait_for")?;
        self.post(Work::Await(fence.number));
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct FakeFence {
    driver: FakeDriver,
    number: usize,
}

impl DriverFence for FakeFence {
    fn is_over(&self) -> Result<bool, DriverError> {
        self.driver.call("is_over")?;
        Ok(self.driver.0.lock().fences[self.number])
    }

    fn wait(&self) -> Result<(), DriverError> {
        let called = self.driver.call("wait");
        let mut world = self.driver.0.lock();
        if called.is_err() {
            // A wait fails only if the device does, and then what it had to do is lost.
            world.is_lost = true;
            world.lanes.iter_mut().for_each(VecDeque::clear);
            return called;
        }
        world.settle();
        assert!(world.fences[self.number], "a wait that never ends");
        Ok(())
    }
}
