//! The hand-over of one prompt, in every order of what its engine, its reader and its driver may do,
//! against a plain model.

use super::fake_engine::{CHUNKED, CHUNKS, Fake};
use super::tests::{PrefillAnswer, prefill_order};
use super::*;
use crate::config::KvTrust;
use crate::kv::handovers::Handovers;
use crate::kv::offer::{HandoverTicket, KeepOrder};
use crate::kv::transfer_room::TransferRoom;
use crate::request_plane::in_flight::InFlight;
use futures::FutureExt;
use proptest::prelude::*;
use stator_engine::transfer::KvForm;
use stator_kv::transfer::LendingStore;
use stator_protos::name::BlockName;
use std::ops::Range;
use tokio::sync::watch;

const KEY: RequestKey = RequestKey(1);
const BLOCKS: usize = CHUNKS as usize;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Running,
    Kept,
    Gone,
}

/// Counts of what should be.
struct Model {
    stage: Stage,
    /// Blocks that the engine has.
    computed: usize,
    /// Places of the copies that nobody has taken.
    copies: Range<usize>,
    /// Blocks that the decode worker was told of.
    ready: usize,
    free: usize,
    /// Slots that are never taken for copies.
    spared: usize,
}

impl Model {
    fn push(&mut self) {
        let room = self.free.saturating_sub(self.spared);
        let more = self.computed.saturating_sub(self.copies.end).min(room);
        if self.stage == Stage::Running && more > 0 {
            self.copies.end += more;
            self.free -= more;
            self.ready = self.copies.end;
        }
    }

    fn step(&mut self) {
        if self.stage == Stage::Running {
            self.computed += 1;
            self.push();
            if self.computed == BLOCKS {
                self.stage = Stage::Kept;
            }
        }
    }

    /// Blocks that the reader is lent; none where there is no room to copy one.
    fn ask(&mut self, first: usize, max: usize) -> usize {
        let Range { start, end } = self.copies;
        if first >= start && self.stage != Stage::Gone {
            self.free += end.min(first) - start;
            let taken = max.min(end.saturating_sub(first));
            self.copies = first + taken..end.max(first);
            if taken > 0 {
                return taken;
            }
        }
        let slots = max.min(self.free);
        self.free -= slots;
        self.push();
        let lent = slots.min(self.computed.saturating_sub(first));
        self.free += slots - lent;
        lent
    }

    fn give_up(&mut self) {
        self.free += self.copies.len();
        (self.stage, self.computed, self.copies) = (Stage::Gone, 0, 0..0);
    }
}

/// A prefill worker's part of the hand-over, without its threads and sockets.
struct Holder {
    engine: GuardedEngine,
    kept: KeptPrompts,
    handovers: Arc<Handovers>,
    ticket: HandoverTicket,
    readable: watch::Receiver<usize>,
    _answered: PrefillAnswer,
}

impl Holder {
    fn new(slots: u64) -> Self {
        let form = KvForm { fingerprint: 1, block_bytes: 1 };
        let room = TransferRoom::new(form, slots * 4096, KvTrust::default().fleet_key).unwrap();
        let handovers = Handovers::new(room);
        let mut engine = GuardedEngine::new(Box::new(Fake::default()));
        let mut kept = KeptPrompts::new(Some(handovers.clone()), AgentMetrics::default());
        let ticket = HandoverTicket::draw();
        let order = KeepOrder { ticket, within_ms: None, push_from: Some(0) };
        let (order, readable, _answered) = prefill_order(KEY.0, CHUNKED, &order, &InFlight::new());
        kept.begin(&mut engine, Rest::Awake, order);
        Self { engine, kept, handovers, ticket, readable, _answered }
    }

    fn step(&mut self) {
        let mut step = Step::default();
        self.engine.call(|engine| engine.step(&mut step));
        step.outputs.iter().for_each(|output| self.kept.finish(&mut self.engine, output));
    }

    /// As a driver does between two steps.
    fn serve(&mut self) {
        for key in self.kept.serve(&mut self.engine) {
            self.cancel(key);
        }
    }

    fn cancel(&mut self, key: RequestKey) {
        self.kept.give_up(key);
        self.engine.call(|engine| engine.cancel(key));
    }

    /// Blocks of a loan, which are whole and those that were asked for.
    fn ask(&mut self, store: &LendingStore, loan: u64, places: Range<usize>) -> usize {
        let names: Vec<_> = places.clone().map(|place| BlockName(place as u128)).collect();
        let mut lending = store.lender.lend(loan, names.into());
        let lent = (&mut lending).now_or_never().or_else(|| {
            self.serve();
            (&mut lending).now_or_never()
        });
        let lent = lent.map(|lent| lent.blocks).unwrap_or_default();
        for (place, block) in places.zip(&lent) {
            let mut kv = [99];
            store.arena.read(block.slot, &mut kv);
            let checksum = store.arena.checksum(block.slot, BlockName(place as u128));
            assert_eq!((kv, block.checksum), ([place as u8], checksum));
        }
        lent.len()
    }
}

proptest! {
    /// In every order of steps, questions, lost loans, preemptions, cancels and deaths: the reader gets
    /// the blocks that it asks for, whole, as many as there are and as there is room for, and nothing is
    /// left behind.
    #[test]
    fn a_hand_over_agrees_with_a_plain_model(
        slots in 1..12_u64,
        acts in prop::collection::vec((0..16_u8, 1..5_usize), 0..60),
    ) {
        let mut holder = Holder::new(slots);
        let store = holder.handovers.store(holder.ticket.handle);
        let mut store = store.inspect(|store| store.lender.welcome());
        let mut model = Model {
            stage: Stage::Running,
            computed: 0,
            copies: 0..0,
            ready: 0,
            free: slots as usize,
            spared: slots.div_ceil(2) as usize,
        };
        // Loans of the reader, by the places of their blocks, and the next place.
        let (mut loans, mut next): (Vec<(u64, Range<usize>)>, usize) = (Vec::new(), 0);
        for (loan, (act, count)) in (0..).zip(acts) {
            match (act, &store) {
                (0..6, _) => {
                    holder.step();
                    model.step();
                }
                (6..10, Some(store)) if next < BLOCKS => {
                    let places = next..BLOCKS.min(next + count);
                    let lent = holder.ask(store, loan, places.clone());
                    prop_assert_eq!(lent, model.ask(next, places.len()));
                    loans.push((loan, next..next + lent));
                    next += lent;
                }
                // The reader has read the blocks of its oldest loan, or has lost its last.
                (10..13, Some(store)) if !loans.is_empty() => {
                    let at = if act < 12 { 0 } else { loans.len() - 1 };
                    let (loan, places) = loans.remove(at);
                    store.lender.release(loan);
                    model.free += places.len();
                    next = if act < 12 { next } else { places.start };
                }
                (13, _) => {
                    holder.engine.call(|engine| engine.reset_cache());
                    model.computed = 0;
                }
                (14, _) if count == 1 => {
                    holder.cancel(KEY);
                    model.give_up();
                }
                (15, Some(_)) if count == 1 => {
                    let lost = store.take().expect("it is there");
                    loans.iter().for_each(|(loan, _)| lost.lender.release(*loan));
                    model.free += loans.drain(..).map(|(_, places)| places.len()).sum::<usize>();
                    // The driver hears of the death behind the room.
                    model.push();
                    model.give_up();
                }
                _ => {}
            }
            holder.serve();
            model.push();
            let handovers = &holder.handovers;
            prop_assert_eq!(handovers.room.memory.free(), model.free);
            prop_assert_eq!(*holder.readable.borrow(), model.ready);
            prop_assert_eq!(handovers.has(holder.ticket.handle), model.stage != Stage::Gone);
        }
        holder.cancel(KEY);
        drop((store, loans));
        holder.serve();
        prop_assert_eq!(holder.handovers.room.memory.free(), slots as usize);
    }
}
