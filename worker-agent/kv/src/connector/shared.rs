//! State that the threads of a server share.

use super::copier::DeviceMemoryId;
use super::device::ExportedDevice;
use super::form::objection;
use super::outbox::EngineOutbox;
use super::quarantine::{Quarantine, SchedulerId};
use super::settings::{ConnectorReport, ConnectorSettings, SchedulerReport};
use super::socket::EngineProcess;
use super::wire::{Hello, RefusalCode, ShimPulse, ShimRole};
use crate::BlockForm;
use crate::cache::{LostClient, TieredCache};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// State that the threads of a server share. No lock is taken within another.
pub(super) struct ConnectorState {
    pub(super) settings: ConnectorSettings,
    /// Random, one for each start.
    pub(super) boot: [u8; 16],
    pub(super) links: Mutex<FxHashMap<u64, Arc<EngineLink>>>,
    pub(super) quarantine: Mutex<Quarantine<LostClient>>,
    pub(super) is_stopping: AtomicBool,
    /// Wakes the thread that accepts.
    pub(super) wake: OwnedFd,
    pub(super) room: Mutex<Option<CacheRoom>>,
}

/// The cache, once it is open.
pub(super) struct CacheRoom {
    form: BlockForm,
    /// The form in the words of the engine that came first.
    words: String,
    cache: Arc<TieredCache>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct EngineLink {
    /// One for each connection, ascending.
    pub(super) number: u64,
    pub(super) outbox: Arc<EngineOutbox>,
    /// Set when a scheduler has said HELLO.
    pub(super) seen: Mutex<Option<SchedulerReport>>,
    /// Id of the engine, when a worker of it has mapped the arena.
    pub(super) maps: Mutex<Option<String>>,
    /// Memory that the worker exported and the agent has mapped.
    pub(super) device: Mutex<Option<ExportedDevice>>,
}

/// Why an engine is refused, for programs and people.
pub(super) type Refused = (RefusalCode, String);

impl ConnectorState {
    /// The cache for an engine's KV.
    pub(super) fn cache(&self, hello: &Hello) -> Result<Arc<TieredCache>, Refused> {
        let bytes = usize::try_from(hello.row_bytes)
            .map_err(|_| (RefusalCode::NoCache, format!("rows of {} bytes", hello.row_bytes)))?;
        if let Some(objection) = objection(&hello.form) {
            return Err((RefusalCode::Form, objection.into()));
        }
        let form = BlockForm { fingerprint: hello.fingerprint, block_bytes: bytes };
        // The lock is held while the cache opens: it is opened once, and others wait for it.
        let mut room = self.room.lock();
        match &*room {
            Some(room) if room.form == form => return Ok(Arc::clone(&room.cache)),
            Some(room) => return Err((RefusalCode::Form, room.other_form(hello))),
            None => {}
        }
        let cache = (self.settings.open)(form).map_err(|reason| (RefusalCode::NoCache, reason))?;
        let words = hello.form.clone();
        tracing::info!(form = words, block_bytes = bytes, "cache opened for the KV of an engine");
        *room = Some(CacheRoom { form, words, cache: Arc::clone(&cache) });
        Ok(cache)
    }

    /// Whether all workers of a scheduler's engine have mapped the arena and are still there.
    pub(super) fn has_workers(&self, hello: &Hello) -> bool {
        let links: Vec<_> = self.links.lock().values().cloned().collect();
        let maps = |link: &&Arc<EngineLink>| {
            link.maps.lock().as_ref() == Some(&hello.engine) && link.outbox.connection().is_open()
        };
        links.iter().filter(maps).count() >= hello.world as usize
    }

    /// Memory of devices that the agent has mapped.
    fn devices(&self) -> Vec<ExportedDevice> {
        let links: Vec<_> = self.links.lock().values().cloned().collect();
        links.iter().filter_map(|link| link.device.lock().clone()).collect()
    }

    /// The memory that a worker of this rank exported.
    pub(super) fn device(&self, engine: &str, rank: u32) -> Option<DeviceMemoryId> {
        let devices = self.devices();
        let device = devices.iter().find(|device| device.engine == engine && device.rank == rank);
        device.map(|device| device.memory)
    }

    /// Whether the agent may still copy for a dead worker of this engine, whose orders nobody waits
    /// for.
    pub(super) fn copies_for_the_dead(&self, engine: &str) -> bool {
        let is_dead = |of: &ExportedDevice| of.engine == engine && of.process.is_dead();
        self.devices().iter().any(is_dead)
    }

    /// Makes a process known, before it may touch the arena. What its promise frees is freed.
    pub(super) fn join(&self, hello: &Hello, process: &Arc<EngineProcess>, number: u64) -> bool {
        let mut quarantine = self.quarantine.lock();
        if !quarantine.join(&hello.engine, Arc::clone(process)) {
            return false;
        }
        let mut free = Vec::new();
        if hello.role == ShimRole::Scheduler {
            free = quarantine.promise(&hello.engine, scheduler(hello, process), number);
        }
        drop(quarantine);
        free.into_iter().for_each(LostClient::bury);
        true
    }

    /// A scheduler's connection is lost: what it held waits for the end of its engine.
    pub(super) fn lose(
        &self,
        hello: &Hello,
        process: &EngineProcess,
        link: &EngineLink,
        held: LostClient,
    ) {
        let by = scheduler(hello, process);
        let free = self.quarantine.lock().lose(&hello.engine, by, link.number, held);
        free.into_iter().for_each(LostClient::bury);
        self.wake();
    }

    /// Frees what waited for engines that are dead.
    pub(super) fn sweep(&self) {
        // An order of a dead worker may still wait in its socket.
        let devices = self.devices();
        let is_busy = |engine: &str| devices.iter().any(|device| device.engine == engine);
        let free = self.quarantine.lock().sweep(is_busy);
        free.into_iter().for_each(LostClient::bury);
    }

    /// Wakes the thread that accepts.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn report(&self) -> ConnectorReport {
        let quarantined = self.quarantine.lock().held();
        let links: Vec<_> = self.links.lock().values().cloned().collect();
        let schedulers = links.iter().filter_map(|link| link.seen.lock().clone()).collect();
        ConnectorReport { connections: links.len(), quarantined, schedulers }
    }
}

impl CacheRoom {
    fn other_form(&self, hello: &Hello) -> String {
        let digest = |fingerprint: &[u8; 32]| -> String {
            fingerprint[..8].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        format!(
            "the agent keeps KV of the form {:?} (fingerprint {}, {} bytes a block); engine {:?} has \
             the form {:?} (fingerprint {}, {} bytes a block)",
            self.words,
            digest(&self.form.fingerprint),
            self.form.block_bytes,
            hello.engine,
            hello.form,
            digest(&hello.fingerprint),
            hello.row_bytes,
        )
    }
}

impl EngineLink {
    pub(super) fn pulse(&self, pulse: ShimPulse) {
        if let Some(seen) = &mut *self.seen.lock() {
            seen.pulse = pulse;
        }
    }
}

fn scheduler(hello: &Hello, process: &EngineProcess) -> SchedulerId {
    SchedulerId { pid: process.pid(), incarnation: hello.incarnation }
}
