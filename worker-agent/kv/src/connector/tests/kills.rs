//! Engines in processes of their own, which die.

use super::super::socket::EXPIRED_WAITS;
use super::super::wire::*;
use super::kit::{Agent, Shim, hello, key, until};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

/// Role, engine and socket of a child process.
const CHILD: &str = "STATOR_KV_TEST_CHILD";

/// Not a test by itself: the engine that other tests start as a process.
#[test]
fn engine_process() {
    let Ok(child) = std::env::var(CHILD) else { return };
    let [role, engine, socket] = child.splitn(3, ':').collect::<Vec<_>>()[..] else { return };
    let role = if role == "worker" { ShimRole::Worker } else { ShimRole::Scheduler };
    let mut shim = Shim::join(Path::new(socket), &Hello { role, ..hello(engine) });
    if role == ShimRole::Scheduler {
        shim.store(&[1]);
        shim.ask(&[1]);
        // Filled by halves when it dies.
        shim.slot();
        shim.wire.send(&ShimMessage::Touch(vec![key(1)]));
    }
    println!("\nengine is up");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A process that is killed when dropped.
struct ChildEngine(Child);

impl ChildEngine {
    fn start(agent: &Agent, role: &str, engine: &str) -> Self {
        let socket = agent.socket();
        let child = this_test("engine_process")
            .env(CHILD, format!("{role}:{engine}:{}", socket.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_up = |line: std::io::Result<String>| line.is_ok_and(|line| line == "engine is up");
        assert!(said.into_iter().any(is_up), "the engine did not start");
        Self(child)
    }
}

impl Drop for ChildEngine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This program, for one of the tests in this file.
fn this_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let path = module_path!().split_once("::").unwrap().1;
    command.args([&format!("{path}::{name}"), "--exact", "--nocapture"]);
    command
}

/// The agent hears of the death from the system: [`hundred_kills`] shows that no time has to run out.
#[test]
fn engine_kill_frees_all_within_a_second() {
    let agent = Agent::new(8);
    let engine = ChildEngine::start(&agent, "scheduler", "a");
    assert!(agent.free() < 8);
    drop(engine);
    until("its slots are free", || agent.free() == 8);
    assert_eq!((agent.connections(), agent.quarantined()), (0, 0));
}

#[test]
fn slots_wait_for_the_workers_too() {
    let agent = Agent::new(8);
    let worker = ChildEngine::start(&agent, "worker", "a");
    let scheduler = ChildEngine::start(&agent, "scheduler", "a");
    drop(scheduler);
    until("the loss is seen", || agent.quarantined() == 1 && agent.connections() == 1);
    assert_eq!(agent.free(), 5, "one pinned, two granted");
    drop(worker);
    until("its slots are free", || agent.free() == 8);
    assert_eq!(agent.quarantined(), 0);
}

#[test]
fn other_engines_do_not_notice_a_kill() {
    let agent = Agent::new(16);
    let mut other = agent.shim("b");
    let engine = ChildEngine::start(&agent, "scheduler", "a");
    assert_eq!(other.ask(&[1]).slots.len(), 1);
    drop(engine);
    other.store(&[2, 3]);
    assert_eq!(other.ask(&[1, 2, 3]).slots.len(), 3);
}

/// In a process of its own, whose files and waits are counted.
#[test]
fn hundred_kills_leak_nothing_and_wait_for_no_time() {
    let status = this_test("hundred_kills").env(CHILD, "alone").stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
}

/// Not a test by itself: see [`hundred_kills_leak_nothing_and_wait_for_no_time`].
#[test]
fn hundred_kills() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let agent = Agent::new(8);
    let mut files = 0;
    for round in 0..100 {
        drop(ChildEngine::start(&agent, "scheduler", "a"));
        until("nothing is left", || {
            let is_gone = (agent.connections(), agent.quarantined()) == (0, 0);
            // The first round opens what stays open.
            let now = std::fs::read_dir("/proc/self/fd").unwrap().count();
            files = if round == 0 && is_gone { now } else { files };
            is_gone && agent.free() == 8 && now <= files
        });
    }
    assert_eq!(EXPIRED_WAITS.load(Ordering::Relaxed), 0, "an end was seen by its time alone");
}
