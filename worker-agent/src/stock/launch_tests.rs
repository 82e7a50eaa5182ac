use super::*;
use std::collections::HashSet;

fn settings(flags: &[&str]) -> StockSettings {
    super::super::testkit::stock_settings(flags)
}

fn files() -> EngineFiles {
    EngineFiles { home: Path::new("/home").into(), kv_tiers: None }
}

/// The words of a command, and the ports among them.
fn starts(settings: &StockSettings) -> (Starts, Arc<EnginePlace>) {
    let place = Arc::new(EnginePlace::new(
        "nowhere",
        connect(settings, "http://127.0.0.1:1", None).unwrap(),
    ));
    let reachable = Ipv4Addr::LOCALHOST.into();
    (Starts { settings: settings.clone(), files: files(), reachable, place: place.clone() }, place)
}

fn value<'a>(command: &'a EngineCommand, flag: &str) -> &'a str {
    let at = command.args.iter().position(|word| word == flag).unwrap();
    &command.args[at + 1]
}

#[test]
fn every_start_is_on_ports_that_are_free_then_and_the_place_follows() {
    let (mut starts, place) = starts(&settings(&["--engine=vllm", "--model=/m"]));
    let mut taken = Vec::new();
    for _ in 0..3 {
        let command = starts.command().unwrap();
        let port = value(&command, "--port").to_owned();
        assert_eq!(&*place.url(), format!("http://127.0.0.1:{port}"));
        // Somebody takes it before the next start.
        let address = format!("127.0.0.1:{port}");
        taken.push(std::net::TcpListener::bind(address).expect("nobody has it before"));
    }
}

#[test]
fn a_port_of_the_users_stays() {
    let flags = ["--engine=vllm", "--model=/m", "--engine-port=20000"];
    let (mut starts, place) = starts(&settings(&flags));
    for _ in 0..2 {
        assert_eq!(value(&starts.command().unwrap(), "--port"), "20000");
        assert_eq!(&*place.url(), "http://127.0.0.1:20000");
    }
}

#[test]
fn no_two_things_of_an_engine_share_a_port() {
    let flags = ["--engine=vllm", "--model=/m", "--role=prefill", "--", "-dp", "3"];
    for _ in 0..20 {
        let Ports { http, events, side } = Ports::choose(&settings(&flags)).unwrap();
        let all: HashSet<_> =
            [http].into_iter().chain(events..events + 6).chain(side..side + 3).collect();
        assert_eq!(all.len(), 10, "{http} {events} {side}");
    }
}

#[test]
fn several_ranks_publish_on_ports_in_a_row_and_engines_meet_where_others_reach_them() {
    let flags = ["--engine=vllm", "--model=/m", "--role=prefill", "--", "-dp", "2"];
    let ports = Ports { http: 1, events: 10, side: 20 };
    let reachable = "10.0.0.1".parse().unwrap();
    let command = command(&settings(&flags), &files(), StartPlace { ports, reachable }).unwrap();
    let events = value(&command, "--kv-events-config");
    assert!(events.contains("tcp://*:10") && events.contains("tcp://*:12"), "{events}");
    let env = |name: &str| command.env.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    assert_eq!(env("VLLM_NIXL_SIDE_CHANNEL_HOST"), Some("10.0.0.1"));
    assert_eq!(env("VLLM_NIXL_SIDE_CHANNEL_PORT"), Some("20"));
}

#[test]
fn an_sglang_that_prefills_is_where_decode_workers_reach_it_and_any_other_on_loopback() {
    let ports = Ports { http: 1, events: 10, side: 20 };
    let check = |flags: &[&str], host: &str| {
        let settings = settings(&[&["--engine=sglang", "--model=/m"], flags].concat());
        let reachable = reachable(settings.reachable_at.as_deref()).unwrap();
        let place = StartPlace { ports, reachable };
        let command = command(&settings, &files(), place).unwrap();
        assert_eq!(value(&command, "--host"), host, "{flags:?}");
        let env = command.env.iter().find(|(name, _)| name == "SGLANG_HOST_IP");
        let side = side_channel(&settings, place);
        assert_eq!(env.map(|(_, value)| value.clone()), side.map(|side| side.ip().to_string()));
        connector(&settings, side).and_then(|own| own.bootstrap)
    };
    let met = check(&["--role=prefill", "--advertise-host=10.0.0.1"], "10.0.0.1");
    assert_eq!(met.as_deref(), Some("http://10.0.0.1:20"));
    // Where the agent listens is where it is reached.
    let met = check(&["--role=prefill", "--listen=10.0.0.2:7000", "--operations-open"], "10.0.0.2");
    assert_eq!(met.as_deref(), Some("http://10.0.0.2:20"));
    assert_eq!(check(&["--role=decode", "--advertise-host=10.0.0.1"], "127.0.0.1"), None);
    assert_eq!(check(&["--advertise-host=10.0.0.1"], "127.0.0.1"), None);
}

#[test]
fn flags_that_contradict_are_found_before_anything_is_started() {
    let flags = ["--engine=vllm", "--model=/m", "--", "--port", "1"];
    let error = launch(&settings(&flags), "w", None).err().unwrap().to_string();
    assert_eq!(error, "engine flag --port: set by the agent, with --engine-port before `--`");
}

#[test]
fn an_attached_engine_stays_where_it_is() {
    let url = "http://127.0.0.1:1";
    let (launch, place) =
        launch(&settings(&["--engine=vllm", "--model=/m", "--attach", url]), "w", None).unwrap();
    assert!(launch.is_none());
    assert_eq!(&*place.url(), url);
}
