//! One connection, from HELLO to its end.

use super::decode::MessageError;
use super::filler::{Credit, Filler};
use super::presence::Presence;
use super::session::{EngineView, SchedulerSession, ShimFault};
use super::settings::SchedulerReport;
use super::shared::{ConnectorState, EngineLink, Refused};
use super::socket::{EngineProcess, Received, wait};
use super::wire::{
    AgentMessage, AskProgress, Hello, MESSAGE_BYTES_MAX, PROTOCOL, RefusalCode, ShimMessage,
    ShimPulse, ShimRole, Welcome,
};
use super::words::ToldWords;
use crate::cache::TieredCache;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for HELLO. Afterwards silence is fine: an engine that is stopped holds its slots
/// whether it is connected or not.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks whether an engine's workers have come.
const WORKERS_PAUSE: Duration = Duration::from_millis(20);

/// Serves a connection to its end.
pub(super) fn serve(shared: &ConnectorState, link: &EngineLink) {
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

/// Waits until all workers of a scheduler's engine have mapped the arena.
fn await_workers(
    shared: &ConnectorState,
    link: &EngineLink,
    hello: &Hello,
) -> Result<(), Stranger> {
    while !shared.has_workers(hello) {
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
    shared: &'a ConnectorState,
    link: &'a EngineLink,
    hello: Hello,
    process: Arc<EngineProcess>,
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
        shared: &'a ConnectorState,
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
        let arena = cache.arena();
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
        Ok(Self { shared, link, hello, process, session })
    }

    /// Talks until an end, then frees what the engine held or sets it apart.
    fn stay(mut self, buffer: &mut [u8]) {
        let ending = self.converse(buffer);
        let engine = self.hello.engine.as_str();
        match &ending {
            Ending::Bye => self.link.outbox.send(&AgentMessage::Bye),
            Ending::Closed => {}
            Ending::Faulty(reason) => tracing::warn!(engine, reason, "engine disconnected"),
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
        loop {
            let heard = match connection.receive(buffer) {
                Ok(Received::Packet(packet)) => self.hear(packet),
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
    fn hear(&mut self, packet: &[u8]) -> Result<bool, String> {
        match ShimMessage::decode(packet).map_err(|error| error.to_string())? {
            ShimMessage::Bye => return Ok(true),
            ShimMessage::Pulse(pulse) => self.pulse(pulse).map_err(|fault| fault.to_string())?,
            // Whatever a worker failed to copy is in one of these slots.
            ShimMessage::Filled(_) if !self.shared.has_workers(&self.hello) => {
                return Err("a worker of the engine has gone".into());
            }
            message => match &mut self.session {
                Some(session) => session.on(message).map_err(|fault| fault.to_string())?,
                None => return Err(ShimFault::Misplaced("a scheduler's message").to_string()),
            },
        }
        Ok(false)
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
    let client = cache.connect(Arc::new(move |progress: crate::cache::Progress| {
        let request = progress.request.0;
        let (pending, slots) = (progress.pending as u32, progress.slots);
        outbox.ready(AskProgress { request, pending, slots });
    }));
    let client = Arc::new(client);
    let credit = Credit::new(cache.arena().slots(), shared.settings.credit_max);
    let filler = Filler::start(Arc::clone(&client), Arc::clone(&link.outbox), credit)?;
    let (engine, pulse) = (hello.engine.clone(), ShimPulse::default());
    *link.seen.lock() = Some(SchedulerReport { engine, pulse });
    Ok(SchedulerSession {
        client,
        outbox: Arc::clone(&link.outbox),
        filler,
        presence: Presence::begin(Arc::clone(&shared.settings.watch), hello.block_tokens),
        told: ToldWords::default(),
        hints: Arc::clone(&shared.settings.hints),
        slots: cache.arena().slots(),
        engine: EngineView::new(hello),
    })
}
