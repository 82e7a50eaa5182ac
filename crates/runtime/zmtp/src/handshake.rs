//! Handshake of two peers before the first message: a greeting of 64 bytes, then their types and
//! identities.

use crate::Error;
use crate::frame::encode_command;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of a greeting.
pub(crate) const GREETING_BYTES: usize = 64;
/// Bytes of it that tell the version; older peers wait for an answer before they send more.
pub(crate) const VERSION_BYTES: usize = 11;

/// Type of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketKind {
    Pub,
    Sub,
    Router,
    Dealer,
}

impl SocketKind {
    fn name(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Sub => "SUB",
            Self::Router => "ROUTER",
            Self::Dealer => "DEALER",
        }
    }

    /// The sockets that it may be connected to.
    fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Pub => &["SUB", "XSUB"],
            Self::Sub => &["PUB", "XPUB"],
            Self::Router => &["DEALER", "REQ", "ROUTER"],
            Self::Dealer => &["ROUTER", "REP", "DEALER"],
        }
    }
}

/// Our greeting: ZMTP 3.1 without encryption.
pub(crate) fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = 1;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Checks the beginning of the peer's greeting.
///
/// # Errors
///
/// [`Error::Unfit`] when it is none, or of a version before 3.
pub(crate) fn check_version(begin: &[u8; VERSION_BYTES]) -> Result<(), Error> {
    if begin[0] != 0xff || begin[9] & 1 == 0 {
        return Err(Error::Unfit("does not speak ZMTP".into()));
    }
    match begin[10] {
        0..3 => Err(Error::Unfit(format!("speaks version {} of ZMTP, 3 is needed", begin[10]))),
        _ => Ok(()),
    }
}

/// Reads the rest of the peer's greeting; returns the minor version that both speak.
///
/// # Errors
///
/// [`Error::Unfit`] when it wants encryption.
pub(crate) fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<u8, Error> {
    let mechanism = &greeting[12..32];
    if !mechanism.starts_with(b"NULL\0") {
        let name = String::from_utf8_lossy(mechanism);
        let name = name.trim_end_matches('\0');
        return Err(Error::Unfit(format!(
            "wants the mechanism {name:?}, only NULL is spoken here"
        )));
    }
    let (major, minor) = (greeting[10], greeting[11]);
    Ok(if major == 3 { minor.min(1) } else { 1 })
}

/// Appends the command that says who we are.
pub(crate) fn encode_ready(kind: SocketKind, out: &mut BytesMut) {
    let mut properties = BytesMut::new();
    let mut put = |name: &str, value: &str| {
        properties.put_u8(name.len() as u8);
        properties.put_slice(name.as_bytes());
        properties.put_u32(value.len() as u32);
        properties.put_slice(value.as_bytes());
    };
    put("Socket-Type", kind.name());
    if kind == SocketKind::Dealer {
        put("Identity", "");
    }
    encode_command("READY", &properties, out);
}

/// Checks who the peer says it is.
///
/// # Errors
///
/// [`Error::Unfit`] when it refuses us, says nothing that can be read, or is not what `ours` may
/// be connected to.
pub(crate) fn check_ready(ours: SocketKind, name: &[u8], data: Bytes) -> Result<(), Error> {
    match name {
        b"READY" => {}
        b"ERROR" => {
            let reason = String::from_utf8_lossy(data.get(1..).unwrap_or_default());
            return Err(Error::Unfit(format!("refuses us: {reason:?}")));
        }
        _ => return Err(Error::Unfit("does not say who it is".into())),
    }
    let Some(theirs) = socket_type(data) else {
        return Err(Error::Unfit("does not say what socket it has".into()));
    };
    if ours.peers().iter().any(|peer| peer.as_bytes() == theirs) {
        return Ok(());
    }
    let (theirs, wanted) = (String::from_utf8_lossy(&theirs), ours.peers().join(" or "));
    Err(Error::Unfit(format!("has a socket of the type {theirs:?}, not {wanted}")))
}

fn socket_type(mut data: Bytes) -> Option<Bytes> {
    while !data.is_empty() {
        let name_length = usize::from(data.try_get_u8().ok()?);
        let name = take(&mut data, name_length)?;
        let value_length = usize::try_from(data.try_get_u32().ok()?).ok()?;
        let value = take(&mut data, value_length)?;
        if name.eq_ignore_ascii_case(b"socket-type") {
            return Some(value);
        }
    }
    None
}

fn take(data: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= data.len()).then(|| data.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameDecoder, FrameLimits, Traffic};

    fn begin(version: u8) -> [u8; VERSION_BYTES] {
        [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, version]
    }

    #[test]
    fn only_version_three_and_later_is_spoken() {
        assert!(check_version(&begin(3)).is_ok());
        assert!(check_version(&begin(4)).is_ok());
        let message = |begin| check_version(&begin).expect_err("too old").to_string();
        assert_eq!(message(begin(1)), "the peer speaks version 1 of ZMTP, 3 is needed");
        assert_eq!(message(*b"HTTP/1.1 40"), "the peer does not speak ZMTP");
    }

    #[test]
    fn a_greeting_names_the_mechanism_and_the_minor_version() {
        assert_eq!(check_greeting(&greeting()).expect("ours"), 1);
        let mut other = greeting();
        other[11] = 0;
        assert_eq!(check_greeting(&other).expect("an older one"), 0);
        other[12..17].copy_from_slice(b"CURVE");
        let message = check_greeting(&other).expect_err("encrypted").to_string();
        assert_eq!(message, "the peer wants the mechanism \"CURVE\", only NULL is spoken here");
    }

    /// The check by `ours` of a peer's name and data.
    fn check(ours: SocketKind, name: &str, data: &'static [u8]) -> Result<(), String> {
        check_ready(ours, name.as_bytes(), Bytes::from_static(data)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_peer_says_what_socket_it_has() {
        for (ours, theirs) in
            [(SocketKind::Pub, SocketKind::Sub), (SocketKind::Router, SocketKind::Dealer)]
        {
            for (ours, theirs) in [(ours, theirs), (theirs, ours)] {
                let mut wire = BytesMut::new();
                encode_ready(theirs, &mut wire);
                let mut decoder = FrameDecoder::new(FrameLimits { frames: 1, bytes: 100 });
                let Ok(Some(Traffic::Command(name, data))) = decoder.decode(&mut wire) else {
                    panic!("a command");
                };
                assert!(check_ready(ours, &name, data).is_ok());
            }
        }
        assert_eq!(
            check(SocketKind::Sub, "READY", b"\x01a\0\0\0\x01b\x0bsocket-TYPE\0\0\0\x04XPUB"),
            Ok(())
        );
        let unfit = check(SocketKind::Sub, "READY", b"\x0bSocket-Type\0\0\0\x04PULL");
        assert_eq!(
            unfit,
            Err("the peer has a socket of the type \"PULL\", not PUB or XPUB".into())
        );
        let torn = check(SocketKind::Sub, "READY", b"\x0bSocket-Type\0\0\0\x05PULL");
        assert_eq!(torn, Err("the peer does not say what socket it has".into()));
        let refused = check(SocketKind::Sub, "ERROR", b"\x04Busy");
        assert_eq!(refused, Err("the peer refuses us: \"Busy\"".into()));
        assert_eq!(
            check(SocketKind::Sub, "PING", b""),
            Err("the peer does not say who it is".into())
        );
    }
}
