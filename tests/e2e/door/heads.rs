//! Heads of requests that come too slowly, or are not HTTP.

use super::{Door, get};

#[tokio::test]
async fn half_a_head_is_waited_for_only_so_long() {
    let door = Door::start(&["--header-timeout-ms=200"]).await;
    let mut client = door.connect().await;
    client.send("GET /live HTTP/1.1\r\nhost:").await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(answer.body.contains("200 ms"), "{answer:?}");
    client.closed().await;
    assert_eq!(door.metric("stator_proxy_client_timeouts_total{phase=\"head\"}").await, 1.0);
}

#[tokio::test]
async fn a_head_that_drips_is_waited_for_no_longer() {
    let door = Door::start(&["--header-timeout-ms=200"]).await;
    let mut client = door.connect().await;
    client.send("GET /live HTTP/1.1\r\nhost: t\r\nx-drip: ").await;
    client.drip(b'x').await;
    assert_eq!(client.answer().await.status, 408);
}

#[tokio::test]
async fn idle_connections_are_closed_whether_they_were_used_or_not() {
    let door = Door::start(&["--keep-alive-timeout-ms=200"]).await;
    door.connect().await.closed().await;
    let mut used = door.connect().await;
    for _ in 0..3 {
        used.send(get("/live")).await;
        assert_eq!(used.answer().await.status, 200);
    }
    used.closed().await;
}

#[tokio::test]
async fn a_kept_connection_serves_however_long_a_head_took_before() {
    let door = Door::start(&["--header-timeout-ms=60000"]).await;
    let mut client = door.connect().await;
    for _ in 0..2 {
        let (first, rest) = ("GET /live HTTP/1.1\r\nho", "st: t\r\n\r\nGET /live HTTP/1.1\r\n");
        client.send(first).await;
        client.send(rest).await;
        assert_eq!(client.answer().await.status, 200);
        client.send("host: t\r\n\r\n").await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test]
async fn heads_are_taken_as_http_says() {
    let door = Door::start(&[]).await;
    for (head, status, code) in [
        ("GET /live HTTP/1.1\r\n\r\n", 400, "missing_host"),
        ("GET /live HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "malformed_http"),
        ("GET http://t/live HTTP/1.1\r\nhost: t\r\n\r\n", 200, ""),
        ("GET http://elsewhere:80/live HTTP/1.1\r\nhost: t\r\n\r\n", 200, ""),
        ("GET http://t/nothing HTTP/1.1\r\nhost: t\r\n\r\n", 404, "unknown_url"),
        ("GET http://u@t/live HTTP/1.1\r\nhost: t\r\n\r\n", 400, "malformed_http"),
    ] {
        let answer = door.ask(head).await;
        assert_eq!(answer.status, status, "{head:?}: {answer:?}");
        assert!(answer.body.contains(code), "{head:?}: {answer:?}");
    }
    for (coding, status) in [("gzip, chunked", 501), ("chunked, chunked", 400), ("gzip", 400)] {
        let lines = format!("transfer-encoding: {coding}\r\n");
        let answer = door.ask(&(super::post(&lines) + "2\r\n{}\r\n0\r\n\r\n")).await;
        assert_eq!(answer.status, status, "{coding}: {answer:?}");
    }
}
