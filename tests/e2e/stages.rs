//! Two engines that share requests, of which one dies or stands still: before a request, while
//! prefill runs, once the prompt is computed, while decode streams. A third engine does all of a
//! request, and whatever happens to the two, each request has the answer that this one gives.

use crate::agents::{Agent, answer, completed, stream, streamed, tokens};
use stator_tests::http::Client;
use stator_tests::process::signal;
use stator_tests::soon;
use stator_tests::stock::MODEL;
use tokio::task::JoinHandle;

/// Tokens of an answer that is still on its way when its engines die.
const LONG: u32 = 600;

/// A prefill and a decode worker, and one that does without them.
pub(crate) struct Three {
    pub(crate) client: Client,
    pub(crate) prefill: Agent,
    pub(crate) decode: Agent,
    pub(crate) alone: Agent,
}

impl Three {
    /// A request of a prompt, on its way, and the answer that is right.
    async fn ask(&self, prompt: Vec<u32>, max_tokens: u32) -> (JoinHandle<Vec<u32>>, Vec<u32>) {
        let expected = self.alone.answers(&prompt, max_tokens).await;
        let client = self.client.clone();
        let asked = async move { answer(&completed(&client, MODEL, &prompt, max_tokens).await).0 };
        (tokio::spawn(asked), expected)
    }

    /// Waits until the two share requests, again or still.
    async fn share_requests(&self) {
        let before = self.decode.prefills("prefill_worker").await;
        soon("a request that two share", async {
            for seed in 9000.. {
                let (asked, expected) = self.ask(tokens(seed, 100), 4).await;
                assert_eq!(asked.await.unwrap(), expected);
                if self.decode.prefills("prefill_worker").await > before {
                    break;
                }
            }
        })
        .await;
    }

    async fn have_released_all(&self) {
        self.prefill.has_released_all().await;
        self.decode.has_released_all().await;
    }
}

/// The other one waits for it, until nobody does any more.
pub(crate) async fn half_a_pair_is_given_up_in_time(three: &Three) {
    three.share_requests().await;
    let given_up = three.decode.prefills("nobody").await;
    for (n, still) in (1..).zip([&three.prefill, &three.decode]) {
        let core = still.core();
        signal(core, "STOP");
        let (asked, expected) = three.ask(tokens(60 + n, 300), 8).await;
        assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
        assert_eq!(three.decode.prefills("nobody").await, given_up + f64::from(n));
        signal(core, "CONT");
        // What it was asked was taken back, so it holds nothing for anybody.
        three.have_released_all().await;
        three.share_requests().await;
    }
}

/// Once the KV is where it is needed nobody misses who computed it, and where decode dies too the
/// answer goes on elsewhere. So do requests that come meanwhile.
pub(crate) async fn both_die_while_decode_streams(three: &mut Three) {
    three.share_requests().await;
    let prompt = tokens(63, 200);
    let expected = three.alone.answers(&prompt, LONG).await;
    let before = three.decode.prefills("prefill_worker").await;
    let mut stream = stream(&three.client, &prompt, LONG).await;
    assert_eq!(three.decode.prefills("prefill_worker").await, before + 1.0);
    three.prefill.kill_engine().await;
    let next = stream.0.next().await.unwrap();
    stream.1.push(serde_json::from_str(&next).unwrap());
    three.decode.kill_engine().await;
    assert_eq!(streamed(stream).await, expected);

    let (asked, expected) = three.ask(tokens(64, 200), 16).await;
    assert_eq!(asked.await.unwrap(), expected);
    three.prefill.recovers().await;
    three.decode.recovers().await;
    three.share_requests().await;
}

pub(crate) async fn one_dies_while_prefill_runs(three: &mut Three) {
    for (n, decode_dies) in (0..).zip([true, false]) {
        let core = three.prefill.core();
        signal(core, "STOP");
        let (asked, expected) = three.ask(tokens(65 + n, 300), 16).await;
        three.prefill.has_requests().await;
        three.decode.has_requests().await;
        let dies = if decode_dies { &mut three.decode } else { &mut three.prefill };
        dies.kill_engine().await;
        assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
        if decode_dies {
            signal(core, "CONT");
            three.prefill.has_released_all().await;
        } else {
            three.decode.has_released_all().await;
        }
        let dies = if decode_dies { &mut three.decode } else { &mut three.prefill };
        dies.recovers().await;
        three.share_requests().await;
    }
}

/// Its KV is on its way then, or has just come.
pub(crate) async fn one_dies_once_the_prompt_is_computed(three: &mut Three) {
    for (n, decode_dies) in (0..).zip([true, false]) {
        let before = three.prefill.has_computed().await;
        let (asked, expected) = three.ask(tokens(67 + n, 1500), 48).await;
        soon("the prompt is computed", async {
            while three.prefill.has_computed().await < before + 1400.0 {}
        })
        .await;
        let dies = if decode_dies { &mut three.decode } else { &mut three.prefill };
        dies.kill_engine().await;
        assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
        let other = if decode_dies { &three.prefill } else { &three.decode };
        other.has_released_all().await;
        let dies = if decode_dies { &mut three.decode } else { &mut three.prefill };
        dies.recovers().await;
        three.share_requests().await;
    }
}
