//! A pool behind the server: the director is the one that the picker runs, over endpoints of
//! which there are only names, addresses and reports.

use super::plane::*;
use super::show::{header_set, piece, show};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use stator_api::UnknownFields;
use stator_body::{ParserSet, parser};
use stator_epp::director::PoolDirector;
use stator_epp::director::settings::DirectorSettings;
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::ExtProcSettings;
use stator_epp::observe::Observe;
use stator_epp::pool::Pool;
use stator_epp_config::LoadOptions;
use stator_epp_metrics::PoolView as Shown;
use stator_epp_plugins::settings::MediaEstimate;
use stator_epp_pool::{Pod, PoolSpec, PoolView, Rewrite, RewriteRule, RewriteTarget, Rewrites};
use stator_epp_pool::{endpoints_of, worker_of};
use stator_epp_scheduler::{Endpoint, EngineLoad, Lora, Scheduler, SchedulerSettings};
use stator_epp_signals::LoadSink;
use stator_epp_signals::tokenizer::Renderer;
use stator_protos::WorkerRank;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The port of the first rank of every pod.
pub(crate) const PORT: u16 = 8000;
/// The header that names the endpoint.
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The data plane's choice of endpoints: namespace and key of its metadata.
pub(crate) const SUBSET: (&str, &str) =
    ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");

/// A pod at `192.168.1.<number + 1>` and what its engine reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Engine {
    pub(crate) number: u8,
    pub(crate) waiting: u32,
    pub(crate) kv_usage: f64,
    /// LoRA adapters with running requests.
    pub(crate) adapters: &'static [&'static str],
    /// Labels beside those of the pool.
    pub(crate) labels: Vec<(&'static str, &'static str)>,
}

/// A pod, its queue, the used part of its cache, and its adapters.
pub(crate) fn engine(
    number: u8,
    waiting: u32,
    kv_usage: f64,
    adapters: &'static [&'static str],
) -> Engine {
    Engine { number, waiting, kv_usage, adapters, labels: Vec::new() }
}

/// An idle pod.
pub(crate) fn idle(number: u8) -> Engine {
    Engine { number, ..Engine::default() }
}

/// An idle pod of a role.
pub(crate) fn of_role(number: u8, role: &'static str) -> Engine {
    Engine { number, labels: vec![("llm-d.ai/role", role)], ..Engine::default() }
}

/// Where the first rank of a pod takes requests.
pub(crate) fn address(number: u8) -> SocketAddr {
    ([192, 168, 1, number + 1], PORT).into()
}

/// Identity of the first rank of a pod.
pub(crate) fn worker(number: u8) -> WorkerRank {
    WorkerRank { worker: worker_of("default", &pod_name(number)), rank: 0 }
}

fn pod_name(number: u8) -> String {
    format!("pod{number}")
}

/// What an operator chose, beside the configuration.
#[derive(Default)]
pub(crate) struct Choices {
    /// Ranks of every pod; 0 is 1.
    pub(crate) ranks: u16,
    /// Whether scores are told.
    pub(crate) scores: bool,
    /// Whether requests may name their endpoint.
    pub(crate) pins: bool,
    /// Who turns prompts into tokens.
    pub(crate) renderer: Option<Renderer>,
}

/// A pool and the server in front of it.
pub(crate) struct Bed {
    pub(crate) served: Served,
    pub(crate) pool: Arc<Pool>,
    views: watch::Sender<Arc<PoolView>>,
    ranks: u16,
}

impl Bed {
    pub(crate) async fn start(config: &str, engines: &[Engine]) -> Self {
        Self::with(config, engines, Choices::default()).await
    }

    pub(crate) async fn with(config: &str, engines: &[Engine], choices: Choices) -> Self {
        let options = LoadOptions { allow_experimental: true, ..LoadOptions::default() };
        let plan = stator_epp_config::load(config, options).expect("it is sound").plan;
        let scheduler = Scheduler::new(plan.program.clone(), SchedulerSettings::default());
        let (views, view) = watch::channel(Arc::default());
        let pool = Arc::new(Pool::new("default/pool".into(), view, scheduler, 7));
        let (registry, metrics) = counted();
        let shown: Arc<dyn Shown> = pool.clone();
        metrics.pools.add(&shown);
        let settings = DirectorSettings {
            fields: stator_body::FieldRules::default().with_extensions(),
            unknown_fields: UnknownFields::Refuse,
            refuse_unscreened: false,
            parsers: ParserSet::new(
                plan.parsers
                    .iter()
                    .map(|known| parser(known.name()).expect("it is there"))
                    .collect(),
            ),
            interest: Interest::Nothing,
            leaves_early: false,
            scores: choices.scores,
            fallbacks: false,
            token_ids: true,
            in_flight: plan.in_flight,
            identities: plan.agent_identity.clone(),
            media: MediaEstimate::default(),
            renderer: choices.renderer.map(Arc::new),
            verify_served: plan.verifies_served,
            reads_text: !plan.program.producers.is_empty(),
            pins: choices.pins,
        };
        let handler = &plan.program.handler;
        let splits =
            ["disagg-profile-handler", "pd-profile-handler"].contains(&&*handler.type_name);
        let names = splits.then(|| (handler.name.to_string(), handler.type_name.to_string()));
        let observe = Observe::new(pool.name(), metrics.clone(), plan.reporters.clone(), names);
        let director = PoolDirector::new(pool.clone(), settings, observe);
        let nobody = mpsc::unbounded_channel().1;
        let served =
            Served::with(director, (ExtProcSettings::default(), nobody), (registry, metrics)).await;
        let bed = Self { served, pool, views, ranks: choices.ranks.max(1) };
        bed.set(engines);
        bed
    }

    /// The pool has these pods from now on, with the objectives and the rewrite of the hermetic
    /// tests.
    pub(crate) fn set(&self, engines: &[Engine]) {
        let ports: Vec<_> = (0..self.ranks).map(|rank| PORT + rank).collect();
        let spec = PoolSpec::standalone("app=model", &ports).expect("it is sound");
        let endpoints = |engine: &Engine| endpoints_of(&pod(engine), &spec);
        let mut endpoints: Vec<Arc<Endpoint>> =
            engines.iter().flat_map(endpoints).map(Arc::new).collect();
        endpoints.sort_by_key(|endpoint| endpoint.worker);
        let target = RewriteTarget { model: "rewritten-model".into(), weight: None };
        let rule = RewriteRule {
            models: Some(vec!["model-to-be-rewritten".into()]),
            targets: vec![target],
        };
        let rewrite = Rewrite { name: "rules".into(), rules: vec![rule], ..Rewrite::default() };
        let priorities = [("my-model", 2), ("sql-lora", 2), ("priority-4", 4), ("sheddable", -1)];
        self.views.send_replace(Arc::new(PoolView {
            endpoints: endpoints.clone(),
            synced: true,
            objectives: Arc::new(BTreeMap::from(priorities.map(|(name, at)| (name.into(), at)))),
            rewrites: Arc::new(Rewrites::compile([&rewrite])),
            ..PoolView::default()
        }));
        self.pool.follow_view();
        for endpoint in &endpoints {
            let engine = engines.iter().find(|e| address(e.number).ip() == endpoint.address.ip());
            self.pool.load(endpoint.worker, &load(engine.expect("each is of one")));
        }
        self.pool.tick();
    }

    /// What comes back for these messages, in one line each, and then the stream's end if it
    /// ends.
    pub(crate) async fn check(
        &self,
        messages: impl IntoIterator<Item = ProcessingRequest>,
        expected: &[impl AsRef<str>],
    ) {
        let mut stream = self.served.open().await;
        stream.send(messages);
        stream.expect(expected).await;
    }

    /// Sends a request, which is routed.
    pub(crate) async fn route(&self, messages: [ProcessingRequest; 2]) -> Routed {
        let mut stream = self.served.open().await;
        stream.send(messages);
        let head = stream.answer().await;
        assert!(header_set(&head, DESTINATION).is_some(), "{}", show(&head));
        let mut body = Vec::new();
        loop {
            let answer = stream.answer().await;
            let (bytes, end) = piece(&answer).expect("the body follows its head");
            body.extend_from_slice(bytes);
            if end {
                return Routed { stream, head, body };
            }
        }
    }

    /// Sends a request, answers it and waits for the end of the answer; where it went.
    pub(crate) async fn finish(&self, messages: [ProcessingRequest; 2]) -> SocketAddr {
        let routed = self.route(messages).await;
        let to = routed.to();
        routed.answered().await;
        to
    }
}

/// A request that was routed and has no answer yet.
pub(crate) struct Routed {
    pub(crate) stream: Stream,
    head: ProcessingResponse,
    pub(crate) body: Vec<u8>,
}

impl Routed {
    /// The value of a header that the endpoint gets.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        header_set(&self.head, name)
    }

    /// The endpoint.
    pub(crate) fn to(&self) -> SocketAddr {
        let to = self.header(DESTINATION).expect("it was routed");
        to.parse().expect("it is one address")
    }

    /// The endpoint answers; the headers that the client's answer gets.
    pub(crate) async fn answered(mut self) -> ProcessingResponse {
        self.stream.send([ok(), response_body("{}", true)]);
        let head = self.stream.answer().await;
        let body = self.stream.answer().await;
        assert_eq!(piece(&body), Some((&b"{}"[..], true)));
        head
    }
}

fn pod(engine: &Engine) -> Pod {
    let labels = [("app", "model")].into_iter().chain(engine.labels.iter().copied());
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Pod {
        name: pod_name(engine.number).into(),
        namespace: "default".into(),
        uid: "1".into(),
        labels: Arc::new(labels),
        node: None,
        active_ports: None,
        ip: Some(address(engine.number).ip()),
        ready: true,
        deleting: false,
    }
}

fn load(engine: &Engine) -> EngineLoad {
    let running = engine.adapters.iter().map(|name| (*name).to_owned()).collect();
    let lora = Lora { max: 2, running, waiting: Vec::new() };
    EngineLoad {
        waiting: engine.waiting,
        kv_usage: engine.kv_usage,
        lora: Some(lora),
        ..EngineLoad::default()
    }
}
