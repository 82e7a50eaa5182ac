use super::tests::Harness;
use super::*;
use crate::request_plane::metadata::RequestMetadata;
use serde_json::value::to_raw_value;
use stator_dialect::Operation;
use stator_engine::transfer::BlockKv;
use stator_protos::name::BlockName;
use std::ops::Range;
use tokio::sync::oneshot;

type Answer = oneshot::Receiver<Result<PrefillResult, (ErrorKind, String)>>;

impl Harness {
    /// Asks for a prompt, to be kept under a handle.
    async fn prompt(&self, id: u64, handle: u64) -> Answer {
        let submit = worker::Submit {
            token_ids: vec![1],
            sampling: Some(worker::Sampling { max_tokens: 1, ..worker::Sampling::default() }),
            ..worker::Submit::default()
        };
        let (answer, answered) = oneshot::channel();
        let order = PrefillOrder {
            request: translate::request(submit, RequestKey(id)).unwrap(),
            metadata: RequestMetadata::default(),
            handover: Some(to_raw_value(&crate::kv::offer::KeepOrder { handle }).unwrap()),
            answer,
            ticket: self.in_flight.enter(),
        };
        self.commands.send(Command::Prefill(order)).await.unwrap();
        answered
    }

    async fn takes(&self, handle: u64) -> Option<RequestKey> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Take(PromptTake { handle, answer })).await.unwrap();
        answered.await.unwrap().map(|taken| taken.key)
    }

    async fn exports(&self, key: RequestKey, blocks: Range<usize>) -> Vec<BlockKv> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Export(BlockExport { key, blocks, answer })).await.unwrap();
        answered.await.unwrap()
    }
}

fn refusal(answer: Result<PrefillResult, (ErrorKind, String)>) -> (ErrorKind, String) {
    answer.expect_err("a refusal")
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_kept_until_it_is_fetched_and_is_fetched_once() {
    let harness = Harness::start(Duration::from_millis(10));
    let prefilled = harness.prompt(1, 70).await.await.unwrap().unwrap();
    assert_eq!(prefilled.handover.unwrap().get(), "{\"blocks\":2}");
    assert_eq!(harness.takes(71).await, None);
    let key = harness.takes(70).await.unwrap();
    assert_eq!(harness.takes(70).await, None);
    let blocks = harness.exports(key, 1..9).await;
    assert_eq!(blocks, [BlockKv { name: BlockName(1), kv: vec![1] }]);
    assert_eq!(harness.in_flight.count(), 1);
    harness.commands.send(Command::Cancel(vec![key])).await.unwrap();
    assert_eq!(harness.exports(key, 0..2).await, []);
    harness.in_flight.none().await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_fetches_is_kept_for_a_minute() {
    let harness = Harness::start(Duration::from_millis(10));
    let begin = Instant::now();
    for handle in 70..73 {
        harness.prompt(handle, handle).await.await.unwrap().unwrap();
    }
    // Nor is what somebody took and never ended.
    let key = harness.takes(71).await.unwrap();
    harness.in_flight.none().await;
    let kept = begin.elapsed().as_secs();
    assert!((60..=61).contains(&kept), "{kept}");
    assert_eq!(harness.exports(key, 0..2).await, []);
    assert_eq!(harness.takes(70).await, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_who_hangs_up() {
    let harness = Harness::start(Duration::from_millis(10));
    drop(harness.prompt(1, 70).await);
    harness.in_flight.none().await;
    assert_eq!(harness.takes(70).await, None);
    assert_eq!(harness.exports(RequestKey(1), 0..2).await, []);
    // While it was being computed, too.
    let asked = harness.prompt(2, 70).await;
    harness.commands.send(Command::Cancel(vec![RequestKey(2)])).await.unwrap();
    assert!(asked.await.is_err());
    harness.in_flight.none().await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_cannot_be_kept_is_refused() {
    let harness = Harness::start(Duration::from_millis(10));
    harness.prompt(1, 70).await.await.unwrap().unwrap();
    let (kind, why) = refusal(harness.prompt(2, 70).await.await.unwrap());
    assert_eq!((kind, &*why), (ErrorKind::Invalid, "handover_json: the handle is in use"));
    harness.operate(Operation::Pause).await.unwrap();
    let (kind, why) = refusal(harness.prompt(3, 71).await.await.unwrap());
    assert_eq!((kind, &*why), (ErrorKind::Overloaded, translate::RESTING));
}
