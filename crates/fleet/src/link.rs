//! One connection to an agent: a single Generate stream that carries all requests of the link.
//!
//! One task reads frames and hands each output to its request's mailbox. There is no task, channel
//! or allocation per token beside the tokens themselves.

use super::error::StreamError;
use super::mailbox::{Mailbox, Progress};
use super::settings::ClientSettings;
use super::silence::Silence;
use futures::Stream;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use stator_protos::worker::generate_input::Input;
use stator_protos::worker::worker_client::WorkerClient;
use stator_protos::worker::{Cancel, GenerateFrame, GenerateInput, Submit};
use stator_runtime::dial::DialTarget;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// State that requests and their connection share.
#[derive(Debug)]
pub(super) struct Link {
    state: Mutex<State>,
    sender: AtomicWaker,
    requests_max: usize,
    unread_bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    up: bool,
    /// Counts connections, so that the remains of an earlier one take nothing from the present.
    connection: u64,
    next_id: u64,
    requests: FxHashMap<u64, Arc<Mailbox>>,
    /// At most one submission and one cancellation per request: see [`Link::submit`].
    outgoing: VecDeque<GenerateInput>,
}

impl State {
    /// Forgets a request and leaves word for the agent; false where the request has ended.
    fn cancel(&mut self, request_id: u64) -> bool {
        if self.requests.remove(&request_id).is_none() {
            return false;
        }
        let cancel = GenerateInput { input: Some(Input::Cancel(Cancel { request_id })) };
        self.outgoing.push_back(cancel);
        true
    }
}

impl Link {
    pub(super) fn new(settings: &ClientSettings) -> Self {
        Self {
            state: Mutex::default(),
            sender: AtomicWaker::new(),
            requests_max: settings.requests_max,
            unread_bytes_max: settings.unread_bytes_max,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.lock().up
    }

    /// Sends a request; returns its id on this link and where its answers arrive.
    ///
    /// # Errors
    ///
    /// [`StreamError`] when the link is down or has as many requests as it may.
    pub(super) fn submit(&self, mut submit: Submit) -> Result<(u64, Arc<Mailbox>), StreamError> {
        let mailbox = Arc::new(Mailbox::new(submit.choices, self.unread_bytes_max));
        let mut state = self.state.lock();
        if !state.up {
            return Err(StreamError::Unsent);
        }
        let limit = self.requests_max;
        if state.requests.len() >= limit || state.outgoing.len() >= limit {
            return Err(StreamError::Overloaded { limit });
        }
        let id = state.next_id;
        state.next_id += 1;
        submit.request_id = id;
        state.requests.insert(id, mailbox.clone());
        state.outgoing.push_back(GenerateInput { input: Some(Input::Submit(submit)) });
        drop(state);
        self.sender.wake();
        Ok((id, mailbox))
    }

    /// Forgets a request and tells the agent, unless it has ended.
    pub(super) fn cancel(&self, request_id: u64) {
        let mut state = self.state.lock();
        let cancelled = state.cancel(request_id);
        drop(state);
        if cancelled {
            self.sender.wake();
        }
    }

    /// Hands a frame's outputs to their requests; `wakers` is scratch space.
    fn dispatch(&self, frame: GenerateFrame, wakers: &mut Vec<Waker>) {
        let mut state = self.state.lock();
        let mut cancelled = false;
        for output in frame.outputs {
            let id = output.request_id;
            // A request may have been cancelled while this was on its way.
            let Some(mailbox) = state.requests.get(&id) else { continue };
            let (progress, reader) = mailbox.push(output);
            wakers.extend(reader);
            match progress {
                Progress::Running => {}
                Progress::Ended => drop(state.requests.remove(&id)),
                // The engine computes for nobody from here on.
                Progress::Overrun => cancelled |= state.cancel(id),
            }
        }
        drop(state);
        if cancelled {
            self.sender.wake();
        }
        // Outside the lock: a woken reader may want it at once.
        wakers.drain(..).for_each(Waker::wake);
    }

    fn open(self: &Arc<Self>) -> Outgoing {
        let mut state = self.state.lock();
        state.connection += 1;
        Outgoing { link: self.clone(), connection: state.connection }
    }

    fn set_up(&self) {
        self.state.lock().up = true;
    }

    /// Requests whose answers have not ended.
    fn owed(&self) -> usize {
        self.state.lock().requests.len()
    }

    /// Ends the present connection: all its requests fail at once.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.up = false;
        state.connection += 1;
        let outgoing = std::mem::take(&mut state.outgoing);
        let mut requests = std::mem::take(&mut state.requests);
        drop(state);
        self.sender.wake();
        let unsent = outgoing.into_iter().filter_map(|input| match input.input {
            Some(Input::Submit(submit)) => requests.remove(&submit.request_id),
            _ => None,
        });
        let unsent: Vec<_> = unsent.map(|mailbox| mailbox.fail(StreamError::Unsent)).collect();
        let lost = requests.into_values().map(|mailbox| mailbox.fail(StreamError::Disconnected));
        unsent.into_iter().chain(lost).flatten().for_each(Waker::wake);
    }
}

/// Stream of inputs to the agent on one connection.
struct Outgoing {
    link: Arc<Link>,
    connection: u64,
}

impl Stream for Outgoing {
    type Item = GenerateInput;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<GenerateInput>> {
        // Registered before the look, so that a submission in between wakes the stream.
        self.link.sender.register(context.waker());
        let mut state = self.link.state.lock();
        if state.connection != self.connection {
            return Poll::Ready(None);
        }
        state.outgoing.pop_front().map_or(Poll::Pending, |input| Poll::Ready(Some(input)))
    }
}

/// Keeps the link connected until dropped; `up` counts the agent's links that are.
pub(super) async fn run(
    link: Arc<Link>,
    target: DialTarget,
    settings: ClientSettings,
    up: Arc<watch::Sender<usize>>,
) {
    let mut guard = Guard { link: link.clone(), up, counted: false };
    let mut backoff = settings.backoff_min;
    loop {
        match connect_once(&link, &target, &settings, &mut guard).await {
            Ok(()) => backoff = settings.backoff_min,
            Err(status) => {
                tracing::debug!(endpoint = %target.uri(), %status, "no connection to agent");
            }
        }
        if guard.lower() {
            tracing::info!(endpoint = %target.uri(), "lost the connection to an agent");
            backoff = settings.backoff_min;
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(settings.backoff_max);
    }
}

/// Connects and serves until the connection ends.
async fn connect_once(
    link: &Arc<Link>,
    target: &DialTarget,
    settings: &ClientSettings,
    guard: &mut Guard,
) -> Result<(), tonic::Status> {
    let channel = target
        .connect()
        .await
        .map_err(|error| tonic::Status::unavailable(format!("cannot connect: {error:?}")))?;
    let mut client = WorkerClient::new(channel).max_decoding_message_size(settings.frame_bytes_max);
    let mut frames = client.generate(link.open()).await?.into_inner();
    guard.raise();
    let (mut wakers, mut silence) = (Vec::new(), Silence::default());
    let mut looks = tokio::time::interval(Silence::pause(settings.silence));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // What has come is heard before anybody complains of silence.
            biased;
            frame = frames.message() => {
                let Some(frame) = frame? else { return Ok(()) };
                silence.heard(frame.outputs.is_empty());
                link.dispatch(frame, &mut wakers);
            }
            _ = looks.tick() => {
                let requests = link.owed();
                if silence.look(requests > 0) {
                    let (endpoint, silence) = (target.uri(), settings.silence);
                    tracing::warn!(%endpoint, requests, ?silence, "an agent is silent");
                    // Closing the connection cancels its requests should the agent come back.
                    return Err(tonic::Status::deadline_exceeded("the agent is silent"));
                }
            }
        }
    }
}

/// Says that the link is up, and takes it back in every way the task can end.
struct Guard {
    link: Arc<Link>,
    up: Arc<watch::Sender<usize>>,
    counted: bool,
}

impl Guard {
    fn raise(&mut self) {
        self.link.set_up();
        self.counted = true;
        self.up.send_modify(|links| *links += 1);
    }

    /// Returns whether it was up.
    fn lower(&mut self) -> bool {
        self.link.close();
        let was_up = std::mem::take(&mut self.counted);
        if was_up {
            self.up.send_modify(|links| *links -= 1);
        }
        was_up
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.lower();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_was_never_sent_is_told_from_one_that_was() {
        let link =
            Arc::new(Link::new(&ClientSettings { requests_max: 9, ..ClientSettings::default() }));
        let mut context = Context::from_waker(Waker::noop());
        let mut outgoing = link.open();
        link.set_up();
        let (_, sent) = link.submit(Submit::default()).expect("it is up");
        assert!(Pin::new(&mut outgoing).poll_next(&mut context).is_ready());
        let (_, unsent) = link.submit(Submit::default()).expect("it is up");
        assert_eq!(link.owed(), 2);
        link.close();
        let mut end = |mailbox: &Mailbox| mailbox.poll_take(&mut context, &mut Vec::new());
        assert_eq!(end(&sent), Poll::Ready(Err(StreamError::Disconnected)));
        assert_eq!(end(&unsent), Poll::Ready(Err(StreamError::Unsent)));
        assert_eq!(link.submit(Submit::default()).err(), Some(StreamError::Unsent));
    }
}
