//! A request that two engines share: two ranks with engines that do as they are told, and the real
//! request plane between them.

use super::testkit::*;
use crate::config::Listen;
use crate::metrics::AgentMetrics;
use crate::request_plane::in_flight::InFlight;
use crate::request_plane::listen::{self, Listener};
use crate::request_plane::metadata::PrefillWorker;
use crate::request_plane::rules::RuleDesk;
use crate::request_plane::service::{self, Service, WorkerHandle};
use crate::worker::{Command, Status};
use futures::FutureExt;
use stator_dialect::{Ask, Fault, FirstToken, Hand, Manner, SharedRequest};
use stator_engine::RequestKey;
use stator_protos::discovery::{AgentRecord, ModelRecord, ProfileRecord};
use stator_protos::worker::FinishReason;
use stator_protos::worker::worker_server::WorkerServer;
use stator_protos::{WorkerId, WorkerRank};
use stator_runtime::Shutdown;
use stator_runtime::shutdown::Trigger;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Two ranks, of which one computes prompts behind a request plane.
pub(super) struct Pair {
    pub(super) prefill: Bed,
    pub(super) decode: Bed,
    pub(super) peer: PrefillWorker,
    /// What a drain of the prefill worker's agent waits for.
    prefills: InFlight,
    _stop: Trigger,
    _server: JoinSet<()>,
}

impl Pair {
    pub(super) fn new(manner: Manner, prefill: Vec<Vec<Step>>, decode: Vec<Vec<Step>>) -> Self {
        let (prefill, decode) = (Bed::up(prefill), Bed::up(decode));
        *decode.engine.manner.lock() = Some(manner);
        let (_stop, ended) = Shutdown::new();
        let record = AgentRecord {
            agent_id: "a".into(),
            endpoint: String::new(),
            serves_events: false,
            events_endpoint: String::new(),
            replay_endpoint: String::new(),
            model: ModelRecord {
                name: "m".into(),
                context_length: 100,
                block_size: 16,
                vocab_size: 100,
            },
            workers: vec![],
            profile: ProfileRecord::default(),
            accepting: true,
            lease_ms: 0,
            lease_expires_unix_ms: 0,
        };
        let handle = WorkerHandle {
            worker: WORKER,
            commands: prefill.commands.clone(),
            status: Arc::new(Status::default()),
        };
        let shown = watch::channel(record).1;
        let setup = service::AgentSetup {
            model_files: vec![],
            record: shown,
            max_requests_per_stream: 100,
            metrics: AgentMetrics::default(),
            rules: Arc::new(RuleDesk::new(None)),
            ended,
        };
        let agent = Arc::new(service::Agent::new(vec![handle], setup));
        let any = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let bound = listen::request_plane(&any, None, None).unwrap();
        let (Listener::Tcp(listener), endpoint) = bound else {
            panic!("an address is no path");
        };
        let prefills = agent.in_flight().clone();
        let service = WorkerServer::new(Service(agent));
        let router = tonic::transport::Server::builder().add_service(service);
        let mut _server = JoinSet::new();
        _server
            .spawn(async move { router.serve_with_incoming(listener.incoming()).await.unwrap() });
        let peer = PrefillWorker { endpoint, worker: WORKER, handover: raw("{}") };
        Self { prefill, decode, peer, prefills, _stop, _server }
    }

    pub(super) fn submit(&self) {
        self.decode.submit(1, |_, metadata| metadata.prefill = Some(self.peer.clone()));
    }

    /// Runs a request to its end, and checks what the client got and how that came about.
    #[track_caller]
    fn check_answered(&self, got: Vec<Got>, by: &str) {
        assert_eq!(got, [whole(1, &[5])]);
        self.decode.counted(&format!("stator_agent_prefills_total{{by=\"{by}\"}} 1"));
    }

    async fn computed_here(self, by: &str) {
        self.submit();
        let got = self.decode.answers().await;
        self.check_answered(got, by);
        let asks = self.decode.engine.asks.borrow().clone();
        assert!(matches!(asks.last(), Some(Ask { hand: Hand::Whole, .. })), "{asks:?}");
        // Nobody computes for nobody.
        self.prefill.in_flight.none().await;
        self.prefill.engine.runs(0).await;
        self.decode.engine.runs(0).await;
    }
}

pub(super) fn in_turn(first: FirstToken) -> Manner {
    Manner::InTurn { prefill: None, first }
}

pub(super) fn together() -> Manner {
    let (prefill, decode) = (raw("{\"p\":1}"), raw("{\"d\":1}"));
    Manner::Together { prefill, decode, first: FirstToken::Dropped, prompt_first: true }
}

#[tokio::test]
async fn in_turn_decode_is_told_what_prefill_said() {
    let pair = Pair::new(
        in_turn(FirstToken::Dropped),
        vec![vec![handover("{\"k\":1}")]],
        vec![vec![last(5)]],
    );
    pair.submit();
    let got = pair.decode.answers().await;
    pair.check_answered(got, "prefill_worker");
    let (there, here) = (pair.prefill.engine.asks.borrow(), pair.decode.engine.asks.borrow());
    assert!(matches!(there[..], [Ask { hand: Hand::Prefill(None), .. }]), "{there:?}");
    assert_eq!(there[0].tokens, here[0].tokens);
    let [Ask { hand: Hand::Decode(told), .. }] = &here[..] else { panic!("{here:?}") };
    assert_eq!(told.get(), "{\"k\":1}");
}

#[tokio::test]
async fn in_turn_prefill_may_be_told_who_decodes() {
    let manner = Manner::InTurn { prefill: Some(raw("{\"p\":1}")), first: FirstToken::Dropped };
    let pair = Pair::new(manner, vec![vec![handover("{\"k\":1}")]], vec![vec![last(5)]]);
    pair.submit();
    let got = pair.decode.answers().await;
    pair.check_answered(got, "prefill_worker");
    let (there, here) = (pair.prefill.engine.asks.borrow(), pair.decode.engine.asks.borrow());
    let [Ask { hand: Hand::Prefill(Some(told)), .. }] = &there[..] else { panic!("{there:?}") };
    assert_eq!(told.get(), "{\"p\":1}");
    let [Ask { hand: Hand::Decode(told), .. }] = &here[..] else { panic!("{here:?}") };
    assert_eq!(told.get(), "{\"k\":1}");
}

#[tokio::test]
async fn together_both_are_told_at_once() {
    let pair = Pair::new(together(), vec![vec![last(9)]], vec![vec![last(5)]]);
    pair.submit();
    let got = pair.decode.answers().await;
    pair.check_answered(got, "prefill_worker");
    let (there, here) = (pair.prefill.engine.asks.borrow(), pair.decode.engine.asks.borrow());
    let [Ask { hand: Hand::Prefill(Some(told)), .. }] = &there[..] else { panic!("{there:?}") };
    assert_eq!(told.get(), "{\"p\":1}");
    let [Ask { hand: Hand::Decode(told), .. }] = &here[..] else { panic!("{here:?}") };
    assert_eq!(told.get(), "{\"d\":1}");
}

#[tokio::test]
async fn whatever_fails_at_the_prefill_worker_the_prompt_is_computed_here() {
    let broken = || Fault::Failed("x".into());
    for script in [vec![Step::Refuse(broken())], vec![Step::Fail(broken())], vec![], vec![last(9)]]
    {
        let pair = Pair::new(in_turn(FirstToken::Dropped), vec![script], vec![vec![last(5)]]);
        pair.computed_here("itself_prefill_failed").await;
    }
    let mut pair = Pair::new(in_turn(FirstToken::Dropped), vec![], vec![vec![last(5)]]);
    pair.peer.worker = WorkerRank { worker: WorkerId(99), rank: 3 };
    let engine = pair.decode.engine.clone();
    pair.computed_here("itself_prefill_failed").await;
    assert_eq!(*engine.paired.lock(), [SharedRequest { request: 1, rank: 3, logprobs: false }]);
    let pair = Pair::new(in_turn(FirstToken::Dropped), vec![], vec![vec![last(5)]]);
    pair.prefill.end("it crashed");
    pair.computed_here("itself_prefill_failed").await;
    let mut pair = Pair::new(in_turn(FirstToken::Dropped), vec![], vec![vec![last(5)]]);
    pair.peer.endpoint = "unix:///nowhere/at/all".into();
    pair.computed_here("itself_prefill_failed").await;
}

#[tokio::test]
async fn an_agent_that_nobody_registered_is_not_connected_to() {
    for manner in [in_turn(FirstToken::Dropped), together()] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut pair = Pair::new(manner, vec![], vec![vec![last(5)]]);
        pair.decode.listing = None;
        pair.peer.endpoint = format!("http://{}", listener.local_addr().unwrap());
        pair.computed_here("itself_unregistered").await;
        assert!(listener.accept().now_or_never().is_none(), "nobody has connected");
    }
}

#[tokio::test]
async fn together_a_prefill_that_fails_takes_the_waiting_decode_with_it() {
    let refused = vec![Step::Refuse(Fault::Overloaded("full".into()))];
    let pair = Pair::new(together(), vec![refused], vec![vec![Step::Never], vec![last(5)]]);
    pair.computed_here("itself_prefill_failed").await;
}

#[tokio::test]
async fn an_engine_that_does_not_take_the_kv_computes_the_prompt() {
    for manner in [in_turn(FirstToken::Dropped), together()] {
        let broken = vec![Step::Fail(Fault::Failed("no such blocks".into()))];
        let decode = vec![broken, vec![last(5)]];
        let pair = Pair::new(manner, vec![vec![handover("{}")]], decode);
        pair.computed_here("itself_engine_failed").await;
    }
    let pair = Pair::new(in_turn(FirstToken::Dropped), vec![], vec![vec![last(5)]]);
    *pair.decode.engine.manner.lock() = None;
    pair.computed_here("itself_engine_failed").await;
}

#[tokio::test]
async fn a_drain_waits_for_who_fetches_what_was_handed_over() {
    let prompts = vec![vec![handover("{}")]];
    let pair = Pair::new(in_turn(FirstToken::Dropped), prompts, vec![vec![last(5)]]);
    pair.submit();
    pair.decode.answers().await;
    assert_eq!(pair.prefills.count(), 1);
    // The clock goes on to whatever is waited for.
    tokio::time::pause();
    pair.prefills.none().await;
}

#[tokio::test]
async fn half_a_pair_is_waited_for_so_long_and_then_aborted() {
    let never = || vec![Step::Never];
    let pair = Pair::new(in_turn(FirstToken::Dropped), vec![never()], vec![vec![last(5)]]);
    pair.computed_here("itself_timeout").await;
    let pair = Pair::new(together(), vec![never()], vec![never(), vec![last(5)]]);
    pair.computed_here("itself_timeout").await;
    // The prefill is done, and its KV never comes.
    let pair = Pair::new(together(), vec![vec![last(9)]], vec![never(), vec![last(5)]]);
    pair.computed_here("itself_timeout").await;
}

/// What an engine says that goes on from prompts of others, and is asked for all of a request.
fn half() -> Vec<Step> {
    vec![Step::Refuse(Fault::Half("half".into()))]
}

/// Runs a request of which nobody computes the prompt, and says how it ended.
async fn uncomputed(pair: &Pair) -> (bool, Got) {
    pair.submit();
    pair.decode.in_flight.none().await;
    let [output] = pair.decode.outbox.next().await.unwrap().try_into().unwrap();
    pair.decode.counted("stator_agent_prefills_total{by=\"nobody\"} 1");
    pair.prefill.engine.runs(0).await;
    pair.decode.engine.runs(0).await;
    pair.prefill.in_flight.none().await;
    (output.prefill_failed, output.into())
}

#[tokio::test]
async fn an_engine_that_computes_no_prompts_says_that_another_may() {
    let never = || vec![Step::Never];
    let refused = || vec![Step::Refuse(Fault::Failed("x".into()))];
    // The prefill fails, it takes too long, or its KV never comes.
    for (prefill, why) in [
        (refused(), "message: \"x\""),
        (never(), "nothing within 1000 ms"),
        (vec![last(9)], "nothing within 1000 ms"),
    ] {
        let pair = Pair::new(together(), vec![prefill], vec![never(), half()]);
        let (prefill_failed, got) = uncomputed(&pair).await;
        let (reason, said) = got.end.unwrap();
        assert_eq!((reason, prefill_failed), (FinishReason::Error, true));
        assert!(said.starts_with("Unprefilled: prefill worker"), "{said}");
        assert!(said.contains(why) && said.ends_with("; half"), "{said}");
        assert_eq!(got.tokens, Vec::<u32>::new());
    }
    // Another prefill worker is no help where the engine fails, nor is one that is not named.
    let broken = vec![Step::Fail(Fault::Failed("no such blocks".into()))];
    let pair = Pair::new(together(), vec![vec![last(9)]], vec![broken, half()]);
    let (prefill_failed, got) = uncomputed(&pair).await;
    assert!(!prefill_failed && got.end.unwrap().1.starts_with("Internal: "));
    let pair = Pair::new(together(), vec![], vec![half()]);
    pair.decode.submit(1, |_, _| ());
    assert_eq!(pair.decode.answers().await, [failed(1, "Overloaded: half")]);
}

#[tokio::test]
async fn a_client_that_goes_aborts_both_engines() {
    for manner in [in_turn(FirstToken::Dropped), together()] {
        let pair = Pair::new(manner, vec![vec![Step::Never]], vec![vec![Step::Never]]);
        pair.submit();
        pair.prefill.engine.runs(1).await;
        pair.decode.commands.send(Command::Cancel(vec![RequestKey(1)])).await.unwrap();
        assert_eq!(pair.decode.answers().await, [cancelled(1)]);
        pair.prefill.engine.runs(0).await;
        pair.decode.engine.runs(0).await;
        pair.prefill.in_flight.none().await;
        assert_eq!(pair.prefill.tally.counts(), Default::default());
    }
}

#[tokio::test]
async fn a_prefill_whose_life_ends_is_computed_here() {
    let pair =
        Pair::new(in_turn(FirstToken::Dropped), vec![vec![Step::Never]], vec![vec![last(5)]]);
    pair.submit();
    pair.prefill.engine.runs(1).await;
    pair.prefill.end("it crashed");
    let got = pair.decode.answers().await;
    pair.check_answered(got, "itself_prefill_failed");
    pair.prefill.engine.runs(0).await;
}

#[tokio::test]
async fn several_choices_are_computed_in_one_place() {
    let pair = Pair::new(in_turn(FirstToken::Dropped), vec![], vec![vec![last(5)], vec![last(6)]]);
    pair.decode.submit(1, |submit, metadata| {
        submit.choices = 2;
        metadata.prefill = Some(pair.peer.clone());
    });
    assert_eq!(pair.decode.answers().await, [whole(1, &[5]), whole(1, &[6])]);
    assert_eq!(pair.prefill.engine.asks.borrow().len(), 0);
}
