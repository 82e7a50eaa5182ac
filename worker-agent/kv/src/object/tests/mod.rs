//! The tier as its store sees it: what is asked, and what is reported.

mod bench;
mod directory;
mod faults;
mod moto;
mod outage;
mod s3_server;
