//! The handshake without a socket, for fuzz targets.

use crate::Error;
use crate::connection::PeerConnection;
use crate::endpoint::Halves;
use crate::frame::FrameLimits;
use crate::handshake::SocketKind;
use std::io::Cursor;

/// Shakes hands with a peer that says `bytes` and then closes, once as each kind of socket: PUB,
/// SUB, ROUTER and DEALER. Gives what went wrong with each.
pub async fn handshake(bytes: &[u8]) -> [Option<Error>; 4] {
    let mut faults = [const { None }; 4];
    let kinds = [SocketKind::Pub, SocketKind::Sub, SocketKind::Router, SocketKind::Dealer];
    for (kind, fault) in kinds.into_iter().zip(&mut faults) {
        let reader = Box::new(Cursor::new(bytes.to_vec()));
        let halves = Halves { reader, writer: Box::new(tokio::io::sink()), address: None };
        *fault =
            PeerConnection::open(halves, kind, FrameLimits { frames: 4, bytes: 64 }).await.err();
    }
    faults
}
