//! TLS on both sides, between two proxies.

use super::testbed::{CHAT, Sidecar, chat};
use hyper::StatusCode;
use stator_tests::engine::Engine;

#[tokio::test]
async fn tls_is_served_and_spoken_and_checked_unless_told_otherwise() {
    let engine = Engine::start().await;
    let secure = Sidecar::start(engine.address(), &["--secure-serving"]).await;
    let behind = secure.client.address();
    for (flags, status) in [
        (&["--enable-tls=decoder", "--tls-insecure-skip-verify=decoder"][..], StatusCode::OK),
        (&["--enable-tls=decoder"][..], StatusCode::BAD_GATEWAY),
        (&[][..], StatusCode::BAD_GATEWAY),
    ] {
        let front = Sidecar::start(behind, flags).await;
        for _ in 0..2 {
            let reply = front.client.post(CHAT, &chat("hello")).await;
            assert_eq!(reply.status, status, "{flags:?}: {}", front.process.log());
        }
    }
    assert_eq!(engine.requests().len(), 2);
}
