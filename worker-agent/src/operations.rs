//! Operations on engines: the second service of the agent's gRPC port.

pub(crate) mod access;
pub(crate) mod adapters;
mod caller;
pub(crate) mod client;
mod kv;
mod kv_client;
mod kv_prompt;
mod kv_text;

use crate::availability::Availability;
use crate::kv::tiers::TierDesk;
use crate::operations::access::Access;
use crate::worker::{Command, OperationOrder};
use kv::KvRefusal;
use stator_dialect::{Fault, Operation};
use stator_protos::worker::operate_kv_request;
use stator_protos::worker::operate_request::Operation as WireOperation;
use stator_protos::worker::operations_server::Operations;
use stator_protos::worker::{OperateKvRequest, OperateKvResponse, OperateRequest, OperateResponse};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

/// Highest sleep level.
const SLEEP_LEVEL_MAX: u32 = 2;
/// Longest name and path, in bytes.
const NAME_BYTES_MAX: usize = 256;
const PATH_BYTES_MAX: usize = 4096;
/// Longest request in an engine's own words, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// Things to operate.
    pub(crate) operated: Operated,
    /// Check of callers.
    pub(crate) access: Access,
}

/// Things of an agent that operators reach.
#[derive(Clone, Debug)]
pub(crate) struct Operated {
    /// The engines.
    pub(crate) engines: OperatedEngines,
    /// The tiers that keep KV outside the engines.
    pub(crate) tiers: TierDesk,
}

/// OperatedEngines that are operated.
#[derive(Clone, Debug)]
pub(crate) enum OperatedEngines {
    /// OperatedEngines of our own: each driver gets the operation.
    Own {
        /// The drivers.
        drivers: Vec<mpsc::Sender<Command>>,
        /// Shut while they rest.
        availability: Availability,
    },
    /// A stock engine: its keeper gets the operation.
    Stock(mpsc::Sender<OperationOrder>),
}

impl OperatedEngines {
    async fn run(&self, operation: Operation) -> Result<(), Fault> {
        match self {
            Self::Own { drivers, availability } => {
                let rested = availability.is_resting();
                if matches!(operation, Operation::Pause | Operation::Sleep { .. }) {
                    // What came from now on would be refused.
                    availability.set_resting(true);
                }
                let done = order_all(&operation, drivers).await;
                match operation {
                    _ if done.is_err() => availability.set_resting(rested),
                    Operation::Resume | Operation::Wake => availability.set_resting(false),
                    _ => {}
                }
                done
            }
            Self::Stock(keeper) => order(operation, keeper, |order| order).await,
        }
    }
}

/// Has all drivers do the same.
async fn order_all(operation: &Operation, drivers: &[mpsc::Sender<Command>]) -> Result<(), Fault> {
    for driver in drivers {
        order(operation.clone(), driver, Command::Operate).await?;
    }
    Ok(())
}

async fn order<T>(
    operation: Operation,
    to: &mpsc::Sender<T>,
    command: impl FnOnce(OperationOrder) -> T,
) -> Result<(), Fault> {
    let gone = || Fault::Unreachable("the engine has ended".into());
    let (answer, answered) = oneshot::channel();
    to.send(command(OperationOrder { operation, answer })).await.map_err(|_| gone())?;
    answered.await.unwrap_or_else(|_| Err(gone()))
}

#[tonic::async_trait]
impl Operations for Service {
    async fn operate_kv(
        &self,
        request: Request<OperateKvRequest>,
    ) -> Result<Response<OperateKvResponse>, Status> {
        self.access.check(request.metadata(), request.extensions()).await?;
        let (request, tiers) = (request.into_inner(), self.operated.tiers.clone());
        if !matches!(request.operation, Some(operate_kv_request::Operation::Look(_))) {
            let operation = kv::shown(&request);
            tracing::info!(operation, "an operation on KV tiers was asked for");
        }
        // It may look at a million blocks.
        let done = tokio::task::spawn_blocking(move || kv::operate(request, &tiers)).await;
        match done.map_err(|error| Status::internal(error.to_string()))? {
            Ok(response) => Ok(Response::new(response)),
            Err(refusal @ KvRefusal::NoTiers(_)) => {
                Err(Status::failed_precondition(refusal.to_string()))
            }
            Err(refusal) => Err(Status::invalid_argument(refusal.to_string())),
        }
    }

    async fn operate(
        &self,
        request: Request<OperateRequest>,
    ) -> Result<Response<OperateResponse>, Status> {
        self.access.check(request.metadata(), request.extensions()).await?;
        let operation = operation(request.into_inner()).map_err(Status::invalid_argument)?;
        tracing::info!(operation = shown(&operation), "an operation was asked for");
        match self.operated.engines.run(operation).await {
            Ok(()) => Ok(Response::new(OperateResponse {})),
            Err(fault) => {
                let message = fault.to_string();
                Err(match fault {
                    Fault::Invalid(_) => Status::invalid_argument(message),
                    Fault::Overloaded(_) => Status::resource_exhausted(message),
                    Fault::Unsupported(_) | Fault::Half(_) => Status::unimplemented(message),
                    Fault::Unreachable(_) => Status::unavailable(message),
                    Fault::Aborted(_) => Status::aborted(message),
                    Fault::Failed(_) => Status::internal(message),
                })
            }
        }
    }
}

/// Text of an operation for the log. An engine's own words may be long, and have secrets.
fn shown(operation: &Operation) -> String {
    match operation {
        Operation::UpdateWeights { .. } => "UpdateWeights".into(),
        other => format!("{other:?}"),
    }
}

/// # Errors
///
/// A message that names the field, its value and its limit.
fn operation(request: OperateRequest) -> Result<Operation, String> {
    let text = |field: &str, text: String, limit: usize| match text.len() {
        bytes if bytes == 0 || bytes > limit => {
            Err(format!("{field}: {bytes} bytes, 1 to {limit}"))
        }
        _ => Ok(text),
    };
    Ok(match request.operation.ok_or("operation: it is missing, or of a later version")? {
        WireOperation::ResetCache(_) => Operation::ResetCache,
        WireOperation::Pause(_) => Operation::Pause,
        WireOperation::Resume(_) => Operation::Resume,
        WireOperation::Sleep(sleep) if sleep.level > SLEEP_LEVEL_MAX => {
            return Err(format!("sleep.level: {} is not in 0..={SLEEP_LEVEL_MAX}", sleep.level));
        }
        WireOperation::Sleep(sleep) => Operation::Sleep { level: sleep.level as u8 },
        WireOperation::Wake(_) => Operation::Wake,
        WireOperation::LoadAdapter(load) => Operation::LoadAdapter {
            name: text("load_adapter.name", load.name, NAME_BYTES_MAX)?,
            path: text("load_adapter.path", load.path, PATH_BYTES_MAX)?,
        },
        WireOperation::UnloadAdapter(unload) => {
            let name = text("unload_adapter.name", unload.name, NAME_BYTES_MAX)?;
            Operation::UnloadAdapter { name }
        }
        WireOperation::StartProfile(_) => Operation::StartProfile,
        WireOperation::StopProfile(_) => Operation::StopProfile,
        WireOperation::UpdateWeights(update) => Operation::UpdateWeights {
            request: text("update_weights.request_json", update.request_json, REQUEST_BYTES_MAX)?
                .into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::worker::{LoadAdapter, Sleep, UnloadAdapter};

    fn check(asked: WireOperation) -> Result<Operation, String> {
        operation(OperateRequest { operation: Some(asked) })
    }

    #[test]
    fn operations_are_taken_within_their_limits() {
        let load = LoadAdapter { name: "a".into(), path: "/a".into() };
        let expected = Operation::LoadAdapter { name: "a".into(), path: "/a".into() };
        assert_eq!(check(WireOperation::LoadAdapter(load)), Ok(expected));
        let unload = UnloadAdapter { name: String::new() };
        let error = check(WireOperation::UnloadAdapter(unload)).unwrap_err();
        assert_eq!(error, "unload_adapter.name: 0 bytes, 1 to 256");
        let error = check(WireOperation::Sleep(Sleep { level: 3 })).unwrap_err();
        assert_eq!(error, "sleep.level: 3 is not in 0..=2");
        let error = operation(OperateRequest { operation: None }).unwrap_err();
        assert_eq!(error, "operation: it is missing, or of a later version");
    }

    #[test]
    fn no_log_has_an_engines_own_words() {
        let update = Operation::UpdateWeights { request: "hush".into() };
        assert_eq!(shown(&update), "UpdateWeights");
        assert_eq!(shown(&Operation::Sleep { level: 1 }), "Sleep { level: 1 }");
    }
}
