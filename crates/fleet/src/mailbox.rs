//! The answers of one request on their way from its agent's connection to its HTTP response.
//!
//! A mailbox is small and has no queue of its own: what arrives while nobody looks is merged, so
//! that a slow reader costs as many bytes as its tokens have and no more. It is bounded too: the
//! request of a reader that falls too far behind ends, because holding its tokens back would hold
//! back those of all other requests on the same connection.

use super::error::StreamError;
use parking_lot::Mutex;
use stator_protos::worker::{FinishReason, Output, TokenLogprobs, TopLogprob};
use std::task::{Context, Poll, Waker};

/// Outputs that have arrived for one request.
#[derive(Debug)]
pub(super) struct Mailbox(Mutex<State>);

#[derive(Debug)]
struct State {
    outputs: Vec<Output>,
    choices_left: u32,
    /// Bytes that arrived behind the first unread output.
    behind_bytes: usize,
    limit_bytes: usize,
    failure: Option<StreamError>,
    reader: Option<Waker>,
}

/// State of a request after an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More outputs will come.
    Running,
    /// The output was the last.
    Ended,
    /// The reader is too far behind. The mailbox takes nothing more and is empty.
    Overrun,
}

impl Mailbox {
    /// A mailbox for a request of so many choices. Behind the first unread output, which may have
    /// any size, it holds `limit_bytes` at most.
    pub(super) fn new(choices: u32, limit_bytes: usize) -> Self {
        Self(Mutex::new(State {
            outputs: Vec::new(),
            choices_left: choices.max(1),
            behind_bytes: 0,
            limit_bytes,
            failure: None,
            reader: None,
        }))
    }

    /// Takes an output in; returns how the request goes on, and who to wake.
    pub(super) fn push(&self, output: Output) -> (Progress, Option<Waker>) {
        let mut state = self.0.lock();
        if let Some(finish) = &output.finish {
            let all = matches!(finish.reason(), FinishReason::Error | FinishReason::Cancelled);
            state.choices_left = if all { 0 } else { state.choices_left.saturating_sub(1) };
        }
        if !state.outputs.is_empty() {
            state.behind_bytes += content_bytes(&output);
        }
        // An output that is not merged takes its own room too.
        if merge(&mut state.outputs, output) && state.outputs.len() > 1 {
            state.behind_bytes += size_of::<Output>();
        }
        let limit = state.limit_bytes;
        if state.behind_bytes > limit {
            state.outputs = Vec::new();
            state.failure = Some(StreamError::Unread { limit });
            // The failure has to be seen even where this was the last output.
            state.choices_left = state.choices_left.max(1);
            return (Progress::Overrun, state.reader.take());
        }
        let ended = state.choices_left == 0;
        (if ended { Progress::Ended } else { Progress::Running }, state.reader.take())
    }

    /// Ends the request with a failure; returns who to wake.
    pub(super) fn fail(&self, failure: StreamError) -> Option<Waker> {
        let mut state = self.0.lock();
        state.failure = Some(failure);
        state.reader.take()
    }

    /// Swaps what has arrived into `outputs`, which is emptied first. `false`: all has been taken
    /// before and nothing more will come.
    pub(super) fn poll_take(
        &self,
        context: &mut Context<'_>,
        outputs: &mut Vec<Output>,
    ) -> Poll<Result<bool, StreamError>> {
        outputs.clear();
        let mut state = self.0.lock();
        if !state.outputs.is_empty() {
            std::mem::swap(&mut state.outputs, outputs);
            state.behind_bytes = 0;
            return Poll::Ready(Ok(true));
        }
        if state.choices_left == 0 {
            return Poll::Ready(Ok(false));
        }
        if let Some(failure) = state.failure {
            return Poll::Ready(Err(failure));
        }
        let known = state.reader.as_ref().is_some_and(|reader| reader.will_wake(context.waker()));
        if !known {
            state.reader = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Bytes of what an output brings: ids and log probabilities.
fn content_bytes(output: &Output) -> usize {
    let logprobs = output.logprobs.iter().chain(&output.prompt_logprobs);
    let logprobs = logprobs
        .map(|token| size_of::<TokenLogprobs>() + token.top.len() * size_of::<TopLogprob>());
    size_of_val(&*output.token_ids) + size_of_val(&*output.pooled) + logprobs.sum::<usize>()
}

/// Appends an output, joined to the one before it where both continue the same choice. Returns
/// whether the output is an entry of its own.
fn merge(outputs: &mut Vec<Output>, output: Output) -> bool {
    match outputs.last_mut() {
        Some(last) if last.choice == output.choice && last.finish.is_none() => {
            last.token_ids.extend(output.token_ids);
            last.logprobs.extend(output.logprobs);
            last.prompt_logprobs.extend(output.prompt_logprobs);
            last.cached_tokens = last.cached_tokens.or(output.cached_tokens);
            last.prefill_failed |= output.prefill_failed;
            last.transfer_us = last.transfer_us.max(output.transfer_us);
            last.pooled.extend(output.pooled);
            last.finish = output.finish;
            false
        }
        _ => {
            outputs.push(output);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::worker::Finish;
    use std::task::Waker;

    fn tokens(choice: u32, token_ids: &[u32]) -> Output {
        Output { choice, token_ids: token_ids.to_vec(), ..Output::default() }
    }

    fn last(choice: u32, reason: FinishReason) -> Output {
        let finish = Some(Finish { reason: reason.into(), ..Finish::default() });
        Output { choice, finish, ..Output::default() }
    }

    fn mailbox(choices: u32) -> Mailbox {
        Mailbox::new(choices, 1 << 20)
    }

    /// Choices and tokens.
    type Taken = Vec<(u32, Vec<u32>)>;

    fn take(mailbox: &Mailbox) -> Poll<Result<Taken, StreamError>> {
        let mut outputs = vec![tokens(9, &[9])];
        let polled = mailbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut outputs);
        polled.map_ok(|_| outputs.into_iter().map(|o| (o.choice, o.token_ids)).collect())
    }

    #[test]
    fn what_arrives_unread_is_merged_per_choice_and_taken_at_once() {
        let mailbox = mailbox(2);
        assert_eq!(take(&mailbox), Poll::Pending);
        for output in [tokens(0, &[1]), tokens(0, &[2, 3]), tokens(1, &[4]), tokens(0, &[5])] {
            assert_eq!(mailbox.push(output).0, Progress::Running);
        }
        let expected = vec![(0, vec![1, 2, 3]), (1, vec![4]), (0, vec![5])];
        assert_eq!(take(&mailbox), Poll::Ready(Ok(expected)));
        assert_eq!(take(&mailbox), Poll::Pending);
    }

    #[test]
    fn what_is_told_once_of_a_choice_outlives_a_merge() {
        let mailbox = mailbox(1);
        let told = Output { transfer_us: 700, ..tokens(0, &[2]) };
        for output in [tokens(0, &[1]), told, tokens(0, &[3])] {
            mailbox.push(output);
        }
        let mut outputs = Vec::new();
        let polled = mailbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut outputs);
        assert_eq!(polled, Poll::Ready(Ok(true)));
        assert_eq!((outputs.len(), outputs[0].transfer_us), (1, 700));
    }

    #[test]
    fn it_ends_with_the_last_choice() {
        let mailbox = mailbox(2);
        assert_eq!(mailbox.push(last(1, FinishReason::Length)).0, Progress::Running);
        assert_eq!(mailbox.push(last(0, FinishReason::Stop)).0, Progress::Ended);
        assert_eq!(take(&mailbox), Poll::Ready(Ok(vec![(1, vec![]), (0, vec![])])));
        assert_eq!(take(&mailbox), Poll::Ready(Ok(vec![])));
    }

    #[test]
    fn an_error_ends_all_choices() {
        let mailbox = mailbox(3);
        assert_eq!(mailbox.push(last(0, FinishReason::Error)).0, Progress::Ended);
    }

    #[test]
    fn what_arrived_before_a_failure_is_still_read() {
        let mailbox = mailbox(1);
        mailbox.push(tokens(0, &[1]));
        mailbox.fail(StreamError::Disconnected);
        assert_eq!(take(&mailbox), Poll::Ready(Ok(vec![(0, vec![1])])));
        assert_eq!(take(&mailbox), Poll::Ready(Err(StreamError::Disconnected)));
    }
    #[test]
    fn a_reader_that_falls_too_far_behind_is_cut_off() {
        let mailbox = Mailbox::new(1, 400);
        // However large, an output that finds nothing unread is taken, and so is what fits behind.
        for _ in 0..3 {
            assert_eq!(mailbox.push(tokens(0, &[1; 1000])).0, Progress::Running);
            assert_eq!(mailbox.push(tokens(0, &[2; 100])).0, Progress::Running);
            assert!(matches!(take(&mailbox), Poll::Ready(Ok(taken)) if taken[0].1.len() == 1100));
        }
        mailbox.push(tokens(0, &[1]));
        assert_eq!(mailbox.push(tokens(0, &[2; 101])).0, Progress::Overrun);
        assert_eq!(take(&mailbox), Poll::Ready(Err(StreamError::Unread { limit: 400 })));
    }

    #[test]
    fn log_probabilities_count_as_unread() {
        let mailbox = Mailbox::new(1, 4096);
        let top = vec![TopLogprob::default(); 20];
        let logprobs = vec![TokenLogprobs { top, ..TokenLogprobs::default() }];
        let output = || Output { logprobs: logprobs.clone(), ..tokens(0, &[1]) };
        let pushed = (0..100).map(|_| mailbox.push(output()).0);
        assert!(pushed.take_while(|progress| *progress == Progress::Running).count() < 30);
    }

    #[test]
    fn the_last_output_does_not_hide_that_some_were_lost() {
        let mailbox = Mailbox::new(1, 4);
        mailbox.push(tokens(0, &[1]));
        let output = Output { token_ids: vec![2, 3], ..last(0, FinishReason::Stop) };
        assert_eq!(mailbox.push(output).0, Progress::Overrun);
        assert!(matches!(take(&mailbox), Poll::Ready(Err(StreamError::Unread { .. }))));
    }
}
