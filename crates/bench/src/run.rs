//! One measurement, from top to bottom.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use stator_report::{write_json, write_text};
use stator_runtime::Shutdown;

use crate::args::LoadArgs;
use crate::client::LoadClient;
use crate::client::body::BodyWriter;
use crate::process;
use crate::report::{self, Measurement, Report};
use crate::runner::Runner;
use crate::workload::Workload;

/// Open files that this process needs besides one for each connection.
const OTHER_FILES: u64 = 64;

/// Measures, prints the result, and writes the reports that were asked for. Ctrl-C ends the
/// measurement early; what was measured until then is still reported.
///
/// # Errors
///
/// As [`measure`]; when a report cannot be written; or when not one request succeeded.
pub async fn run(args: &LoadArgs) -> Result<()> {
    let shutdown = Shutdown::on_signal().context("signal handlers")?;
    let report = measure(args, &shutdown).await?;
    print!("{}", report::table::render(&report));
    if let Some(path) = &args.output.json {
        write_json(path, &report)?;
    }
    if let Some(path) = &args.output.html {
        write_text(path, &report::html::render(&report))?;
    }
    let requests = &report.requests;
    if requests.succeeded == 0 && requests.failed > 0 {
        bail!("none of {} requests succeeded", requests.failed);
    }
    Ok(())
}

/// Runs one measurement until its workload or its duration ends, or `shutdown` is set.
///
/// # Errors
///
/// When arguments contradict each other, the trace cannot be read, or no model can be found.
/// Requests that fail are counted, and no error.
pub async fn measure(args: &LoadArgs, shutdown: &Shutdown) -> Result<Report> {
    check(args)?;
    let workload = Workload::new(args)?;
    let client = LoadClient::new(&args.target)?;
    let model = match &args.target.model {
        Some(model) => model.clone(),
        None => tokio::select! {
            model = client.first_model() => model?,
            () = shutdown.wait() => bail!("ended before the endpoint named its model"),
        },
    };
    let bodies = BodyWriter::new(&args.target, &model);
    let runner = Arc::new(Runner::new(client, bodies, args));

    // Before the clock and the meter start, so that connections and caches are warm.
    let warmup = Arc::new(workload.warmup.clone());
    runner.warm_up(warmup, args.pace.warmup_requests, workload.in_flight_max, shutdown).await;

    let started_at = SystemTime::now();
    let (window, meter) =
        Arc::clone(&runner).measured(workload, args.pace.duration, shutdown).await;
    let (processes, machine) = meter.finish();
    let (record, unfinished) = runner.take();
    let measured =
        Measurement { model, started_at, window, record, unfinished, processes, machine };
    Ok(Report::new(args, measured))
}

/// Refuses arguments that contradict each other.
fn check(args: &LoadArgs) -> Result<()> {
    let streams = args.target.stream && !args.target.no_stream;
    let needs_stream =
        args.objectives.slo_ttft_ms.is_some() || args.objectives.slo_itl_ms.is_some();
    ensure!(streams || !needs_stream, "slo-ttft-ms, slo-itl-ms: need a stream, stream is false");
    let wanted = u64::from(args.pace.concurrency.unwrap_or(0)) + OTHER_FILES;
    if let Some(limit) = process::open_files_limit().filter(|limit| *limit < wanted) {
        bail!(
            "concurrency: needs about {wanted} open files, the limit is {limit}; raise it with `ulimit -n`"
        );
    }
    Ok(())
}
