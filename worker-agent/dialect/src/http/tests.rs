use super::*;
use crate::testkit::{Reply, Server};
use std::sync::atomic::Ordering;

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
    let asked = tokio::spawn(async move { client.healthy().await });
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
