//! The command line: one subcommand per role.

use crate::help::{self, Size};
use crate::roles::ROLES;
use crate::{old_spelling, suggestions, version};
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use stator_bench::BenchArgs;
use stator_chat::ChatArgs;
use stator_doctor::DoctorArgs;
use stator_epp::config::EppArgs;
use stator_operator::OperatorArgs;
use stator_plan::PlanArgs;
use stator_planner::PlannerArgs;
use stator_proxy::{HttpArgs, ProxyArgs, RouterArgs, SidecarArgs};
use stator_runtime::config::{self, ConfigError};
use stator_runtime::log::LogArgs;
use stator_simulate::SimulateArgs;
use stator_worker_agent::{AgentArgs, EngineArgs, KvTierArgs, OperateArgs};
use std::io::Write;

/// Serves large language models across fleets of engines: places every request on the worker
/// that already holds its prefix and has room.
///
/// Every flag has an environment variable (`STATOR_` and its name; `STATOR_BENCH_`, `STATOR_CHAT_`,
/// `STATOR_DOCTOR_`, `STATOR_PLAN_` and `STATOR_SIMULATE_` for those five, but `STATOR_API_KEY`) and a key of the same name in the file that `--config` names.
/// The command line wins over the environment, the environment over the file.
#[derive(Debug, Parser)]
#[command(name = "stator", version = version::text(), arg_required_else_help = true)]
struct Line {
    #[command(subcommand)]
    action: Action,
}

/// Default log of `stator up`, whose greeting says what a person needs: pids and sockets of its
/// agents are for `--log-level info`.
const UP_LOG: &str = "warn,stator=info,stator_runtime::shutdown=info";

/// Command to run.
#[derive(Debug, Subcommand)]
enum Action {
    #[command(flatten)]
    Start(Box<Role>),
    /// Completions of this command line for a shell, on standard output.
    Completions {
        /// Shell to complete in.
        shell: Shell,
    },
    /// Version, commit and platform of this binary.
    Version,
}

/// Flags of the proxy that the sidecar refuses with a reason: the engine beside it checks keys.
const SIDECAR_REFUSES: [&str; 14] = [
    "api_key",
    "api_keys_file",
    "shared_prefixes",
    "prefix_secret_file",
    "key_share_percent",
    "cors_origins",
    "stream_comment_ms",
    "requests_per_minute",
    "tokens_per_minute",
    "kserve_grpc_port",
    "responses_store",
    "responses_max_bytes",
    "responses_max",
    "responses_ttl_s",
];

/// Role of the process.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Everything on this machine: a proxy and two agents with their workers. Needs no
    /// configuration.
    Up(WithLog<UpArgs>),
    /// Edge proxy: an OpenAI-compatible endpoint over the workers of all registered agents.
    Proxy(Box<WithLog<ProxyArgs>>),
    /// Proxy beside one engine, in place of llm-d's routing sidecar: obeys the endpoint picker's
    /// headers and hands KV over from engines that compute prompts.
    Sidecar(Box<WithLog<SidecarArgs>>),
    /// Endpoint picker: tells an Envoy gateway which endpoint of an InferencePool takes each
    /// request.
    Epp(WithLog<EppArgs>),
    /// Worker agent: runs engines, publishes their KV events and load, registers them.
    Agent(WithLog<ChildArgs>),
    /// Asks an agent to do something to its engine: reset its cache, pause, sleep, load an adapter.
    Operate(WithLog<OperateArgs>),
    /// Conversation with a model behind any OpenAI-compatible endpoint, in a terminal or a pipe.
    Chat(WithLog<ChatArgs>),
    /// Load generator and trace replay against any OpenAI-compatible endpoint.
    Bench(WithLog<BenchArgs>),
    /// Deployment for a model, a kind of GPU and two latency targets.
    Plan(WithLog<PlanArgs>),
    /// Planner: counts the workers that a fleet needs, and asks for them.
    Planner(Box<WithLog<PlannerArgs>>),
    /// Placement policies on a simulated fleet, in virtual time.
    Simulate(WithLog<SimulateArgs>),
    /// Manifests of NVIDIA Dynamo's operator: the resources that they need, and the objects that
    /// they lead to.
    Operator(WithLog<OperatorArgs>),
    /// Examines this machine or a cluster: says what is wrong, and what to do about it.
    Doctor(WithLog<DoctorArgs>),
}

/// A role's flags and those of its log.
#[derive(Args, Debug)]
pub(crate) struct WithLog<T: Args> {
    #[command(flatten)]
    pub args: T,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of `stator up`: the proxy's and the engines' own.
#[derive(Args, Clone, Debug)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub http: HttpArgs,
    #[command(flatten)]
    pub router: RouterArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub tiers: KvTierArgs,
}

/// Flags of `stator agent`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChildArgs {
    #[command(flatten)]
    pub agent: AgentArgs,

    /// Drain and end when standard input is closed: how `stator up` keeps its children.
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

/// The parsed command line.
pub(crate) struct Cli {
    pub role: Role,
    /// The flags of the role as they were written, to hand on to child processes.
    pub matches: ArgMatches,
    /// Whether the sidecar was started by its old name.
    pub is_old_spelling: bool,
}

impl Role {
    /// The role's log flags.
    pub(crate) fn log(&self) -> &LogArgs {
        match self {
            Self::Up(role) => &role.log,
            Self::Proxy(role) => &role.log,
            Self::Sidecar(role) => &role.log,
            Self::Epp(role) => &role.log,
            Self::Agent(role) => &role.log,
            Self::Operate(role) => &role.log,
            Self::Chat(role) => &role.log,
            Self::Bench(role) => &role.log,
            Self::Plan(role) => &role.log,
            Self::Planner(role) => &role.log,
            Self::Simulate(role) => &role.log,
            Self::Operator(role) => &role.log,
            Self::Doctor(role) => &role.log,
        }
    }

    /// Its name in traces, where the environment gives it none.
    pub(crate) fn service(&self) -> &'static str {
        match self {
            Self::Up(_) => "stator-up",
            Self::Proxy(_) => "stator-proxy",
            Self::Sidecar(_) => "stator-sidecar",
            Self::Epp(_) => "stator-epp",
            Self::Agent(_) => "stator-agent",
            Self::Operate(_) => "stator-operate",
            Self::Chat(_) => "stator-chat",
            Self::Bench(_) => "stator-bench",
            Self::Plan(_) => "stator-plan",
            Self::Planner(_) => "stator-planner",
            Self::Simulate(_) => "stator-simulate",
            Self::Operator(_) => "stator-operator",
            Self::Doctor(_) => "stator-doctor",
        }
    }
}

impl Cli {
    /// Reads command line, environment and configuration file.
    ///
    /// # Errors
    ///
    /// For faults of the file. Faults of the command line end the process with their message, as
    /// help, version and completions do.
    pub(crate) fn parse() -> Result<Self, ConfigError> {
        let args: Vec<_> = std::env::args_os().collect();
        let command = help::sized(command(), Size::of(&args));
        if let Some(error) = suggestions::refusal(&command, &args) {
            error.exit();
        }
        let (args, is_old_spelling) = old_spelling::renew(&command, args);
        let matches = config::parse(command, args)?;
        let line = Line::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let (_, own) = matches.subcommand().expect("a subcommand is required");
        match line.action {
            Action::Start(role) => Ok(Self { role: *role, matches: own.clone(), is_old_spelling }),
            Action::Completions { shell } => answer(&completions(shell)),
            Action::Version => answer(format!("stator {}\n", version::text()).as_bytes()),
        }
    }
}

/// Prints what was asked for, and ends the process. A reader that has gone has enough.
fn answer(text: &[u8]) -> ! {
    let _ = std::io::stdout().write_all(text);
    std::process::exit(0);
}

/// The script that completes this command line in `shell`.
fn completions(shell: Shell) -> Vec<u8> {
    let (mut command, mut script) = (help::sized(command(), Size::Experts), Vec::new());
    clap_complete::generate(shell, &mut command, "stator", &mut script);
    script
}

/// The role that a command line starts, without environment or files.
#[cfg(test)]
pub(crate) fn role(words: &[String]) -> Result<Role, clap::Error> {
    let line = Line::from_arg_matches(&command().try_get_matches_from(words)?)?;
    match line.action {
        Action::Start(role) => Ok(*role),
        Action::Completions { .. } | Action::Version => {
            Err(clap::Error::new(clap::error::ErrorKind::InvalidValue))
        }
    }
}

/// The whole command line, with all settings.
pub(crate) fn command() -> clap::Command {
    let mut command = Line::command();
    for role in &ROLES {
        command = command.mut_subcommand(role.name, |role| role.arg(config::config_arg()));
    }
    for role in old_spelling::ROLES {
        command = command.mut_subcommand(role, |role| role.arg(old_spelling::mode_arg()));
    }
    for refused in SIDECAR_REFUSES {
        command =
            command.mut_subcommand("sidecar", |role| role.mut_arg(refused, |arg| arg.hide(true)));
    }
    // A fleet of one has nothing to choose from.
    command.mut_subcommand("up", |up| {
        let up = up.mut_arg("workers", |arg| arg.default_value("2"));
        up.mut_arg("log_level", |arg| arg.default_value(UP_LOG))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_epp::config::EppSettings;
    use stator_planner::RunSettings;
    use stator_proxy::{DirectSettings, ProxySettings};
    use stator_worker_agent::{AgentSettings, EngineSettings};

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// Flags whose value is a secret or a path still have both other ways in. Hidden ones are
    /// another program's, which are taken by their own names.
    #[test]
    fn every_flag_has_an_environment_variable_of_its_name() {
        let unnamed = ["help", "version", "exit-with-parent"];
        for role in command().get_subcommands() {
            for arg in role.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(long) = arg.get_long().filter(|long| !unnamed.contains(long)) else {
                    continue;
                };
                let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
                let name = long.to_uppercase().replace('-', "_");
                let expected = ["", "BENCH_", "CHAT_", "DOCTOR_", "PLAN_", "SIMULATE_"]
                    .map(|of| format!("STATOR_{of}{name}"));
                let named = variable.as_ref().is_some_and(|variable| expected.contains(variable));
                assert!(named, "{} --{long} has {variable:?}", role.get_name());
            }
        }
    }

    /// Every example is a file of the role that its name begins with, and its settings are valid.
    #[test]
    fn every_example_configuration_is_accepted() {
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/examples");
        let mut roles = Vec::new();
        for example in std::fs::read_dir(examples).unwrap() {
            let path = example.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let role = name.split('-').next().unwrap().into();
            let args = ["stator".into(), role, "--config".into(), path.into_os_string()];
            let matches = config::parse(command(), args.into()).unwrap();
            let Action::Start(role) = Line::from_arg_matches(&matches).unwrap().action else {
                panic!("an example starts a role");
            };
            let checked = match *role {
                Role::Up(role) => EngineSettings::try_from(role.args.engine).map(drop),
                Role::Agent(role) => AgentSettings::try_from(role.args.agent).map(drop),
                Role::Proxy(role) => ProxySettings::try_from(role.args).map(drop),
                Role::Sidecar(role) => DirectSettings::try_from(role.args).map(drop),
                Role::Epp(role) => EppSettings::try_from(role.args).map(drop),
                Role::Planner(role) => RunSettings::try_from(role.args).map(drop),
                Role::Operate(_)
                | Role::Chat(_)
                | Role::Bench(_)
                | Role::Plan(_)
                | Role::Simulate(_)
                | Role::Operator(_)
                | Role::Doctor(_) => {
                    panic!("there is no example for it")
                }
            };
            checked.unwrap();
            roles.push(name);
        }
        roles.sort();
        assert_eq!(roles, ["agent", "epp", "planner", "proxy", "sidecar", "up"]);
    }
}
