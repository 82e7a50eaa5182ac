use super::*;
use crate::SlotId;
use crate::object::catalog::Catalog;
use crate::object::extent::ExtentId;
use parking_lot::Mutex;
use stator_protos::hash::SequenceHash;
use stator_protos::name::BlockName;

const RULE: ExtentRule = ExtentRule { blocks: 4, linger: Duration::from_secs(1) };

/// Lanes, and what was reported.
struct Desk {
    lanes: Lanes,
    reports: Arc<Mutex<Vec<TierReport>>>,
    catalog: Catalog,
}

impl Desk {
    /// The bucket has an extent of the names 0 to 9, and another of 20 to 29.
    fn new(bound: usize) -> Self {
        let mut catalog = Catalog::new(100);
        catalog.insert(ExtentId([0; 32]), (0..10).map(BlockName).collect());
        catalog.insert(ExtentId([1; 32]), (20..30).map(BlockName).collect());
        Self { lanes: Lanes::new(bound), reports: Arc::default(), catalog }
    }

    fn sink(&self) -> ReportSink {
        let reports = Arc::clone(&self.reports);
        Arc::new(move |report| reports.lock().push(report))
    }

    fn read(&mut self, names: &[u128], urgency: Urgency) {
        for name in names {
            let read = TierRead { name: BlockName(*name), slot: SlotId(0), urgency };
            let ticket = ReadTicket::new(read, self.sink());
            assert!(self.lanes.push_read(ticket).is_none());
        }
    }

    fn write(&mut self, names: &[u128], now: Instant) {
        for name in names {
            let block = Block {
                name: BlockName(*name),
                hash: None,
                parent: None,
                depth: (*name % 100) as u32,
                tenant: crate::TenantKey::default(),
            };
            let write = TierWrite { block, slot: SlotId(0), checksum: Checksum(0) };
            let ticket = WriteTicket::new(write, self.sink());
            assert!(self.lanes.push_write(ticket, now).is_none());
        }
    }

    /// Names of the next read; "missing" reads are negative.
    fn next(&mut self) -> Vec<i64> {
        let catalog = &self.catalog;
        match self.lanes.next_read(3, |read| catalog.place(read.name)) {
            Some(NextRead::Run(run)) => {
                run.tickets.iter().map(|ticket| ticket.read.name.0 as i64).collect()
            }
            Some(NextRead::Missing(ticket)) => vec![-(ticket.read.name.0 as i64)],
            None => Vec::new(),
        }
    }
}

#[test]
fn blocks_that_follow_each_other_are_one_read() {
    let mut desk = Desk::new(100);
    desk.read(&[4, 5, 20, 21, 22, 23, 2, 99, 8, 9], Urgency::Demand);
    let reads: Vec<_> =
        std::iter::from_fn(|| Some(desk.next()).filter(|r| !r.is_empty())).collect();
    let expected: &[&[i64]] = &[&[4, 5], &[20, 21, 22], &[23], &[2], &[-99], &[8, 9]];
    assert_eq!(reads, expected);
}

#[test]
fn demand_goes_before_prefetch_before_offload() {
    let mut desk = Desk::new(100);
    let now = Instant::now();
    desk.write(&[1, 2, 3, 4], now);
    desk.read(&[7], Urgency::Prefetch);
    desk.read(&[3], Urgency::Demand);
    assert_eq!(desk.lanes.write_due(RULE), None);
    assert_eq!(desk.next(), [3]);
    assert_eq!(desk.next(), [7]);
    assert_eq!(desk.lanes.write_due(RULE), Some(now));
    assert_eq!(desk.lanes.next_write(RULE).len(), 4);
}

#[test]
fn an_extent_is_written_when_it_is_full_or_has_waited() {
    let mut desk = Desk::new(100);
    let now = Instant::now();
    assert_eq!(desk.lanes.write_due(RULE), None);
    desk.write(&[1, 2, 3], now);
    assert_eq!(desk.lanes.write_due(RULE), Some(now + RULE.linger));
    desk.write(&[4, 5], now);
    assert_eq!(desk.lanes.write_due(RULE), Some(now));
    assert_eq!(desk.lanes.next_write(RULE).len(), 4);
    assert_eq!(desk.lanes.write_due(RULE), Some(now + RULE.linger));
    desk.lanes.close();
    assert_eq!(desk.lanes.write_due(RULE), Some(now));
    assert_eq!(desk.lanes.next_write(RULE).len(), 1);
    assert!(desk.lanes.is_done());
}

#[test]
fn what_finds_no_room_is_told_so() {
    let mut desk = Desk::new(2);
    desk.read(&[1, 2, 3], Urgency::Demand);
    desk.read(&[4], Urgency::Prefetch);
    desk.write(&[5, 6, 7], Instant::now());
    let refused = desk.lanes.take_refused();
    assert_eq!(refused.len(), 2);
    refused.into_iter().for_each(|refused| refused.end(TierError::Busy));
    let reports = std::mem::take(&mut *desk.reports.lock());
    let (read, slot) = (BlockName(3), SlotId(0));
    assert_eq!(
        reports,
        [
            TierReport::Read { name: read, slot, result: Err(TierError::Busy) },
            TierReport::Written { name: BlockName(7), slot, result: Err(TierError::Busy) },
        ]
    );
}

#[test]
fn whatever_is_dropped_has_failed() {
    let mut desk = Desk::new(100);
    desk.read(&[1, 2], Urgency::Demand);
    desk.write(&[5], Instant::now());
    desk.lanes = Lanes::new(0);
    assert_eq!(desk.reports.lock().len(), 3);
}

#[test]
fn chains_that_were_written_at_the_same_time_are_taken_apart() {
    // Chains of 100 names, the first of which is the hash of no block.
    let chains = |names: &[u128], has_hashes: bool| {
        let hash = |name: u128| has_hashes.then_some(SequenceHash(name as u64));
        let block = |name: &u128| Block {
            name: BlockName(*name),
            hash: hash(*name),
            parent: (!name.is_multiple_of(100)).then(|| hash(*name - 1)).flatten(),
            depth: (*name % 100) as u32,
            tenant: crate::TenantKey::default(),
        };
        arrange(names.to_vec(), block)
    };
    let names = [3, 100, 4, 101, 5, 102, 103, 6, 50];
    for has_hashes in [false, true] {
        assert_eq!(chains(&names, has_hashes), [3, 4, 5, 6, 100, 101, 102, 103, 50]);
    }
    assert_eq!(chains(&[1, 101, 2, 102], true), [1, 2, 101, 102]);
}

#[tokio::test]
async fn a_read_is_taken_out_while_it_waits() {
    let mut desk = Desk::new(9);
    desk.read(&[1, 2], Urgency::Demand);
    desk.read(&[3], Urgency::Prefetch);
    assert!(desk.lanes.take_read(BlockName(2), SlotId(7)).is_none());
    for name in [2, 3] {
        let ticket = desk.lanes.take_read(BlockName(name), SlotId(0)).expect("it waits");
        ticket.end(Err(TierError::Cancelled));
        assert!(desk.lanes.take_read(BlockName(name), SlotId(0)).is_none());
    }
    let report = |name| TierReport::Read {
        name: BlockName(name),
        slot: SlotId(0),
        result: Err(TierError::Cancelled),
    };
    assert_eq!(*desk.reports.lock(), [report(2), report(3)]);
    assert_eq!(desk.next(), [1]);
}
