use crate::testing::{Fleet, check_errors, made, routed};
use parking_lot::Mutex;
use serde_json::{Value, json};
use stator_epp_scheduler::plugin::{
    LatencyOutcome, Meter, Pick, PlacedRequest, PluginParts, RequestLatencies, RequestProgress,
};
use stator_epp_scheduler::{Endpoint, MultimodalItem, Prompt, Request, Time};
use std::sync::Arc;
use std::time::Duration;

/// Lets a request run: the first token comes after `ttft` ms and 11 tokens take `10 · tpot` more.
fn run(plugin: &PluginParts, fleet: &Fleet, ticket: u64, ttft: u64, tpot: u64) {
    let observer = plugin.observer.as_ref().expect("it is an observer");
    let request = request();
    let mut candidates = fleet.candidates();
    plugin.producer.as_ref().expect("it is a producer").produce(
        &request,
        &mut candidates,
        Time::default(),
    );
    let routing = routed(&candidates[0]);
    let at = |ms| Time::from_millis(ticket * 10_000 + ms);
    observer.placed(&request, &PlacedRequest { ticket, routing: &routing }, at(0));
    let progress = progress(ticket);
    observer.first_token(&progress, at(ttft));
    observer.first_token(&progress, at(ttft + 1));
    observer.ended(&progress, at(ttft + 10 * tpot));
}

fn request() -> Request<'static> {
    let prompt = Prompt { tokens: 1000, ..Prompt::default() };
    Request {
        asked_model: "asked",
        model: "sent",
        stream: true,
        prompt,
        slo_ttft: Some(Duration::from_millis(250)),
        slo_tpot: Some(Duration::from_millis(25)),
        ..Request::default()
    }
}

fn progress(ticket: u64) -> RequestProgress<'static> {
    RequestProgress {
        ticket,
        output_tokens: Some(11),
        cached_tokens: None,
        answered: true,
        served: None,
    }
}

/// What is predicted for the first endpoint, in whole milliseconds.
fn predicted(plugin: &PluginParts, fleet: &Fleet) -> Option<(f64, f64)> {
    let mut candidates = fleet.candidates();
    let producer = plugin.producer.as_ref().expect("it is a producer");
    producer.produce(&request(), &mut candidates, Time::default());
    candidates[0].latency().map(|latency| (latency.ttft_ms.round(), latency.tpot_ms.round()))
}

/// A predictor that saw queues of 0 to 9 cost 100 ms each.
fn trained(parameters: Value) -> (PluginParts, Fleet) {
    let plugin = made("predicted-latency-producer", parameters);
    let mut fleet = Fleet::of(1);
    for ticket in 0..100 {
        fleet.loads[0].waiting = (ticket % 10) as u32;
        run(&plugin, &fleet, ticket, 200 + 100 * (ticket % 10), 20);
    }
    fleet.loads[0].waiting = 5;
    (plugin, fleet)
}

#[test]
fn streamed_answers_teach_both_latencies() {
    let (plugin, fleet) = trained(json!({"streamingMode": true}));
    assert_eq!(predicted(&plugin, &fleet), Some((700.0, 20.0)));
}

#[test]
fn whole_answers_teach_their_whole_latency() {
    let (plugin, fleet) = trained(json!({}));
    assert_eq!(predicted(&plugin, &fleet), Some((900.0, 0.0)));
}

#[test]
fn nothing_is_predicted_when_it_is_not_wanted_or_not_known() {
    let (plugin, fleet) = trained(json!({"predictInProduce": false}));
    assert_eq!(predicted(&plugin, &fleet), None);
    let fresh = made("predicted-latency-producer", json!({}));
    assert_eq!(predicted(&fresh, &fleet), None);
}

/// What is predicted, in whole milliseconds, for an image that the endpoint has to encode and for
/// one that it holds, after such images cost 400 ms and none.
fn of_images(parameters: Value) -> [Option<f64>; 2] {
    let plugin = made("predicted-latency-producer", parameters);
    let observer = plugin.observer.as_ref().expect("it is an observer");
    let producer = plugin.producer.as_ref().expect("it is a producer");
    let image = [MultimodalItem { hash: 1, modality: "image", size_bytes: 2 << 20 }];
    let prompt = Prompt { tokens: 1000, multimodal: &image, ..Prompt::default() };
    let request = Request { prompt, ..request() };
    let fleet = Fleet::of(1);
    let mut candidates = fleet.candidates();
    for ticket in 0..100 {
        candidates[0].findings().multimodal = Some((ticket % 2) as f64);
        let took = if ticket % 2 == 0 { 600 } else { 200 };
        let routing = routed(&candidates[0]);
        observer.placed(&request, &PlacedRequest { ticket, routing: &routing }, Time::default());
        observer.ended(&progress(ticket), Time::from_millis(took));
    }
    [0.0, 1.0].map(|share| {
        candidates[0].findings().multimodal = Some(share);
        producer.produce(&request, &mut candidates, Time::default());
        candidates[0].latency().map(|latency| latency.ttft_ms.round())
    })
}

#[test]
fn what_an_endpoint_has_to_encode_counts_where_that_is_wanted() {
    assert_eq!(of_images(json!({"useEncoderCacheFeatures": true})), [Some(600.0), Some(200.0)]);
    let [encoded, held] = of_images(json!({}));
    assert!(encoded == held && encoded.is_some(), "{encoded:?}, {held:?}");
}

#[test]
fn endpoints_of_other_roles_learn_apart() {
    let (plugin, mut fleet) = trained(json!({"endpointRoleLabel": "kind"}));
    assert!(predicted(&plugin, &fleet).is_some());
    fleet.endpoints = Fleet::labelled(&[&[("kind", "new")]]).endpoints;
    assert_eq!(predicted(&plugin, &fleet), None);
}

#[test]
fn what_tells_nothing_of_the_endpoint_is_passed_over() {
    let plugin = made("predicted-latency-producer", json!({}));
    let fleet = Fleet::of(1);
    let observer = plugin.observer.as_ref().expect("it is an observer");
    let routing = routed(&fleet.candidates()[0]);
    for ticket in 0..100 {
        observer.placed(&request(), &PlacedRequest { ticket, routing: &routing }, Time::default());
        let mut progress = progress(ticket);
        match ticket % 2 {
            0 => progress.answered = false,
            _ => progress.served = Some("another"),
        }
        observer.ended(&progress, Time::from_millis(100));
    }
    assert_eq!(predicted(&plugin, &fleet), None);
}

#[test]
fn the_first_token_is_owed_to_the_endpoint_that_computes_the_prompt() {
    let plugin = made("predicted-latency-producer", json!({"streamingMode": true}));
    let observer = plugin.observer.as_ref().expect("it is an observer");
    let role = "llm-d.ai/role";
    let fleet = Fleet::labelled(&[&[(role, "prefill")], &[(role, "decode")]]);
    let candidates = fleet.candidates();
    let mut routing = routed(&candidates[1]);
    routing.others.push(("prefill".to_owned(), Pick { targets: vec![candidates[0].clone()] }));
    for ticket in 0..50 {
        observer.placed(&request(), &PlacedRequest { ticket, routing: &routing }, Time::default());
        observer.first_token(&progress(ticket), Time::from_millis(300));
        observer.ended(&progress(ticket), Time::from_millis(400));
    }
    assert_eq!(predicted(&plugin, &fleet), Some((300.0, 0.0)));
}

/// Keeps what it is told.
#[derive(Default)]
struct Ear(Mutex<Vec<(String, LatencyOutcome, Option<LatencyOutcome>)>>);

impl Meter for Ear {
    fn items_sought(&self, _: &[MultimodalItem]) {}

    fn items_held(&self, _: &Endpoint, _: &[MultimodalItem], _: usize) {}

    fn fared(&self, fared: &RequestLatencies<'_>) {
        let models = format!("{} {}", fared.asked_model, fared.model);
        self.0.lock().push((models, fared.ttft, fared.tpot));
    }
}

/// What is told of a request that was predicted as `trained` says and ends as `run` says.
fn told(parameters: Value) -> Vec<(String, LatencyOutcome, Option<LatencyOutcome>)> {
    let (plugin, fleet) = trained(parameters);
    let ear = Arc::new(Ear::default());
    plugin.measured.as_ref().expect("it is measured").measure_with(ear.clone());
    run(&plugin, &fleet, 1000, 500, 30);
    std::mem::take(&mut *ear.0.lock())
}

#[test]
fn how_requests_fare_is_told_beside_what_was_predicted() {
    let timing = |measured_ms, predicted_ms, objective_ms| LatencyOutcome {
        measured_ms,
        predicted_ms,
        objective_ms: Some(objective_ms),
    };
    let rounded = |parameters| {
        let round = |mut timing: LatencyOutcome| {
            timing.predicted_ms = timing.predicted_ms.map(f64::round);
            timing
        };
        let all = told(parameters).into_iter();
        all.map(|(models, ttft, tpot)| (models, round(ttft), tpot.map(round))).collect::<Vec<_>>()
    };
    let models = "asked sent".to_owned();
    let streamed =
        (models.clone(), timing(500.0, Some(700.0), 250.0), Some(timing(30.0, Some(20.0), 25.0)));
    assert_eq!(rounded(json!({"streamingMode": true})), [streamed]);
    let whole = (models.clone(), timing(800.0, Some(900.0), 250.0), None);
    assert_eq!(rounded(json!({})), [whole]);
    let unpredicted = (models, timing(800.0, None, 250.0), None);
    assert_eq!(rounded(json!({"predictInProduce": false})), [unpredicted]);
}

#[test]
fn factors_are_checked() {
    check_errors(
        "predicted-latency-producer",
        json!({"sloBufferFactor": 0, "contextTTL": "later", "samplingMean": 0}),
        &[
            "samplingMean: 0 is not above 0",
            "contextTTL: \"later\" is not a duration such as \"500ms\"",
            "sloBufferFactor: 0 is not above 0",
        ],
    );
}
