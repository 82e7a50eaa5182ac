//! Agents with the built-in engine that share requests, of which one dies or stands still: before a
//! request, while prefill runs, once the prompt is computed, while decode streams. A third does all
//! of a request.

use crate::agents::{answer, completed, completion, proxy, stream, streamed};
use crate::builtin::{ALONE, Life};
use crate::suite::tokens;
use crate::support::{Up, up};
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::{GenerateInput, PrefillPeer, PrefillRequest, Sampling, Submit};
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use stator_tests::stock::{BLOCK_SIZE, MODEL};
use std::path::{Path, PathBuf};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Longest wait for a prefill worker: longer than any prompt here takes.
const PREFILL_TIMEOUT: &str = "--prefill-timeout-ms=4000";
/// Longer than any agent stands still here.
const PATIENT: &str = "--prefill-timeout-ms=60000";
/// Longest silence of a prefill agent: longer than any agent stands still here.
const INATTENTIVE: &str = "--prefill-silence-ms=60000";
/// Tokens of an answer that is still on its way when its engine dies.
const LONG: u32 = 600;
/// Tokens of a prompt of many steps.
const LONG_PROMPT: usize = 1900;
/// Prompts that keep a prefill worker busy, one after the other.
const BUSY: u32 = 4;

struct Three {
    home: PathBuf,
    client: Client,
    _proxy: Process,
    prefill: Life,
    decode: Life,
    _third: Life,
    alone: Up,
}

async fn prefill(home: &Path) -> Life {
    Life::begin(home, "prefill", &["--role=prefill"]).await
}

/// One that computes prompts one by one.
async fn busy_prefill(home: &Path) -> Life {
    Life::begin(home, "prefill", &["--role=prefill", "--max-running=1"]).await
}

async fn decode(home: &Path, patience: [&str; 2]) -> Life {
    let [timeout, silence] = patience;
    Life::begin(home, "decode", &["--role=decode", timeout, silence]).await
}

impl Three {
    async fn begin(home: &Path) -> Self {
        let (prefill, decode) =
            (prefill(home).await, decode(home, [PREFILL_TIMEOUT, INATTENTIVE]).await);
        let third = Life::begin(home, "third", &[]).await;
        let (proxy, client) = proxy(home, &["--router-split=always"]).await;
        let (home, alone) = (home.to_owned(), up(&ALONE).await);
        Self { home, client, _proxy: proxy, prefill, decode, _third: third, alone }
    }

    async fn expected(&self, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
        answer(&completed(&self.alone.client, MODEL, prompt, max_tokens).await).0
    }

    /// A request of a prompt, on its way, and the answer that is right.
    async fn ask(&self, prompt: Vec<u32>, max_tokens: u32) -> (JoinHandle<Vec<u32>>, Vec<u32>) {
        let expected = self.expected(&prompt, max_tokens).await;
        (self.send(prompt, max_tokens), expected)
    }

    fn send(&self, prompt: Vec<u32>, max_tokens: u32) -> JoinHandle<Vec<u32>> {
        let client = self.client.clone();
        let asked = async move { answer(&completed(&client, MODEL, &prompt, max_tokens).await).0 };
        tokio::spawn(asked)
    }

    /// A request that decode waits with for prefill, which stands still, and the right answer.
    async fn ask_in_vain(&self, seed: u32) -> (JoinHandle<Vec<u32>>, Vec<u32>) {
        let prompt = tokens(seed, 300);
        let expected = self.expected(&prompt, 8).await;
        signal(self.prefill.process.id(), "STOP");
        let asked = self.send(prompt, 8);
        self.decode.shows("requests_waiting", 1.0).await;
        (asked, expected)
    }

    /// A request whose prompt is computed and kept, and nobody has looked at it: decode stands still.
    async fn ask_without_a_look(&mut self, seed: u32) -> (JoinHandle<Vec<u32>>, Vec<u32>) {
        let prompt = tokens(seed, 300);
        let expected = self.expected(&prompt, 8).await;
        let Life { client, record, .. } = &self.prefill;
        let worker_id = record.workers[0].worker.worker.0;
        let busy = (0..BUSY).map(|n| {
            let asked = kept(worker_id, tokens(seed + n, 64), (n, 1900));
            let mut client = client.clone();
            tokio::spawn(async move { client.prefill(asked).await.map(drop) })
        });
        let busy: Vec<_> = busy.collect();
        self.prefill.shows("requests_waiting", f64::from(BUSY - 1)).await;
        let asked = self.send(prompt, 8);
        self.prefill.shows("requests_waiting", f64::from(BUSY)).await;
        signal(self.decode.process.id(), "STOP");
        let before = self.prefill.metric("prompt_tokens_total").await;
        busy.iter().for_each(JoinHandle::abort);
        self.prefill.shows("prompt_tokens_total", before + 300.0).await;
        (asked, expected)
    }

    /// Waits until the two share requests, again or still.
    async fn share_requests(&self) {
        let before = self.prefills("prefill_worker").await;
        soon("a request that two share", async {
            for seed in 9000.. {
                let (asked, expected) = self.ask(tokens(seed, 100), 4).await;
                assert_eq!(asked.await.unwrap(), expected);
                if self.prefills("prefill_worker").await > before {
                    break;
                }
            }
        })
        .await;
    }

    /// Prompts of the decode worker's requests, by who computed them.
    async fn prefills(&self, by: &str) -> f64 {
        self.decode.metric(&format!("prefills_total{{by=\"{by}\"}}")).await
    }

    async fn have_released_all(&self) {
        self.prefill.has_released_all().await;
        self.decode.has_released_all().await;
    }
}

/// Prompt tokens that an engine computed for requests that have ended, and blocks that it fetched.
async fn work(life: &Life) -> (f64, f64) {
    let prompt = life.metric("prompt_tokens_total").await;
    let cached = life.metric("cached_tokens_total").await;
    (prompt - cached, life.metric("kv_blocks_fetched_total").await)
}

#[tokio::test]
async fn built_in_engines_share_requests_and_lose_none_whichever_dies() {
    let home = tempfile::tempdir().unwrap();
    let mut three = Three::begin(home.path()).await;
    three.share_requests().await;
    kv_is_moved_and_not_computed_again(&three).await;
    a_client_that_hangs_up_frees_both_engines(&three).await;
    half_a_pair_is_given_up_in_time(&three).await;
    prefill_dies(&mut three).await;
    decode_dies(&mut three).await;
    either_dies_once_the_prompt_is_computed(&mut three).await;
    a_prefill_worker_that_hangs_is_given_up(&mut three).await;
}

async fn kv_is_moved_and_not_computed_again(three: &Three) {
    let (decode, prefill) = (work(&three.decode).await, work(&three.prefill).await);
    let before = three.prefills("prefill_worker").await;
    let mut body = completion(&tokens(51, 200), 16);
    body["logprobs"] = json!(3);
    let ask =
        async |client: &Client, body: &Value| client.post("/v1/completions", body).await.json();
    let (got, expected) = (ask(&three.client, &body).await, ask(&three.alone.client, &body).await);
    assert_eq!(answer(&got), (answer(&expected).0, 0), "{}", three.decode.process.log());
    assert_eq!(got["choices"][0]["logprobs"], expected["choices"][0]["logprobs"]);
    // Six blocks of 32 tokens were fetched, and what fills none was computed.
    assert_eq!(work(&three.decode).await, (decode.0 + 8.0, decode.1 + 6.0));
    assert_eq!(work(&three.prefill).await.0, prefill.0 + 200.0);

    // Only what comes behind them is fetched of a longer prompt, and nothing of the same.
    let longer = [tokens(51, 200), tokens(52, 100)].concat();
    let (asked, expected) = three.ask(longer.clone(), 16).await;
    assert_eq!(asked.await.unwrap(), expected);
    assert_eq!(work(&three.decode).await, (decode.0 + 8.0 + 12.0, decode.1 + 6.0 + 3.0));
    assert_eq!(three.prefills("prefill_worker").await, before + 2.0);
    let (asked, expected) = three.ask(longer, 16).await;
    assert_eq!(asked.await.unwrap(), expected);
    assert_eq!(three.prefills("prefill_worker").await, before + 2.0);
    three.have_released_all().await;
}

/// Asks for a prompt that is kept for whoever has the ticket of this number, with so many tokens behind it.
fn kept(worker_id: u64, token_ids: Vec<u32>, (ticket, max_tokens): (u32, u32)) -> PrefillRequest {
    let sampling = Sampling { max_tokens, ignore_eos: true, ..Sampling::default() };
    let submit = Submit { worker_id, token_ids, sampling: Some(sampling), ..Submit::default() };
    // A handle, which tells prompts apart, and a token.
    let handover_json = json!({ "ticket": format!("{ticket:032x}{:064x}", 0) }).to_string();
    PrefillRequest { submit: Some(submit), handover_json }
}

async fn a_client_that_hangs_up_frees_both_engines(three: &Three) {
    let stream = stream(&three.client, &tokens(54, 1000), 900).await;
    drop(stream);
    three.have_released_all().await;
    // While its prompt is being computed, too.
    let (asked, _) = three.ask_in_vain(55).await;
    asked.abort();
    three.decode.has_released_all().await;
    signal(three.prefill.process.id(), "CONT");
    three.prefill.has_released_all().await;
    three.share_requests().await;
}

async fn half_a_pair_is_given_up_in_time(three: &Three) {
    let before = three.prefills("itself_timeout").await;
    let (asked, expected) = three.ask_in_vain(56).await;
    assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
    signal(three.prefill.process.id(), "CONT");
    assert_eq!(three.prefills("itself_timeout").await, before + 1.0);
    three.have_released_all().await;
    three.share_requests().await;
}

async fn prefill_dies(three: &mut Three) {
    // Before a request.
    three.prefill.process.kill().await;
    let (asked, expected) = three.ask(tokens(57, 300), 8).await;
    assert_eq!(asked.await.unwrap(), expected);
    three.prefill = prefill(&three.home).await;
    three.share_requests().await;

    // While it has the prompt.
    let before = three.prefills("itself_prefill_failed").await;
    let (asked, expected) = three.ask_in_vain(58).await;
    three.prefill.process.kill().await;
    assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
    assert_eq!(three.prefills("itself_prefill_failed").await, before + 1.0);
    three.prefill = prefill(&three.home).await;
    three.share_requests().await;

    // While decode streams.
    let expected = three.expected(&tokens(59, 300), LONG).await;
    let stream = stream(&three.client, &tokens(59, 300), LONG).await;
    three.prefill.process.kill().await;
    assert_eq!(streamed(stream).await, expected);
    three.prefill = prefill(&three.home).await;
    three.share_requests().await;
}

async fn decode_dies(three: &mut Three) {
    // While it waits for the prompt.
    let (asked, expected) = three.ask_in_vain(60).await;
    three.decode.process.kill().await;
    signal(three.prefill.process.id(), "CONT");
    assert_eq!(asked.await.unwrap(), expected);
    three.prefill.has_released_all().await;
    three.decode = decode(&three.home, [PREFILL_TIMEOUT, INATTENTIVE]).await;
    three.share_requests().await;

    // While it streams.
    let expected = three.expected(&tokens(61, 300), LONG).await;
    let stream = stream(&three.client, &tokens(61, 300), LONG).await;
    three.decode.process.kill().await;
    assert_eq!(streamed(stream).await, expected);
    three.prefill.has_released_all().await;
}

/// Nobody fetches it then, or there is nothing left to be fetched.
async fn either_dies_once_the_prompt_is_computed(three: &mut Three) {
    three.prefill.process.kill().await;
    three.prefill = busy_prefill(&three.home).await;
    three.decode = decode(&three.home, [PATIENT, INATTENTIVE]).await;
    three.share_requests().await;
    let (asked, expected) = three.ask_without_a_look(62).await;
    three.decode.process.kill().await;
    assert_eq!(asked.await.unwrap(), expected);

    three.decode = decode(&three.home, [PATIENT, INATTENTIVE]).await;
    three.share_requests().await;
    let (asked, expected) = three.ask_without_a_look(72).await;
    three.prefill.process.kill().await;
    signal(three.decode.process.id(), "CONT");
    assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
    assert_eq!(three.prefills("itself_prefill_failed").await, 1.0);
}

/// Long before the time is over that its prompt may take.
async fn a_prefill_worker_that_hangs_is_given_up(three: &mut Three) {
    three.prefill = prefill(&three.home).await;
    three.decode.process.kill().await;
    three.decode =
        decode(&three.home, ["--prefill-timeout-ms=9000", "--prefill-silence-ms=2000"]).await;
    three.share_requests().await;
    let (failed, late) = ("itself_prefill_failed", "itself_timeout");
    let before = (three.prefills(failed).await, three.prefills(late).await);
    let prompt = tokens(82, 300);
    let expected = three.expected(&prompt, 8).await;
    signal(three.prefill.process.id(), "STOP");
    let answered = soon("the answer", three.send(prompt, 8)).await.unwrap();
    assert_eq!(answered, expected, "{}", three.decode.process.log());
    let after = (three.prefills(failed).await, three.prefills(late).await);
    assert_eq!(after, (before.0 + 1.0, before.1));
    signal(three.prefill.process.id(), "CONT");
    three.share_requests().await;
}

/// Blocks of a prompt are there before the rest of it is computed, and are of use if the prefill worker
/// dies then: whole ones alone, and the tokens are those of one engine.
#[tokio::test]
async fn blocks_come_while_their_prompt_is_computed_and_outlast_a_prefill_worker() {
    let home = tempfile::tempdir().unwrap();
    let mut three = Three::begin(home.path()).await;
    three.decode.process.kill().await;
    three.decode = decode(&three.home, [PATIENT, INATTENTIVE]).await;
    let early = "kv_blocks_early_total";
    for seed in 500.. {
        three.prefill.process.kill().await;
        // A prompt takes more than a hundred steps.
        let flags = ["--role=prefill", "--max-batched-tokens=16", "--max-running=4"];
        three.prefill = Life::begin(home.path(), "prefill", &flags).await;
        three.share_requests().await;
        three.have_released_all().await;
        let before = (work(&three.decode).await, three.prefills("itself_prefill_failed").await);
        let had = three.decode.metric(early).await;
        let (asked, expected) = three.ask(tokens(seed, LONG_PROMPT), 8).await;
        soon("a block that comes early", async {
            while three.decode.metric(early).await == had && !asked.is_finished() {}
        })
        .await;
        three.prefill.process.kill().await;
        assert_eq!(asked.await.unwrap(), expected, "{}", three.decode.process.log());
        let (computed, fetched) = work(&three.decode).await;
        let (computed, fetched) = (computed - before.0.0, fetched - before.0.1);
        assert_eq!(computed + fetched * BLOCK_SIZE as f64, LONG_PROMPT as f64);
        let has_failed = three.prefills("itself_prefill_failed").await > before.1;
        // The machine may have been too fast, or too slow.
        if has_failed && three.decode.metric(early).await > had {
            assert!(fetched > 0.0 && computed > BLOCK_SIZE as f64, "{fetched} {computed}");
            break;
        }
    }
}

#[tokio::test]
async fn a_prefill_worker_that_computes_for_longer_than_it_may_be_silent_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let slow = ["--engine=sim", "--sim-step-ms=2500", "--role=prefill"];
    let _prefill = Life::begin(home.path(), "prefill", &slow).await;
    let fast = ["--engine=sim", "--sim-preset=none", "--role=decode", "--prefill-silence-ms=1000"];
    let decode = Life::begin(home.path(), "decode", &fast).await;
    let (_proxy, client) = proxy(home.path(), &["--router-split=always"]).await;
    let by = |by: &str| format!("prefills_total{{by=\"{by}\"}}");
    soon("a prompt that takes 2.5 s", async {
        for seed in 0.. {
            completed(&client, MODEL, &tokens(seed, 200), 8).await;
            if decode.metric(&by("prefill_worker")).await > 0.0 {
                break;
            }
        }
    })
    .await;
    assert_eq!(decode.metric(&by("itself_prefill_failed")).await, 0.0);
}

#[tokio::test]
async fn simulated_engines_share_requests_too() {
    let home = tempfile::tempdir().unwrap();
    let agent = |name, role| {
        let home = home.path();
        async move { Life::begin(home, name, &["--engine=sim", "--sim-preset=none", role]).await }
    };
    let _prefill = agent("prefill", "--role=prefill").await;
    let decode = agent("decode", "--role=decode").await;
    let (_proxy, client) = proxy(home.path(), &["--router-split=always"]).await;
    soon("a request that two share", async {
        for seed in 0.. {
            completed(&client, MODEL, &tokens(seed, 200), 8).await;
            if decode.metric("prefills_total{by=\"prefill_worker\"}").await > 0.0 {
                break;
            }
        }
    })
    .await;
    assert!(decode.metric("kv_blocks_fetched_total").await >= 6.0);
    assert_eq!(decode.metric("kv_blocks_missed_total").await, 0.0);
}

/// A file with a secret.
fn secret(home: &Path, name: &str) -> String {
    let file = home.join(format!("{name}.secret"));
    std::fs::write(&file, format!("the-secret-of-{name}-agents\n")).unwrap();
    format!("--fleet-secret-file={}", file.display())
}

#[tokio::test]
async fn kv_is_shared_under_one_secret_and_false_under_another() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (own, foreign) = (secret(home, "our"), secret(home, "foreign"));
    let mut prefill = Life::begin(home, "prefill", &["--role=prefill", &own]).await;
    let decode = Life::begin(home, "decode", &["--role=decode", &own]).await;
    let (_proxy, client) = proxy(home, &["--router-split=always"]).await;
    let alone = up(&ALONE).await;
    let check = async |seed| {
        let prompt = tokens(seed, 200);
        let ask = async |client: &Client| answer(&completed(client, MODEL, &prompt, 12).await).0;
        assert_eq!(ask(&client).await, ask(&alone.client).await);
    };
    soon("a request that two share", async {
        for seed in 100.. {
            check(seed).await;
            if decode.metric("kv_blocks_fetched_total").await > 0.0 {
                break;
            }
        }
    })
    .await;
    assert_eq!(decode.metric("kv_blocks_forged_total").await, 0.0);

    // The same prefill worker in the hands of somebody who does not know the secret.
    let fetched = decode.metric("kv_blocks_fetched_total").await;
    prefill.process.kill().await;
    let _prefill = Life::begin(home, "prefill", &["--role=prefill", &foreign]).await;
    soon("a prefill worker that is shunned", async {
        for seed in 200.. {
            check(seed).await;
            if decode.metric("prefills_total{by=\"itself_shunned\"}").await > 0.0 {
                break;
            }
        }
    })
    .await;
    assert_eq!(decode.metric("kv_blocks_forged_total").await, 1.0);
    assert_eq!(decode.metric("kv_blocks_fetched_total").await, fetched);
}

/// Every client that reaches a request plane can name a prefill worker.
#[tokio::test]
async fn a_prefill_worker_that_is_not_registered_is_not_connected_to() {
    let home = tempfile::tempdir().unwrap();
    let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let prefill = Life::begin(home.path(), "prefill", &["--role=prefill"]).await;
    let mut decode = Life::begin(home.path(), "decode", &["--role=decode"]).await;
    let peer = PrefillPeer {
        endpoint: format!("http://{}", stranger.local_addr().unwrap()),
        worker_id: prefill.record.workers[0].worker.worker.0,
        rank: 0,
        handover_json: prefill.record.profile.handover.clone().expect("it prefills"),
    };
    let sampling = Sampling { max_tokens: 4, ignore_eos: true, ..Sampling::default() };
    let submit = Submit {
        worker_id: decode.record.workers[0].worker.worker.0,
        token_ids: tokens(81, 100),
        sampling: Some(sampling),
        prefill: Some(peer),
        ..Submit::default()
    };
    let input = GenerateInput { input: Some(Input::Submit(submit)) };
    let inputs = futures::stream::iter([input]).chain(futures::stream::pending());
    let mut frames = decode.client.generate(inputs).await.unwrap().into_inner();
    let answered = async {
        while !frames.message().await.unwrap().unwrap().outputs.iter().any(|it| it.finish.is_some())
        {
        }
    };
    soon("an answer", answered).await;
    let refused = "prefills_total{by=\"itself_unregistered\"}";
    assert_eq!(decode.metric(refused).await, 1.0, "{}", decode.process.log());
    assert!(stranger.accept().now_or_never().is_none(), "nobody has connected");
}
