//! Networks of pods: a namespace with an address, on the bridge that all pods share.

use super::BRIDGE;
use super::process::{run, shell};
use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Name of the bridge in the namespace that the kubelet itself is in.
pub const BRIDGE_NAME: &str = "pods";

/// Gives the namespace `$2` a link to the bridge, the link being called `$1` at the bridge, and the
/// address `$3`.
const ATTACH: &str = r#"
ip link add "$1" type veth peer name eth0 netns "$2"
ip link set dev "$1" master "$5" up
nsenter --net="/proc/$2/ns/net" sh -ec '
    ip addr add "$1/24" dev eth0
    ip link set dev lo up
    ip link set dev eth0 up
    ip route add default via "$2"
' sh "$3" "$4"
"#;

/// Addresses for pods. One that was given back is the last to be given again.
#[derive(Debug)]
pub(super) struct Addresses {
    network: [u8; 3],
    free: VecDeque<u8>,
}

impl Addresses {
    pub(super) fn new(network: [u8; 3], first: u8, number: u8) -> Self {
        Self { network, free: (first..=u8::MAX - 1).take(number.into()).collect() }
    }

    pub(super) fn take(&mut self) -> Option<Ipv4Addr> {
        let [a, b, c] = self.network;
        self.free.pop_front().map(|last| Ipv4Addr::new(a, b, c, last))
    }

    pub(super) fn give_back(&mut self, address: Ipv4Addr) {
        self.free.push_back(address.octets()[3]);
    }
}

/// A pod's namespace. It goes, with its link, when this is dropped and all containers have ended.
#[derive(Debug)]
pub(super) struct PodNetwork {
    holder: Child,
    pub(super) address: Ipv4Addr,
}

impl PodNetwork {
    /// Makes a namespace with this address.
    pub(super) async fn new(address: Ipv4Addr) -> io::Result<Self> {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sh", "-c", "echo; exec cat"]).kill_on_drop(true);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        // The line comes from within the namespace.
        let output = holder.stdout.take().expect("standard output is piped");
        BufReader::new(output).read_line(&mut String::new()).await?;
        let network = Self { holder, address };
        let [a, b, c, last] = address.octets();
        let link = format!("pod{last}");
        let (process, gateway) = (network.process(), Ipv4Addr::new(a, b, c, BRIDGE));
        let words = [link, process, address.to_string(), gateway.to_string(), BRIDGE_NAME.into()];
        run(shell(ATTACH).args(words)).await?;
        Ok(network)
    }

    /// The file that is the namespace.
    pub(super) fn file(&self) -> String {
        format!("/proc/{}/ns/net", self.process())
    }

    fn process(&self) -> String {
        self.holder.id().map(|id| id.to_string()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_was_given_back_is_the_last_to_be_given_again() {
        let mut addresses = Addresses::new([198, 18, 0], 253, 9);
        let taken: Vec<_> = std::iter::from_fn(|| addresses.take()).collect();
        assert_eq!(taken, [Ipv4Addr::new(198, 18, 0, 253), Ipv4Addr::new(198, 18, 0, 254)]);
        addresses.give_back(taken[1]);
        addresses.give_back(taken[0]);
        assert_eq!(addresses.take(), Some(taken[1]));
    }
}
