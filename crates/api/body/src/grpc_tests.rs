use super::*;
use proptest::prelude::*;

/// A message in a frame of its own.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("test messages are short");
    [&[0][..], &length.to_be_bytes(), message].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field with a number.
pub(crate) fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A field with bytes: a string, a message or packed numbers.
pub(crate) fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

pub(crate) fn packed(field: u64, ids: &[u32]) -> Vec<u8> {
    bytes(field, &ids.iter().flat_map(|&id| varint(id.into())).collect::<Vec<_>>())
}

/// A streamed part with its counts.
fn part(prompt: u64, completion: u64) -> Vec<u8> {
    let counts = [number(2, prompt), number(3, completion), number(4, 1)].concat();
    frame(&bytes(1, &[packed(1, &[300, 5]), counts].concat()))
}

fn usage_of(response: &[u8], size: usize) -> Option<(u32, u32)> {
    let mut usage = GrpcUsage::new();
    response.chunks(size).for_each(|chunk| usage.push(chunk));
    usage.finish().map(|usage| (usage.prompt_tokens, usage.completion_tokens))
}

#[track_caller]
fn check(response: &[u8], expected: Option<(u32, u32)>) {
    for size in [1, 3, 8, 1 << 22] {
        assert_eq!(usage_of(response, size), expected, "chunks of {size} bytes");
    }
}

#[test]
fn the_last_counts_of_a_stream_are_taken() {
    check(&[part(7, 1), part(7, 10), part(0, 0)].concat(), Some((7, 10)));
    let complete = [packed(1, &[1, 2]), bytes(2, b"stop"), number(3, 7), number(4, 2)].concat();
    check(&frame(&bytes(2, &complete)), Some((7, 2)));
    check(&frame(&[bytes(1, &[0; 16]), number(2, 9)].concat()), Some((9, 0)));
    check(&[part(7, 1), frame(b"\xff\xff")].concat(), Some((7, 1)));
    check(b"", None);
}

#[test]
fn frames_of_no_use_are_passed_over() {
    let long = frame(&bytes(1, &vec![0; MESSAGE_MAX_BYTES]));
    let mut compressed = part(9, 9);
    compressed[0] = 1;
    check(&[part(7, 1), long, compressed.clone()].concat(), Some((7, 1)));
    check(&[compressed, part(7, 2)].concat(), Some((7, 2)));
}

#[test]
fn broken_frames_say_what_is_wrong() {
    let check = |body: &[u8], text: &str| {
        assert_eq!(message_in(body).expect_err("the frame is broken").to_string(), text);
    };
    check(b"\0\0", "invalid gRPC frame: expected at least 5 bytes for header, got 2");
    check(b"\x01\0\0\0\0", "compressed gRPC payload is not supported");
    check(
        b"\0\0\0\0\x05ab",
        "incomplete gRPC payload: header indicates 5 bytes, but only 2 bytes are available",
    );
    assert_eq!(message_in(&frame(b"ab")), Ok(Span { start: 5, end: 7 }));
}

proptest! {
    #[test]
    fn numbers_survive(ids in prop::collection::vec(any::<u32>(), 0..50), alone in any::<bool>()) {
        let message = match alone {
            true => ids.iter().flat_map(|&id| number(2, id.into())).collect(),
            false => packed(2, &ids),
        };
        let mut read = Vec::new();
        for field in Message::at(&message, Span { start: 0, end: message.len() }) {
            let (number, wire) = field.expect("the message is sound");
            prop_assert_eq!(number, 2);
            push_numbers(&message, wire, &mut read).expect("the numbers are sound");
        }
        prop_assert_eq!(read, ids);
    }

    /// Whatever the bytes and however they are cut, reading ends and memory stays bounded.
    #[test]
    fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..200), size in 1_usize..50) {
        let whole = Span { start: 0, end: body.len() };
        prop_assert!(Message::at(&body, whole).count() <= body.len());
        prop_assert_eq!(usage_of(&body, size), usage_of(&body, 1));
        let _ = message_in(&body);
    }
}
