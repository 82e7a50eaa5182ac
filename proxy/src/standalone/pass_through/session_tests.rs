//! Requests of one session, and the server that has their prompts and responses.

use super::tests::{bed, check_that_both_stay, post};
use crate::upstream::testkit::{DONE, Engine, Peer, check_done, tree};

#[tokio::test]
async fn requests_with_the_same_cache_key_stay_with_one_server() {
    let members = [r#""prompt_cache_key":"a""#, r#""previous_response_id":"resp_b""#];
    check_that_both_stay(&["--router-session-affinity-ttl-s=600"], |session, turn| {
        format!(r#"{{"model":"m","prompt":"Turn {turn}.",{}}}"#, members[session])
    })
    .await;
}

const RESPONSES: &str = "/v1/responses";

/// A request without a body.
async fn ask(bed: &crate::tests::bed::Bed, line: &str, headers: &str) -> Peer {
    let mut client = Peer::connect(bed.address).await;
    client.write(&format!("{line} HTTP/1.1\r\nHost: test\r\n{headers}\r\n")).await;
    client
}

#[tokio::test]
async fn a_response_is_asked_for_at_the_server_that_keeps_it() {
    let servers = [Engine::start().await, Engine::start().await];
    let (bed, _agents) = bed(&servers.each_ref(), &[]).await;
    let [one, two] = &servers;
    let asked = async || {
        tokio::select! {
            asked = one.asked() => asked,
            asked = two.asked() => asked,
        }
    };
    // Both at once, so that each has a server of its own.
    let mut begun = Vec::new();
    for _ in 0..2 {
        let body = r#"{"model":"m","input":"a"}"#;
        let client = post(&bed, RESPONSES, "X-Tenant-Id: blue\r\n", body).await;
        begun.push((client, asked().await));
    }
    let mut workers = Vec::new();
    for (at, (client, server)) in begun.iter_mut().enumerate() {
        server.answer(200, &format!(r#"{{"id":"resp_{at}","object":"response"}}"#)).await;
        assert!(client.read().await);
        workers.push(client.header("x-stator-worker-id").expect("a worker").to_owned());
    }
    assert_ne!(workers[0], workers[1]);
    drop(begun);
    for (at, method, rest) in
        [(0, "GET", ""), (1, "GET", "/input_items"), (1, "POST", "/cancel"), (0, "DELETE", "")]
    {
        let line = format!("{method} {RESPONSES}/resp_{at}{rest}");
        let mut client = ask(&bed, &line, "X-Tenant-Id: blue\r\nContent-Length: 0\r\n").await;
        let mut server = asked().await;
        assert!(server.head.starts_with(&format!("{line} HTTP/1.1\r\n")), "{}", server.head);
        server.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(client.header("x-stator-worker-id"), Some(&*workers[at]), "{line}");
    }
    for at in [1, 0, 1] {
        let body = format!(r#"{{"model":"m","input":"a","previous_response_id":"resp_{at}"}}"#);
        let mut client = post(&bed, RESPONSES, "X-Tenant-Id: blue\r\n", &body).await;
        asked().await.answer(200, DONE).await;
        check_done(&mut client).await;
        assert_eq!(client.header("x-stator-worker-id"), Some(&*workers[at]), "{body}");
    }
    for (id, headers) in [("resp_0", ""), ("resp_9", "X-Tenant-Id: blue\r\n")] {
        let mut client = ask(&bed, &format!("GET {RESPONSES}/{id}"), headers).await;
        assert!(client.read().await);
        assert_eq!(
            (client.status(), &tree(&client.body)["error"]["code"]),
            (404, &"not_found".into())
        );
    }
}
