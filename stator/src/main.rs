//! The `stator` binary: parses the command line and starts one role.
//!
//! It decides nothing about requests. Start reading at [`cli`]; a role's own crate says the rest.

mod cli;
mod expert_settings;
mod greeting;
mod help;
#[cfg(test)]
mod manifest_tests;
mod old_spelling;
mod role_help;
mod roles;
#[cfg(test)]
mod settings_pages;
mod suggestions;
mod up;
mod version;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use cli::{Cli, Role};
use stator_operator::{OperatorAction, OperatorArgs};
use stator_runtime::Shutdown;
use stator_runtime::log::{self, LogArgs};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::parse() {
        Ok(cli) => cli,
        Err(error) => {
            eprintln!("error: the configuration was refused\n{error}");
            return ExitCode::from(2);
        }
    };
    let started = log::init(&log_args(&cli), cli.role.service()).and_then(|traces| {
        // Dropping it ends the sending of traces before there are any.
        let _traces = sends_traces(&cli.role).then_some(traces);
        run(cli)
    });
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(cli: Cli) -> anyhow::Result<()> {
    // Signals are caught by each role that serves: the others end with Ctrl-C as they stand.
    match cli.role {
        Role::Up(role) => up::run(role.args, &cli.matches, Shutdown::on_signal()?).await,
        Role::Proxy(role) => stator_proxy::run(role.args.try_into()?, Shutdown::on_signal()?).await,
        Role::Sidecar(role) => {
            if cli.is_old_spelling {
                tracing::warn!("`stator proxy --mode direct` is now called `stator sidecar`");
            }
            stator_proxy::run_sidecar(role.args.try_into()?, Shutdown::on_signal()?).await
        }
        Role::Epp(role) if role.args.scheduling.explain => {
            print!("{}", stator_epp::config::explain(&role.args)?);
            Ok(())
        }
        Role::Epp(role) => stator_epp::run(role.args.try_into()?, Shutdown::on_signal()?).await,
        Role::Agent(role) => {
            let shutdown = Shutdown::on_signal()?;
            let shutdown = match role.args.exit_with_parent {
                true => shutdown.or(up::parent_gone()),
                false => shutdown,
            };
            stator_worker_agent::run(role.args.agent.try_into()?, shutdown).await
        }
        Role::Operate(role) => stator_worker_agent::operate(role.args).await,
        Role::Chat(role) => stator_chat::run(role.args).await,
        Role::Bench(role) => stator_bench::run(role.args).await,
        Role::Plan(role) => stator_plan::run(&role.args),
        Role::Planner(role) => {
            stator_planner::run(role.args.try_into()?, Shutdown::on_signal()?).await
        }
        Role::Simulate(role) => stator_simulate::run(&role.args),
        Role::Operator(role) => operate_graphs(&role.args).await,
        Role::Doctor(role) => stator_doctor::run(role.args).await,
    }
}

async fn operate_graphs(args: &OperatorArgs) -> anyhow::Result<()> {
    let text = match &args.action {
        OperatorAction::Run(of) => {
            return stator_operator::run(args, of, Shutdown::on_signal()?).await;
        }
        OperatorAction::Crds => stator_operator::crds()?,
        OperatorAction::Explain { file } => stator_operator::explain(args, file)?,
    };
    print!("{text}");
    Ok(())
}

/// Log flags of the process. The picker has other flags for it too, whose names are llm-d's.
fn log_args(cli: &Cli) -> LogArgs {
    let own = cli.role.log();
    match &cli.role {
        Role::Epp(role) => role.args.telemetry.log(own, |flag| chosen(&cli.matches, flag)),
        _ => own.clone(),
    }
}

fn sends_traces(role: &Role) -> bool {
    match role {
        Role::Epp(role) => role.args.telemetry.tracing,
        _ => true,
    }
}

/// Whether somebody chose the value of this flag of the log. A configuration file does so by
/// another default.
fn chosen(matches: &ArgMatches, id: &str) -> bool {
    let flags = LogArgs::augment_args(clap::Command::new("log"));
    let usual = flags.get_arguments().find(|flag| flag.get_id() == id);
    let usual = usual.map(|flag| flag.get_default_values()).unwrap_or_default();
    let value = matches.get_raw(id).unwrap_or_default();
    matches.value_source(id) != Some(ValueSource::DefaultValue)
        || !value.eq(usual.iter().map(|value| value.as_os_str()))
}
