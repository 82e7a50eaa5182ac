//! Clients that are let in, and clients that are told to come back.

use super::*;
use clap::{Command, FromArgMatches};
use stator_api::openai::ApiError;
use stator_api::space::Derivation;
use std::collections::BTreeSet;

fn door(flags: &[&str]) -> Result<Door, Vec<String>> {
    let command = <DoorArgs as clap::Args>::augment_args(Command::new("d").no_binary_name(true));
    let matches = command.try_get_matches_from(flags).expect("the flags are known");
    let mut faults = Vec::new();
    let args = DoorArgs::from_arg_matches(&matches).expect("the flags are complete");
    let settings = args.settings(&mut faults);
    if faults.is_empty() { Ok(Door::new(settings, DoorMetrics::default())) } else { Err(faults) }
}

fn open(flags: &[&str]) -> Door {
    door(flags).expect("the flags are valid")
}

fn address(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

/// Lets connections in until one is for probes only, and says how many came before.
fn fill(door: &Door, address: IpAddr) -> Vec<Visitor> {
    std::iter::from_fn(|| door.enter(address).filter(|client| client.probes_only.is_none()))
        .collect()
}

fn key(key: &str) -> Account {
    Derivation::new(None, &BTreeSet::new()).of_key(key)
}

fn status(error: ApiError) -> (u16, bool) {
    (error.status.as_u16(), error.retry_after.is_some())
}

#[test]
fn one_address_takes_its_share_of_connections_and_no_more() {
    let door = open(&["--max-connections=64"]);
    let first = fill(&door, address(1));
    assert_eq!((first.len(), door.full()), (32, None));
    assert_eq!(fill(&door, address(2)).len(), 32);
    drop(first);
    assert_eq!(fill(&door, address(1)).len(), 32);
}

#[test]
fn gateways_have_no_share() {
    let door = open(&["--max-connections=64", "--trusted-gateways=198.51.100.1,192.0.2.0/31"]);
    assert_eq!(fill(&door, address(1)).len(), 64);
    let all = fill(&door, [198, 51, 100, 1].into());
    assert_eq!(all.len(), 64);
    assert_eq!(door.full(), Some("connections"));
}

#[test]
fn a_reserve_is_kept_for_probes_and_no_address_takes_it() {
    let door = open(&["--max-connections=2", "--address-share-percent=100"]);
    let _held = fill(&door, address(1));
    let reserved: Vec<_> = std::iter::from_fn(|| door.enter(address(1))).collect();
    assert_eq!(reserved.len(), RESERVE_PER_ADDRESS);
    assert!(reserved.iter().all(|client| client.probes_only.is_some()));
    assert!(door.deadlines(&reserved[0]).idle <= RESERVE_TIMEOUT);
    let probe = door.enter(address(2)).expect("another address gets its probe in");
    assert_eq!(probe.probes_only, Some(QuotaRefusal::Limit { limit: 2 }));
    let refused = &door.metrics.connections_refused;
    let count = |reason| refused.get_or_create(&Refusal { reason }).get();
    // The first of them ended the filling.
    assert_eq!((count("limit"), count("address")), (1 + 8 + 1 + 1, 0));
    assert_eq!(door.metrics.connections.get(), 2 + 8 + 1);
    drop((reserved, probe));
    assert_eq!(door.metrics.connections.get(), 2);
}

#[test]
fn requests_have_places_for_all_and_shares_for_each_address_and_key() {
    let door = open(&["--max-concurrent-requests=4", "--key-share-percent=25"]);
    let [one, other] = [1, 2].map(|last| door.enter(address(last)).expect("there is room"));
    let _held = [door.admit(&one, None), door.admit(&one, Some(key("a")))].map(Result::unwrap);
    assert_eq!(door.admit(&one, None).map_err(status).unwrap_err(), (429, true), "the address");
    assert_eq!(
        door.admit(&other, Some(key("a"))).map_err(status).unwrap_err(),
        (429, true),
        "the key"
    );
    let _more = [door.admit(&other, Some(key("b"))), door.admit(&other, None)].map(Result::unwrap);
    assert_eq!(door.full(), Some("requests"));
    let third = door.enter(address(3)).expect("there is room");
    assert_eq!(door.admit(&third, None).map_err(status).unwrap_err(), (429, true), "all");
    let refused = &door.metrics.requests_refused;
    let count = |reason| refused.get_or_create(&Refusal { reason }).get();
    assert_eq!((count("address"), count("key"), count("limit")), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn bodies_wait_for_room_and_are_refused_where_none_comes() {
    let door = open(&["--max-body-bytes=60", "--max-bodies-bytes=100", "--key-share-percent=60"]);
    let [one, other] = [1, 2].map(|last| door.enter(address(last)).expect("there is room"));
    let mut first = door.admit(&one, Some(key("a"))).unwrap();
    assert_eq!(door.make_room(&mut first, 60).await.map_err(status), Ok(()));
    // A share is never so small that the largest body has no room in it.
    assert_eq!(door.make_room(&mut first, 1).await.map_err(status), Err((429, true)));
    assert_eq!((door.metrics.bodies_held_bytes.get(), door.full()), (60, None));
    let mut second = door.admit(&other, Some(key("b"))).unwrap();
    assert_eq!(door.make_room(&mut second, 41).await.map_err(status), Err((503, true)));
    let mut late = door.admit(&other, Some(key("c"))).unwrap();
    let (made, ()) = tokio::join!(door.make_room(&mut late, 41), async { first.release_body() });
    assert_eq!(made.map_err(status), Ok(()));
    drop((late, second, first));
    assert_eq!((door.metrics.bodies_held_bytes.get(), door.bodies.held()), (0, 0));
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    let faults = door(&["--max-body-bytes=2000", "--max-bodies-bytes=1000"]).err().unwrap();
    assert_eq!(faults, ["max-bodies-bytes: 1000 is less than max-body-bytes, 2000"]);
    assert_eq!(open(&["--max-connections=1"]).connections.limit(), 1);
    let open = open(&[]);
    assert_eq!(open.settings.deadlines.head, Duration::from_secs(10));
    assert_eq!(open.bodies.limit(), 1 << 30);
}
