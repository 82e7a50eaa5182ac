//! A prefill worker's driver and a reader of its prompts, over real sockets.

use super::tests::{Harness, room};
use super::*;
use crate::kv::lending::KvLending;
use crate::kv::offer::{HandoverTicket, KeepOrder};
use crate::kv::prompt_reader::{PromptReader, ReadLimits};
use crate::kv::transfer_room::TransferRoom;
use crate::request_plane::metadata::RequestMetadata;
use serde_json::value::to_raw_value;
use stator_kv::peer::visit;
use stator_kv::tier::TierError;
use stator_protos::name::BlockName;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
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
        let submit = worker::Submit {
            token_ids: vec![1],
            sampling: Some(worker::Sampling { max_tokens: 1, ..worker::Sampling::default() }),
            ..worker::Submit::default()
        };
        let (answer, answered) = oneshot::channel();
        let order = PrefillOrder {
            request: translate::request(submit, RequestKey(id)).unwrap(),
            metadata: RequestMetadata::default(),
            handover: Some(to_raw_value(&KeepOrder { ticket, within_ms: None }).unwrap()),
            answer,
            ticket: self.harness.in_flight.enter(),
        };
        self.harness.commands.send(Command::Prefill(order)).await.unwrap();
        assert!(answered.await.unwrap().unwrap().handover.is_some());
        ticket
    }

    fn reader(&self, room: &TransferRoom, ticket: &HandoverTicket) -> PromptReader {
        let limits = ReadLimits { deadline: DEADLINE, silence: DEADLINE };
        let holder = self.lending.bound();
        PromptReader::new(room.clone(), ticket, holder, NAMES.len(), limits)
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
