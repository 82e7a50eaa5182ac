//! Flags of a profile.

use std::path::PathBuf;

use clap::Args;

/// Profile of an engine in place of a measurement under load.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Profile")]
pub struct ProfileArgs {
    /// Measure the times of the engine's steps over a grid of prompt lengths and batches, and write
    /// them with the roofline that fits them best, for `stator plan --profile` and `stator planner
    /// --timing`. The engine must be one worker without any other load.
    #[arg(long, value_name = "FILE", env = "STATOR_BENCH_PROFILE")]
    pub profile: Option<PathBuf>,
    /// Prompt lengths of the grid, 1 to 1000000 tokens each.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "128,512,2048,4096",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000), env = "STATOR_BENCH_PROFILE_PROMPTS")]
    pub profile_prompts: Vec<u32>,
    /// Sequences that decode together, 1 to 4096 each.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4,16",
          value_parser = clap::value_parser!(u32).range(1..=4_096), env = "STATOR_BENCH_PROFILE_BATCHES")]
    pub profile_batches: Vec<u32>,
    /// Tokens of each answer, of which the steps are timed, 8 to 65536.
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(8..=65_536), env = "STATOR_BENCH_PROFILE_TOKENS")]
    pub profile_tokens: u32,
    /// Times that each prompt length is measured, 1 to 1000; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1_000), env = "STATOR_BENCH_PROFILE_REPEATS")]
    pub profile_repeats: u32,
    /// Tokens that the engine computes in one step, 1 to 1048576.
    #[arg(long, value_name = "N", default_value_t = 8_192,
          value_parser = clap::value_parser!(u32).range(1..=1_048_576), env = "STATOR_BENCH_PROFILE_STEP_TOKENS")]
    pub profile_step_tokens: u32,
    /// GPUs of the worker, 1 to 4096.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4_096), env = "STATOR_BENCH_PROFILE_GPUS")]
    pub profile_gpus: u32,
}
