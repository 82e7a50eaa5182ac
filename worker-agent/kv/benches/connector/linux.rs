//! An agent in this process, an echo, and a thread that asks both.

use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, socketpair,
};
use stator_kv::cache::{CacheSettings, TieredCache};
use stator_kv::connector::wire::{
    AgentMessage, AskFrame, EngineKey, HEADER_BYTES, Hello, MESSAGE_BYTES_MAX, ShimMessage,
    ShimRole,
};
use stator_kv::connector::{ConnectorServer, ConnectorSettings, names::KeyNames};
use stator_kv::{Block, BlockForm};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 20_000;
const BLOCKS: u32 = 46;
const FORM: BlockForm = BlockForm { fingerprint: [1; 32], block_bytes: 16 << 10 };

pub(crate) fn run() {
    println!("{:<44} {:>9} {:>9} {:>9} {:>9}", "µs", "median", "p99", "bare", "bare p99");
    for verify_host in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(verify_host);
        let path = folder.path().join("kv.sock");
        let open = move |_| Ok(Arc::clone(&cache));
        let settings = ConnectorSettings::new(path.clone(), Box::new(open));
        let server = ConnectorServer::start(settings).expect("a server");
        let how = if verify_host { "hits, checked" } else { "hits" };
        for (count, first, how) in [(1, 0, how), (46, 0, how), (46, 1000, "misses")] {
            if verify_host && first > 0 {
                continue;
            }
            let keys: Vec<_> = (first..first + count).map(key).collect();
            compare(&path, &format!("ask, {count} keys of 16 KiB blocks, {how}"), &keys);
        }
        drop(server);
    }
}

/// A cache that holds the first blocks.
fn cache(verify_host: bool) -> Arc<TieredCache> {
    let settings = CacheSettings { verify_host, ..CacheSettings::new(1024) };
    let cache = TieredCache::open(FORM, settings).expect("the machine has 16 MiB");
    let client = cache.connect(Arc::new(|_| ()));
    let names = KeyNames::new(&FORM.fingerprint, &[0; 16]);
    for (slot, depth) in client.grant(BLOCKS as usize).into_iter().zip(0..) {
        cache.arena().write(slot, &vec![depth as u8; FORM.block_bytes]);
        let block = Block {
            name: names.name(&key(depth)),
            hash: None,
            parent: None,
            depth,
            tenant: stator_kv::TenantKey::default(),
        };
        client.filled(&[(slot, block)]);
    }
    drop(client);
    cache
}

fn key(block: u32) -> EngineKey {
    let mut key = [0; 36];
    key[..4].copy_from_slice(&block.to_le_bytes());
    EngineKey(key)
}

fn compare(path: &Path, what: &str, keys: &[EngineKey]) {
    let agent = join(path);
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let ask = |request: usize| {
        ShimMessage::Ask(AskFrame {
            request: request as u64,
            prefill_us: 0,
            total: keys.len() as u32,
            first: 0,
            keys: keys.to_vec(),
        })
        .encode()
    };
    // What the agent answers decides what the echo does.
    let answer = round_trip(&agent, &ask(ROUNDS), &mut buffer);
    let echo = echo(answer);
    let (mut asked, mut bare) = (Vec::new(), Vec::new());
    for request in 0..ROUNDS {
        let packet = ask(request);
        let started = Instant::now();
        round_trip(&agent, &packet, &mut buffer);
        asked.push(started.elapsed());
        send_all(&agent, &ShimMessage::End { request: request as u64 }.encode());
        let started = Instant::now();
        round_trip(&echo, &packet, &mut buffer);
        bare.push(started.elapsed());
    }
    let micros = |times: &mut Vec<Duration>, share: f64| {
        times.sort_unstable();
        times[(times.len() as f64 * share) as usize].as_nanos() as f64 / 1e3
    };
    let columns = [
        micros(&mut asked, 0.5),
        micros(&mut asked, 0.99),
        micros(&mut bare, 0.5),
        micros(&mut bare, 0.99),
    ];
    let columns: Vec<_> = columns.iter().map(|micros| format!("{micros:>9.1}")).collect();
    println!("{what:<44} {}", columns.join(" "));
    send_all(&agent, &ShimMessage::Bye.encode());
}

/// Sends a packet and waits for FOUND; its length.
fn round_trip(socket: &OwnedFd, packet: &[u8], buffer: &mut [u8]) -> usize {
    send_all(socket, packet);
    loop {
        let (bytes, _) = recv(socket, &mut *buffer, RecvFlags::empty()).expect("an answer");
        assert!(bytes > 0, "disconnected");
        let is_found = matches!(AgentMessage::decode(&buffer[..bytes]), Ok(AgentMessage::Found(_)));
        // The echo sends zeros. WELCOME and GRANT come once, before the first answer.
        if is_found || buffer[..HEADER_BYTES] == [0; HEADER_BYTES] {
            return bytes;
        }
    }
}

/// A thread that answers every packet with zeros.
fn echo(answer: usize) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("sockets");
    std::thread::spawn(move || {
        let (mut buffer, answer) = (vec![0; MESSAGE_BYTES_MAX], vec![0; answer]);
        while recv(&theirs, &mut buffer[..], RecvFlags::empty()).is_ok_and(|(bytes, _)| bytes > 0) {
            send_all(&theirs, &answer);
        }
    });
    ours
}

fn join(path: &Path) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    connect(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("an agent");
    let hello = Hello {
        role: ShimRole::Scheduler,
        rank: 0,
        world: 0,
        block_tokens: 16,
        prefill_us: 0,
        row_bytes: FORM.block_bytes as u64,
        fingerprint: FORM.fingerprint,
        incarnation: [0; 16],
        engine: "bench".into(),
        form: String::new(),
    };
    send_all(&socket, &ShimMessage::Hello(hello).encode());
    socket
}

fn send_all(socket: &OwnedFd, packet: &[u8]) {
    send(socket, packet, SendFlags::NOSIGNAL).expect("sent");
}
