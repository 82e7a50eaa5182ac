//! The least that a process between an engine and its clients can do with what comes, as it comes:
//! bytes in, bytes out, nothing read of them. What it spends is what the system takes for sockets
//! at which nothing waits for more.
//!
//! One client sends frames on a Unix socket: the number of a stream and a length, each four bytes,
//! little-endian, and bytes for that stream's own connection to the engine. What comes back on it is
//! framed likewise. Whatever is ready in one turn of the event loop leaves in one write. When it
//! listens, one line is printed. It ends with its client.

use mio::net::{TcpStream, UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Registry, Token};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::SocketAddr;

const CLIENT: Token = Token(usize::MAX);
/// Bytes before those of a frame.
const HEAD: usize = 8;
/// As much as an agent reads at once.
const READ: usize = 8192;

/// A socket, and what it has not taken yet.
struct Wire<S> {
    socket: S,
    unsent: Vec<u8>,
}

impl<S: Read + Write> Wire<S> {
    fn send(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there, `None` at the end.
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        match self.socket.read(into) {
            Ok(0) => Ok(None),
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(engine), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: relay HOST:PORT SOCKET".into());
    };
    let engine: SocketAddr = engine.trim_start_matches("http://").parse()?;
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut listener = UnixListener::bind(path)?;
    poll.registry().register(&mut listener, CLIENT, Interest::READABLE)?;
    println!("listening");
    poll.poll(&mut events, None)?;
    let (mut socket, _) = listener.accept()?;
    poll.registry().deregister(&mut listener)?;
    poll.registry().register(&mut socket, CLIENT, Interest::READABLE | Interest::WRITABLE)?;
    let client = Wire { socket, unsent: Vec::new() };
    Ok(relay(poll, client, engine)?)
}

fn relay(mut poll: Poll, mut client: Wire<UnixStream>, engine: SocketAddr) -> Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut streams = HashMap::new();
    let (mut inbox, mut buffer) = (Vec::new(), [0; READ]);
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == CLIENT {
                loop {
                    let Some(read) = client.read(&mut buffer)? else { return Ok(()) };
                    inbox.extend_from_slice(&buffer[..read]);
                    if read < READ {
                        break;
                    }
                }
                deliver(&mut inbox, &mut streams, (poll.registry(), engine))?;
                continue;
            }
            let Some(stream) = streams.get_mut(&event.token().0) else { continue };
            stream.send()?;
            while event.is_readable() {
                let Some(read) = stream.read(&mut buffer)? else {
                    streams.remove(&event.token().0);
                    break;
                };
                if read > 0 {
                    let number = event.token().0 as u32;
                    client.unsent.extend_from_slice(&number.to_le_bytes());
                    client.unsent.extend_from_slice(&(read as u32).to_le_bytes());
                    client.unsent.extend_from_slice(&buffer[..read]);
                }
                if read < READ {
                    break;
                }
            }
        }
        client.send()?;
    }
}

/// Sends whole frames of `inbox` on, each to its stream's connection.
fn deliver(
    inbox: &mut Vec<u8>,
    streams: &mut HashMap<usize, Wire<TcpStream>>,
    (registry, engine): (&Registry, SocketAddr),
) -> Result<()> {
    let mut used = 0;
    while let Some((number, length)) = frame(&inbox[used..]) {
        let start = used + HEAD;
        if inbox.len() < start + length {
            break;
        }
        used = start + length;
        let stream = match streams.entry(number) {
            Entry::Occupied(stream) => stream.into_mut(),
            Entry::Vacant(place) => {
                let mut socket = TcpStream::connect(engine)?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                registry.register(&mut socket, Token(number), interest)?;
                socket.set_nodelay(true)?;
                place.insert(Wire { socket, unsent: Vec::new() })
            }
        };
        stream.unsent.extend_from_slice(&inbox[start..used]);
        // Until it is connected it takes nothing, and says so.
        match stream.send() {
            Err(error) if error.kind() != ErrorKind::NotConnected => return Err(error),
            _ => {}
        }
    }
    inbox.drain(..used);
    Ok(())
}

/// The stream and the length of the frame that begins here.
fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_le_bytes);
    let (stream, length) = bytes.get(..HEAD)?.split_at(4);
    Some((number(stream)? as usize, number(length)? as usize))
}
