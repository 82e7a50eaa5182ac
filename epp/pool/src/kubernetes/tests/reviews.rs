//! Readers of metrics.

use super::cluster;
use crate::kubernetes::{ReadAccess, Reviewer};
use stator_kube_testkit::{Mood, Server};

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

#[tokio::test]
async fn rights_are_asked_for_once() {
    let server = Server::start().await;
    let reviewer = Reviewer::new(&cluster(&server));
    let check = async |token: &str, path: &str, expected: ReadAccess| {
        let access = reviewer.authorize(token, path).await.expect("the server answers");
        assert_eq!(access, expected, "{token} {path}");
    };
    for _ in 0..3 {
        check("root", "/metrics", ReadAccess::Granted).await;
        check("root", "/secrets", ReadAccess::Denied).await;
        check("guest", "/metrics", ReadAccess::Denied).await;
        check("nobody", "/metrics", ReadAccess::Unknown).await;
        check("", "/metrics", ReadAccess::Unknown).await;
    }
    assert_eq!(server.requests(TOKENS), 4);
}

#[tokio::test]
async fn nobody_is_granted_anything_by_a_server_that_fails() {
    let server = Server::start().await;
    let reviewer = Reviewer::new(&cluster(&server));
    server.mood(TOKENS, Mood::Failing);
    reviewer.authorize("root", "/metrics").await.expect_err("the server does not answer");
    server.mood(TOKENS, Mood::Good);
    let access = reviewer.authorize("root", "/metrics").await.expect("the server answers");
    assert_eq!(access, ReadAccess::Granted);
}
