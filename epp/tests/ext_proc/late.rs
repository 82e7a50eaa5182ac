//! What a data plane had on its way when the picker ended a stream. Written in frames of HTTP/2,
//! because a client's library sends nothing on a stream that it knows to be over.

use super::director::Script;
use super::plane::*;
use prost::Message;
use stator_epp::ext_proc::ExtProcSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// More streams than a library takes late frames of over the life of a connection, unless it is
/// told that they are nobody's fault.
const STREAMS: u32 = 1500;

struct Wire(TcpStream);

impl Wire {
    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("frames are small").to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write_all(&[&head, payload].concat()).await.expect("the picker reads");
    }

    /// Kind, flags and stream of the next frame.
    async fn next(&mut self) -> (u8, u8, u32) {
        let mut head = [0; 9];
        within(self.0.read_exact(&mut head)).await.expect("the connection stays");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        within(self.0.read_exact(&mut payload)).await.expect("a whole frame");
        assert_ne!(head[3], GOAWAY, "{}", String::from_utf8_lossy(&payload));
        let stream = [head[5], head[6], head[7], head[8]];
        (head[3], head[4], u32::from_be_bytes(stream))
    }

    async fn until(&mut self, kind: u8, flag: u8, stream: u32) {
        loop {
            let (found, flags, of) = self.next().await;
            if (found, of) == (kind, stream) && flags & flag != 0 {
                return;
            }
        }
    }
}

/// The head of a call, in literals and in entries of HPACK's static table.
fn call() -> Vec<u8> {
    let text = |prefix: &[u8], value: &str| {
        let length = u8::try_from(value.len()).expect("it is short");
        [prefix, &[length], value.as_bytes()].concat()
    };
    let path = text(&[0x04], "/envoy.service.ext_proc.v3.ExternalProcessor/Process");
    [vec![0x83, 0x86], path, text(&[0x01], "picker"), text(&[0x0f, 0x10], "application/grpc")]
        .concat()
}

fn messages() -> Vec<u8> {
    let framed = |message: Vec<u8>| {
        let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
        [&[0], &length[..], &message].concat()
    };
    [post(), request_body("{}", true)].map(|message| framed(message.encode_to_vec())).concat()
}

#[tokio::test]
async fn what_comes_late_on_ended_streams_never_ends_their_connection() {
    let served = Served::start(Script::new(), ExtProcSettings::default()).await;
    let mut wire = Wire(TcpStream::connect(served.address).await.expect("it listens"));
    wire.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("the picker reads");
    wire.send(SETTINGS, 0, 0, &[]).await;
    wire.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()).await;
    let streams = (0..STREAMS).map(|n| 2 * n + 1);
    for stream in streams.clone() {
        wire.send(HEADERS, END_HEADERS, stream, &call()).await;
        wire.send(DATA, 0, stream, &messages()).await;
        wire.until(HEADERS, END_STREAM, stream).await;
    }
    for stream in streams {
        wire.send(DATA, 0, stream, b"late").await;
    }
    wire.send(PING, 0, 0, &[0; 8]).await;
    wire.until(PING, 1, 0).await;
}
