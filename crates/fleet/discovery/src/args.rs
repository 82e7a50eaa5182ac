//! The flags that name a back-end, alike for agents and for who follows them.

use crate::source::{DiscoverySource, SourceError};
use clap::Args;
use std::path::PathBuf;

/// Flags that say how agents are found.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Discovery")]
pub struct DiscoveryArgs {
    /// Place where agents register and proxies look for them. `file:///DIR`: a shared directory.
    /// `kubernetes://NAMESPACE?selector=app=engine`: the pods of a cluster; an agent there has
    /// POD_NAME and POD_UID in its environment. `etcd://HOST:PORT,HOST:PORT/PREFIX`: keys with
    /// leases; `USER@` goes before the hosts and the password into STATOR_ETCD_PASSWORD, and
    /// `?ca=FILE&cert=FILE&key=FILE` is for TLS. `static:///FILE`: a file that lists agents.
    /// Default: the directory of `--discovery-dir`.
    #[arg(long, env = "STATOR_DISCOVERY", value_name = "URL")]
    pub discovery: Option<String>,

    /// Short for `--discovery file:///DIR`: a directory where agents register and proxies look;
    /// made where it is missing.
    #[arg(
        long,
        env = "STATOR_DISCOVERY_DIR",
        default_value_os_t = stator_runtime::discovery_dir(),
        value_name = "DIR"
    )]
    pub discovery_dir: PathBuf,
}

impl DiscoveryArgs {
    /// The back-end that the flags name.
    ///
    /// # Errors
    ///
    /// [`SourceError`] for `--discovery`, with the part that is wrong.
    pub fn source(&self) -> Result<DiscoverySource, SourceError> {
        match &self.discovery {
            Some(url) => url.parse(),
            None => Ok(DiscoverySource::Directory(self.discovery_dir.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn check(args: &[&str], expected: &str) {
        let command = DiscoveryArgs::augment_args(Command::new("x").no_binary_name(true));
        let matches = command.try_get_matches_from(args).unwrap();
        let source = DiscoveryArgs::from_arg_matches(&matches).unwrap().source();
        assert_eq!(source, Ok(expected.parse().unwrap()), "{args:?}");
    }

    #[test]
    fn a_directory_is_the_short_form_and_a_url_wins() {
        check(&["--discovery-dir=/a"], "file:///a");
        check(&["--discovery-dir=/a", "--discovery=file:///b"], "file:///b");
        check(&["--discovery=etcd://a:1"], "etcd://a:1");
        let usual = format!("file://{}", stator_runtime::discovery_dir().display());
        check(&[], &usual);
    }
}
