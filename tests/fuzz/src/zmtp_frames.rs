//! Whatever a peer of the event plane sends is read or refused, alike however it is cut; what is
//! read is within its bounds and survives the wire.

use bytes::{Bytes, BytesMut};
use stator_zmtp::frame::{FrameDecoder, FrameError, FrameLimits, Traffic, encode, encode_command};

const LIMITS: FrameLimits = FrameLimits { frames: 4, bytes: 64 };

/// Runs the target.
pub(crate) fn run(wire: &[u8]) {
    let found = read(wire.chunks(wire.len().max(1)));
    assert_eq!(read(wire.chunks(3)), found);
    for incoming in found.0 {
        let mut again = BytesMut::new();
        match &incoming {
            Traffic::Message(frames) => {
                assert!(!frames.is_empty() && frames.len() <= LIMITS.frames);
                assert!(frames.iter().map(Bytes::len).sum::<usize>() <= LIMITS.bytes);
                encode(frames, &mut again);
            }
            Traffic::Command(name, data) => {
                let Ok(name) = std::str::from_utf8(name) else { continue };
                encode_command(name, data, &mut again);
            }
        }
        assert_eq!(read([&again[..]]), (vec![incoming], None));
    }
}

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Traffic>, Option<FrameError>) {
    let (mut decoder, mut input, mut found) =
        (FrameDecoder::new(LIMITS), BytesMut::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(incoming)) => found.push(incoming),
                Ok(None) => break,
                Err(malformed) => return (found, Some(malformed)),
            }
        }
    }
    (found, None)
}
