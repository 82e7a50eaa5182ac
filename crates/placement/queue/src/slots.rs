//! Slots of waiting requests, under small numbers that are reused.

use crate::entry::QueueTicket;
use std::ops::{Index, IndexMut};

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// A waiting request without its payload. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct QueueSlot {
    /// The request's own number, from 1; 0 while the slot is free.
    pub(crate) number: u64,
    pub(crate) arrival: u64,
    pub(crate) deadline: u64,
    pub(crate) bytes: u64,
    pub(crate) tokens: u32,
    /// Priority of its band.
    pub(crate) band: i32,
    pub(crate) flow: u32,
    /// The one of its band that came before it.
    pub(crate) older: u32,
    /// The one of its band that came after it.
    pub(crate) newer: u32,
}

/// All waiting requests.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<QueueSlot>,
    free: Vec<u32>,
    /// Positions among their flows', by slot; apart because heaps write many of them.
    pub(crate) at_flow: Vec<u32>,
    /// Positions among their bands' deadlines, by slot.
    pub(crate) at_deadline: Vec<u32>,
    /// Numbers given so far.
    numbers: u64,
}

impl Slots {
    /// Takes a request in; its number is given here.
    pub(crate) fn add(&mut self, slot: QueueSlot) -> QueueTicket {
        self.numbers += 1;
        let slot = QueueSlot { number: self.numbers, ..slot };
        let at = match self.free.pop() {
            Some(at) => {
                self[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.at_flow.push(NONE);
                self.at_deadline.push(NONE);
                u32::try_from(self.slots.len() - 1).expect("bounds are far below 2^32 requests")
            }
        };
        QueueTicket { slot: at, number: self.numbers }
    }

    /// Whether the request of a ticket still waits.
    pub(crate) fn holds(&self, ticket: QueueTicket) -> bool {
        self.slots.get(ticket.slot as usize).is_some_and(|slot| slot.number == ticket.number)
    }

    pub(crate) fn ticket(&self, at: u32) -> QueueTicket {
        QueueTicket { slot: at, number: self[at].number }
    }

    /// Bytes that all this takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let numbers = [&self.free, &self.at_flow, &self.at_deadline];
        let numbers = numbers.map(Vec::capacity).iter().sum::<usize>();
        self.slots.capacity() * size_of::<QueueSlot>() + numbers * size_of::<u32>()
    }

    pub(crate) fn release(&mut self, at: u32) {
        self[at].number = 0;
        self.free.push(at);
    }
}

impl Index<u32> for Slots {
    type Output = QueueSlot;

    fn index(&self, at: u32) -> &QueueSlot {
        &self.slots[at as usize]
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, at: u32) -> &mut QueueSlot {
        &mut self.slots[at as usize]
    }
}
