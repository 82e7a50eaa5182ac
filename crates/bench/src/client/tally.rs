//! Adds up the events of one stream. Pure: the time of each event is an argument.

use std::time::Duration;

use super::failure::{RequestFailure, error_kind};
use super::scan::{self, TokenUsage};

/// Most gaps that are kept of one answer; later ones are not counted as gaps.
const GAPS_MAX: usize = 65_536;
/// Most text that is kept of one answer; the rest is dropped from the conversation.
const TEXT_MAX_BYTES: usize = 4 << 20;

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredReply {
    /// From sending the request to the first chunk with content. `None` where the answer was not
    /// streamed or has no content.
    pub ttft: Option<Duration>,
    /// From sending the request to the end of the answer.
    pub latency: Duration,
    /// Times between chunks with content.
    pub gaps: Vec<Duration>,
    /// Chunks with content.
    pub chunks: u64,
    /// The server's token counts.
    pub usage: Option<TokenUsage>,
    /// The text of the answer, where it was asked for.
    pub text: String,
}

impl MeasuredReply {
    /// Tokens of the answer: the server's count, or the chunks with content where it gave none.
    pub fn output_tokens(&self) -> u64 {
        self.usage.map_or(self.chunks, |usage| usage.completion_tokens)
    }

    /// Mean gap between the tokens of the answer, `(latency − TTFT) / (OSL − 1)`; `None` where
    /// there are fewer than two, or no stream.
    pub fn itl(&self) -> Option<Duration> {
        let gaps =
            u32::try_from(self.output_tokens().checked_sub(1)?).ok().filter(|gaps| *gaps > 0)?;
        Some(self.latency.saturating_sub(self.ttft?) / gaps)
    }
}

/// Reads a stream as it arrives. Times count from the sending of the request.
#[derive(Debug, Default)]
pub(crate) struct ReplyTally {
    reply: MeasuredReply,
    keep_text: bool,
    last_content: Duration,
    end: Option<Duration>,
    finished: bool,
    failure: Option<RequestFailure>,
}

impl ReplyTally {
    pub(crate) fn new(keep_text: bool) -> Self {
        Self { keep_text, ..Self::default() }
    }

    /// Takes the data of one event that arrived at `at`.
    pub(crate) fn event(&mut self, data: &[u8], at: Duration) {
        if self.failure.is_some() || self.end.is_some() {
            return;
        }
        if data == b"[DONE]" {
            self.end = Some(at);
            return;
        }
        let chunk = scan::chunk(data);
        if chunk.error {
            self.failure = Some(RequestFailure::Stream { kind: error_kind(data) });
            return;
        }
        self.finished |= chunk.finished;
        self.reply.usage = chunk.usage.or(self.reply.usage);
        if chunk.content {
            self.content(at);
        }
        if let Some(text) = chunk.text.filter(|_| self.keep_text) {
            self.keep(text);
        }
    }

    /// The answer, when the body ended at `at`.
    pub(crate) fn finish(mut self, at: Duration) -> Result<MeasuredReply, RequestFailure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        // Some servers end without `[DONE]`; a finish reason is an end as well.
        match self.end {
            None if !self.finished => return Err(RequestFailure::Truncated),
            end => self.reply.latency = end.unwrap_or(at),
        }
        Ok(self.reply)
    }

    fn content(&mut self, at: Duration) {
        self.reply.chunks += 1;
        if self.reply.ttft.is_none() {
            self.reply.ttft = Some(at);
        } else if self.reply.gaps.len() < GAPS_MAX {
            self.reply.gaps.push(at.saturating_sub(self.last_content));
        }
        self.last_content = at;
    }

    fn keep(&mut self, json: &[u8]) {
        if let Ok(text) = serde_json::from_slice::<String>(json)
            && self.reply.text.len() + text.len() <= TEXT_MAX_BYTES
        {
            self.reply.text.push_str(&text);
        }
    }
}

/// Reads an answer that is no stream and was whole at `at`.
pub(crate) fn whole(
    body: &[u8],
    at: Duration,
    keep_text: bool,
) -> Result<MeasuredReply, RequestFailure> {
    if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err() {
        return Err(RequestFailure::Malformed);
    }
    let mut tally = ReplyTally::new(keep_text);
    tally.event(body, at);
    let reply = ReplyTally { end: Some(at), ..tally }.finish(at)?;
    Ok(MeasuredReply { ttft: None, ..reply })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn stream(events: &[(u64, &str)], end: u64) -> Result<MeasuredReply, RequestFailure> {
        let mut tally = ReplyTally::new(true);
        events.iter().for_each(|(at, data)| tally.event(data.as_bytes(), ms(*at)));
        tally.finish(ms(end))
    }

    const ROLE: &str = r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
    const A: &str = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
    const END: &str = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#;

    #[test]
    fn ttft_is_the_first_chunk_with_content() {
        let reply = stream(
            &[(1, ROLE), (10, A), (14, A), (20, A), (21, END), (22, USAGE), (30, "[DONE]")],
            99,
        )
        .unwrap();
        assert_eq!((reply.ttft, reply.latency), (Some(ms(10)), ms(30)));
        assert_eq!(reply.gaps, [ms(4), ms(6)]);
        assert_eq!(reply.text, "aaa");
        // Five tokens came in three chunks: the server's count decides.
        assert_eq!(reply.itl(), Some(ms(5)));
    }

    #[test]
    fn chunks_count_as_tokens_where_the_server_counts_none() {
        let reply = stream(&[(10, A), (14, A), (20, A), (21, END)], 24).unwrap();
        assert_eq!((reply.output_tokens(), reply.itl()), (3, Some(ms(7))));
    }

    #[test]
    fn one_token_has_no_gap() {
        assert_eq!(stream(&[(10, A), (12, "[DONE]")], 12).unwrap().itl(), None);
        assert_eq!(stream(&[(12, "[DONE]")], 12).unwrap().itl(), None);
    }

    #[test]
    fn a_stream_without_an_end_is_cut_short() {
        assert_eq!(stream(&[(1, ROLE), (10, A)], 12), Err(RequestFailure::Truncated));
    }

    #[test]
    fn an_error_in_the_stream_is_a_failure() {
        let error = r#"{"error":{"message":"m","type":"worker_lost"}}"#;
        let failure = RequestFailure::Stream { kind: "worker_lost".to_owned() };
        assert_eq!(stream(&[(10, A), (11, error), (12, "[DONE]")], 12), Err(failure));
    }

    #[test]
    fn whole_answers_have_no_ttft() {
        let body = r#"{"choices":[{"message":{"content":"abc"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#;
        let reply = whole(body.as_bytes(), ms(9), true).unwrap();
        assert_eq!((reply.ttft, reply.itl(), reply.latency), (None, None, ms(9)));
        assert_eq!((reply.output_tokens(), reply.text.as_str()), (5, "abc"));
        assert_eq!(whole(b"<html>", ms(9), true), Err(RequestFailure::Malformed));
        let error = RequestFailure::Stream { kind: "x".to_owned() };
        assert_eq!(whole(br#"{"error":{"type":"x"}}"#, ms(9), true), Err(error));
    }
}
