use super::fake_engine::PAIRED;
use super::tests::{Harness, PrefillAnswer};
use super::*;
use crate::kv::offer::{HandoverTicket, KeepOrder};
use stator_dialect::Operation;
use stator_kv::transfer::{LendingStore, LentBlock};
use stator_protos::name::BlockName;

impl Harness {
    /// Asks for a prompt, to be kept for whoever has the ticket.
    async fn prompt(&self, id: u64, ticket: HandoverTicket) -> PrefillAnswer {
        self.prompt_within(id, ticket, None).await
    }

    /// As [`Harness::prompt`], by a decode worker that waits for so long.
    async fn prompt_within(
        &self,
        id: u64,
        ticket: HandoverTicket,
        within_ms: Option<u64>,
    ) -> PrefillAnswer {
        let order = KeepOrder { ticket, within_ms, push_from: None };
        self.prefill(id, PAIRED, &order).await.1
    }

    /// The store that a reader with this ticket reads from.
    fn store(&self, ticket: HandoverTicket) -> Option<LendingStore> {
        self.handovers.as_ref().unwrap().store(ticket.handle)
    }

    /// The store of a reader that has proved to have the ticket.
    fn read(&self, ticket: HandoverTicket) -> LendingStore {
        let store = self.store(ticket).expect("the prompt is kept");
        store.lender.welcome();
        store
    }
}

/// Blocks of a prompt from this one on, as far as they are lent.
async fn lend(store: &LendingStore, loan: u64, first: u128) -> Vec<LentBlock> {
    let names: Vec<_> = (first..first + 9).map(BlockName).collect();
    store.lender.lend(loan, names.into()).await.blocks
}

fn refusal(answer: Result<PrefillResult, (ErrorKind, String)>) -> (ErrorKind, String) {
    answer.expect_err("a refusal")
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_kept_until_it_is_read_and_is_read_once() {
    let harness = Harness::start(Duration::from_millis(10));
    let ticket = HandoverTicket::draw();
    let prefilled = harness.prompt(1, ticket).await.await.unwrap().unwrap();
    assert_eq!(prefilled.handover.unwrap().get(), "{\"blocks\":2}");
    assert!(harness.store(HandoverTicket::draw()).is_none());
    let store = harness.read(ticket);
    let lent = lend(&store, 7, 1).await;
    let [LentBlock { slot, checksum }] = lent[..] else { panic!("{lent:?}") };
    let mut kv = [9];
    store.arena.read(slot, &mut kv);
    assert_eq!((kv, checksum), ([1], store.arena.checksum(slot, BlockName(1))));
    // Connections of one reader share its store, and its end is that of the last.
    let other = harness.read(ticket);
    drop(store);
    assert_eq!(lend(&other, 8, 0).await.len(), 2);
    assert_eq!(lend(&other, 9, 5).await, []);
    assert_eq!(harness.in_flight.count(), 1);
    drop(other);
    harness.in_flight.none().await;
    assert!(harness.store(ticket).is_none());
}

#[tokio::test(start_paused = true)]
async fn blocks_that_find_no_room_wait_and_loans_give_theirs_back() {
    let harness = Harness::start(Duration::from_millis(10));
    let tickets = [HandoverTicket::draw(), HandoverTicket::draw(), HandoverTicket::draw()];
    let mut stores = Vec::new();
    for (id, ticket) in (0..).zip(tickets) {
        harness.prompt(id, ticket).await.await.unwrap().unwrap();
        stores.push(harness.read(ticket));
    }
    // There is room for four blocks.
    assert_eq!(lend(&stores[0], 1, 0).await.len(), 2);
    assert_eq!(lend(&stores[1], 2, 0).await.len(), 2);
    let waiting = tokio::time::timeout(Duration::from_secs(1), lend(&stores[2], 3, 0));
    assert!(waiting.await.is_err());
    stores[0].lender.release(1);
    assert_eq!(lend(&stores[2], 4, 0).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_has_not_proved_to_have_the_ticket_ends_nothing() {
    let harness = Harness::start(Duration::from_millis(10));
    let ticket = HandoverTicket::draw();
    harness.prompt(1, ticket).await.await.unwrap().unwrap();
    drop(harness.store(ticket));
    assert_eq!(lend(&harness.read(ticket), 1, 0).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_reads_is_kept_for_a_minute() {
    let harness = Harness::start(Duration::from_millis(10));
    let begin = Instant::now();
    let tickets = [HandoverTicket::draw(), HandoverTicket::draw(), HandoverTicket::draw()];
    for (id, ticket) in (0..).zip(tickets) {
        harness.prompt(id, ticket).await.await.unwrap().unwrap();
    }
    // Nor is what somebody reads and never ends.
    let store = harness.read(tickets[1]);
    harness.in_flight.none().await;
    let kept = begin.elapsed().as_secs();
    assert!((60..=61).contains(&kept), "{kept}");
    assert_eq!(lend(&store, 1, 0).await, []);
    assert!(harness.store(tickets[0]).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_kept_no_longer_than_its_decode_worker_waits() {
    let harness = Harness::start(Duration::from_millis(10));
    let begin = Instant::now();
    let ticket = HandoverTicket::draw();
    harness.prompt_within(1, ticket, Some(3_000)).await.await.unwrap().unwrap();
    let other = HandoverTicket::draw();
    harness.prompt_within(2, other, Some(u64::MAX)).await.await.unwrap().unwrap();
    while harness.store(ticket).is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let kept = begin.elapsed().as_millis();
    assert!((3_000..=3_200).contains(&kept), "{kept}");
    assert!(harness.store(other).is_some());
    harness.in_flight.none().await;
    assert_eq!(begin.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_who_hangs_up() {
    let harness = Harness::start(Duration::from_millis(10));
    let ticket = HandoverTicket::draw();
    drop(harness.prompt(1, ticket).await);
    harness.in_flight.none().await;
    assert!(harness.store(ticket).is_none());
    // While it was being computed, too.
    let asked = harness.prompt(2, ticket).await;
    harness.commands.send(Command::Cancel(vec![RequestKey(2)])).await.unwrap();
    assert!(asked.await.is_err());
    harness.in_flight.none().await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_cannot_be_kept_is_refused() {
    let harness = Harness::start(Duration::from_millis(10));
    let ticket = HandoverTicket::draw();
    harness.prompt(1, ticket).await.await.unwrap().unwrap();
    let (kind, why) = refusal(harness.prompt(2, ticket).await.await.unwrap());
    assert_eq!((kind, &*why), (ErrorKind::Invalid, "handover_json: the ticket is in use"));
    harness.operate(Operation::Pause).await.unwrap();
    let other = harness.prompt(3, HandoverTicket::draw()).await;
    let (kind, why) = refusal(other.await.unwrap());
    assert_eq!((kind, &*why), (ErrorKind::Overloaded, translate::RESTING));
}
