//! Waiting work: reads that requests wait for, then reads ahead, then writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashSet;
use stator_protos::name::BlockName;
use tokio::time::Instant;

use super::catalog::BlockPlace;
use crate::tier::{TierError, TierRead, TierReport, TierWrite, Urgency};
use crate::{Block, Checksum, SlotId};

/// Destination of results.
pub(crate) type ReportSink = Arc<dyn Fn(TierReport) + Send + Sync>;

/// A read that ends: dropping its ticket reports that it failed.
pub(crate) struct ReadTicket {
    pub(crate) read: TierRead,
    sink: Option<ReportSink>,
}

impl ReadTicket {
    /// A read, whose end is reported to `sink`.
    pub(crate) fn new(read: TierRead, sink: ReportSink) -> Self {
        Self { read, sink: Some(sink) }
    }

    /// Reports the end.
    pub(crate) fn end(mut self, result: Result<Checksum, TierError>) {
        self.report(result);
    }

    fn report(&mut self, result: Result<Checksum, TierError>) {
        if let Some(sink) = self.sink.take() {
            sink(TierReport::Read { name: self.read.name, slot: self.read.slot, result });
        }
    }
}

impl Drop for ReadTicket {
    fn drop(&mut self) {
        self.report(Err(TierError::Failed));
    }
}

/// A write that ends: dropping its ticket reports that it failed.
pub(crate) struct WriteTicket {
    pub(crate) write: TierWrite,
    sink: Option<ReportSink>,
}

impl WriteTicket {
    /// A write, whose end is reported to `sink`.
    pub(crate) fn new(write: TierWrite, sink: ReportSink) -> Self {
        Self { write, sink: Some(sink) }
    }

    /// Reports the end.
    pub(crate) fn end(mut self, result: Result<(), TierError>) {
        self.report(result);
    }

    fn report(&mut self, result: Result<(), TierError>) {
        if let Some(sink) = self.sink.take() {
            let (name, slot) = (self.write.block.name, self.write.slot);
            sink(TierReport::Written { name, slot, result });
        }
    }
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        self.report(Err(TierError::Failed));
    }
}

/// Reads of blocks that follow each other in one extent.
pub(crate) struct ReadRun {
    /// Place of the first block.
    pub(crate) first: BlockPlace,
    /// The blocks, in order.
    pub(crate) tickets: VecDeque<ReadTicket>,
}

/// The next read.
pub(crate) enum NextRead {
    /// Blocks to read in one request.
    Run(ReadRun),
    /// A block that the bucket is not known to have.
    Missing(ReadTicket),
}

/// Rules for making extents of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentRule {
    /// Blocks of a full extent.
    pub(crate) blocks: usize,
    /// Time for which a block waits for others.
    pub(crate) linger: Duration,
}

/// The queues, each of them bounded.
pub(crate) struct Lanes {
    demand: VecDeque<ReadTicket>,
    prefetch: VecDeque<ReadTicket>,
    offload: VecDeque<(Instant, WriteTicket)>,
    /// Work that found no room and is to be told so. Each piece has a slot of the arena, which
    /// bounds how many there are.
    refused: Vec<Refused>,
    bound: usize,
    is_closed: bool,
}

/// A read or a write that found no room.
pub(crate) enum Refused {
    /// A read.
    Read(ReadTicket),
    /// A write.
    Write(WriteTicket),
}

impl Refused {
    /// Reports the end.
    pub(crate) fn end(self, error: TierError) {
        match self {
            Self::Read(ticket) => ticket.end(Err(error)),
            Self::Write(ticket) => ticket.end(Err(error)),
        }
    }
}

impl Lanes {
    /// Empty queues of so many blocks each.
    pub(crate) fn new(bound: usize) -> Self {
        let (demand, prefetch, offload) = Default::default();
        Self { demand, prefetch, offload, refused: Vec::new(), bound, is_closed: false }
    }

    /// Queues a read. Gives it back if the lanes are closed.
    pub(crate) fn push_read(&mut self, ticket: ReadTicket) -> Option<ReadTicket> {
        if self.is_closed {
            return Some(ticket);
        }
        let lane = match ticket.read.urgency {
            Urgency::Demand => &mut self.demand,
            Urgency::Prefetch | Urgency::Offload => &mut self.prefetch,
        };
        if lane.len() < self.bound {
            lane.push_back(ticket);
        } else {
            self.refused.push(Refused::Read(ticket));
        }
        None
    }

    /// Queues a write. Gives it back if the lanes are closed.
    pub(crate) fn push_write(&mut self, ticket: WriteTicket, now: Instant) -> Option<WriteTicket> {
        if self.is_closed {
            return Some(ticket);
        }
        if self.offload.len() < self.bound {
            self.offload.push_back((now, ticket));
        } else {
            self.refused.push(Refused::Write(ticket));
        }
        None
    }

    /// Takes a read out that waits, if it does.
    pub(crate) fn take_read(&mut self, name: BlockName, slot: SlotId) -> Option<ReadTicket> {
        let is_it = |ticket: &ReadTicket| (ticket.read.name, ticket.read.slot) == (name, slot);
        let lanes = [&mut self.demand, &mut self.prefetch];
        lanes.into_iter().find_map(|lane| lane.remove(lane.iter().position(is_it)?))
    }

    /// Takes the writes of these blocks out.
    pub(crate) fn take_writes(&mut self, names: &[BlockName]) -> Vec<WriteTicket> {
        let wanted: FxHashSet<_> = names.iter().copied().collect();
        let (taken, kept) = std::mem::take(&mut self.offload)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, ticket)| wanted.contains(&ticket.write.block.name));
        self.offload = kept;
        taken.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// Work that found no room.
    pub(crate) fn take_refused(&mut self) -> Vec<Refused> {
        std::mem::take(&mut self.refused)
    }

    /// Takes the most urgent read, with those behind it that follow it in its extent: at most
    /// `blocks_max` in all.
    pub(crate) fn next_read(
        &mut self,
        blocks_max: usize,
        place: impl Fn(&TierRead) -> Option<BlockPlace>,
    ) -> Option<NextRead> {
        let lane = if self.demand.is_empty() { &mut self.prefetch } else { &mut self.demand };
        let ticket = lane.pop_front()?;
        let Some(first) = place(&ticket.read) else { return Some(NextRead::Missing(ticket)) };
        let mut tickets = VecDeque::from([ticket]);
        while tickets.len() < blocks_max {
            let position = usize::from(first.position) + tickets.len();
            let follows = |ticket: &mut ReadTicket| {
                place(&ticket.read).is_some_and(|place| {
                    place.extent == first.extent && usize::from(place.position) == position
                })
            };
            match lane.pop_front_if(follows) {
                Some(next) => tickets.push_back(next),
                None => break,
            }
        }
        Some(NextRead::Run(ReadRun { first, tickets }))
    }

    /// When the next extent is to be written; none if nothing is to be written, or reads wait.
    pub(crate) fn write_due(&self, rule: ExtentRule) -> Option<Instant> {
        if !self.demand.is_empty() || !self.prefetch.is_empty() {
            return None;
        }
        let (queued, _) = self.offload.front()?;
        // A full queue takes no others, so there is nothing to wait for.
        let is_full = self.offload.len() >= rule.blocks.min(self.bound);
        Some(if is_full || self.is_closed { *queued } else { *queued + rule.linger })
    }

    /// Takes the blocks of the next extent, those of a chain side by side.
    pub(crate) fn next_write(&mut self, rule: ExtentRule) -> Vec<WriteTicket> {
        let taken = rule.blocks.min(self.offload.len());
        let tickets: Vec<_> = self.offload.drain(..taken).map(|(_, ticket)| ticket).collect();
        arrange(tickets, |ticket| ticket.write.block)
    }

    /// Takes no more. What is there stays to be done.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Takes no more, and gives away what is there.
    pub(crate) fn abandon(&mut self) -> Self {
        std::mem::replace(self, Self { is_closed: true, ..Self::new(self.bound) })
    }

    /// Whether nothing is there and nothing will come.
    pub(crate) fn is_done(&self) -> bool {
        let is_empty = self.demand.is_empty() && self.prefetch.is_empty();
        self.is_closed && is_empty && self.offload.is_empty() && self.refused.is_empty()
    }
}

/// Brings blocks of a chain together, in order.
fn arrange<T>(blocks: Vec<T>, block: impl Fn(&T) -> Block) -> Vec<T> {
    let mut chains: Vec<Vec<T>> = Vec::new();
    for item in blocks {
        let is_next = |chain: &&mut Vec<T>| {
            chain.last().is_some_and(|last| follows(&block(&item), &block(last)))
        };
        match chains.iter_mut().rfind(is_next) {
            Some(chain) => chain.push(item),
            None => chains.push(vec![item]),
        }
    }
    chains.into_iter().flatten().collect()
}

/// Whether `block` comes after `last` in its sequence; without hashes, whether it may.
fn follows(block: &Block, last: &Block) -> bool {
    let is_deeper = last.depth.checked_add(1) == Some(block.depth);
    is_deeper && (last.hash == block.parent || last.hash.is_none() || block.parent.is_none())
}

#[cfg(test)]
mod tests;
