//! The processes under attack: agents, proxies, pickers and engines.

use crate::engines::{Engines, serves};
use crate::footprint::{Footprint, Peak};
use crate::gateway::Gateway;
use crate::meeting::Meeting;
use crate::plan::{AGENTS, Fault, Step};
use crate::relay::Weather;
use crate::replicas::{Replicas, listens_for_replicas};
use serde_json::Value;
use stator_tests::http::Client;
use stator_tests::process::{Process, signal};
use stator_tests::soon;
use std::net::{Ipv4Addr, SocketAddr};
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
/// A short lease, so that faults of the directory are noticed during their hold.
const LEASE_MS: &str = "--lease-ms=2000";
/// The default of 3 stops requests that kill workers; here workers die more often within one answer.
const MIGRATIONS: &str = "--migration-limit=20";
/// Pause between two questions to a process that is coming or going.
pub(crate) const PACE: Duration = Duration::from_millis(20);

/// A proxy as a load balancer sees it.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    /// A client of the proxy's address.
    pub client: Client,
    /// Counts its lives: an answer that is cut while this changes died with its proxy.
    pub life: u64,
}

/// All processes.
pub(crate) struct Fleet {
    home: PathBuf,
    meeting: Meeting,
    engines: Engines,
    agents: Vec<AsyncMutex<Process>>,
    /// The address of each agent in all its lives, as a pod's: a proxy that knew the agent finds it
    /// although nobody can register.
    addresses: Vec<SocketAddr>,
    proxies: Vec<AsyncMutex<Process>>,
    replicas: Replicas,
    /// The proxies, and the gateway where there is one.
    backends: Mutex<Vec<Option<Backend>>>,
    gateway: Option<Gateway>,
    /// Held while all agents are away, and while agents that come back cannot be found: both
    /// together would be as long as both after each other.
    findable: AsyncMutex<()>,
    peak: Peak,
}

impl Fleet {
    /// Starts a fleet with these engines that meets there, and waits until all proxies serve.
    pub(crate) async fn begin(home: PathBuf, meeting: Meeting, engines: Engines) -> Self {
        let mut fleet = Self {
            home,
            meeting,
            engines,
            agents: Vec::new(),
            addresses: Vec::new(),
            proxies: Vec::new(),
            replicas: Replicas::begin(PROXIES.len()).await,
            backends: Mutex::default(),
            gateway: None,
            findable: AsyncMutex::new(()),
            peak: Peak::default(),
        };
        let agents: Vec<_> = (0..AGENTS).map(|number| fleet.agent(number)).collect();
        for mut agent in agents {
            let serving = agent.event("serving").await;
            let endpoint = serving["endpoint"].as_str().expect("an endpoint");
            let address = endpoint.trim_start_matches("http://").parse();
            fleet.addresses.push(address.expect("an address and a port"));
            fleet.agents.push(AsyncMutex::new(agent));
        }
        let mut backends = Vec::new();
        for number in 0..PROXIES.len() {
            let (process, client) = fleet.proxy(number).await;
            backends.push(Some(Backend { client, life: 0 }));
            fleet.proxies.push(AsyncMutex::new(process));
        }
        let lasting = backends[..ROLLING].iter().flatten();
        let lasting: Vec<_> = lasting.map(|backend| backend.client.address()).collect();
        let flags = fleet.meeting.of_pickers(&lasting).await;
        fleet.gateway = Gateway::begin(lasting, flags).await;
        let gateway = fleet.gateway.as_ref();
        backends.extend(gateway.map(|it| Some(Backend { client: it.client(), life: 0 })));
        fleet.backends = Mutex::new(backends);
        fleet
    }

    /// The kind of the agents' engines.
    pub(crate) fn engines(&self) -> Engines {
        self.engines
    }

    /// The proxies alone that a load balancer would send to.
    pub(crate) fn ready_proxies(&self) -> Vec<Backend> {
        let backends = self.backends().into_iter();
        backends.filter(|(number, _)| *number < PROXIES.len()).map(|(_, backend)| backend).collect()
    }

    /// An agent whose name outlives it.
    fn agent(&self, number: usize) -> Process {
        let name = format!("--agent-id=agent-{number}");
        let discovery = self.meeting.of_agent(number);
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listen = format!("--listen={}", self.addresses.get(number).unwrap_or(&any));
        let mut args = vec![
            "agent",
            LEASE_MS,
            &listen,
            "--events-listen=off",
            "--metrics-port=0",
            &name,
            &discovery,
        ];
        args.extend(self.engines.flags(number));
        Process::start(&args)
    }

    /// A proxy, once a load balancer would send to it.
    async fn proxy(&self, number: usize) -> (Process, Client) {
        let discovery = self.meeting.of_proxy(number == LINKED);
        let replicas = self.replicas.flags(number);
        let mut args = vec!["proxy", "--http-port=0", "--metrics-port=0", MIGRATIONS, &discovery];
        args.extend(replicas.iter().map(String::as_str));
        args.extend(self.engines.proxy_flags());
        let mut process = Process::start(&args);
        self.replicas.is_at(number, listens_for_replicas(&mut process).await);
        let client = serving(&mut process).await;
        (process, client)
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
        let hold = step.hold;
        match step.fault {
            Fault::KillAgent(n) => {
                let mut process = self.agents[n].lock().await;
                self.peak.see(process.id());
                process.kill().await;
                sleep(hold).await;
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
                sleep(hold).await;
                signal(process.id(), "CONT");
            }
            Fault::KillAllAgents => self.kill_all_agents(hold).await,
            Fault::KillEngine(n) | Fault::StopEngine(n) | Fault::SlowEngine(n) => {
                let mut process = self.agents[n].lock().await;
                self.engines.suffer(&mut process, step).await;
            }
            Fault::EndProxy => self.end_proxy().await,
            Fault::KillProxy => self.kill_proxy(hold).await,
            Fault::CutLink(n) => self.meeting.links().suffer(n, Weather::Cut, hold).await,
            Fault::StallLink(n) => self.meeting.links().suffer(n, Weather::Stalled, hold).await,
            Fault::SlowLink(n) => self.meeting.links().suffer(n, Weather::Slow, hold).await,
            Fault::KillPicker(_)
            | Fault::StopPicker(_)
            | Fault::CutPicker(_)
            | Fault::StallPicker(_)
            | Fault::SlowPicker(_) => match &self.gateway {
                Some(gateway) => gateway.suffer(step.fault, hold).await,
                None => sleep(hold).await,
            },
            Fault::CutPeer(n) => self.weather_of_peer(n, Weather::Cut, hold).await,
            Fault::StallPeer(n) => self.weather_of_peer(n, Weather::Stalled, hold).await,
            Fault::SlowPeer(n) => self.weather_of_peer(n, Weather::Slow, hold).await,
            Fault::KillRegistry
            | Fault::StopRegistry
            | Fault::CutRegistry
            | Fault::StallRegistry
            | Fault::SlowRegistry
            | Fault::FillDisk
            | Fault::SlowDisk
            | Fault::HideDirectory
            | Fault::FreezeDirectory
            | Fault::RemoveDirectory
            | Fault::SkewClocks => {
                let _findable = self.findable.lock().await;
                self.meeting.suffer(step).await;
            }
        }
    }

    async fn restarted(&self, number: usize) -> Process {
        let mut process = self.agent(number);
        process.event("serving").await;
        process
    }

    async fn kill_all_agents(&self, hold: Duration) {
        let _findable = self.findable.lock().await;
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

    async fn weather_of_peer(&self, replica: usize, weather: Weather, hold: Duration) {
        match (replica.checked_sub(PROXIES.len()), &self.gateway) {
            (None, _) => self.replicas.suffer(replica, weather, hold).await,
            (Some(picker), Some(gateway)) => {
                gateway.replicas().suffer(picker, weather, hold).await;
            }
            (Some(_), None) => sleep(hold).await,
        }
    }

    /// Ends the proxy as an orchestrator does: it goes on sending until readiness is gone.
    async fn end_proxy(&self) {
        let mut process = self.proxies[ROLLING].lock().await;
        let backend = self.backend(ROLLING);
        process.terminate();
        // Its readiness is what a load balancer polls; a refused connection says the same.
        soon("an end of readiness", async {
            while backend.client.try_get("/health").await.is_ok_and(|reply| reply.status == 200) {
                sleep(PACE).await;
            }
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
        self.peak.see(process.id());
        process.kill().await;
        sleep(hold).await;
        self.start_proxy(&mut process, life + 1).await;
    }

    async fn start_proxy(&self, process: &mut Process, life: u64) {
        let (started, client) = self.proxy(ROLLING).await;
        *process = started;
        self.replace(ROLLING, Some(Backend { client, life }));
    }

    fn backend(&self, proxy: usize) -> Backend {
        let backends = self.backends.lock().expect("no holder panicked");
        backends[proxy].clone().expect("a lane has its proxy alone")
    }

    fn replace(&self, proxy: usize, backend: Option<Backend>) {
        self.backends.lock().expect("no holder panicked")[proxy] = backend;
    }

    /// Process ids of the proxies that live through the whole test.
    pub(crate) async fn lasting(&self) -> [u32; 2] {
        [self.proxies[0].lock().await.id(), self.proxies[LINKED].lock().await.id()]
    }

    /// The most that an agent, a picker or the rolling proxy took at the end of one of its lives or
    /// takes now.
    pub(crate) async fn peak(&self) -> Footprint {
        for process in self.agents.iter().chain(&self.proxies[ROLLING..]) {
            self.peak.see(process.lock().await.id());
        }
        if let Some(gateway) = &self.gateway {
            gateway.processes().await.into_iter().for_each(|picker| self.peak.see(picker));
        }
        self.peak.most()
    }

    /// The end of each process's log, for a failure.
    pub(crate) async fn logs(&self) -> String {
        let mut logs = format!("in {}\n", self.home.display());
        let agents = self.agents.iter().enumerate().map(|(n, agent)| (format!("agent-{n}"), agent));
        let proxies = PROXIES.iter().zip(&self.proxies).map(|(name, it)| ((*name).to_owned(), it));
        for (name, process) in agents.chain(proxies) {
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
    let client = Client::new(address(&listening));
    serves(&client).await;
    client
}

/// The address in an event.
fn address(event: &Value) -> SocketAddr {
    let address = event["address"].as_str().expect("an address");
    address.parse().expect("an address and a port")
}
