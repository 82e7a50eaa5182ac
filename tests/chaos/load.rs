//! Clients with known answers: each asks one thing after the other and checks every byte.

use crate::fleet::{Backend, Fleet};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};
use stator_tests::http::{Broken, Client, Events};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest time in which a stream may say nothing: the time to notice a hung agent, the time in
/// which all agents are down at once, and the time that they take to come back.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(12);

/// Failures that are shown; the others are counted.
const FAULTS_SHOWN: usize = 50;

/// A question and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    body: Value,
    answer: String,
}

impl Question {
    /// Questions that share prefixes, with the answers of a fleet at peace.
    pub(crate) async fn all(calm: &Client) -> Vec<Self> {
        let mut asked = JoinSet::new();
        for topic in ["the sea", "the wood", "the town", "the road"] {
            for (turn, max_tokens) in [(1, 20), (2, 60), (3, 200), (4, 400)] {
                let text = format!("Tell me about {topic}. ").repeat(10 * turn);
                let body = json!({
                    "model": "stator-tiny",
                    "messages": [{"role": "user", "content": text}],
                    "max_tokens": max_tokens,
                    "temperature": 0,
                    "ignore_eos": true,
                    "stream": true,
                });
                asked.spawn(Self::of(calm.clone(), body));
            }
        }
        let mut questions = asked.join_all().await;
        // Answers come in any order, and a seed names questions by their places.
        questions.sort_by_cached_key(|question| question.body.to_string());
        questions
    }

    async fn of(calm: Client, body: Value) -> Self {
        let events = calm.stream("/v1/chat/completions", &body).await;
        match read(events).await {
            Ok((answer, _)) => Self { body, answer },
            Err(fault) => panic!("a fleet at peace: {fault}"),
        }
    }
}

/// The outcomes of the requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Requests with the right answer.
    pub right: u64,
    /// Requests that ended with their proxy; the client asked another one.
    pub died_with_proxy: u64,
    /// Longest silence within an answer.
    pub silence: Duration,
    /// Requests that failed or had a wrong answer.
    pub failed: u64,
    /// The first of them: what was seen.
    pub faults: Vec<String>,
}

impl Tally {
    fn fail(&mut self, fault: String) {
        self.failed += 1;
        if self.faults.len() < FAULTS_SHOWN {
            self.faults.push(fault);
        }
    }
}

/// Why an answer is not whole.
enum Fault {
    /// The connection was refused or broke.
    Broken(String),
    /// The server said no, or ended the stream with an error.
    Refused(String),
    /// Nothing came for [`SILENCE_MAX`].
    Silent,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(why) => write!(f, "broken: {why}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Silent => write!(f, "nothing for {SILENCE_MAX:?}"),
        }
    }
}

/// Asks until told to stop.
pub(crate) async fn ask(
    fleet: Arc<Fleet>,
    questions: Arc<Vec<Question>>,
    seed: u64,
    tally: Arc<watch::Sender<Tally>>,
    stop: watch::Receiver<bool>,
) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    while !*stop.borrow() {
        let question = &questions[random.next_u32() as usize % questions.len()];
        let backends = fleet.backends();
        let (proxy, backend) = &backends[random.next_u32() as usize % backends.len()];
        let began = Instant::now();
        let outcome = answer(backend, question).await;
        let took = began.elapsed();
        tally.send_modify(|tally| match outcome {
            Ok((text, silence)) => {
                tally.silence = tally.silence.max(silence);
                if text == question.answer {
                    tally.right += 1;
                } else {
                    tally.fail(format!("wrong: {text:?}, not {:?}", question.answer));
                }
            }
            // A stream cannot outlive the proxy that it comes from.
            Err(Fault::Broken(_)) if fleet.has_died(*proxy, backend.life) => {
                tally.died_with_proxy += 1;
            }
            Err(fault) => {
                tally.fail(format!("proxy {proxy}, life {}, after {took:?}: {fault}", backend.life))
            }
        });
    }
}

async fn answer(backend: &Backend, question: &Question) -> Result<(String, Duration), Fault> {
    let asked = backend.client.try_stream("/v1/chat/completions", &question.body);
    let events = timeout(2 * SILENCE_MAX, asked).await.map_err(|_| Fault::Silent)?;
    let events = events.map_err(|Broken(why)| Fault::Broken(why))?;
    if events.response.status() != 200 {
        let status = events.response.status();
        let mut events = events;
        let body = events.end().await.unwrap_or_default();
        return Err(Fault::Refused(format!("{status}: {}", String::from_utf8_lossy(&body))));
    }
    read(events).await
}

/// Reads a stream to its end: its text, and the longest silence within it.
async fn read(mut events: Events) -> Result<(String, Duration), Fault> {
    let (mut text, mut silence) = (String::new(), Duration::ZERO);
    loop {
        let waits = Instant::now();
        let event = timeout(SILENCE_MAX, events.next()).await.map_err(|_| Fault::Silent)?;
        silence = silence.max(waits.elapsed());
        let event = event.ok_or_else(|| Fault::Broken("ended without [DONE]".into()))?;
        if event == "[DONE]" {
            return Ok((text, silence));
        }
        let event: Value = serde_json::from_str(&event).expect("events are JSON");
        if !event["error"].is_null() {
            return Err(Fault::Refused(event.to_string()));
        }
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
}
