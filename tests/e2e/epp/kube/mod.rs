//! A picker that follows a cluster. All tests share one API server, each in a namespace of its
//! own, but for the one that stops it.

mod bed;
mod control_plane;
mod gateway;
mod metrics;
mod pods;
mod policies;
mod pools;
mod traffic;
