//! The agents' engines: within the agents, alone or in pairs, or processes of their own.

use crate::fleet::PACE;
use crate::plan::{Fault, Step};
use stator_tests::http::Client;
use stator_tests::process::{Process, find_descendant, signal, try_signal};
use stator_tests::within;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The program of an engine that is a process: `tests/src/bin/chaos_engine`.
const PROGRAM: &str = env!("CARGO_BIN_EXE_chaos_engine");
/// The model that it stands for.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker-agent/tiny-model");
/// The message that an agent logs once its engine serves, first or again.
const SERVES: &str = "the engine serves";
/// Longest time in which an engine is there again: its agent pauses longer with each failure.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// Times for which a slow engine runs and stands still.
const SLOW: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(120));

/// The kind of the agents' engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engines {
    /// Simulated within the agents, each for whole requests.
    Simulated,
    /// Simulated within the agents: one computes prompts for the others.
    Pairs,
    /// Processes that agents start, watch and start again.
    Processes,
}

impl Engines {
    /// Flags of an agent. Steps take long enough for answers to be hit.
    pub(crate) fn flags(self, agent: usize) -> Vec<&'static str> {
        let mut flags = vec!["--engine=sim", "--sim-step-ms=10", "--workers=1"];
        match self {
            Self::Simulated => {}
            Self::Pairs => {
                let role = if agent == 0 { "--role=prefill" } else { "--role=decode" };
                flags.extend([role, "--prefill-timeout-ms=2000"]);
            }
            Self::Processes => {
                flags =
                    vec!["--engine=vllm", "--engine-hang-timeout-s=2", "--model-name=stator-tiny"];
                flags.extend(["--engine-program", PROGRAM, "--model", MODEL]);
            }
        }
        flags
    }

    /// Further flags of a proxy.
    pub(crate) fn proxy_flags(self) -> &'static [&'static str] {
        match self {
            Self::Simulated | Self::Processes => &[],
            Self::Pairs => &["--router-split=always"],
        }
    }

    /// Lets a fault of an agent's engine happen, and undoes it: it serves again.
    pub(crate) async fn suffer(self, agent: &mut Process, step: &Step) {
        assert_eq!(self, Self::Processes, "only a process can have {:?}", step.fault);
        let engine = within(BACK_WITHIN, "an engine", engine_of(agent.id())).await;
        let lives = agent.lines(SERVES);
        match step.fault {
            Fault::KillEngine(_) => {
                signal(engine, "KILL");
                sleep(step.hold).await;
            }
            Fault::StopEngine(_) => {
                signal(engine, "STOP");
                sleep(step.hold).await;
            }
            Fault::SlowEngine(_) => {
                let end = Instant::now() + step.hold;
                while Instant::now() < end {
                    try_signal(engine, "STOP");
                    sleep(SLOW.1).await;
                    try_signal(engine, "CONT");
                    sleep(SLOW.0).await;
                }
            }
            fault => panic!("an engine has no {fault:?}"),
        }
        // One that stood still may have been given up, and another one may be on its way.
        if !try_signal(engine, "CONT") || matches!(step.fault, Fault::KillEngine(_)) {
            agent.nth_line_within(BACK_WITHIN, SERVES, lives).await;
        }
    }
}

/// Waits until an agent has an engine, and returns its process id.
async fn engine_of(agent: u32) -> u32 {
    loop {
        if let Some(engine) = find_descendant(agent, PROGRAM) {
            return engine;
        }
        sleep(PACE).await;
    }
}

/// Waits until a process says that it is healthy.
pub(crate) async fn serves(client: &Client) {
    let limit = BACK_WITHIN;
    within(limit, "readiness", async {
        while !client.try_get("/health").await.is_ok_and(|reply| reply.status == 200) {
            sleep(PACE).await;
        }
    })
    .await;
}
