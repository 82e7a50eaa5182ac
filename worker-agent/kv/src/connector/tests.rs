//! The server against shims with real sockets, and engines in processes of their own.

#![cfg(target_os = "linux")]

mod conduct;
mod devices;
mod invariants;
mod kills;
mod kit;
mod naming;
