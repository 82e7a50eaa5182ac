use super::*;
use clap::{Command, FromArgMatches};

pub(super) fn check(args: &[&str]) -> Result<AgentSettings, String> {
    let command = AgentArgs::augment_args(Command::new("agent").no_binary_name(true));
    let matches = command.try_get_matches_from(args).map_err(|error| error.to_string())?;
    let args = AgentArgs::from_arg_matches(&matches).unwrap();
    AgentSettings::try_from(args).map_err(|error| error.to_string())
}

#[test]
fn defaults_are_valid_and_follow_the_engine() {
    let settings = check(&[]).unwrap();
    assert_eq!(settings.listen, Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7000))));
    let running = |args: &[&str]| match check(args).unwrap().engine {
        Runs::Own(engine) => engine.options.max_running,
        Runs::Stock(stock) => panic!("{stock:?}"),
    };
    assert_eq!(running(&[]), 64);
    assert_eq!(running(&["--engine=sim"]), 256);
}

#[test]
fn kv_is_lent_where_requests_come_unless_nobody_vouches_for_readers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "correct-horse-battery\n").unwrap();
    let secret = format!("--fleet-secret-file={}", file.display());
    let at = |args: &[&str]| {
        let address = check(&[&["--kv-host-gb=0.05"], args].concat()).unwrap().kv_transfer;
        address.map(|address| address.to_string())
    };
    let (here, everywhere) = (Some("127.0.0.1:0".to_owned()), "--listen=0.0.0.0:7000");
    assert_eq!(check(&[]).unwrap().kv_transfer, None);
    assert_eq!(at(&[]), here);
    assert_eq!(at(&["--listen=unix:///run/agent.sock"]), here);
    assert_eq!(at(&[everywhere]), None);
    assert_eq!(at(&[everywhere, &secret]), Some("0.0.0.0:0".into()));
    assert_eq!(at(&[everywhere, "--kv-transfer-listen=127.0.0.1:0"]), here);
    assert_eq!(at(&[&secret, "--kv-transfer-listen=off"]), None);
}

#[test]
fn prompts_are_handed_over_where_requests_come_if_something_vouches_for_kv() {
    let prefill = "--role=prefill";
    let at = |args: &[&str]| {
        let address = check(&[&[prefill], args].concat()).unwrap().kv_transfer;
        address.map(|address| address.to_string())
    };
    let beyond = ["--listen=10.0.0.1:7000", "--advertise-host=a"];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "correct-horse-battery\n").unwrap();
    let secret = format!("--fleet-secret-file={}", file.display());
    assert_eq!(at(&[]), Some("127.0.0.1:0".into()));
    assert_eq!(at(&["--kv-transfer-listen=off"]), None);
    assert_eq!(at(&beyond), None);
    assert_eq!(at(&[&beyond[..], &[&*secret]].concat()), Some("10.0.0.1:0".into()));
    let open = [prefill, "--kv-transfer-listen=10.0.0.1:7010"];
    assert!(check(&open).unwrap_err().contains("needs fleet-secret-file"));
    // Who decodes reads, and hands nothing over.
    assert_eq!(check(&["--role=decode"]).unwrap().kv_transfer, None);
    assert_eq!(check(&[]).unwrap().kv_handover_bytes, 256_000_000);
    assert!(check(&["--kv-handover-mb=0"]).unwrap_err().contains("kv-handover-mb"));
}

#[test]
fn a_stock_engine_takes_its_own_flags_after_two_dashes() {
    let args = ["--engine=vllm", "--model=/m", "--role=decode", "--", "--max-num-seqs", "8"];
    let settings = check(&args).unwrap();
    assert_eq!(settings.profile.role, Role::Decode);
    let Runs::Stock(stock) = settings.engine else { panic!("{:?}", settings.engine) };
    assert_eq!((stock.kind, stock.restarts), (stator_dialect::Kind::Vllm, None));
    let args = vec!["--max-num-seqs".into(), "8".into()];
    assert_eq!(stock.origin, Origin::Started { program: None, port: 0, args });
}

#[test]
fn faults_of_a_stock_engine_are_reported_at_once() {
    let flags = ["--engine=sglang", "--workers=2", "--attach=nowhere", "--labels=a=b,"];
    let more = ["--engine-port=7", "--engine-metrics-max-bytes=8388609", "--", "--x"];
    let error = check(&[flags, more].concat()).unwrap_err();
    for line in [
        "workers: 2 is not in 1..=1",
        "model: the model's folder is needed: proxies take its tokenizer from here",
        "attach: a running engine takes no flags after `--`",
        "attach: \"nowhere\" is not `http://host:port`",
        "engine-port: 7 is for an engine that is started here",
        "engine-metrics-max-bytes: 8388609 is not in 0..=8388608",
        "labels: \"\" has 0 bytes, 1 to 256",
    ] {
        assert!(error.lines().any(|found| found == line), "{line}\nmissing in\n{error}");
    }
}

#[test]
fn a_key_comes_from_the_command_line_or_a_file_and_no_fault_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = |contents: &str| {
        let path = folder.path().join("key");
        std::fs::write(&path, contents).unwrap();
        format!("--engine-api-key-file={}", path.display())
    };
    let key = |flags: &[&str]| {
        let flags = [&["--engine=vllm", "--model=/m"], flags].concat();
        check(&flags).map(|settings| match settings.engine {
            Runs::Stock(stock) => stock.api_key,
            Runs::Own(engine) => panic!("{engine:?}"),
        })
    };
    let hush = Some(stator_dialect::ApiKey("hush".into()));
    assert_eq!(key(&[]), Ok(None));
    assert_eq!(key(&["--engine-api-key=hush"]), Ok(hush.clone()));
    assert_eq!(key(&[&file(" hush\n")]), Ok(hush));
    assert_eq!(
        key(&[&file("")]),
        Err("engine-api-key-file: the key has 0 bytes, 1 to 4096".into())
    );
    for bad in ["hu sh", "hu\"sh", "hüsh"] {
        let error = key(&[&file(bad)]).unwrap_err();
        assert!(error.starts_with("engine-api-key-file: the key has white space"), "{error}");
        assert!(!error.contains("hu"), "{error}");
    }
    let error = key(&["--engine-api-key-file=/no/such"]).unwrap_err();
    assert!(error.starts_with("engine-api-key-file: cannot read \"/no/such\""), "{error}");
    assert!(key(&["--engine-api-key=hush", &file("hush")]).is_err());
}

#[test]
fn flags_of_stock_engines_are_refused_where_there_is_none() {
    let error = check(&["--attach=http://h:1", "--", "--x"]).unwrap_err();
    for line in [
        "attach: needs --engine vllm, sglang, trtllm or openai",
        "flags after `--`: needs --engine vllm, sglang or trtllm",
    ] {
        assert!(error.lines().any(|found| found == line), "{line}\nmissing in\n{error}");
    }
}

#[test]
fn every_fault_is_reported_at_once() {
    let args = [
        "--workers=0",
        "--block-size=0",
        "--max-running=0",
        "--sim-speedup=NaN",
        "--listen=nowhere",
        "--events-listen=ipc://*",
        "--replay-listen=udp://1.2.3.4:5",
        "--lease-ms=1",
        "--agent-id=../x",
    ];
    let error = check(&args).unwrap_err();
    for line in [
        "workers: 0 is not in 1..=1024",
        "block-size: 0 is not in 1..=1024",
        "max-running: 0 is not in 1..=65536",
        "sim-speedup: NaN is not in 0.001..=1000000",
        "listen: \"nowhere\" is neither `address:port` nor `unix:///path`",
        "events-listen: \"ipc://*\" is none of `tcp://address:port`, `ipc:///path` and `off`",
        "replay-listen: \"udp://1.2.3.4:5\" is none of `tcp://address:port`, `ipc:///path` and `off`",
        "lease-ms: 1 is not in 300..=600000",
        "agent-id: \"../x\" is not 1 to 128 of A-Z a-z 0-9 . _ -",
    ] {
        assert!(error.lines().any(|found| found == line), "{line}\nmissing in\n{error}");
    }
}

#[test]
fn unix_and_ipc_endpoints_are_taken() {
    let settings = check(&["--listen=unix:///tmp/a.sock", "--events-listen=ipc:///tmp/b"]);
    assert_eq!(settings.unwrap().listen, Listen::Unix("/tmp/a.sock".into()));
}

#[test]
fn an_agent_that_shares_requests_says_where_it_is() {
    let flags = |role: &str, listen: &str| {
        let (role, listen) = (format!("--role={role}"), format!("--listen={listen}"));
        check(&["--engine=vllm", "--model=/m", "--operations-open", &role, &listen])
    };
    for role in ["prefill", "decode"] {
        let error = flags(role, "0.0.0.0:7000").unwrap_err();
        assert!(error.starts_with("advertise-host: "), "{error}");
        assert!(flags(role, "[::]:7000").is_err());
        assert!(flags(role, "10.0.0.1:7000").is_ok());
        assert!(flags(role, "unix:///x").is_ok());
        let known = format!("--role={role}");
        let all = ["--engine=vllm", "--model=/m", "--operations-open", &known];
        let named = ["--listen=0.0.0.0:7000", "--advertise-host=10.0.0.1"];
        assert!(check(&[&all[..], &named].concat()).is_ok());
    }
    assert!(flags("aggregated", "0.0.0.0:7000").is_ok());
}

#[test]
fn the_manifests_flags_are_valid() {
    let manifests = [
        include_str!("../../../manifests/agents/agent.yaml"),
        include_str!("../../../manifests/agents/vllm/deployment.yaml"),
    ];
    for manifest in manifests {
        let words = manifest.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
        let words = words.filter(|word| word.starts_with("--"));
        let words: Vec<_> = words
            .map(|word| word.split(" #").next().unwrap_or(word))
            .map(|word| word.replace("$(NAMESPACE)", "n").replace("$(POD_IP)", "10.0.0.1"))
            .collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        assert!(words.len() > 4, "{words:?}");
        let settings = check(&words).unwrap();
        let seconds = |name: &str| {
            let (_, rest) = manifest.split_once(name).expect("it says so");
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            Duration::from_secs(digits.parse().expect("a number"))
        };
        let stop = match &settings.engine {
            Runs::Own(_) => Duration::ZERO,
            Runs::Stock(stock) => stock.stop_grace,
        };
        let grace = seconds("terminationGracePeriodSeconds: ");
        assert!(grace > settings.drain_timeout + stop, "{grace:?}");
    }
}
