//! Frames between two links, with somebody in between who changes them.

use super::*;
use crate::SlotId;
use crate::arena::Arena;
use crate::transfer::FleetKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const BLOCK_BYTES: usize = 40_000;
const NAME: BlockName = BlockName(7);

fn keys(secret: &str) -> SessionKeys {
    SessionKeys::new(&FleetKey::of_secret(secret.as_bytes()), b"hello", b"challenge")
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (one, other) = tokio::join!(connecting, listener.accept());
    (one.unwrap(), other.unwrap().0)
}

/// Nothing on a loopback interface can vanish without a word, so this looks at what the system was told.
#[tokio::test]
async fn a_machine_that_has_gone_without_a_word_is_noticed_within_five_seconds() {
    let (one, other) = sockets().await;
    for link in [Link::holder(one).unwrap(), Link::reader(other).unwrap()] {
        let stream = &link.stream;
        assert!(sockopt::socket_keepalive(stream).unwrap());
        let idle = sockopt::tcp_keepidle(stream).unwrap();
        let probing =
            sockopt::tcp_keepintvl(stream).unwrap() * sockopt::tcp_keepcnt(stream).unwrap();
        assert!(idle + probing < Duration::from_secs(5));
        #[cfg(target_os = "linux")]
        assert!((1..5000).contains(&sockopt::tcp_user_timeout(stream).unwrap()));
    }
}

fn arena(byte: u8) -> Arena {
    let arena = Arena::new(1, BLOCK_BYTES).unwrap();
    arena.write(SlotId(0), &[byte; BLOCK_BYTES]);
    arena
}

fn part(arena: &Arena) -> SlotPart<'_> {
    SlotPart { arena, slot: SlotId(0), range: 10..BLOCK_BYTES }
}

/// Three frames of a holder: a lease, KV, and the tag of KV that travels another way.
async fn frames() -> [Vec<u8>; 3] {
    let (stream, mut wire) = sockets().await;
    let mut link = Link::holder(stream).unwrap();
    link.secure(&keys("secret"), false);
    let arena = arena(3);
    let cargo = Cargo { part: part(&arena), name: NAME, place: 1, transfer: 2 };
    link.queue(FrameHeader::new(FrameKind::Leased), &[9; 16]);
    link.flush().await.unwrap();
    let mut lease = vec![0; HEAD_BYTES + 16];
    wire.read_exact(&mut lease).await.unwrap();
    let mut data = vec![0; HEAD_BYTES + BLOCK_BYTES - 10];
    let (sent, read) = tokio::join!(link.send_kv(&cargo), wire.read_exact(&mut data));
    sent.unwrap();
    read.unwrap();
    link.queue_vouched(&cargo);
    link.flush().await.unwrap();
    let mut vouched = vec![0; HEAD_BYTES];
    wire.read_exact(&mut vouched).await.unwrap();
    [lease, data, vouched]
}

struct Place<'a>(&'a Arena);

impl Landing for Place<'_> {
    fn with(&self, change: &mut dyn FnMut(&SlotPart<'_>)) -> bool {
        change(&part(self.0));
        true
    }
}

/// Lets a reader take these bytes as frames. Says how many were genuine, and the end.
async fn deliver(frames: &[&[u8]], secret: &str) -> (usize, LinkError) {
    let (stream, mut wire) = sockets().await;
    let mut link = Link::reader(stream).unwrap();
    link.secure(&keys(secret), true);
    let bytes = frames.concat();
    let sending = tokio::spawn(async move { wire.write_all(&bytes).await });
    // What is vouched for came another way.
    let (landed, direct) = (arena(0), arena(3));
    for count in 0.. {
        let taken = take(&mut link, &landed, &direct).await;
        if let Err(end) = taken {
            drop(sending);
            return (count, end);
        }
    }
    unreachable!("frames end");
}

async fn take(link: &mut Link, landed: &Arena, direct: &Arena) -> Result<(), LinkError> {
    let frame = link.next().await?;
    match frame.header.kind {
        FrameKind::Data => {
            assert_eq!(link.land(&frame, NAME, &Place(landed)).await?, Landed::Whole);
            let mut kv = vec![0; BLOCK_BYTES];
            landed.read(SlotId(0), &mut kv);
            assert!(kv[10..].iter().all(|byte| *byte == 3));
        }
        FrameKind::Vouched => {
            assert_eq!(link.check_kv(&frame, NAME, &Place(direct))?, Landed::Whole);
        }
        _ => assert_eq!(link.payload(&frame).await?, [9; 16]),
    }
    Ok(())
}

#[tokio::test]
async fn frames_in_order_are_genuine() {
    let [lease, data, vouched] = frames().await;
    let (count, end) = deliver(&[&lease, &data, &vouched], "secret").await;
    assert!(matches!((count, &end), (3, LinkError::Io(_))), "{count} {end}");
}

#[tokio::test]
async fn frames_of_another_secret_are_forged() {
    let [lease, ..] = frames().await;
    let (count, end) = deliver(&[&lease], "secreT").await;
    assert!(matches!((count, &end), (0, LinkError::Forged(_))), "{count} {end}");
}

#[tokio::test]
async fn a_frame_that_comes_again_or_too_early_is_not_taken() {
    let [lease, data, vouched] = frames().await;
    let orders: [(&[&[u8]], usize); 5] = [
        (&[&lease, &lease], 1),
        (&[&lease, &data, &data], 2),
        (&[&data, &lease], 0),
        (&[&lease, &vouched, &data], 1),
        (&[&vouched], 0),
    ];
    for (at, (frames, genuine)) in orders.into_iter().enumerate() {
        let (count, end) = deliver(frames, "secret").await;
        assert!(matches!(end, LinkError::Unexpected(_)), "{at}: {end}");
        assert_eq!(count, genuine, "{at}");
        // With the number that is expected, the tag is another's.
        let numbered = |(number, frame): (usize, &&[u8])| {
            let mut frame = frame.to_vec();
            frame[24..32].copy_from_slice(&(number as u64).to_le_bytes());
            frame
        };
        let frames: Vec<_> = frames.iter().enumerate().map(numbered).collect();
        let frames: Vec<_> = frames.iter().map(Vec::as_slice).collect();
        let (count, end) = deliver(&frames, "secret").await;
        assert!(matches!(end, LinkError::Forged(_)), "{at}: {end}");
        assert_eq!(count, genuine, "{at}");
    }
}

#[tokio::test]
async fn every_flipped_bit_shows() {
    let frames = frames().await;
    for (genuine, frame) in frames.iter().enumerate() {
        // All of the head, and of the payload a bit of each piece and of both ends.
        let all = frame.len() * 8;
        let far = (HEAD_BYTES * 8..all).step_by(60_013).chain([all - 1]);
        for bit in (0..HEAD_BYTES * 8).chain(far).filter(|bit| *bit < all) {
            let mut changed = frames.clone();
            changed[genuine][bit / 8] ^= 1 << (bit % 8);
            let changed: Vec<_> = changed.iter().map(Vec::as_slice).collect();
            let (count, end) = deliver(&changed[..=genuine], "secret").await;
            // A longer or shorter payload ends with the connection, or is forged.
            assert_eq!(count, genuine, "bit {bit}: {end}");
        }
    }
}

#[tokio::test]
async fn a_connection_ends_before_its_keys_are_used_up() {
    let (stream, wire) = sockets().await;
    let [mut sender, mut reader] = [Link::holder(stream), Link::reader(wire)].map(Result::unwrap);
    sender.secure(&keys("secret"), false);
    reader.secure(&keys("secret"), true);
    sender.outgoing.sequence = FRAMES_MAX - 1;
    reader.incoming.sequence = FRAMES_MAX - 1;
    sender.queue(FrameHeader::new(FrameKind::Busy), &[]);
    sender.flush().await.unwrap();
    let last = reader.next().await.unwrap();
    reader.payload(&last).await.unwrap();
    sender.queue(FrameHeader::new(FrameKind::Busy), &[]);
    assert!(matches!(sender.flush().await, Err(LinkError::Worn)));
}
