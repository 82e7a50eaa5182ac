//! Facts that the checks judge: plain values, with `None` or an error where nothing could be read.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Facts about this machine, or about the container that the doctor runs in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineFacts {
    /// GPUs.
    pub gpus: GpuFacts,
    /// Ports of RDMA devices.
    pub rdma: RdmaFacts,
    /// Size of `/dev/shm`, bytes.
    pub shm_bytes: Option<u64>,
    /// Memory that a new process can have, bytes: the smaller of the machine's and the cgroup's.
    pub memory_bytes: Option<u64>,
    /// Limits of this process.
    pub limits: LimitFacts,
    /// Huge pages.
    pub huge_pages: HugePageFacts,
    /// Content of `/proc/sys/kernel/io_uring_disabled`: 0 is on, 2 is off.
    pub io_uring_disabled: Option<u8>,
    /// Ports that must be free, with the error of taking each.
    pub ports: Vec<(u16, Option<String>)>,
}

/// Facts about GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// NVIDIA display devices on the PCI bus.
    pub on_bus: usize,
    /// Version of NVIDIA's kernel driver: `580.95.05`.
    pub driver: Option<String>,
    /// Models of the GPUs that the driver shows.
    pub models: Vec<String>,
    /// The error of opening `/dev/nvidiactl`, if it cannot be opened.
    pub device_error: Option<String>,
    /// Whether the driver's library `libcuda.so.1` was found.
    pub has_library: bool,
}

/// Facts about RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaFacts {
    /// Ports of all devices.
    pub ports: Vec<RdmaPort>,
    /// The error of opening a device of `/dev/infiniband`, if none can be opened.
    pub device_error: Option<String>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// Device and port: `mlx5_0/1`.
    pub name: String,
    /// Whether its link is up.
    pub is_active: bool,
    /// Rate as the kernel writes it: `400 Gb/sec (4X NDR)`.
    pub rate: String,
}

/// Limits of a process; `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitFacts {
    /// Open files.
    pub files: Option<u64>,
    /// Locked memory, bytes.
    pub locked_bytes: Option<u64>,
    /// Processes and threads, of the user or of the cgroup, whichever are fewer.
    pub threads: Option<u64>,
}

/// Facts about huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugePageFacts {
    /// Choice in `/sys/kernel/mm/transparent_hugepage/enabled`: `always`, `madvise`, `never`.
    pub transparent: Option<String>,
    /// Memory reserved for explicit huge pages that nobody uses, bytes.
    pub reserved_free_bytes: u64,
}

/// Facts about a folder with a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The folder.
    pub folder: PathBuf,
    /// The error of listing it.
    pub error: Option<String>,
    /// Architectures of its `config.json`, or why they could not be read.
    pub architectures: Option<Result<Vec<String>, String>>,
    /// Whether it has `tokenizer.json`.
    pub has_tokenizer: bool,
    /// Whether it has a chat template.
    pub has_chat_template: bool,
    /// Files with weights.
    pub weights: Vec<WeightFile>,
    /// Files that the index of the weights names and that are not there.
    pub missing: Vec<String>,
}

/// A file with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFile {
    /// Name in the folder.
    pub name: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// Form of its content.
    pub content: WeightContent,
}

/// Form of a file with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightContent {
    /// Of the size, in bytes, that its head declares.
    Declared(u64),
    /// A pointer of Git LFS in place of the weights.
    Pointer,
    /// Reason why it was not read.
    Unreadable(String),
}

/// Facts about an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// Its program, if it was found.
    pub program: Option<PathBuf>,
    /// Its version, or why it could not be learnt.
    pub version: Result<String, String>,
}

/// Clock of a server, compared with this machine's.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockFacts {
    /// The server.
    pub server: String,
    /// Seconds that the server is ahead, or why that is unknown. It is known to 1 s.
    pub ahead_s: Result<f64, String>,
}

/// Facts about a cluster.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// The namespace that was examined.
    pub namespace: String,
    /// Version of the API server, or why there is none.
    pub version: Result<String, String>,
    /// The API server's clock.
    pub clock: Option<ClockFacts>,
    /// Whether the namespace is there; `None` if that is not to be seen.
    pub has_namespace: Option<bool>,
    /// Versions of each API group.
    pub groups: BTreeMap<String, Vec<String>>,
    /// Service of the conversion webhook of Dynamo's graphs, if there is one.
    pub graphs_converted_by: Option<String>,
    /// Answers to the questions after rights.
    pub rights: Vec<RightFact>,
    /// Nodes, or why they are not to be seen.
    pub nodes: Result<Vec<NodeFact>, String>,
}

/// Answer to a question after a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RightFact {
    /// The right.
    pub right: Right,
    /// Whether the account has it, or why that is unknown.
    pub allowed: Result<bool, String>,
}

/// A right in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// `list`, `patch`, …
    pub verb: String,
    /// API group; empty is the core group.
    pub group: String,
    /// Plural of the kind, with its subresource: `pods`, `deployments/scale`.
    pub resource: String,
    /// Name of the one object that it is about; empty is all of them.
    pub name: String,
}

/// A node of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFact {
    /// Its name.
    pub name: String,
    /// Whether it is ready.
    pub is_ready: bool,
    /// GPUs that pods can ask for.
    pub gpus: u64,
    /// Whether it carries a label that says that it has GPUs.
    pub is_labelled_gpu: bool,
    /// RDMA resources that pods can ask for.
    pub rdma: u64,
}
