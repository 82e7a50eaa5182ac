//! Division of work among threads.

use rayon::prelude::*;

/// Rows fewer than this are not worth waking a thread for.
const SERIAL_ROWS: usize = 32;
/// Rows of one task.
const TASK_ROWS: usize = 16;

/// Does the same to every row of `width` values, given its number.
pub(super) fn for_rows(values: &mut [f32], width: usize, row: impl Fn(usize, &mut [f32]) + Sync) {
    if values.len() < SERIAL_ROWS * width {
        values.chunks_exact_mut(width).enumerate().for_each(|(i, values)| row(i, values));
        return;
    }
    values.par_chunks_mut(TASK_ROWS * width).enumerate().for_each(|(task, rows)| {
        for (i, values) in rows.chunks_exact_mut(width).enumerate() {
            row(task * TASK_ROWS + i, values);
        }
    });
}
