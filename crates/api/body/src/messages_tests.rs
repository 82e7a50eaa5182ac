use super::*;
use crate::grpc::tests::{bytes, frame, number};
use crate::{BodyDescription, ScreenError, ScreenOutcome};
use proptest::collection::vec;
use proptest::prelude::*;

const VLLM: &str = "/vllm.grpc.engine.VllmEngine/Generate";
const SGLANG: &str = "/sglang.grpc.scheduler.SglangScheduler/Generate";

/// The body as it goes on, with the counts of steering and unknown fields.
fn screened(path: &str, body: &[u8], named: &[&str]) -> Result<(Vec<u8>, u64, u64), ScreenError> {
    let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
    let rules = FieldRules::new(&named).expect("an operator may name them");
    let described = BodyDescription { path, content_type: Some("application/grpc") };
    match rules.screen_body(described, &body.to_vec().into(), None)? {
        ScreenOutcome::Read(screening) => {
            let left = screening.edits().apply(body);
            assert_eq!(screening.is_empty(), left == body);
            Ok((left, screening.steering(), screening.unknown()))
        }
        ScreenOutcome::Unread => panic!("the method is known"),
    }
}

#[track_caller]
fn check(path: &str, body: &[&[u8]], left: &[&[u8]]) {
    let (found, ..) = screened(path, &frame(&body.concat()), &[]).expect("it is screened");
    assert_eq!(found, frame(&left.concat()));
}

#[test]
fn fields_that_steer_are_removed_from_vllms_messages() {
    let own = [bytes(1, b"id"), bytes(3, b"hello"), number(5, 1)].concat();
    let params = bytes(4, &number(8, 16));
    check(
        VLLM,
        &[
            &bytes(6, &bytes(1, b"10.0.0.1")),
            &own,
            &bytes(8, br#"{"do_remote_prefill":true}"#),
            &params,
            &number(9, 3),
            &bytes(99, b"new"),
        ],
        &[&own, &params],
    );
    check(VLLM, &[&own, &params], &[&own, &params]);
    let body = frame(&[own.clone(), number(9, 3), bytes(99, b"new")].concat());
    assert_eq!(screened(VLLM, &body, &[]).map(|(_, s, u)| (s, u)), Ok((1, 1)));
    let (left, ..) = screened(VLLM, &body, &["*"]).expect("it is screened");
    assert_eq!(left, frame(&[own, bytes(99, b"new")].concat()));
}

#[test]
fn tensors_come_from_the_message_alone() {
    let tensor = |more: &[u8]| [&bytes(1, b"\0\0"), more].concat();
    let media = |tensor: &[u8]| {
        let entry = [bytes(1, b"grid"), bytes(2, tensor)].concat();
        [bytes(2, tensor), bytes(3, &entry), bytes(6, b"hash")].concat()
    };
    for more in [bytes(4, b"/dev/shm/x"), bytes(5, b"host")] {
        for field in [7, 11] {
            let (sent, left) = (media(&tensor(&more)), media(&tensor(&[])));
            check(VLLM, &[&bytes(field, &sent)], &[&bytes(field, &left)]);
        }
    }
}

#[test]
fn fields_that_steer_are_removed_from_sglangs_messages() {
    let own = [bytes(1, b"id"), bytes(2, b"\x12\x01\x07"), number(17, 1)].concat();
    let steering = [bytes(10, &number(3, 7)), bytes(15, b"adapter"), number(16, 1)].concat();
    let params = |more: &[u8]| bytes(4, &[&number(8, 16), more].concat());
    check(SGLANG, &[&steering, &own, &params(&bytes(23, b"x"))], &[&own, &params(&[])]);
    let body = frame(&[own.clone(), bytes(15, b"adapter")].concat());
    let (left, ..) = screened(SGLANG, &body, &["lora_path"]).expect("it is screened");
    assert_eq!(left, body);
}

#[test]
fn what_is_not_one_message_is_refused() {
    let fails = |body: &[u8], what: &str| {
        let error = screened(VLLM, body, &[]).expect_err("it is no message").to_string();
        assert!(error.ends_with(what), "{error}");
    };
    fails(&[frame(&[]), frame(&bytes(8, b"{}"))].concat(), "9 bytes follow the gRPC message");
    fails(&frame(b"\xff\xff"), "invalid protobuf at byte 5");
    // A field whose number would be 8 for readers of 32 bits.
    fails(&frame(&number(1 << 29 | 8, 1)), "invalid protobuf at byte 5");
    fails(b"\x01\0\0\0\0", "compressed gRPC payload is not supported");
}

proptest! {
    /// Fields in any order and as often as they like: those that may not pass are gone, all others
    /// are there in their order.
    #[test]
    fn agrees_with_a_list(fields in vec((1_u64..20, vec(any::<u8>(), 0..6), any::<bool>()), 0..12)) {
        let field = |(field, value, short): &(u64, Vec<u8>, bool)| match short {
            true => number(*field, value.len() as u64),
            false => bytes(*field, value),
        };
        // Fields that are messages themselves have tests of their own.
        let fields: Vec<_> = fields.into_iter().filter(|(n, ..)| ![7, 11].contains(n)).collect();
        let passes = |(n, ..): &&(u64, Vec<u8>, bool)| n <= &5 || n == &10;
        let sent = frame(&fields.iter().flat_map(field).collect::<Vec<u8>>());
        let left = frame(&fields.iter().filter(passes).flat_map(field).collect::<Vec<u8>>());
        prop_assert_eq!(screened(VLLM, &sent, &[]).map(|(left, ..)| left), Ok(left));
    }

    /// Any bytes are screened or refused, and a screened message has nothing more to lose.
    #[test]
    fn takes_any_bytes(message in vec(any::<u8>(), 0..80), sglang in any::<bool>()) {
        let path = if sglang { SGLANG } else { VLLM };
        if let Ok((left, ..)) = screened(path, &frame(&message), &[]) {
            prop_assert_eq!(screened(path, &left, &[]), Ok((left.clone(), 0, 0)));
        }
    }
}
