//! `stator doctor`: says what is wrong with a laptop, a node or a cluster, and what to do about it.
//!
//! `gather` reads facts from the machine, from engines and from the API server, and judges nothing.
//! `check` turns [`facts`] into [`Finding`]s: values in, values out. The doctor changes nothing
//! anywhere. Start reading at [`run()`].

mod args;
mod check;
pub mod facts;
mod finding;
mod gather;
mod report;
mod rules;

pub use args::{DoctorArgs, EngineName, Patient, RoleName};
pub use finding::{Finding, Severity};
pub use report::DoctorReport;

use anyhow::bail;

/// Examines what the flags name and prints the findings.
///
/// # Errors
///
/// If something is wrong; the findings, on standard output, say what.
pub async fn run(args: DoctorArgs) -> anyhow::Result<()> {
    let report = DoctorReport::new(args.patient, examine(&args).await);
    match args.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.text()),
    }
    match report.wrong {
        0 => Ok(()),
        wrong => bail!("{wrong} of {} findings are wrong", report.findings.len()),
    }
}

/// Gathers the facts that the flags ask for, and checks them.
async fn examine(args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = Vec::new();
    match args.patient {
        Patient::Cluster => {
            let cluster = gather::cluster::gather(args).await;
            findings.extend(check::cluster::check(&cluster, args));
        }
        Patient::Laptop | Patient::Node => {
            let machine = gather::machine::gather(&gather::Root::system(), &args.ports);
            findings.extend(check::machine::check(&machine, args.patient));
        }
    }
    if let Some(folder) = &args.model {
        findings.extend(check::model::check(&gather::model::gather(folder)));
    }
    if let Some(engine) = args.engine {
        let found = gather::engine::gather(engine, args.engine_program.as_deref()).await;
        findings.push(check::engine::check(engine, &found));
    }
    for clock in gather::clock::gather(&args.clocks).await {
        findings.push(check::clock::check(&clock));
    }
    findings
}
