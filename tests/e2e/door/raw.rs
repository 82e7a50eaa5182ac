//! A client that writes bytes as it likes and reads answers when it likes.

use stator_tests::soon;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A connection.
pub(crate) struct Raw {
    socket: TcpStream,
    unread: Vec<u8>,
}

/// An answer with a body of known length.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::connect_with(TcpSocket::new_v4().unwrap(), address).await
    }

    /// A connection from another address of this machine.
    pub(crate) async fn connect_from(from: IpAddr, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from, 0)).unwrap();
        Self::connect_with(socket, address).await
    }

    /// A connection whose own system keeps little of what is not read.
    pub(crate) async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self::connect_with(socket, address).await
    }

    async fn connect_with(socket: TcpSocket, address: SocketAddr) -> Self {
        let socket = soon("a connection", socket.connect(address)).await.unwrap();
        Self { socket, unread: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon("the server reads", self.socket.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Sends a byte at a time, as slowly as the server answers nothing, until it does.
    pub(crate) async fn drip(&mut self, byte: u8) {
        let pace = Duration::from_millis(10);
        let dripping = async {
            // Waiting for the answer is what paces the bytes.
            while tokio::time::timeout(pace, self.socket.readable()).await.is_err() {
                self.socket.write_all(&[byte]).await.unwrap();
            }
        };
        soon("the server has had enough", dripping).await;
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        let end = loop {
            let at = self.unread.windows(4).position(|part| part == b"\r\n\r\n");
            match at {
                Some(at) => break at + 4,
                None => assert!(self.read().await, "closed within {:?}", self.text()),
            }
        };
        let head = String::from_utf8(self.unread.drain(..end).collect()).unwrap();
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).expect("a body of known length");
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        while self.unread.len() < length {
            assert!(self.read().await, "closed within {:?}", self.text());
        }
        let body = String::from_utf8(self.unread.drain(..length).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body }
    }

    /// Waits until the server closes the connection, without anything more to say.
    pub(crate) async fn closed(mut self) {
        assert!(!self.read().await && self.unread.is_empty(), "{:?}", self.text());
    }

    /// Reads some more; false at the end.
    async fn read(&mut self) -> bool {
        let read = soon("the server says something", self.socket.read_buf(&mut self.unread));
        read.await.expect("the connection ends without a reset") > 0
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.unread).into_owned()
    }
}
