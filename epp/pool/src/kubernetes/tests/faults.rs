//! Watches through every way in which a server can fail.

use super::{
    Followed, LEGACY_OBJECTIVES, OBJECTIVES, PODS, POOLS, REWRITES, cluster, objective, pod, pods,
    pool,
};
use crate::kubernetes::resource::Group;
use crate::kubernetes::{PoolRef, Resource};
use crate::{AppProtocol, PoolSpec};
use serde_json::json;
use stator_kube::{Query, Report};
use stator_kube_testkit::{Mood, Server, soon};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

#[tokio::test]
async fn changes_of_pods_change_the_view() {
    let mut followed = Followed::with_two_pods().await;
    followed.server.put(PODS, pod("a", "x", false));
    followed.until_pods(&["b"]).await;
    followed.server.put(PODS, pod("c", "x", true));
    followed.server.delete(PODS, "b");
    followed.until_pods(&["c"]).await;
}

#[tokio::test]
async fn a_pool_of_many_pages_is_read_whole() {
    let server = Server::start().await;
    server.put(POOLS, pool("x", &[8000, 8001]));
    for name in ["a", "b", "c", "d", "e"] {
        server.put(PODS, pod(name, "x", true));
    }
    let mut followed = Followed::new(server);
    followed.until_pods(&["a", "b", "c", "d", "e"]).await;
    let view = followed.until(|_| true).await;
    assert_eq!(view.endpoints.len(), 10);
    assert_eq!((view.app_protocol, &view.target_ports[..]), (AppProtocol::Http, &[8000, 8001][..]));
}

/// Whatever happens to the server, the pods that were known stay, and are known to be old; what
/// happened meanwhile is seen when it is back.
async fn check_outage(mood: Mood) {
    let mut followed = Followed::with_two_pods().await;
    for path in [PODS, POOLS, OBJECTIVES] {
        followed.server.mood(path, mood);
    }
    let view = followed.until(|view| view.stale_since.is_some()).await;
    assert!(view.synced);
    assert_eq!(pods(&view), ["a", "b"]);
    followed.server.delete(PODS, "a");
    followed.server.put(PODS, pod("c", "x", true));
    // It is asked again while it is out, and no answer of it is believed.
    let asked = followed.server.requests(PODS);
    followed.server.asked_more_than(PODS, asked + 2).await;
    assert_eq!(pods(&followed.view.borrow_and_update().clone()), ["a", "b"]);
    for path in [PODS, POOLS, OBJECTIVES] {
        followed.server.mood(path, Mood::Good);
    }
    followed.until_pods(&["b", "c"]).await;
}

#[tokio::test]
async fn a_server_that_is_unavailable_takes_nothing_away() {
    check_outage(Mood::Failing).await;
}

#[tokio::test]
async fn connections_that_break_take_nothing_away() {
    check_outage(Mood::Reset).await;
}

#[tokio::test]
async fn a_server_that_goes_silent_takes_nothing_away() {
    check_outage(Mood::Stalled).await;
}

#[tokio::test]
async fn versions_that_were_forgotten_are_listed_anew() {
    let mut followed = Followed::with_two_pods().await;
    // The watch breaks, and what it missed cannot be told any more.
    followed.server.mood(PODS, Mood::Reset);
    followed.until(|view| view.stale_since.is_some()).await;
    followed.server.delete(PODS, "a");
    followed.server.forget(PODS);
    followed.server.mood(PODS, Mood::Good);
    followed.until_pods(&["b"]).await;
    // An open watch is told in its stream.
    followed.server.forget(PODS);
    followed.server.put(PODS, pod("c", "x", true));
    followed.until_pods(&["b", "c"]).await;
}

#[tokio::test]
async fn a_list_that_stalls_is_asked_for_again() {
    let server = Server::start().await;
    server.put(POOLS, pool("x", &[8000]));
    server.put(PODS, pod("a", "x", true));
    server.mood(PODS, Mood::Stalled);
    let mut followed = Followed::new(server);
    assert!(!followed.until(|view| view.stale_since.is_some()).await.synced);
    followed.server.mood(PODS, Mood::Good);
    followed.until_pods(&["a"]).await;
}

#[tokio::test]
async fn a_new_selector_keeps_the_old_pods_until_the_new_ones_are_listed() {
    let mut followed = Followed::with_two_pods().await;
    followed.server.put(PODS, pod("z", "y", true));
    followed.server.mood(PODS, Mood::Stalled);
    let asked = followed.server.requests(PODS);
    followed.server.put(POOLS, pool("y", &[9000]));
    followed.server.asked_more_than(PODS, asked).await;
    let view = followed.view.borrow_and_update().clone();
    assert_eq!((pods(&view), &view.target_ports[..]), (vec!["a", "b"], &[8000][..]));
    followed.server.mood(PODS, Mood::Good);
    followed.until_pods(&["z"]).await;
    assert_eq!(followed.view.borrow().endpoints[0].address.port(), 9000);
}

#[tokio::test]
async fn a_deleted_pool_is_empty_until_it_is_there_again() {
    let mut followed = Followed::with_two_pods().await;
    followed.server.delete(POOLS, "p");
    let view = followed.until(|view| !view.synced).await;
    assert!(view.endpoints.is_empty());
    followed.server.put(POOLS, pool("x", &[8000]));
    followed.until_pods(&["a", "b"]).await;
}

#[tokio::test]
async fn policies_that_are_installed_later_are_found() {
    let server = Server::start().await;
    for path in [OBJECTIVES, LEGACY_OBJECTIVES, REWRITES] {
        server.mood(path, Mood::Absent);
    }
    server.put(POOLS, pool("x", &[8000]));
    server.put(PODS, pod("a", "x", true));
    let mut followed = Followed::new(server);
    followed.until_pods(&["a"]).await;
    followed.server.put(OBJECTIVES, objective("batch", -1));
    followed.server.put(LEGACY_OBJECTIVES, objective("batch", 7));
    followed.server.put(LEGACY_OBJECTIVES, objective("old", 3));
    let rules = json!([{"targets": [{"modelRewrite": "y"}]}]);
    let spec = json!({"poolRef": {"name": "p"}, "rules": rules});
    followed.server.put(REWRITES, json!({"metadata": {"name": "r"}, "spec": spec}));
    for path in [OBJECTIVES, LEGACY_OBJECTIVES, REWRITES] {
        followed.server.mood(path, Mood::Good);
    }
    let view = followed
        .until(|view| {
            view.priority("batch") == Some(-1)
                && view.priority("old").is_some()
                && !view.rewrites.is_empty()
        })
        .await;
    assert_eq!(view.rewrites.rewrite("any", 0).expect("a rule").model, "y");
}

#[tokio::test]
async fn a_kind_that_is_gone_is_believed_to_be_at_the_second_look() {
    let mut followed = Followed::with_two_pods().await;
    followed.server.put(OBJECTIVES, objective("batch", -1));
    followed.until(|view| view.priority("batch").is_some()).await;
    followed.server.mood(OBJECTIVES, Mood::Absent);
    followed.until(|view| view.priority("batch").is_none()).await;
    followed.until_pods(&["a", "b"]).await;
}

#[tokio::test]
async fn a_kind_that_is_not_known_for_a_moment_is_not_forgotten() {
    let server = Server::start().await;
    server.put(OBJECTIVES, objective("batch", -1));
    let mut reports = follow(&server, Group::LlmD.objectives());
    let batch: BTreeMap<_, _> = [("batch".to_owned(), ())].into();
    assert_eq!(soon(reports.recv()).await, Some(Report::Listed(batch.clone())));
    server.mood(OBJECTIVES, Mood::AbsentOnce);
    assert_eq!(soon(reports.recv()).await, Some(Report::Lost));
    assert_eq!(soon(reports.recv()).await, Some(Report::Found));
    assert_eq!(soon(reports.recv()).await, Some(Report::Listed(batch)));
}

/// What a follower of a kind says, without what the objects are.
fn follow(server: &Server, resource: Resource) -> mpsc::Receiver<Report<()>> {
    let (updates, reports) = mpsc::channel(16);
    let query = Query { resource, namespace: Some("n".into()), labels: None, fields: None };
    let decode = Box::new(|_: &str| Ok(Some(())));
    let follower = cluster(server).kube.follow(query, decode, updates, Box::new(|report| report));
    tokio::spawn(follower.run());
    reports
}

#[tokio::test]
async fn a_pool_needs_no_object() {
    let server = Server::start().await;
    server.put(PODS, pod("a", "x", true));
    let spec = PoolSpec::standalone("app=x", &[8000]).expect("a pool");
    let watched = cluster(&server).watch(PoolRef::new("n", "p"), Some(spec));
    let mut followed = Followed { server, view: watched.view(), _watched: watched };
    followed.until_pods(&["a"]).await;
    assert_eq!(followed.server.requests(POOLS), 0);
}

#[tokio::test]
async fn an_object_that_cannot_be_read_hides_no_others() {
    let mut followed = Followed::with_two_pods().await;
    let mut odd = pod("c", "x", true);
    odd["status"]["conditions"] = json!("none");
    followed.server.put(PODS, odd);
    followed.server.put(PODS, pod("d", "x", true));
    followed.until_pods(&["a", "b", "d"]).await;
}
