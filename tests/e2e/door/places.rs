//! Connections that are held, and descriptors that run out.

use super::raw::Raw;
use super::{Door, get, post};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use stator_tests::soon;

/// Opens connections that send nothing.
async fn hold(door: &Door, count: usize) -> Vec<Raw> {
    let mut held = Vec::new();
    for _ in 0..count {
        held.push(door.connect().await);
    }
    held
}

#[tokio::test]
async fn probes_are_answered_when_all_places_are_held() {
    let mut door = Door::start(&["--max-connections=64", "--address-share-percent=100"]).await;
    let held = hold(&door, 64).await;
    let health = soon("the door is full", async {
        loop {
            let health = door.ask(&get("/health")).await;
            if health.body.contains("full") {
                return health;
            }
        }
    })
    .await;
    assert_eq!((health.status, &*health.body), (503, r#"{"status":"full","of":"connections"}"#));
    assert_eq!(door.ask(&get("/live")).await.status, 200);
    assert!(door.metric("stator_proxy_connections_refused_total{reason=\"limit\"}").await >= 2.0);
    for request in [get("/openapi.json"), post("content-length: 2\r\n") + "{}"] {
        let answer = door.ask(&request).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.head.contains("retry-after: ") && answer.head.contains("connection: close"));
    }
    assert!(door.process.event("connections found no place").await["count"].as_u64() >= Some(1));
    drop(held);
    let served = async { while door.ask(&get("/openapi.json")).await.status != 200 {} };
    soon("places are free again", served).await;
}

#[tokio::test]
async fn a_silent_probe_loses_its_place_soon() {
    let door = Door::start(&["--max-connections=1", "--address-share-percent=100"]).await;
    let _held = hold(&door, 1).await;
    for probe in hold(&door, 8).await {
        probe.closed().await;
    }
    assert_eq!(door.ask(&get("/live")).await.status, 200);
}

#[tokio::test]
async fn one_address_does_not_close_the_door() {
    let door = Door::start(&["--max-connections=64"]).await;
    let mut held = hold(&door, 32).await;
    for client in &mut held {
        client.send(get("/live")).await;
        assert_eq!(client.answer().await.status, 200);
    }
    assert_eq!(door.ask(&get("/openapi.json")).await.status, 503, "its share is taken");
    let mut other = Raw::connect_from([127, 0, 0, 2].into(), door.address).await;
    for path in ["/openapi.json", "/live"] {
        other.send(get(path)).await;
        assert_eq!(other.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_gateway_may_hold_all_places() {
    let flags = ["--max-connections=64", "--trusted-gateways=127.0.0.0/8"];
    let door = Door::start(&flags).await;
    for client in &mut hold(&door, 64).await {
        client.send(get("/openapi.json")).await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test]
async fn running_out_of_descriptors_is_logged_and_counted_and_over_when_there_are_some() {
    let mut door = Door::start(&[]).await;
    let mut kept = door.connect().await;
    kept.send(get("/live")).await;
    assert_eq!(kept.answer().await.status, 200);

    let open = std::fs::read_dir(format!("/proc/{}/fd", door.process.id())).unwrap().count();
    let limit = Some(open as u64 + 8);
    let pid = Pid::from_raw(i32::try_from(door.process.id()).unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let held = hold(&door, 32).await;
    let event = door.process.event("connections cannot be accepted").await;
    assert_eq!(event["level"], "WARN", "{event}");
    let mut errors = 0.0;
    while errors < 5.0 {
        kept.send(get("/metrics")).await;
        let page = kept.answer().await.body;
        let count =
            page.lines().find_map(|line| line.strip_prefix("stator_proxy_accept_errors_total "));
        errors = count.map_or(0.0, |count| count.parse().unwrap());
    }
    let lines = door.process.log().matches("connections cannot be accepted").count();
    assert!(lines < 5, "{lines} lines of {errors} errors");
    drop(held);
    assert_eq!(door.ask(&get("/live")).await.status, 200);
}
