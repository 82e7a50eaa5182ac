//! The reader of streamed answers, for fuzz targets.

use crate::client::tally::{ReplyTally, whole};
use crate::client::{MeasuredReply, RequestFailure};
use crate::sse::SseParser;
use std::time::Duration;

/// The data of events, and what is measured of them.
type ReadStream = (Vec<Vec<u8>>, Result<MeasuredReply, RequestFailure>);

/// A stream has the events that an obvious reader finds, and the same measures wherever it is cut.
pub fn answer(stream: &[u8], cut: &[&[u8]]) {
    let (events, reply) = read(&[stream]);
    assert_eq!(read(cut), (events.clone(), reply.clone()));
    assert_eq!(events, obvious(stream));
    for reply in [reply, whole(stream, Duration::ZERO, true)].into_iter().flatten() {
        assert!(reply.chunks <= events.len() as u64 + 1);
        assert!(reply.gaps.len() as u64 <= reply.chunks);
        assert!(reply.text.len() <= stream.len());
        assert!(reply.itl().is_none_or(|itl| itl <= reply.latency));
    }
}

fn read(pieces: &[&[u8]]) -> ReadStream {
    let (mut parser, mut tally, mut events) =
        (SseParser::default(), ReplyTally::new(true), Vec::new());
    for piece in pieces {
        let on_event = |event: &[u8]| {
            tally.event(event, Duration::from_millis(1));
            events.push(event.to_vec());
        };
        parser.feed(piece, on_event).expect("inputs are small");
    }
    (events, tally.finish(Duration::from_millis(2)))
}

/// Reads all of a stream at once, line by line.
fn obvious(stream: &[u8]) -> Vec<Vec<u8>> {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let mut lines = vec![Vec::new()];
    for (at, byte) in stream.iter().enumerate() {
        match byte {
            b'\n' if at > 0 && stream[at - 1] == b'\r' => {}
            b'\r' | b'\n' => lines.push(Vec::new()),
            byte => lines.last_mut().expect("there is one").push(*byte),
        }
    }
    // The last one has no end.
    lines.pop();
    let (mut events, mut data) = (Vec::new(), Vec::new());
    for line in lines {
        if line.is_empty() {
            if !data.is_empty() {
                events.push(std::mem::take(&mut data).join(&b'\n'));
            }
        } else if line == b"data" {
            data.push(Vec::new());
        } else if let Some(value) = line.strip_prefix(b"data:") {
            data.push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
        }
    }
    events
}
