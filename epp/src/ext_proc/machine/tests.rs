//! The machine under any order of messages. The cases by name are in the wire tests, which run
//! the same machine behind a real connection.

use super::*;
use crate::exchange::RoutedRequest;
use crate::ext_proc::message::HeadFields;
use proptest::collection::vec;
use proptest::prelude::*;

/// Follows an answer, and holds pieces back until its end if it is told to.
struct Follower {
    interest: Interest,
    held: Option<Vec<Bytes>>,
    /// The replacement of a late body, where one is made.
    late: Option<Bytes>,
}

impl Watch for Follower {
    fn interest(&self) -> Interest {
        self.interest
    }

    fn amends(&self) -> bool {
        self.late.is_some()
    }

    fn amend(&mut self, body: Vec<Bytes>) -> Result<Vec<Bytes>, Refusal> {
        Ok(self.late.take().map_or(body, |late| vec![late]))
    }

    fn headers(
        &mut self,
        _: u16,
        _: &crate::headers::Headers,
        _: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn body(&mut self, piece: Bytes, end: bool, out: &mut Vec<Bytes>) {
        match &mut self.held {
            None => out.push(piece),
            Some(held) => {
                held.push(piece);
                if end {
                    out.append(held);
                }
            }
        }
    }

    fn end(&mut self) -> Vec<(String, String, f64)> {
        Vec::new()
    }
}

/// What a test does to a machine.
#[derive(Clone, Debug)]
enum Event {
    Headers(bool, bool),
    Body(bool, usize, bool),
    Trailers(bool),
    Decide(bool),
    HalfClose,
}

fn event() -> impl Strategy<Value = Event> {
    let request = prop::bool::weighted(0.6);
    let end = prop::bool::weighted(0.2);
    prop_oneof![
        2 => (request, end).prop_map(|(request, end)| Event::Headers(request, end)),
        6 => (request, prop_oneof![0..9_usize, 0..150_000_usize], end)
            .prop_map(|(request, size, end)| Event::Body(request, size, end)),
        1 => request.prop_map(Event::Trailers),
        3 => any::<bool>().prop_map(Event::Decide),
        1 => Just(Event::HalfClose),
    ]
}

fn mode() -> impl Strategy<Value = BodyMode> {
    prop_oneof![
        4 => Just(BodyMode::FullDuplex),
        1 => Just(BodyMode::None),
        1 => Just(BodyMode::Streamed),
        1 => Just(BodyMode::Buffered),
        1 => Just(BodyMode::BufferedPartial),
    ]
}

fn direction(request: bool) -> Direction {
    if request { Direction::Request } else { Direction::Response }
}

/// What passes through a machine in one direction.
#[derive(Default)]
struct Bodies {
    came: Vec<u8>,
    left: Vec<u8>,
    ended: bool,
}

/// A machine, and what a data plane sees of it.
struct Bench {
    machine: Machine<Follower>,
    interest: Interest,
    hold: bool,
    bodies: [Bodies; 2],
    waiting: Option<(RequestHead, Option<Vec<Bytes>>)>,
    /// Messages that came and answers that went, of all kinds.
    counts: (usize, usize),
    refused: bool,
    closed: Option<Result<(), Violation>>,
    next_byte: u8,
}

impl Bench {
    fn new(modes: Modes, interest: Interest, hold: bool) -> Self {
        let settings = ExtProcSettings { assumed_modes: modes, ..ExtProcSettings::default() };
        Self {
            machine: Machine::new(Arc::new(settings), Arc::default()),
            interest,
            hold,
            bodies: Default::default(),
            waiting: None,
            counts: (0, 0),
            refused: false,
            closed: None,
            next_byte: 0,
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Headers(request, end) => {
                let (direction, fields) = (direction(request), HeadFields::default());
                self.bring(Part::Headers { direction, fields, end });
            }
            Event::Body(request, size, end) => {
                self.next_byte = self.next_byte.wrapping_add(1);
                let bytes = Bytes::from(vec![self.next_byte; size]);
                self.bodies[usize::from(request)].came.extend_from_slice(&bytes);
                self.bring(Part::Body { direction: direction(request), bytes, end });
            }
            Event::Trailers(request) => {
                self.bring(Part::Trailers { direction: direction(request) });
            }
            Event::Decide(well) => self.decide(well),
            Event::HalfClose => self.machine.half_closed(),
        }
        self.settle();
    }

    fn bring(&mut self, part: Part) {
        self.counts.0 += 1;
        let message = Incoming { part: Some(part), ..Incoming::default() };
        if self.machine.is_unasked(&message) {
            let held = self.hold.then(Vec::new);
            self.machine.follow(Follower { interest: self.interest, held, late: None });
        }
        self.machine.on(message);
    }

    fn decide(&mut self, well: bool) {
        let Some((_, body)) = self.waiting.take() else { return };
        let held = self.hold.then(Vec::new);
        let routed = RoutedRequest {
            endpoints: vec!["10.0.0.1:8000".parse().expect("it is an address")],
            set_headers: Vec::new(),
            body: body.unwrap_or_default(),
            scores: Vec::new(),
            watch: Follower { interest: self.interest, held, late: None },
        };
        let refusal = Refusal {
            status: 503,
            message: String::new(),
            reason: None,
            retry_after: None,
            body: None,
        };
        self.machine.routed(if well { Ok(routed) } else { Err(refusal) });
    }

    /// Does what the machine asks for until it waits or ends, which it must do soon.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            match self.machine.next() {
                MachineStep::Send(message) => self.sent(message.answer),
                MachineStep::Route(head, body) => self.waiting = Some((head, body)),
                MachineStep::Wait => return,
                MachineStep::Close(how) => {
                    self.closed = Some(how);
                    return;
                }
            }
        }
        panic!("the machine never rests");
    }

    fn sent(&mut self, answer: PartAnswer) {
        assert!(!self.refused && self.closed.is_none(), "nothing follows the end");
        self.counts.1 += 1;
        match answer {
            PartAnswer::Body(direction, _, BodyChange::Streamed { pieces, end }) => {
                let size: usize = pieces.iter().map(Bytes::len).sum();
                assert!(size <= 62_000, "{size} bytes in one chunk");
                let body = &mut self.bodies[usize::from(direction == Direction::Request)];
                assert!(!body.ended, "nothing follows the end of a body");
                body.left.extend(pieces.concat());
                body.ended = end;
            }
            PartAnswer::Refuse(_) => self.refused = true,
            _ => {}
        }
    }
}

const DUPLEX: Modes =
    Modes { request: BodyMode::FullDuplex, response: BodyMode::FullDuplex, eager: true };

proptest! {
    #[test]
    fn any_order_of_messages_is_answered_or_refused(
        request in mode(),
        response in mode(),
        eager in any::<bool>(),
        interest in prop_oneof![
            Just(Interest::Nothing),
            Just(Interest::Headers),
            Just(Interest::Body),
        ],
        hold in any::<bool>(),
        events in vec(event(), 0..30),
    ) {
        let mut bench = Bench::new(Modes { request, response, eager }, interest, hold);
        for event in events {
            bench.apply(event);
        }
        // However it went, it can be ended: at once, or with the decision that is awaited.
        bench.apply(Event::HalfClose);
        prop_assert!(bench.closed.is_some() || bench.machine.awaits_decision());
        bench.machine.give_up();
        bench.settle();
        prop_assert!(bench.closed.is_some());
    }

    #[test]
    fn outside_full_duplex_a_message_has_at_most_one_answer(
        request in prop_oneof![Just(BodyMode::None), Just(BodyMode::Streamed), Just(BodyMode::Buffered)],
        eager in any::<bool>(),
        hold in any::<bool>(),
        events in vec(event(), 0..30),
    ) {
        let modes = Modes { request, response: BodyMode::Streamed, eager };
        let mut bench = Bench::new(modes, Interest::Body, hold);
        for event in events {
            bench.apply(event);
            prop_assert!(bench.counts.1 <= bench.counts.0, "{:?}", bench.counts);
        }
    }

    #[test]
    fn full_duplex_keeps_every_byte(
        pieces in vec(0..150_000_usize, 0..5),
        reply_pieces in vec(0..150_000_usize, 0..5),
        trailers in any::<(bool, bool)>(),
        hold in any::<bool>(),
    ) {
        let mut bench = Bench::new(DUPLEX, Interest::Body, hold);
        for (request, pieces, trailers) in
            [(true, pieces, trailers.0), (false, reply_pieces, trailers.1)]
        {
            bench.apply(Event::Headers(request, false));
            for size in pieces {
                bench.apply(Event::Body(request, size, false));
            }
            let last = if trailers { Event::Trailers(request) } else { Event::Body(request, 1, true) };
            bench.apply(last);
            bench.apply(Event::Decide(true));
            let body = &bench.bodies[usize::from(request)];
            prop_assert!(body.came == body.left, "{} came, {} left", body.came.len(), body.left.len());
            prop_assert_eq!(body.ended, !trailers);
        }
        prop_assert_eq!(bench.closed, Some(Ok(())));
    }
}

#[test]
fn in_full_duplex_nothing_is_said_before_the_body_is_complete() {
    let mut bench = Bench::new(DUPLEX, Interest::Nothing, false);
    bench.apply(Event::Headers(true, false));
    bench.apply(Event::Body(true, 100, false));
    assert!(bench.waiting.is_none());
    bench.apply(Event::Body(true, 100, true));
    assert!(bench.waiting.is_some());
    assert_eq!(bench.counts.1, 0);
    bench.apply(Event::Decide(true));
    assert_eq!(bench.counts.1, 2);
    assert_eq!(bench.closed, Some(Ok(())));
}

/// The answers after a body that outgrew the wait came in three pieces, the last before the
/// decision or after it.
fn late_answers(last_is_early: bool) -> Vec<BodyChange> {
    let modes = Modes { request: BodyMode::Streamed, response: BodyMode::None, eager: true };
    let settings = ExtProcSettings {
        assumed_modes: modes,
        max_streamed_bytes: 3,
        ..ExtProcSettings::default()
    };
    let mut machine = Machine::new(Arc::new(settings), Arc::default());
    let body = |bytes: &'static [u8], end| {
        let bytes = Bytes::from_static(bytes);
        let part = Some(Part::Body { direction: Direction::Request, bytes, end });
        Incoming { part, ..Incoming::default() }
    };
    let fields = HeadFields::default();
    let head = Part::Headers { direction: Direction::Request, fields, end: false };
    machine.on(Incoming { part: Some(head), ..Incoming::default() });
    machine.on(body(b"abcd", false));
    let MachineStep::Route(head, None) = machine.next() else { panic!("the head decides") };
    assert_eq!(head.body, crate::exchange::RequestBody::Late);
    machine.on(body(b"ef", false));
    if last_is_early {
        machine.on(body(b"g", true));
    }
    let late = Some(Bytes::from_static(b"changed"));
    let watch = Follower { interest: Interest::Nothing, held: None, late };
    machine.routed(Ok(RoutedRequest {
        endpoints: vec!["10.0.0.1:8000".parse().expect("it is an address")],
        set_headers: Vec::new(),
        body: Vec::new(),
        scores: Vec::new(),
        watch,
    }));
    if !last_is_early {
        machine.on(body(b"g", true));
    }
    let mut changes = Vec::new();
    loop {
        match machine.next() {
            MachineStep::Send(Outgoing { answer: PartAnswer::Body(_, _, change), .. }) => {
                changes.push(change)
            }
            MachineStep::Send(Outgoing { answer: PartAnswer::Headers(_, change), .. }) => {
                let length = ("content-length", "7".to_owned());
                assert_eq!(change.set.contains(&length), last_is_early);
                assert_ne!(change.remove.contains(&"content-length".into()), last_is_early);
            }
            MachineStep::Close(how) => {
                assert_eq!(how, Ok(()));
                return changes;
            }
            _ => panic!("it waits for nothing"),
        }
    }
}

#[test]
fn a_late_body_is_changed_whether_it_ends_before_the_decision_or_after() {
    let changed = || BodyChange::Replace(vec![Bytes::from_static(b"changed")]);
    let (early, late) = (late_answers(true), late_answers(false));
    assert_eq!(early, [changed(), BodyChange::Clear, BodyChange::Clear]);
    assert_eq!(late, [BodyChange::Clear, BodyChange::Clear, changed()]);
}

#[test]
fn a_data_plane_that_sends_nothing_more_still_gets_the_decision() {
    for ended in [true, false] {
        let modes = Modes { request: BodyMode::None, ..DUPLEX };
        let mut bench = Bench::new(if ended { DUPLEX } else { modes }, Interest::Body, false);
        bench.apply(Event::Headers(true, ended));
        bench.apply(Event::HalfClose);
        assert_eq!(bench.closed, None);
        bench.apply(Event::Decide(true));
        assert_eq!((bench.counts.1, bench.closed), (1, Some(Ok(()))));
    }
}

#[test]
fn a_decision_that_comes_too_late_is_dropped() {
    let mut bench = Bench::new(DUPLEX, Interest::Nothing, false);
    bench.apply(Event::Headers(true, true));
    assert!(bench.machine.awaits_decision());
    bench.apply(Event::Headers(false, false));
    assert!(!bench.machine.awaits_decision());
    let answers = bench.counts.1;
    bench.apply(Event::Decide(true));
    assert_eq!(bench.counts.1, answers);
}
