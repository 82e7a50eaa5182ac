use super::*;
use crate::testkit::{Reply, Server};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn client(server: &Server) -> Client {
    Client::new(&server.url, None).unwrap()
}

#[test]
fn the_host_is_as_it_stands_in_urls() {
    let host = |url| Client::new(url, None).unwrap().host().to_owned();
    assert_eq!(host("http://10.0.0.1:8000"), "10.0.0.1");
    assert_eq!(host("http://[::1]:8000/"), "[::1]");
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_not_held() {
    let just = Reply::ok(vec![b' '; MAX_ANSWER_BYTES]);
    let beyond = Reply::ok(vec![b' '; MAX_ANSWER_BYTES + 1]);
    let server = Server::start([("GET /just", just), ("GET /beyond", beyond)]).await;
    assert_eq!(client(&server).query("/just").await.unwrap().len(), MAX_ANSWER_BYTES);
    assert!(matches!(client(&server).query("/beyond").await, Err(Fault::Failed(_))));
}

#[tokio::test]
async fn of_a_long_error_the_beginning_is_told() {
    let reply = Reply::recorded(400, vec![b'x'; 4 * MAX_ERROR_BYTES]);
    let server = Server::start([("POST /x", reply)]).await;
    let fault = client(&server).operate("/x", None).await.unwrap_err();
    assert_eq!(fault, Fault::Invalid("x".repeat(1000)));
}

#[tokio::test]
async fn an_engine_that_says_nothing_is_given_up() {
    let mut server = Server::start([("GET /health", Reply::Silent)]).await;
    let client = client(&server);
    let asked = tokio::spawn(async move { client.healthy("/health").await });
    server.seen.recv().await.expect("the server lives");
    tokio::time::pause();
    assert!(matches!(asked.await.unwrap(), Err(Fault::Unreachable(_))));
}

#[tokio::test]
async fn refusals_give_their_connection_back() {
    let server = Server::start([("GET /x", Reply::recorded(404, r#"{"detail":"Not Found"}"#))]);
    let server = server.await;
    let client = client(&server);
    for _ in 0..5 {
        assert!(matches!(client.query("/x").await, Err(Fault::Unsupported(_))));
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_path_in_the_url_stands_before_the_engines_own() {
    let mut server = Server::start([]).await;
    let client = Client::new(&format!("{}/engine/", server.url), None).unwrap();
    let _ = client.query("/version").await;
    assert_eq!(server.seen.recv().await.unwrap().line, "GET /engine/version");
}

/// A server that answers the requests of one connection after the other with these bytes, and
/// closes each after its last.
async fn raw(connections: &[&[&'static str]]) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections: Vec<Vec<&str>> = connections.iter().map(|answers| answers.to_vec()).collect();
    tokio::spawn(async move {
        for answers in connections {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    Client::new(&url, None).unwrap()
}

#[tokio::test]
async fn what_is_said_before_an_answer_is_none() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    assert_eq!(raw(&[&[answer]]).await.query("/x").await.unwrap(), "ok");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_fault_and_one_without_a_length_is_not() {
    for answer in [
        "HTTP/1.1 200 O",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nok\r\n",
        "SMTP ready\r\n\r\n",
    ] {
        let answered = raw(&[&[answer]]).await.query("/x").await;
        assert!(matches!(answered, Err(Fault::Unreachable(_))), "{answer}: {answered:?}");
    }
    let endless = "HTTP/1.1 200 OK\r\n\r\nok";
    assert_eq!(raw(&[&[endless]]).await.query("/x").await.unwrap(), "ok");
}

#[tokio::test]
async fn only_a_connection_that_is_as_it_must_be_is_used_again() {
    let (one, other) = (
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2",
    );
    let closes = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n1";
    let old = "HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n1";
    let too_much =
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1HTTP/1.1 200 OK\r\n\r\nnot asked for";
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n";
    for connections in [
        &[&[one, other][..]][..],
        &[&[chunked, other]],
        &[&[closes], &[other]],
        &[&[old], &[other]],
        &[&[too_much], &[other]],
    ] {
        let client = raw(connections).await;
        assert_eq!(client.query("/x").await.unwrap(), "1");
        assert_eq!(client.query("/x").await.unwrap(), "2", "{connections:?}");
    }
}

#[tokio::test]
async fn a_head_beyond_the_limit_is_not_held() {
    let head = format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(64 << 10));
    let fault = raw(&[&[head.leak()]]).await.query("/x").await.unwrap_err();
    assert!(fault.to_string().ends_with("response of more than 32768 bytes"), "{fault}");
}

#[tokio::test]
async fn a_connection_serves_the_runtime_that_it_was_opened_in() {
    let server = Server::start([("GET /x", Reply::ok("x"))]).await;
    let client = Arc::new(client(&server));
    client.query("/x").await.unwrap();
    let (other, connections) = (client.clone(), server.connections.clone());
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(other.query("/x"))
    });
    while !elsewhere.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(elsewhere.join().unwrap().unwrap(), "x");
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    client.query("/x").await.unwrap();
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}
