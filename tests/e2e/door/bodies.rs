//! Bodies that come too slowly, are too large, or too many.

use super::raw::Raw;
use super::{Door, get, post};
use stator_tests::soon;

#[tokio::test]
async fn a_body_that_drips_is_waited_for_only_so_long() {
    let door = Door::start(&["--body-deadline-ms=200"]).await;
    let mut client = door.connect().await;
    client.send(post("content-length: 100000\r\n") + "{").await;
    client.drip(b' ').await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(answer.body.contains("200 ms"), "{answer:?}");
    assert_eq!(door.metric("stator_proxy_client_timeouts_total{phase=\"body\"}").await, 1.0);
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_goes_on_sending() {
    let door = Door::start(&["--max-body-bytes=1000"]).await;
    // More than what any two systems keep between them.
    let much = vec![b'x'; 24 << 20];
    let length = format!("content-length: {}\r\n", much.len());
    let chunk = format!("{:x}\r\n", much.len()).into_bytes();
    let chunked = [&*chunk, &much, b"\r\n0\r\n\r\n"].concat();
    let text = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: text/plain\r\n";
    for (head, body, status) in [
        (post(&length), &much, 413),
        (post("transfer-encoding: chunked\r\n"), &chunked, 413),
        (format!("{text}{length}\r\n"), &much, 415),
        (format!("POST /v1/nothing HTTP/1.1\r\nhost: t\r\n{length}\r\n"), &much, 404),
        (format!("POST /v1/completions HTTP/1.1\r\n{length}\r\n"), &much, 400),
    ] {
        let mut client = door.connect().await;
        client.send(&head).await;
        client.send(body).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{head}: {answer:?}");
        assert!(answer.head.contains("connection: close"), "{answer:?}");
    }
}

#[tokio::test]
async fn unfinished_bodies_have_a_budget_and_the_next_is_told_to_come_back() {
    let flags =
        ["--max-body-bytes=1000000", "--max-bodies-bytes=2000000", "--address-share-percent=100"];
    let door = Door::start(&flags).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = door.connect().await;
        client.send(post("content-length: 1000000\r\n") + "{").await;
        held.push(client);
    }
    until(&door, 2_000_000.0).await;
    for lines in ["content-length: 2\r\n\r\n{}", "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"] {
        let answer = door.ask(&post(lines)).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.head.contains("retry-after: ") && answer.body.contains("2000000 bytes"));
    }
    let health = door.ask(&get("/health")).await;
    assert_eq!((health.status, &*health.body), (503, r#"{"status":"full","of":"bodies"}"#));
    drop(held);
    until(&door, 0.0).await;
    let answer = door.ask(&(post("content-length: 2\r\n") + "{}")).await;
    assert_eq!(answer.status, 400, "it is read: {answer:?}");
}

#[tokio::test]
async fn one_address_takes_no_more_than_its_share_of_the_budget() {
    let door = Door::start(&["--max-body-bytes=1000000", "--max-bodies-bytes=2000000"]).await;
    let mut held = door.connect().await;
    held.send(post("content-length: 1000000\r\n") + "{").await;
    until(&door, 1_000_000.0).await;
    let next = post("content-length: 2\r\n") + "{}";
    assert_eq!(door.ask(&next).await.status, 429);
    let mut other = Raw::connect_from([127, 0, 0, 2].into(), door.address).await;
    other.send(&next).await;
    assert_eq!(other.answer().await.status, 400, "it is read");
}

/// Waits until so many bytes are set aside for bodies.
async fn until(door: &Door, bytes: f64) {
    let held = async { while door.metric("stator_proxy_bodies_held_bytes").await != bytes {} };
    soon("bytes of bodies", held).await;
}
