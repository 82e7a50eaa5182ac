//! A disk under the real store is never much worse than none, however slow it is.
//!
//! Conversations on one engine whose device holds a tenth of their KV. Disks are as many times as fast as the engine
//! computes: at 1 a block is read in the time in which it is computed. All is in virtual time, so each ratio is
//! the same in every run.

use super::World;
use crate::engine::{DiskLimits, EngineLimits, TierLimits};
use crate::policy::PolicyKind;
use crate::random::{Purpose, Random};
use crate::settings::{FleetSettings, Sides};
use crate::time::{MS, Ps, SECOND, from_seconds};
use crate::workload::{ArrivalTime, Workload, WorkloadRequest};
use stator_kv::store::TierAdmission;
use stator_timing::{PRESETS, Preset};
use std::sync::LazyLock;

const PRESET: &Preset = &PRESETS[1];
const BLOCK: u32 = 128;
const USERS: u32 = 48;
const TURNS: u32 = 5;
/// Tokens of the first turn, of each further one, and of an answer.
const FIRST: u32 = 1_024;
const MORE: u32 = 384;
const ANSWER: u32 = 128;
/// Requests each second. An engine with little to do is the hardest case: a load that takes some of its
/// work from it saves nothing but the time of the request itself.
const RATE: f64 = 1.0;
/// 1.25 is where disks begin to be read.
const SPEEDS: [f64; 9] = [0.1, 0.5, 0.9, 1.1, 1.24, 1.27, 1.5, 4.0, 20.0];
/// Worst mean TTFT that a tier may cost, as a multiple of that without tiers.
const WORST: f64 = 1.03;
/// Worst mean TTFT with a disk whose speed changes all the time.
const WORST_RESTLESS: f64 = 1.06;
/// Longer than all conversations.
const FOREVER: Ps = 100_000 * SECOND;

/// Mean TTFT without tiers, as [`mean_ttft`] returns it.
static WITHOUT: LazyLock<[f64; 2]> = LazyLock::new(|| mean_ttft(&fleet(None), &[1.0], FOREVER));

/// Users of each turn in another order, at random times.
fn conversations() -> Workload {
    let mut random = Random::new(1, Purpose::Shapes);
    let mut workload = Workload::new(BLOCK);
    let mut at = 0.0;
    for turn in 0..TURNS {
        let mut users: Vec<u32> = (0..USERS).collect();
        while !users.is_empty() {
            let user = users.swap_remove(random.below(users.len() as u32) as usize);
            at += random.exponential(1.0 / RATE);
            let tokens = FIRST + turn * (MORE + ANSWER);
            let first = user * 1_000;
            let arrival = ArrivalTime::At(from_seconds(at));
            let request = WorkloadRequest::new(arrival, tokens, ANSWER);
            workload.push(request, first..first + (tokens + ANSWER) / BLOCK);
        }
    }
    workload
}

/// Time in which a disk reads a block that is so many times as fast as the engine computes.
fn read_block(speed: f64) -> Ps {
    (EngineLimits::block_prefill(&PRESET.timing(), BLOCK) as f64 / speed) as Ps
}

fn fleet(disk_speed: Option<f64>) -> FleetSettings {
    let mut settings = FleetSettings::new(PRESET, Sides { aggregated: 1, ..Sides::default() });
    let disk = |speed| DiskLimits {
        blocks: 100_000,
        latency: MS / 5,
        read_block: read_block(speed),
        write_block: MS / 10,
        admission: TierAdmission::Through,
    };
    let EngineLimits { tiers, .. } = settings.limits;
    // Host memory has room for reads and writes under way, and is of no use otherwise.
    let tiers = TierLimits { host_blocks: 64, disk: disk_speed.map(disk), ..tiers };
    settings.limits = EngineLimits {
        block_size: BLOCK,
        total_blocks: USERS * (FIRST + TURNS * (MORE + ANSWER)) / BLOCK / 10,
        tiers: if disk_speed.is_some() { tiers } else { TierLimits::NONE },
        ..settings.limits
    };
    settings
}

/// Mean TTFT in picoseconds, of all requests and of those with a first token behind the middle, of a disk that has
/// these speeds in turn, each for so long, over and over.
fn mean_ttft(settings: &FleetSettings, speeds: &[f64], span: Ps) -> [f64; 2] {
    let workload = conversations();
    let mut world = World::new(settings, &workload, PolicyKind::Stator);
    let mut end = 0;
    for speed in speeds.iter().cycle() {
        world.set_disk_read(read_block(*speed));
        end += span;
        if !world.run_until(end).expect("no rule is broken") {
            break;
        }
    }
    let mean = |times: Vec<Ps>| times.iter().sum::<Ps>() as f64 / times.len() as f64;
    let late = mean(world.first_tokens(middle()).collect());
    let all = world.finish().expect("no rule is broken").requests;
    assert!(all.iter().all(|request| request.complete));
    [mean(all.iter().filter_map(|request| request.ttft).collect()), late]
}

/// The middle of the conversations.
fn middle() -> Ps {
    from_seconds(f64::from(USERS * TURNS) / RATE / 2.0)
}

/// Mean TTFT with a disk of these speeds in turn to that without, of all and of late requests.
fn ratios(speeds: &[f64], span: Ps) -> [f64; 2] {
    let with = mean_ttft(&fleet(Some(speeds[0])), speeds, span);
    [0, 1].map(|at| with[at] / WITHOUT[at])
}

#[test]
fn a_disk_of_any_speed_is_never_worse_than_computing() {
    for speed in SPEEDS {
        let [ratio, _] = ratios(&[speed], FOREVER);
        println!("{speed}: {ratio:.3}");
        assert!(ratio <= WORST, "{ratio} with a disk {speed} times as fast as computing");
        assert!(ratio < 0.5 || speed < 20.0, "{ratio}: the fastest disk is of no use");
    }
}

#[test]
fn a_disk_that_is_read_at_any_price_is_worse_than_computing() {
    let mut settings = fleet(Some(0.1));
    settings.limits.block_prefill = 100 * SECOND;
    let [all, _] = mean_ttft(&settings, &[0.1], FOREVER);
    assert!(all > 2.0 * WITHOUT[0], "the bound would hold without a rule: {all}, {WITHOUT:?}");
}

#[test]
fn a_disk_that_changes_its_speed_once_is_never_worse_than_computing() {
    for (first, then) in [(20.0, 0.1), (8.0, 0.02), (1.5, 0.6), (0.1, 20.0)] {
        let [all, late] = ratios(&[first, then, then, then], middle());
        println!("{first}, then {then}: {all:.3}, late {late:.3}");
        assert!(
            all <= WORST && late <= WORST,
            "{first}, then {then}: {all}, and {late} since then"
        );
    }
}

#[test]
fn a_disk_whose_speed_changes_all_the_time_costs_little() {
    for (fast, slow, seconds) in
        [(20.0, 0.1, 2.0), (3.0, 0.02, 0.2), (3.0, 0.02, 3.0), (1.5, 0.6, 5.0), (20.0, 0.1, 10.0)]
    {
        let [ratio, _] = ratios(&[fast, slow], from_seconds(seconds));
        println!("{fast} and {slow} every {seconds} s: {ratio:.3}");
        assert!(ratio <= WORST_RESTLESS, "{ratio}: {fast} and {slow}, every {seconds} s");
    }
}
