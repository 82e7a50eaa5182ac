use crate::testing::{Fleet, check_errors, matched};
use crate::{BuildContext, build};
use serde_json::{Value, json};
use stator_epp_scheduler::plugin::{Pick, ProfileHandler, RouteError, Routing};
use stator_epp_scheduler::{Candidate, HeaderView, MultimodalItem, Prompt, Request};
use std::sync::Arc;

/// A handler among these profiles, with every decider built under its type name.
fn made(type_name: &str, profiles: &[&str], parameters: &Value) -> Arc<dyn ProfileHandler> {
    let mut context = context(profiles);
    let built = build(type_name, "handler", parameters, &mut context);
    built.expect("the parameters are right").handler.expect("it is a handler")
}

fn context(profiles: &[&str]) -> BuildContext {
    let mut context = BuildContext::new(profiles.iter().map(|name| (*name).to_owned()).collect());
    let deciders = [
        ("always-disagg-pd-decider", Value::Null),
        ("always-disagg-multimodal-decider", Value::Null),
        ("prefix-based-pd-decider", json!({"nonCachedTokens": 32, "promptTokens": 64})),
    ];
    for (decider, parameters) in deciders {
        build(decider, decider, &parameters, &mut context).expect("deciders can be built");
    }
    context
}

/// Runs a handler over profiles that pick these candidates, and notes the order of runs.
fn route<'a>(
    handler: &dyn ProfileHandler,
    request: &Request<'_>,
    picks: &[(&str, &[&Candidate<'a>])],
) -> (Result<Routing<'a>, RouteError>, Vec<String>) {
    let mut runs = Vec::new();
    let routing = handler.route(request, &mut |profile| {
        runs.push(profile.to_owned());
        let (_, targets) = picks.iter().find(|(name, _)| *name == profile)?;
        let targets: Vec<_> = targets.iter().map(|target| (*target).clone()).collect();
        (!targets.is_empty()).then_some(Pick { targets })
    });
    (routing, runs)
}

fn headers(routing: Result<Routing<'_>, RouteError>) -> Vec<(&'static str, String)> {
    routing.expect("the request is routed").headers
}

fn header(name: &'static str, value: &str) -> (&'static str, String) {
    (name, value.to_owned())
}

#[test]
fn the_only_profile_answers() {
    let fleet = Fleet::of(1);
    let candidates = fleet.candidates();
    let handler = made("single-profile-handler", &["main"], &Value::Null);
    let (routing, runs) = route(&*handler, &Request::default(), &[("main", &[&candidates[0]])]);
    assert_eq!((headers(routing), runs), (vec![], vec!["main".to_owned()]));
    let (routing, _) = route(&*handler, &Request::default(), &[]);
    assert_eq!(routing.err(), Some(RouteError::Drained));
    let mut context = context(&["a", "b"]);
    let built = build("single-profile-handler", "handler", &Value::Null, &mut context);
    let wanted = "type: is for one scheduling profile, there are 2";
    assert_eq!(built.err(), Some(vec![wanted.to_owned()]));
}

#[test]
fn data_parallel_requests_go_to_the_primary_port() {
    let fleet = Fleet::of(1);
    let candidates = fleet.candidates();
    let parameters = json!({"primaryPort": 9000});
    let handler = made("data-parallel-profile-handler", &["default"], &parameters);
    let (routing, _) = route(&*handler, &Request::default(), &[("default", &[&candidates[0]])]);
    assert_eq!(routing.as_ref().ok().and_then(|routing| routing.port), Some(9000));
    assert_eq!(headers(routing), [header("x-data-parallel-host-port", "10.0.0.1:8000")]);
    let wanted = "primaryPort: 65536 is not in 1..=65535";
    check_errors("data-parallel-profile-handler", json!({"primaryPort": 65536}), &[wanted]);
}

#[test]
fn a_header_names_the_profile() {
    let handler = made("header-profile-handler", &["decode", "prefill"], &Value::Null);
    let check = |sent: &[(&str, &str)], wanted: Result<&str, RouteError>| {
        let request = Request { headers: HeaderView(sent), ..Request::default() };
        let fleet = Fleet::of(1);
        let candidates = fleet.candidates();
        let picks: [(&str, &[&Candidate<'_>]); 2] =
            [("decode", &[&candidates[0]]), ("prefill", &[&candidates[0]])];
        let (routing, runs) = route(&*handler, &request, &picks);
        assert_eq!(routing.map(|_| runs.join(" ")), wanted.map(str::to_owned));
    };
    check(&[], Ok("decode"));
    check(&[("epp-profile", "prefill")], Ok("prefill"));
    check(&[("epp-profile", "cook")], Err(RouteError::UnknownProfile("cook".to_owned())));
}

/// Routes with deciders for both stages; gives the headers and the order of runs.
fn disagg(
    request: &Request<'_>,
    cached: u32,
    drained: bool,
) -> (Vec<(&'static str, String)>, String) {
    let mut fleet = Fleet::of(4);
    fleet.endpoints[1].address = "[fd00::1]:8000".parse().expect("it is an address");
    let mut candidates = fleet.candidates();
    candidates[0].approximate = Some(matched(cached, 8));
    let parameters = json!({"deciders": {
        "prefill": "prefix-based-pd-decider",
        "encode": "always-disagg-multimodal-decider",
    }});
    let profiles = ["decode", "prefill", "encode"];
    let handler = made("disagg-profile-handler", &profiles, &parameters);
    let prefill: &[&Candidate<'_>] = if drained { &[] } else { &[&candidates[1]] };
    let encode = [&candidates[2], &candidates[3]];
    let picks = [("decode", &[&candidates[0]][..]), ("prefill", prefill), ("encode", &encode)];
    let (routing, runs) = route(&*handler, request, &picks);
    (headers(routing), runs.join(" "))
}

fn request(tokens: u32, multimodal: &[MultimodalItem]) -> Request<'_> {
    Request { prompt: Prompt { tokens, multimodal, ..Prompt::default() }, ..Request::default() }
}

#[test]
fn long_new_prompts_are_computed_apart() {
    let prefill = header("x-prefiller-host-port", "[fd00::1]:8000");
    let split = (vec![prefill], "decode prefill".to_owned());
    let alone = (vec![], "decode".to_owned());
    assert_eq!(disagg(&request(128, &[]), 6, false), split);
    // Too much of it is held, or it is too short.
    assert_eq!(disagg(&request(128, &[]), 7, false), alone);
    assert_eq!(disagg(&request(63, &[]), 0, false), alone);
    // Nobody to compute it: the endpoint that answers does.
    assert_eq!(disagg(&request(128, &[]), 0, true), (vec![], "decode prefill".to_owned()));
}

#[test]
fn images_are_encoded_apart() {
    let images = [MultimodalItem { hash: 1, modality: "image", size_bytes: 10 }];
    let (headers, runs) = disagg(&request(128, &images), 0, false);
    assert_eq!(runs, "decode encode prefill");
    assert_eq!(
        headers,
        [
            header("x-encoder-hosts-ports", "10.0.0.3:8000,10.0.0.4:8000"),
            header("x-prefiller-host-port", "[fd00::1]:8000"),
        ]
    );
}

#[test]
fn prefill_can_come_first() {
    let fleet = Fleet::of(2);
    let candidates = fleet.candidates();
    let parameters = json!({"stageOrder": "prefill-first"});
    let handler = made("disagg-profile-handler", &["decode", "prefill"], &parameters);
    let picks: [(&str, &[&Candidate<'_>]); 2] =
        [("decode", &[&candidates[0]]), ("prefill", &[&candidates[1]])];
    let (routing, runs) = route(&*handler, &Request::default(), &picks);
    assert_eq!(runs, ["prefill", "decode"]);
    assert_eq!(headers(routing), [header("x-prefiller-host-port", "10.0.0.2:8000")]);
    let (routing, _) = route(&*handler, &Request::default(), &picks[1..]);
    assert_eq!(routing.err(), Some(RouteError::Drained));
}

#[test]
fn the_old_handler_splits_and_retargets() {
    let fleet = Fleet::of(2);
    let candidates = fleet.candidates();
    let parameters = json!({"deciderPluginName": "always-disagg-pd-decider", "primaryPort": 9000});
    let handler = made("pd-profile-handler", &["decode", "prefill"], &parameters);
    let picks: [(&str, &[&Candidate<'_>]); 2] =
        [("decode", &[&candidates[0]]), ("prefill", &[&candidates[1]])];
    let (routing, _) = route(&*handler, &Request::default(), &picks);
    assert_eq!(routing.as_ref().ok().and_then(|routing| routing.port), Some(9000));
    assert_eq!(
        headers(routing),
        [
            header("x-prefiller-host-port", "10.0.0.2:8000"),
            header("x-data-parallel-host-port", "10.0.0.1:8000"),
        ]
    );
}

#[test]
fn deciders_and_profiles_must_be_there() {
    let mut context = context(&["decode"]);
    build("max-score-picker", "picker", &Value::Null, &mut context).expect("it has no parameters");
    let parameters = json!({
        "stageOrder": "encode-first",
        "profiles": {"prefill": "p"},
        "deciders": {"prefill": "picker", "encode": "nobody", "decode": "x"},
    });
    let built = build("disagg-profile-handler", "handler", &parameters, &mut context);
    let wanted = [
        "stageOrder: \"encode-first\" is none of decode-first, prefill-first",
        "profiles.prefill: no profile is called \"p\"",
        "deciders.prefill: plug-in \"picker\" is not a decider",
        "deciders.encode: no plug-in is called \"nobody\"",
        "deciders.decode: unknown parameter, known are prefill, encode",
    ];
    assert_eq!(built.err().unwrap_or_default(), wanted);
    let parameters = json!({
        "stageOrder": "prefill-first",
        "deciders": {"prefill": "always-disagg-pd-decider"},
    });
    let built = build("disagg-profile-handler", "handler", &parameters, &mut context);
    let wanted = [
        "deciders.prefill: cannot decide before prefill with prefill-first",
        "profiles.prefill: no profile is called \"prefill\"",
    ];
    assert_eq!(built.err().unwrap_or_default(), wanted);
}
