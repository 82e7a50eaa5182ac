//! Copies for engines in other processes, which export their device memory to the agent.
//!
//! The agent's connector hears what engines export and order (`stator_kv::connector`). Here the
//! memory is mapped, the arena registered with the driver once, and orders become routes.

use crate::cuda::CudaDriver;
use crate::driver::{Driver, DriverError, DriverFence, DriverLane, MemorySource};
use crate::fold::PagePair;
use crate::layout::{KvLayout, LayoutError, PageOrder, PageShape, PageStrides};
use crate::memory::KvMemory;
use crate::report::NoCuda;
use crate::route::{KvRoute, KvSide, RouteError, RouteSettings};
use parking_lot::Mutex;
use stator_kv::arena::Arena;
use stator_kv::connector::copier::{CopyEnd, CopyRefusal, DeviceCopier, DeviceMemoryId};
use stator_kv::connector::wire::{DeviceExport, DevicePages, ExportedMemory};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Opens devices by the driver's UUID of them.
pub trait DeviceOpener: Debug + Send + Sync + 'static {
    /// Driver of a device.
    type Driver: Driver;

    /// Opens a device.
    ///
    /// # Errors
    ///
    /// There is no driver that works, or no such device.
    fn open(&self, uuid: [u8; 16]) -> Result<Arc<Self::Driver>, NoCuda>;
}

/// The devices of the CUDA driver, which is looked for when the first engine exports its memory.
#[derive(Debug, Default)]
pub struct CudaDevices;

impl DeviceOpener for CudaDevices {
    type Driver = CudaDriver;

    fn open(&self, uuid: [u8; 16]) -> Result<Arc<CudaDriver>, NoCuda> {
        CudaDriver::open_uuid(uuid)
    }
}

/// Copies for engines, by the drivers of their devices.
#[derive(Debug)]
pub struct EngineCopier<O: DeviceOpener> {
    opener: O,
    state: Mutex<CopierState<O::Driver>>,
}

#[derive(Debug)]
struct CopierState<D: Driver> {
    /// Drivers that were opened, by device. They stay: the agent's context is made once.
    devices: BTreeMap<[u8; 16], Arc<D>>,
    /// Arenas that were registered, each with the first device that needed it: what one context
    /// registers all know, at the same addresses (`CU_MEMHOSTREGISTER_PORTABLE`). They stay as long as
    /// the devices: to pin an arena takes seconds.
    arenas: Vec<(Arc<Arena>, Arc<KvMemory<D>>)>,
    engines: BTreeMap<u64, Arc<EngineMemory<D>>>,
    /// Number of the next engine's memory.
    next: u64,
}

/// Mapped memory of an engine.
#[derive(Debug)]
struct EngineMemory<D: Driver> {
    side: KvSide<D>,
    lines: Mutex<EngineLines<D>>,
}

/// Routes of an engine's memory, and the event that its copies wait for.
#[derive(Debug)]
struct EngineLines<D: Driver> {
    store: KvRoute<D>,
    load: KvRoute<D>,
    after: Option<<D::Lane as DriverLane>::Fence>,
}

/// A device, and an arena as drivers know it.
type DeviceAndArena<D> = (Arc<D>, Arc<KvMemory<D>>);

/// Reason why memory cannot be used, or pages are not copied.
#[derive(Debug, thiserror::Error)]
enum CopierError {
    #[error(transparent)]
    NoCuda(#[from] NoCuda),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("a page of {page_bytes} bytes at byte {part} of a slot of {slot_bytes}")]
    Part { page_bytes: usize, part: u64, slot_bytes: usize },
    #[error("an address of {0} is too large for this machine")]
    Address(u64),
    #[error("the message named a file and brought none")]
    NoFile,
    #[error("the memory is not exported any more")]
    Closed,
    #[error("a copy from slots to slots")]
    Slots,
}

impl From<DriverError> for CopierError {
    fn from(error: DriverError) -> Self {
        Self::Route(error.into())
    }
}

impl From<LayoutError> for CopierError {
    fn from(error: LayoutError) -> Self {
        Self::Route(error.into())
    }
}

impl<O: DeviceOpener> EngineCopier<O> {
    /// A copier that opens devices when engines export memory of them.
    pub fn new(opener: O) -> Self {
        let (devices, arenas, engines) = Default::default();
        Self { opener, state: Mutex::new(CopierState { devices, arenas, engines, next: 0 }) }
    }

    fn map(
        &self,
        export: &DeviceExport,
        file: Option<OwnedFd>,
        arena: &Arc<Arena>,
    ) -> Result<EngineMemory<O::Driver>, CopierError> {
        let pages = page_layout(&export.pages)?;
        let slots = slot_layout(pages.shape(), export.part, arena)?;
        let bytes = address(export.bytes)?;
        let (driver, host) = self.device(export.device, arena)?;
        let source = match export.memory {
            ExportedMemory::Ipc(handle) => MemorySource::Ipc { handle, bytes },
            ExportedMemory::File => {
                MemorySource::File { file: file.ok_or(CopierError::NoFile)?, bytes }
            }
        };
        let side = KvSide::new(KvMemory::attach(&driver, source)?, pages)?;
        let host = KvSide::new(host, slots)?;
        let route = |from: &KvSide<_>, to: &KvSide<_>| {
            KvRoute::new(from.clone(), to.clone(), RouteSettings::default())
        };
        let (store, load) = (route(&side, &host)?, route(&host, &side)?);
        let after = export.event.map(|event| driver.foreign_fence(event)).transpose()?;
        let lines = Mutex::new(EngineLines { store, load, after });
        Ok(EngineMemory { side, lines })
    }

    /// The driver of a device, and the arena as it knows it.
    fn device(
        &self,
        uuid: [u8; 16],
        arena: &Arc<Arena>,
    ) -> Result<DeviceAndArena<O::Driver>, CopierError> {
        // The lock is held while the device opens: it is opened once, and others wait for it.
        let mut state = self.state.lock();
        let driver = match state.devices.get(&uuid) {
            Some(driver) => driver.clone(),
            None => {
                let driver = self.opener.open(uuid)?;
                state.devices.insert(uuid, driver.clone());
                driver
            }
        };
        if let Some((_, known)) = state.arenas.iter().find(|(of, _)| Arc::ptr_eq(of, arena)) {
            return Ok((driver, known.clone()));
        }
        let memory = KvMemory::attach(&driver, MemorySource::Arena(arena.clone()))?;
        state.arenas.push((arena.clone(), memory.clone()));
        Ok((driver, memory))
    }

    fn engine(&self, id: DeviceMemoryId) -> Result<Arc<EngineMemory<O::Driver>>, CopierError> {
        self.state.lock().engines.get(&id.0).cloned().ok_or(CopierError::Closed)
    }

    fn run(&self, from: CopyEnd, to: CopyEnd, pairs: &[PagePair]) -> Result<(), CopierError> {
        let (engine, is_load) = match (from, to) {
            (CopyEnd::Pages(from), CopyEnd::Pages(to)) => return self.pass(from, to, pairs),
            (CopyEnd::Pages(engine), CopyEnd::Slots) => (self.engine(engine)?, false),
            (CopyEnd::Slots, CopyEnd::Pages(engine)) => (self.engine(engine)?, true),
            (CopyEnd::Slots, CopyEnd::Slots) => return Err(CopierError::Slots),
        };
        let transit = {
            let mut lines = engine.lines.lock();
            let EngineLines { store, load, after } = &mut *lines;
            let route = if is_load { load } else { store };
            route.start(pairs, after.as_slice())?
        };
        Ok(transit.wait()?)
    }

    /// Copies from one engine's memory to another's, which may be of another device.
    fn pass(
        &self,
        from: DeviceMemoryId,
        to: DeviceMemoryId,
        pairs: &[PagePair],
    ) -> Result<(), CopierError> {
        let (from, to) = (self.engine(from)?, self.engine(to)?);
        // One after the other: two engines may pass to each other at the same time.
        if let Some(computed) = &from.lines.lock().after {
            computed.wait()?;
        }
        let settings = RouteSettings::default();
        let mut route = KvRoute::new(from.side.clone(), to.side.clone(), settings)?;
        let transit = route.start(pairs, to.lines.lock().after.as_slice())?;
        Ok(transit.wait()?)
    }
}

impl<O: DeviceOpener> DeviceCopier for EngineCopier<O> {
    fn open(
        &self,
        export: &DeviceExport,
        file: Option<OwnedFd>,
        arena: &Arc<Arena>,
    ) -> Result<DeviceMemoryId, CopyRefusal> {
        let engine = self.map(export, file, arena).map_err(refusal)?;
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.engines.insert(id, Arc::new(engine));
        Ok(DeviceMemoryId(id))
    }

    fn copy(&self, from: CopyEnd, to: CopyEnd, pairs: &[(u32, u32)]) -> Result<(), CopyRefusal> {
        let pairs: Vec<_> = pairs.iter().map(|&(from, to)| PagePair { from, to }).collect();
        self.run(from, to, &pairs).map_err(refusal)
    }

    fn close(&self, memory: DeviceMemoryId) {
        let engine = self.state.lock().engines.remove(&memory.0);
        // Outside the lock: it waits for the device.
        drop(engine);
    }
}

fn refusal(error: CopierError) -> CopyRefusal {
    CopyRefusal(error.to_string())
}

fn address(bytes: u64) -> Result<usize, CopierError> {
    usize::try_from(bytes).map_err(|_| CopierError::Address(bytes))
}

/// Places of an engine's pages.
fn page_layout(pages: &DevicePages) -> Result<KvLayout, CopierError> {
    let &DevicePages { layers, heads, tokens, content_bytes, count, first, strides } = pages;
    let shape = PageShape { layers, heads, tokens, content_bytes };
    let [layer, page, head, token] = strides.map(address);
    let strides = PageStrides { layer: layer?, page: page?, head: head?, token: token? };
    Ok(KvLayout::new(shape, count, address(first)?, strides)?)
}

/// Places of the part that such pages have of each slot.
fn slot_layout(shape: PageShape, part: u64, arena: &Arena) -> Result<KvLayout, CopierError> {
    let packed = KvLayout::packed(PageOrder::Blhnc, shape, arena.slots())?;
    let (page_bytes, slot_bytes) = (shape.page_bytes(), arena.block_bytes());
    let first = address(part)?;
    if first.checked_add(page_bytes).is_none_or(|end| end > slot_bytes) {
        return Err(CopierError::Part { page_bytes, part, slot_bytes });
    }
    let strides = PageStrides { page: arena.stride(), ..packed.strides() };
    Ok(KvLayout::new(shape, arena.slots(), first, strides)?)
}

#[cfg(test)]
mod tests;
