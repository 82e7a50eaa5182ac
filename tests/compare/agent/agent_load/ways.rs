//! The ways to an engine's tokens, and a stream of requests on one of them.

use crate::Failure;
use crate::figures::Seen;
use crate::relayed::Relay;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use stator_fleet::AgentClient;
use stator_protos::WorkerRank;
use stator_protos::worker::{FinishReason, Sampling, Submit};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Where an engine takes requests for tokens.
const PATH: &str = "/inference/v1/generate";

/// How tokens are asked for.
#[derive(Clone)]
pub(crate) enum Way {
    /// Of the engine itself, by HTTP, each stream on a connection of its own.
    Engine(SocketAddr),
    /// The same by way of the relay, which reads nothing of it.
    Relay(Relay),
    /// Of its agent.
    Agent { client: Arc<AgentClient>, worker: WorkerRank },
}

impl Way {
    pub(crate) fn engine(url: &str) -> Result<Self, Failure> {
        Ok(Self::Engine(url.trim_start_matches("http://").parse()?))
    }
}

/// Sends one request after the other.
pub(crate) struct Worker {
    way: Way,
    prompt: Vec<u32>,
    max_tokens: u32,
    number: u32,
    connection: Option<SendRequest<Full<Bytes>>>,
    relayed: Option<mpsc::Receiver<Vec<u8>>>,
}

/// One request that runs.
struct Clock<'a> {
    seen: &'a mut Seen,
    /// Between these it is counted.
    counted: (Instant, Instant),
    start: Instant,
    first: Option<Instant>,
    tokens: u32,
}

impl Worker {
    pub(crate) fn new(way: Way, (prompt, max_tokens): (u32, u32), number: u32) -> Self {
        let token = |n: u32| 1 + n.wrapping_mul(31).wrapping_add(number * 7919) % 30_000;
        let prompt = (0..prompt).map(token).collect();
        Self { way, prompt, max_tokens, number, connection: None, relayed: None }
    }

    /// Sends requests, the first of them at its time; says what it saw while it was counted.
    pub(crate) async fn run(
        mut self,
        (mut due, period): (Instant, Duration),
        counted: (Instant, Instant),
    ) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        while Instant::now() < counted.1 {
            tokio::time::sleep_until(due.into()).await;
            due += period;
            let start = Instant::now();
            let mut clock = Clock { seen: &mut seen, counted, start, first: None, tokens: 0 };
            match self.way.clone() {
                Way::Engine(address) => self.ask_engine(address, &mut clock).await?,
                Way::Relay(relay) => self.ask_relay(&relay, &mut clock).await?,
                Way::Agent { client, worker } => self.ask(&client, worker, &mut clock).await?,
            }
            let got = clock.tokens;
            if got != self.max_tokens {
                return Err(format!("{got} tokens came, not {}", self.max_tokens).into());
            }
            clock.ended();
        }
        Ok(seen)
    }

    async fn ask(
        &self,
        client: &AgentClient,
        worker: WorkerRank,
        clock: &mut Clock<'_>,
    ) -> Result<(), Failure> {
        let sampling =
            Sampling { max_tokens: self.max_tokens, ignore_eos: true, ..Sampling::default() };
        let mut stream = client.submit(Submit {
            worker_id: worker.worker.0,
            rank: worker.rank.into(),
            token_ids: self.prompt.clone(),
            sampling: Some(sampling),
            ..Submit::default()
        });
        let mut outputs = Vec::new();
        while stream.next(&mut outputs).await? {
            for output in &outputs {
                clock.tokens(output.token_ids.iter().copied());
                if let Some(finish) = &output.finish
                    && finish.reason() != FinishReason::Length
                {
                    return Err(format!("ended with {finish:?}").into());
                }
            }
        }
        Ok(())
    }

    async fn ask_engine(
        &mut self,
        address: SocketAddr,
        clock: &mut Clock<'_>,
    ) -> Result<(), Failure> {
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => connect(address).await?,
        };
        connection.ready().await?;
        let request = Request::post(PATH)
            .header("host", "engine")
            .header("content-type", "application/json")
            .body(Full::new(self.body().into()))?;
        let response = connection.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(format!("the engine answered {}", response.status()).into());
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            // Each write of the engine is one event or the end, and comes as one.
            let Ok(data) = frame?.into_data() else { continue };
            clock.tokens(tokens_in(std::str::from_utf8(&data)?));
        }
        self.connection = Some(connection);
        Ok(())
    }

    async fn ask_relay(&mut self, relay: &Relay, clock: &mut Clock<'_>) -> Result<(), Failure> {
        let body = self.body();
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let pieces = self.relayed.get_or_insert_with(|| relay.open(self.number));
        relay.send(self.number, (head + &body).as_bytes()).await?;
        let mut end = Vec::new();
        // The last chunk has no bytes.
        while !end.ends_with(b"\r\n0\r\n\r\n") {
            let piece = pieces.recv().await.ok_or("the relay has ended")?;
            clock.tokens(tokens_in(std::str::from_utf8(&piece)?));
            end.extend_from_slice(&piece[piece.len().saturating_sub(7)..]);
        }
        Ok(())
    }

    fn body(&self) -> String {
        let sampling = serde_json::json!({
            "temperature": 0.0, "max_tokens": self.max_tokens, "ignore_eos": true, "detokenize": false});
        let body = serde_json::json!({
            "token_ids": self.prompt, "sampling_params": sampling, "stream": true,
            "stream_options": {"include_usage": true}});
        body.to_string()
    }
}

/// The ids in a piece of a stream.
fn tokens_in(events: &str) -> impl Iterator<Item = u32> {
    let lists = events.split("\"token_ids\":[").skip(1);
    let ids = lists.filter_map(|rest| rest.split(']').next());
    ids.flat_map(|ids| ids.split(',').filter_map(|id| id.parse().ok()))
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its end shows in the request that it cuts off.
    tokio::spawn(connection);
    Ok(sender)
}

impl Clock<'_> {
    fn counts(&self, now: Instant) -> bool {
        self.counted.0 <= now && now < self.counted.1
    }

    fn tokens(&mut self, ids: impl Iterator<Item = u32>) {
        let (now, now_us) = (Instant::now(), now_us());
        for made in ids {
            self.tokens += 1;
            if self.first.is_none() {
                self.first = Some(now);
                if self.counts(now) {
                    self.seen.first.push((now - self.start).as_micros() as u32);
                }
            }
            if self.counts(now) {
                self.seen.tokens += 1;
                self.seen.delays.push(now_us.wrapping_sub(made));
            }
        }
    }

    fn ended(self) {
        let now = Instant::now();
        if !self.counts(now) {
            return;
        }
        self.seen.requests += 1;
        if let Some(first) = self.first.filter(|_| self.tokens > 1) {
            self.seen.gaps.push(((now - first) / (self.tokens - 1)).as_micros() as u32);
        }
    }
}

/// Microseconds since the Unix epoch, modulo 2^32, as the engine's tokens have them.
fn now_us() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u32)
}
