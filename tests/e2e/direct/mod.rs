//! `stator proxy --mode direct` beside simulated engines: alone, and behind a real Envoy and a
//! real picker.

mod gateway;
mod pair;
mod process;
mod supplies;
mod testbed;
mod tls;
