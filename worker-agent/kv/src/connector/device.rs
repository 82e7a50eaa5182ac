//! The device memory of a worker, and the thread that copies for it.

use super::copier::{CopyEnd, CopyRefusal, DeviceCopier, DeviceMemoryId};
use super::outbox::EngineOutbox;
use super::socket::EngineProcess;
use super::wire::device::COPIES_MAX;
use super::wire::{AgentMessage, CopyOrder, CopyOrderWay};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Device memory that a connection's worker exported.
#[derive(Clone, Debug)]
pub(super) struct ExportedDevice {
    pub(super) engine: String,
    pub(super) rank: u32,
    pub(super) process: Arc<EngineProcess>,
    pub(super) memory: DeviceMemoryId,
}

/// Finds the memory that another engine's worker of the same rank exported.
pub(super) type DeviceFinder = dyn Fn(&str) -> Option<DeviceMemoryId> + Send + Sync;

/// Mapped memory of a worker. Orders are carried out one after the other: loads first, because
/// requests wait for them. Dropping it carries out what has begun, drops the rest and unmaps.
pub(super) struct DeviceDesk {
    copier: Arc<dyn DeviceCopier>,
    memory: DeviceMemoryId,
    work: Arc<DeskWork>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct DeskWork {
    state: Mutex<DeskState>,
    changed: Condvar,
}

#[derive(Default)]
struct DeskState {
    loads: VecDeque<CopyOrder>,
    others: VecDeque<CopyOrder>,
    /// Orders that are not answered.
    open: usize,
    end: bool,
}

impl DeviceDesk {
    /// Starts the thread.
    pub(super) fn start(
        copier: Arc<dyn DeviceCopier>,
        memory: DeviceMemoryId,
        outbox: Arc<EngineOutbox>,
        find: Box<DeviceFinder>,
    ) -> io::Result<Self> {
        // Dropping it unmaps the memory, also where there is no thread.
        let mut desk = Self { copier, memory, work: Arc::default(), thread: None };
        let (copier, work) = (Arc::clone(&desk.copier), Arc::clone(&desk.work));
        let run = move || {
            while let Some(order) = work.next() {
                let result = carry_out(&*copier, memory, &order, &find);
                let result = result.map_err(|refusal| refusal.0);
                if let Err(reason) = &result {
                    tracing::warn!(reason, "copies for an engine failed");
                }
                // Before the answer: the worker may order again as soon as it has it.
                work.state.lock().open -= 1;
                outbox.send(&AgentMessage::Copied { number: order.number, result });
            }
        };
        desk.thread = Some(std::thread::Builder::new().name("kv-copies".into()).spawn(run)?);
        Ok(desk)
    }

    /// Carries an order out, soon. False where too many are open.
    pub(super) fn order(&self, order: CopyOrder) -> bool {
        let mut state = self.work.state.lock();
        if state.open == COPIES_MAX {
            return false;
        }
        state.open += 1;
        match order.way {
            CopyOrderWay::Load => state.loads.push_back(order),
            CopyOrderWay::Store | CopyOrderWay::Pass(_) => state.others.push_back(order),
        }
        self.work.changed.notify_one();
        true
    }
}

impl DeskWork {
    /// The next order; none at the end.
    fn next(&self) -> Option<CopyOrder> {
        let mut state = self.state.lock();
        loop {
            if state.end {
                return None;
            }
            let order = state.loads.pop_front();
            if let Some(order) = order.or_else(|| state.others.pop_front()) {
                return Some(order);
            }
            self.changed.wait(&mut state);
        }
    }
}

impl Drop for DeviceDesk {
    fn drop(&mut self) {
        self.work.state.lock().end = true;
        self.work.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.copier.close(self.memory);
    }
}

fn carry_out(
    copier: &dyn DeviceCopier,
    memory: DeviceMemoryId,
    order: &CopyOrder,
    find: &DeviceFinder,
) -> Result<(), CopyRefusal> {
    let own = CopyEnd::Pages(memory);
    let (from, to) = match &order.way {
        CopyOrderWay::Store => (own, CopyEnd::Slots),
        CopyOrderWay::Load => (CopyEnd::Slots, own),
        CopyOrderWay::Pass(engine) => {
            let from = find(engine).ok_or_else(|| {
                CopyRefusal(format!("engine {engine:?} has exported no memory of this rank"))
            })?;
            (CopyEnd::Pages(from), own)
        }
    };
    copier.copy(from, to, &order.pairs)
}
