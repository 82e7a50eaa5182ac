//! Flags for TensorRT-LLM alone.

use super::key;
use clap::{Args, ValueEnum};
use stator_dialect::ApiKey;
use std::path::PathBuf;

/// In which order a context server and a generation server are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ScheduleArg {
    /// The context server first.
    #[default]
    InTurn,
    /// Both at once, where both can.
    Together,
}

/// Flags of TensorRT-LLM.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TensorRT-LLM")]
pub struct TrtllmArgs {
    /// The TensorRT-LLM servers' `internal_request_auth_key`, if they have one. It signs the
    /// messages about KV that a decode server gets. Prefer the environment or a file: everybody on
    /// the machine can read a command line.
    #[arg(
        long,
        env = "STATOR_ENGINE_HANDOVER_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = |key: &str| Ok::<_, std::convert::Infallible>(ApiKey(key.to_owned()))
    )]
    pub engine_handover_key: Option<ApiKey>,

    /// File with that key, read once at start; white space around it does not count.
    #[arg(
        long,
        env = "STATOR_ENGINE_HANDOVER_KEY_FILE",
        value_name = "FILE",
        conflicts_with = "engine_handover_key"
    )]
    pub engine_handover_key_file: Option<PathBuf>,

    /// Order in which the two servers of a prompt are asked, if this one decodes. `together` is
    /// for servers with the Python transceiver of a version that cancels requests in this order;
    /// others, as far as they tell, and requests with logprobs are asked in turn all the same.
    #[arg(long, env = "STATOR_TRTLLM_SCHEDULE", default_value = "in-turn", value_enum)]
    pub trtllm_schedule: ScheduleArg,
}

impl TrtllmArgs {
    /// Faults of these flags with another engine.
    pub(super) fn faults_of_others(&self) -> impl Iterator<Item = String> {
        let given = [
            ("engine-handover-key", self.engine_handover_key.is_some()),
            ("engine-handover-key-file", self.engine_handover_key_file.is_some()),
            ("trtllm-schedule", self.trtllm_schedule != ScheduleArg::default()),
        ];
        let given = given.into_iter().filter(|(_, given)| *given);
        given.map(|(flag, _)| format!("{flag}: needs --engine trtllm"))
    }

    /// The key that signs hand-overs.
    ///
    /// # Errors
    ///
    /// The flag at fault, and the reason.
    pub(super) fn handover_key(&self) -> Result<Option<ApiKey>, String> {
        key::handover_key(
            self.engine_handover_key.clone(),
            self.engine_handover_key_file.as_deref(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Runs;
    use super::super::tests::check;
    use stator_dialect::ApiKey;

    const ENGINE: [&str; 2] = ["--engine=trtllm", "--model=/m"];

    fn key(flags: &[&str]) -> Result<Option<ApiKey>, String> {
        check(&[&ENGINE, flags].concat()).map(|settings| match settings.engine {
            Runs::Stock(stock) => stock.handover_key,
            Runs::Own(engine) => panic!("{engine:?}"),
        })
    }

    #[test]
    fn a_handover_key_is_any_text_and_no_fault_shows_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = |contents: &str| {
            let path = folder.path().join("key");
            std::fs::write(&path, contents).unwrap();
            format!("--engine-handover-key-file={}", path.display())
        };
        assert_eq!(key(&[]), Ok(None));
        let hush = Some(ApiKey("hüsh \"now\"".into()));
        assert_eq!(key(&["--engine-handover-key=hüsh \"now\""]), Ok(hush.clone()));
        assert_eq!(key(&[&file(" hüsh \"now\"\n")]), Ok(hush));
        let empty = "engine-handover-key-file: the key has 0 bytes, 1 to 4096";
        assert_eq!(key(&[&file(" \n")]), Err(empty.into()));
        let error = key(&[&file("hush\nhush")]).unwrap_err();
        assert_eq!(error, "engine-handover-key-file: the key has a control character");
        let error = key(&["--engine-handover-key-file=/no/such"]).unwrap_err();
        assert!(error.starts_with("engine-handover-key-file: cannot read \"/no/such\""), "{error}");
        assert!(key(&["--engine-handover-key=hush", &file("hush")]).is_err());
    }

    #[test]
    fn what_is_for_trtllm_is_refused_where_the_engine_is_another() {
        let flags = ["--engine-handover-key-file=/no/such"];
        let vllm = check(&[&["--engine=vllm", "--model=/m"], &flags[..]].concat()).unwrap_err();
        for error in [vllm, check(&flags).unwrap_err()] {
            let expected = "engine-handover-key-file: needs --engine trtllm";
            assert!(error.lines().any(|line| line == expected), "{error}");
        }
        for flag in ["engine-handover-key=hush", "trtllm-schedule=together"] {
            let error = check(&[&format!("--{flag}")]).unwrap_err();
            let name = flag.split('=').next().unwrap();
            assert_eq!(error, format!("{name}: needs --engine trtllm"));
        }
    }

    #[test]
    fn servers_are_asked_in_turn_unless_told_otherwise() {
        let together = |flags: &[&str]| {
            let settings = check(&[&ENGINE, flags].concat()).unwrap();
            let Runs::Stock(stock) = settings.engine else { panic!("{:?}", settings.engine) };
            stock.together
        };
        assert!(!together(&[]) && !together(&["--trtllm-schedule=in-turn"]));
        assert!(together(&["--trtllm-schedule=together"]));
    }
}
