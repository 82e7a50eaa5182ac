//! One connection, from HELLO to its end.

use super::copier::DeviceCopier;
use super::decode::MessageError;
use super::device::{DeviceDesk, ExportedDevice};
use super::filler::{Credit, Filler};
use super::presence::Presence;
use super::session::{EngineView, SchedulerSession, ShimFault};
use super::settings::SchedulerReport;
use super::shared::{ConnectorState, EngineLink, Refused};
use super::socket::{EngineProcess, Received, wait};
use super::uses::AskUses;
use super::wire::{
    AgentMessage, AskProgress, DeviceExport, Hello, MESSAGE_BYTES_MAX, PROTOCOL, RefusalCode,
    ShimMessage, ShimPulse, ShimRole, Welcome,
};
use super::words::ToldWords;
use crate::arena::Arena;
use crate::cache::TieredCache;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for HELLO. Afterwards silence is fine: an engine that is stopped holds its slots
/// whether it is connected or not.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks whether an engine's workers have come.
const WORKERS_PAUSE: Duration = Duration::from_millis(20);

/// Serves a connection to its end.
pub(super) fn serve(shared: &Arc<ConnectorState>, link: &EngineLink) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let guest = introduce(link, &mut buffer)
        .and_then(|(process, hello)| Guest::welcome(shared, link, hello, process));
    match guest {
        Ok(guest) => guest.stay(&mut buffer),
        Err(Stranger::Refused((reason, text))) => {
            tracing::warn!(?reason, text, "engine refused");
            link.outbox.send(&AgentMessage::Refused { reason, text });
        }
        Err(Stranger::Ignored(reason)) => {
            tracing::warn!(%reason, "connection of a stranger closed");
        }
    }
}

/// A process that does not get in.
enum Stranger {
    /// The shim is told why.
    Refused(Refused),
    /// The shim is told nothing.
    Ignored(String),
}

/// The process at the other end.
fn introduce(link: &EngineLink, buffer: &mut [u8]) -> Result<(EngineProcess, Hello), Stranger> {
    let connection = link.outbox.connection();
    let process = match connection.peer() {
        Ok(Some(process)) => process,
        Ok(None) => return Err(Stranger::Ignored("a process of another user".into())),
        // Without sight of the process, nobody would know when its slots are free.
        Err(error) => {
            let text = format!("the agent does not see the engine's process: {error}");
            return Err(Stranger::Refused((RefusalCode::NoCache, text)));
        }
    };
    let ignored = |error: io::Error| Stranger::Ignored(error.to_string());
    let mut ready = [PollFd::new(connection, PollFlags::IN)];
    if !wait(&mut ready, Some(HELLO_TIMEOUT)).map_err(ignored)? {
        return Err(Stranger::Ignored(format!("no HELLO in {HELLO_TIMEOUT:?}")));
    }
    let Received::Packet(packet) = connection.receive(buffer).map_err(ignored)? else {
        return Err(Stranger::Ignored("closed before HELLO".into()));
    };
    match ShimMessage::decode(packet) {
        Ok(ShimMessage::Hello(hello)) => Ok((process, hello)),
        Ok(_) => Err(Stranger::Ignored("the first message is not HELLO".into())),
        Err(MessageError::Protocol(protocol)) => {
            let text = format!("the agent speaks protocol {PROTOCOL}, not {protocol}");
            Err(Stranger::Refused((RefusalCode::Protocol, text)))
        }
        Err(error) => Err(Stranger::Ignored(error.to_string())),
    }
}

impl From<Refused> for Stranger {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Waits until all workers of a scheduler's engine have mapped the arena, and no copy runs for one
/// that is dead.
fn await_workers(
    shared: &ConnectorState,
    link: &EngineLink,
    hello: &Hello,
) -> Result<(), Stranger> {
    while !shared.has_workers(hello) || shared.copies_for_the_dead(&hello.engine) {
        // The shim says nothing before WELCOME: whatever can be read is an end.
        let mut end = [PollFd::new(link.outbox.connection(), PollFlags::IN)];
        if !matches!(wait(&mut end, Some(WORKERS_PAUSE)), Ok(false)) {
            return Err(Stranger::Ignored("gone before its workers came".into()));
        }
    }
    Ok(())
}

/// A process of an engine that may use the arena.
struct Guest<'a> {
    shared: &'a Arc<ConnectorState>,
    link: &'a EngineLink,
    hello: Hello,
    process: Arc<EngineProcess>,
    arena: Arc<Arena>,
    /// Of a worker that exported its memory.
    desk: Option<DeviceDesk>,
    /// Of a scheduler.
    session: Option<SchedulerSession>,
}

/// Why a conversation ended.
enum Ending {
    /// The engine said that nothing of it touches the arena any more.
    Bye,
    /// The connection was closed.
    Closed,
    /// The shim sent what is no message, or out of place.
    Faulty(String),
}

impl<'a> Guest<'a> {
    fn welcome(
        shared: &'a Arc<ConnectorState>,
        link: &'a EngineLink,
        hello: Hello,
        process: EngineProcess,
    ) -> Result<Self, Stranger> {
        if shared.links.lock().len() > shared.settings.connections_max {
            let text = format!("more than {} connections", shared.settings.connections_max);
            return Err((RefusalCode::Crowded, text).into());
        }
        let cache = shared.cache(&hello)?;
        if hello.role == ShimRole::Scheduler {
            await_workers(shared, link, &hello)?;
        }
        let process = Arc::new(process);
        // Before WELCOME: from then on the process may touch the arena.
        if !shared.join(&hello, &process, link.number) {
            return Err((RefusalCode::Crowded, "too many engines".to_owned()).into());
        }
        let arena = cache.shared_arena();
        let credit = Credit::new(arena.slots(), shared.settings.credit_max);
        let welcome = Welcome {
            boot: shared.boot,
            slots: arena.slots(),
            credit: credit.limit as u32,
            stride: arena.stride() as u64,
        };
        let packet = AgentMessage::Welcome(welcome).encode();
        // A socket that is full or closed already is seen when the conversation begins.
        if !matches!(link.outbox.connection().send(&packet, Some(arena.file())), Ok(true)) {
            link.outbox.connection().shut();
        }
        let session = match hello.role {
            ShimRole::Worker => None,
            ShimRole::Scheduler => {
                let session = session(shared, link, &hello, &cache);
                Some(session.map_err(|error| (RefusalCode::NoCache, error.to_string()))?)
            }
        };
        tracing::info!(
            engine = hello.engine,
            role = ?hello.role,
            rank = hello.rank,
            pid = process.pid(),
            "engine connected"
        );
        Ok(Self { shared, link, hello, process, arena, desk: None, session })
    }

    /// Talks until an end, then frees what the engine held or sets it apart.
    fn stay(mut self, buffer: &mut [u8]) {
        let ending = self.converse(buffer);
        let engine = self.hello.engine.as_str();
        if let Ending::Faulty(reason) = &ending {
            tracing::warn!(engine, reason, "engine disconnected");
        }
        // BYE promises that no copy runs any more.
        let has_copied = self.desk.take().is_some();
        self.link.device.lock().take();
        if has_copied || matches!(ending, Ending::Bye) {
            self.link.outbox.send(&AgentMessage::Bye);
            // Slots of a dead engine may have waited for these copies.
            self.shared.wake();
        }
        self.link.outbox.connection().shut();
        tracing::info!(engine, pid = self.process.pid(), "connection of an engine ended");
        let Some(SchedulerSession { client, filler, .. }) = self.session else { return };
        // The filler has the client as well.
        drop(filler);
        let Some(client) = Arc::into_inner(client) else { return };
        match ending {
            Ending::Bye => drop(client),
            _ => self.shared.lose(&self.hello, &self.process, self.link, client.lose()),
        }
    }

    fn converse(&mut self, buffer: &mut [u8]) -> Ending {
        let (link, mut is_waiting) = (self.link, false);
        let connection = link.outbox.connection();
        let mut file = None;
        loop {
            let heard = match connection.receive_with(buffer, &mut file) {
                Ok(Received::Packet(packet)) => self.hear(packet, file.take()),
                Ok(Received::End) => return Ending::Closed,
                Ok(Received::Nothing) => {
                    let room = if is_waiting { PollFlags::OUT } else { PollFlags::empty() };
                    let waiting = link.outbox.waiting();
                    let mut ready = [
                        PollFd::new(connection, PollFlags::IN | room),
                        PollFd::new(&waiting, PollFlags::IN),
                    ];
                    if let Err(error) = wait(&mut ready, None) {
                        return Ending::Faulty(error.to_string());
                    }
                    let has_room = ready[0].revents().contains(PollFlags::OUT);
                    if has_room || !ready[1].revents().is_empty() {
                        is_waiting = link.outbox.flush();
                    }
                    continue;
                }
                Err(error) => Err(error.to_string()),
            };
            match heard {
                Ok(false) => {}
                Ok(true) => return Ending::Bye,
                Err(reason) => return Ending::Faulty(reason),
            }
        }
    }

    /// Does what a message says; whether it is the last.
    fn hear(&mut self, packet: &[u8], file: Option<OwnedFd>) -> Result<bool, String> {
        match ShimMessage::decode(packet).map_err(|error| error.to_string())? {
            ShimMessage::Bye => return Ok(true),
            ShimMessage::Pulse(pulse) => self.pulse(pulse).map_err(|fault| fault.to_string())?,
            // Whatever a worker failed to copy is in one of these slots.
            ShimMessage::Filled(_) if !self.shared.has_workers(&self.hello) => {
                return Err("a worker of the engine has gone".into());
            }
            ShimMessage::Export(export) => self.export(&export, file)?,
            ShimMessage::Copy(order) => {
                let desk = self.desk.as_ref();
                if !desk.is_some_and(|desk| desk.order(order)) {
                    return Err("a copy without exported memory, or too many".into());
                }
            }
            message => match &mut self.session {
                Some(session) => session.on(message).map_err(|fault| fault.to_string())?,
                None => return Err(ShimFault::Misplaced("a scheduler's message").to_string()),
            },
        }
        Ok(false)
    }

    /// Maps a worker's device memory, if this agent can.
    fn export(&mut self, export: &DeviceExport, file: Option<OwnedFd>) -> Result<(), String> {
        if self.session.is_some() || self.desk.is_some() {
            return Err("EXPORT of a scheduler, or again".into());
        }
        let result = match &self.shared.settings.copier {
            Some(copier) => self.open_desk(copier, export, file),
            None => Err("this agent copies for no engine".to_owned()),
        };
        let (engine, rank) = (&self.hello.engine, self.hello.rank);
        match &result {
            Ok(()) => {
                tracing::info!(engine, rank, pages = export.pages.count, "copies for a worker")
            }
            Err(reason) => tracing::info!(engine, rank, reason, "a worker copies by itself"),
        }
        self.link.outbox.send(&AgentMessage::Exported(result));
        Ok(())
    }

    fn open_desk(
        &mut self,
        copier: &Arc<dyn DeviceCopier>,
        export: &DeviceExport,
        file: Option<OwnedFd>,
    ) -> Result<(), String> {
        let memory = copier.open(export, file, &self.arena).map_err(|refusal| refusal.0)?;
        let (shared, rank) = (Arc::downgrade(self.shared), self.hello.rank);
        let find = move |engine: &str| shared.upgrade()?.device(engine, rank);
        let (copier, outbox) = (Arc::clone(copier), Arc::clone(&self.link.outbox));
        let desk = DeviceDesk::start(copier, memory, outbox, Box::new(find));
        self.desk = Some(desk.map_err(|error| error.to_string())?);
        let (engine, process) = (self.hello.engine.clone(), Arc::clone(&self.process));
        *self.link.device.lock() = Some(ExportedDevice { engine, rank, process, memory });
        Ok(())
    }

    fn pulse(&mut self, pulse: ShimPulse) -> Result<(), ShimFault> {
        if pulse.boot != self.shared.boot {
            return Err(ShimFault::Boot);
        }
        match &mut self.session {
            Some(session) => session.pulse(&pulse),
            None => *self.link.maps.lock() = Some(self.hello.engine.clone()),
        }
        self.link.pulse(pulse);
        self.link.outbox.send(&AgentMessage::Pulse { boot: self.shared.boot });
        Ok(())
    }
}

/// Begins a conversation with a scheduler; the first grant goes out.
fn session(
    shared: &ConnectorState,
    link: &EngineLink,
    hello: &Hello,
    cache: &Arc<TieredCache>,
) -> io::Result<SchedulerSession> {
    let outbox = Arc::clone(&link.outbox);
    let taker = Arc::clone(&shared.settings.uses);
    let uses = Arc::new(AskUses::new(taker, cache.form().block_bytes));
    let used = Arc::clone(&uses);
    let client = cache.connect(Arc::new(move |progress: crate::cache::Progress| {
        let request = progress.request.0;
        let (pending, slots) = (progress.pending as u32, progress.slots);
        // Before the engine hears of it, whose first token ends the counting.
        used.ready(request, slots.len());
        outbox.ready(AskProgress { request, pending, slots });
    }));
    let client = Arc::new(client);
    let credit = Credit::new(cache.arena().slots(), shared.settings.credit_max);
    let keys = Arc::clone(&shared.settings.keys);
    let filler = Filler::start(Arc::clone(&client), Arc::clone(&link.outbox), keys, credit)?;
    let (engine, pulse) = (hello.engine.clone(), ShimPulse::default());
    *link.seen.lock() = Some(SchedulerReport { engine, pulse });
    Ok(SchedulerSession {
        client,
        outbox: Arc::clone(&link.outbox),
        filler,
        presence: Presence::begin(Arc::clone(&shared.settings.watch), hello.block_tokens),
        told: ToldWords::default(),
        hints: Arc::clone(&shared.settings.hints),
        uses,
        slots: cache.arena().slots(),
        engine: EngineView::new(hello),
    })
}
