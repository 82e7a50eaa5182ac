//! The schedule of faults: a pure function of the seed.
//!
//! Faults come in lanes. The faults of a lane follow one another, each undone before the next
//! begins; lanes run beside each other, so that an agent may be killed while the discovery
//! directory is away and a link stands still.

use crate::fleet::PROXIES;
use crate::gateway::PICKERS;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::fmt;
use std::time::Duration;

/// Agents of the fleet.
pub(crate) const AGENTS: usize = 3;

/// Something that breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An agent is killed, and started again after the hold.
    KillAgent(usize),
    /// An agent is asked to end, and started again once it has.
    EndAgent(usize),
    /// An agent stands still during the hold.
    StopAgent(usize),
    /// All agents are killed at once, and started again after the hold.
    KillAllAgents,
    /// The proxy that nothing else depends on is asked to end, and started again once it has.
    EndProxy,
    /// The rolled proxy is killed, and started again after the hold.
    KillProxy,
    /// The connections from the linked proxy to an agent break, and new ones are refused.
    CutLink(usize),
    /// The connections between linked proxy and agent stay, and carry nothing during the hold.
    StallLink(usize),
    /// The connections between linked proxy and agent carry each piece late.
    SlowLink(usize),
    /// A picker is killed, and started again after the hold.
    KillPicker(usize),
    /// A picker stands still during the hold.
    StopPicker(usize),
    /// The connections from Envoy to a picker break, and new ones are refused.
    CutPicker(usize),
    /// The connections from Envoy to a picker stay, and carry nothing during the hold.
    StallPicker(usize),
    /// The connections from Envoy to a picker carry each piece late.
    SlowPicker(usize),
    /// An agent's engine is killed; its agent starts it again.
    KillEngine(usize),
    /// An agent's engine stands still during the hold.
    StopEngine(usize),
    /// An agent's engine stands still most of the time.
    SlowEngine(usize),
    /// The connections of other replicas to one break, and new ones are refused. Proxies have the
    /// first numbers, pickers the last ones.
    CutPeer(usize),
    /// The connections of other replicas to one stay, and carry nothing during the hold.
    StallPeer(usize),
    /// The connections of other replicas to one carry each piece late.
    SlowPeer(usize),
    /// The registry of agents, an etcd or a cluster's API server, is killed and started again.
    KillRegistry,
    /// The registry stands still during the hold.
    StopRegistry,
    /// The linked proxy's connections to the registry break, and new ones are refused.
    CutRegistry,
    /// The connections of the linked proxy to the registry stay, and carry nothing during the hold.
    StallRegistry,
    /// The connections of the linked proxy to the registry carry each piece late.
    SlowRegistry,
    /// The file system of the discovery directory is full.
    FillDisk,
    /// The linked proxy sees what agents write seconds late.
    SlowDisk,
    /// The linked proxy sees no discovery directory.
    HideDirectory,
    /// The discovery directory takes no writes: records grow old in it.
    FreezeDirectory,
    /// The discovery directory is removed.
    RemoveDirectory,
    /// The linked proxy reads records of agents whose clocks are an hour behind.
    SkewClocks,
}

/// A fault with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Quiet time before it.
    pub pause: Duration,
    /// The fault.
    pub fault: Fault,
    /// Duration of the fault.
    pub hold: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for {:?}", self.fault, self.hold)
    }
}

/// Faults that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Agents.
    Agents,
    /// Proxies.
    Proxies,
    /// Links between the linked proxy and the agents.
    Links,
    /// Pickers of the gateway, and the links that Envoy reaches them through.
    Pickers,
    /// The discovery directory and its disk.
    Discovery,
    /// The etcd or the cluster that takes the directory's place.
    Registry,
    /// Links between replicas that tell each other what they do.
    Peers,
    /// Engines that are processes of their own.
    Engines,
}

/// Lanes of a fleet that meets in a directory.
pub(crate) const WITH_DIRECTORY: [Lane; 6] =
    [Lane::Agents, Lane::Proxies, Lane::Links, Lane::Pickers, Lane::Discovery, Lane::Peers];
/// Lanes of a fleet that meets in an etcd or a cluster; links are between a mirrored directory's
/// readers.
pub(crate) const WITH_REGISTRY: [Lane; 5] =
    [Lane::Agents, Lane::Proxies, Lane::Pickers, Lane::Registry, Lane::Peers];
/// Lanes of a fleet whose engines are processes.
pub(crate) const WITH_ENGINES: [Lane; 4] =
    [Lane::Agents, Lane::Engines, Lane::Proxies, Lane::Links];

/// The endless schedule of one lane.
pub(crate) struct Schedule {
    lane: Lane,
    random: ChaCha8Rng,
}

impl Schedule {
    /// The schedule that this seed gives the lane.
    pub(crate) fn new(seed: u64, lane: Lane) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(lane as u64);
        Self { lane, random }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.next_u32() % limit
    }

    fn between(&mut self, least_ms: u32, most_ms: u32) -> Duration {
        Duration::from_millis((least_ms + self.below(most_ms - least_ms + 1)).into())
    }

    fn fault(&mut self) -> Fault {
        let agent = self.below(AGENTS as u32) as usize;
        let replica = self.below((PROXIES.len() + PICKERS) as u32) as usize;
        match (self.lane, self.below(8)) {
            (Lane::Agents, 0..=2) => Fault::KillAgent(agent),
            (Lane::Agents, 3 | 4) => Fault::EndAgent(agent),
            (Lane::Agents, 5 | 6) => Fault::StopAgent(agent),
            (Lane::Agents, _) => Fault::KillAllAgents,
            (Lane::Proxies, 0..=4) => Fault::EndProxy,
            (Lane::Proxies, _) => Fault::KillProxy,
            (Lane::Links, 0..=2) => Fault::CutLink(agent),
            (Lane::Links, 3..=5) => Fault::StallLink(agent),
            (Lane::Links, _) => Fault::SlowLink(agent),
            (Lane::Pickers, 0..=2) => Fault::KillPicker(replica % PICKERS),
            (Lane::Pickers, 3 | 4) => Fault::StopPicker(replica % PICKERS),
            (Lane::Pickers, 5) => Fault::CutPicker(replica % PICKERS),
            (Lane::Pickers, 6) => Fault::StallPicker(replica % PICKERS),
            (Lane::Pickers, _) => Fault::SlowPicker(replica % PICKERS),
            (Lane::Registry, 0..=2) => Fault::KillRegistry,
            (Lane::Registry, 3 | 4) => Fault::StopRegistry,
            (Lane::Registry, 5) => Fault::CutRegistry,
            (Lane::Registry, 6) => Fault::StallRegistry,
            (Lane::Registry, _) => Fault::SlowRegistry,
            (Lane::Discovery, 0) => Fault::FreezeDirectory,
            (Lane::Discovery, 1 | 2) => Fault::RemoveDirectory,
            (Lane::Discovery, 3) => Fault::SkewClocks,
            (Lane::Discovery, 4 | 5) => Fault::FillDisk,
            (Lane::Discovery, 6) => Fault::SlowDisk,
            (Lane::Discovery, _) => Fault::HideDirectory,
            (Lane::Peers, 0..=2) => Fault::CutPeer(replica),
            (Lane::Peers, 3..=5) => Fault::StallPeer(replica),
            (Lane::Peers, _) => Fault::SlowPeer(replica),
            (Lane::Engines, 0..=2) => Fault::KillEngine(agent),
            (Lane::Engines, 3..=5) => Fault::StopEngine(agent),
            (Lane::Engines, _) => Fault::SlowEngine(agent),
        }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let pause = self.between(500, 3000);
        let fault = self.fault();
        let hold = match self.lane {
            // Longer than a lease, or the fault would not be noticed.
            Lane::Discovery | Lane::Registry => self.between(4000, 8000),
            _ => self.between(100, 4000),
        };
        Some(Step { pause, fault, hold })
    }
}

/// The same seed gives the same faults, and each lane has every fault of its own.
#[test]
fn a_seed_is_a_schedule() {
    for (lane, expected) in [
        (Lane::Agents, 4),
        (Lane::Proxies, 2),
        (Lane::Links, 3),
        (Lane::Pickers, 5),
        (Lane::Discovery, 6),
        (Lane::Registry, 5),
        (Lane::Peers, 3),
        (Lane::Engines, 3),
    ] {
        let steps = |seed| Schedule::new(seed, lane).take(200).collect::<Vec<_>>();
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
        let kinds: std::collections::HashSet<_> =
            steps(7).iter().map(|step| std::mem::discriminant(&step.fault)).collect();
        assert_eq!(kinds.len(), expected, "{lane:?}");
    }
}
