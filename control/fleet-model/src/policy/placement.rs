//! The real placement core.

use super::{
    Choice, Member, NoPick, PickQuery, Policy, PolicyTicket, RequestProgress, WorkerNews,
    WorkerNumber,
};
use crate::time::{Ps, duration};
use stator_placement::{
    Adapter, BookingId, Label, PeerLoad, PickError, Placement, PlacementRequest, PlacementSettings,
    Profile, Time, Topology, Worker,
};
use stator_protos::load::{Load, TierCosts};
use stator_protos::{Generation, WorkerId, WorkerRank};
use std::ops::RangeInclusive;

/// Placement as the proxy and the picker call it.
pub(super) struct PlacementPolicy {
    placement: Placement,
    /// Whether loads count by their measured times, and workers fetch from each other.
    measures: bool,
}

impl PlacementPolicy {
    pub(super) fn new(settings: PlacementSettings) -> Self {
        Self { placement: Placement::new(settings), measures: true }
    }

    /// A placement to which all that is in tiers counts by the weights of its settings.
    pub(super) fn by_weights(settings: PlacementSettings) -> Self {
        Self { placement: Placement::new(settings), measures: false }
    }

    fn up(&mut self, worker: WorkerRank, life: u64, member: &Member, accepting: bool) {
        self.placement.worker_up(Worker {
            worker,
            generation: Generation(life),
            total_blocks: member.total_blocks,
            accepting,
            suspect: false,
            publishes_events: true,
        });
        let host = Some(Label(member.host.into()));
        // One network reaches every host.
        let rack = Some(Label(u64::MAX));
        let profile = Profile {
            role: member.role,
            topology: Topology { host, rack, zone: None },
            batch_tokens: member.step_tokens,
            adapters: member.adapters.iter().copied().map(adapter).collect(),
            fixed_adapters: true,
            lends: (member.lends && self.measures).then_some(Label(worker.worker.0)),
            ..Profile::default()
        };
        self.placement.set_profile(worker, profile);
    }
}

fn rank(worker: WorkerNumber) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker.into()), rank: 0 }
}

fn adapter(number: u32) -> Adapter {
    Adapter(number.into())
}

fn number(rank: WorkerRank) -> WorkerNumber {
    rank.worker.0 as WorkerNumber
}

impl Policy for PlacementPolicy {
    fn hear(&mut self, worker: WorkerNumber, news: WorkerNews<'_>, now: Ps) {
        let worker = rank(worker);
        // No background task expires bookings here, as the proxy and the picker have one.
        self.placement.expire(Time(duration(now)));
        match news {
            WorkerNews::Up { generation, member } => self.up(worker, generation, member, true),
            WorkerNews::Draining { generation, member } => {
                self.up(worker, generation, member, false);
            }
            WorkerNews::Down => {
                self.placement.worker_down(worker);
            }
            WorkerNews::Load { generation, load } => {
                let costs = if self.measures { load.costs } else { TierCosts::default() };
                let load = Load { costs, ..*load };
                self.placement.report_load(worker, Generation(generation), load);
            }
            WorkerNews::Events { generation, events } => {
                for event in events {
                    self.placement.apply(worker, Generation(generation), event);
                }
            }
            WorkerNews::Unknown => self.placement.unknown(worker),
            WorkerNews::Snapshot { generation, blocks } => {
                self.placement.replace(worker, Generation(generation), blocks.iter().copied());
            }
            WorkerNews::Transferred { from, blocks, took } => {
                self.placement.transferred(rank(from), worker, blocks, duration(took));
            }
            WorkerNews::Others { load } => {
                self.placement.set_peers(worker, load);
            }
        }
    }

    fn pick(&mut self, query: &PickQuery<'_>, now: Ps) -> Result<Choice, NoPick> {
        let request = PlacementRequest {
            sequence: query.sequence,
            prompt_tokens: query.prompt_tokens,
            adapter: query.adapter.map(adapter),
            session: Some(query.session.into()),
            ..PlacementRequest::default()
        };
        match self.placement.pick(&request, Time(duration(now)), query.seed) {
            Ok(decision) => Ok(Choice {
                worker: number(decision.worker),
                ticket: decision.booking.0,
                prefill: decision.prefill.map(|leg| (number(leg.worker), leg.booking.0)),
                holder: decision.holders.first().map(|of| (number(of.worker), of.blocks)),
            }),
            Err(PickError::AllBusy { .. }) => Err(NoPick::Busy),
            Err(_) => Err(NoPick::NoWorkers),
        }
    }

    fn progress(&mut self, ticket: PolicyTicket, progress: RequestProgress, now: Ps) {
        let (booking, now) = (BookingId(ticket), Time(duration(now)));
        match progress {
            RequestProgress::First => self.placement.prefill_done(booking, now),
            RequestProgress::Tokens(tokens) => self.placement.output_tokens(booking, tokens, now),
            RequestProgress::End => self.placement.release(booking),
        };
    }

    fn in_flight(&self) -> RangeInclusive<usize> {
        let stats = self.placement.stats();
        stats.bookings..=stats.bookings + stats.expired_bookings as usize
    }

    fn booked(&self, worker: WorkerNumber, now: Ps) -> PeerLoad {
        self.placement.booked(rank(worker), Time(duration(now)))
    }
}
