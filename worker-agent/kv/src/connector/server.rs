//! Accepts engines, and frees what they held when they are gone.

use super::outbox::EngineOutbox;
use super::serve::serve;
use super::settings::{ConnectorReport, ConnectorSettings};
use super::shared::{ConnectorState, EngineLink};
use super::socket::{PacketListener, PacketSocket, wait};
use super::wire::AgentMessage;
use crate::turns;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves engines until dropped. A drop tells the engines, ends the connections and joins all
/// threads.
pub struct ConnectorServer {
    shared: Arc<ConnectorState>,
    thread: Option<JoinHandle<()>>,
}

impl ConnectorServer {
    /// Listens at the socket.
    ///
    /// # Errors
    ///
    /// Another process listens there, or the system has no socket or thread to give.
    pub fn start(settings: ConnectorSettings) -> io::Result<Self> {
        let listener = PacketListener::bind(&settings.socket)?;
        let shared = Arc::new(ConnectorState {
            settings,
            boot: rand::random(),
            links: Default::default(),
            quarantine: Default::default(),
            is_stopping: Default::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            room: Default::default(),
        });
        let run = {
            let shared = Arc::clone(&shared);
            move || run(&shared, listener)
        };
        let thread = std::thread::Builder::new().name("kv-connector".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Report of the present connections.
    pub fn report(&self) -> ConnectorReport {
        self.shared.report()
    }
}

impl fmt::Debug for ConnectorServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectorServer").field(&self.shared.settings).finish()
    }
}

impl Drop for ConnectorServer {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Arc<ConnectorState>, listener: PacketListener) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut next = 1;
    while !shared.is_stopping() {
        if wait_for_work(shared, &listener) {
            match listener.accept().and_then(|connection| start(shared, connection, next)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    tracing::warn!(%error, "no connection accepted");
                    // Files are short, for example: the next attempt would fail alike.
                    let _ =
                        wait(&mut [PollFd::new(&shared.wake, PollFlags::IN)], Some(ACCEPT_PAUSE));
                }
            }
            next += 1;
        }
        shared.sweep();
        threads.retain(|thread| !thread.is_finished());
    }
    // Nobody connects any more.
    drop(listener);
    let links: Vec<_> = shared.links.lock().values().cloned().collect();
    for link in links {
        // BYE says that no copy runs any more: where the agent copies, the link's thread says it.
        if link.device.lock().is_none() {
            link.outbox.send(&AgentMessage::Bye);
        }
        link.outbox.connection().deafen();
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Waits for a connection, the death of an engine or a call; whether there is a connection.
fn wait_for_work(shared: &ConnectorState, listener: &PacketListener) -> bool {
    let awaited = shared.quarantine.lock().awaited();
    let mut ready =
        vec![PollFd::new(listener, PollFlags::IN), PollFd::new(&shared.wake, PollFlags::IN)];
    ready.extend(awaited.iter().map(|process| PollFd::new(process, PollFlags::IN)));
    if let Err(error) = wait(&mut ready, None) {
        tracing::warn!(%error, "no wait for engines");
    }
    let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
    ready[0].revents().contains(PollFlags::IN)
}

/// Starts the thread of a connection.
fn start(
    shared: &Arc<ConnectorState>,
    connection: PacketSocket,
    number: u64,
) -> io::Result<JoinHandle<()>> {
    let outbox = Arc::new(EngineOutbox::new(connection)?);
    let link = Arc::new(EngineLink {
        number,
        outbox,
        seen: Default::default(),
        maps: Default::default(),
        device: Default::default(),
    });
    shared.links.lock().insert(number, Arc::clone(&link));
    let run = {
        let shared = Arc::clone(shared);
        move || {
            turns::shorten();
            serve(&shared, &link);
            shared.links.lock().remove(&number);
        }
    };
    let thread = std::thread::Builder::new().name("kv-engine".into()).spawn(run);
    thread.inspect_err(|_| drop(shared.links.lock().remove(&number)))
}
