//! A further node of an engine that serves on another host: it computes, and answers nobody.

use super::launch::{self, Launch};
use crate::config::StockSettings;
use stator_runtime::Shutdown;
use stator_runtime::admin::Readiness;
use stator_supervise::{Event, Health, Observation};
use std::time::Duration;
use tokio::time::interval;

/// Pause between two observations.
const INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the engine's process running until `shutdown`, starting it again where it ends. The agent is
/// ready while the process runs.
///
/// # Errors
///
/// When the engine is given up, or its flags contradict what the agent relies on.
///
/// # Cancel safety
///
/// Dropping the future kills the engine.
pub(crate) async fn follow(
    settings: &StockSettings,
    name: &str,
    readiness: &Readiness,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let (launch, _) = launch::launch(settings, name, None)?;
    let Some(Launch { supervisor: mut engine, home: _home }) = launch else {
        anyhow::bail!("engine-follower: the engine is to be started here")
    };
    let mut looks = interval(INTERVAL);
    loop {
        tokio::select! {
            () = shutdown.wait() => {
                readiness.close();
                engine.stop(settings.stop_grace).await;
                return Ok(());
            }
            // Nobody can ask it anything: it is well while it runs.
            _ = looks.tick() => {
                engine.observe(Observation { health: Health::Ready, progress: Vec::new() });
            }
            event = engine.next_event() => match event {
                Some(Event::Started { pid, .. }) => {
                    tracing::info!(pid, "the engine follows another node");
                    readiness.set(true);
                }
                Some(Event::Failed { cause, restart_in }) => {
                    tracing::warn!(%cause, ?restart_in, "the engine ended");
                    readiness.set(false);
                }
                Some(_) => {}
                None => anyhow::bail!("the engine is given up"),
            }
        }
    }
}
