//! Causes of an engine's end.

use crate::ending::{Ending, Exit};
use crate::memory::OomKills;
use crate::phase::Phase;
use std::time::Duration;

/// Cause of an engine's end that nobody asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The engine could not be started: no such program, no permission, no port.
    #[error("cannot be started: {error}")]
    NotStarted {
        /// The error of the start.
        error: String,
    },
    /// The engine ended by itself.
    #[error("exited with code {code}{}", quote(.last_words))]
    Exit {
        /// Its exit code.
        code: i32,
        /// The last line that looks like an error, if there is one.
        last_words: Option<String>,
    },
    /// A foreign signal ended the engine.
    #[error("ended by signal {signal}{}", quote(.last_words))]
    Signal {
        /// The signal's number.
        signal: i32,
        /// The last line that looks like an error, if there is one.
        last_words: Option<String>,
    },
    /// Memory of the machine or of a device ran out.
    #[error("out of memory: {evidence}")]
    OutOfMemory {
        /// Evidence for it.
        evidence: String,
    },
    /// The engine had requests and made no progress.
    #[error("hung: {running} requests are running, no step for {stalled:?}")]
    Hung {
        /// Requests in the batch.
        running: u32,
        /// Time without progress.
        stalled: Duration,
    },
    /// The engine was ready and its process lives, but it does not answer as it should.
    #[error("half dead: not healthy for {lasted:?}: {reason}")]
    HalfDead {
        /// The wrong answer, or the lack of one.
        reason: String,
        /// Time without a good answer.
        lasted: Duration,
    },
    /// The engine did not become ready in time.
    #[error("not ready after {waited:?}, in phase {phase}{}", quote(.why))]
    StartTimeout {
        /// The time it had.
        waited: Duration,
        /// Last phase of the start.
        phase: Phase,
        /// Latest answer to a health check, if there was one.
        why: Option<String>,
    },
    /// The engine was killed, and the kernel did not end it in time.
    #[error("{cause}; killed, and not gone after {waited:?}")]
    NotGone {
        /// The time it had.
        waited: Duration,
        /// Cause of the kill.
        cause: Box<Cause>,
    },
}

const SIGKILL: i32 = 9;
/// Exit code that a shell reports for a child ended by SIGKILL.
const SHELL_SIGKILL: i32 = 128 + SIGKILL;

/// Messages that engines print when memory is out, of a device or of the machine.
const OUT_OF_MEMORY: [&str; 15] = [
    // Python's own and PyTorch's `OutOfMemoryError`.
    "MemoryError",
    "CUDA out of memory",
    "HIP out of memory",
    // `CUDA error: out of memory` and the like: of a driver, below PyTorch, Triton and TensorRT-LLM.
    ": out of memory",
    "'out of memory'",
    "cudaErrorMemoryAllocation",
    "std::bad_alloc",
    "Cannot allocate memory",
    "cannot allocate memory",
    // vLLM, where there is less than it was told to take, and where nothing is left for KV.
    "on startup is less than",
    "is less than requested memory for kv",
    "No available memory for the cache blocks",
    "which is larger than the available KV cache memory",
    // SGLang, before it begins and when its pool is full of requests that run.
    "Not enough memory. Please try to increase --mem-fraction-static",
    "of memory. Try to lower your batch size",
];

/// Markers of lines that explain an end.
const EXPLANATIONS: [&str; 4] = ["Error:", "ERROR", "error:", "CRITICAL"];

impl Cause {
    /// The cause as a label of metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotStarted { .. } => "not_started",
            Self::Exit { .. } => "exit",
            Self::Signal { .. } => "signal",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::Hung { .. } => "hung",
            Self::HalfDead { .. } => "half_dead",
            Self::StartTimeout { .. } => "start_timeout",
            Self::NotGone { .. } => "not_gone",
        }
    }

    /// All labels, for counters that start at zero.
    pub const LABELS: [&'static str; 8] = [
        "not_started",
        "exit",
        "signal",
        "out_of_memory",
        "hung",
        "half_dead",
        "start_timeout",
        "not_gone",
    ];

    /// The cause of an end that the supervisor did not ask for.
    pub(crate) fn of(ending: Ending) -> Self {
        let Ending { exit, tail, out_of_memory, kills } = ending;
        let evidence = match exit {
            Exit::Signal(SIGKILL) | Exit::Code(SHELL_SIGKILL) => killed_for_memory(kills),
            // A process of the group was killed, and the one that leads it gave up.
            _ if kills.own() > 0 => Some("the kernel killed a process of the engine".to_owned()),
            _ => None,
        };
        if let Some(evidence) = evidence.or(out_of_memory) {
            return Self::OutOfMemory { evidence };
        }
        let last_words = tail.iter().rev().find(|line| contains(line, &EXPLANATIONS)).cloned();
        match exit {
            Exit::Code(code) => Self::Exit { code, last_words },
            Exit::Signal(signal) => Self::Signal { signal, last_words },
        }
    }
}

/// Whether a line reports that memory is out.
pub(crate) fn tells_of_memory(line: &str) -> bool {
    contains(line, &OUT_OF_MEMORY)
}

/// Evidence that the kernel sent a SIGKILL which the supervisor did not. Without a counter this is
/// assumed: on a machine that serves a model, the kernel is the likely killer.
fn killed_for_memory(kills: OomKills) -> Option<String> {
    match kills {
        OomKills::Unknown => Some("killed, probably by the kernel".to_owned()),
        OomKills::Own(0) | OomKills::Machine(0) => None,
        OomKills::Own(_) | OomKills::Machine(_) => Some("killed by the kernel".to_owned()),
    }
}

fn contains(line: &str, words: &[&str]) -> bool {
    words.iter().any(|word| line.contains(word))
}

fn quote(last_words: &Option<String>) -> String {
    last_words.as_ref().map_or_else(String::new, |line| format!(": {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(exit: Exit, tail: &[&str], kills: OomKills, label: &str) -> Cause {
        let tail: Vec<_> = tail.iter().map(|line| (*line).to_owned()).collect();
        let out_of_memory = tail.iter().rev().find(|line| tells_of_memory(line)).cloned();
        let cause = Cause::of(Ending { exit, tail, out_of_memory, kills });
        assert_eq!(cause.label(), label, "{cause}");
        assert!(Cause::LABELS.contains(&cause.label()));
        cause
    }

    #[test]
    fn an_exit_is_explained_by_the_last_line_that_tells_of_an_error() {
        let tail = ["ValueError: no such model", "shutting down", "bye"];
        let cause = check(Exit::Code(1), &tail, OomKills::Own(0), "exit");
        assert_eq!(cause.to_string(), "exited with code 1: ValueError: no such model");
        let cause = check(Exit::Code(0), &[], OomKills::Own(0), "exit");
        assert_eq!(cause.to_string(), "exited with code 0");
    }

    #[test]
    fn a_kill_is_a_lack_of_memory_where_the_kernel_says_so_or_cannot_be_asked() {
        for exit in [Exit::Signal(9), Exit::Code(137)] {
            check(exit, &[], OomKills::Own(1), "out_of_memory");
            check(exit, &[], OomKills::Machine(2), "out_of_memory");
            check(exit, &[], OomKills::Unknown, "out_of_memory");
        }
        check(Exit::Signal(9), &[], OomKills::Own(0), "signal");
        check(Exit::Code(137), &[], OomKills::Machine(0), "exit");
        check(Exit::Signal(11), &[], OomKills::Unknown, "signal");
    }

    #[test]
    fn a_killed_part_of_the_engine_explains_the_exit_of_the_rest() {
        check(Exit::Code(1), &[], OomKills::Own(1), "out_of_memory");
        // Elsewhere on the machine somebody may have been killed.
        check(Exit::Code(1), &[], OomKills::Machine(1), "exit");
    }

    #[test]
    fn what_the_engine_prints_tells_that_a_devices_memory_is_out() {
        let tail = [
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "RuntimeError: Engine core initialization failed",
        ];
        let cause = check(Exit::Code(1), &tail, OomKills::Own(0), "out_of_memory");
        assert!(cause.to_string().contains("2.00 GiB"), "{cause}");
        for line in [
            "MemoryError: std::bad_alloc",
            "RuntimeError: CUDA error: out of memory",
            "RuntimeError: Out of memory. Try to lower your batch size.",
        ] {
            check(Exit::Code(0), &[line], OomKills::Own(0), "out_of_memory");
        }
    }

    #[test]
    fn what_real_engines_print_where_memory_is_missing_is_understood() {
        for (line, label) in RECORDED {
            check(Exit::Code(1), &[line], OomKills::Own(0), label);
        }
    }

    /// Of vLLM 0.32: told to take more for KV than there is, and given nothing more while it served;
    /// and of a start that goes well.
    const RECORDED: [(&str, &str); 3] = [
        (
            "ValueError: Available memory on node 0 (20.61/23.54 GiB) on kv cache allocation is \
            less than requested memory for kv (65536.0 GiB). Decrease --kv-cache-memory-bytes",
            "out_of_memory",
        ),
        ("cannot allocate memory for thread-local data: ABORT", "out_of_memory"),
        (
            "Free memory on device (20.61/23.54 GiB) on startup. Desired GPU memory utilization",
            "exit",
        ),
    ];
}
