//! A copier that counts the bytes that it copies.

use super::copier::{CopyEnd, CopyRefusal, DeviceCopier, DeviceMemoryId};
use super::wire::DeviceExport;
use crate::arena::Arena;
use crate::metrics::{DeviceWay, KvMetrics};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Copies by another copier, and counts the bytes of copies that went well.
pub struct CountedCopier {
    copier: Arc<dyn DeviceCopier>,
    metrics: KvMetrics,
    /// Bytes of a page of each mapped memory.
    page_bytes: Mutex<FxHashMap<DeviceMemoryId, u64>>,
}

impl CountedCopier {
    /// Counts what this copier copies.
    pub fn new(copier: Arc<dyn DeviceCopier>, metrics: KvMetrics) -> Self {
        Self { copier, metrics, page_bytes: Mutex::default() }
    }
}

impl DeviceCopier for CountedCopier {
    fn open(
        &self,
        export: &DeviceExport,
        file: Option<OwnedFd>,
        arena: &Arc<Arena>,
    ) -> Result<DeviceMemoryId, CopyRefusal> {
        let memory = self.copier.open(export, file, arena)?;
        self.page_bytes.lock().insert(memory, export.pages.page_bytes());
        Ok(memory)
    }

    fn copy(&self, from: CopyEnd, to: CopyEnd, pairs: &[(u32, u32)]) -> Result<(), CopyRefusal> {
        self.copier.copy(from, to, pairs)?;
        let (way, memory) = match (from, to) {
            (CopyEnd::Pages(_), CopyEnd::Pages(memory)) => (DeviceWay::pass, memory),
            (CopyEnd::Pages(memory), CopyEnd::Slots) => (DeviceWay::store, memory),
            (CopyEnd::Slots, CopyEnd::Pages(memory)) => (DeviceWay::load, memory),
            (CopyEnd::Slots, CopyEnd::Slots) => return Ok(()),
        };
        let page_bytes = self.page_bytes.lock().get(&memory).copied().unwrap_or(0);
        self.metrics.copied(way, page_bytes * pairs.len() as u64);
        Ok(())
    }

    fn close(&self, memory: DeviceMemoryId) {
        // Before the number is another's.
        self.page_bytes.lock().remove(&memory);
        self.copier.close(memory);
    }
}
