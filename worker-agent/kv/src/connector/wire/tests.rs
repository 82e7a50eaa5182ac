//! Fixed bytes of each message, and bytes that are none.

use super::super::decode::MessageError;
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// A key of `byte`s with group 1.
fn key(byte: u8) -> EngineKey {
    let mut key = [byte; 36];
    key[32..].copy_from_slice(&1u32.to_be_bytes());
    EngineKey(key)
}

fn hello() -> Hello {
    Hello {
        role: ShimRole::Worker,
        rank: 1,
        world: 2,
        block_tokens: 16,
        prefill_us: 450,
        row_bytes: 16_384,
        fingerprint: [0xaa; 32],
        incarnation: [0xbb; 16],
        engine: "e-0".into(),
        form: "tiny bf16".into(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_shim(message: ShimMessage, expected: &str) {
    let packet = message.encode();
    assert_eq!(hex(&packet), expected.replace([' ', '\n'], ""), "{message:?}");
    assert_eq!(ShimMessage::decode(&packet), Ok(message));
    for cut in 0..packet.len() {
        assert!(ShimMessage::decode(&packet[..cut]).is_err());
    }
}

fn check_agent(message: AgentMessage, expected: &str) {
    let packet = message.encode();
    assert_eq!(hex(&packet), expected.replace([' ', '\n'], ""), "{message:?}");
    assert_eq!(AgentMessage::decode(&packet), Ok(message));
}

#[test]
fn hello_has_these_bytes() {
    let (aa, bb) = ("aa".repeat(32), "bb".repeat(16));
    let expected = format!(
        "0100 0000 64000000 0000000000000000
         03000000 01000000 01000000 02000000 10000000 c2010000 0040000000000000
         {aa} {bb} 03000000 09000000 652d30 74696e792062663136"
    );
    check_shim(ShimMessage::Hello(hello()), &expected);
}

#[test]
fn requests_have_these_bytes() {
    let key_5 = format!("{}00000001", "05".repeat(32));
    let ask = AskFrame { request: 7, prefill_us: 300, total: 3, first: 2, keys: vec![key(5)] };
    check_shim(
        ShimMessage::Ask(ask),
        &format!("0200 0000 34000000 0700000000000000 2c010000 03000000 02000000 01000000 {key_5}"),
    );
    check_shim(
        ShimMessage::Hint { request: 7, hint: EngineHint::Noted(0x0102) },
        "0a00 0000 08000000 0700000000000000 0201000000000000",
    );
    let holders = vec![NamedHolder { address: "h:1".into(), blocks: 40 }];
    check_shim(
        ShimMessage::Hint { request: 7, hint: EngineHint::Holders(holders) },
        "0d00 0000 0f000000 0700000000000000 01000000 28000000 03000000 683a31",
    );
    check_shim(ShimMessage::End { request: 7 }, "0300 0000 00000000 0700000000000000");
    let filled = vec![FilledSlot { key: key(5), slot: SlotId(9), depth: 4 }];
    check_shim(
        ShimMessage::Filled(filled),
        &format!("0400 0000 30000000 0000000000000000 01000000 {key_5} 09000000 04000000"),
    );
    check_shim(
        ShimMessage::Touch(vec![key(5)]),
        &format!("0500 0000 28000000 0000000000000000 01000000 {key_5}"),
    );
}

#[test]
fn tokens_have_these_bytes() {
    let block =
        |byte, token| BlockTokens { key: key(byte), before: [byte - 1; 32], tokens: vec![token] };
    let blocks = vec![block(5, 9), block(6, 258)];
    let frame = TokensFrame { lora: "l".into(), salt: "sa".into(), blocks };
    let [hash_4, hash_5, hash_6] = ["04", "05", "06"].map(|byte| byte.repeat(32));
    check_shim(
        ShimMessage::Tokens(frame),
        &format!(
            "0900 0000 a3000000 0000000000000000 01000000 01000000 02000000 02000000 6c 7361
             {hash_5}00000001 {hash_4} 09000000 {hash_6}00000001 {hash_5} 02010000"
        ),
    );
}

#[test]
fn other_messages_of_the_shim_have_these_bytes() {
    let space = "cc".repeat(16);
    check_shim(
        ShimMessage::Reset { namespace: [0xcc; 16] },
        &format!("0600 0000 10000000 0000000000000000 {space}"),
    );
    let pulse = ShimPulse {
        boot: [0xcc; 16],
        prefill_us: 300,
        load_us: 12_000,
        loaded: 1,
        stored: 2,
        asks_late: 3,
        loads_late: 4,
        faults: 5,
    };
    check_shim(
        ShimMessage::Pulse(pulse),
        &format!(
            "0700 0000 40000000 0000000000000000 {space} 2c010000 e02e0000 0100000000000000
             0200000000000000 0300000000000000 0400000000000000 0500000000000000"
        ),
    );
    check_shim(ShimMessage::Bye, "0800 0000 00000000 0000000000000000");
}

#[test]
fn messages_of_devices_have_these_bytes() {
    let (id, handle, event) = ("11".repeat(16), "22".repeat(64), "33".repeat(64));
    let pages = DevicePages {
        layers: 3,
        heads: 2,
        tokens: 16,
        content_bytes: 64,
        count: 9,
        first: 5,
        strides: [1, 2, 3, 4],
    };
    let export = DeviceExport {
        memory: ExportedMemory::Ipc([0x22; 64]),
        event: Some([0x33; 64]),
        device: [0x11; 16],
        bytes: 4096,
        pages,
        part: 7,
    };
    let places = "03000000 02000000 10000000 40000000 09000000 00000000 0500000000000000
         0100000000000000 0200000000000000 0300000000000000 0400000000000000 0700000000000000";
    check_shim(
        ShimMessage::Export(Box::new(export.clone())),
        &format!(
            "0b00 0000 e8000000 0000000000000000 01000000 01000000 {id} 0010000000000000
             {handle} {event} {places}"
        ),
    );
    let plain = DeviceExport { memory: ExportedMemory::File, event: None, ..export };
    let zeros = "00".repeat(128);
    check_shim(
        ShimMessage::Export(Box::new(plain.clone())),
        &format!(
            "0b00 0000 e8000000 0000000000000000 02000000 00000000 {id} 0010000000000000
             {zeros} {places}"
        ),
    );
    let wrong = |at: usize| refusal(ShimMessage::Export(Box::new(plain)), |p| p[at] = 3);
    assert_eq!(wrong.clone()(16), MessageError::Value("memory"));
    assert_eq!(wrong.clone()(48), MessageError::Value("memory"));
    assert_eq!(wrong.clone()(20), MessageError::Value("event"));
    assert_eq!(wrong.clone()(112), MessageError::Value("event"));
    assert_eq!(wrong(196), MessageError::Value("reserved"));
    let copy = |way| ShimMessage::Copy(CopyOrder { number: 7, way, pairs: vec![(1, 2)] });
    let pairs = "01000000 02000000";
    check_shim(
        copy(CopyOrderWay::Store),
        &format!("0c00 0000 14000000 0700000000000000 00000000 00000000 01000000 {pairs}"),
    );
    check_shim(
        copy(CopyOrderWay::Load),
        &format!("0c00 0000 14000000 0700000000000000 01000000 00000000 01000000 {pairs}"),
    );
    check_shim(
        copy(CopyOrderWay::Pass("e".into())),
        &format!("0c00 0000 15000000 0700000000000000 02000000 01000000 01000000 65 {pairs}"),
    );
    let from_nowhere = refusal(copy(CopyOrderWay::Load), |packet| packet[16] = 2);
    assert_eq!(from_nowhere, MessageError::Value("way or engine"));
    check_agent(
        AgentMessage::Exported(Ok(())),
        "4900 0000 08000000 0000000000000000 00000000 00000000",
    );
    check_agent(
        AgentMessage::Copied { number: 7, result: Err("no".into()) },
        "4a00 0000 0a000000 0700000000000000 01000000 02000000 6e6f",
    );
}

#[test]
fn messages_of_the_agent_have_these_bytes() {
    let boot = "dd".repeat(16);
    let welcome = Welcome { boot: [0xdd; 16], slots: 100, credit: 64, stride: 4096 };
    check_agent(
        AgentMessage::Welcome(welcome),
        &format!("4100 0000 20000000 0000000000000000 {boot} 64000000 40000000 0010000000000000"),
    );
    check_agent(
        AgentMessage::Refused { reason: RefusalCode::Form, text: "no".into() },
        "4200 0000 0a000000 0000000000000000 02000000 02000000 6e6f",
    );
    let progress = AskProgress { request: 7, pending: 2, slots: vec![SlotId(3), SlotId(1)] };
    check_agent(
        AgentMessage::Found(progress.clone()),
        "4300 0000 10000000 0700000000000000 02000000 02000000 03000000 01000000",
    );
    check_agent(
        AgentMessage::Ready(progress),
        "4400 0000 10000000 0700000000000000 02000000 02000000 03000000 01000000",
    );
    check_agent(
        AgentMessage::Grant(vec![SlotId(3)]),
        "4500 0000 08000000 0000000000000000 01000000 03000000",
    );
    check_agent(
        AgentMessage::Duplicate(vec![SlotId(3)]),
        "4600 0000 08000000 0000000000000000 01000000 03000000",
    );
    check_agent(
        AgentMessage::Pulse { boot: [0xdd; 16] },
        &format!("4700 0000 10000000 0000000000000000 {boot}"),
    );
    check_agent(AgentMessage::Bye, "4800 0000 00000000 0000000000000000");
}

#[test]
fn the_longest_message_is_filled() {
    let entry = FilledSlot { key: key(1), slot: SlotId(0), depth: 0 };
    let packet = ShimMessage::Filled(vec![entry; KEYS_MAX]).encode();
    assert_eq!(packet.len(), MESSAGE_BYTES_MAX);
    assert!(ShimMessage::decode(&packet).is_ok());
    let over = ShimMessage::Filled(vec![entry; KEYS_MAX + 1]).encode();
    let limit = MessageError::TooMany { what: "entries", count: 4097, limit: 4096 };
    assert_eq!(ShimMessage::decode(&over), Err(limit));
}

/// Why a message is refused after `change`.
fn refusal(message: ShimMessage, change: impl FnOnce(&mut Vec<u8>)) -> MessageError {
    let mut packet = message.encode();
    change(&mut packet);
    ShimMessage::decode(&packet).expect_err("refused")
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let ask = |total, first| {
        let keys = vec![key(1); 2];
        ShimMessage::Ask(AskFrame { request: 1, prefill_us: 0, total, first, keys })
    };
    let bye = || ShimMessage::Bye;
    assert_eq!(refusal(bye(), |packet| packet[0] = 99), MessageError::Type(99));
    assert_eq!(refusal(bye(), |packet| packet[2] = 1), MessageError::Header);
    assert_eq!(refusal(bye(), |packet| packet[8] = 1), MessageError::Header);
    assert_eq!(refusal(bye(), |packet| packet.push(0)), MessageError::Length);
    assert_eq!(refusal(bye(), |packet| packet[4] = 1), MessageError::Length);
    assert_eq!(refusal(ask(2, 0), |packet| packet[28] = 3), MessageError::Short);
    assert_eq!(refusal(ask(2, 1), |_| ()), MessageError::Value("first or count"));
    assert_eq!(refusal(ask(2, u32::MAX), |_| ()), MessageError::Value("first or count"));
    let limit = MessageError::TooMany { what: "keys of the request", count: 65_537, limit: 65_536 };
    assert_eq!(refusal(ask(65_537, 0), |_| ()), limit);
    let hello = |change: fn(&mut Hello)| {
        let mut hello = hello();
        change(&mut hello);
        refusal(ShimMessage::Hello(hello), |_| ())
    };
    assert_eq!(hello(|hello| hello.rank = 2), MessageError::Value("rank"));
    assert_eq!(hello(|hello| hello.world = 0), MessageError::Value("rank"));
    assert_eq!(hello(|hello| hello.row_bytes = 0), MessageError::Value("row bytes"));
    assert_eq!(hello(|hello| hello.block_tokens = 0), MessageError::Value("block tokens"));
    assert_eq!(hello(|hello| hello.engine.clear()), MessageError::Value("engine"));
    let tokens = |block_tokens: u8, count: u8| {
        let block = BlockTokens { key: key(1), before: [0; 32], tokens: vec![7] };
        let frame = TokensFrame { lora: String::new(), salt: String::new(), blocks: vec![block] };
        refusal(ShimMessage::Tokens(frame), |packet| {
            (packet[16], packet[28]) = (block_tokens, count);
        })
    };
    assert_eq!(tokens(0, 1), MessageError::Value("count or block tokens"));
    assert_eq!(tokens(1, 0), MessageError::Value("count or block tokens"));
    assert_eq!(tokens(2, 1), MessageError::Short);
    let lent = |address: &str, blocks| {
        let holder = NamedHolder { address: address.into(), blocks };
        let hint = EngineHint::Holders(vec![holder; 1 + usize::from(blocks > 9) * 4]);
        refusal(ShimMessage::Hint { request: 1, hint }, |_| ())
    };
    for (address, blocks) in [("", 1), ("h:1", 0)] {
        assert_eq!(lent(address, blocks), MessageError::Value("holder"));
    }
    let limit = |what, count, limit| MessageError::TooMany { what, count, limit };
    assert_eq!(lent("h:1", 10), limit("holders", 5, 4));
    assert_eq!(lent(&"x".repeat(257), 1), limit("address length", 257, 256));
    let newer = |packet: &mut Vec<u8>| packet[16] = 4;
    assert_eq!(refusal(ShimMessage::Hello(self::hello()), newer), MessageError::Protocol(4));
    let not_text = |packet: &mut Vec<u8>| packet[104] = 0xff;
    assert_eq!(refusal(ShimMessage::Hello(self::hello()), not_text), MessageError::Value("text"));
}

#[test]
fn a_long_refusal_is_cut_between_characters() {
    let text = "é".repeat(TEXT_BYTES_MAX);
    let packet = AgentMessage::Refused { reason: RefusalCode::NoCache, text }.encode();
    let cut = AgentMessage::Refused { reason: RefusalCode::NoCache, text: "é".repeat(512) };
    assert_eq!(AgentMessage::decode(&packet), Ok(cut));
}

proptest! {
    /// A message that is read is written with the same bytes.
    #[test]
    fn what_is_read_is_written_alike(kind in 0u8..80, flags in 0u16..2, body in vec(0u8..3, 0..150)) {
        let mut packet = vec![kind, 0];
        packet.extend(flags.to_le_bytes());
        packet.extend((body.len() as u32).to_le_bytes());
        packet.extend([0; 8]);
        packet.extend(body);
        if let Ok(message) = ShimMessage::decode(&packet) {
            prop_assert_eq!(message.encode(), packet.clone());
        }
        if let Ok(message) = AgentMessage::decode(&packet) {
            prop_assert_eq!(message.encode(), packet);
        }
    }
}
