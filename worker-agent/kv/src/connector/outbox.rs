//! Messages on their way to an engine, in order, from whichever thread has them.

use super::socket::PacketSocket;
use super::wire::{AgentMessage, AskProgress, KEYS_MAX};
use crate::SlotId;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;

/// Most bytes that wait for an engine that does not read. One that lets more come is disconnected.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Sends without waiting: what the socket does not take waits here.
#[derive(Debug)]
pub(super) struct EngineOutbox {
    connection: PacketSocket,
    state: Mutex<OutboxState>,
    /// Wakes the connection's thread, which sends what waits when there is room.
    waiting: OwnedFd,
}

#[derive(Debug, Default)]
struct OutboxState {
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The request that is being asked for, and what became ready meanwhile: FOUND goes first.
    asking: Option<(u64, Vec<AskProgress>)>,
}

impl EngineOutbox {
    pub(super) fn new(connection: PacketSocket) -> io::Result<Self> {
        let waiting = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { connection, state: Mutex::default(), waiting })
    }

    pub(super) fn connection(&self) -> &PacketSocket {
        &self.connection
    }

    /// Ready to read while messages wait that the connection's thread does not know of.
    pub(super) fn waiting(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }

    /// Sends a message, or keeps it until there is room. A connection that takes no more is ended.
    pub(super) fn send(&self, message: &AgentMessage) {
        self.send_in(&mut self.state.lock(), message.encode());
    }

    /// Sends slots in as many messages as they need.
    pub(super) fn send_slots(
        &self,
        slots: &[SlotId],
        message: impl Fn(Vec<SlotId>) -> AgentMessage,
    ) {
        slots.chunks(KEYS_MAX).for_each(|slots| self.send(&message(slots.to_vec())));
    }

    /// The connection's thread is about to ask for a request: what becomes ready for it waits for
    /// [`Self::found`].
    pub(super) fn asking(&self, request: u64) {
        self.state.lock().asking = Some((request, Vec::new()));
    }

    /// Answers a request, then says what became ready for it meanwhile.
    pub(super) fn found(&self, found: &AskProgress) {
        let mut state = self.state.lock();
        self.send_progress(&mut state, found, AgentMessage::Found);
        let (_, ready) = state.asking.take().unwrap_or_default();
        for ready in ready {
            self.send_progress(&mut state, &ready, AgentMessage::Ready);
        }
    }

    /// Says that more of a request is ready.
    pub(super) fn ready(&self, ready: AskProgress) {
        let mut state = self.state.lock();
        match &mut state.asking {
            Some((request, early)) if *request == ready.request => early.push(ready),
            _ => self.send_progress(&mut state, &ready, AgentMessage::Ready),
        }
    }

    /// Sends what waits; whether something still does.
    pub(super) fn flush(&self) -> bool {
        let mut seen = [0; 8];
        let _ = rustix::io::read(&self.waiting, &mut seen);
        let mut state = self.state.lock();
        while let Some(packet) = state.packets.front() {
            match self.connection.send(packet, None) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => {
                    self.connection.shut();
                    return false;
                }
            }
            let sent = state.packets.pop_front().map_or(0, |packet| packet.len());
            state.bytes -= sent;
        }
        false
    }

    /// Cuts slots into as many messages as they need. Slots of the messages behind are on their way.
    fn send_progress(
        &self,
        state: &mut OutboxState,
        progress: &AskProgress,
        first: fn(AskProgress) -> AgentMessage,
    ) {
        let &AskProgress { request, pending, ref slots } = progress;
        let (mut message, mut behind) = (first, slots.as_slice());
        loop {
            let (now, later) = behind.split_at(behind.len().min(KEYS_MAX));
            let pending = pending + later.len() as u32;
            self.send_in(
                state,
                message(AskProgress { request, pending, slots: now.to_vec() }).encode(),
            );
            if later.is_empty() {
                return;
            }
            (message, behind) = (AgentMessage::Ready, later);
        }
    }

    fn send_in(&self, state: &mut OutboxState, packet: Vec<u8>) {
        if state.packets.is_empty() {
            match self.connection.send(&packet, None) {
                Ok(true) => return,
                Ok(false) => {}
                // The connection's thread sees the end.
                Err(_) => return self.connection.shut(),
            }
        }
        state.bytes += packet.len();
        state.packets.push_back(packet);
        let _ = rustix::io::write(&self.waiting, &1u64.to_ne_bytes());
        if state.bytes > WAITING_BYTES_MAX {
            tracing::warn!(bytes = state.bytes, "an engine does not read: disconnected");
            state.packets.clear();
            state.bytes = 0;
            self.connection.shut();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::socket::Received;
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// An outbox, and the engine's end.
    fn outbox() -> (EngineOutbox, PacketSocket) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (agent, engine) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        (EngineOutbox::new(agent.into()).unwrap(), engine.into())
    }

    /// The next message, if one is there.
    fn receive(engine: &PacketSocket) -> Option<AgentMessage> {
        let mut buffer = vec![0; 1 << 16];
        match engine.receive(&mut buffer).unwrap() {
            Received::Packet(packet) => Some(AgentMessage::decode(packet).unwrap()),
            _ => None,
        }
    }

    fn progress(request: u64, pending: u32) -> AskProgress {
        AskProgress { request, pending, slots: vec![SlotId(1)] }
    }

    #[test]
    fn ready_comes_after_found() {
        let (outbox, engine) = outbox();
        outbox.asking(7);
        outbox.ready(progress(7, 0));
        outbox.ready(progress(6, 0));
        outbox.found(&progress(7, 1));
        outbox.ready(progress(5, 0));
        assert_eq!(receive(&engine), Some(AgentMessage::Ready(progress(6, 0))));
        assert_eq!(receive(&engine), Some(AgentMessage::Found(progress(7, 1))));
        assert_eq!(receive(&engine), Some(AgentMessage::Ready(progress(7, 0))));
        assert_eq!(receive(&engine), Some(AgentMessage::Ready(progress(5, 0))));
        assert_eq!(receive(&engine), None);
    }

    #[test]
    fn messages_wait_for_room_and_stay_in_order() {
        let (outbox, engine) = outbox();
        let count = 3000;
        (0..count).for_each(|number| outbox.ready(progress(number, 0)));
        assert!(outbox.flush(), "the socket takes fewer");
        for number in 0..count {
            let message = receive(&engine).or_else(|| {
                outbox.flush();
                receive(&engine)
            });
            assert_eq!(message, Some(AgentMessage::Ready(progress(number, 0))));
        }
        assert!(!outbox.flush());
    }

    #[test]
    fn an_engine_that_does_not_read_is_disconnected() {
        let (outbox, engine) = outbox();
        let slots = vec![SlotId(1); KEYS_MAX];
        let bytes = AgentMessage::Grant(slots.clone()).encode().len();
        for _ in 0..2 * WAITING_BYTES_MAX / bytes {
            outbox.send(&AgentMessage::Grant(slots.clone()));
        }
        while receive(&engine).is_some() {}
        let mut buffer = [0; 16];
        assert_eq!(engine.receive(&mut buffer).unwrap(), Received::End);
        assert!(!outbox.flush(), "nothing waits any more");
    }
}
