//! The `stator` binary: parses the command line and starts one role.
//!
//! It decides nothing about requests. Start reading at [`cli`]; a role's own crate says the rest.

mod cli;
mod up;

use cli::{Cli, Role};
use stator_runtime::{Shutdown, log};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::parse() {
        Ok(cli) => cli,
        Err(error) => {
            eprintln!("error: the configuration was refused\n{error}");
            return ExitCode::from(2);
        }
    };
    let started = log::init(cli.role.log(), cli.role.service()).and_then(|_traces| run(cli));
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
    match cli.role {
        Role::Up(role) => up::run(role.args, &cli.matches, Shutdown::on_signal()?).await,
        Role::Proxy(role) => stator_proxy::run(role.args.try_into()?, Shutdown::on_signal()?).await,
        Role::Epp(role) if role.args.explain => {
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
        Role::Bench(role) => stator_bench::run(role.args).await,
    }
}
