//! A prefill worker's driver and a reader of its prompts, over real sockets.

use super::fake_engine::{CHUNKED, CHUNKS, PAIRED};
use super::tests::{Harness, PrefillAnswer, room};
use super::*;
use crate::kv::lending::KvLending;
use crate::kv::offer::{HandoverTicket, KeepOrder};
use crate::kv::prompt_reader::{PromptReader, ReadLimits};
use crate::kv::transfer_room::TransferRoom;
use stator_kv::peer::visit;
use stator_kv::tier::TierError;
use stator_protos::name::BlockName;
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Longest wait for what must come: less than a prompt is kept for a reader that does not come.
const DEADLINE: Duration = Duration::from_secs(20);
const NAMES: [BlockName; 2] = [BlockName(0), BlockName(1)];

/// A prefill worker that lends its prompts.
struct Holder {
    harness: Harness,
    lending: Arc<KvLending>,
}

impl Holder {
    async fn start() -> Self {
        let harness = Harness::start(Duration::ZERO);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lending = KvLending::new(listener, None).unwrap();
        lending.hand_over(harness.handovers.clone().unwrap());
        Self { harness, lending }
    }

    /// Has a prompt computed and kept for this ticket.
    async fn keep(&self, id: u64) -> HandoverTicket {
        let ticket = HandoverTicket::draw();
        let order = KeepOrder { ticket, within_ms: None, push_from: None };
        let (_, answered) = self.harness.prefill(id, PAIRED, &order).await;
        assert!(answered.await.unwrap().unwrap().handover.is_some());
        ticket
    }

    /// Has a prompt computed but for its last blocks, of which two can be read.
    async fn begin(&self, id: u64) -> (HandoverTicket, PrefillAnswer) {
        self.harness.hold_back(3).await;
        let ticket = HandoverTicket::draw();
        let order = KeepOrder { ticket, within_ms: None, push_from: Some(0) };
        let (mut readable, answered) = self.harness.prefill(id, CHUNKED, &order).await;
        // Half of the room is for prompts that are computed.
        readable.wait_for(|readable| *readable == 2).await.unwrap();
        (ticket, answered)
    }

    fn reader(&self, room: &TransferRoom, ticket: &HandoverTicket) -> PromptReader {
        let limits = ReadLimits { deadline: DEADLINE, silence: DEADLINE };
        let holder = self.lending.bound();
        PromptReader::new(room.clone(), ticket, holder, CHUNKS as usize, limits)
    }

    /// Waits until no prompt is kept.
    async fn keeps_nothing(&self) {
        timeout(DEADLINE, self.harness.in_flight.none()).await.expect("the prompt is given up");
    }
}

/// Waits until all slots are free.
async fn all_free(room: &TransferRoom) {
    let slots = room.memory.arena().slots() as usize;
    let mut taken = Vec::new();
    while taken.len() < slots {
        let more = timeout(DEADLINE, room.memory.take(slots - taken.len())).await;
        taken.extend(more.expect("slots come back"));
    }
}

#[tokio::test]
async fn a_prompt_is_read_once_and_is_given_up_when_it_was() {
    let (holder, here) = (Holder::start().await, room());
    let ticket = holder.keep(1).await;
    let mut reader = holder.reader(&here, &ticket);
    let batch = reader.read(&NAMES).await;
    assert_eq!((batch.slots.len(), batch.fault), (2, None));
    for (byte, slot) in (0..).zip(&batch.slots) {
        let mut kv = [9];
        slot.read(&mut kv);
        assert_eq!(kv, [byte]);
    }
    reader.finish().await;
    holder.keeps_nothing().await;
    let mut late = holder.reader(&here, &ticket);
    let batch = late.read(&NAMES).await;
    assert_eq!((batch.slots.len(), batch.fault), (0, Some(TierError::Failed)));
}

#[tokio::test]
async fn a_reader_that_dies_in_the_middle_leaves_nothing_behind() {
    let (holder, here) = (Holder::start().await, room());
    let ticket = holder.keep(1).await;
    let mut reader = holder.reader(&here, &ticket);
    assert_eq!(reader.read(&NAMES[..1]).await.slots.len(), 1);
    // Its connection closes without a word.
    drop(reader);
    holder.keeps_nothing().await;
    all_free(&holder.harness.handovers.as_ref().unwrap().room).await;
    all_free(&here).await;
}

#[tokio::test]
async fn a_holder_that_dies_in_the_middle_leaves_no_partial_block() {
    let (holder, here) = (Holder::start().await, room());
    let ticket = holder.keep(1).await;
    let mut reader = holder.reader(&here, &ticket);
    assert_eq!(reader.read(&NAMES[..1]).await.slots.len(), 1);
    // With its socket and all connections.
    drop(holder);
    let batch = reader.read(&NAMES[1..]).await;
    assert_eq!((batch.slots.len(), batch.fault), (0, Some(TierError::Failed)));
    drop(reader);
    all_free(&here).await;
}

/// Blocks of a prompt that comes in blocks.
fn names(places: std::ops::Range<usize>) -> Vec<BlockName> {
    places.map(|place| BlockName(place as u128)).collect()
}

#[tokio::test]
async fn a_prompt_is_read_while_it_is_computed() {
    let (holder, here) = (Holder::start().await, room());
    let (ticket, mut answered) = holder.begin(1).await;
    let mut reader = holder.reader(&here, &ticket);
    let batch = reader.read(&names(0..2)).await;
    assert_eq!((batch.slots.len(), batch.fault), (2, None));
    for (byte, slot) in (0..).zip(batch.slots) {
        let mut kv = [9];
        slot.read(&mut kv);
        assert_eq!(kv, [byte]);
    }
    assert!(answered.try_recv().is_err(), "the last blocks are held back");
    holder.harness.hold_back(0).await;
    let prefilled = answered.await.unwrap().unwrap();
    assert_eq!(prefilled.handover.unwrap().get(), "{\"blocks\":8}");
    let mut come = 2;
    while come < CHUNKS as usize {
        let batch = reader.read(&names(come..CHUNKS as usize)).await;
        assert!(!batch.slots.is_empty(), "{:?}", batch.fault);
        come += batch.slots.len();
    }
    reader.finish().await;
    holder.keeps_nothing().await;
    all_free(&holder.harness.handovers.as_ref().unwrap().room).await;
}

#[tokio::test]
async fn a_prompt_whose_reader_dies_is_computed_no_further() {
    let (holder, here) = (Holder::start().await, room());
    let (ticket, answered) = holder.begin(1).await;
    let mut reader = holder.reader(&here, &ticket);
    assert_eq!(reader.read(&names(0..1)).await.slots.len(), 1);
    drop(reader);
    holder.keeps_nothing().await;
    assert!(answered.await.is_err(), "nobody waits for it");
    all_free(&holder.harness.handovers.as_ref().unwrap().room).await;
    all_free(&here).await;
}

#[tokio::test]
async fn a_holder_that_dies_before_the_end_of_a_prompt_leaves_no_partial_block() {
    let (holder, here) = (Holder::start().await, room());
    let (ticket, _answered) = holder.begin(1).await;
    let mut reader = holder.reader(&here, &ticket);
    assert_eq!(reader.read(&names(0..1)).await.slots.len(), 1);
    drop(holder);
    let batch = reader.read(&names(1..2)).await;
    assert_eq!((batch.slots.len(), batch.fault), (0, Some(TierError::Failed)));
    drop(reader);
    all_free(&here).await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_takes_longer_than_its_decode_worker_waits_is_given_up() {
    let harness = Harness::start(Duration::from_secs(1));
    let order =
        KeepOrder { ticket: HandoverTicket::draw(), within_ms: Some(3_000), push_from: Some(0) };
    let (_, answered) = harness.prefill(1, CHUNKED, &order).await;
    assert!(answered.await.is_err());
    harness.in_flight.none().await;
    let room = &harness.handovers.as_ref().unwrap().room;
    assert_eq!(room.memory.free(), room.memory.arena().slots() as usize);
}

#[tokio::test]
async fn a_prompt_that_is_not_wanted_after_all_is_given_up_at_once() {
    let (holder, here) = (Holder::start().await, room());
    let ticket = holder.keep(1).await;
    // Somebody with another ticket ends nothing.
    let stranger = HandoverTicket::draw().reader(&here.key);
    assert!(visit(holder.lending.bound(), &stranger, here.form).await.is_err());
    assert_eq!(holder.harness.in_flight.count(), 1);
    visit(holder.lending.bound(), &ticket.reader(&here.key), here.form).await.unwrap();
    holder.keeps_nothing().await;
}
