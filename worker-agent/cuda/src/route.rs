//! Routes: copies of pages from one memory to another, on streams of their own.
//!
//! A store goes from an engine's memory to an arena, a load the other way, and a pass from one
//! engine's memory to another's on the same node, also of another device. All three are routes.

use crate::driver::{Driver, DriverError, DriverFence, DriverLane, MemorySource};
use crate::fold::{FoldedPage, PagePair, plan};
use crate::kernel::{PAIRS_MAX, PageKernel};
use crate::layout::{KvLayout, LayoutError};
use crate::memory::KvMemory;
use std::sync::Arc;

/// Runs between host and device from this length on are given to the copy engines. They work beside
/// whatever computes, also in another process; a kernel of this process takes turns with it.
pub const BUS_RUN_MIN: usize = 16 << 10;

/// Runs within a device from this length on are given to the copy engines.
pub const DEVICE_RUN_MIN: usize = 1 << 20;

/// Staging areas, each with a stream: one is filled while another crosses the bus.
const STAGING_AREAS: usize = 2;

/// Memory and its layout, at one end of a route.
#[derive(Debug)]
pub struct KvSide<D: Driver> {
    memory: Arc<KvMemory<D>>,
    layout: KvLayout,
}

/// Way in which pages are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWay {
    /// Runs of bytes, by the copy engines.
    Runs,
    /// The kernel, by way of a staging area if one side is an arena.
    Kernel,
}

/// Settings of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    /// Way in which pages are copied. Default: `None`, the copy engines for long runs and the kernel
    /// for short ones.
    pub way: Option<CopyWay>,
    /// Bytes of a staging area, of which a route has two if it needs them. Default: 32 MiB. The device
    /// switches from other processes to the kernel once for each area's worth of pages.
    pub staging_bytes: usize,
}

impl Default for RouteSettings {
    fn default() -> Self {
        Self { way: None, staging_bytes: 32 << 20 }
    }
}

/// Copies of pages from one memory to another.
#[derive(Debug)]
pub struct KvRoute<D: Driver> {
    from: KvSide<D>,
    to: KvSide<D>,
    steps: RouteSteps,
    lanes: Vec<StagedLane<D>>,
    /// Lane for the next pages.
    next: usize,
}

#[derive(Debug)]
enum RouteSteps {
    Runs,
    /// Runs from one device to another.
    Across,
    Direct(PageKernel),
    /// Converts into the staging area, which has this layout, and copies from there.
    Gather(PageKernel, KvLayout),
    /// Copies into the staging area, which has this layout, and converts from there.
    Scatter(PageKernel, KvLayout),
}

#[derive(Debug)]
struct StagedLane<D: Driver> {
    lane: D::Lane,
    staging: Option<Arc<KvMemory<D>>>,
}

/// Pages on their way. Dropping it does not stop them: their owner must keep both sides from other
/// use until the copies have ended.
#[derive(Debug)]
#[must_use = "pages are there only after the copies have ended"]
pub struct Transit<D: Driver> {
    fences: Vec<<D::Lane as DriverLane>::Fence>,
    /// Both sides and the staging areas: detaching memory waits for its copies.
    _memory: Vec<Arc<KvMemory<D>>>,
}

/// Reason why a route cannot be, or why pages are not copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Layouts or pages are wrong.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl<D: Driver> KvSide<D> {
    /// Pages in a memory.
    ///
    /// # Errors
    ///
    /// The layout ends behind the memory.
    pub fn new(memory: Arc<KvMemory<D>>, layout: KvLayout) -> Result<Self, LayoutError> {
        let (needed, bytes) = (layout.end(), memory.attachment().bytes());
        if needed > bytes {
            return Err(LayoutError::Beyond { needed, bytes });
        }
        Ok(Self { memory, layout })
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> &Arc<KvMemory<D>> {
        &self.memory
    }

    /// Whether each page is one piece of an arena.
    fn is_whole_in_host(&self) -> bool {
        let page = FoldedPage::new(&self.layout, &self.layout);
        self.memory.attachment().is_host() && page.is_ok_and(|page| page.runs() == 1)
    }
}

impl<D: Driver> Clone for KvSide<D> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), layout: self.layout }
    }
}

impl<D: Driver> KvRoute<D> {
    /// A route. It copies in runs where the kernel cannot copy: the kernel needs pieces of multiples of
    /// 16 bytes, pages that are one piece of an arena, and no more than one device.
    ///
    /// # Errors
    ///
    /// The pages of both sides have other sizes, they are on devices without a way between them, or the
    /// driver refuses.
    pub fn new(
        from: KvSide<D>,
        to: KvSide<D>,
        settings: RouteSettings,
    ) -> Result<Self, RouteError> {
        let run_bytes = FoldedPage::new(&from.layout, &to.layout)?.run_bytes;
        let is_bus = [&from, &to].iter().any(|side| side.memory.attachment().is_host());
        let drivers = [&from, &to].map(|side| side.memory.driver());
        let is_across = !is_bus && !Arc::ptr_eq(drivers[0], drivers[1]);
        let is_long = run_bytes >= if is_bus { BUS_RUN_MIN } else { DEVICE_RUN_MIN };
        let usual = if is_long { CopyWay::Runs } else { CopyWay::Kernel };
        let steps = match settings.way.unwrap_or(usual) {
            _ if is_across => {
                drivers[0].reach(drivers[1])?;
                RouteSteps::Across
            }
            CopyWay::Runs => RouteSteps::Runs,
            CopyWay::Kernel => RouteSteps::by_kernel(&from, &to, settings.staging_bytes)?,
        };
        // An arena is registered with one device and known to all.
        let device = if from.memory.attachment().is_host() { &to } else { &from };
        let driver = device.memory.driver().clone();
        let staging = |layout: &KvLayout| {
            let source = MemorySource::Device { bytes: layout.end() };
            KvMemory::attach(&driver, source)
        };
        let lane = || -> Result<_, DriverError> {
            let staging = steps.staging().map(staging).transpose()?;
            Ok(StagedLane { lane: driver.lane()?, staging })
        };
        let areas = if steps.staging().is_some() { STAGING_AREAS } else { 1 };
        let lanes = (0..areas).map(|_| lane()).collect::<Result<_, _>>()?;
        Ok(Self { from, to, steps, lanes, next: 0 })
    }

    /// The way in which pages are copied.
    pub fn way(&self) -> CopyWay {
        let is_runs = matches!(self.steps, RouteSteps::Runs | RouteSteps::Across);
        if is_runs { CopyWay::Runs } else { CopyWay::Kernel }
    }

    /// Starts to copy pages, after what the fences stand for. No two pairs have the same target.
    ///
    /// # Errors
    ///
    /// There is no such page, or the driver refuses. Nothing is on its way then; targets may hold
    /// anything.
    pub fn start(
        &mut self,
        pairs: &[PagePair],
        after: &[<D::Lane as DriverLane>::Fence],
    ) -> Result<Transit<D>, RouteError> {
        let posted = self.post(pairs, after);
        if posted.is_err() {
            // What was posted before the error must not write into targets that are given to others.
            let fences = self.lanes.iter().map(|lane| lane.lane.fence());
            let waited = fences.map(|fence| fence.and_then(|fence| fence.wait()));
            if let Some(error) = waited.filter_map(Result::err).next() {
                tracing::warn!(%error, "the device failed, and copies of KV with it");
            }
        }
        posted
    }

    fn post(
        &mut self,
        pairs: &[PagePair],
        after: &[<D::Lane as DriverLane>::Fence],
    ) -> Result<Transit<D>, RouteError> {
        for (lane, fence) in self.lanes.iter().flat_map(|lane| after.iter().map(move |f| (lane, f)))
        {
            lane.lane.wait_for(fence)?;
        }
        // A page that is not there is found before anything is copied.
        for pair in pairs {
            self.from.layout.page(pair.from)?;
            self.to.layout.page(pair.to)?;
        }
        let pages = self.steps.pages_at_once().unwrap_or(pairs.len()).max(1);
        for pairs in pairs.chunks(pages) {
            self.post_pages(pairs, &self.lanes[self.next])?;
            self.next = (self.next + 1) % self.lanes.len();
        }
        let fences = self.lanes.iter().map(|lane| lane.lane.fence()).collect::<Result<_, _>>()?;
        let staging = self.lanes.iter().filter_map(|lane| lane.staging.clone());
        let sides = [self.from.memory.clone(), self.to.memory.clone()];
        Ok(Transit { fences, _memory: staging.chain(sides).collect() })
    }

    fn post_pages(&self, pairs: &[PagePair], on: &StagedLane<D>) -> Result<(), RouteError> {
        let (from, to) = (self.from.memory.attachment(), self.to.memory.attachment());
        let lane = &on.lane;
        match (&self.steps, &on.staging) {
            (RouteSteps::Direct(kernel), _) => lane.convert(from, to, kernel, pairs)?,
            (RouteSteps::Across, _) => {
                let runs = plan(&self.from.layout, &self.to.layout, pairs)?;
                let (here, there) = (self.from.memory.driver(), self.to.memory.driver());
                here.copy_across(lane, from, to, there, &runs)?;
            }
            (RouteSteps::Gather(kernel, staged), Some(staging)) => {
                let (gathered, copied) = by_way_of_staging(pairs);
                lane.convert(from, staging.attachment(), kernel, &gathered)?;
                lane.copy(staging.attachment(), to, &plan(staged, &self.to.layout, &copied)?)?;
            }
            (RouteSteps::Scatter(kernel, staged), Some(staging)) => {
                let (copied, scattered) = by_way_of_staging(pairs);
                lane.copy(from, staging.attachment(), &plan(&self.from.layout, staged, &copied)?)?;
                lane.convert(staging.attachment(), to, kernel, &scattered)?;
            }
            (RouteSteps::Runs | RouteSteps::Gather(..) | RouteSteps::Scatter(..), _) => {
                lane.copy(from, to, &plan(&self.from.layout, &self.to.layout, pairs)?)?;
            }
        }
        Ok(())
    }
}

impl RouteSteps {
    fn by_kernel<D: Driver>(
        from: &KvSide<D>,
        to: &KvSide<D>,
        staging_bytes: usize,
    ) -> Result<Self, LayoutError> {
        let is_host = [from, to].map(|side| side.memory.attachment().is_host());
        let kernel = match is_host {
            [false, false] => PageKernel::new(&from.layout, &to.layout)?.map(Self::Direct),
            [false, true] if to.is_whole_in_host() => {
                let staged = staging_layout(&to.layout, staging_bytes)?;
                PageKernel::new(&from.layout, &staged)?.map(|of| Self::Gather(of, staged))
            }
            [true, false] if from.is_whole_in_host() => {
                let staged = staging_layout(&from.layout, staging_bytes)?;
                PageKernel::new(&staged, &to.layout)?.map(|of| Self::Scatter(of, staged))
            }
            _ => None,
        };
        Ok(kernel.unwrap_or(Self::Runs))
    }

    fn staging(&self) -> Option<&KvLayout> {
        match self {
            Self::Gather(_, staged) | Self::Scatter(_, staged) => Some(staged),
            Self::Runs | Self::Across | Self::Direct(_) => None,
        }
    }

    /// Pages of one step; `None` if all pages are one.
    fn pages_at_once(&self) -> Option<usize> {
        match self {
            Self::Runs | Self::Across => None,
            Self::Direct(_) => Some(PAIRS_MAX),
            Self::Gather(_, staged) | Self::Scatter(_, staged) => Some(staged.pages() as usize),
        }
    }
}

/// Pages within a staging area, each as it is in the arena, without gaps between them.
fn staging_layout(slots: &KvLayout, bytes: usize) -> Result<KvLayout, LayoutError> {
    let (shape, strides) = (slots.shape(), slots.strides());
    let pages = (bytes / shape.page_bytes()).clamp(1, PAIRS_MAX) as u32;
    KvLayout::new(shape, pages, 0, strides)?.with_page_stride(shape.page_bytes())
}

/// Pairs from the sources to the pages of a staging area, and from there to the targets.
fn by_way_of_staging(pairs: &[PagePair]) -> (Vec<PagePair>, Vec<PagePair>) {
    let places = pairs.iter().zip(0..);
    places
        .map(|(pair, place)| {
            let (first, second) = (pair.from, pair.to);
            (PagePair { from: first, to: place }, PagePair { from: place, to: second })
        })
        .unzip()
}

impl<D: Driver> Transit<D> {
    /// Whether all pages are there.
    ///
    /// # Errors
    ///
    /// A copy failed. Targets may hold anything.
    pub fn is_over(&self) -> Result<bool, DriverError> {
        for fence in &self.fences {
            if !fence.is_over()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all pages are there. The thread sleeps meanwhile.
    ///
    /// # Errors
    ///
    /// A copy failed. Targets may hold anything.
    pub fn wait(self) -> Result<(), DriverError> {
        // All are waited for, also after an error: then nothing is on its way any more.
        let waited: Vec<_> = self.fences.iter().map(DriverFence::wait).collect();
        waited.into_iter().collect()
    }
}
