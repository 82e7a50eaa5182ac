//! The ext-proc server on the wire: what a data plane sends and what it must get, over a real
//! gRPC connection. The director behind it follows a script, or is the one that the picker runs.

mod data_planes;
mod director;
mod hermetic;
mod hermetic_rpc;
mod late;
mod modes;
mod needs;
mod plane;
mod pool;
mod refusals;
mod request;
mod response;
mod scenarios;
mod server;
mod sessions;
mod show;
mod streams;
mod tokens;
