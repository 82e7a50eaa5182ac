//! The kernel that copies pages between two layouts, 16 bytes at a time.
//!
//! Its source is `kernels/pages.cu`. The PTX beside it was made from the source by
//! `kernels/build.py`; a test compares both.

use crate::fold::{FoldedLoop, FoldedPage, PagePair};
use crate::layout::{KvLayout, LayoutError};
use std::ffi::CStr;

/// The kernel for devices from compute capability 8.0 on.
pub const PTX: &str = include_str!("../kernels/pages.ptx");

/// Name of the kernel.
pub const NAME: &CStr = c"stator_kv_pages";

/// Most pages of one call: their numbers travel among the kernel's parameters.
pub const PAIRS_MAX: usize = 256;

/// Bytes that a thread copies at a time.
pub const UNIT: usize = 16;

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Units that a thread copies, about.
const UNITS_PER_THREAD: usize = 4;

/// A kernel for pages of two layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageKernel {
    page: FoldedPage,
    from: KvLayout,
    to: KvLayout,
}

/// Parameters of a call. The layout in memory is that of `struct Pages` in the kernel's source.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct KernelCall {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) from_page: u64,
    pub(crate) to_page: u64,
    pub(crate) from_step: [u64; 3],
    pub(crate) to_step: [u64; 3],
    pub(crate) count: [u32; 3],
    pub(crate) units: u32,
    pub(crate) pairs: [[u32; 2]; PAIRS_MAX],
}

impl PageKernel {
    /// A kernel that copies pages of `from` to pages of `to`; `None` if the pieces of the pages are
    /// no multiples of 16 bytes.
    ///
    /// # Errors
    ///
    /// The pages have other sizes.
    pub fn new(from: &KvLayout, to: &KvLayout) -> Result<Option<Self>, LayoutError> {
        let page = FoldedPage::new(from, to)?;
        let steps = page.loops.iter().flat_map(|of| [of.from, of.to]);
        let mut sizes = steps.chain([page.run_bytes, from.first(), to.first()]);
        let pages = [from.strides().page, to.strides().page];
        let fits = sizes.all(|size| size.is_multiple_of(UNIT))
            && pages.iter().all(|stride| stride.is_multiple_of(UNIT))
            && u32::try_from(from.shape().page_bytes() / UNIT).is_ok();
        Ok(fits.then_some(Self { page, from: *from, to: *to }))
    }

    /// End of the last byte that the kernel reads, and of the last that it writes.
    pub fn ends(&self) -> (usize, usize) {
        (self.from.end(), self.to.end())
    }

    /// Layouts of what the kernel reads and writes.
    #[cfg(test)]
    pub(crate) fn layouts(&self) -> (&KvLayout, &KvLayout) {
        (&self.from, &self.to)
    }

    /// Parameters for pages of memory at two addresses.
    ///
    /// # Errors
    ///
    /// There is no such page.
    ///
    /// # Panics
    ///
    /// There are more than [`PAIRS_MAX`] pairs.
    pub(crate) fn call(
        &self,
        from: u64,
        to: u64,
        pairs: &[PagePair],
    ) -> Result<KernelCall, LayoutError> {
        let mut call = KernelCall {
            from: from + self.from.first() as u64,
            to: to + self.to.first() as u64,
            from_page: self.from.strides().page as u64,
            to_page: self.to.strides().page as u64,
            from_step: [0; 3],
            to_step: [0; 3],
            count: [1; 3],
            units: (self.page.run_bytes / UNIT) as u32,
            pairs: [[0; 2]; PAIRS_MAX],
        };
        for (at, FoldedLoop { count, from, to }) in self.page.loops.iter().copied().enumerate() {
            (call.count[at], call.from_step[at], call.to_step[at]) =
                (count, from as u64, to as u64);
        }
        for (at, pair) in pairs.iter().enumerate() {
            self.from.page(pair.from)?;
            self.to.page(pair.to)?;
            call.pairs[at] = [pair.from, pair.to];
        }
        Ok(call)
    }

    /// Blocks of threads for each page.
    pub fn blocks(&self) -> u32 {
        let units = self.from.shape().page_bytes() / UNIT;
        units.div_ceil(THREADS as usize * UNITS_PER_THREAD).max(1) as u32
    }
}
