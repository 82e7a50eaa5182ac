//! Time to the first token of a prompt that another worker holds, fetched from there and computed, by the length of
//! the prompt and the speed of the link: the crossover in docs/benchmarks/kv.md.
//!
//! `cargo run --release -p stator-fleet-model --example fetch [PRESET]`
//!
//! One of two workers computes a prompt, and later a long one that begins with it. Meanwhile the prompt comes
//! again with another question: the other worker gets it, and fetches or computes. A column has the link in
//! gigabytes a second. Each cell says how long the first token takes if the worker fetches whatever that costs,
//! and after the comma if the agents' rule decides, as a share of the time without fetching.

use stator_fleet_model::time::{MS, Ps, SECOND, from_seconds, ms};
use stator_fleet_model::{
    ArrivalTime, EngineLimits, FleetSettings, PeerLimits, PolicyKind, Sides, TierLimits, Violation,
    Workload, WorkloadRequest, World,
};
use stator_timing::{PRESETS, Preset};
use std::error::Error;

const LINKS_GB_S: [f64; 9] = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 25.0, 40.0];
const PROMPTS: [u32; 7] = [512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768];
/// Tokens of the question behind a prompt, and of what keeps the holder busy.
const QUESTION: u32 = 64;
const BUSY: u32 = 65_536;
/// Prompts in a row. The first ones measure the link.
const ROUNDS: u32 = 12;
const MEASURED_ROUNDS: u32 = 4;
/// Time from prompt to prompt.
const ROUND: Ps = 60 * SECOND;
/// Before the first byte of a fetch.
const LATENCY: Ps = MS;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "h100-llama-8b".into());
    let preset = PRESETS.iter().find(|preset| preset.name == name);
    let preset = preset.ok_or_else(|| format!("{name}: no such preset"))?;
    let links = LINKS_GB_S.map(|link| format!(" | {link}")).concat();
    println!("tokens | computed, ms{links}");
    for prompt in PROMPTS {
        let computed = first_token(preset, prompt, None, false)?;
        let mut cells = String::new();
        for link in LINKS_GB_S {
            let [always, rule] = [true, false]
                .map(|always| first_token(preset, prompt, Some(link), always))
                .map(|time| time.map(|time| time as f64 / computed as f64));
            cells += &format!(" | {:.2}, {:.2}", always?, rule?);
        }
        println!("{prompt} | {:.1}{cells}", ms(computed));
    }
    Ok(())
}

/// Mean time to the first token of the prompts that come again.
fn first_token(
    preset: &Preset,
    prompt: u32,
    link_gb_s: Option<f64>,
    always: bool,
) -> Result<Ps, Violation> {
    let mut settings = FleetSettings::new(preset, Sides { aggregated: 2, ..Sides::default() });
    let EngineLimits { block_size, tiers, .. } = settings.limits;
    let block_bytes = f64::from(block_size) * preset.kv_token_bytes();
    let peers = link_gb_s.map(|link| PeerLimits {
        latency: LATENCY,
        block: from_seconds(block_bytes / (link * 1e9)),
    });
    settings.limits.tiers =
        TierLimits { host_blocks: settings.limits.total_blocks, peers, ..tiers };
    if always {
        // Whoever takes computing to be that slow fetches at any price.
        settings.limits.block_prefill = 100 * SECOND;
    }
    let workload = workload(prompt, block_size);
    let mut world = World::new(&settings, &workload, PolicyKind::Stator);
    while world.step()? {}
    let again = world.finish()?.requests.into_iter().skip(2).step_by(3);
    let measured = again.skip((ROUNDS - MEASURED_ROUNDS) as usize).filter_map(|of| of.ttft);
    Ok(measured.sum::<Ps>() / Ps::from(MEASURED_ROUNDS))
}

/// Of each prompt: it is computed, the holder gets more to do, and the prompt comes again.
fn workload(prompt: u32, block_size: u32) -> Workload {
    let mut workload = Workload::new(block_size);
    let blocks = prompt / block_size;
    for round in 0..ROUNDS {
        let first = round * blocks;
        let start = ROUND * Ps::from(round);
        for (after, more) in
            [(0, QUESTION), (20 * SECOND, BUSY), (20 * SECOND + 200 * MS, QUESTION)]
        {
            let arrival = ArrivalTime::At(start + after);
            let request = WorkloadRequest::new(arrival, prompt + more, 1);
            workload.push(request, first..first + blocks);
        }
    }
    workload
}
