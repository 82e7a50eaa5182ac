//! The first frames of a connection: both sides prove that they are of the fleet, and agree on the
//! form of KV.

use super::keys::{FleetKey, SessionKeys, are_equal};
use super::link::{Incoming, Link, LinkError};
use super::purpose::ReaderPurpose;
use super::stores::{LendingStore, LendingStores};
use super::wire::{
    FrameHeader, FrameKind, HEADER_BYTES, Hello, TAG_BYTES, WireError, decode_reason, encode_reason,
};
use crate::BlockForm;
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest time that a handshake may take.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A reader that has proved to know the key of its store.
pub(crate) struct Reader {
    pub(crate) link: Link,
    /// [`Hello::instance`].
    pub(crate) instance: [u8; 16],
    pub(crate) store: LendingStore,
}

/// Number, purpose and key of a reader.
#[derive(Clone, Debug)]
pub struct ReaderIdentity {
    /// [`Hello::instance`].
    pub instance: [u8; 16],
    /// The store that it reads from.
    pub purpose: ReaderPurpose,
    /// The key that it proves to know.
    pub key: FleetKey,
}

/// A reader of the tiers of agents that know the key.
impl From<FleetKey> for ReaderIdentity {
    fn from(key: FleetKey) -> Self {
        Self { instance: rand::random(), purpose: ReaderPurpose::Tiers, key }
    }
}

/// The handshake as the agent that reads blocks of this form.
pub(crate) async fn introduce(
    stream: TcpStream,
    reader: &ReaderIdentity,
    form: BlockForm,
) -> Result<Link, LinkError> {
    let within = timeout(HANDSHAKE_TIMEOUT, introduce_unbounded(stream, reader, form));
    within.await.map_err(|_| LinkError::Late)?
}

async fn introduce_unbounded(
    stream: TcpStream,
    reader: &ReaderIdentity,
    form: BlockForm,
) -> Result<Link, LinkError> {
    let mut link = Link::reader(stream)?;
    let hello = Hello { instance: reader.instance, nonce: rand::random(), form };
    let count = reader.purpose as u32;
    let header = FrameHeader { count, ..FrameHeader::new(FrameKind::Hello) };
    let hello = greeting(header, &hello.encode());
    queue_greeting(&mut link, &hello, &[0; TAG_BYTES]);
    link.flush().await?;
    let frame = link.next().await?;
    let payload = expect(&mut link, &frame, FrameKind::Challenge).await?;
    let challenge = greeting(FrameHeader::new(FrameKind::Challenge), &payload);
    let keys = SessionKeys::new(&reader.key, &hello, &challenge);
    if !are_equal(&frame.tag, &keys.holder_proof) {
        return Err(LinkError::Forged(FrameKind::Challenge));
    }
    let proof = greeting(FrameHeader::new(FrameKind::Proof), &[]);
    queue_greeting(&mut link, &proof, &keys.reader_proof);
    link.flush().await?;
    link.secure(&keys, true);
    let frame = link.next().await?;
    expect(&mut link, &frame, FrameKind::Welcome).await?;
    Ok(link)
}

/// The handshake as the agent that holds blocks in these stores, with a reader at this address.
pub(crate) async fn receive(
    stream: TcpStream,
    from: IpAddr,
    stores: &dyn LendingStores,
) -> Result<Reader, LinkError> {
    let within = timeout(HANDSHAKE_TIMEOUT, receive_unbounded(stream, from, stores));
    within.await.map_err(|_| LinkError::Late)?
}

async fn receive_unbounded(
    stream: TcpStream,
    from: IpAddr,
    stores: &dyn LendingStores,
) -> Result<Reader, LinkError> {
    let mut link = Link::holder(stream)?;
    let frame = match link.next().await {
        Err(LinkError::Wire(WireError::Version(version))) => {
            // Any frame will do: its header shows the reader which version is spoken here.
            return refuse(link, &WireError::Version(version).to_string()).await;
        }
        frame => frame?,
    };
    let payload = expect(&mut link, &frame, FrameKind::Hello).await?;
    let purpose = ReaderPurpose::of_header(&frame.header)?;
    let hello = Hello::decode(&payload)?;
    let store = stores.find(purpose, hello.instance).ok_or(LinkError::Unknown)?;
    if !store.key.covers(from) {
        return Err(LinkError::Distrusted);
    }
    let header = FrameHeader::new(FrameKind::Challenge);
    let challenge = greeting(header, &rand::random::<[u8; 32]>());
    let keys = SessionKeys::new(&store.key, &greeting(frame.header, &payload), &challenge);
    queue_greeting(&mut link, &challenge, &keys.holder_proof);
    link.flush().await?;
    let frame = link.next().await?;
    expect(&mut link, &frame, FrameKind::Proof).await?;
    if !are_equal(&frame.tag, &keys.reader_proof) {
        return Err(LinkError::Forged(FrameKind::Proof));
    }
    link.secure(&keys, false);
    // Only a proven reader is told what KV is here.
    if hello.form != store.form {
        let (here, there) = (describe(store.form), describe(hello.form));
        return refuse(link, &format!("the holder has KV of {here}, not of {there}")).await;
    }
    link.queue(FrameHeader::new(FrameKind::Welcome), &[]);
    link.flush().await?;
    Ok(Reader { link, instance: hello.instance, store })
}

/// Tells the reader why there is no KV for it.
async fn refuse(mut link: Link, reason: &str) -> Result<Reader, LinkError> {
    link.queue(FrameHeader::new(FrameKind::Refused), encode_reason(reason));
    link.flush().await?;
    Err(LinkError::Refused(reason.to_owned()))
}

/// The payload of a frame of this kind, unless the other side refuses.
async fn expect(link: &mut Link, frame: &Incoming, kind: FrameKind) -> Result<Vec<u8>, LinkError> {
    if frame.header.kind != kind && frame.header.kind != FrameKind::Refused {
        return Err(LinkError::Unexpected(frame.header.kind));
    }
    let payload = link.payload(frame).await?;
    if frame.header.kind == FrameKind::Refused {
        return Err(LinkError::Refused(decode_reason(&payload)));
    }
    Ok(payload)
}

/// A frame of the handshake without its tag.
fn greeting(header: FrameHeader, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { length: payload.len() as u32, ..header };
    [&header.encode(), payload].concat()
}

fn queue_greeting(link: &mut Link, greeting: &[u8], tag: &[u8; TAG_BYTES]) {
    let (header, payload) =
        greeting.split_first_chunk::<HEADER_BYTES>().expect("a header is there");
    link.queue_tagged(header, tag, payload);
}

/// A form in words that show a difference.
fn describe(form: BlockForm) -> String {
    let [a, b, c, d, ..] = form.fingerprint;
    format!("form {a:02x}{b:02x}{c:02x}{d:02x} with {} bytes a block", form.block_bytes)
}
