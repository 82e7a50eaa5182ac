//! A Kubernetes cluster: a real API server with etcd, and nothing else. Tests create the objects,
//! and play the controllers and kubelets by patching status. One whose pods run is in
//! [`crate::nodes`].

use crate::kube_api::{Api, Refusal};
use crate::kube_config::{Access, User};
use crate::kube_objects::reference;
use crate::process::signal;
use crate::tooling::{Tool, installed};
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// Where `tests/kube/build` put the server and the definitions.
const BINARIES: &str = "STATOR_TEST_KUBE";

/// Longest wait for an API server with its etcd to be ready: minutes where all tests run at once.
const START_DEADLINE: Duration = Duration::from_secs(240);

/// A running cluster with the inference extension's resources installed.
pub struct Cluster {
    access: Access,
    /// The file that says the same.
    kubeconfig: PathBuf,
    /// The tests' own server; `None` of a cluster that somebody else runs.
    own: Option<Own>,
    directory: TempDir,
    /// What the names of namespaces begin with: no other run's do.
    prefix: String,
    namespaces: AtomicUsize,
}

/// A server that the tests started.
struct Own {
    binaries: PathBuf,
    server: Option<Tool>,
    token: String,
    machinery: Machinery,
}

/// Parts of a cluster beside its API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machinery {
    /// None: tests play them.
    None,
    /// Controllers and a scheduler.
    Controllers,
    /// As [`Machinery::Controllers`], with groups of pods that are bound together or not at all.
    Gangs,
}

impl Own {
    /// Starts the server and waits until it is ready; returns its address.
    async fn serve(&mut self, directory: &Path, address: SocketAddr) -> SocketAddr {
        let mut command = Command::new(self.binaries.join("kube"));
        command.arg("-dir").arg(directory).arg("-token").arg(&self.token);
        command.args(["-host", &address.ip().to_string(), "-port", &address.port().to_string()]);
        command.arg(format!("-controllers={}", self.machinery != Machinery::None));
        command.arg(format!("-gangs={}", self.machinery == Machinery::Gangs));
        let tool = Tool::start(&mut command);
        let is_url = |line: &str| line.starts_with("https://");
        let url = tool.line_within(START_DEADLINE, "the API server's URL", is_url).await;
        self.server = Some(tool);
        url.trim_start_matches("https://").parse().expect("an address and a port")
    }
}

/// Custom resources that can be installed; the name of a directory that `tests/kube/build` made.
#[derive(Clone, Copy, Debug)]
pub enum Resources {
    /// `InferencePool`, its import, and objectives and rewrites in both groups.
    Inference,
    /// `Gateway`, `GatewayClass`, `HTTPRoute`, `GRPCRoute` and `ReferenceGrant`.
    Gateway,
    /// `ClientTrafficPolicy` of Envoy Gateway, where its module could be had.
    EnvoyGateway,
    /// `DestinationRule` of Istio, where its module could be had.
    Istio,
    /// `PodMonitor` and `PrometheusRule` of the Prometheus operator.
    Monitoring,
    /// `Certificate` and `Issuer` of cert-manager.
    CertManager,
    /// `ScaledObject` of KEDA.
    Keda,
    /// `LeaderWorkerSet`.
    LeaderWorkerSet,
    /// `PodCliqueSet` of Grove and what it makes of one.
    Grove,
}

impl Resources {
    fn folder(self) -> &'static str {
        match self {
            Self::Inference => "crds/inference",
            Self::Gateway => "crds/gateway",
            Self::EnvoyGateway => "crds/envoy-gateway",
            Self::Istio => "crds/istio",
            Self::Monitoring => "crds/monitoring",
            Self::CertManager => "crds/cert-manager",
            Self::Keda => "crds/keda",
            Self::LeaderWorkerSet => "crds/lws",
            Self::Grove => "crds/grove",
        }
    }
}

impl Cluster {
    /// The cluster that all tests of a program share, each in a [`Cluster::namespace`] of its
    /// own: the one that `tests/run` built, or else the one that its `KUBECONFIG` names, whose
    /// operator has installed the resources. `None`, and said so, where there is neither.
    ///
    /// # Panics
    ///
    /// When it does not start, or is missing in continuous integration.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<Cluster>> = OnceCell::const_new();
        let cluster = SHARED.get_or_init(async || match others() {
            Some(kubeconfig) => Some(Self::of(kubeconfig)),
            None => Self::start().await,
        });
        cluster.await.as_ref()
    }

    /// A cluster for one test, which may stop it. `None` where there is no cluster, and where the
    /// cluster is somebody else's.
    ///
    /// # Panics
    ///
    /// As [`Cluster::shared`].
    pub async fn start() -> Option<Self> {
        if let Some(kubeconfig) = others() {
            // Past the test harness, which hides what passing tests print.
            let shown = kubeconfig.display();
            let _ = writeln!(
                std::io::stderr().lock(),
                "not run: the cluster of {shown} is not to be stopped"
            );
            return None;
        }
        Self::start_at(Ipv4Addr::LOCALHOST, Machinery::None).await
    }

    /// A cluster whose API server has this address. `None` where the programs are missing.
    pub(crate) async fn start_at(host: Ipv4Addr, machinery: Machinery) -> Option<Self> {
        let binaries = installed(BINARIES, "the Kubernetes API server")?;
        let directory = TempDir::new().expect("a temporary directory");
        let random = RandomState::new();
        let token = format!("{:016x}{:016x}", random.hash_one(1), random.hash_one(2));
        let mut own = Own { binaries, server: None, token: token.clone(), machinery };
        let address = own.serve(directory.path(), SocketAddr::from((host, 0))).await;
        let certificate = directory.path().join("apiserver.crt");
        let access = Access {
            host: address.ip().to_string(),
            port: address.port(),
            authority: std::fs::read(certificate).expect("the server wrote its certificate"),
            user: User::Token(token.clone()),
        };
        let kubeconfig = directory.path().join("admin.kubeconfig");
        let cluster = Self::new(access, kubeconfig, Some(own), directory);
        cluster.write_kubeconfig("admin", &token);
        cluster.install(Resources::Inference).await;
        Some(cluster)
    }

    /// Somebody else's cluster.
    fn of(kubeconfig: PathBuf) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        Self::new(Access::read(&kubeconfig), kubeconfig, None, directory)
    }

    fn new(access: Access, kubeconfig: PathBuf, own: Option<Own>, directory: TempDir) -> Self {
        let prefix = format!("test-{:08x}", RandomState::new().hash_one(3) as u32);
        Self { access, kubeconfig, own, directory, prefix, namespaces: AtomicUsize::new(0) }
    }

    /// A client with all rights.
    pub fn api(&self) -> Api {
        Api::new(self.access.clone())
    }

    /// Host and port of the API server.
    pub(crate) fn address(&self) -> (String, u16) {
        (self.access.host.clone(), self.access.port)
    }

    /// A kubeconfig file with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// The kubeconfig of a service account, which this creates where it is missing. It has the
    /// rights that roles bound to `system:serviceaccount:NAMESPACE:NAME` give it.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn kubeconfig_for(&self, namespace: &str, account: &str) -> PathBuf {
        let token = self.token_for(namespace, account).await;
        self.write_kubeconfig(&format!("{namespace}-{account}"), &token)
    }

    /// A client with the rights of a service account, as [`Cluster::kubeconfig_for`] has.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn api_for(&self, namespace: &str, account: &str) -> Api {
        let token = self.token_for(namespace, account).await;
        Api::new(self.access.with_token(&token))
    }

    /// Creates a namespace that no other test uses.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn namespace(&self) -> Namespace {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", self.prefix);
        let (api, mut namespace) = (self.api(), reference("v1", "Namespace", "", &name));
        // By which they are found on a cluster that outlives the tests.
        namespace["metadata"]["labels"] = json!({ "stator.dev/tests": "true" });
        api.apply(&namespace).await;
        Namespace { name, api }
    }

    /// Whether custom resources can be installed.
    pub fn has(&self, resources: Resources) -> bool {
        self.folder(resources).is_some_and(|folder| folder.is_dir())
    }

    /// Installs custom resources and waits until they are served. Not on somebody else's cluster,
    /// which is to have them.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn install(&self, resources: Resources) {
        let Some(folder) = self.folder(resources) else { return };
        let files = std::fs::read_dir(folder).expect("the build made them");
        let files = files.map(|file| file.expect("the directory can be read").path());
        let mut tasks: tokio::task::JoinSet<()> =
            files.map(|file| install(self.api(), file)).collect();
        while let Some(done) = tasks.join_next().await {
            done.expect("the definition is installed");
        }
    }

    fn folder(&self, resources: Resources) -> Option<PathBuf> {
        self.own.as_ref().map(|own| own.binaries.join(resources.folder()))
    }

    /// Installs the custom resource of a manifest and waits until it is served.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn define(&self, manifest: &str) {
        let name = manifest.lines().find_map(|line| line.strip_prefix("  name: "));
        define(self.api(), name.expect("a definition has a name"), manifest.to_owned()).await;
    }

    /// Sends a signal by name to the process of the API server and etcd.
    ///
    /// # Panics
    ///
    /// Where it does not run, and as [`Cluster::stop`].
    pub fn signal(&self, name: &str) {
        let own = self.own.as_ref().expect("the tests started it");
        signal(own.server.as_ref().expect("it runs").id(), name);
    }

    /// Kills the API server and etcd, as the loss of a control plane does. Objects survive.
    ///
    /// # Panics
    ///
    /// For a cluster that [`Cluster::start`] did not start.
    pub fn stop(&mut self) {
        self.own.as_mut().expect("the tests started it").server = None;
    }

    /// Stops the API server, where it runs, and starts it at the same address.
    ///
    /// # Panics
    ///
    /// When it does not start, and as [`Cluster::stop`].
    pub async fn restart(&mut self) {
        self.stop();
        let own = self.own.as_mut().expect("the tests started it");
        let host = self.access.host.parse().expect("the tests' own has an address");
        own.serve(self.directory.path(), SocketAddr::new(host, self.access.port)).await;
    }

    /// A token of a service account, which this creates where it is missing.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn token_for(&self, namespace: &str, account: &str) -> String {
        let api = self.api();
        api.apply(&reference("v1", "ServiceAccount", namespace, account)).await;
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest" });
        let reply = api.send(hyper::Method::POST, &path, "application/json", request.to_string());
        let reply = reply.await.json();
        reply["status"]["token"]
            .as_str()
            .unwrap_or_else(|| panic!("no token in {reply}"))
            .to_owned()
    }

    /// Writes the configuration as JSON, which is YAML too.
    fn write_kubeconfig(&self, user: &str, token: &str) -> PathBuf {
        let authority = self.directory.path().join("authority.crt");
        std::fs::write(&authority, &self.access.authority).expect("a writable directory");
        let server = self.access.url();
        let cluster = json!({ "server": server, "certificate-authority": authority });
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "tests", "cluster": cluster }],
            "users": [{ "name": user, "user": { "token": token } }],
            "contexts": [{ "name": "tests", "context": { "cluster": "tests", "user": user } }],
            "current-context": "tests",
        });
        let path = self.directory.path().join(format!("{user}.kubeconfig"));
        std::fs::write(&path, config.to_string()).expect("a temporary directory can be written");
        path
    }
}

/// A namespace of one test. Nothing removes it: that would need a controller.
#[derive(Clone)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// A client with all rights.
    pub api: Api,
}

impl Namespace {
    /// Applies an object in this namespace; see [`Api::try_apply`].
    ///
    /// # Errors
    ///
    /// The server's refusal.
    pub async fn try_apply(&self, mut object: Value) -> Result<Value, Refusal> {
        object["metadata"]["namespace"] = json!(self.name);
        self.api.try_apply(&object).await
    }

    /// As [`Namespace::try_apply`].
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn apply(&self, mut object: Value) -> Value {
        object["metadata"]["namespace"] = json!(self.name);
        self.api.apply(&object).await
    }

    /// Creates a pod with these labels (an object of strings) and makes it ready at an address.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn ready_pod(&self, name: &str, labels: Value, address: IpAddr) -> Value {
        let mut pod = reference("v1", "Pod", &self.name, name);
        pod["metadata"]["labels"] = labels;
        pod["spec"] = json!({
            "nodeName": "node",
            "containers": [{ "name": "engine", "image": "engine" }],
        });
        let pod = self.apply(pod).await;
        let status = json!({
            "phase": "Running",
            "podIP": address,
            "podIPs": [{ "ip": address }],
        });
        self.api.patch_status(&pod, &status).await;
        self.set_ready(name, true).await
    }

    /// Makes a pod ready, or no longer ready, as its kubelet would.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn set_ready(&self, pod: &str, ready: bool) -> Value {
        let status = if ready { "True" } else { "False" };
        let conditions = json!([{ "type": "Ready", "status": status }]);
        let pod = reference("v1", "Pod", &self.name, pod);
        self.api.patch_status(&pod, &json!({ "conditions": conditions })).await
    }

    /// Begins to end a pod: it stays, with its status, until [`Namespace::delete_pod`].
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn terminate_pod(&self, pod: &str) {
        let pod = reference("v1", "Pod", &self.name, pod);
        self.api.delete(&pod, Duration::from_secs(30)).await;
    }

    /// Deletes a pod at once.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn delete_pod(&self, pod: &str) {
        self.api.delete(&reference("v1", "Pod", &self.name, pod), Duration::ZERO).await;
    }
}

/// The kubeconfig of a cluster that somebody else runs, where `tests/run` has built none.
fn others() -> Option<PathBuf> {
    let none = std::env::var_os(BINARIES).is_none();
    std::env::var_os("STATOR_TEST_KUBECONFIG").filter(|_| none).map(PathBuf::from)
}

/// Installs the definition in a file and waits until the server serves it.
async fn install(api: Api, file: PathBuf) {
    let text = std::fs::read_to_string(&file).expect("the build made it");
    let stem = file.file_stem().and_then(|stem| stem.to_str()).expect("a name of the build's");
    let (group, plural) = stem.split_once('_').expect("a file is named GROUP_PLURAL");
    define(api, &format!("{plural}.{group}"), text).await;
}

/// Applies a definition and waits until the server serves it.
async fn define(api: Api, name: &str, text: String) {
    let version = "apiextensions.k8s.io/v1";
    let path = format!("/apis/{version}/customresourcedefinitions/{name}");
    api.apply_text(&path, text).await.expect("a definition that the server accepts");
    let definition = reference(version, "CustomResourceDefinition", "", name);
    api.until(&definition, "the definition is established", |definition| {
        let conditions = definition["status"]["conditions"].as_array();
        conditions.is_some_and(|all| {
            all.iter().any(|one| one["type"] == "Established" && one["status"] == "True")
        })
    })
    .await;
}
