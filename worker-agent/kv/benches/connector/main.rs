//! Time from an engine's question to its answer, beside a bare ping-pong of messages of
//! the same sizes over the same kind of socket.
//!
//! `cargo bench -p stator-kv --bench connector`
//!
//! Round trips of both kinds alternate in one thread, so that a noisy machine disturbs both alike.

#[cfg(target_os = "linux")]
mod linux;

fn main() {
    #[cfg(target_os = "linux")]
    linux::run();
    #[cfg(not(target_os = "linux"))]
    println!("skipped: the connector needs Linux");
}
