//! The ext-proc server on the wire: what a data plane sends and what it must get, over a real
//! gRPC connection. The director behind it follows a script.

mod data_planes;
mod director;
mod late;
mod modes;
mod plane;
mod refusals;
mod request;
mod response;
mod server;
mod show;
mod streams;
