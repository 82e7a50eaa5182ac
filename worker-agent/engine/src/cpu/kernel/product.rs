//! Products of rows with panels of weights.

use rayon::prelude::*;

use super::vector::{self, Element, Vector};
use super::{Isa, LANES};

/// Panels that one task multiplies: they stay in the second-level cache from row to row.
const TASK_PANELS: usize = 8;
/// Rows that one task multiplies.
const TASK_ROWS: usize = 64;
/// Products with fewer multiply-adds than this run on the calling thread: waking another takes
/// longer than they do.
const SERIAL_WORK: usize = 1 << 21;

/// Rows of activations, `stride` apart.
#[derive(Clone, Copy)]
pub(in super::super) struct Rows<'a> {
    pub(in super::super) values: &'a [f32],
    pub(in super::super) stride: usize,
    pub(in super::super) count: usize,
}

/// Weights as panels of [`LANES`] outputs: for each of `depth` inputs, the lanes of a panel stand
/// together, `depth_stride` after those of the input before.
#[derive(Clone, Copy)]
pub(in super::super) struct Panels<'a, E> {
    pub(in super::super) weights: &'a [E],
    pub(in super::super) count: usize,
    pub(in super::super) stride: usize,
    pub(in super::super) depth: usize,
    pub(in super::super) depth_stride: usize,
}

/// Destination of products: rows of `LANES` values per panel, `stride` apart.
pub(in super::super) struct Out<'a> {
    pub(in super::super) values: &'a mut [f32],
    pub(in super::super) stride: usize,
    /// Whether the products are added to what stands there; otherwise they replace it.
    pub(in super::super) keep: bool,
}

/// Multiplies every row with every panel, on the calling thread.
pub(in super::super) fn multiply<E: Element>(
    isa: Isa,
    rows: Rows<'_>,
    panels: Panels<'_, E>,
    out: Out<'_>,
) {
    let job = Job::new(rows, panels, out);
    // SAFETY: `Job::new` checked the bounds, and the machine has the instructions of `isa`.
    unsafe { job.run(isa) }
}

/// Multiplies every row with every panel, on all threads where that pays.
pub(in super::super) fn multiply_parallel<E: Element>(
    isa: Isa,
    rows: Rows<'_>,
    panels: Panels<'_, E>,
    out: Out<'_>,
) {
    let work = rows.count * panels.count * LANES * panels.depth;
    let job = Job::new(rows, panels, out);
    if work < SERIAL_WORK {
        // SAFETY: as in `multiply`.
        return unsafe { job.run(isa) };
    }
    let panel_tasks = job.panels.div_ceil(TASK_PANELS);
    let row_tasks = job.rows.div_ceil(TASK_ROWS);
    (0..panel_tasks * row_tasks).into_par_iter().for_each(|task| {
        let part = job.part(task / row_tasks * TASK_PANELS, task % row_tasks * TASK_ROWS);
        // SAFETY: a part is within its job, and no two parts write the same element.
        unsafe { part.run(isa) }
    });
}

/// A product in pointers. Its parts may run on different threads, because they write different
/// elements and what they read nobody writes.
#[derive(Clone, Copy)]
struct Job<E> {
    x: *const f32,
    x_stride: usize,
    rows: usize,
    w: *const E,
    panel_stride: usize,
    depth_stride: usize,
    panels: usize,
    depth: usize,
    y: *mut f32,
    y_stride: usize,
    keep: bool,
}

// SAFETY: see `Job`: parts of one job never write what another part reads or writes.
unsafe impl<E: Element> Sync for Job<E> {}

impl<E: Element> Job<E> {
    fn new(rows: Rows<'_>, panels: Panels<'_, E>, out: Out<'_>) -> Self {
        assert!(rows.count > 0 && panels.count > 0 && panels.depth > 0, "an empty product");
        let x_end = (rows.count - 1) * rows.stride + panels.depth;
        let w_end = (panels.count - 1) * panels.stride + (panels.depth - 1) * panels.depth_stride;
        let y_end = (rows.count - 1) * out.stride + panels.count * LANES;
        assert!(x_end <= rows.values.len(), "rows end at {x_end} of {}", rows.values.len());
        let w_end = w_end + LANES;
        assert!(w_end <= panels.weights.len(), "panels end at {w_end} of {}", panels.weights.len());
        assert!(y_end <= out.values.len(), "products end at {y_end} of {}", out.values.len());
        assert!(rows.count == 1 || out.stride >= panels.count * LANES, "rows of products overlap");
        Self {
            x: rows.values.as_ptr(),
            x_stride: rows.stride,
            rows: rows.count,
            w: panels.weights.as_ptr(),
            panel_stride: panels.stride,
            depth_stride: panels.depth_stride,
            panels: panels.count,
            depth: panels.depth,
            y: out.values.as_mut_ptr(),
            y_stride: out.stride,
            keep: out.keep,
        }
    }

    /// The part of a task, from these panels and rows on, which exist.
    fn part(&self, panel: usize, row: usize) -> Self {
        // SAFETY: the first panel and row are within the bounds that `new` checked.
        let (x, w, y) = unsafe {
            (
                self.x.add(row * self.x_stride),
                self.w.add(panel * self.panel_stride),
                self.y.add(row * self.y_stride + panel * LANES),
            )
        };
        let rows = (self.rows - row).min(TASK_ROWS);
        let panels = (self.panels - panel).min(TASK_PANELS);
        Self { x, w, y, rows, panels, ..*self }
    }

    /// # Safety
    ///
    /// The machine has the instructions of `isa`, the pointers and sizes are as [`Job::new`]
    /// checked them, and nobody else touches the products meanwhile.
    unsafe fn run(&self, isa: Isa) {
        // SAFETY: passed on to the caller.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => run_avx512(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => run_avx2(self),
                Isa::Portable => run_narrow::<vector::Portable, E>(self),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw")]
unsafe fn run_avx512<E: Element>(job: &Job<E>) {
    // SAFETY: passed on to the caller.
    unsafe { run_wide::<vector::Avx512, E>(job) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<E: Element>(job: &Job<E>) {
    // SAFETY: passed on to the caller.
    unsafe { run_narrow::<vector::Avx2, E>(job) }
}

/// With 32 vector registers: up to 16 accumulators.
#[inline(always)]
unsafe fn run_wide<V: Vector, E: Element>(job: &Job<E>) {
    let mut row = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while job.rows - row >= 8 {
            strip::<V, E, 8, 2>(job, row);
            row += 8;
        }
        if job.rows - row >= 4 {
            strip::<V, E, 4, 4>(job, row);
            row += 4;
        }
        if job.rows - row >= 2 {
            strip::<V, E, 2, 8>(job, row);
            row += 2;
        }
        if job.rows > row {
            strip::<V, E, 1, 8>(job, row);
        }
    }
}

/// With 16 registers of half the width, or fewer: four accumulators, each of two registers.
#[inline(always)]
unsafe fn run_narrow<V: Vector, E: Element>(job: &Job<E>) {
    let mut row = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while job.rows - row >= 4 {
            strip::<V, E, 4, 1>(job, row);
            row += 4;
        }
        if job.rows - row >= 2 {
            strip::<V, E, 2, 2>(job, row);
            row += 2;
        }
        if job.rows > row {
            strip::<V, E, 1, 4>(job, row);
        }
    }
}

/// `R` rows from `row` on with all panels, `P` at a time.
#[inline(always)]
unsafe fn strip<V: Vector, E: Element, const R: usize, const P: usize>(job: &Job<E>, row: usize) {
    let mut panel = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        while job.panels - panel >= P {
            tile::<V, E, R, P>(job, row, panel);
            panel += P;
        }
        while panel < job.panels {
            tile::<V, E, R, 1>(job, row, panel);
            panel += 1;
        }
    }
}

/// `R` rows with `P` panels, all sums in registers.
#[inline(always)]
unsafe fn tile<V: Vector, E: Element, const R: usize, const P: usize>(
    job: &Job<E>,
    row: usize,
    panel: usize,
) {
    // SAFETY: rows and panels are within the job, and so within the bounds that `Job::new`
    // checked; passed on to the caller otherwise.
    unsafe {
        let x = job.x.add(row * job.x_stride);
        let w = job.w.add(panel * job.panel_stride);
        let y = job.y.add(row * job.y_stride + panel * LANES);
        let mut sums = [[V::zero(); P]; R];
        if job.keep {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(y.add(r * job.y_stride + p * LANES));
                }
            }
        }
        for k in 0..job.depth {
            let mut weights = [V::zero(); P];
            for (p, weights) in weights.iter_mut().enumerate() {
                *weights = E::load(w.add(p * job.panel_stride + k * job.depth_stride));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let value = *x.add(r * job.x_stride + k);
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum = sum.add_product(value, weights);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (p, sum) in sums.into_iter().enumerate() {
                sum.store(y.add(r * job.y_stride + p * LANES));
            }
        }
    }
}
