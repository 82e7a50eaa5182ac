//! The processes under attack: agents, proxies, and the links between some of them.

use crate::gateway::Gateway;
use crate::links::{Links, Mirror, Weather};
use crate::plan::{AGENTS, Fault, Step};
use serde_json::Value;
use stator_tests::http::Client;
use stator_tests::kube_etcd::Etcd;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::sleep;

/// Names of the proxies.
pub(crate) const PROXIES: [&str; 3] = ["steady", "linked", "rolling"];
/// The proxy that reaches the agents through links.
const LINKED: usize = 1;
/// The proxy that ends and dies.
const ROLLING: usize = 2;
/// Simulated time of a step: answers take long enough to be hit.
const STEP_MS: &str = "--sim-step-ms=10";
/// A short lease, so that faults of the directory are noticed during their hold.
const LEASE_MS: &str = "--lease-ms=2000";

/// A proxy as a load balancer sees it.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    /// Where it listens.
    pub client: Client,
    /// Counts its lives: an answer that is cut while this changes died with its proxy.
    pub life: u64,
}

/// Where agents and proxies meet.
pub(crate) enum Meeting {
    /// In a directory below the home, of which the linked proxy sees a mirror.
    Directory(Links),
    /// In an etcd.
    Etcd(AsyncMutex<Etcd>, String),
}

/// All processes.
pub(crate) struct Fleet {
    home: PathBuf,
    meeting: Meeting,
    agents: Vec<AsyncMutex<Process>>,
    proxies: Vec<AsyncMutex<Process>>,
    /// The proxies, and the gateway where there is one.
    backends: Mutex<Vec<Option<Backend>>>,
    gateway: Option<Gateway>,
}

impl Fleet {
    /// Starts a fleet that meets in a directory below `home`, and waits until all proxies serve.
    pub(crate) async fn in_directory(home: PathBuf) -> Self {
        let links = Links::begin(home.join("agents"), home.join("mirror"), AGENTS);
        Self::begin(home, Meeting::Directory(links)).await
    }

    /// Starts a fleet that meets in an etcd. `None`, and said so, where there is no etcd.
    pub(crate) async fn in_etcd(home: PathBuf) -> Option<Self> {
        let etcd = Etcd::start(&[]).await?;
        let url = format!("--discovery=etcd://{}/chaos", etcd.address());
        Some(Self::begin(home, Meeting::Etcd(AsyncMutex::new(etcd), url)).await)
    }

    async fn begin(home: PathBuf, meeting: Meeting) -> Self {
        let mut fleet = Self {
            home,
            meeting,
            agents: Vec::new(),
            proxies: Vec::new(),
            backends: Mutex::default(),
            gateway: None,
        };
        let agents: Vec<_> = (0..AGENTS).map(|number| fleet.agent(number)).collect();
        for mut agent in agents {
            agent.event("serving").await;
            fleet.agents.push(AsyncMutex::new(agent));
        }
        let mut backends = Vec::new();
        for number in 0..PROXIES.len() {
            let mut process = fleet.proxy(number);
            backends.push(Some(Backend { client: serving(&mut process).await, life: 0 }));
            fleet.proxies.push(AsyncMutex::new(process));
        }
        let lasting = backends[..ROLLING].iter().flatten();
        let lasting = lasting.map(|backend| backend.client.address()).collect();
        fleet.gateway = Gateway::begin(lasting).await;
        let gateway = fleet.gateway.as_ref();
        backends.extend(gateway.map(|it| Some(Backend { client: it.client(), life: 0 })));
        fleet.backends = Mutex::new(backends);
        fleet
    }

    /// The proxies alone that a load balancer would send to.
    pub(crate) fn ready_proxies(&self) -> Vec<Backend> {
        let backends = self.backends().into_iter();
        backends.filter(|(number, _)| *number < PROXIES.len()).map(|(_, backend)| backend).collect()
    }

    /// An agent whose name outlives it.
    fn agent(&self, number: usize) -> Process {
        Process::start(&[
            "agent",
            "--engine=sim",
            STEP_MS,
            LEASE_MS,
            "--workers=1",
            "--listen=127.0.0.1:0",
            "--events-listen=tcp://127.0.0.1:0",
            "--replay-listen=tcp://127.0.0.1:0",
            "--metrics-port=0",
            &format!("--agent-id=agent-{number}"),
            &self.discovery("agents"),
        ])
    }

    fn proxy(&self, number: usize) -> Process {
        let discovery = self.discovery(if number == LINKED { "mirror" } else { "agents" });
        Process::start(&["proxy", "--http-port=0", "--metrics-port=0", &discovery])
    }

    fn discovery(&self, directory: &str) -> String {
        match &self.meeting {
            Meeting::Directory(_) => {
                format!("--discovery-dir={}", self.home.join(directory).display())
            }
            Meeting::Etcd(_, url) => url.clone(),
        }
    }

    /// The links of a fleet that has some.
    fn links(&self) -> &Links {
        match &self.meeting {
            Meeting::Directory(links) => links,
            Meeting::Etcd(..) => panic!("a fleet that meets in an etcd has no links"),
        }
    }

    /// The proxies that a load balancer would send to.
    pub(crate) fn backends(&self) -> Vec<(usize, Backend)> {
        let backends = self.backends.lock().expect("no holder panicked");
        backends.iter().cloned().enumerate().filter_map(|(n, b)| Some((n, b?))).collect()
    }

    /// Whether a proxy is in another life than this one, or on its way out of it.
    pub(crate) fn has_died(&self, proxy: usize, life: u64) -> bool {
        let backends = self.backends.lock().expect("no holder panicked");
        backends[proxy].as_ref().is_none_or(|backend| backend.life != life)
    }

    /// Lets a fault happen, waits, and undoes it.
    pub(crate) async fn suffer(&self, step: &Step) {
        let hold = sleep(step.hold);
        match step.fault {
            Fault::KillAgent(n) => {
                let mut process = self.agents[n].lock().await;
                process.kill().await;
                hold.await;
                *process = self.restarted(n).await;
            }
            Fault::EndAgent(n) => {
                let mut process = self.agents[n].lock().await;
                process.terminate();
                process.ended().await;
                *process = self.restarted(n).await;
            }
            Fault::StopAgent(n) => {
                let process = self.agents[n].lock().await;
                signal(process.id(), "STOP");
                hold.await;
                signal(process.id(), "CONT");
            }
            Fault::KillAllAgents => self.kill_all_agents(step.hold).await,
            Fault::EndProxy => self.end_proxy().await,
            Fault::KillProxy => self.kill_proxy(step.hold).await,
            Fault::CutLink(n) => self.weather(n, Weather::Cut, step.hold).await,
            Fault::StallLink(n) => self.weather(n, Weather::Stalled, step.hold).await,
            Fault::SlowLink(n) => self.weather(n, Weather::Slow, step.hold).await,
            Fault::KillPicker(n) => match &self.gateway {
                Some(gateway) => gateway.kill_picker(n, step.hold).await,
                None => hold.await,
            },
            Fault::StopPicker(n) => match &self.gateway {
                Some(gateway) => gateway.stop_picker(n, step.hold).await,
                None => hold.await,
            },
            Fault::KillEtcd => {
                let Meeting::Etcd(etcd, _) = &self.meeting else { return };
                let mut etcd = etcd.lock().await;
                etcd.stop();
                hold.await;
                etcd.restart().await;
            }
            Fault::FreezeDirectory => self.mirror(Mirror::Frozen, step.hold).await,
            Fault::SkewClocks => self.mirror(Mirror::Skewed, step.hold).await,
            Fault::RemoveDirectory => {
                // Agents write into it all the time, so a removal may have to be tried again.
                while std::fs::remove_dir_all(self.home.join("agents")).is_err() {
                    tokio::task::yield_now().await;
                }
                hold.await;
            }
        }
    }

    async fn restarted(&self, number: usize) -> Process {
        let mut process = self.agent(number);
        process.event("serving").await;
        process
    }

    async fn kill_all_agents(&self, hold: Duration) {
        let mut all = Vec::new();
        for agent in &self.agents {
            all.push(agent.lock().await);
        }
        for process in &mut all {
            process.kill().await;
        }
        sleep(hold).await;
        for (number, process) in all.iter_mut().enumerate() {
            **process = self.agent(number);
        }
        for process in &mut all {
            process.event("serving").await;
        }
    }

    /// Ends the proxy as an orchestrator does: it goes on sending until readiness is gone.
    async fn end_proxy(&self) {
        let mut process = self.proxies[ROLLING].lock().await;
        let backend = self.backend(ROLLING);
        process.terminate();
        // Its readiness is what a load balancer polls; a refused connection says the same.
        soon("an end of readiness", async {
            while backend.client.try_get("/health").await.is_ok_and(|reply| reply.status == 200) {}
        })
        .await;
        self.replace(ROLLING, None);
        let ended = process.ended().await;
        assert!(ended.success(), "the proxy ended with {ended}:\n{}", process.log());
        self.start_proxy(&mut process, backend.life + 1).await;
    }

    async fn kill_proxy(&self, hold: Duration) {
        let mut process = self.proxies[ROLLING].lock().await;
        let life = self.backend(ROLLING).life;
        // Before the kill: whatever breaks from now on may have died with it.
        self.replace(ROLLING, None);
        process.kill().await;
        sleep(hold).await;
        self.start_proxy(&mut process, life + 1).await;
    }

    async fn start_proxy(&self, process: &mut Process, life: u64) {
        *process = self.proxy(ROLLING);
        let client = serving(process).await;
        self.replace(ROLLING, Some(Backend { client, life }));
    }

    fn backend(&self, proxy: usize) -> Backend {
        let backends = self.backends.lock().expect("no holder panicked");
        backends[proxy].clone().expect("a lane has its proxy alone")
    }

    fn replace(&self, proxy: usize, backend: Option<Backend>) {
        self.backends.lock().expect("no holder panicked")[proxy] = backend;
    }

    async fn weather(&self, agent: usize, weather: Weather, hold: Duration) {
        self.links().weather(agent, weather);
        sleep(hold).await;
        self.links().weather(agent, Weather::Clear);
    }

    async fn mirror(&self, mirror: Mirror, hold: Duration) {
        self.links().mirror(mirror);
        sleep(hold).await;
        self.links().mirror(Mirror::Faithful);
    }

    /// Process ids of the proxies that live through the whole test.
    pub(crate) async fn lasting(&self) -> [u32; 2] {
        [self.proxies[0].lock().await.id(), self.proxies[LINKED].lock().await.id()]
    }

    /// The end of each process's log, for a failure.
    pub(crate) async fn logs(&self) -> String {
        let mut logs = String::new();
        for (name, process) in PROXIES.iter().zip(&self.proxies) {
            let log = process.lock().await.log();
            let last: Vec<_> = log.lines().rev().take(40).collect();
            let last: Vec<_> = last.into_iter().rev().collect();
            logs += &format!("== {name}\n{}\n", last.join("\n"));
        }
        logs
    }
}

/// Waits until a proxy is ready, as a load balancer does, and returns a client of it.
async fn serving(process: &mut Process) -> Client {
    let listening = process.event("listening").await;
    let address: SocketAddr = address(&listening);
    let client = Client::new(address);
    soon("readiness", async {
        while !client.try_get("/health").await.is_ok_and(|reply| reply.status == 200) {}
    })
    .await;
    client
}

fn address(event: &Value) -> SocketAddr {
    let address = event["address"].as_str().expect("an address");
    address.parse().expect("an address and a port")
}
