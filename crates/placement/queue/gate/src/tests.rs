use super::*;
use stator_queue::{HeadOfLine, QueueSettings};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::{advance, timeout};

/// A pool with room for so many requests, and no more for those of a kind that it cannot take.
#[derive(Debug)]
struct Room {
    free: Mutex<usize>,
    /// Kind of requests that are told to wait.
    busy_kind: Mutex<Option<u32>>,
    attempts: AtomicU64,
}

/// A place; the room is told when it is given back, and the gate kicked.
struct Place {
    gate: Arc<Gate<Arc<Room>>>,
    kind: u32,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.gate.grant().free.lock() += 1;
        self.gate.kick();
    }
}

/// A request; its kind tells it apart.
struct Request {
    gate: Arc<Gate<Arc<Room>>>,
    kind: u32,
}

/// The kind that can never be placed.
const IMPOSSIBLE: u32 = 404;

impl Grant for Arc<Room> {
    type Request = Request;
    type Place = Place;
    type Error = &'static str;

    fn try_grant(&self, request: &mut Request, _: &BandPlace) -> Attempt<Place, &'static str> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let mut free = self.free.lock();
        match *free {
            _ if request.kind == IMPOSSIBLE => Attempt::Failed("no worker has it"),
            _ if Some(request.kind) == *self.busy_kind.lock() => Attempt::Wait,
            0 => Attempt::Stop,
            _ => {
                *free -= 1;
                Attempt::Granted(Place { gate: request.gate.clone(), kind: request.kind })
            }
        }
    }
}

type Gated = Arc<Gate<Arc<Room>>>;
type Answer = Result<Admission<Place>, AdmitError<&'static str>>;

fn gate(free: usize) -> Gated {
    gate_with(free, QueueSettings::default())
}

fn gate_with(free: usize, settings: QueueSettings) -> Gated {
    let room =
        Room { free: Mutex::new(free), busy_kind: Mutex::new(None), attempts: AtomicU64::new(0) };
    let settings = CheckedSettings::new(settings).expect("the settings are valid");
    Arc::new(Gate::new(Arc::new(room), settings))
}

fn entry(gate: &Gated, kind: u32) -> QueueEntry<Request> {
    QueueEntry {
        tokens: 10,
        flow: FlowId(u64::from(kind)),
        payload: Request { gate: gate.clone(), kind },
        priority: 0,
        bytes: 0,
        deadline: None,
        objective: None,
        jump: 0,
    }
}

/// Sends a request and lets it come as far as it can: to its answer or into the queue.
async fn send(gate: &Gated, entry: QueueEntry<Request>) -> JoinHandle<Answer> {
    let queued = || gate.stats().queue.bands.iter().map(|band| band.counts.queued).sum::<u64>();
    let before = queued();
    let own = gate.clone();
    let handle = tokio::spawn(async move { own.admit(entry).await });
    while !handle.is_finished() && queued() == before {
        tokio::task::yield_now().await;
    }
    handle
}

async fn answer(handle: JoinHandle<Answer>) -> Answer {
    handle.await.expect("the request does not panic")
}

fn free(gate: &Gated) -> usize {
    *gate.grant().free.lock()
}

#[tokio::test(start_paused = true)]
async fn with_room_nothing_is_queued() {
    let gate = gate(2);
    let first = gate.admit(entry(&gate, 1)).await.expect("there is room");
    let second = gate.admit(entry(&gate, 2)).await.expect("there is room");
    assert_eq!((first.waited, second.band), (Duration::ZERO, 0));
    let stats = gate.stats();
    assert_eq!((stats.direct, stats.queue.bands[0].counts.queued), (2, 0));
    drop((first, second));
    assert_eq!(free(&gate), 2);
}

#[tokio::test(start_paused = true)]
async fn room_goes_to_the_highest_priority_first() {
    let gate = gate(1);
    let running = gate.admit(entry(&gate, 0)).await.expect("there is room");
    let low = send(&gate, QueueEntry { priority: -1, ..entry(&gate, 1) }).await;
    let middle = send(&gate, entry(&gate, 2)).await;
    let high = send(&gate, QueueEntry { priority: 5, ..entry(&gate, 3) }).await;
    assert_eq!(gate.waiting(), 3);
    advance(Duration::from_millis(30)).await;
    drop(running);
    for (handle, band) in [(high, 5), (middle, 0), (low, -1)] {
        let admitted = answer(handle).await.expect("room was made");
        assert_eq!((admitted.band, admitted.waited), (band, Duration::from_millis(30)));
    }
    assert_eq!((gate.waiting(), free(&gate)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn one_kick_serves_all_there_is_room_for() {
    let gate = gate(0);
    let mut handles = Vec::new();
    for number in 0..1000 {
        handles.push(send(&gate, entry(&gate, number % 100)).await);
    }
    *gate.grant().free.lock() = 900;
    gate.kick();
    assert_eq!(gate.waiting(), 100);
    let mut places = Vec::new();
    for handle in handles.drain(..900) {
        places.push(answer(handle).await.expect("there is room"));
    }
    drop(places);
    for handle in handles {
        answer(handle).await.expect("the others gave room back");
    }
    assert_eq!((gate.waiting(), free(&gate)), (0, 900));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_deadline() {
    let gate = gate(0);
    let deadline = Some(gate.now() + Duration::from_millis(37));
    let started = Instant::now();
    let error =
        gate.admit(QueueEntry { deadline, ..entry(&gate, 1) }).await.expect_err("it is full");
    assert_eq!(started.elapsed(), Duration::from_millis(37));
    let expected = "sent away by the queue of priority 0, deadline, after 37ms";
    assert_eq!(error.to_string(), expected);
    assert_eq!(gate.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_gives_up_lets_those_behind_it_go() {
    let settings = QueueSettings { head_of_line: HeadOfLine::Strict, ..QueueSettings::default() };
    let gate = gate_with(1, settings);
    *gate.grant().busy_kind.lock() = Some(7);
    let deadline = Some(gate.now() + Duration::from_millis(5));
    let head = send(&gate, QueueEntry { priority: 1, deadline, ..entry(&gate, 7) }).await;
    let second = send(&gate, QueueEntry { priority: 1, ..entry(&gate, 7) }).await;
    let behind = send(&gate, entry(&gate, 1)).await;
    answer(head).await.expect_err("its kind is busy until its deadline");
    assert!(!behind.is_finished());
    second.abort();
    second.await.expect_err("it was aborted");
    answer(behind).await.expect("nothing is before it");
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_placed_now_does_not_hold_up_others() {
    let gate = gate(1);
    *gate.grant().busy_kind.lock() = Some(7);
    let held = send(&gate, QueueEntry { priority: 9, ..entry(&gate, 7) }).await;
    for flow in [1, 7].map(FlowId) {
        let other = send(&gate, QueueEntry { flow, priority: 9, ..entry(&gate, 1) }).await;
        answer(other).await.expect("there is room for its kind");
    }
    assert!(!held.is_finished());
    *gate.grant().busy_kind.lock() = None;
    gate.kick();
    answer(held).await.expect("its kind is not busy any more");
}

#[tokio::test(start_paused = true)]
async fn a_kick_ends_where_more_wait_than_are_tried() {
    let gate = gate(1);
    *gate.grant().busy_kind.lock() = Some(7);
    let mut handles = Vec::new();
    for flow in 0..2 * BATCH as u64 {
        handles.push(send(&gate, QueueEntry { flow: FlowId(flow), ..entry(&gate, 7) }).await);
    }
    gate.kick();
    assert_eq!(gate.waiting(), handles.len() as u64);
    *gate.grant().busy_kind.lock() = None;
    gate.kick();
    for handle in handles {
        answer(handle).await.expect("its kind is not busy any more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_leaves_nothing_behind() {
    let gate = gate(0);
    let handle = send(&gate, entry(&gate, 1)).await;
    assert_eq!(gate.waiting(), 1);
    handle.abort();
    handle.await.expect_err("it was aborted");
    assert_eq!(gate.waiting(), 0);
    assert_eq!(gate.stats().queue.bands[0].counts.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_nobody_takes_goes_to_the_next() {
    let gate = gate(0);
    let handle = send(&gate, entry(&gate, 1)).await;
    let next = send(&gate, entry(&gate, 2)).await;
    *gate.grant().free.lock() = 1;
    gate.kick();
    // Granted, and gone before it could look.
    handle.abort();
    drop(handle.await);
    let admitted = answer(next).await.expect("the place was given back");
    assert_eq!(admitted.place.kind, 2);
    drop(admitted);
    assert_eq!((gate.waiting(), free(&gate)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_placed_fails_at_once_and_in_its_turn() {
    let gate = gate(1);
    let failed = AdmitError::Failed("no worker has it");
    assert_eq!(gate.admit(entry(&gate, IMPOSSIBLE)).await.expect_err("it is impossible"), failed);
    let running = gate.admit(entry(&gate, 1)).await.expect("there is room");
    let waiting = send(&gate, entry(&gate, 2)).await;
    let impossible = send(&gate, entry(&gate, IMPOSSIBLE)).await;
    drop(running);
    assert_eq!(answer(impossible).await.expect_err("it is impossible"), failed);
    answer(waiting).await.expect("there is room");
}

#[tokio::test(start_paused = true)]
async fn a_closed_gate_sends_all_away() {
    let gate = gate(0);
    let waiting = send(&gate, entry(&gate, 1)).await;
    gate.close();
    let error = answer(waiting).await.expect_err("the gate is closed");
    assert!(matches!(error, AdmitError::Evicted { reason: Eviction::Closed, .. }), "{error}");
    *gate.grant().free.lock() = 1;
    let error = gate.admit(entry(&gate, 2)).await.expect_err("the gate is closed");
    assert!(matches!(error, AdmitError::Rejected { reason: QueueRefusal::Closed, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_full_pool_is_asked_once_per_arrival() {
    let gate = gate(0);
    let mut handles = Vec::new();
    for kind in 0..100 {
        handles.push(send(&gate, entry(&gate, kind)).await);
    }
    // The first was asked for twice: before it waited, and once it did.
    assert_eq!(gate.grant().attempts.load(Ordering::Relaxed), 101);
    handles.iter().for_each(JoinHandle::abort);
}

/// With many threads none waits for ever and no place is given twice or lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_contention_every_request_is_served() {
    let gate = gate(3);
    let mut handles = Vec::new();
    for kind in 0..4000 {
        let (own, entry) = (gate.clone(), entry(&gate, kind % 17));
        handles.push(tokio::spawn(async move {
            let admitted = own.admit(entry).await.expect("room comes");
            tokio::task::yield_now().await;
            drop(admitted);
        }));
        if kind % 5 == 0 {
            handles.swap_remove(kind as usize % handles.len()).abort();
        }
    }
    for handle in handles {
        let ended = timeout(Duration::from_secs(60), handle).await.expect("it does not hang");
        ended.expect("it was not aborted");
    }
    // The aborted ones end on their own.
    let ended = async {
        while gate.waiting() > 0 || free(&gate) < 3 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), ended).await.expect("nothing is left");
    assert_eq!(free(&gate), 3);
}
