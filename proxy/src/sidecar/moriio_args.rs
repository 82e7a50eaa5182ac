//! Flags of hand-overs over MoRI-IO, by the names of llm-d's sidecar.
//!
//! Source: `pkg/sidecar/proxy/options.go` and `MORIIO_README.md` of llm-d's router.

use super::llmd;
use super::names::NameSettings;
use clap::{ArgAction, Args};
use stator_handover::Connector;
use stator_handover::moriio::{Hosts, Ports, Setup};
use std::net::IpAddr;
use std::time::Duration;

/// Ports of engines that were told no others.
///
/// Source: vLLM 0.32.0, `MoRIIOConstants`.
const HANDSHAKE_PORT: u16 = 6301;
const NOTIFY_PORT: u16 = 61005;
/// Longest wait of decode for prefill beside it.
const WAIT: Duration = Duration::from_secs(30);

/// Flags for engines with vLLM's MoRIIOConnector.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "MoRI-IO")]
pub(crate) struct MoriioArgs {
    /// The engines run in MoRI-IO's WRITE mode: prefill is told where decode is and writes its KV
    /// there. Needs `connector` to be `nixlv2`, by which llm-d calls it, or `moriio`.
    #[arg(long, env = "STATOR_MORIIO_WRITE_MODE", default_value_t = false, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = llmd::boolean,
          action = ArgAction::Set, value_name = "BOOL")]
    pub moriio_write_mode: bool,

    /// Ask both engines at once in WRITE mode; decode's answer goes out once prefill has answered.
    /// Where prefill fails, the KV blocks that decode had made room for are lost to its engine.
    #[arg(long, env = "STATOR_MORIIO_PARALLEL_DISPATCH", default_value_t = false, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = llmd::boolean,
          action = ArgAction::Set, value_name = "BOOL")]
    pub moriio_parallel_dispatch: bool,

    /// Longest wait for prefill, and for KV, where both are asked at once: `30s`, which is the
    /// default, or less where `prefill-timeout-ms` is less; up to an hour.
    #[arg(long, env = "STATOR_MORIIO_PARALLEL_DECODE_WAIT_TIMEOUT", value_name = "DURATION",
          value_parser = llmd::wait)]
    pub moriio_parallel_decode_wait_timeout: Option<Duration>,

    /// Address or name at which prefill engines reach the engine beside this proxy; without it,
    /// POD_IP. WRITE mode needs it.
    #[arg(long, env = "STATOR_MORIIO_LOCAL_POD_IP", value_name = "HOST")]
    pub moriio_local_pod_ip: Option<String>,

    /// The same, as Kubernetes' downward API gives it.
    #[arg(long, env = "POD_IP", hide = true)]
    pub pod_ip: Option<String>,

    /// Handshake port of the first rank of the engine beside this proxy, 6301 by default.
    #[arg(long, env = "STATOR_MORIIO_DECODE_HANDSHAKE_PORT", value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub moriio_decode_handshake_port: Option<u16>,

    /// Notify port of the first rank of the engine beside this proxy, 61005 by default.
    #[arg(long, env = "STATOR_MORIIO_DECODE_NOTIFY_PORT", value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub moriio_decode_notify_port: Option<u16>,

    /// Handshake port of the first rank of prefill engines, 6301 by default.
    #[arg(long, env = "STATOR_MORIIO_PREFILL_HANDSHAKE_PORT", value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub moriio_prefill_handshake_port: Option<u16>,

    /// Notify port of the first rank of prefill engines, 61005 by default.
    #[arg(long, env = "STATOR_MORIIO_PREFILL_NOTIFY_PORT", value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub moriio_prefill_notify_port: Option<u16>,

    /// Tensor-parallel size of the engines, 1 by default.
    #[arg(long, env = "STATOR_MORIIO_TP_SIZE", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub moriio_tp_size: Option<u16>,

    /// Data-parallel ranks behind the engines' ports, of all pods together, 1 by default. With more
    /// than one each request is for a rank, in READ mode too.
    #[arg(long, env = "STATOR_MORIIO_DP_SIZE", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub moriio_dp_size: Option<u16>,

    /// Data-parallel ranks of each pod; 0, the default, is all of them.
    #[arg(long, env = "STATOR_MORIIO_DP_SIZE_LOCAL", value_name = "N",
          value_parser = clap::value_parser!(u16).range(0..=4096))]
    pub moriio_dp_size_local: Option<u16>,

    /// Addresses or names of the prefill engine's pods in the order of their ranks, if it has
    /// several.
    #[arg(long, env = "STATOR_MORIIO_REMOTE_HOSTS", value_name = "HOST", value_delimiter = ',')]
    pub moriio_remote_hosts: Vec<String>,

    /// Addresses or names of the decode engine's pods in the order of their ranks, if it has several.
    #[arg(long, env = "STATOR_MORIIO_DECODE_HOSTS", value_name = "HOST", value_delimiter = ',')]
    pub moriio_decode_hosts: Vec<String>,

    /// Age, in seconds, from which on the address of a pod's name is looked up again.
    #[arg(long, env = "MORIIO_DNS_RESOLVE_TTL_SECONDS", hide = true, default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub moriio_dns_resolve_ttl_seconds: u64,

    /// Longest wait, in seconds, for such a lookup.
    #[arg(long, env = "MORIIO_DNS_RESOLVE_TIMEOUT_SECONDS", hide = true, default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=60))]
    pub moriio_dns_resolve_timeout_seconds: u64,
}

/// Checked settings of hand-overs over MoRI-IO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MoriioSettings {
    pub setup: Setup,
    /// Their names.
    pub hosts: Hosts,
    pub names: NameSettings,
}

impl MoriioArgs {
    /// The connector to use if `nixlv2` or `moriio` is configured.
    pub(crate) fn connector(&self, configured: Connector) -> Connector {
        let is_its = matches!(configured, Connector::Nixlv2 | Connector::Moriio);
        match (self.moriio_write_mode && is_its, self.moriio_parallel_dispatch) {
            (true, false) => Connector::MoriioWrite,
            (true, true) => Connector::MoriioParallel,
            // NIXL's engines are asked for no rank.
            (false, _) if is_its && self.ranks() > 1 => Connector::Moriio,
            (false, _) => configured,
        }
    }

    /// Longest wait for prefill and its KV.
    pub(crate) fn timeout(&self, connector: Connector, usual: Duration) -> Duration {
        let wait = self.moriio_parallel_decode_wait_timeout.filter(|wait| !wait.is_zero());
        match connector {
            Connector::MoriioParallel => usual.min(wait.unwrap_or(WAIT)),
            _ => usual,
        }
    }

    pub(crate) fn settings(&self) -> MoriioSettings {
        let ports = |handshake: Option<u16>, notify: Option<u16>| Ports {
            handshake: handshake.unwrap_or(HANDSHAKE_PORT),
            notify: notify.unwrap_or(NOTIFY_PORT),
        };
        MoriioSettings {
            setup: Setup {
                prefill: ports(self.moriio_prefill_handshake_port, self.moriio_prefill_notify_port),
                decode: ports(self.moriio_decode_handshake_port, self.moriio_decode_notify_port),
                tensor_parallel: self.moriio_tp_size.unwrap_or(1),
                ranks: self.ranks(),
                ranks_of_pod: self.moriio_dp_size_local.filter(|ranks| *ranks > 0),
            },
            hosts: Hosts {
                own: self.own().unwrap_or_default(),
                prefill: hosts(&self.moriio_remote_hosts),
                decode: hosts(&self.moriio_decode_hosts),
            },
            names: NameSettings {
                ttl: Duration::from_secs(self.moriio_dns_resolve_ttl_seconds),
                timeout: Duration::from_secs(self.moriio_dns_resolve_timeout_seconds),
            },
        }
    }

    fn ranks(&self) -> u16 {
        self.moriio_dp_size.unwrap_or(1)
    }

    fn own(&self) -> Option<String> {
        let host = self.moriio_local_pod_ip.as_ref().or(self.pod_ip.as_ref());
        host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty())
    }

    /// Finds all faults of the flags beside this connector and this number of ranks that the proxy
    /// serves.
    pub(crate) fn check(
        &self,
        connector: Connector,
        data_parallel_size: u16,
        faults: &mut Vec<String>,
    ) {
        let is_its = matches!(connector, Connector::Nixlv2 | Connector::Moriio);
        if self.moriio_write_mode && !is_its {
            faults.push("moriio-write-mode: needs connector=nixlv2 or moriio".to_owned());
        }
        if self.moriio_parallel_dispatch && !self.moriio_write_mode {
            faults.push("moriio-parallel-dispatch: needs moriio-write-mode".to_owned());
        }
        if self.moriio_write_mode {
            self.check_own(faults);
        }
        if self.ranks() > 1 && data_parallel_size > 1 {
            let why = "are behind one port, those of data-parallel-size behind one each";
            faults.push(format!("moriio-dp-size: its {} ranks {why}", self.ranks()));
        }
        self.check_ranks(faults);
        self.check_ports(faults);
    }

    fn check_own(&self, faults: &mut Vec<String>) {
        match self.own() {
            None => {
                faults.push("moriio-write-mode: needs moriio-local-pod-ip or POD_IP".to_owned());
            }
            Some(host) if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) => {
                faults.push(format!("moriio-local-pod-ip: nobody reaches {host}"));
            }
            Some(host) if !is_host(&host) => {
                faults.push(format!("moriio-local-pod-ip: {host:?} is no host"));
            }
            Some(_) => {}
        }
    }

    /// Ranks are found on the pod whose place in the list is theirs among the pods.
    fn check_ranks(&self, faults: &mut Vec<String>) {
        let (ranks, of_pod) = (self.ranks(), self.moriio_dp_size_local.unwrap_or(0));
        if of_pod > 0 && ranks > 1 && !ranks.is_multiple_of(of_pod) {
            faults.push(format!("moriio-dp-size-local: {of_pod} does not divide {ranks} ranks"));
        }
        for (flag, list) in [
            ("moriio-remote-hosts", &self.moriio_remote_hosts),
            ("moriio-decode-hosts", &self.moriio_decode_hosts),
        ] {
            let list = hosts(list);
            for host in list.iter().filter(|host| !is_host(host)) {
                faults.push(format!("{flag}: {host:?} is no host"));
            }
            if list.len() < 2 {
                continue;
            }
            if of_pod == 0 {
                faults.push(format!("{flag}: several hosts need moriio-dp-size-local"));
            } else if usize::from(ranks / of_pod) != list.len() {
                let (hosts, pods) = (list.len(), ranks / of_pod);
                let why = format!("{ranks} ranks, {of_pod} a pod, are on {pods} pods");
                faults.push(format!("{flag}: {hosts} hosts, but {why}"));
            }
        }
    }

    /// Each rank of a pod has ports of its own.
    fn check_ports(&self, faults: &mut Vec<String>) {
        let setup = self.settings().setup;
        let Setup { prefill, decode, tensor_parallel, .. } = setup;
        let last = u32::from(setup.ranks_behind()) * u32::from(tensor_parallel) - 1;
        for (flag, port) in [
            ("moriio-prefill-handshake-port", prefill.handshake),
            ("moriio-prefill-notify-port", prefill.notify),
            ("moriio-decode-handshake-port", decode.handshake),
            ("moriio-decode-notify-port", decode.notify),
        ] {
            if u32::from(port) + last > u32::from(u16::MAX) {
                let ranks = last + 1;
                faults.push(format!("{flag}: {port} leaves no ports for {ranks} ranks of a pod"));
            }
        }
    }

    /// Notes on flags that have no effect.
    pub(crate) fn notes(&self) -> Vec<String> {
        let at_once = self.moriio_parallel_dispatch;
        let in_write_mode = [
            ("moriio-local-pod-ip", self.moriio_local_pod_ip.is_some()),
            ("moriio-decode-handshake-port", self.moriio_decode_handshake_port.is_some()),
            ("moriio-decode-notify-port", self.moriio_decode_notify_port.is_some()),
            ("moriio-prefill-handshake-port", self.moriio_prefill_handshake_port.is_some()),
            ("moriio-prefill-notify-port", self.moriio_prefill_notify_port.is_some()),
            ("moriio-tp-size", self.moriio_tp_size.is_some()),
            ("moriio-remote-hosts", !self.moriio_remote_hosts.is_empty()),
            ("moriio-decode-hosts", !self.moriio_decode_hosts.is_empty()),
        ];
        let unused = in_write_mode.iter().filter(|(_, given)| *given && !self.moriio_write_mode);
        let unused = unused.map(|(flag, _)| (*flag, "moriio-write-mode"));
        let waits = self.moriio_parallel_decode_wait_timeout.is_some() && !at_once;
        let waits =
            waits.then_some(("moriio-parallel-decode-wait-timeout", "moriio-parallel-dispatch"));
        let local = self.moriio_dp_size_local.is_some() && self.ranks() == 1;
        let local = local.then_some(("moriio-dp-size-local", "moriio-dp-size"));
        let unused = unused.chain(waits).chain(local);
        unused.map(|(flag, with)| format!("{flag}: it has no effect without {with}")).collect()
    }
}

/// The hosts of a list, without space around them.
fn hosts(list: &[String]) -> Vec<String> {
    list.iter().map(|host| host.trim().to_owned()).filter(|host| !host.is_empty()).collect()
}

/// Whether it is an address, or may be a name.
fn is_host(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = (1..=253).contains(&host.len()) && host.bytes().all(plain);
    is_name || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
#[path = "moriio_args_tests.rs"]
mod tests;
