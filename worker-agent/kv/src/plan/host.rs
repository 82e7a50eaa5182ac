//! Plans between an engine's memory and the arena, with plain copies.

use super::{CopyPlan, CopyRun, PlanExecutor};
use crate::arena::Arena;

/// Copies from an engine's memory into an arena.
#[derive(Debug)]
pub struct CopyIn<'m> {
    /// The engine's region.
    pub from: &'m [u8],
    /// The arena, as a region of its slots' strides. The caller is the one writer of the slots.
    pub to: &'m Arena,
}

/// Copies from an arena into an engine's memory.
#[derive(Debug)]
pub struct CopyOut<'m> {
    /// The arena, as a region of its slots' strides.
    pub from: &'m Arena,
    /// The engine's region.
    pub to: &'m mut [u8],
}

impl PlanExecutor for CopyIn<'_> {
    fn run(&mut self, plan: &CopyPlan) {
        for &CopyRun { from, to, bytes } in plan.runs() {
            self.to.write_at(to as usize, &self.from[from as usize..][..bytes as usize]);
        }
    }
}

impl PlanExecutor for CopyOut<'_> {
    fn run(&mut self, plan: &CopyPlan) {
        for &CopyRun { from, to, bytes } in plan.runs() {
            self.from.read_at(from as usize, &mut self.to[to as usize..][..bytes as usize]);
        }
    }
}
