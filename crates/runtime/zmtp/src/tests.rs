//! Sockets of ours with each other, on free ports and in folders. What libzmq makes of them is
//! tested end to end.

use super::*;
use bytes::Bytes;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

async fn within<T>(what: &str, wanted: impl Future<Output = T>) -> T {
    let waited = timeout(DEADLINE, wanted).await;
    waited.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

fn frames(texts: &[&str]) -> Message {
    texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
}

/// Publishes until the subscriber hears it; returns what it heard first.
async fn heard(publisher: &Publisher, subscriber: &mut Subscriber, message: &Message) -> Message {
    let publishing = async {
        loop {
            publisher.publish(message);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        message = within("a message", subscriber.recv()) => message.expect("a connection"),
        () = publishing => unreachable!("it has no end"),
    }
}

#[tokio::test]
async fn subscribers_hear_what_they_asked_for_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let ipc = format!("ipc://{}", folder.path().join("socket").display());
    for endpoint in ["tcp://127.0.0.1:0", "tcp://localhost:0", &ipc] {
        let publisher = Publisher::bind(endpoint).await.expect("a socket");
        let mut all = Subscriber::connect(publisher.endpoint()).await.expect("connected");
        let mut some = Subscriber::connect(publisher.endpoint()).await.expect("connected");
        all.subscribe(b"").await.expect("subscribed");
        some.subscribe(b"never").await.expect("subscribed");
        some.subscribe(b"kv").await.expect("subscribed");
        let begin = frames(&["kv-begin"]);
        for subscriber in [&mut all, &mut some] {
            assert_eq!(heard(&publisher, subscriber, &begin).await, begin);
        }
        let large = Bytes::from(vec![7; 300_000]);
        for number in 0..100 {
            let number = number.to_string();
            publisher.publish(&frames(&["load", &number]));
            publisher.publish(&[Bytes::from_static(b"kv"), Bytes::from(number), large.clone()]);
        }
        for number in 0..100 {
            let number = number.to_string();
            let next = async |subscriber: &mut Subscriber| loop {
                let message = within("a message", subscriber.recv()).await.expect("a connection");
                if message != begin {
                    return message;
                }
            };
            assert_eq!(next(&mut all).await, frames(&["load", &number]));
            for subscriber in [&mut all, &mut some] {
                let message = next(subscriber).await;
                assert_eq!(message[..2], frames(&["kv", &number]));
                assert_eq!(message[2], large);
            }
        }
    }
}

#[tokio::test]
async fn who_does_not_read_loses_messages_and_nobody_waits() {
    let publisher = Publisher::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let mut lazy = Subscriber::connect(publisher.endpoint()).await.expect("connected");
    lazy.subscribe(b"").await.expect("subscribed");
    heard(&publisher, &mut lazy, &frames(&["begin"])).await;
    let message = [Bytes::from(vec![0; 1 << 20])];
    let mut sent = 0;
    while publisher.publish(&message) == 0 {
        sent += 1;
        assert!(sent < 1000, "what waits for one subscriber is bounded");
        tokio::task::yield_now().await;
    }
    // What was taken comes, whole.
    for _ in 0..sent {
        while within("a message", lazy.recv()).await.expect("a connection") != message {}
    }
}

#[tokio::test]
async fn an_end_on_either_side_is_seen_on_the_other() {
    let publisher = Publisher::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let endpoint = publisher.endpoint().to_owned();
    let mut first = Subscriber::connect(&endpoint).await.expect("connected");
    first.subscribe(b"").await.expect("subscribed");
    heard(&publisher, &mut first, &frames(&["begin"])).await;
    publisher.close().await;
    let over = async { while first.recv().await.is_ok() {} };
    within("it is over", over).await;
    let again = Publisher::bind(&endpoint).await.expect("the endpoint is free at once");
    let mut second = Subscriber::connect(&endpoint).await.expect("connected");
    second.subscribe(b"").await.expect("subscribed");
    heard(&again, &mut second, &frames(&["begin"])).await;
}

/// Subscribers that come and go while much is published, on few threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_that_come_and_go_stop_nobody() {
    let publisher = Publisher::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let endpoint = publisher.endpoint().to_owned();
    let coming = tokio::spawn(async move {
        for _ in 0..20 {
            let mut some = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let endpoint = endpoint.clone();
                some.spawn(async move {
                    let mut subscriber = Subscriber::connect(&endpoint).await.expect("connected");
                    subscriber.subscribe(b"kv").await.expect("subscribed");
                    subscriber.recv().await.expect("a message")
                });
            }
            some.join_all().await;
        }
    });
    let message = frames(&["kv", "1"]);
    let publishing = async {
        while !coming.is_finished() {
            publisher.publish(&message);
            tokio::task::yield_now().await;
        }
    };
    within("all have come and gone", publishing).await;
    coming.await.expect("all heard something");
}

#[tokio::test]
async fn a_collector_hears_whoever_connects() {
    let mut collector = Collector::bind("tcp://127.0.0.1:0", b"kv").await.expect("a socket");
    let address = collector.endpoint().strip_prefix("tcp://").expect("TCP").to_owned();
    for name in ["one", "two"] {
        let mut publisher = scripted(TcpStream::connect(&address).await.expect("it listens")).await;
        publisher.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB").await.expect("sent");
        let mut wire = b"\x01\x02kv\x00\x03".to_vec();
        wire.extend(name.as_bytes());
        publisher.write_all(&wire).await.expect("sent");
        assert_eq!(within("a message", collector.recv()).await, frames(&["kv", name]));
    }
}

#[tokio::test]
async fn answers_go_to_who_asked() {
    let mut router = Router::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let mut dealers = Vec::new();
    for number in ["1", "2", "3"] {
        let mut dealer = Dealer::connect(router.endpoint()).await.expect("connected");
        dealer.send(&frames(&["", number])).await.expect("sent");
        dealers.push((number, dealer));
    }
    for _ in 0..3 {
        let request = within("a request", router.recv()).await;
        let number = request.frames[1].clone();
        tokio::spawn(async move {
            for _ in 0..10_000 {
                let answer = [Bytes::new(), number.clone(), Bytes::from(vec![1; 500])];
                request.reply.send(&answer).await.expect("it is there");
            }
        });
    }
    for (number, mut dealer) in dealers {
        for _ in 0..10_000 {
            let answer = within("an answer", dealer.recv()).await.expect("a connection");
            assert_eq!(answer[..2], frames(&["", number]));
        }
    }
}

#[tokio::test]
async fn who_is_gone_is_answered_no_more() {
    let mut router = Router::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let mut dealer = Dealer::connect(router.endpoint()).await.expect("connected");
    dealer.send(&frames(&["what?"])).await.expect("sent");
    let request = within("a request", router.recv()).await;
    drop(dealer);
    let answering = async { while request.reply.send(&frames(&["this"])).await.is_ok() {} };
    within("it is told", answering).await;
}

/// A peer that has sent its greeting and read ours.
async fn scripted(mut stream: TcpStream) -> TcpStream {
    stream.write_all(&handshake::greeting()).await.expect("sent");
    let mut greeting = [0; handshake::GREETING_BYTES];
    stream.read_exact(&mut greeting).await.expect("a greeting");
    assert_eq!(greeting, handshake::greeting());
    stream
}

async fn read(stream: &mut TcpStream, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    within("some bytes", stream.read_exact(&mut found)).await.expect("a connection");
    assert_eq!(found, expected);
}

#[tokio::test]
async fn pings_are_answered_and_old_and_new_subscriptions_obeyed() {
    let publisher = Publisher::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let address = publisher.endpoint().strip_prefix("tcp://").expect("TCP").to_owned();
    for subscription in [&b"\x00\x03\x01kv"[..], b"\x04\x0c\x09SUBSCRIBEkv"] {
        let mut peer = scripted(TcpStream::connect(&address).await.expect("it listens")).await;
        peer.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB").await.expect("sent");
        read(&mut peer, b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB").await;
        peer.write_all(subscription).await.expect("sent");
        peer.write_all(b"\x04\x08\x04PING\0\x05x").await.expect("sent");
        // The answer comes after the subscription was obeyed.
        read(&mut peer, b"\x04\x06\x04PONGx").await;
        publisher.publish(&frames(&["load"]));
        publisher.publish(&frames(&["kv", ""]));
        read(&mut peer, b"\x01\x02kv\x00\x00").await;
    }
}

#[tokio::test]
async fn a_peer_that_is_something_else_is_told_of() {
    let check = async |answer: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("tcp://{}", listener.local_addr().expect("it is bound"));
        let answering = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            stream.write_all(answer).await.expect("sent");
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        };
        let (found, ()) = tokio::join!(Subscriber::connect(&endpoint), answering);
        found.err().expect("refused").to_string()
    };
    let message = check(b"HTTP/1.1 400 Bad Request\r\n").await;
    assert_eq!(message, "the peer does not speak ZMTP");
    let message = check(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01").await;
    assert_eq!(message, "the peer speaks version 1 of ZMTP, 3 is needed");
    let Err(error) = Subscriber::connect("inproc://here").await else { panic!("it is refused") };
    assert_eq!(error.to_string(), "\"inproc://here\" is neither tcp://host:port nor ipc:///path");
    let router = Router::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let Err(error) = Subscriber::connect(router.endpoint()).await else { panic!("it is refused") };
    let message = "the peer has a socket of the type \"ROUTER\", not PUB or XPUB";
    assert_eq!(error.to_string(), message);
}

#[tokio::test(start_paused = true)]
async fn who_takes_nothing_is_cut_off() {
    // A pipe that holds little, as a socket whose peer does not read.
    let (ours, mut theirs) = tokio::io::duplex(1024);
    let (reader, writer) = tokio::io::split(ours);
    let halves =
        endpoint::Halves { reader: Box::new(reader), writer: Box::new(writer), address: None };
    let opening = connection::PeerConnection::open(
        halves,
        handshake::SocketKind::Pub,
        frame::FrameLimits { frames: 1, bytes: 1024 },
    );
    let greeting = async {
        theirs.write_all(&handshake::greeting()).await.expect("sent");
        theirs.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB").await.expect("sent");
        // What our side says of itself may be written only with what comes next.
        let mut greeting = [0; handshake::GREETING_BYTES];
        theirs.read_exact(&mut greeting).await.expect("a greeting");
    };
    let (connection, ()) = tokio::join!(opening, greeting);
    let mut connection = connection.expect("a connection");
    let begun = tokio::time::Instant::now();
    connection.put(&[Bytes::from(vec![7; 4096])]);
    // One that takes a little now and then is slow, and no more.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(timeout(Duration::from_millis(1), connection.next()).await.is_err());
        theirs.read_exact(&mut [0; 512]).await.expect("a part");
        assert!(timeout(Duration::from_millis(1), connection.next()).await.is_err());
    }
    let error = connection.next().await.expect_err("it is over").to_string();
    assert_eq!(error, "the peer takes nothing for 10s");
    assert!(begun.elapsed() > 3 * Duration::from_secs(9) + connection::STALL_TIMEOUT);
}

/// A thousand idle connections, and more, from the host that a subscriber is at.
#[tokio::test]
async fn idle_connections_lock_nobody_out() {
    let publisher = Publisher::bind("tcp://127.0.0.1:0").await.expect("a socket");
    let address = publisher.endpoint().strip_prefix("tcp://").expect("TCP").to_owned();
    let mut old = Subscriber::connect(publisher.endpoint()).await.expect("connected");
    old.subscribe(b"kv").await.expect("subscribed");
    let begin = frames(&["kv-begin"]);
    heard(&publisher, &mut old, &begin).await;
    let mut idle = Vec::new();
    for number in 0..seats::CONNECTIONS_MAX + 10 {
        let mut stream = TcpStream::connect(&address).await.expect("it listens");
        // Some say nothing, others that they are subscribers, who want nothing.
        if number % 2 == 0 && stream.write_all(&handshake::greeting()).await.is_ok() {
            let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
            let _ = stream.write_all(ready).await;
        }
        idle.push(stream);
    }
    for _ in 0..10 {
        let mut new = Subscriber::connect(publisher.endpoint()).await.expect("connected");
        new.subscribe(b"kv").await.expect("subscribed");
        assert_eq!(heard(&publisher, &mut new, &begin).await, begin);
    }
    publisher.publish(&frames(&["kv-end"]));
    let end = async { while old.recv().await.expect("it stays") != frames(&["kv-end"]) {} };
    within("the first subscriber hears the end", end).await;
}
