//! The steering of a request, its place and its urgency, is read within bounds, or refused.
//!
//! An input is the body, then the values of [`HEADERS`], with zero bytes between them.

use crate::split;
use stator_api::openai::ApiError;
use stator_api::steering::{Pins, Steering, SteeringHeaders};
use stator_protos::header::{LABELS, SLO_TTFT, TTL, WORKER_ID};

/// Headers that steer.
const HEADERS: [&str; 10] = [
    LABELS,
    TTL,
    SLO_TTFT[0],
    "x-dynamo-request-priority",
    "x-dynamo-request-strict-priority",
    "x-dynamo-session-id",
    WORKER_ID,
    "x-dynamo-worker-instance-id",
    "x-dynamo-dp-rank",
    "x-dynamo-prefill-instance-id",
];
/// Largest priority of a request.
const PRIORITY_MAX: i32 = 100;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (body, values) = split(input);
    let values: Vec<&[u8]> = values.split(|byte| *byte == 0).collect();
    let header = |name: &str| {
        let at = HEADERS.iter().position(|known| *known == name)?;
        values.get(at).copied()
    };
    let text = |name: &'static str| std::str::from_utf8(header(name)?).ok();
    let said = SteeringHeaders::of(text);
    assert!(said.session().is_none_or(|session| !session.trim().is_empty()));
    match Steering::read(body, said, PRIORITY_MAX) {
        Ok(steering) => {
            assert!((-PRIORITY_MAX..=PRIORITY_MAX).contains(&steering.priority));
            assert!(steering.jump_s <= PRIORITY_MAX as u32);
            assert!(steering.ttl.is_none_or(|ttl| !ttl.is_zero()));
            assert!(steering.expected_tokens != Some(0));
        }
        Err(error) => check(&error),
    }
    // A picker leaves the urgency alone, and nothing else.
    if let Err(error) = Steering::read_labels(body, said) {
        check(&error);
        Steering::read(body, said, PRIORITY_MAX).expect_err("labels are read there, too");
    }
    match Pins::of(header, true) {
        Ok(pins) => assert!(pins.prefill.is_none() == Pins::of_whole(header, true).is_ok()),
        Err(error) => check(&error),
    }
    assert_eq!(Pins::of(header, false).ok(), Some(Pins::default()));
}

fn check(error: &ApiError) {
    assert!(error.status.is_client_error());
}
