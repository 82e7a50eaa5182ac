//! The life of a pod: a network, volumes, init containers one after the other, containers side by
//! side, an end with grace.

use super::container::{ContainerRunner, PodPlace, Restart, now};
use super::environment::{items, text};
use super::network::PodNetwork;
use super::status::{ContainerState, is_sidecar, pod_status};
use super::volumes::Mount;
use super::{MANAGER, Node, RETRY};
use serde_json::{Value, json};
use stator_kube::{ApiError, PODS};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Reports of containers that may wait.
const REPORTS_MAX: usize = 16;
/// The least time that a sidecar has to end after the containers beside it.
const SIDECAR_GRACE: Duration = Duration::from_secs(2);

/// Runs one pod.
pub(super) struct PodRunner {
    node: Arc<Node>,
    /// The newest state of the pod; `None` once it is gone.
    news: watch::Receiver<Option<Value>>,
    pod: Value,
    states: BTreeMap<String, ContainerState>,
    network: Option<PodNetwork>,
    /// The conditions that were reported last.
    reported: Value,
}

/// Why a pod's containers are ended.
enum Ending {
    /// The pod is deleted, with this much time.
    Deleted(Duration),
    /// The pod is gone, or all that it was to do is done.
    Over,
}

/// The containers of one kind, while they run.
struct Running {
    stop: watch::Sender<Option<Duration>>,
    tasks: JoinSet<()>,
}

impl PodRunner {
    pub(super) fn new(node: Arc<Node>, news: watch::Receiver<Option<Value>>) -> Self {
        let pod = news.borrow().clone().unwrap_or_default();
        let reported = pod["status"].clone();
        Self { node, news, pod, states: BTreeMap::new(), network: None, reported }
    }

    /// Runs the pod until it is gone.
    pub(super) async fn run(mut self) {
        let (sender, mut reports) = mpsc::channel(REPORTS_MAX);
        let mut sidecars = Running::new();
        let mut main = Running::new();
        let ending = match self.prepare().await {
            Err(ending) => ending,
            Ok(place) => {
                let place = Arc::new(place);
                let lived = self.live(&place, &sender, &mut reports, &mut sidecars, &mut main);
                lived.await
            }
        };
        let grace = match ending {
            Ending::Deleted(grace) => grace,
            Ending::Over => Duration::ZERO,
        };
        let begun = Instant::now();
        self.end(main, grace, &mut reports).await;
        let left = grace.saturating_sub(begun.elapsed());
        let left = if grace.is_zero() { left } else { left.max(SIDECAR_GRACE) };
        self.end(sidecars, left, &mut reports).await;
        while let Ok((name, state)) = reports.try_recv() {
            self.states.insert(name, state);
        }
        self.report(true).await;
        let _ = std::fs::remove_dir_all(self.folder());
        while self.news.borrow_and_update().as_ref().is_some_and(|pod| !is_deleted(pod)) {
            if self.news.changed().await.is_err() {
                break;
            }
        }
        eprintln!("{} has ended", self.pod["metadata"]["name"]);
        self.remove().await;
        if let Some(network) = self.network.take() {
            let mut addresses = self.node.addresses.lock().expect("nobody panics with it");
            addresses.give_back(network.address);
        }
    }

    /// Gives the pod its network and its volumes, as soon as all that they need is there.
    async fn prepare(&mut self) -> Result<PodPlace, Ending> {
        loop {
            match self.place().await {
                Ok(place) => return Ok(place),
                Err(message) => eprintln!("{} waits: {message}", self.pod["metadata"]["name"]),
            }
            tokio::select! {
                () = sleep(RETRY) => {}
                ending = ending(&mut self.news) => return Err(ending),
            }
        }
    }

    async fn place(&mut self) -> Result<PodPlace, String> {
        if self.network.is_none() {
            let address = self.node.addresses.lock().expect("nobody panics with it").take();
            let address = address.ok_or("no address is free")?;
            let network = PodNetwork::new(address).await;
            self.network = Some(network.map_err(|error| format!("network: {error}"))?);
        }
        let network = self.network.as_ref().expect("it was just made");
        let (address, file, folder) = (network.address, network.file(), self.folder());
        let volumes = super::volumes::prepare(&self.node, &self.pod, address, &folder).await?;
        let names = super::names::files(&self.node, &self.pod, address, &folder);
        let names = names.map_err(|error| format!("names: {error}"))?;
        let names = names.map(|(from, to)| Mount { from, to });
        Ok(PodPlace { pod: self.pod.clone(), address, network: file, folder, names, volumes })
    }

    fn folder(&self) -> std::path::PathBuf {
        self.node.settings.directory.join(text(&self.pod["metadata"]["uid"]))
    }

    /// Runs the containers until they are to end, or have ended.
    async fn live(
        &mut self,
        place: &Arc<PodPlace>,
        sender: &mpsc::Sender<(String, ContainerState)>,
        reports: &mut mpsc::Receiver<(String, ContainerState)>,
        sidecars: &mut Running,
        main: &mut Running,
    ) -> Ending {
        eprintln!("{} starts at {}", self.pod["metadata"]["name"], place.address);
        self.report(false).await;
        let policy = match self.pod["spec"]["restartPolicy"].as_str() {
            Some("Never") => Restart::Never,
            Some("OnFailure") => Restart::OnFailure,
            _ => Restart::Always,
        };
        let first: Vec<_> = items(&self.pod["spec"], "initContainers").cloned().collect();
        let others: Vec<_> = items(&self.pod["spec"], "containers").cloned().collect();
        let runner = |container: &Value, restart, running: &Running| ContainerRunner {
            node: self.node.clone(),
            place: place.clone(),
            container: container.clone(),
            restart,
            reports: sender.clone(),
            stop: running.stop.subscribe(),
            state: ContainerState::default(),
        };
        let mut runners: Vec<_> = Vec::new();
        for container in &first {
            let restart = match (is_sidecar(container), policy) {
                (true, _) => Restart::Always,
                (false, Restart::Never) => Restart::Never,
                (false, _) => Restart::OnFailure,
            };
            runners.push((container, runner(container, restart, sidecars)));
        }
        let rest: Vec<_> = others.iter().map(|of| runner(of, policy, main)).collect();
        for (container, runner) in runners {
            sidecars.tasks.spawn(runner.run());
            let name = text(&container["name"]);
            let is_past = |states: &BTreeMap<String, ContainerState>| {
                states.get(&name).is_some_and(|state| match is_sidecar(container) {
                    true => state.started,
                    false => state.is_done(),
                })
            };
            while !is_past(&self.states) {
                tokio::select! {
                    ending = ending(&mut self.news) => return ending,
                    Some(report) = reports.recv() => self.hear(report, reports).await,
                }
            }
        }
        rest.into_iter().for_each(|runner| drop(main.tasks.spawn(runner.run())));
        loop {
            tokio::select! {
                ending = ending(&mut self.news) => return ending,
                Some(report) = reports.recv() => self.hear(report, reports).await,
                // Where no container is started again, the pod is over.
                Some(_) = main.tasks.join_next() => {
                    if main.tasks.is_empty() {
                        return Ending::Over;
                    }
                }
            }
        }
    }

    /// Ends containers, with this much time.
    async fn end(
        &mut self,
        mut running: Running,
        grace: Duration,
        reports: &mut mpsc::Receiver<(String, ContainerState)>,
    ) {
        running.stop.send_replace(Some(grace));
        loop {
            tokio::select! {
                ended = running.tasks.join_next() => if ended.is_none() { return },
                Some(report) = reports.recv() => self.hear(report, reports).await,
            }
        }
    }

    /// Takes all reports that have come, and reports the pod.
    async fn hear(
        &mut self,
        first: (String, ContainerState),
        reports: &mut mpsc::Receiver<(String, ContainerState)>,
    ) {
        self.states.insert(first.0, first.1);
        while let Ok((name, state)) = reports.try_recv() {
            self.states.insert(name, state);
        }
        self.report(false).await;
    }

    /// Reports the status of the pod.
    async fn report(&mut self, is_over: bool) {
        // What others set since, a readiness gate for example, counts; times are from our reports.
        let mut pod = self.news.borrow().clone().unwrap_or_else(|| self.pod.clone());
        if let Some(reported) = self.reported["conditions"].as_array() {
            let mut conditions = reported.clone();
            let others = items(&pod["status"], "conditions")
                .filter(|other| !reported.iter().any(|known| known["type"] == other["type"]));
            conditions.extend(others.cloned());
            pod["status"]["conditions"] = conditions.into();
        }
        let address = self.network.as_ref().map(|network| network.address);
        let status = pod_status(&pod, &self.states, address, &now(), is_over);
        let metadata = &self.pod["metadata"];
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": metadata["name"], "uid": metadata["uid"] },
            "status": status,
        });
        let path = format!("{}/status", self.path());
        loop {
            match self.node.api.apply(&path, MANAGER, object.to_string().into()).await {
                Ok(_) => break,
                // The pod is gone, or another has its name.
                Err(ApiError::Absent(_) | ApiError::Conflict(_)) => break,
                Err(error) => eprintln!("{path}: {error}"),
            }
            if self.news.borrow().is_none() {
                break;
            }
            sleep(RETRY).await;
        }
        self.reported = status;
    }

    /// Says that all has ended, whereupon the server forgets the pod.
    async fn remove(&self) {
        let path = self.path();
        let mine = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
            "preconditions": { "uid": self.pod["metadata"]["uid"] } });
        while self.news.borrow().is_some() {
            let body = mine.to_string().into();
            match self.node.api.call(http::Method::DELETE, &path, body).await {
                Ok(_) | Err(ApiError::Absent(_) | ApiError::Conflict(_)) => return,
                Err(error) => eprintln!("{path}: {error}"),
            }
            sleep(RETRY).await;
        }
    }

    fn path(&self) -> String {
        let metadata = &self.pod["metadata"];
        PODS.path_of(&text(&metadata["namespace"]), &text(&metadata["name"]))
    }
}

impl Running {
    fn new() -> Self {
        Self { stop: watch::channel(None).0, tasks: JoinSet::new() }
    }
}

fn is_deleted(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

/// Waits until the pod is to end.
async fn ending(news: &mut watch::Receiver<Option<Value>>) -> Ending {
    let end = news.wait_for(|pod| pod.as_ref().is_none_or(is_deleted)).await;
    match end.ok().and_then(|pod| pod.clone()) {
        Some(pod) => {
            let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64();
            Ending::Deleted(Duration::from_secs(grace.unwrap_or_default()))
        }
        None => Ending::Over,
    }
}
