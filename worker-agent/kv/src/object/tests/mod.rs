//! The tier as its store sees it: what is asked, and what is reported.

mod bench;
mod directory;
pub(crate) mod faults;
mod moto;
mod outage;
pub(crate) mod s3_server;
