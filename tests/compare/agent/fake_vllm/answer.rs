//! The answer to one request for tokens, and the clock that all answers share.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// The part of a request that matters here.
#[derive(Deserialize)]
pub(crate) struct Asked {
    token_ids: Box<RawValue>,
    sampling_params: Sampling,
}

#[derive(Deserialize)]
struct Sampling {
    max_tokens: u64,
}

/// An answer in the making.
pub(crate) struct Answer {
    id: u64,
    steps: Option<watch::Receiver<u64>>,
    active: Arc<AtomicU64>,
    prompt_tokens: usize,
    /// Tokens that it will have, and those that it has.
    tokens: u64,
    sent: u64,
    ended: bool,
}

/// Ticks that all streams share. A late step delays those after it, as in an engine.
pub(crate) fn steps(period: Duration) -> watch::Receiver<u64> {
    let (sender, receiver) = watch::channel(0);
    tokio::spawn(async move {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            sender.send_modify(|step| *step += 1);
        }
    });
    receiver
}

impl Answer {
    pub(crate) fn new(
        id: u64,
        asked: &Asked,
        steps: Option<watch::Receiver<u64>>,
        active: Arc<AtomicU64>,
    ) -> Self {
        active.fetch_add(1, Relaxed);
        let ids = asked.token_ids.get();
        let prompt_tokens = ids.bytes().filter(|byte| *byte == b',').count() + 1;
        let tokens = asked.sampling_params.max_tokens.max(1);
        Self { id, steps, active, prompt_tokens, tokens, sent: 0, ended: false }
    }

    /// The next write of the stream: a token, or after the last one the end; `None` after that.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if self.sent == self.tokens {
            self.ended = true;
            return Some(self.usage().into());
        }
        match &mut self.steps {
            Some(steps) if self.sent > 0 => {
                steps.mark_unchanged();
                // An error would mean that steps have ended, which they never do.
                let _ = steps.changed().await;
            }
            // Lets the connection write what it has, so that every token is its own write.
            None => tokio::task::yield_now().await,
            // Prompts take no time.
            Some(_) => {}
        }
        self.sent += 1;
        let finish = if self.sent == self.tokens { "\"length\"" } else { "null" };
        let (id, token) = (self.id, now_us());
        Some(
            format!(
                r#"data: {{"request_id":"generate-tokens-{id:016x}","usage":null,"output_mode":"tokens","choices":[{{"index":0,"finish_reason":{finish},"stop_reason":null,"token_ids":[{token}],"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}}]}}

"#
            )
            .into(),
        )
    }

    fn usage(&self) -> String {
        let (id, prompt, completion) = (self.id, self.prompt_tokens, self.tokens);
        let total = prompt as u64 + completion;
        format!(
            r#"data: {{"request_id":"generate-tokens-{id:016x}","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion},"prompt_tokens_details":{{"cached_tokens":0}}}},"output_mode":"tokens","choices":[]}}

data: [DONE]

"#
        )
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.active.fetch_sub(1, Relaxed);
    }
}

/// Microseconds since the Unix epoch, modulo 2^32.
fn now_us() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u32)
}
