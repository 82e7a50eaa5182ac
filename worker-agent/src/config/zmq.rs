//! ZMQ endpoints for stock subscribers of the agent's events. stator's own processes need none: they
//! follow events on the request plane.

use super::Faults;
use clap::Args;
use std::net::SocketAddr;

/// The value of an endpoint that opens no socket.
const OFF: &str = "off";
/// Endpoints by default, on this machine alone.
const EVENTS: &str = "tcp://127.0.0.1:5557";
const REPLAY: &str = "tcp://127.0.0.1:5558";

/// Flags of the ZMQ sockets.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Planes")]
pub struct ZmqArgs {
    /// ZMQ endpoint that publishes KV events and load to stock subscribers: `tcp://address:port`,
    /// `ipc:///path` or `off`. Proxies and pickers follow events on the request plane and need no
    /// ZMQ. Default: tcp://127.0.0.1:5557.
    #[arg(long, env = "STATOR_EVENTS_LISTEN", value_name = "ENDPOINT")]
    pub events_listen: Option<String>,

    /// ZMQ endpoint that answers replay requests of stock subscribers: `tcp://address:port`,
    /// `ipc:///path` or `off`. Default: tcp://127.0.0.1:5558, and off where `--events-listen` is.
    #[arg(long, env = "STATOR_REPLAY_LISTEN", value_name = "ENDPOINT")]
    pub replay_listen: Option<String>,

    /// Let everyone who reaches the ZMQ endpoints read KV events, also where these are not on this
    /// machine alone. ZMQ has no authentication, and events tell the tokens of prompts.
    #[arg(long, env = "STATOR_EVENTS_OPEN")]
    pub events_open: bool,
}

/// ZMQ endpoints; `None` is a closed one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZmqListen {
    /// Endpoint of the live feed.
    pub events: Option<String>,
    /// Endpoint of replays.
    pub replay: Option<String>,
}

impl ZmqArgs {
    /// Reads the flags; adds the unusable ones to `faults`.
    pub(super) fn listen(self, faults: &mut Faults) -> ZmqListen {
        let events = self.events_listen.unwrap_or_else(|| EVENTS.into());
        if let (true, Some(replay)) = (events == OFF, &self.replay_listen)
            && replay != OFF
        {
            let fault = "has no effect with events-listen \"off\": leave it out";
            faults.0.push(format!("replay-listen: {replay:?} {fault}"));
        }
        let unsaid = if events == OFF { OFF } else { REPLAY };
        let replay = self.replay_listen.unwrap_or_else(|| unsaid.into());
        let mut exposed = false;
        for (flag, endpoint) in [("events-listen", &events), ("replay-listen", &replay)] {
            match is_open(flag, endpoint) {
                Ok(true) if !self.events_open => faults.0.push(format!(
                    "{flag}: {endpoint:?} is open to everyone who reaches it: leave it out, because \
                     proxies and pickers follow events on the request plane, or say events-open \
                     for stock subscribers"
                )),
                Ok(open) => exposed |= open,
                // One fault is enough for an endpoint that cannot be read.
                Err(fault) => {
                    exposed = true;
                    faults.0.push(fault);
                }
            }
        }
        if self.events_open && !exposed {
            let fault = "are on this machine alone or off: leave it out";
            faults.0.push(format!("events-open: has no effect: the ZMQ endpoints {fault}"));
        }
        let found = |endpoint: String| Some(endpoint).filter(|endpoint| endpoint != OFF);
        ZmqListen { events: found(events), replay: found(replay) }
    }
}

/// Whether other machines can reach an endpoint.
fn is_open(flag: &str, endpoint: &str) -> Result<bool, String> {
    let fault =
        || format!("{flag}: {endpoint:?} is none of `tcp://address:port`, `ipc:///path` and `off`");
    if endpoint == OFF {
        return Ok(false);
    }
    if let Some(path) = endpoint.strip_prefix("ipc://") {
        return if path.starts_with('/') { Ok(false) } else { Err(fault()) };
    }
    let address = endpoint.strip_prefix("tcp://").ok_or_else(fault)?;
    let address: SocketAddr = address.parse().map_err(|_| fault())?;
    Ok(!address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn check(flags: &[&str]) -> Result<(Option<String>, Option<String>), Vec<String>> {
        let command = ZmqArgs::augment_args(Command::new("agent").no_binary_name(true));
        let matches = command.try_get_matches_from(flags).unwrap();
        let mut faults = Faults::default();
        let ZmqListen { events, replay } =
            ZmqArgs::from_arg_matches(&matches).unwrap().listen(&mut faults);
        if faults.0.is_empty() { Ok((events, replay)) } else { Err(faults.0) }
    }

    fn both(events: &str, replay: &str) -> Result<(Option<String>, Option<String>), Vec<String>> {
        Ok((Some(events.into()), Some(replay.into())))
    }

    #[test]
    fn sockets_are_on_this_machine_alone_unless_they_are_said_to_be_open() {
        assert_eq!(check(&[]), both(EVENTS, REPLAY));
        let (events, replay) = ("--events-listen=ipc:///a", "--replay-listen=tcp://[::1]:1");
        assert_eq!(check(&[events, replay]), both("ipc:///a", "tcp://[::1]:1"));
        for endpoint in ["tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://10.0.0.1:5557"] {
            for flag in ["events-listen", "replay-listen"] {
                let set = format!("--{flag}={endpoint}");
                let faults = check(&[&set]).unwrap_err();
                let expected = format!("{flag}: {endpoint:?} is open to everyone who reaches it");
                assert!(faults.len() == 1 && faults[0].starts_with(&expected), "{faults:?}");
                assert!(check(&[&set, "--events-open"]).is_ok());
            }
        }
    }

    #[test]
    fn sockets_that_are_off_are_not_there() {
        assert_eq!(check(&["--events-listen=off"]), Ok((None, None)));
        assert_eq!(check(&["--events-listen=off", "--replay-listen=off"]), Ok((None, None)));
        assert_eq!(check(&["--replay-listen=off"]), Ok((Some(EVENTS.into()), None)));
    }

    #[test]
    fn a_setting_without_effect_is_a_fault() {
        let alone = check(&["--events-listen=off", "--replay-listen=ipc:///a"]);
        let expected =
            "replay-listen: \"ipc:///a\" has no effect with events-listen \"off\": leave it out";
        assert_eq!(alone, Err(vec![expected.into()]));
        let expected = "events-open: has no effect: the ZMQ endpoints are on this machine alone or off: \
                        leave it out";
        for flags in [&["--events-open"][..], &["--events-open", "--events-listen=off"]] {
            assert_eq!(check(flags), Err(vec![expected.into()]));
        }
    }
}
