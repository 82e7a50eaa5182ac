use super::*;
use crate::testing::{Fleet, check_errors, check_scores, kept, made, routed};
use crate::{BuildContext, build};
use proptest::prelude::*;
use serde_json::{Value, json};
use stator_epp_scheduler::HeaderView;

fn request<'a>(headers: &'a [(&'a str, &'a str)]) -> Request<'a> {
    Request { headers: HeaderView(headers), ..Request::default() }
}

#[test]
fn a_token_leads_back_to_the_endpoint() {
    let fleet = Fleet::of(3);
    let plugin = made("session-affinity-filter", Value::Null);
    let stamper = plugin.response_headers.expect("it stamps answers");
    let stamped = stamper.response_headers(&request(&[]), &routed(&fleet.candidates()[1]));
    let (name, token) = &stamped[0];
    assert_eq!((*name, token.as_str()), ("x-session-token", "bW9kZWxzL3BvZC0xLXJhbmstMA=="));
    let filter = plugin.filter.expect("it is a filter");
    let check = |headers: &[(&str, &str)], wanted: &[u64]| {
        assert_eq!(kept(&*filter, &request(headers), fleet.candidates()), wanted);
    };
    check(&[(name, token)], &[1]);
    check(&[], &[0, 1, 2]);
    check(&[(name, "not a token")], &[0, 1, 2]);
    // An endpoint that is gone binds nobody.
    check(&[(name, "bW9kZWxzL3BvZC05LXJhbmstMA==")], &[0, 1, 2]);
}

#[test]
fn the_scorer_prefers_where_the_filter_insists() {
    let parameters = json!({"encodedEndpointHeaderConfig": {"header": "X-Other"}});
    let scorer = made("session-affinity-scorer", parameters).scorer.expect("it is a scorer");
    let headers = [("x-other", "bW9kZWxzL3BvZC0xLXJhbmstMA==")];
    let fleet = Fleet::of(2);
    check_scores(&*scorer, &request(&headers), &fleet.candidates(), &[0.0, 1.0]);
    check_scores(&*scorer, &request(&[]), &fleet.candidates(), &[0.0, 0.0]);
}

#[test]
fn a_session_stays_until_it_is_not_used_any_more() {
    let parameters = json!({"strategy": "session_id", "sessionIdConfig": {
        "evictionTtlSeconds": 1,
        "sources": [{"header": "x-session-id"}, {"attribute": "agents"}],
    }});
    let mut context = BuildContext::new(vec!["default".to_owned()]);
    build("agent-identity", "agents", &Value::Null, &mut context).expect("it can be built");
    let plugin = build("session-affinity-scorer", "session", &parameters, &mut context);
    let plugin = plugin.expect("the parameters are right");
    let (scorer, observer) = (plugin.scorer.expect("one"), plugin.observer.expect("one"));
    let fleet = Fleet::of(2);
    let candidates = fleet.candidates();
    let check = |headers: &[(&str, &str)], ms: u64, wanted: [f64; 2]| {
        let mut scores = [0.5; 2];
        let random = &mut stator_epp_scheduler::Random::new(1);
        let now = Moment { time: Time::from_millis(ms), random };
        let candidates: Vec<_> = candidates.iter().collect();
        scorer.score(&request(headers), &candidates, &mut scores, now);
        assert_eq!(scores, wanted);
    };
    let routing = routed(&candidates[1]);
    let placed = PlacedRequest { ticket: 1, routing: &routing };
    check(&[("session_id", "a")], 0, [0.0, 0.0]);
    observer.placed(&request(&[("session_id", "a")]), &placed, Time::from_millis(100));
    check(&[("session_id", "a")], 1100, [0.0, 1.0]);
    check(&[("x-session-id", "a")], 1100, [0.0, 1.0]);
    check(&[("x-session-id", "b")], 1100, [0.0, 0.0]);
    check(&[("session_id", "a")], 1101, [0.0, 0.0]);
}

#[test]
fn identities_come_from_headers_and_cookies() {
    let check = |source: &IdSource, headers: &[(&str, &str)], wanted: Option<&str>| {
        assert_eq!(source.read(HeaderView(headers)), wanted);
    };
    let cookie = IdSource::Cookie("sid".to_owned());
    check(&cookie, &[("cookie", "a=1; sid=xyz; b=2")], Some("xyz"));
    check(&cookie, &[("cookie", "asid=1; sid=")], None);
    check(&cookie, &[], None);
    check(&IdSource::Header("x".to_owned()), &[("x", " y ")], Some("y"));
}

#[test]
fn sources_must_be_there_and_make_sense() {
    check_errors(
        "session-affinity-filter",
        json!({"strategy": "luck", "profileName": "x", "sessionIdConfig": {"sources": [
            {"attribute": "session"},
            {"header": "a", "attribute": "b"},
        ]}}),
        &[
            "strategy: \"luck\" is none of encoded_endpoint_header, session_id",
            "profileName: no profile is called \"x\"",
            "sessionIdConfig.sources[0].attribute: no plug-in makes \"session\"",
            "sessionIdConfig.sources[1].header: is required, or attribute, and not both",
        ],
    );
    check_errors(
        "session-id-producer",
        json!({"headerName": "a", "cookieName": "b"}),
        &["cookieName: cannot be there together with headerName"],
    );
}

proptest! {
    /// Whatever an endpoint is called, its token names it.
    #[test]
    fn tokens_decode_to_what_was_encoded(name in "[a-z0-9-]{0,40}") {
        let mut endpoint = Fleet::of(1).endpoints.remove(0);
        endpoint.name = name.into();
        let decoded = token::decode(&token::encode(&endpoint));
        prop_assert!(decoded.is_some_and(|decoded| token::names(&decoded, &endpoint)));
    }

    /// Whatever a client sends as a token, nothing breaks.
    #[test]
    fn any_text_is_a_token_or_none(token in ".{0,40}") {
        let _ = token::decode(&token);
    }
}
