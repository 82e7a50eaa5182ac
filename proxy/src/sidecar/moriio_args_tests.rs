use super::super::config::tests::{configured, settings};
use super::*;

const WRITES: [&str; 2] = ["--moriio-write-mode", "--moriio-local-pod-ip=10.0.0.9"];

#[test]
fn llm_ds_flags_choose_who_writes_and_when() {
    let check = |flags: &[&str], expected: Connector| {
        let settings = settings(flags).expect("they are valid");
        assert_eq!(settings.prefill.connector, expected, "{flags:?}");
    };
    check(&[], Connector::Nixlv2);
    check(&["--kv-connector=moriio"], Connector::Moriio);
    check(&["--kv-connector=nixlv2", "--moriio-dp-size=2"], Connector::Moriio);
    check(&["--moriio-dp-size=1", "--moriio-write-mode=false"], Connector::Nixlv2);
    check(&["--kv-connector=mooncake", "--moriio-dp-size=2"], Connector::Mooncake);
    check(&WRITES, Connector::MoriioWrite);
    check(&[&WRITES[..], &["--kv-connector=moriio"]].concat(), Connector::MoriioWrite);
    let at_once = ["--moriio-parallel-dispatch=true"];
    check(&[&WRITES[..], &at_once].concat(), Connector::MoriioParallel);
}

#[test]
fn an_example_of_llm_ds_is_understood() {
    let flags = [
        "--moriio-write-mode=true",
        "--moriio-dp-size=16",
        "--moriio-dp-size-local=8",
        "--moriio-tp-size=1",
        "--moriio-local-pod-ip=decode-master.ns.svc",
        "--moriio-remote-hosts=prefill-master.ns.svc, prefill-worker.ns.svc",
        "--moriio-decode-hosts=10.0.0.9,fd00::10",
        "--moriio-decode-handshake-port=7301",
        "--moriio-decode-notify-port=7501",
    ];
    let moriio = settings(&flags).expect("they are valid").prefill.moriio;
    let usual = Ports { handshake: 6301, notify: 61005 };
    let expected = Setup {
        prefill: usual,
        decode: Ports { handshake: 7301, notify: 7501 },
        tensor_parallel: 1,
        ranks: 16,
        ranks_of_pod: Some(8),
    };
    assert_eq!(moriio.setup, expected);
    assert_eq!(moriio.hosts.own, "decode-master.ns.svc");
    assert_eq!(moriio.hosts.prefill, ["prefill-master.ns.svc", "prefill-worker.ns.svc"]);
    assert_eq!(moriio.hosts.decode, ["10.0.0.9", "fd00::10"]);
    let seconds = Duration::from_secs;
    assert_eq!(moriio.names, NameSettings { ttl: seconds(30), timeout: seconds(5) });
    let text = "--configuration={moriio-write-mode: true, moriio-local-pod-ip: 10.0.0.9,
        moriio-dp-size: 4, moriio-dp-size-local: 2, moriio-remote-hosts: [a, b]}";
    let moriio = configured(&[text]).expect("it is valid").prefill.moriio;
    assert_eq!((moriio.setup.ranks, moriio.hosts.prefill.len()), (4, 2));
}

#[test]
fn decode_beside_prefill_waits_no_longer_than_it_may() {
    let check = |further: &[&str], seconds| {
        let settings = settings(&[&WRITES[..], further].concat()).expect("they are valid");
        assert_eq!(settings.prefill.timeout, Duration::from_secs(seconds), "{further:?}");
    };
    let at_once = "--moriio-parallel-dispatch";
    let wait = |text| format!("--moriio-parallel-decode-wait-timeout={text}");
    check(&[], 60);
    check(&[at_once], 30);
    check(&[at_once, &wait("0")], 30);
    check(&[at_once, &wait("45s")], 45);
    check(&[at_once, &wait("5m")], 60);
    check(&[at_once, &wait("5m"), "--prefill-timeout-ms=600000"], 300);
    check(&[at_once, "--prefill-timeout-ms=5000"], 5);
}

#[test]
fn every_fault_is_named_at_once() {
    let flags = [
        "--kv-connector=mooncake",
        "--moriio-write-mode",
        "--moriio-local-pod-ip=0.0.0.0",
        "--moriio-dp-size=16",
        "--moriio-dp-size-local=6",
        "--moriio-remote-hosts=a,b/c",
        "--moriio-decode-hosts=a,b,c",
        "--moriio-tp-size=8",
        "--moriio-decode-notify-port=65500",
        "--data-parallel-size=2",
    ];
    let faults = settings(&flags).expect_err("much is wrong");
    let named = [
        "moriio-write-mode: needs connector=nixlv2 or moriio",
        "moriio-local-pod-ip: nobody reaches 0.0.0.0",
        "moriio-dp-size: its 16 ranks are behind one port",
        "moriio-dp-size-local: 6 does not divide 16 ranks",
        "moriio-remote-hosts: \"b/c\" is no host",
        "moriio-decode-hosts: 3 hosts, but 16 ranks, 6 a pod, are on 2 pods",
        "moriio-decode-notify-port: 65500 leaves no ports for 48 ranks of a pod",
    ];
    for name in named {
        assert!(faults.contains(name), "{name} is not in {faults}");
    }
    for (flags, named) in [
        (&["--moriio-write-mode"][..], "moriio-write-mode: needs moriio-local-pod-ip or POD_IP"),
        (&["--moriio-parallel-dispatch"], "moriio-parallel-dispatch: needs moriio-write-mode"),
        (&["--moriio-decode-hosts=a,b"], "moriio-decode-hosts: several hosts need"),
        (&["--moriio-write-mode", "--moriio-local-pod-ip=a b"], "\"a b\" is no host"),
    ] {
        let faults = settings(flags).expect_err(named);
        assert!(faults.contains(named), "{named} is not in {faults}");
    }
}

#[test]
fn what_has_no_effect_is_told() {
    let noted = |flags: &[&str]| {
        let notes = settings(flags).expect("they are valid").notes;
        let its = notes.into_iter().filter(|note| note.starts_with("moriio-"));
        its.map(|note| note.split(':').next().expect("a flag").to_owned()).collect::<Vec<_>>()
    };
    let flags = [
        "--moriio-tp-size=2",
        "--moriio-dp-size-local=2",
        "--moriio-parallel-decode-wait-timeout=1s",
    ];
    let expected =
        ["moriio-tp-size", "moriio-parallel-decode-wait-timeout", "moriio-dp-size-local"];
    assert_eq!(noted(&flags), expected);
    assert_eq!(noted(&[&WRITES[..], &flags[..1]].concat()), [""; 0]);
}
