//! Load reports: how busy a worker is, sent on the event plane beside its KV events.

use crate::msgpack::{MsgpackReader, MsgpackValue};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

pub use crate::msgpack::DecodeError;

/// Load of one worker at one moment. A MessagePack array on the wire, fields in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests that wait for room.
    pub waiting: u32,
    /// KV blocks that running requests use.
    pub used_blocks: u32,
    /// KV blocks that hold reusable prefixes and can be evicted.
    pub cached_blocks: u32,
    /// KV blocks in all.
    pub total_blocks: u32,
    /// Prompt tokens of waiting and running requests that are still to be computed.
    pub pending_prefill_tokens: u64,
    /// Measured costs of loading blocks from outside the engine.
    pub costs: TierCosts,
}

/// Measured costs of a worker's blocks: to compute them, and to load them from outside its engine. An
/// array on the wire, the fields of each place one after the other. Zeros say that nothing was
/// measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierCosts {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Time in which the engine computes a block of a prompt, in nanoseconds.
    pub compute_ns: u64,
    /// Loads from the host memory of the worker's agent.
    pub host: LoadCost,
    /// Loads from its disk.
    pub disk: LoadCost,
    /// Loads from its object store.
    pub remote: LoadCost,
    /// Loads from other agents, whichever.
    pub peer: LoadCost,
    /// Loads from single agents, those that were read from last. Behind the last of them the list has
    /// defaults.
    pub peers: [PeerCost; PEER_COSTS_MAX],
}

/// Most agents of which a report has costs of their own.
pub const PEER_COSTS_MAX: usize = 8;

/// Measured cost of loading blocks from one other agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCost {
    /// The agent, by the [`name_hash`](crate::hash::name_hash) of the address at which it lends. Zero
    /// for none.
    pub holder: u64,
    /// The cost of blocks that it holds.
    pub cost: LoadCost,
}

/// Measured cost of loading blocks from one place: the latency once, and the time of each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadCost {
    /// Time until blocks begin to come, loads that were under way included, in microseconds.
    /// [`LoadCost::NEVER_US`]: the place fails at the moment.
    pub latency_us: u64,
    /// Time of each block, in nanoseconds.
    pub block_ns: u64,
}

/// Part of a load's predicted time that it has to save besides: one in so many. An engine's pace is a
/// mean over prompts of all lengths, too slow for short ones by an eighth and more, and an engine sees
/// only after a step that a load has ended.
pub const LOAD_MARGIN: u32 = 4;

impl LoadCost {
    /// Latency of a place from which nothing can be loaded.
    pub const NEVER_US: u64 = u32::MAX as u64;

    /// Whether anything was measured.
    pub fn is_known(&self) -> bool {
        *self != Self::default()
    }
}

/// Fields of a report; later versions append theirs.
const FIELDS: u32 = 7;
/// Fields of the first version.
const FIELDS_MIN: u32 = 6;
/// Elements of the costs: ten numbers, and a list of numbers of single agents, three of each. Later
/// versions append theirs.
const COSTS: u32 = 11;
/// Elements of the costs in the first version that had some.
const COSTS_MIN: u32 = 10;
/// Numbers of a single agent.
const PEER_NUMBERS: u32 = 3;

impl Load {
    /// Appends the report to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut buffer = rmp::encode::ByteBuf::from_vec(std::mem::take(out));
        let Ok(()) = self.write(&mut buffer);
        *out = buffer.into_vec();
    }

    /// Reads a report; the costs may be absent, and fields after them are skipped.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] where the frame is malformed.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = MsgpackReader::new(frame);
        let fields = match reader.value()? {
            MsgpackValue::Array(fields) if fields >= FIELDS_MIN => fields,
            _ => return Err(unexpected("load", "an array of at least 6")),
        };
        let mut load = Self {
            running: small(&mut reader, "running")?,
            waiting: small(&mut reader, "waiting")?,
            used_blocks: small(&mut reader, "used_blocks")?,
            cached_blocks: small(&mut reader, "cached_blocks")?,
            total_blocks: small(&mut reader, "total_blocks")?,
            pending_prefill_tokens: number(&mut reader, "pending_prefill_tokens")?,
            costs: TierCosts::default(),
        };
        if fields >= FIELDS {
            load.costs = TierCosts::read(&mut reader)?;
        }
        for _ in FIELDS..fields {
            reader.skip()?;
        }
        reader.finish()?;
        Ok(load)
    }

    fn write(
        &self,
        out: &mut rmp::encode::ByteBuf,
    ) -> Result<(), rmp::encode::ValueWriteError<Infallible>> {
        rmp::encode::write_array_len(out, FIELDS)?;
        let counts =
            [self.running, self.waiting, self.used_blocks, self.cached_blocks, self.total_blocks];
        for count in counts {
            rmp::encode::write_uint(out, count.into())?;
        }
        rmp::encode::write_uint(out, self.pending_prefill_tokens)?;
        let TierCosts { block_bytes, compute_ns, host, disk, remote, peer, peers } = self.costs;
        rmp::encode::write_array_len(out, COSTS)?;
        rmp::encode::write_uint(out, block_bytes)?;
        rmp::encode::write_uint(out, compute_ns)?;
        for LoadCost { latency_us, block_ns } in [host, disk, remote, peer] {
            rmp::encode::write_uint(out, latency_us)?;
            rmp::encode::write_uint(out, block_ns)?;
        }
        let known = peers.iter().filter(|peer| peer.holder != 0);
        rmp::encode::write_array_len(out, PEER_NUMBERS * known.clone().count() as u32)?;
        for PeerCost { holder, cost } in known {
            for number in [*holder, cost.latency_us, cost.block_ns] {
                rmp::encode::write_uint(out, number)?;
            }
        }
        Ok(())
    }
}

impl TierCosts {
    fn read(reader: &mut MsgpackReader<'_>) -> Result<Self, DecodeError> {
        let numbers = match reader.value()? {
            MsgpackValue::Array(numbers) if numbers >= COSTS_MIN => numbers,
            _ => return Err(unexpected("costs", "an array of at least 10")),
        };
        let [block_bytes, compute_ns] = [number(reader, "costs")?, number(reader, "costs")?];
        let mut loads = [LoadCost::default(); 4];
        for load in &mut loads {
            load.latency_us = number(reader, "costs")?;
            load.block_ns = number(reader, "costs")?;
        }
        let peers = if numbers >= COSTS { read_peers(reader)? } else { Default::default() };
        for _ in COSTS..numbers {
            reader.skip()?;
        }
        let [host, disk, remote, peer] = loads;
        Ok(Self { block_bytes, compute_ns, host, disk, remote, peer, peers })
    }
}

/// Reads the costs of single agents; those beyond [`PEER_COSTS_MAX`] are skipped.
fn read_peers(reader: &mut MsgpackReader<'_>) -> Result<[PeerCost; PEER_COSTS_MAX], DecodeError> {
    let numbers = match reader.value()? {
        MsgpackValue::Array(numbers) if numbers.is_multiple_of(PEER_NUMBERS) => numbers,
        _ => return Err(unexpected("peers", "an array of three numbers for each")),
    };
    let mut peers = [PeerCost::default(); PEER_COSTS_MAX];
    let mut places = peers.iter_mut();
    for _ in 0..numbers / PEER_NUMBERS {
        let holder = number(reader, "peers")?;
        let [latency_us, block_ns] = [number(reader, "peers")?, number(reader, "peers")?];
        if holder != 0
            && let Some(place) = places.next()
        {
            *place = PeerCost { holder, cost: LoadCost { latency_us, block_ns } };
        }
    }
    Ok(peers)
}

fn number(reader: &mut MsgpackReader<'_>, field: &'static str) -> Result<u64, DecodeError> {
    match reader.value()? {
        MsgpackValue::Unsigned(value) => Ok(value),
        _ => Err(unexpected(field, "an integer that is not negative")),
    }
}

fn small(reader: &mut MsgpackReader<'_>, field: &'static str) -> Result<u32, DecodeError> {
    u32::try_from(number(reader, field)?)
        .map_err(|_| unexpected(field, "an integer below 4294967296"))
}

fn unexpected(field: &'static str, expected: &'static str) -> DecodeError {
    DecodeError::Unexpected { field, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[track_caller]
    fn check(frame: &[u8], expected: Result<Load, DecodeError>) {
        assert_eq!(Load::decode(frame), expected);
    }

    #[test]
    fn a_longer_report_of_a_later_version_is_read() {
        let mut load = Load { running: 1, waiting: 2, total_blocks: 5, ..Load::default() };
        let costs = [0x9c, 9, 8, 1, 2, 3, 4, 5, 6, 7, 10, 0x93, 11, 12, 13, 0xa1, b'y'];
        let longer = [&[0x99, 1, 2, 0, 0, 5, 0], &costs[..], &[0xa1, b'x', 0x91, 7]].concat();
        let [host, disk, remote, peer] = [(1, 2), (3, 4), (5, 6), (7, 10)]
            .map(|(latency_us, block_ns)| LoadCost { latency_us, block_ns });
        let mut peers = [PeerCost::default(); PEER_COSTS_MAX];
        peers[0] = PeerCost { holder: 11, cost: LoadCost { latency_us: 12, block_ns: 13 } };
        load.costs = TierCosts { block_bytes: 9, compute_ns: 8, host, disk, remote, peer, peers };
        check(&longer, Ok(load));
    }

    #[test]
    fn a_report_without_single_agents_is_read() {
        let costs = [0x9a, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let costs = [&[0x97, 1, 0, 0, 0, 0, 0], &costs[..]].concat();
        let known = TierCosts { block_bytes: 9, ..TierCosts::default() };
        check(&costs, Ok(Load { running: 1, costs: known, ..Load::default() }));
    }

    #[test]
    fn of_many_single_agents_the_first_are_taken() {
        let many = (1..=20_u8).flat_map(|holder| [holder, 1, 2]);
        let costs =
            [0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].into_iter().chain([0xdc, 0, 60]).chain(many);
        let frame: Vec<u8> = [0x97, 1, 0, 0, 0, 0, 0].into_iter().chain(costs).collect();
        let read = Load::decode(&frame).expect("it is well formed");
        assert_eq!(read.costs.peers.map(|peer| peer.holder), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_report_of_the_first_version_is_read() {
        check(&[0x96, 1, 0, 0, 0, 0, 0], Ok(Load { running: 1, ..Load::default() }));
    }

    #[test]
    fn malformed_reports_are_refused() {
        check(&[], Err(DecodeError::Truncated));
        check(&[0x96, 1, 2, 3], Err(DecodeError::Truncated));
        check(&[0x95, 1, 2, 3, 4, 5], Err(unexpected("load", "an array of at least 6")));
        check(&[0x96, 1, 2, 3, 4, 5, 6, 7], Err(DecodeError::TrailingBytes { bytes: 1 }));
        let negative = unexpected("waiting", "an integer that is not negative");
        check(&[0x96, 1, 0xff, 3, 4, 5, 6], Err(negative));
        let costs = unexpected("costs", "an array of at least 10");
        check(&[0x97, 1, 2, 3, 4, 5, 6, 7], Err(costs.clone()));
        check(&[0x97, 1, 2, 3, 4, 5, 6, 0x91, 7], Err(costs));
        let peers = unexpected("peers", "an array of three numbers for each");
        let odd = [0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x92, 1, 2];
        check(&[&[0x97, 1, 2, 3, 4, 5, 6], &odd[..]].concat(), Err(peers));
        let wide = [&[0x96, 0xcf][..], &[0xff; 8], &[2, 3, 4, 5, 6]].concat();
        check(&wide, Err(unexpected("running", "an integer below 4294967296")));
    }

    proptest! {
        #[test]
        fn a_report_survives_the_wire(
            counts: [u32; 5], pending_prefill_tokens: u64, costs: [u64; 10],
            holders in vec((1..u64::MAX, any::<[u64; 2]>()), 0..=PEER_COSTS_MAX),
        ) {
            let mut peers = [PeerCost::default(); PEER_COSTS_MAX];
            for (place, (holder, [latency_us, block_ns])) in peers.iter_mut().zip(holders) {
                *place = PeerCost { holder, cost: LoadCost { latency_us, block_ns } };
            }
            let cost = |at: usize| LoadCost { latency_us: costs[at], block_ns: costs[at + 1] };
            let [running, waiting, used_blocks, cached_blocks, total_blocks] = counts;
            let load = Load {
                running, waiting, used_blocks, cached_blocks, total_blocks, pending_prefill_tokens,
                costs: TierCosts {
                    block_bytes: costs[0],
                    compute_ns: costs[1],
                    host: cost(2),
                    disk: cost(4),
                    remote: cost(6),
                    peer: cost(8),
                    peers,
                },
            };
            let mut frame = Vec::new();
            load.encode(&mut frame);
            prop_assert_eq!(Load::decode(&frame), Ok(load));
        }

        #[test]
        fn arbitrary_bytes_never_panic(frame in vec(any::<u8>(), 0..64)) {
            if let Ok(load) = Load::decode(&frame) {
                let mut again = Vec::new();
                load.encode(&mut again);
                prop_assert_eq!(Load::decode(&again), Ok(load));
            }
        }
    }
}
