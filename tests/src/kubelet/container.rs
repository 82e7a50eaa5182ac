//! One container: its processes, one after the other, and their probes.

use super::Node;
use super::environment::{command, environment, text};
use super::probe::{Probe, Target, execute};
use super::process::shell;
use super::status::{ContainerPhase, ContainerState, Termination};
use super::volumes::{Mount, mounts};
use serde_json::Value;
use stator_kube::meta::timestamp;
use std::collections::BTreeMap;
use std::fs::File;
use std::future::pending;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// First pause before a container that ended is started again; doubles with each start.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The least time that a process has to end after the work before its end.
const HOOK_GRACE: Duration = Duration::from_secs(2);
/// A container that ran for longer has the first pause again.
const SOUND_AFTER: Duration = Duration::from_secs(60);

/// Takes the host name `$1`, makes a root of this machine's below the folder `$2`, with the whole
/// machine at `/mnt`, and goes on there with the script `$3`.
const OUTSIDE: &str = r#"
echo "$1" >/proc/sys/kernel/hostname
scratch=$2
inside=$3
shift 3
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay overlay "$scratch/root" \
    -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work"
for part in dev proc sys; do
    mount --rbind "/$part" "$scratch/root/$part"
done
mount --rbind / "$scratch/root/mnt"
exec chroot "$scratch/root" sh -ec "$inside" sh "$@"
"#;

/// Mounts pairs of paths up to `--`, goes to the folder that follows, and becomes the command that
/// is left.
const INSIDE: &str = r#"
while [ "$1" != -- ]; do
    if [ -d "/mnt$1" ]; then
        mkdir -p "$2"
    else
        mkdir -p "${2%/*}"
        [ ! -L "$2" ] || rm "$2"
        [ -e "$2" ] || : >"$2"
    fi
    mount --bind "/mnt$1" "$2"
    shift 2
done
umount -l /mnt
mkdir -p "$2"
cd "$2"
shift 2
exec "$@"
"#;

/// Parts that the containers of a pod share.
#[derive(Debug)]
pub(super) struct PodPlace {
    pub(super) pod: Value,
    pub(super) address: Ipv4Addr,
    /// The file of the network namespace.
    pub(super) network: String,
    /// Folder of the pod.
    pub(super) folder: PathBuf,
    /// Files by which names are found.
    pub(super) names: [Mount; 2],
    /// Folders of the volumes, by name.
    pub(super) volumes: BTreeMap<String, PathBuf>,
}

/// Rule by which a container that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Restart {
    Always,
    OnFailure,
    Never,
}

/// Runs one container.
pub(super) struct ContainerRunner {
    pub(super) node: Arc<Node>,
    pub(super) place: Arc<PodPlace>,
    pub(super) container: Value,
    pub(super) restart: Restart,
    /// Receiver of changes of the state, with the container's name.
    pub(super) reports: mpsc::Sender<(String, ContainerState)>,
    /// The time that the container has to end, once it is to end.
    pub(super) stop: watch::Receiver<Option<Duration>>,
    pub(super) state: ContainerState,
}

impl ContainerRunner {
    /// Runs until the container will not be started again.
    pub(super) async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            match self.start().await {
                Ok(child) => {
                    let status = self.watch_over(child).await;
                    self.ended(status).await;
                    let again = match self.restart {
                        Restart::Always => true,
                        Restart::OnFailure => !status.success(),
                        Restart::Never => false,
                    };
                    if !again || self.stop.borrow().is_some() {
                        return;
                    }
                }
                Err(message) => self.wait_for("CreateContainerError", message).await,
            }
            if begun.elapsed() > SOUND_AFTER {
                pause = PAUSE_MIN;
            }
            tokio::select! {
                () = sleep(pause) => {}
                _ = stopped(&mut self.stop) => return,
            }
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    /// Starts a process.
    ///
    /// # Errors
    ///
    /// Fault: something that the container needs is not there.
    async fn start(&mut self) -> Result<Child, String> {
        let settings = &self.node.settings;
        let image = text(&self.container["image"]);
        let entry = settings.images.get(&image);
        let entry = entry.or_else(|| settings.images.get(short_name(&image)));
        let Some(entry) = entry else {
            self.wait_for("ImagePullBackOff", format!("no program stands for {image}")).await;
            return Err(format!("no program stands for the image {image}"));
        };
        let (pod, address) = (&self.place.pod, self.place.address);
        let variables = environment(&self.node, pod, &self.container, address).await?;
        let mut words = command(&self.container, entry, &variables);
        words.splice(..0, self.user());
        let child = self.spawn(&words, &variables).map_err(|error| error.to_string())?;
        if !matches!(self.state.phase, ContainerPhase::Waiting { reason: "ContainerCreating", .. })
        {
            self.state.restarts += 1;
        }
        self.state.phase = ContainerPhase::Running { since: now() };
        self.report().await;
        Ok(child)
    }

    fn spawn(
        &self,
        words: &[String],
        variables: &BTreeMap<String, String>,
    ) -> std::io::Result<Child> {
        let name = text(&self.container["name"]);
        let attempt = self.state.restarts;
        let scratch = self.place.folder.join(format!("{name}-{}", now().replace(':', "")));
        std::fs::create_dir_all(&scratch)?;
        let image = text(&self.container["image"]);
        let of_image = self.node.settings.image_files.get(short_name(&image));
        let files = self.node.settings.files.iter().chain(of_image.into_iter().flatten());
        let files = files.map(|(to, from)| Mount { from: from.clone(), to: to.clone() });
        let own = mounts(&self.container, &self.place.volumes).map_err(std::io::Error::other)?;
        let mut outside = Command::new("nsenter");
        outside.arg(format!("--net={}", self.place.network));
        outside.args(["--", "unshare", "--uts", "--mount", "--propagation=private", "--"]);
        let metadata = &self.place.pod["metadata"];
        let (namespace, pod) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let log = format!("logs/{namespace}_{pod}_{name}_{attempt}.log");
        let log = self.node.settings.directory.join(log);
        let log = File::options().append(true).create(true).open(log)?;
        let inner = shell(OUTSIDE);
        outside.arg(inner.as_std().get_program()).args(inner.as_std().get_args());
        outside.arg(pod).arg(&scratch).arg(INSIDE);
        for mount in files.chain(self.place.names.iter().cloned()).chain(own) {
            outside.arg(mount.from).arg(mount.to);
        }
        let folder = self.container["workingDir"].as_str().unwrap_or("/");
        outside.args(["--", folder]).args(words).env_clear().envs(variables);
        outside.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // By the group all that the container started ends with it.
        outside.process_group(0).kill_on_drop(true).spawn()
    }

    /// Words before the command, by which it runs as the user that the pod names.
    fn user(&self) -> Vec<String> {
        let said = |name: &str| {
            let own = &self.container["securityContext"][name];
            own.as_u64().or(self.place.pod["spec"]["securityContext"][name].as_u64())
        };
        let Some(user) = said("runAsUser") else { return Vec::new() };
        let group = said("runAsGroup").unwrap_or(user);
        let words =
            ["setpriv", "--clear-groups", &format!("--reuid={user}"), &format!("--regid={group}")];
        words.map(str::to_owned).to_vec()
    }

    /// Waits for the end of a process, and ends it when it is to end or a probe says so.
    async fn watch_over(&mut self, mut child: Child) -> ExitStatus {
        let process = child.id().unwrap_or_default();
        let mut stop = self.stop.clone();
        let grace = self.place.pod["spec"]["terminationGracePeriodSeconds"].as_u64();
        let grace = Duration::from_secs(grace.unwrap_or(30));
        let status = tokio::select! {
            status = child.wait() => status,
            grace = stopped(&mut stop) => {
                let begun = Instant::now();
                let _ = timeout(grace, self.before_end(process)).await;
                let left = grace.saturating_sub(begun.elapsed());
                end(&mut child, if grace.is_zero() { left } else { left.max(HOOK_GRACE) }).await
            }
            why = self.probe(process) => {
                eprintln!("{} is ended: {why}", self.container["name"]);
                end(&mut child, grace).await
            }
        };
        signal(&format!("-{process}"), "KILL").await;
        status.unwrap_or_default()
    }

    /// Does what the container wants done before its process is asked to end.
    async fn before_end(&self, process: u32) {
        let hook = &self.container["lifecycle"]["preStop"];
        if let Some(seconds) = hook["sleep"]["seconds"].as_u64() {
            sleep(Duration::from_secs(seconds)).await;
        } else if hook["exec"].is_object()
            && let Err(error) = execute(&hook["exec"], process).await
        {
            eprintln!("{}: preStop: {error}", self.container["name"]);
        }
    }

    /// Probes until the process has to be ended; returns the reason.
    async fn probe(&mut self, process: u32) -> String {
        let (container, place) = (self.container.clone(), self.place.clone());
        let second = self.node.settings.probe_second;
        let target = Target { container: &container, address: place.address, process };
        let [startup, readiness, liveness] = ["startupProbe", "readinessProbe", "livenessProbe"]
            .map(|name| Probe::read(&container, name, second));
        if let Some(mut startup) = startup
            && let Err(why) = startup.next(target).await
        {
            return format!("startup probe: {why}");
        }
        (self.state.started, self.state.ready) = (true, readiness.is_none());
        self.report().await;
        let ready = async {
            let Some(mut probe) = readiness else { return pending::<String>().await };
            loop {
                let result = probe.next(target).await;
                if self.state.ready != result.is_ok() {
                    self.state.ready = result.is_ok();
                    self.state.unready_because = result.err().unwrap_or_default();
                    self.report().await;
                }
            }
        };
        let alive = async {
            match liveness {
                Some(mut probe) => format!("liveness probe: {}", probe.until_bad(target).await),
                None => pending().await,
            }
        };
        tokio::select! {
            why = alive => why,
            why = ready => why,
        }
    }

    async fn ended(&mut self, status: ExitStatus) {
        let since = match &self.state.phase {
            ContainerPhase::Running { since } => since.clone(),
            _ => now(),
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        let termination = Termination { code, since, until: now() };
        self.state.last = Some(termination.clone());
        self.state.phase = ContainerPhase::Ended(termination);
        (self.state.started, self.state.ready) = (false, false);
        self.report().await;
    }

    async fn wait_for(&mut self, reason: &'static str, message: String) {
        eprintln!("{} waits: {reason}: {message}", self.container["name"]);
        self.state.phase = ContainerPhase::Waiting { reason, message };
        self.report().await;
    }

    async fn report(&self) {
        // The pod's runner listens until its containers have ended.
        let _ = self.reports.send((text(&self.container["name"]), self.state.clone())).await;
    }
}

/// The name of an image without registry and tag.
fn short_name(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or_default();
    name.split([':', '@']).next().unwrap_or_default()
}

/// Waits until the container is to end; returns the time that it has.
async fn stopped(stop: &mut watch::Receiver<Option<Duration>>) -> Duration {
    match stop.wait_for(Option::is_some).await {
        Ok(grace) => grace.unwrap_or_default(),
        Err(_) => Duration::ZERO,
    }
}

/// Asks a process to end, and kills it when it has not after `grace`.
async fn end(child: &mut Child, grace: Duration) -> std::io::Result<ExitStatus> {
    if let Some(process) = child.id().filter(|_| !grace.is_zero()) {
        signal(&process.to_string(), "TERM").await;
        if let Ok(status) = timeout(grace, child.wait()).await {
            return status;
        }
    }
    child.start_kill()?;
    child.wait().await
}

/// Sends a signal to a process, or with a minus to a group, that may have ended.
async fn signal(process: &str, name: &str) {
    let mut kill = Command::new("kill");
    let _ = kill.args([&format!("-{name}"), "--", process]).stderr(Stdio::null()).status().await;
}

pub(super) fn now() -> String {
    timestamp(SystemTime::now())
}
