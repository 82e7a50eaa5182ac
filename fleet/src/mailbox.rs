//! The answers of one request on their way from its agent's connection to its HTTP response.
//!
//! A mailbox is small and has no queue of its own: what arrives while nobody looks is merged, so
//! that a slow reader costs as many bytes as its tokens have and no more.

use super::client::StreamError;
use parking_lot::Mutex;
use stator_protos::worker::{FinishReason, Output};
use std::task::{Context, Poll, Waker};

/// What has arrived for one request.
#[derive(Debug)]
pub(super) struct Mailbox(Mutex<State>);

#[derive(Debug)]
struct State {
    outputs: Vec<Output>,
    choices_left: u32,
    failure: Option<StreamError>,
    reader: Option<Waker>,
}

impl Mailbox {
    pub(super) fn new(choices: u32) -> Self {
        Self(Mutex::new(State {
            outputs: Vec::new(),
            choices_left: choices.max(1),
            failure: None,
            reader: None,
        }))
    }

    /// Takes an output in; returns whether it was the request's last, and who to wake.
    pub(super) fn push(&self, output: Output) -> (bool, Option<Waker>) {
        let mut state = self.0.lock();
        if let Some(finish) = &output.finish {
            let all = matches!(finish.reason(), FinishReason::Error | FinishReason::Cancelled);
            state.choices_left = if all { 0 } else { state.choices_left.saturating_sub(1) };
        }
        merge(&mut state.outputs, output);
        (state.choices_left == 0, state.reader.take())
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

/// Appends an output, joined to the one before it where both continue the same choice.
fn merge(outputs: &mut Vec<Output>, output: Output) {
    match outputs.last_mut() {
        Some(last) if last.choice == output.choice && last.finish.is_none() => {
            last.token_ids.extend(output.token_ids);
            last.logprobs.extend(output.logprobs);
            last.prompt_logprobs.extend(output.prompt_logprobs);
            last.cached_tokens = last.cached_tokens.or(output.cached_tokens);
            last.prefill_failed |= output.prefill_failed;
            last.transfer_us = last.transfer_us.max(output.transfer_us);
            last.finish = output.finish;
        }
        _ => outputs.push(output),
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

    /// Choices and tokens.
    type Taken = Vec<(u32, Vec<u32>)>;

    fn take(mailbox: &Mailbox) -> Poll<Result<Taken, StreamError>> {
        let mut outputs = vec![tokens(9, &[9])];
        let polled = mailbox.poll_take(&mut Context::from_waker(Waker::noop()), &mut outputs);
        polled.map_ok(|_| outputs.into_iter().map(|o| (o.choice, o.token_ids)).collect())
    }

    #[test]
    fn what_arrives_unread_is_merged_per_choice_and_taken_at_once() {
        let mailbox = Mailbox::new(2);
        assert_eq!(take(&mailbox), Poll::Pending);
        for output in [tokens(0, &[1]), tokens(0, &[2, 3]), tokens(1, &[4]), tokens(0, &[5])] {
            assert!(!mailbox.push(output).0);
        }
        let expected = vec![(0, vec![1, 2, 3]), (1, vec![4]), (0, vec![5])];
        assert_eq!(take(&mailbox), Poll::Ready(Ok(expected)));
        assert_eq!(take(&mailbox), Poll::Pending);
    }

    #[test]
    fn what_is_told_once_of_a_choice_outlives_a_merge() {
        let mailbox = Mailbox::new(1);
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
        let mailbox = Mailbox::new(2);
        assert!(!mailbox.push(last(1, FinishReason::Length)).0);
        assert!(mailbox.push(last(0, FinishReason::Stop)).0);
        assert_eq!(take(&mailbox), Poll::Ready(Ok(vec![(1, vec![]), (0, vec![])])));
        assert_eq!(take(&mailbox), Poll::Ready(Ok(vec![])));
    }

    #[test]
    fn an_error_ends_all_choices() {
        let mailbox = Mailbox::new(3);
        assert!(mailbox.push(last(0, FinishReason::Error)).0);
    }

    #[test]
    fn what_arrived_before_a_failure_is_still_read() {
        let mailbox = Mailbox::new(1);
        mailbox.push(tokens(0, &[1]));
        mailbox.fail(StreamError::Disconnected);
        assert_eq!(take(&mailbox), Poll::Ready(Ok(vec![(0, vec![1])])));
        assert_eq!(take(&mailbox), Poll::Ready(Err(StreamError::Disconnected)));
    }
}
