//! Pickers and engines that go away while requests come.

use super::testbed::{Bed, CHAT, DESTINATION, Testbed, chat, until, until_status};
use hyper::StatusCode;
use stator_tests::engine::Engine;
use stator_tests::envoy::{BodyMode, EnvoySettings, Routing};
use stator_tests::http::{Client, Reply};
use stator_tests::picker::endpoints;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Requests one after the other, from several clients, until told to end.
pub(super) struct LoadTest {
    ended: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<StatusCode>>>,
}

impl LoadTest {
    pub(super) fn start(client: &Client) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let clients = (0..3).map(|n| {
            let (client, ended) = (client.clone(), ended.clone());
            tokio::spawn(async move {
                let mut statuses = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    let prompt = format!("client {n}, request {}", statuses.len());
                    statuses.push(client.post(CHAT, &chat("model", &prompt)).await.status);
                }
                statuses
            })
        });
        let clients = clients.collect();
        Self { ended, clients }
    }

    /// Ends it; the statuses of all answers.
    pub(super) async fn end(self) -> Vec<StatusCode> {
        self.ended.store(true, Ordering::Relaxed);
        let mut statuses = Vec::new();
        for client in self.clients {
            statuses.extend(client.await.expect("the client did not fail"));
        }
        statuses
    }
}

/// A gateway that goes on without a picker, to any engine. Requests' bodies are buffered, and
/// answers' bodies not sent: one that was sent to the picker in full duplex is out of the
/// gateway's hands.
fn fail_open(settings: &mut EnvoySettings, engines: &[SocketAddr]) {
    settings.fail_open = true;
    (settings.request_body, settings.response_body) = (BodyMode::Buffered, BodyMode::None);
    settings.routing = Routing::OverrideHost(engines.to_vec());
}

async fn check_status(testbed: &Testbed, expected: StatusCode) -> Reply {
    until_status(expected, async || testbed.chat("hello").await).await
}

#[tokio::test]
async fn a_gateway_that_fails_open_loses_no_request_with_its_picker() {
    let Some(mut testbed) = Testbed::with(2, &[], fail_open).await else { return };
    let load = LoadTest::start(&testbed.client());
    check_status(&testbed, StatusCode::OK).await;
    testbed.picker.process.kill().await;
    // Both are asked again without a picker, and without its choice.
    for engine in &testbed.engines {
        until("a request that nobody picked for", async || {
            testbed.chat("hello").await;
            engine.last().header(DESTINATION).is_empty().then_some(())
        })
        .await;
    }
    testbed.picker.restart().await;
    testbed.picker.ready().await;
    until("a request that the new picker picked for", async || {
        let reply = testbed.chat("hello").await;
        let engine = &testbed.engines[testbed.served_by(&reply)];
        (!engine.last().header(DESTINATION).is_empty()).then_some(())
    })
    .await;
    let statuses = load.end().await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
}

#[tokio::test]
async fn a_gateway_that_fails_closed_recovers_with_its_picker() {
    let Some(mut testbed) = Testbed::start(2).await else { return };
    let load = LoadTest::start(&testbed.client());
    check_status(&testbed, StatusCode::OK).await;
    testbed.picker.process.kill().await;
    let reply = until("an answer of the gateway's own", async || {
        Some(testbed.chat("hello").await).filter(|reply| reply.status != StatusCode::OK)
    })
    .await;
    assert!(reply.status.is_server_error(), "{reply:?}");
    testbed.picker.restart().await;
    check_status(&testbed, StatusCode::OK).await;
    testbed.picker.ready().await;
    let statuses = load.end().await;
    let expected = |status: &StatusCode| *status == StatusCode::OK || status.is_server_error();
    assert!(statuses.iter().all(expected), "{statuses:?}");
    let after = testbed.chat("hello").await;
    assert_eq!(after.status, StatusCode::OK);
}

#[tokio::test]
async fn in_full_duplex_a_gateway_fails_open_once_it_knows() {
    let testbed = Testbed::with(2, &[], |settings, engines| {
        fail_open(settings, engines);
        settings.request_body = BodyMode::FullDuplex;
        settings.health_checks = true;
    });
    let Some(mut testbed) = testbed.await else { return };
    let picked = |testbed: &Testbed, reply: &Reply| {
        let engine = &testbed.engines[testbed.served_by(reply)];
        !engine.last().header(DESTINATION).is_empty()
    };
    until("a request that the picker picked for", async || {
        let reply = testbed.chat("hello").await;
        picked(&testbed, &reply).then_some(())
    })
    .await;
    testbed.picker.process.kill().await;
    let reply = check_status(&testbed, StatusCode::OK).await;
    assert!(!picked(&testbed, &reply));
}

#[tokio::test]
async fn a_picker_that_ends_in_order_breaks_nothing_off() {
    let Some(mut testbed) = Testbed::with(2, &["--shutdown-delay=0s"], fail_open).await else {
        return;
    };
    let load = LoadTest::start(&testbed.client());
    check_status(&testbed, StatusCode::OK).await;
    testbed.picker.process.terminate();
    assert!(testbed.picker.process.ended().await.success());
    check_status(&testbed, StatusCode::OK).await;
    let statuses = load.end().await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
}

#[tokio::test]
async fn requests_move_to_the_engines_that_are_left() {
    let Some(mut testbed) = Testbed::start(2).await else { return };
    let gone = testbed.engines.remove(0);
    let address = gone.address();
    drop(gone);
    let rest = testbed.engines[0].address();
    testbed.file.write(&endpoints(&[rest]));
    testbed.metric_is("llm_d_epp_ready_endpoints", 1.0).await;
    let load = LoadTest::start(&testbed.client());
    for _ in 0..10 {
        assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
    }
    let back = Engine::at(address).await;
    testbed.file.write(&endpoints(&[rest, address]));
    until("a request to the engine that came back", async || {
        testbed.chat("hello").await;
        (!back.requests().is_empty()).then_some(())
    })
    .await;
    let statuses = load.end().await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
}

/// Source: the disruption tests of the llm-d router, whose decode pod is killed in mid-request.
#[tokio::test]
async fn an_engine_that_dies_before_it_answers_takes_its_own_request_along_alone() {
    let Some(testbed) = Testbed::start(1).await else { return };
    let rest = testbed.engines[0].address();
    let dying = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = dying.local_addr().expect("it is bound");
    testbed.file.write(&endpoints(&[address]));
    let lost = until("an answer of the gateway's own", async || {
        Some(testbed.chat("hello").await).filter(|reply| reply.status != StatusCode::OK)
    });
    let dies = async {
        // The picker asks it for its metrics, the gateway for an answer.
        let asked = loop {
            let (mut socket, _) = dying.accept().await.expect("it listens");
            let mut head = [0; 4];
            if socket.read_exact(&mut head).await.is_ok() && head == *b"POST" {
                break socket;
            }
        };
        testbed.file.write(&endpoints(&[address, rest]));
        testbed.metric_is("llm_d_epp_ready_endpoints", 2.0).await;
        drop((asked, dying));
    };
    let (reply, ()) = tokio::join!(lost, dies);
    assert!(reply.status.is_server_error(), "{reply:?}");
    // It does not answer for its load either, and the other is there.
    check_status(&testbed, StatusCode::OK).await;
    testbed.file.write(&endpoints(&[rest]));
    testbed.metric_is("llm_d_epp_ready_endpoints", 1.0).await;
    assert_eq!(testbed.chat("hello").await.status, StatusCode::OK);
}
