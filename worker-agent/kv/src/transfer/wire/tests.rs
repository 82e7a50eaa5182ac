use super::*;
use proptest::prelude::*;

fn data() -> FrameHeader {
    FrameHeader {
        length: 0x0001_0002,
        place: 3,
        transfer: 0x0102_0304_0506_0708,
        sequence: 9,
        offset: 0x000a_0000,
        ..FrameHeader::new(FrameKind::Data)
    }
}

/// Agents of two builds must agree.
#[test]
fn bytes_stay_what_they_are() {
    let expected = [
        b'S', b'K', b'V', b'T', 10, 2, 0, 0, 2, 0, 1, 0, 3, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0,
    ];
    assert_eq!(data().encode(), expected);
    let form = BlockForm { fingerprint: [3; 32], block_bytes: 0x0201 };
    let hello = Hello { instance: [1; 16], nonce: [2; 32], form };
    let expected = [&[1; 16][..], &[2; 32], &[3; 32], &[1, 2, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(hello.encode(), expected);
    assert_eq!(encode_names(&[BlockName(0x0102)])[..3], [2, 1, 0]);
    assert_eq!(encode_checksums([Checksum(0x0102)]), [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encode_slots([SlotId(0x0102)]), [2, 1, 0, 0]);
}

fn check(change: impl FnOnce(&mut FrameHeader)) -> Result<FrameHeader, WireError> {
    let mut header = data();
    change(&mut header);
    FrameHeader::decode(&header.encode())
}

#[test]
fn lengths_are_bounded_by_kind() {
    assert_eq!(check(|_| ()), Ok(data()));
    let largest = FRAME_BYTES_MAX as u32;
    assert!(check(|header| header.length = largest).is_ok());
    let wrong = |kind, length| {
        let fault = check(|header| {
            header.kind = kind;
            header.length = length;
        });
        assert_eq!(fault, Err(WireError::Length { kind, length }));
    };
    wrong(FrameKind::Data, largest + 1);
    wrong(FrameKind::Data, 0);
    wrong(FrameKind::Lease, 0);
    wrong(FrameKind::Lease, 17);
    wrong(FrameKind::Lease, 16 * (NAMES_MAX as u32 + 1));
    wrong(FrameKind::Leased, 9);
    wrong(FrameKind::Described, DESCRIPTION_BYTES_MAX as u32 + 1);
    wrong(FrameKind::Located, 6);
    wrong(FrameKind::Locate, 1);
    wrong(FrameKind::Hello, 87);
    wrong(FrameKind::Refused, REASON_BYTES_MAX as u32 + 1);
    wrong(FrameKind::Read, 1);
    wrong(FrameKind::Vouched, 1);
}

#[test]
fn fields_out_of_bounds_are_refused() {
    let wrong = |kind, field| Err(WireError::Field { kind, field });
    let offset = check(|header| header.offset = u32::MAX);
    assert_eq!(offset, wrong(FrameKind::Data, "offset"));
    let read = |count, offset| {
        check(|header| {
            (header.kind, header.length) = (FrameKind::Read, 0);
            (header.count, header.offset) = (count, offset);
        })
    };
    assert!(read(1, u32::MAX - 1).is_ok());
    assert_eq!(read(0, 0), wrong(FrameKind::Read, "count"));
    assert_eq!(read(FRAME_BYTES_MAX as u32 + 1, 0), wrong(FrameKind::Read, "count"));
    assert_eq!(read(2, u32::MAX - 1), wrong(FrameKind::Read, "offset"));
    let byte = |at: usize, value| {
        let mut bytes = data().encode();
        bytes[at] = value;
        FrameHeader::decode(&bytes)
    };
    assert_eq!(byte(0, b's'), Err(WireError::Magic(u32::from_le_bytes(*b"sKVT"))));
    assert_eq!(byte(4, 19), Err(WireError::Kind(19)));
    assert_eq!(byte(5, 1), Err(WireError::Version(1)));
    assert_eq!(byte(7, 1), wrong(FrameKind::Data, "reserved"));
}

#[test]
fn the_urgency_of_a_lease_is_demand_unless_the_reader_says_otherwise() {
    for urgency in [Urgency::Demand, Urgency::Prefetch] {
        let place = urgency_number(urgency);
        let lease = FrameHeader { place, count: 2000, ..FrameHeader::new(FrameKind::Lease) };
        let bytes = FrameHeader { length: 16, ..lease }.encode();
        assert_eq!(FrameHeader::decode(&bytes).map(|lease| urgency_of(&lease)), Ok(urgency));
    }
    // A reader that knows no urgency, and one that knows more of them.
    let earlier = FrameHeader::new(FrameKind::Lease);
    assert_eq!(urgency_of(&earlier), Urgency::Demand);
    assert_eq!(urgency_of(&FrameHeader { place: 9, ..earlier }), Urgency::Prefetch);
}

#[test]
fn blocks_have_bytes_and_fewer_than_four_gib() {
    let decode = |block_bytes: u64| {
        let payload = [&[0; 80][..], &block_bytes.to_le_bytes()].concat();
        Hello::decode(&payload).map(|hello| hello.form.block_bytes)
    };
    assert_eq!(decode(4096), Ok(4096));
    let wrong = WireError::Field { kind: FrameKind::Hello, field: "block_bytes" };
    assert_eq!(decode(0), Err(wrong));
    assert_eq!(decode(1 << 32), Err(wrong));
    assert!(Hello::decode(&[0; 87]).is_err());
    assert!(Hello::decode(&[0; 89]).is_err());
}

#[test]
fn reasons_are_cut_and_fit_for_a_log() {
    let long = "ä".repeat(REASON_BYTES_MAX);
    assert_eq!(encode_reason(&long).len(), REASON_BYTES_MAX);
    assert_eq!(decode_reason(encode_reason("no\nway\u{1b}")), "no way ");
    assert_eq!(decode_reason(b"\xff"), "\u{fffd}");
}

proptest! {
    #[test]
    fn every_header_that_is_read_survives_the_wire(mut bytes: [u8; HEADER_BYTES], kind in 0..20_u8) {
        bytes[..4].copy_from_slice(b"SKVT");
        (bytes[4], bytes[5], bytes[6], bytes[7]) = (kind, VERSION, 0, 0);
        bytes[10..12].fill(0);
        if let Ok(header) = FrameHeader::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn names_and_checksums_survive_the_wire(names: Vec<u128>, checksums: Vec<u64>) {
        let names: Vec<_> = names.into_iter().map(BlockName).collect();
        prop_assert_eq!(decode_names(&encode_names(&names)), names);
        let checksums: Vec<_> = checksums.into_iter().map(Checksum).collect();
        prop_assert_eq!(decode_checksums(&encode_checksums(checksums.clone())), checksums);
    }
}
