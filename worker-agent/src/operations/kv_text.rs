//! The state of KV tiers in words and in JSON.

use serde_json::{Value, json as value};
use stator_protos::worker::{KvEvicted, KvPinned, KvStatus, KvTierStatus, KvWayStatus};
use std::fmt::Write;

/// A state that was seen so many seconds before, for rates.
pub(super) type Earlier<'s> = Option<(u64, &'s KvStatus)>;

/// The state as a table for people.
pub(super) fn table(status: &KvStatus, since: Earlier<'_>) -> String {
    let mut out = String::new();
    let hits = status.host_hit_blocks + status.lower_hit_blocks;
    let rate = |part: u64| 100.0 * part as f64 / status.asked_blocks.max(1) as f64;
    let _ = writeln!(
        out,
        "blocks of {}; {} asked for, {:.1} % found (host {:.1} %, below {:.1} %); policy {}",
        size(status.block_bytes),
        status.asked_blocks,
        rate(hits),
        rate(status.host_hit_blocks),
        rate(status.lower_hit_blocks),
        status.policy
    );
    let _ = writeln!(
        out,
        "{} filled, {} evicted from host memory, {} of them for good; {} waits cut; {} damaged",
        status.filled_blocks,
        status.evicted_blocks,
        status.lost_blocks,
        status.waits_cut,
        status.corrupt_blocks
    );
    let head = ["tier", "used", "of", "blocks", "pinned", "read", "written", "state"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(status.tiers.iter().map(|tier| row(tier, since)));
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    out
}

fn row(tier: &KvTierStatus, since: Earlier<'_>) -> [String; 8] {
    let is_host = tier.reads.is_none();
    let before = since.and_then(|(seconds, status)| {
        Some((seconds, status.tiers.iter().find(|other| other.name == tier.name)?))
    });
    let way = |of: fn(&KvTierStatus) -> Option<&KvWayStatus>| match (of(tier), before) {
        (None, _) => "-".to_owned(),
        (Some(now), None) => size(now.bytes),
        (Some(now), Some((seconds, before))) => {
            let moved = now.bytes - of(before).map_or(0, |way| way.bytes.min(now.bytes));
            format!("{}, {}/s", size(now.bytes), size(moved / seconds.max(1)))
        }
    };
    let capacity = match tier.capacity_bytes {
        0 => "no limit".to_owned(),
        bytes => size(bytes),
    };
    let pinned = match (is_host, tier.kept_blocks) {
        (false, _) => "-".to_owned(),
        (true, 0) => tier.pinned_blocks.to_string(),
        (true, kept) => format!("{} ({kept} by kv-pin)", tier.pinned_blocks),
    };
    [
        tier.name.clone(),
        size(tier.used_bytes),
        capacity,
        tier.blocks.to_string(),
        pinned,
        way(|tier| tier.reads.as_ref()),
        way(|tier| tier.writes.as_ref()),
        state(tier),
    ]
}

/// Troubles of a tier, present or past, in words; `good` if there is none.
fn state(tier: &KvTierStatus) -> String {
    let mut said = Vec::new();
    if tier.is_off {
        said.push("off by kv-limit".to_owned());
    }
    if tier.left_alone_ms > 0 {
        said.push(format!("left alone for {} ms more: it kept failing", tier.left_alone_ms));
    }
    if tier.is_stalled {
        said.push("stalled: no read has ended for 2 s".to_owned());
    }
    if tier.writes_paused_ms > 0 {
        said.push(format!("no writes for {} ms: no room, or too busy", tier.writes_paused_ms));
    }
    let ways = [("reads", &tier.reads), ("writes", &tier.writes)];
    for (name, way) in ways.into_iter().filter_map(|(name, way)| Some((name, way.as_ref()?))) {
        let bad = [
            ("corrupt", way.corrupt),
            ("busy", way.busy),
            ("full", way.full),
            ("failed", way.failed),
        ];
        said.extend(bad.iter().filter(|(_, n)| *n > 0).map(|(why, n)| format!("{n} {name} {why}")));
    }
    if tier.refused_by_cost_blocks > 0 {
        said.push(format!("{} blocks faster to compute", tier.refused_by_cost_blocks));
    }
    if tier.refused_by_load_blocks > 0 {
        said.push(format!("{} blocks computed for its sake", tier.refused_by_load_blocks));
    }
    if said.is_empty() {
        said.push("good".to_owned());
    }
    if tier.read_bytes_per_s > 0 {
        let latency = f64::from(tier.read_latency_us) / 1000.0;
        said.push(format!("reads {latency:.1} ms + {}/s", size(tier.read_bytes_per_s)));
    }
    said.join(", ")
}

/// The state as JSON, in the words of the protocol.
pub(super) fn json(status: &KvStatus, since: Earlier<'_>) -> Value {
    let tiers = status.tiers.iter().map(|tier| {
        value!({
            "name": tier.name,
            "capacity_bytes": tier.capacity_bytes,
            "used_bytes": tier.used_bytes,
            "blocks": tier.blocks,
            "pinned_blocks": tier.pinned_blocks,
            "kept_blocks": tier.kept_blocks,
            "reads": tier.reads.as_ref().map(way_json),
            "writes": tier.writes.as_ref().map(way_json),
            "backlog_blocks": tier.backlog_blocks,
            "is_off": tier.is_off,
            "left_alone_ms": tier.left_alone_ms,
            "writes_paused_ms": tier.writes_paused_ms,
            "is_stalled": tier.is_stalled,
            "read_latency_us": tier.read_latency_us,
            "read_bytes_per_s": tier.read_bytes_per_s,
            "write_bytes_per_s_max": tier.write_bytes_per_s_max,
            "refused_by_cost_blocks": tier.refused_by_cost_blocks,
            "refused_by_load_blocks": tier.refused_by_load_blocks,
            "state": state(tier),
        })
    });
    let earlier =
        since.map(|(seconds, before)| value!({ "seconds": seconds, "state": json(before, None) }));
    value!({
        "block_bytes": status.block_bytes,
        "policy": status.policy,
        "asked_blocks": status.asked_blocks,
        "host_hit_blocks": status.host_hit_blocks,
        "lower_hit_blocks": status.lower_hit_blocks,
        "filled_blocks": status.filled_blocks,
        "corrupt_blocks": status.corrupt_blocks,
        "evicted_blocks": status.evicted_blocks,
        "lost_blocks": status.lost_blocks,
        "waits_cut": status.waits_cut,
        "tiers": tiers.collect::<Vec<_>>(),
        "earlier": earlier,
    })
}

fn way_json(way: &KvWayStatus) -> Value {
    value!({
        "in_flight": way.in_flight,
        "done": way.done,
        "bytes": way.bytes,
        "missing": way.missing,
        "corrupt": way.corrupt,
        "busy": way.busy,
        "full": way.full,
        "failed": way.failed,
    })
}

/// Outcome of pinning, in words.
pub(super) fn pinned(pinned: &KvPinned, seconds: u32) -> String {
    let KvPinned { asked_blocks, host_blocks, coming_blocks, refused_blocks } = pinned;
    let mut text = format!(
        "of {asked_blocks} blocks {host_blocks} stay in host memory for {seconds} s, \
         {coming_blocks} as soon as they are there"
    );
    if *refused_blocks > 0 {
        let _ = write!(text, "; {refused_blocks} do not: half of host memory is pinned");
    }
    text
}

/// Outcome of evicting, in words.
pub(super) fn evicted(evicted: &KvEvicted) -> String {
    let KvEvicted { asked_blocks, host_blocks, lower_copies } = evicted;
    format!(
        "of {asked_blocks} blocks {host_blocks} left host memory; \
         {lower_copies} copies below are forgotten"
    )
}

/// Bytes in words, with the units of the flags.
fn size(bytes: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let fits = units.into_iter().find(|(unit, _)| bytes as f64 >= *unit);
    fits.map_or_else(
        || format!("{bytes} B"),
        |(by, unit)| format!("{:.1} {unit}", bytes as f64 / by),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> KvStatus {
        let reads = KvWayStatus { done: 3, bytes: 6_000_000, corrupt: 1, ..Default::default() };
        let disk = KvTierStatus {
            name: "disk".into(),
            capacity_bytes: 2_000_000_000_000,
            used_bytes: 8_000_000,
            blocks: 4,
            reads: Some(reads),
            writes: Some(KvWayStatus::default()),
            left_alone_ms: 900,
            read_latency_us: 1500,
            read_bytes_per_s: 1_200_000_000,
            ..Default::default()
        };
        let host = KvTierStatus {
            name: "host".into(),
            capacity_bytes: 64_000_000_000,
            pinned_blocks: 5,
            kept_blocks: 2,
            ..Default::default()
        };
        KvStatus {
            block_bytes: 2_000_000,
            policy: "lru".into(),
            asked_blocks: 8,
            host_hit_blocks: 4,
            lower_hit_blocks: 2,
            tiers: vec![host, disk],
            ..Default::default()
        }
    }

    #[test]
    fn a_table_says_room_hits_and_what_is_wrong() {
        let text = table(&status(), None);
        let expected = [
            "blocks of 2.0 MB; 8 asked for, 75.0 % found (host 50.0 %, below 25.0 %); policy lru",
            "0 filled, 0 evicted from host memory, 0 of them for good; 0 waits cut; 0 damaged",
            "tier  used    of       blocks  pinned           read    written  state",
            "host  0 B     64.0 GB  0       5 (2 by kv-pin)  -       -        good",
            "disk  8.0 MB  2.0 TB   4       -                6.0 MB  0 B      left alone for 900 ms \
             more: it kept failing, 1 reads corrupt, reads 1.5 ms + 1.2 GB/s",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn two_looks_give_rates() {
        let (before, mut now) = (status(), status());
        now.tiers[1].reads.as_mut().unwrap().bytes += 5_000_000;
        let text = table(&now, Some((2, &before)));
        assert!(text.contains("11.0 MB, 2.5 MB/s"), "{text}");
        let json = json(&now, Some((2, &before)));
        assert_eq!(json["tiers"][1]["reads"]["bytes"], 11_000_000);
        assert_eq!(json["earlier"]["state"]["tiers"][1]["reads"]["bytes"], 6_000_000);
    }
}
