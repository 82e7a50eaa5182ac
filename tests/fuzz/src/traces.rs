//! Recorded traces are read by the load generator and by the simulator, or refused with the line.

use stator_bench::args::TraceArgs;
use stator_bench::workload::{Content, Trace};
use stator_fleet_model::fuzz::{REQUESTS_MAX, trace};

const ARGS: TraceArgs = TraceArgs {
    trace: None,
    limit: 1000,
    speed: 1.0,
    length_scale: 1.0,
    prompt_tokens_max: None,
    output_tokens_max: None,
};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        match trace(text) {
            Ok(requests) => assert!(requests <= REQUESTS_MAX as usize),
            Err((_, fault)) => assert!(!fault.is_empty()),
        }
    }
    if let Ok(trace) = Trace::parse(input, &ARGS, Content::tokens(1000), 1) {
        let times = trace.times();
        assert!(times.is_sorted() && times.len() as u64 == trace.len());
    }
}
